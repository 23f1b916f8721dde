"""B034: `load_state_dict` casts optimizer state to the parameter's format, so FP32 moments of
bf16 parameters come back as bf16.

Broken invariant: state survives save and load with its format and every bit. torch casts every
floating state but `step`.
"""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import narrowgate as ng
from cases.tools import RECIPES, SWEEP, Weight, bits, give

OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, centered=True, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
}


@pytest.mark.parametrize("parameter", [torch.bfloat16, torch.float32])
def test_plain_torch_has_the_fault(parameter: torch.dtype) -> None:
    state = torch.float32 if parameter is torch.bfloat16 else torch.bfloat16
    weight = torch.nn.Parameter(torch.ones(1, dtype=parameter))
    optimizer = torch.optim.Adam([weight], lr=0.0)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    optimizer.state[weight]["exp_avg"] = torch.full((1,), 1 / 3, dtype=state)
    twin = torch.nn.Parameter(weight.detach().clone())
    other = torch.optim.Adam([twin], lr=0.0)
    other.load_state_dict(optimizer.state_dict())
    assert other.state[twin]["exp_avg"].dtype is parameter


def trained(make: Any, recipe: str, steps: int) -> tuple[Any, Any]:
    model = Weight([1.0, 0.3, -2.0])
    model, optimizer = ng.prepare(model, make(model.parameters()), recipe)
    for step in range(steps):
        optimizer.zero_grad()
        give(optimizer, model, [1 / 3, 0.1 * step, -1e-3])
        optimizer.step()
    return model, optimizer


def through(way: str, optimizer: Any) -> Any:
    state = optimizer.state_dict()
    if way == "pickle":
        return pickle.loads(pickle.dumps(state))
    if way == "weights_only":
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        return torch.load(file, weights_only=True)
    return copy.deepcopy(state)


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "weights_only"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("recipe", SWEEP)
def test_every_state_comes_back_as_it_was(recipe: str, kind: str, way: str) -> None:
    model, optimizer = trained(OPTIMIZERS[kind], recipe, 3)
    told = through(way, optimizer)
    for steps in (0, 1):  # a fresh optimizer without states, and one with
        other, resumed = trained(OPTIMIZERS[kind], recipe, steps)
        other.load_state_dict(model.state_dict())
        resumed.load_state_dict(copy.deepcopy(told))
        assert bits(resumed.state_dict()) == bits(told)
        for state in resumed.state.values():
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    assert value.dtype is torch.float32, key
        # and what was loaded is no view of the file's tensors
        give(resumed, other, 1.0)
        resumed.step()
        assert bits(told) == bits(optimizer.state_dict())


@pytest.mark.parametrize("recipe", SWEEP)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32])
def test_formats_that_we_never_make_survive_too(recipe: str, dtype: torch.dtype) -> None:
    """A user's own state, in a format that is neither the parameter's nor FP32."""
    model, optimizer = trained(OPTIMIZERS["rmsprop"], recipe, 1)
    value = (torch.tensor([[1 / 3, 1e-4, 100.0]]) * 7).to(dtype)
    optimizer.state[model.weight]["mine"] = value
    optimizer.state[model.weight]["step"] = torch.tensor(7.0, dtype=torch.float64)
    other, resumed = trained(OPTIMIZERS["rmsprop"], recipe, 0)
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(optimizer.state_dict())
    assert bits(resumed.state[other.weight]["mine"]) == bits(value)
    assert resumed.state[other.weight]["step"].dtype is torch.float64


@pytest.mark.parametrize("here", RECIPES)
@pytest.mark.parametrize("there", RECIPES)
def test_a_checkpoint_of_other_formats_is_refused_naming_both(
    here: str, there: str, tmp_path: Path
) -> None:
    if here == there:
        return
    ng.save_checkpoint(tmp_path, *trained(OPTIMIZERS["adamw"], there, 2))
    model, optimizer = trained(OPTIMIZERS["adamw"], here, 1)
    before = bits([model.state_dict(), optimizer.state_dict()])
    with pytest.raises(ng.CheckpointError) as caught:
        ng.load_checkpoint(tmp_path, model, optimizer)
    assert f"of the recipe {there!r}" in str(caught.value)
    assert f"with {here!r}" in str(caught.value)
    assert bits([model.state_dict(), optimizer.state_dict()]) == before
