"""What the tests of reported faults share: a model of one weight, bits, and a gradient on order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import narrowgate as ng
from narrowgate.engine import cpu

SPLIT = ("bf16", "fp16")
SCALED = ("fp16", "fp16-mixed")
RECIPES = ("bf16", "fp16", "bf16-mixed", "fp16-mixed")
#: The same, for wide tables: with FP32 parameters there is less that can go wrong.
SWEEP = (*SPLIT, *(pytest.param(recipe, marks=pytest.mark.slow) for recipe in RECIPES[2:]))


def uninstall() -> None:
    """Take narrowgate's CPU kernels out, so that torch is plain torch."""
    if cpu.installed():
        cpu.uninstall()


@pytest.fixture(autouse=True)
def plain_torch_where_it_is_shown(request: pytest.FixtureRequest) -> None:
    """Show the fault itself on plain torch; the other tests of a file may share the kernels."""
    if "plain_torch" in request.node.name:
        uninstall()


@pytest.fixture(autouse=True, scope="module")
def plain_torch_again() -> Iterator[None]:
    """Leave the process as it was."""
    yield
    uninstall()


class Weight(nn.Linear):
    """A Linear without bias whose weight holds given values; its forward is their sum."""

    def __init__(self, values: torch.Tensor | list[float]) -> None:
        values = torch.as_tensor(values, dtype=torch.float32).reshape(1, -1)
        super().__init__(values.shape[1], 1, bias=False)
        with torch.no_grad():
            self.weight.copy_(values)


def bits(value: Any) -> Any:
    """Give a nested value with its tensors as (format, shape, bytes), for exact comparison."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return str(value.dtype), tuple(value.shape), raw.numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return value


def memory(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """Give every bit of what a step may change, the loss scale and the counters left out."""
    state = copy.deepcopy(optimizer.state_dict())
    for group in state["param_groups"]:
        group.pop("narrowgate", None)
    return bits([model.state_dict(), state])


def masters(model: nn.Module, optimizer: Any) -> dict[str, torch.Tensor]:
    """Give a copy of the FP32 masters by name."""
    state = ng.full_precision_state_dict(model, optimizer)
    return {key: value.clone() for key, value in state.items()}


def give(optimizer: Any, model: nn.Linear, gradient: torch.Tensor | list[float] | float) -> None:
    """Make a model's weight get a gradient (times the loss scale), through our own backward."""
    values = torch.as_tensor(gradient, dtype=torch.float32)
    optimizer.backward((model.weight.float() * values).sum())


Make = Callable[[Any], torch.optim.Optimizer]
