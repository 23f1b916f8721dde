from __future__ import annotations

import json
import math
import types
from pathlib import Path

import gpt
import pytest
import torch

SOURCE = Path(gpt.__file__).read_text()
TINY = ["--layers", "1", "--width", "32", "--context", "32", "--batch", "4"]


def losses(module: types.ModuleType, *arguments: str) -> list[float]:
    args = module.parse_arguments([*TINY, *arguments])
    return [loss for _, _, loss, _ in module.train(args)]


def test_it_is_shorter_than_150_lines_and_two_of_them_are_narrowgates() -> None:
    lines = SOURCE.splitlines()
    code = [line for line in lines if "ng." in line or "optimizer.backward(" in line]
    assert len(lines) < 150
    assert [line.rpartition("# ")[2] for line in code] == ["one", "two"]


def test_without_the_two_lines_it_is_a_plain_script_with_the_same_numbers_as_fp32() -> None:
    plain = "".join(
        line.replace("optimizer.backward(loss)", "loss.backward()").replace("result.applied", "1")
        for line in SOURCE.splitlines(keepends=True)
        if "ng.prepare" not in line and "import narrowgate" not in line
    )
    assert "ng." not in plain
    module = types.ModuleType("plain_gpt")
    exec(compile(plain, "plain_gpt.py", "exec"), module.__dict__)
    assert losses(module, "--steps", "4") == losses(gpt, "--steps", "4", "--recipe", "fp32")


@pytest.mark.parametrize("recipe", ["fp32", "bf16", "fp16", "bf16-mixed", "fp16-mixed"])
def test_it_learns_and_its_last_line_is_the_result(
    recipe: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["gpt.py", *TINY, "--steps", "40", "--lr", "1e-2", "--recipe", recipe]
    monkeypatch.setattr("sys.argv", command)
    gpt.main()
    *progress, last = capsys.readouterr().out.splitlines()
    results = json.loads(last)
    assert len(progress) == 20
    assert results["recipe"] == recipe
    # Guessing costs ln 256 = 5.55 nats; knowing only how often each byte occurs, about 3.4.
    assert 1.0 < results["loss"] < 4.2
    assert 1.0 < results["val_loss"] < 4.2
    assert results["tokens_per_second"] > 0
    assert results["peak_rss_bytes"] > 2**20
    # fp16 starts with a loss scale of 2^16, which a few first steps have to find too high
    assert 0 <= results["skipped"] <= (8 if "fp16" in recipe else 0)


def test_a_seed_fixes_the_run_and_another_changes_it() -> None:
    first, again = losses(gpt, "--steps", "2"), losses(gpt, "--steps", "2")
    assert first == again
    assert losses(gpt, "--steps", "2", "--seed", "1") != first


def test_validation_text_is_none_of_the_training_text() -> None:
    data, validation = gpt.load_text()
    whole = len(data) + len(validation)
    assert len(validation) == math.ceil(whole / 10)
    assert data.data_ptr() + len(data) == validation.data_ptr()


def test_targets_are_the_next_bytes() -> None:
    data = torch.arange(100, dtype=torch.uint8)
    tokens, targets = gpt.windows(data, torch.tensor([0, 90]), 5)
    assert tokens.tolist() == [[0, 1, 2, 3, 4], [90, 91, 92, 93, 94]]
    assert targets.tolist() == [[1, 2, 3, 4, 5], [91, 92, 93, 94, 95]]


def test_the_model_does_not_look_ahead() -> None:
    torch.manual_seed(0)
    model = gpt.GPT(2, 64, 16)
    tokens = torch.randint(256, (1, 16))
    changed = tokens.clone()
    changed[0, 9:] = 0
    before, after = model(tokens), model(changed)
    # Equal up to summation order: 16 numbers of size 1 or so, FP32's half ulp of each.
    assert (before[0, :9] - after[0, :9]).abs().max() < 16 * 2.0**-24
    assert not torch.equal(before[0, 9:], after[0, 9:])
