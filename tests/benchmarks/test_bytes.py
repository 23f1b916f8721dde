"""Bytes that the benchmarks promise, counted at a size that a test can afford."""

from __future__ import annotations

import memory
import pytest
import torch
from models import GPT, Task, load_text, make_task, windows
from variants import Variant

import narrowgate as ng
from narrowgate.engine import cpu


def counted(name: str, task: Task) -> dict[str, float]:
    try:
        return Variant(name, task).count()
    finally:
        cpu.uninstall()


def wide_batch() -> Task:
    """A batch with as many bytes of activations per byte of weights as the full benchmark's."""
    torch.manual_seed(0)
    model = GPT(3, 128, 64)
    text, _ = load_text()
    tokens, targets = windows(text, torch.arange(0, 4400, 400), 64)
    return Task(name="gpt", model=model, inputs=tokens, targets=targets)


@pytest.mark.parametrize("recipe", ["bf16", "fp16"])
def test_saved_and_live_bytes_meet_their_limits(recipe: str) -> None:
    plain, ours = counted("plain", wide_batch()), counted(recipe, wide_batch())
    # the full benchmark has 1.8 bytes saved for each byte of weights, gradients and states
    weights = plain["live"] - plain["saved"]
    assert 1.6 < plain["saved"] / weights < 2.0
    assert ours["saved"] <= 0.55 * plain["saved"]
    assert ours["live"] <= 0.72 * plain["live"]


def test_the_image_model_saves_half() -> None:
    plain, ours = (
        counted("plain", make_task("resnet", "small")),
        counted("bf16", make_task("resnet", "small")),
    )
    assert ours["saved"] <= 0.55 * plain["saved"]


@pytest.mark.parametrize("name", memory.VARIANTS)
def test_bytes_per_parameter_are_what_the_recipe_says(name: str) -> None:
    try:
        found = memory.measure(name, 64)
    finally:
        cpu.uninstall()
    model = GPT(4, 64, 8)
    norms = sum(p.numel() for n, p in model.named_parameters() if "norm" in n)
    others = sum(p.numel() for p in model.parameters()) - norms
    num_tensors = len(list(model.parameters()))
    num_halves = len([n for n, _ in model.named_parameters() if "norm" not in n])
    assert found["states"] == 8 * (norms + others) + 4 * num_tensors
    if ng.parse("fp32" if name in ("plain", *_AUTOCAST) else name).default.narrows:
        assert found["weights"] == found["gradients"] == 4 * norms + 2 * others
        remainders = 0 if "none" in name else 2 * others + 8 * num_halves
        assert found["remainders"] == remainders
    else:
        assert found["weights"] == found["gradients"] == 4 * (norms + others)
        assert found["remainders"] == 0


_AUTOCAST = ("autocast-bf16", "autocast-fp16")
