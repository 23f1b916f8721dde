"""B002: after some 146 bad batches the loss scale is so small that 1/scale is infinite, and good
data then makes the weights infinite.

Broken invariant: a step is applied only if loss, gradients and 1/scale are finite; a scale stays
positive. torch's GradScaler has no floor: the scale falls to 0, unscaling multiplies by Inf after
the check for Inf, and the weight is -Inf (146 bad batches) or NaN (170) without a word.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import narrowgate as ng
from cases.tools import SCALED, Weight, masters, memory

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1),  # through materialised masters
}


def feed(model: Any, optimizer: Any, factor: float) -> Any:
    optimizer.zero_grad()
    # a quarter: 2^16 itself, the first loss scale, is no fp16 number
    optimizer.backward((model(torch.ones(1, 1)) * (factor / 4)).sum())
    return optimizer.step()


@pytest.mark.parametrize(("bad", "outcome"), [(146, "-inf"), (170, "nan")])
def test_plain_torch_has_the_fault(bad: int, outcome: str) -> None:
    model = Weight([1.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    for step in range(bad + 2):
        optimizer.zero_grad()
        loss = (model(torch.ones(1, 1)) * (float("inf") if step < bad else 1.0)).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert str(model.weight.item()) == outcome


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("sgd", float("inf")),
        ("momentum", float("-inf")),
        ("adamw", float("nan")),
        ("rmsprop", float("inf")),
    ],
)
@pytest.mark.parametrize("recipe", SCALED)
def test_it_stops_at_the_floor_and_the_weight_is_what_it_was(
    recipe: str, name: str, bad: float
) -> None:
    model = Weight([1.0])
    model, optimizer = ng.prepare(model, OPTIMIZERS[name](model.parameters()), recipe)
    assert feed(model, optimizer, 1.0)
    before = memory(model, optimizer)
    # 2^16 halves to the floor of 2^-14 in 30 steps; 8 more find no room
    for step in range(30 + 8 - 1):
        result = feed(model, optimizer, bad)
        assert not result.applied
        assert result.loss_scale == 2.0 ** max(16 - step, -14)
        assert memory(model, optimizer) == before
    with pytest.raises(ng.NarrowgateError, match="8 steps in a row were skipped") as caught:
        feed(model, optimizer, bad)
    assert "6.10352e-05" in str(caught.value)  # the floor
    assert "weight" in str(caught.value)
    assert memory(model, optimizer) == before
    # whoever swallows the error gets no step applied in the end after all
    for factor in (1.0, 1.0, bad, 1.0):
        with pytest.raises(ng.NarrowgateError, match="skipped"):
            feed(model, optimizer, factor)
        assert memory(model, optimizer) == before


@pytest.mark.parametrize("recipe", SCALED)
def test_one_good_batch_short_of_the_end_saves_the_run(recipe: str) -> None:
    model = Weight([1.0])
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5), recipe)
    for _ in range(3):
        for _ in range(37):
            feed(model, optimizer, float("inf"))
            if optimizer.last_result.loss_scale == 2.0**-14:
                break
        for _ in range(6):
            assert not feed(model, optimizer, float("nan"))
        assert feed(model, optimizer, 1.0)
    # three applied steps of 1/8 each: exact in FP32
    assert masters(model, optimizer)["weight"].item() == 1.0 - 3 * 0.125


@pytest.mark.parametrize("recipe", ["fp16(floor=2^-149)", "fp16-mixed(floor=2^-149)"])
@pytest.mark.parametrize("bad", [143, 144, 165])
def test_no_step_is_applied_while_one_over_the_scale_is_infinite(recipe: str, bad: int) -> None:
    """A user may set a floor where 1/scale leaves FP32: 2^-128 has the reciprocal 2^128."""
    model = Weight([1.0])
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5), recipe)
    for _ in range(bad):
        assert not feed(model, optimizer, float("inf"))
    result = feed(model, optimizer, 1.0)
    weight = masters(model, optimizer)["weight"].item()
    if result.loss_scale < 2.0**-127:
        assert not result.applied
        assert weight == 1.0
    else:
        # The scaled gradient may have fallen to zero, in fp16 below 2^-24: small, but finite.
        assert result.applied
        assert weight in (1.0, 1.0 - 0.125)


@pytest.mark.parametrize(
    "recipe", ["bf16", "bf16-mixed", "fp16(loss_scale=1024)", "fp16-mixed(loss_scale=1024)"]
)
def test_a_scale_that_cannot_fall_stops_after_eight(recipe: str) -> None:
    model = Weight([1.0])
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe)
    for _ in range(7):
        assert not feed(model, optimizer, float("inf"))
    with pytest.raises(ng.NarrowgateError, match=re.escape("8 steps in a row were skipped")):
        feed(model, optimizer, float("inf"))
    assert masters(model, optimizer)["weight"].item() == 1.0
