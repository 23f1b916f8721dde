"""B004: a loss scale with a floor of 1 skips every step for ever where the true gradient
overflows fp16, and says nothing.

Broken invariant: training either goes on or stops with a reason. torch's GradScaler itself goes
below 1 and is right; scalers with a floor (`scaler.update(floor)` by hand, Megatron, DeepSpeed)
are not.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import narrowgate as ng
from cases.tools import Weight, masters


def run(recipe: str, steps: int = 60) -> tuple[int | None, Any, Any]:
    """Train on a true gradient of 1,024,000, beyond fp16's 65,504; give the first applied step."""
    model = Weight([1.0, 1.0])
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-9), recipe)
    for step in range(steps):
        optimizer.zero_grad()
        optimizer.backward((model(torch.tensor([[1024.0, 1.0]])) * 1000).sum())
        if optimizer.step():
            return step, model, optimizer
    return None, model, optimizer


@pytest.mark.parametrize("floor", [None, 1.0])
def test_plain_torch_with_a_floor_has_the_fault(floor: float | None) -> None:
    model = Weight([1.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    scaler, first = torch.amp.GradScaler("cpu"), None
    for step in range(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            y = model(torch.ones(1, 1))
        scaler.scale((y.float() * 1e6).sum()).backward()
        before = model.weight.item()
        scaler.step(optimizer)
        scaler.update()
        if floor is not None and scaler.get_scale() < floor:
            scaler.update(floor)
        if first is None and model.weight.item() != before:
            first = step
    assert first == (20 if floor is None else None)


@pytest.mark.parametrize("recipe", ["fp16", "fp16-mixed"])
def test_it_goes_below_one(recipe: str) -> None:
    first, model, optimizer = run(recipe)
    # 1,024,000 * 2^-4 = 64,000 is the first that fp16 holds; 2^16 halves to 2^-4 in 20 steps
    assert first == 20
    assert optimizer.last_result.loss_scale == 2.0**-4
    weight = masters(model, optimizer)["weight"]
    # 64,000 is an fp16 number, so the gradient is exact; lr, product and master are rounded in FP32
    assert abs(weight[0, 0].item() - (1 - 1.024e-3)) <= 2**-24


@pytest.mark.parametrize("recipe", ["bf16", "bf16-mixed"])
def test_bf16_has_the_range_and_steps_at_once(recipe: str) -> None:
    assert run(recipe)[0] == 0


@pytest.mark.parametrize(
    ("recipe", "halvings", "floor"),
    [
        ("fp16(floor=1)", 16, "1"),
        ("fp16-mixed(floor=1)", 16, "1"),
        ("fp16(floor=2^-3)", 19, "0.125"),
        ("fp16(init=8, floor=8)", 0, "8"),
        ("fp16(loss_scale=32)", 0, "32"),
    ],
)
def test_a_floor_that_is_too_high_is_an_error_with_floor_name_and_gradient(
    recipe: str, halvings: int, floor: str
) -> None:
    model = Weight([1.0, 1.0])
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-9), recipe)
    for step in range(halvings + 8):
        optimizer.zero_grad()
        optimizer.backward((model(torch.tensor([[1024.0, 1.0]])) * 1000).sum())
        if step < halvings + 7:
            assert not optimizer.step()
    with pytest.raises(ng.NarrowgateError) as caught:
        optimizer.step()
    told = str(caught.value)
    assert f"at its floor {floor};" in told
    assert "weight (1 of 2 gradient elements non-finite" in told
    assert "the largest finite one 1000;" in told
    assert "hint:" in told
    assert torch.equal(masters(model, optimizer)["weight"], torch.ones(1, 2))


@pytest.mark.parametrize("preset", ["narrowgate", "torch", "apex", "deepspeed", "megatron"])
def test_no_preset_skips_for_ever_in_silence(preset: str) -> None:
    model = Weight([1.0])
    recipe = f"fp16(preset={preset})"
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-9), recipe)
    for _ in range(2 * 36 + 8 + 2):  # the largest starts at 2^32: 36 halvings, each forgiven once
        optimizer.zero_grad()
        optimizer.backward((model(torch.ones(1, 1)) * 1e6).sum())
        try:
            if optimizer.step():
                return
        except ng.NarrowgateError as error:
            assert "steps in a row were skipped" in str(error)  # noqa: PT017 - either end will do
            return
    pytest.fail("neither a step nor an error")
