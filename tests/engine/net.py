"""A small net, and what tests of refusals do with it; several test files share this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import narrowgate as ng
from cases.tools import bits

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Net(nn.Sequential):
    """A Linear, a norm (which stays FP32) and a Linear."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def sgd(*models: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for m in models for p in m.parameters()], lr=lr)


def made(recipe: str = "bf16", make: Any = adamw, **options: Any) -> tuple[Any, Any]:
    model = Net()
    return ng.prepare(model, make(model.parameters()), recipe, **options)


def step(model: Any, optimizer: Any, x: torch.Tensor = X) -> Any:
    optimizer.zero_grad()
    optimizer.backward(model(x).pow(2).mean())
    return optimizer.step()


def everything(model: nn.Module, optimizer: Any) -> Any:
    """Every bit that training depends on, loss scale and counters with it."""
    return bits([model.state_dict(), optimizer.state_dict()])


def message(error: type[Exception], call: Callable[[], Any]) -> str:
    """Give the whole text of a refusal."""
    with pytest.raises(error) as caught:
        call()
    assert caught.type is error
    return str(caught.value)
