"""B044: Adam's eps of 1e-8 is 0 in fp16, so a zero gradient gives 0/0 = NaN.

Broken invariant: the denominator is FP32; where the gradient is zero the weight keeps its bits.
torch's Adam, AdamW, RMSprop, Adagrad, NAdam and Adamax on fp16 weights give NaN.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import narrowgate as ng
from cases.tools import SWEEP, Weight, give, masters

NAMES = (
    "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta", "Rprop", "ASGD",
)  # fmt: skip
#: A zero, a subnormal of fp16, something small, something usual, a negative one.
GRADIENT = [0.0, 2.0**-24, 1e-4, 0.25, -0.25]
VALUES = [1.0, 1.0, 1.0, 1.0, 1.0]


def make(name: str, parameters: Any) -> torch.optim.Optimizer:
    options = {"weight_decay": 0.0} if name != "Rprop" else {}
    if name == "ASGD":
        options["lambd"] = 0.0  # decays the weight also where the gradient is zero
    optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(parameters, lr=1e-2, **options)
    return optimizer


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Adamax"])
def test_plain_torch_has_the_fault(name: str) -> None:
    weight = torch.nn.Parameter(torch.ones(5, dtype=torch.float16))
    optimizer = make(name, [weight])
    weight.grad = torch.tensor(GRADIENT, dtype=torch.float16)
    optimizer.step()
    assert weight[0].isnan()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("recipe", [*SWEEP, "fp16(master=none)", "bf16(master=none)"])
def test_zero_gradients_move_nothing_and_small_ones_as_in_fp32(recipe: str, name: str) -> None:
    model = Weight(VALUES)
    model, optimizer = ng.prepare(model, make(name, model.parameters()), recipe)
    twin = torch.nn.Parameter(torch.tensor([VALUES]))
    reference = make(name, [twin])
    scale = 65536.0 if recipe.startswith("fp16") else 1.0
    stored = (torch.tensor([GRADIENT]) * scale).to(model.weight.dtype)
    for _ in range(3):
        optimizer.zero_grad()
        give(optimizer, model, GRADIENT)
        assert torch.equal(model.weight.grad, stored)
        assert optimizer.step()
        twin.grad = stored.float() / scale
        reference.step()
    assert model.weight[0, 0].item() == 1.0
    assert model.weight.isfinite().all()
    for state in optimizer.state[model.weight].values():
        if isinstance(state, torch.Tensor):
            assert state.isfinite().all()
    if "none" in recipe:
        return
    master = masters(model, optimizer)["weight"]
    assert master[0, 0].item() == 1.0
    if name in ("Adam", "AdamW"):
        # our own op orders the roundings differently: 3 steps of up to 1e-2, some 8 roundings each,
        # beside the weight's own ulp
        assert ((master - twin).abs() <= 3 * (8 * 2.0**-24 * 1e-2 + 2.0**-23)).all()
    else:
        assert torch.equal(master, twin)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop"])
@pytest.mark.parametrize("recipe", SWEEP)
def test_an_epsilon_that_only_fp32_holds_is_kept(recipe: str, name: str) -> None:
    """1e-30 is no fp16 number; the denominator is FP32, so it is as good as 1e-8."""
    model = Weight(VALUES)
    inner = getattr(torch.optim, name)(model.parameters(), lr=1e-2, eps=1e-30, weight_decay=0.0)
    model, optimizer = ng.prepare(model, inner, recipe)
    give(optimizer, model, GRADIENT)
    assert optimizer.step()
    master = masters(model, optimizer)["weight"]
    assert master[0, 0].item() == 1.0
    assert master.isfinite().all()
