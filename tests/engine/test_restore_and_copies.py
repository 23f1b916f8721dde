"""Restored models are plain again; copies train on by themselves."""

from __future__ import annotations

import copy
import pickle
import sys
import weakref
from typing import Any

import pytest
import torch

import narrowgate as ng
from cases.tools import SWEEP, bits
from engine.net import X, adamw, everything, made, message, step
from narrowgate.engine import cpu

RESTORED = (
    "this optimizer belongs to a model that ng.restore() has given back\n\nhint: go on with the "
    "optimizer which restore() returned, or prepare() again"
)


@pytest.mark.parametrize("recipe", [*SWEEP, "fp32"])
def test_restored_twice_and_used_afterwards(recipe: str) -> None:
    model, optimizer = made(recipe)
    step(model, optimizer)
    plain_model, inner = ng.restore(model, optimizer)
    before = bits([plain_model.state_dict(), inner.state_dict()])
    loss = plain_model(X).pow(2).mean()
    state = copy.deepcopy(inner.state_dict())
    for call in (
        lambda: ng.restore(model, optimizer),
        optimizer.step,
        lambda: optimizer.backward(loss),
        lambda: optimizer.load_state_dict(state),
    ):
        assert message(ng.PrepareError, call) == RESTORED
    assert bits([plain_model.state_dict(), inner.state_dict()]) == before
    plain_model(X).pow(2).mean().backward()
    inner.step()
    again, prepared = ng.prepare(plain_model, inner_without_gradients(inner), recipe)
    assert step(again, prepared)


def inner_without_gradients(inner: torch.optim.Optimizer) -> torch.optim.Optimizer:
    inner.zero_grad()
    return inner


@pytest.mark.parametrize("recipe", SWEEP)
def test_restored_in_the_middle_of_a_window(recipe: str) -> None:
    model, optimizer = made(recipe)
    step(model, optimizer)
    optimizer.backward(model(X).pow(2).mean())
    masters = ng.full_precision_state_dict(model, optimizer)
    before = bits({k: v.float() for k, v in masters.items()})
    model, inner = ng.restore(model, optimizer)
    assert all(p.grad is None for p in model.parameters())  # they were scaled
    inner.step()
    assert bits(model.state_dict()) == before
    assert all(p.dtype is torch.float32 for p in model.parameters())


@pytest.fixture
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the models of other tests: the kernels stay for as long as any is prepared."""
    module = sys.modules["narrowgate.engine.lease"]
    monkeypatch.setattr(module, "_live", weakref.WeakSet())


@pytest.mark.usefixtures("nobody_else")
def test_of_two_models_one_is_restored() -> None:
    one, two = made("bf16"), made("fp16")
    ng.restore(*one)
    assert cpu.installed()
    assert step(*two)
    ng.restore(*two)
    assert not cpu.installed()


def test_restored_with_another_model() -> None:
    one, two = made("bf16"), made("bf16")
    told = (
        "the models are not those which were prepared together with this optimizer\n\n"
        "hint: pass model and optimizer as prepare() returned them"
    )
    assert message(ng.PrepareError, lambda: ng.restore(one[0], two[1])) == told
    assert message(ng.PrepareError, lambda: ng.restore(one[0], adamw(one[0].parameters()))) == (
        "this takes the optimizer that prepare() returned; got AdamW\n\n"
        "hint: model, optimizer = ng.prepare(model, optimizer, 'bf16')"
    )
    assert step(*one)
    assert step(*two)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize("recipe", [*SWEEP, "bf16(accumulate=fp32)", "fp32"])
def test_copies_train_on_by_themselves(recipe: str, how: str) -> None:
    pair = made(recipe)
    step(*pair)
    pair[1].zero_grad()
    twin = copy.deepcopy(pair) if how == "deepcopy" else pickle.loads(pickle.dumps(pair))
    before = everything(*twin)
    logs: list[list[Any]] = [[], []]
    for log, (model, optimizer) in zip(logs, (pair, twin), strict=True):
        for turn in range(3):
            optimizer.zero_grad()
            optimizer.backward(model(X).pow(2).mean() * (float("inf") if turn == 1 else 1.0))
            log.append(bool(optimizer.step()))
        if log is logs[0]:
            assert everything(*twin) == before
    assert logs[0] == logs[1]
    assert everything(*pair) == everything(*twin)


@pytest.mark.usefixtures("nobody_else")
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_copy_keeps_the_kernels_which_it_needs(how: str) -> None:
    pair = made("bf16")
    twin = copy.deepcopy(pair) if how == "deepcopy" else pickle.loads(pickle.dumps(pair))
    ng.restore(*pair)
    assert cpu.installed()
    assert step(*twin)
    ng.restore(*twin)
    assert not cpu.installed()
