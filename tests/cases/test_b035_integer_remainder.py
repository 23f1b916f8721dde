"""B035: the 16-bit remainder of a master passes through a float format when it is loaded, and the
master changes.

Broken invariant: the master after a resume is the master before, bit for bit, for every
remainder. torch's `load_state_dict` casts int16 state to the parameter's format: 12345 becomes
12352.
"""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

import narrowgate as ng
from cases.tools import SPLIT, Weight, bits, masters


class Plain(torch.optim.Optimizer):
    """Any foreign optimizer: torch's own load_state_dict."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})


def test_plain_torch_has_the_fault() -> None:
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer, twin = Plain([weight]), torch.nn.Parameter(weight.detach().clone())
    optimizer.state[weight]["low"] = torch.tensor([12345, -32767, 257], dtype=torch.int16)
    other = Plain([twin])
    other.load_state_dict(optimizer.state_dict())
    assert other.state[twin]["low"].tolist() == [12352, -32768, 256]


def all_remainders(recipe: str) -> torch.Tensor:
    """Give FP32 values whose remainders take every one of the codes that there are."""
    if recipe == "bf16":  # 65,536 neighbouring FP32 numbers from 1 on
        return (torch.arange(65536, dtype=torch.int32) + 0x3F800000).view(torch.float32)
    # fp16 keeps 10 bits of 23: 13 are left below a half in [1, 2), and more codes further down
    near = (torch.arange(16384, dtype=torch.int32) + 0x3F800000).view(torch.float32)
    return torch.cat([near, -near, near * 2.0**-10, near * 2.0**-14, near * 2.0**-16])


def made(recipe: str, values: torch.Tensor) -> tuple[Any, Any]:
    model = Weight(values)
    return ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe)


@pytest.mark.parametrize("recipe", SPLIT)
def test_the_codes_are_all_there(recipe: str) -> None:
    values = all_remainders(recipe)
    model, optimizer = made(recipe, values)
    held = optimizer.state_dict()["state"][0]["master_lo"]
    assert held.dtype is torch.uint8
    assert held.shape == (1, len(values), 2)
    codes = held[..., 0].int() + 256 * held[..., 1].int()
    if recipe == "bf16":
        assert len(codes.unique()) == 65536
    assert set(held.unique().tolist()) == set(range(256))
    assert torch.equal(masters(model, optimizer)["weight"][0], values)


@pytest.mark.parametrize("foreign", [None, torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("recipe", SPLIT)
def test_every_remainder_survives(recipe: str, foreign: torch.dtype | None) -> None:
    """Also where somebody else's loader casts the state to a parameter's format on the way."""
    values = all_remainders(recipe)
    model, optimizer = made(recipe, values)
    state = optimizer.state_dict()
    if foreign is None:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    else:
        weight = torch.nn.Parameter(torch.zeros(1, len(values), dtype=foreign))
        carrier = Plain([weight])
        carrier.load_state_dict(copy.deepcopy(state))
        assert carrier.state[weight]["master_lo"].dtype is foreign
        state = {**carrier.state_dict(), "param_groups": state["param_groups"]}
    other, resumed = made(recipe, torch.zeros(len(values)))
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(state)
    assert bits(masters(other, resumed)) == bits(masters(model, optimizer))
    assert torch.equal(masters(other, resumed)["weight"][0], values)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("recipe", SPLIT)
def test_shapes_of_any_rank(recipe: str, shape: tuple[int, ...]) -> None:
    def build() -> tuple[Any, Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(1, 1, bias=False)
        model.weight = torch.nn.Parameter(torch.randn(shape))
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return ng.prepare(model, inner, recipe)

    model, optimizer = build()
    optimizer.backward((model.weight.float() * 0.3).sum())
    optimizer.step()
    other, resumed = build()
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    assert bits(masters(other, resumed)) == bits(masters(model, optimizer))
