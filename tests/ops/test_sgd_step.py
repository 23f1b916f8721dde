"""sgd_step: to the bit what NumPy's float32 computes, for every format of the weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from narrowgate import ops
from narrowgate.ops import _native, _update
from ops import oracles, runs

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"momentum": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False},
    "decay": {"momentum": 0.0, "weight_decay": 0.01, "nesterov": False, "maximize": True},
    "momentum": {"momentum": 0.9, "weight_decay": 1e-4, "nesterov": False, "maximize": False},
    "nesterov": {"momentum": 0.8, "weight_decay": 1e-3, "nesterov": True, "maximize": True},
}


class Run:
    """An op's lists and the oracles of each of their entries, stepped together."""

    def __init__(self, name: str, settings: str, lr: float = 0.05) -> None:
        self.settings = {"lr": lr} | SETTINGS[settings]
        self.lists = runs.lists(name)
        self.buffers = self.lists.zeros() if self.settings["momentum"] else []
        limit = None if name == "fp32" else ops.largest_master(name)
        self.oracles = [
            oracles.Sgd(w=oracles.to_array(w), limit=limit, snap=name == "fp16", **self.settings)
            for w in self.lists.masters()
        ]

    def op(self, grads: list[Tensor], mult: float, skip: float = 0.0) -> Tensor:
        """Step the op alone."""
        return ops.sgd_step(
            self.lists.params,
            self.lists.remainders,
            grads,
            self.buffers,
            **self.settings,
            grad_mult=torch.tensor(mult),
            skip=torch.tensor(skip),
        )

    def check(self) -> None:
        """Compare masters and buffers."""
        runs.check_masters(self.lists.masters(), [oracle.w for oracle in self.oracles])
        if self.buffers:
            runs.check_masters(self.buffers, [oracle.b for oracle in self.oracles])


@pytest.mark.parametrize("name", runs.FORMATS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_steps_equal_numpy_exact(name: str, settings: str) -> None:
    """Every setting; 50 steps for plain momentum, 8 for the others."""
    run = Run(name, settings)
    for i, grads in enumerate(runs.gradients(2, 50 if settings == "momentum" else 8)):
        got = run.op(grads, 0.3 + i).tolist()
        pairs = zip(run.oracles, grads, strict=True)
        assert got == [oracle.step(oracles.to_array(grad), 0.3 + i) for oracle, grad in pairs]
    run.check()


def test_torch_gives_the_same_first_step_and_is_close_after() -> None:
    """torch.optim.SGD may fuse the product and the sum: up to half an ulp of the product a step.

    With |w| < 1, |lr * g| < 1 and 5 steps of 2 fused operations each, the difference stays below
    5 * 2 * 2^-24.
    """
    w = torch.randn(1000, generator=torch.Generator().manual_seed(3)).mul_(0.1).requires_grad_()
    ours, buffer = [w.detach().clone()], [torch.zeros(1000)]
    theirs = torch.optim.SGD([w], lr=0.01, momentum=0.9, nesterov=True)
    for i in range(5):
        w.grad = torch.randn(1000, generator=torch.Generator().manual_seed(i))
        theirs.step()
        ops.sgd_step(
            ours,
            [],
            [w.grad],
            buffer,
            lr=0.01,
            momentum=0.9,
            weight_decay=0.0,
            nesterov=True,
            maximize=False,
            grad_mult=torch.tensor(1.0),
            skip=torch.tensor(0.0),
        )
    assert float((ours[0] - w.detach()).abs().max()) <= 5 * 2 * 2.0**-24


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_weights_saturate_and_are_counted_exact(name: str) -> None:
    """A step past the limit is stored as the limit; Inf too; NaN as NaN; all are counted."""
    limit = ops.largest_master(name)
    w = torch.tensor([limit, -limit, 1.0, 2.0, 3.0])
    half, remainder = ops.split_master(w, name)
    grads = [torch.tensor([-limit, limit, -torch.inf, torch.nan, 0.0])]
    counts = ops.sgd_step(
        [half],
        [remainder],
        grads,
        [],
        lr=1.0,
        **SETTINGS["plain"],
        grad_mult=torch.tensor(1.0),
        skip=torch.tensor(0.0),
    )
    assert counts.tolist() == [4]
    joined = ops.join_master(half, remainder)
    assert joined[[0, 1, 2, 4]].tolist() == [limit, -limit, limit, 3.0]
    assert joined[3].isnan()


@pytest.mark.parametrize("skip_is_read", [True, False])
@pytest.mark.parametrize("name", runs.FORMATS)
def test_skip_leaves_every_bit(
    name: str, skip_is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A skipped step with NaN, Inf and finite gradients changes no byte anywhere."""
    run = Run(name, "nesterov")
    grads = next(runs.gradients(0, 1))
    run.op(grads, 1.0)
    tensors = [*run.lists.params, *run.lists.remainders, *run.buffers]
    before = runs.state_of(tensors)
    grads[0][::2] = torch.nan
    grads[1][0] = torch.inf
    if not skip_is_read:
        monkeypatch.setattr(_native, "_body", None)  # what follows is for devices, in plain torch
        monkeypatch.setattr(_update, "on_host", lambda value: False)
        monkeypatch.setattr(Tensor, "item", None)
        monkeypatch.setattr(Tensor, "__bool__", None)
    counts = run.op(grads, torch.inf, skip=1.0)
    monkeypatch.undo()
    assert all(map(torch.equal, before, runs.state_of(tensors)))
    assert counts.tolist() == [0] * len(grads)
