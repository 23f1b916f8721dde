"""B014: a second backward after the gradients were unscaled adds scaled to true gradients.

Broken invariant: what is accumulated was made with one scale and is divided by it once. torch
says nothing: after `unscale_` and another scaled backward the gradient is 1025 instead of 2.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import narrowgate as ng
from cases.tools import RECIPES, SCALED, Weight, give, masters, memory


def test_plain_torch_has_the_fault() -> None:
    model = Weight([0.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(model.weight.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.scale(model.weight.sum()).backward()
    scaler.step(optimizer)
    assert model.weight.item() == -1025.0


ALL = (*RECIPES, "fp16(init=1024, interval=1)", "bf16(accumulate=fp32)", "fp16(accumulate=fp32)")


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("recipe", ALL)
def test_every_backward_of_a_window_counts_once(recipe: str, count: int) -> None:
    model = Weight([0.0])
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), recipe)
    for window in range(1, 4):  # a scale that grows at each step must not mix either
        optimizer.zero_grad()
        for _ in range(count):
            give(optimizer, model, 1 / 16)
        assert optimizer.step()
        # small whole multiples of 1/16: exact in every format here
        assert masters(model, optimizer)["weight"].item() == -window * count / 16


@pytest.mark.parametrize("recipe", ALL)
def test_a_step_in_the_middle_of_a_window_keeps_its_scale(recipe: str) -> None:
    """Backward, step, backward, step without zero_grad: torch applies 1, then 1 + 1."""
    model = Weight([0.0])
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), recipe)
    for expected in (-1 / 16, -3 / 16, -6 / 16):
        give(optimizer, model, 1 / 16)
        assert optimizer.step()
        assert masters(model, optimizer)["weight"].item() == expected


@pytest.mark.parametrize("recipe", SCALED)
@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_skip_after_which_the_scale_moved_does_not_mix(recipe: str, accumulated: int) -> None:
    model = Weight([0.0])
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), recipe)
    give(optimizer, model, 1 / 16)
    give(optimizer, model, float("inf"))
    assert not optimizer.step()
    optimizer.zero_grad()
    for _ in range(accumulated):
        give(optimizer, model, 1 / 16)
    result = optimizer.step()
    assert result.applied
    assert result.loss_scale == 2.0**15
    assert masters(model, optimizer)["weight"].item() == -accumulated / 16


def clip(parameters: list[torch.Tensor]) -> None:
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)


def halve(parameters: list[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = parameter.grad / 2  # type: ignore[operator]


def foreign(parameters: list[torch.Tensor]) -> None:
    parameters[0].float().sum().backward()


def unscale(parameters: list[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad.mul_(1 / 65536)  # type: ignore[union-attr]


@pytest.mark.parametrize("what", [clip, halve, foreign, unscale])
@pytest.mark.parametrize("then", ["step", "backward"])
@pytest.mark.parametrize("recipe", SCALED)
def test_a_foreign_hand_on_scaled_gradients_is_refused(recipe: str, then: str, what: Any) -> None:
    model = Weight([0.0])
    model, optimizer = ng.prepare(model, torch.optim.AdamW(model.parameters()), recipe)
    give(optimizer, model, 1 / 16)
    optimizer.step()
    optimizer.zero_grad()
    give(optimizer, model, 1 / 16)
    what(list(model.parameters()))
    before = memory(model, optimizer)
    with pytest.raises(ng.StepError, match="1 gradients, the first of them weight") as caught:
        optimizer.step() if then == "step" else give(optimizer, model, 1 / 16)
    assert "optimizer.step(max_norm=...)" in str(caught.value)
    assert memory(model, optimizer) == before
    # the next window is sound
    optimizer.zero_grad()
    give(optimizer, model, 1 / 16)
    assert optimizer.step()
