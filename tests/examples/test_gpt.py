from __future__ import annotations

import sysconfig
from pathlib import Path

import gpt
import torch


def test_each_part_is_nine_tenths_to_train_on_and_one_to_validate_on():
    train, validation = gpt.load_text()
    folder = Path(sysconfig.get_paths()["stdlib"])
    start = 0
    for part, pattern in gpt.PARTS.items():
        text = b"".join(path.read_bytes() for path in sorted(folder.glob(pattern)))
        kept = bytes(validation[part].tolist())
        given = bytes(train[start : start + len(text) - len(kept)].tolist())
        assert given + kept == text
        assert abs(len(kept) - len(text) / 10) < 1
        start += len(given)
    assert start == len(train)


def test_validation_windows_reach_from_the_parts_begin_to_its_end():
    seen = []

    class Model(torch.nn.Module):
        def forward(self, tokens):
            seen.append(tokens)
            return torch.zeros(*tokens.shape, 256)

    text = torch.arange(200, dtype=torch.uint8)
    loss = gpt.validate(Model(), text, context=9, batches=2)
    starts = torch.cat(seen)[:, 0]
    assert len(starts) == 32
    assert (starts.min(), starts.max()) == (0, 190)  # the last window's last target is byte 199
    assert abs(loss - 5.545177) < 1e-5  # ln 256


def test_targets_are_the_next_bytes():
    data = torch.arange(100, dtype=torch.uint8)
    tokens, targets = gpt.windows(data, torch.tensor([0, 90]), 5)
    assert tokens.tolist() == [[0, 1, 2, 3, 4], [90, 91, 92, 93, 94]]
    assert targets.tolist() == [[1, 2, 3, 4, 5], [91, 92, 93, 94, 95]]


def test_the_model_does_not_look_ahead():
    torch.manual_seed(0)
    model = gpt.GPT(2, 64, 16)
    tokens = torch.randint(256, (1, 16))
    changed = tokens.clone()
    changed[0, 9:] = 0
    before, after = model(tokens), model(changed)
    # Equal up to summation order: 16 numbers of size 1 or so, FP32's half ulp of each.
    assert (before[0, :9] - after[0, :9]).abs().max() < 16 * 2.0**-24
    assert not torch.equal(before[0, 9:], after[0, 9:])
