"""B008: a scheduler advances on steps that were skipped, so the learning rate decays without
training.

Broken invariant: whoever asks can know whether a step was applied, and a scheduler tied to the
optimizer counts applied steps. torch's `scaler.step()` returns None both ways.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as lrs

import narrowgate as ng
from cases.tools import RECIPES, Weight

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "exponential": lambda o: lrs.ExponentialLR(o, gamma=0.5),
    "step": lambda o: lrs.StepLR(o, 2, gamma=0.1),
    "lambda": lambda o: lrs.LambdaLR(o, lambda n: 1 / (1 + n)),
    "linear": lambda o: lrs.LinearLR(o, 0.1, total_iters=4),
    "one cycle": lambda o: lrs.OneCycleLR(o, max_lr=0.5, total_steps=12),
    "cosine": lambda o: lrs.CosineAnnealingLR(o, T_max=7),
    "restarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, T_0=3),
    "cyclic": lambda o: lrs.CyclicLR(o, 0.01, 0.5, step_size_up=3),
    "sequential": lambda o: lrs.SequentialLR(
        o, [lrs.ConstantLR(o, 0.5, 3), lrs.ExponentialLR(o, 0.7)], milestones=[3]
    ),
    "chained": lambda o: lrs.ChainedScheduler(
        [lrs.ExponentialLR(o, 0.9), lrs.ConstantLR(o, 0.1, 2)]
    ),
}
#: whether each step's loss is finite: skips at the start, in the middle, several in a row
PATTERN = (False, False, False, True, True, False, True, False, False, True, True)


def feed(model: Any, optimizer: Any, good: bool) -> Any:
    optimizer.zero_grad()
    # a quarter: 2^16 itself, the first loss scale, is no fp16 number
    optimizer.backward((model(torch.ones(1, 1)) * (0.25 if good else float("inf"))).sum())
    return optimizer.step()


def test_plain_torch_has_the_fault() -> None:
    model = Weight([1.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lrs.ExponentialLR(optimizer, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch blames the order of the calls
        for step in range(5):
            optimizer.zero_grad()
            factor = float("inf") if step < 3 else 1.0
            scaler.scale((model(torch.ones(1, 1)) * factor).sum()).backward()
            assert scaler.step(optimizer) is None
            scaler.update()
            scheduler.step()
    assert scheduler.get_last_lr() == [0.1 * 0.5**5]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("when", ["before prepare", "after prepare"])
def test_three_skips_and_two_steps(recipe: str, when: str) -> None:
    model = Weight([1.0])
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if when == "before prepare":
        scheduler = lrs.ExponentialLR(optimizer, gamma=0.5)
    model, optimizer = ng.prepare(model, optimizer, recipe)
    if when == "after prepare":
        scheduler = lrs.ExponentialLR(optimizer, gamma=0.5)
    followed = optimizer.follow(scheduler)
    for good in (False, False, False, True, True):
        result = feed(model, optimizer, good)
        assert bool(result) is result.applied is good
        assert result.reason == ("" if good else "non-finite loss")
        followed.step()
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**2
    assert followed.get_last_lr() == scheduler.get_last_lr() == [0.1 * 0.5**2]


@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize("recipe", ["bf16", "fp16", "fp16-mixed"])
def test_each_kind_counts_applied_steps_only(recipe: str, kind: str) -> None:
    plain_model = Weight([1.0])
    plain = torch.optim.SGD(plain_model.parameters(), lr=0.1, momentum=0.9)
    reference = SCHEDULERS[kind](plain)
    model = Weight([1.0])
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = ng.prepare(model, inner, recipe)
    followed = optimizer.follow(SCHEDULERS[kind](optimizer))
    for good in PATTERN:
        feed(model, optimizer, good)
        followed.step()
        if good:
            plain.step()
            reference.step()
        for mine, theirs in zip(optimizer.param_groups, plain.param_groups, strict=True):
            assert (mine["lr"], mine["momentum"]) == (theirs["lr"], theirs["momentum"])


def test_a_plateau_waits_too() -> None:
    model = Weight([1.0])
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = ng.prepare(model, inner, "fp16")
    followed = optimizer.follow(lrs.ReduceLROnPlateau(optimizer, patience=0, factor=0.5))
    for good in (True, False, False, False, True, True):
        feed(model, optimizer, good)
        followed.step(1.0)  # a metric that never improves
    # the first metric is the best; the two later applied steps each see no improvement
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**2


def test_several_optimizers_and_their_schedulers_wait_together() -> None:
    one, two = Weight([1.0]), Weight([1.0])
    inners = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, two)]
    (one, two), optimizers = ng.prepare([one, two], inners, "fp16")
    schedulers = [o.follow(lrs.ExponentialLR(o, 0.5)) for o in optimizers]
    for good in (False, True, False, True):
        for optimizer in optimizers:
            optimizer.zero_grad()
        # only the first model's loss overflows; the verdict is for both
        factor = 1.0 if good else float("inf")
        optimizers[0].backward((one(torch.ones(1, 1)) * factor).sum() + two(torch.ones(1, 1)).sum())
        assert [o.step().applied for o in optimizers] == [good, good]
        for scheduler in schedulers:
            scheduler.step()
    assert [o.param_groups[0]["lr"] for o in optimizers] == [0.025, 0.025]
