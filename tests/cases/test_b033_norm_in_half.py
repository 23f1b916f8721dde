"""B033: the norm of 16-bit gradients is computed in 16 bits: Inf for two values of 60,000, and
all gradients become 0 by clipping.

Broken invariant: the norm is that of the true gradients, summed so widely that no finite gradient
overflows or vanishes in it. torch's `clip_grad_norm_` works in the gradient's own format; with
FP32 it fails in the same way from 1e20 on.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import narrowgate as ng
from cases.tools import RECIPES, Weight, give, masters

#: A norm of n float64 values computed by adding squares: relative error below n * 2^-53.
F64 = 2.0**-53


def test_plain_torch_has_the_fault() -> None:
    parameters = [nn.Parameter(torch.zeros(1, dtype=torch.float16)) for _ in range(2)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 60000.0)
    assert torch.nn.utils.clip_grad_norm_(parameters, 1.0).item() == math.inf
    assert [p.grad.item() for p in parameters] == [0.0, 0.0]  # type: ignore[union-attr]
    flat = torch.full((10000,), 0.01, dtype=torch.bfloat16)
    norm = torch.nn.utils.get_total_norm([flat]).item()
    true = flat.double().norm().item()
    assert abs(norm - true) / true > 1e-4


class Two(nn.Module):
    """Two weights of one element each."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Weight([0.0]), Weight([0.0])


@pytest.mark.parametrize("own", [True, False], ids=["own op", "materialised"])
@pytest.mark.parametrize("recipe", ["fp16(loss_scale=off)", "fp16-mixed(loss_scale=off)", "bf16"])
def test_two_gradients_of_60000(recipe: str, own: bool) -> None:
    model = Two()
    inner = torch.optim.SGD(model.parameters(), lr=1.0, dampening=0.0 if own else 0.5)
    model, optimizer = ng.prepare(model, inner, recipe, clip_norm=1.0)
    value = 60000.0 if recipe != "bf16" else 59904.0  # a bf16 number
    optimizer.backward(((model.a.weight + model.b.weight).float() * value).sum())
    result = optimizer.step()
    assert result.applied
    # two squares and their sum are whole numbers below 2^53: exact, and the root is rounded once
    assert result.grad_norm == math.sqrt(2 * value * value)
    got = torch.cat([v.flatten() for v in masters(model, optimizer).values()]).double()
    # clip factor, product and master are each rounded to FP32 once; torch's 1e-6 is below that
    assert abs(got.norm().item() - 1.0) <= 3 * 2.0**-24
    assert got[0] == got[1]


@pytest.mark.parametrize("n", [1, 1000, 10000])
@pytest.mark.parametrize("recipe", ["bf16", "fp16", "bf16(accumulate=fp32)"])
def test_many_small_gradients(recipe: str, n: int) -> None:
    model = Weight(torch.zeros(n))
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), recipe)
    give(optimizer, model, 0.01)
    result = optimizer.step()
    stored = torch.tensor(0.01).to(model.weight.dtype).double().item()
    if recipe == "fp16":  # rounded after scaling by a power of two, in the normal range
        assert result.loss_scale == 65536
    true = math.sqrt(n) * stored
    # required: 1e-6, where bf16 gives 1e-3; what FP32 squares (2^-24) summed in FP64 would miss
    # their norm by half of, is the bound
    assert abs(result.grad_norm - true) / true <= 2.0**-24


@pytest.mark.parametrize("value", [1e20, 3e38, 1e-30, 1e-38])
@pytest.mark.parametrize("recipe", ["bf16-mixed", "bf16", "fp16-mixed(loss_scale=off)"])
def test_squares_neither_overflow_nor_vanish(recipe: str, value: float) -> None:
    """FP32 has the same fault: the square of 1e20 is Inf, that of 1e-30 is 0."""
    model = Weight([0.0, 0.0, 0.0])
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), recipe)
    give(optimizer, model, [value, -value, 0.0])
    result = optimizer.step(max_norm=value / 2)
    stored = torch.tensor(value).to(model.weight.dtype).double().item()
    assert result.applied
    assert math.isclose(result.grad_norm, math.sqrt(2) * stored, rel_tol=3 * F64)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_tiny_norm_is_not_clipped_and_zero_stays_zero(recipe: str) -> None:
    model = Weight([0.0, 0.0])
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), recipe)
    give(optimizer, model, [0.0, 0.0])
    assert optimizer.step(max_norm=1.0).grad_norm == 0.0
    assert torch.equal(masters(model, optimizer)["weight"], torch.zeros(1, 2))
    optimizer.zero_grad()
    give(optimizer, model, [2.0**-10, 0.0])
    assert optimizer.step(max_norm=1.0).grad_norm == 2.0**-10
    assert masters(model, optimizer)["weight"].tolist() == [[-(2.0**-10), 0.0]]
