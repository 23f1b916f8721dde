"""Optimizer states: incomplete and foreign ones are refused whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import narrowgate as ng
from cases.tools import SWEEP, bits
from engine.net import everything, made, step


@pytest.mark.parametrize(
    ("there", "here"),
    [("AdamW", "SGD"), ("SGD", "AdamW"), ("RMSprop", "AdamW"), ("AdamW", "Adam")],
)
@pytest.mark.parametrize("recipe", ["bf16", "fp16-mixed"])
def test_the_state_of_another_class_of_optimizer(recipe: str, there: str, here: str) -> None:
    def of(name: str) -> Any:
        return lambda p: getattr(torch.optim, name)(p, lr=0.01)

    model, optimizer = made(recipe, of(there))
    step(model, optimizer)
    other, mine = made(recipe, of(here))
    step(other, mine)
    before = everything(other, mine)
    with pytest.raises(ng.CheckpointError, match=there):
        mine.load_state_dict(optimizer.state_dict())
    assert everything(other, mine) == before


def tamper_machine(value: Any) -> Callable[[dict[str, Any]], Any]:
    def change(state: dict[str, Any]) -> None:
        told = state["param_groups"][0]["narrowgate"]
        if value is None:
            del told["machine"]
        else:
            told["machine"] = value

    return change


def machine(scale: float) -> torch.Tensor:
    return torch.tensor([scale, 0, 1, 0, 0, 0], dtype=torch.float64)


def drop(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: state["state"][0].pop(key)


TAMPERED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no machine": tamper_machine(None),
    "short machine": tamper_machine(torch.zeros(3, dtype=torch.float64)),
    "a machine of words": tamper_machine("x"),
    "NaN scale": tamper_machine(machine(float("nan"))),
    "zero scale": tamper_machine(machine(0.0)),
    "negative scale": tamper_machine(machine(-8.0)),
    "infinite scale": tamper_machine(machine(float("inf"))),
    "no remainder": drop("master_lo"),
    "no checksum": drop("master_check"),
    "no state": lambda state: state["state"].clear(),
    "no groups": lambda state: state["param_groups"].clear(),
    "another group": lambda state: state["param_groups"].append({"params": []}),
    "fewer parameters": lambda state: state["param_groups"][0]["params"].pop(),
    "short remainder": lambda state: state["state"][0].update(
        master_lo=state["state"][0]["master_lo"][:-1]
    ),
    "moment of another shape": lambda state: state["state"][0].update(exp_avg=torch.zeros(2, 2)),
    "newer schema": lambda state: state["param_groups"][0]["narrowgate"].update(schema=99),
    "no dictionary": lambda state: state["param_groups"][0].update(narrowgate=[]),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_state_that_is_incomplete_is_refused_whole(name: str) -> None:
    model, optimizer = made("fp16")
    step(model, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    TAMPERED[name](state)
    step(model, optimizer)
    before = everything(model, optimizer)
    with pytest.raises(ng.CheckpointError) as caught:
        optimizer.load_state_dict(state)
    assert "hint:" in str(caught.value)
    assert everything(model, optimizer) == before
    assert step(model, optimizer)


def test_what_is_no_state_at_all() -> None:
    _, optimizer = made("fp16")
    for state in ({}, [], None):
        with pytest.raises(ng.CheckpointError, match="this is no optimizer state"):
            optimizer.load_state_dict(state)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("kind", ["AdamW", "SGD", "RMSprop"])
@pytest.mark.parametrize("recipe", [*SWEEP, "fp32"])
def test_torchs_distributed_state_dicts_go_both_ways(recipe: str, kind: str, flat: bool) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)

    def make(parameters: Any) -> Any:
        return getattr(torch.optim, kind)(parameters, lr=0.01)

    model, optimizer = made(recipe, make)
    for _ in range(2):
        step(model, optimizer)
    optimizer.zero_grad()
    state = copy.deepcopy(get_optimizer_state_dict(model, optimizer, options=options))
    other, resumed = made(recipe, make)
    other.load_state_dict(model.state_dict())
    set_optimizer_state_dict(other, resumed, state, options=options)
    for _ in range(2):
        step(model, optimizer)
        step(other, resumed)
    # torch may add empty states, for parameters that have none
    assert filled(other, resumed) == filled(model, optimizer)


def filled(model: nn.Module, optimizer: Any) -> Any:
    """Everything, with empty states left out."""
    state = optimizer.state_dict()
    return bits(
        [model.state_dict(), {**state, "state": {k: v for k, v in state["state"].items() if v}}]
    )
