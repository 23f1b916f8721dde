"""adamw_step: to the bit what NumPy's float32 computes, for every format of the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from narrowgate import ops
from narrowgate.ops import _native, _update
from ops import oracles, runs

PLAIN: dict[str, Any] = {
    "lr": 1e-2,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.0,
    "decoupled": True,
    "maximize": False,
}
SETTINGS = {
    "adamw": {"weight_decay": 0.1},
    "adam_l2_maximize": {"weight_decay": 0.01, "decoupled": False, "maximize": True},
    "no_decay_large_eps": {"eps": 0.125, "beta1": 0.0, "beta2": 0.5},
}


def signals(mult: float, skip: float = 0.0) -> dict[str, Tensor]:
    """The two scalars that come from the device."""
    return {"grad_mult": torch.tensor(mult), "skip": torch.tensor(skip)}


class Run:
    """An op's lists and the oracles of each of their entries, stepped together."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.settings = PLAIN | settings
        self.lists = runs.lists(name)
        self.exp_avgs, self.exp_avg_sqs = self.lists.zeros(), self.lists.zeros()
        self.steps = [torch.tensor(0.0) for _ in self.lists.params]
        limit = None if name == "fp32" else ops.largest_master(name)
        self.oracles = [
            oracles.Adam(w=oracles.to_array(w), limit=limit, snap=name == "fp16", **self.settings)
            for w in self.lists.masters()
        ]

    def tensors(self) -> list[list[Tensor]]:
        """All that a step changes."""
        return [
            self.lists.params,
            self.lists.remainders,
            self.exp_avgs,
            self.exp_avg_sqs,
            self.steps,
        ]

    def op(self, grads: list[Tensor], mult: float, skip: float = 0.0) -> Tensor:
        """Step the op alone."""
        params, remainders, *states = self.tensors()
        return ops.adamw_step(
            params, remainders, grads, *states, **self.settings, **signals(mult, skip)
        )

    def step(self, grads: list[Tensor], mult: float) -> list[int]:
        """Step both; give how many elements saturated."""
        got = self.op(grads, mult).tolist()
        pairs = zip(self.oracles, grads, strict=True)
        assert got == [oracle.step(oracles.to_array(grad), mult) for oracle, grad in pairs]
        return got

    def check(self) -> None:
        """Compare masters, moments and counts."""
        runs.check_masters(self.lists.masters(), [oracle.w for oracle in self.oracles])
        runs.check_masters(self.exp_avgs, [oracle.m for oracle in self.oracles])
        runs.check_masters(self.exp_avg_sqs, [oracle.v for oracle in self.oracles])
        assert [int(step) for step in self.steps] == [oracle.t for oracle in self.oracles]


@pytest.mark.parametrize("name", runs.FORMATS)
def test_fifty_steps_equal_numpy_exact(name: str) -> None:
    """50 AdamW steps, multiplier changing, gradients of mixed formats."""
    run = Run(name, SETTINGS["adamw"])
    for i, grads in enumerate(runs.gradients(0, 50)):
        run.step(grads, 2.0 ** -(i % 3) * 0.7)
        if i % 10 == 9:
            run.check()


@pytest.mark.parametrize("name", runs.FORMATS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_equal_numpy_exact(name: str, settings: str) -> None:
    """Each setting for some steps, from unequal step counts."""
    run = Run(name, SETTINGS[settings])
    for i, (step, oracle) in enumerate(zip(run.steps, run.oracles, strict=True)):
        step.fill_(7 * i)
        oracle.t = 7 * i
    for grads in runs.gradients(1, 6):
        run.step(grads, 1.0)
    run.check()


def test_the_root_is_rounded_correctly_exact() -> None:
    """beta2 = 0 and beta1 = 0 make the update g / (|g| + eps): every mantissa of v in two binades.

    torch's own float32 root differs from IEEE's for about one in five of these on a CPU with MKL.
    """
    v = (np.arange(1 << 24, dtype=np.uint32)[:: 1 << 3] + np.uint32(126 << 23)).view(np.float32)
    settings = PLAIN | {"lr": 1.0, "beta1": 0.0, "beta2": 1 - 2.0**-30, "eps": 2.0**-100}
    w = torch.zeros(v.size)
    grad = torch.ones(v.size)
    oracle = oracles.Adam(w=np.zeros_like(v), **settings)
    oracle.v = v.copy()
    oracle.t = 10**6
    oracle.step(grad.numpy(), 1.0)
    states = [torch.zeros(v.size)], [torch.from_numpy(v.copy())], [torch.tensor(1e6)]
    ops.adamw_step([w], [], [grad], *states, **settings, **signals(1.0))
    runs.check_masters([w], [oracle.w])


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_weights_saturate_and_are_counted_exact(name: str) -> None:
    """Past the limit by a step of 1e6 or 1e37: stored as the limit, with its sign."""
    limit = ops.largest_master(name)
    w = torch.tensor([limit, -limit, limit / 2, 0.0])
    half, remainder = ops.split_master(w, name)
    lr = 1e6 if name == "fp16" else 1e37
    states = [torch.zeros(4)], [torch.zeros(4)], [torch.tensor(0.0)]
    grads = [torch.tensor([-1.0, 1.0, 0.0, 0.0])]
    counts = ops.adamw_step(
        [half], [remainder], grads, *states, **PLAIN | {"lr": lr}, **signals(1.0)
    )
    assert counts.tolist() == [2]
    assert ops.join_master(half, remainder).tolist() == w.tolist()


@pytest.mark.parametrize("name", runs.FORMATS)
def test_a_non_finite_update_is_counted(name: str) -> None:
    """Not skipped although the gradients are bad: NaN is stored as the canonical NaN, counted."""
    run = Run(name, {})
    grads = next(runs.gradients(0, 1))
    grads[0][[0, -1]] = torch.nan
    grads[1][1, 2, 3, 0] = torch.inf
    assert run.step(grads, 1.0) == [2, 1, 0, 0, 0]
    run.check()
    if name != "fp32":
        nan_code = {"bf16": 0x7FC0, "fp16": 0x7E00}[name]
        assert oracles.bits(run.lists.params[0])[[0, -1]].tolist() == [nan_code] * 2
        assert run.lists.remainders[0][[0, -1]].tolist() == [0, 0]


@pytest.fixture(params=["host", "device"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways through the definition: reading scalars, and without reading any."""
    if request.param == "device":
        monkeypatch.setattr(_native, "_body", None)  # what follows is for devices, in plain torch
        monkeypatch.setattr(_update, "on_host", lambda value: False)
        monkeypatch.setattr(Tensor, "item", None)
        monkeypatch.setattr(Tensor, "__bool__", None)
    return str(request.param)


@pytest.mark.parametrize("name", runs.FORMATS)
def test_skip_leaves_every_bit(name: str, path: str) -> None:
    """A skipped step with NaN, Inf and finite gradients changes no byte anywhere."""
    run = Run(name, {"weight_decay": 0.1})
    grads = next(runs.gradients(0, 1))
    run.op(grads, 1.0)
    before = [runs.state_of(tensors) for tensors in run.tensors()]
    grads[0][::2] = torch.nan
    grads[1][0] = torch.inf
    counts = run.op(grads, torch.inf, skip=1.0)
    after = [runs.state_of(tensors) for tensors in run.tensors()]
    for old, new in zip(before, after, strict=True):
        for a, b in zip(old, new, strict=True):
            assert torch.equal(a, b)
    assert counts.tolist() == [0] * len(grads)


@pytest.mark.parametrize("name", runs.FORMATS)
def test_without_reading_equals_reading_exact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that other devices take, run on the CPU, with a saturating and a NaN element."""
    first, second = Run(name, {"weight_decay": 0.1}), Run(name, {"weight_decay": 0.1})
    counts = []
    for grads in runs.gradients(0, 4):
        grads[0][5] = torch.nan
        counts.append(first.op(grads, 0.5).tolist())
    monkeypatch.setattr(_native, "_body", None)  # what follows is for devices, in plain torch
    monkeypatch.setattr(_update, "on_host", lambda value: False)
    monkeypatch.setattr(Tensor, "item", None)
    monkeypatch.setattr(Tensor, "__bool__", None)
    found = []
    for grads in runs.gradients(0, 4):
        grads[0][5] = torch.nan
        found.append(second.op(grads, 0.5))
    monkeypatch.undo()
    assert [count.tolist() for count in found] == counts
    for a, b in zip(first.tensors(), second.tensors(), strict=True):
        for one, other in zip(runs.state_of(a), runs.state_of(b), strict=True):
            assert torch.equal(one, other)


def test_gradients_are_not_changed_and_versions_are_bumped() -> None:
    """What is declared as mutated, and only that, counts up its version."""
    run = Run("bf16", {})
    grads = next(runs.gradients(0, 1))
    before = runs.state_of(grads)
    run.op(grads, 0.5)
    assert all(map(torch.equal, before, runs.state_of(grads)))
    assert not any(grad._version for grad in grads)
    assert all(tensor._version for tensors in run.tensors() for tensor in tensors[:4])


def test_no_parameters_at_all() -> None:
    """Empty lists give an empty count."""
    assert ops.adamw_step([], [], [], [], [], [], **PLAIN, **signals(1.0)).shape == (0,)
