"""What is true of every example script: whose lines are whose, and what a run records."""

from __future__ import annotations

import re
import statistics
import types
from pathlib import Path

import gpt
import pytest
import resnet
import torch

from narrowgate.pilot.config import load_config

TINY = {
    gpt: ["--layers", "1", "--width", "32", "--context", "32", "--batch", "4", "--lr", "1e-2"],
    resnet: ["--width", "8", "--batch", "32"],
}
METRIC = {gpt: "val_loss", resnet: "accuracy"}
RECIPES = ["fp32", "bf16", "fp16", "bf16-mixed", "fp16-mixed"]

each = pytest.mark.parametrize("module", TINY, ids=lambda module: module.__name__)


def source(module: types.ModuleType) -> str:
    return Path(module.__file__).read_text()


def without_narrowgate(text: str) -> str:
    """The script with its marked lines, and the import, taken out or put back to torch's own."""
    gone = re.compile(r"^ *(import narrowgate|ng\.result|model, optimizer = ng).*\n", re.MULTILINE)
    text = gone.sub("", text)
    text = text.replace("ng.seed(args.seed)", "torch.manual_seed(args.seed).initial_seed()")
    return text.replace("optimizer.backward(loss)", "loss.backward()")


@each
def test_a_script_is_short_and_four_of_its_lines_are_narrowgates(module):
    lines = source(module).splitlines()
    own = [line for line in lines if "ng." in line or "optimizer.backward(" in line]
    assert len(lines) < 150
    assert [line.rpartition("# ")[2] for line in own] == ["pilot", "one", "two", "pilot"]


@each
def test_without_these_lines_it_is_a_plain_script_with_the_same_numbers_as_fp32(
    module, run, capsys, monkeypatch
):
    text = without_narrowgate(source(module))
    assert "ng." not in text
    assert "import narrowgate" not in text
    plain = types.ModuleType("plain")
    exec(compile(text, "plain.py", "exec"), plain.__dict__)
    run(module, *TINY[module], "--steps", "10", "--seed", "3", "--recipe", "fp32")
    prepared = capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["plain.py", *TINY[module], "--steps", "10", "--seed", "3"])
    plain.main()
    assert capsys.readouterr().out == prepared
    assert len(prepared.splitlines()) == 11


@pytest.mark.parametrize("recipe", RECIPES)
@each
def test_it_learns_in_every_recipe(module, recipe, run):
    done = run(module, *TINY[module], "--steps", "40", asked=(recipe, 0))
    metric = done.result.metrics[METRIC[module]]
    # Bytes: guessing costs ln 256 = 5.55 nats, knowing how often each occurs about 3.4.
    # Digits: guessing gives 10 points.
    assert 1.0 < metric < 4.2 if module is gpt else 50.0 < metric < 100.0
    assert len(done.steps) == 40
    # fp16 starts with a loss scale of 2^16, which a few first steps have to find too high.
    assert done.steps.applied.count(False) <= (8 if "fp16" in recipe else 0)


@each
def test_the_pilots_seed_and_recipe_win_and_a_seed_fixes_a_run(module, run):
    tiny = [*TINY[module], "--steps", "4"]
    piloted = run(module, *tiny, "--recipe", "fp16", asked=("bf16", 3))
    own = run(module, *tiny, "--recipe", "bf16", "--seed", "3")
    other = run(module, *tiny, "--recipe", "bf16", "--seed", "4")
    assert piloted.result.metrics == own.result.metrics
    assert piloted.result.slices == own.result.slices
    assert other.result.metrics != own.result.metrics


@each
def test_every_recipe_is_given_the_same_data_in_the_same_order(module, run):
    def given(recipe, seed):
        steps = run(module, *TINY[module], "--steps", "6", asked=(recipe, seed)).steps
        return list(zip(steps.data, steps.floats, strict=True))

    fp32 = given("fp32", 0)
    assert (None, None) not in fp32
    assert len(set(fp32)) == 6
    assert given("fp16", 0) == fp32
    assert given("fp32", 1) != fp32


@each
def test_its_configuration_judges_what_the_script_reports(module, run):
    config = load_config(Path(module.__file__).with_suffix(".toml"))
    done = run(module, *TINY[module], "--steps", "1", asked=("fp32", 0))
    assert [limit.name for limit in config.quality] == [METRIC[module]] == [*done.result.metrics]
    for values in done.result.slices.values():
        assert [*values] == [METRIC[module]]
    assert all(config.quality[0].slice_margin(part) for part in done.result.slices)
    assert len(config.seeds) == 5
    assert set(RECIPES[1:]) <= set(config.candidates)


def test_the_gpt_counts_each_part_of_the_library_alike(run):
    done = run(gpt, *TINY[gpt], "--steps", "1", "--recipe", "fp32")
    losses = [values["val_loss"] for values in done.result.slices.values()]
    assert [*done.result.slices] == ["modules", "asyncio", "email", "encodings", "json"]
    assert done.result.metrics["val_loss"] == statistics.fmean(losses)
    assert len(set(losses)) == 5


def test_the_resnet_counts_each_test_image_once(run):
    done = run(resnet, *TINY[resnet], "--steps", "20", "--recipe", "fp32")
    _, _, _, digits = resnet.load_images()
    shares = torch.bincount(digits).double() / len(digits)
    accuracies = [values["accuracy"] for values in done.result.slices.values()]
    assert [*done.result.slices] == [f"digit {digit}" for digit in range(10)]
    whole = sum(share * points for share, points in zip(shares.tolist(), accuracies, strict=True))
    assert done.result.metrics["accuracy"] == pytest.approx(whole, abs=1e-9)
    assert 0.0 < whole < 100.0
