"""What ordinary training loops do, against plain torch: schedulers, accumulation, clipping."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as lrs

import narrowgate as ng
from cases.tools import SWEEP, Weight, give, masters, memory

F32 = 2.0**-24  # half an ulp of 1 in FP32


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: lrs.StepLR(o, 3, gamma=0.3),
    "lambda": lambda o: lrs.LambdaLR(o, lambda n: min(n, 4) / 4),  # begins at 0
    "one cycle": lambda o: lrs.OneCycleLR(o, max_lr=0.5, total_steps=13),
    "plateau": lambda o: lrs.ReduceLROnPlateau(o, patience=1, factor=0.3),
    "sequential": lambda o: lrs.SequentialLR(
        o, [lrs.LinearLR(o, 0.1, total_iters=4), lrs.CosineAnnealingLR(o, 8)], milestones=[4]
    ),
    "chained": lambda o: lrs.ChainedScheduler(
        [lrs.ConstantLR(o, 0.5, 3), lrs.ExponentialLR(o, 0.9)]
    ),
    "cyclic": lambda o: lrs.CyclicLR(o, 0.01, 0.3, step_size_up=3, cycle_momentum=True),
    "restarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, T_0=4, T_mult=2),
}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9),
}


def trace(optimizer: Any, scheduler: Any, take_step: Callable[[], Any]) -> list[Any]:
    log = []
    for turn in range(12):
        take_step()
        scheduler.step(*([1.0 + turn % 5] if isinstance(scheduler, lrs.ReduceLROnPlateau) else []))
        log.append([(g["lr"], g.get("momentum"), g.get("betas")) for g in optimizer.param_groups])
    return log


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", SCHEDULERS)
@pytest.mark.parametrize(
    ("recipe", "name"),
    [*(("bf16", name) for name in OPTIMIZERS), ("fp16-mixed", "sgd"), ("fp32", "sgd")],
)
def test_schedulers_give_the_plain_trace(recipe: str, name: str, kind: str, when: str) -> None:
    def build() -> tuple[Any, Any]:
        model = Weight([1.0, 2.0])
        return model, OPTIMIZERS[name](model.parameters())

    # warnings are errors in every test: none about the order of calls may come
    _, reference = build()
    expected = trace(reference, SCHEDULERS[kind](reference), reference.step)
    model, optimizer = build()
    if when == "before":
        scheduler = SCHEDULERS[kind](optimizer)
    model, optimizer = ng.prepare(model, optimizer, recipe)
    if when == "after":
        scheduler = SCHEDULERS[kind](optimizer)

    def take_step() -> None:
        optimizer.zero_grad()
        give(optimizer, model, 0.25)
        assert optimizer.step()

    assert trace(optimizer, scheduler, take_step) == expected


@pytest.mark.parametrize("kind", [k for k in SCHEDULERS if k != "plateau"])
def test_a_scheduler_goes_on_after_restore(kind: str) -> None:
    model = Weight([1.0])
    reference = torch.optim.SGD(Weight([1.0]).parameters(), lr=0.1, momentum=0.9)
    expected = trace(reference, SCHEDULERS[kind](reference), reference.step)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = SCHEDULERS[kind](inner)
    model, optimizer = ng.prepare(model, inner, "bf16")
    log = []
    for turn in range(12):
        if turn == 6:
            model, optimizer = ng.restore(model, optimizer)
        optimizer.step()
        scheduler.step()
        log.append([(g["lr"], g.get("momentum"), g.get("betas")) for g in inner.param_groups])
    assert log == expected


PARTS = [1.0] + [0.002] * 1000


def test_sums_in_the_gradients_format_stall() -> None:
    """What accumulate=fp32 is for: 1 + 1000 * 0.002 stays 1.0 in bf16."""
    model = Weight([0.0])
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), "bf16")
    for part in PARTS[:50]:
        give(optimizer, model, part)
    optimizer.step()
    assert masters(model, optimizer)["weight"].item() == -1.0


@pytest.mark.parametrize("order", ["large first", "large last", "shuffled"])
@pytest.mark.parametrize("recipe", ["bf16", "fp16(init=1024)"])
def test_sums_in_fp32(recipe: str, order: str) -> None:
    parts = PARTS[::-1] if order == "large last" else list(PARTS)
    if order == "shuffled":
        random.Random(0).shuffle(parts)
    keys = "accumulate=fp32"
    recipe = recipe.replace(")", f", {keys})") if "(" in recipe else f"{recipe}({keys})"
    model = Weight([0.0])
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), recipe)
    for part in parts:
        give(optimizer, model, part)
    result = optimizer.step()
    # each part is rounded once to the gradient's format; 1,001 FP32 additions of at most 3
    scale = result.loss_scale
    stored = (torch.tensor(parts) * scale).to(model.weight.dtype).double().sum().item() / scale
    bound = 1001 * F32 * 4  # half an ulp below 4, for each addition
    assert abs(result.grad_norm - stored) <= bound
    assert abs(masters(model, optimizer)["weight"].item() + stored) <= bound + 2 * F32 * 4
    assert abs(stored - 3.0) <= 2 * 2.0**-9  # 0.002 in bf16 is off by half an ulp, 2^-9 of it


@pytest.mark.parametrize("recipe", [*SWEEP, "bf16(accumulate=fp32)", "fp16(accumulate=fp32)"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_parts_that_add_exactly_are_the_whole(recipe: str, make: Any) -> None:
    ends = []
    for parts in ([0.375, -1.0], [[0.125, -0.5], [0.25, -0.5]], [[0.5, 0.0], [-0.125, -1.0]]):
        model = Weight([1.0, 2.0])
        model, optimizer = ng.prepare(model, make(model.parameters()), recipe)
        for _ in range(3):
            optimizer.zero_grad()
            for part in parts if isinstance(parts[0], list) else [parts]:
                give(optimizer, model, [value / 4 for value in part])  # type: ignore[union-attr]
            assert optimizer.step()
        ends.append(memory(model, optimizer))
    assert ends[0] == ends[1] == ends[2]


class Several(nn.Module):
    """Three weights of different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Weight(torch.ones(n)) for n in (1, 7, 100))


def gradients(seed: int, size: float, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(1, n, generator=generator) * size for n in (1, 7, 100)]
    return [g.to(dtype).float() for g in made]


@pytest.mark.parametrize("ratio", [0.01, 0.5, 0.999, 1.001, 100.0])
@pytest.mark.parametrize("way", ["prepare", "step"])
@pytest.mark.parametrize("recipe", SWEEP)
def test_clipping_is_torchs_on_fp32_gradients(recipe: str, way: str, ratio: float) -> None:
    size = 2.0**-3
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe, torch.float32)
    given = gradients(3, size, dtype)
    true = math.sqrt(sum((g.double() ** 2).sum().item() for g in given))
    limit = true * ratio
    model: Any = Several()
    inner = torch.optim.SGD(model.parameters(), lr=1.0, dampening=0.0)
    options = {"clip_norm": limit} if way == "prepare" else {}
    model, optimizer = ng.prepare(model, inner, recipe, **options)
    loss = sum((p.weight.float() * g).sum() for p, g in zip(model.parts, given, strict=True))
    optimizer.backward(loss)
    result = optimizer.step(**({"max_norm": limit} if way == "step" else {}))
    assert math.isclose(result.grad_norm, true, rel_tol=200 * 2.0**-53)  # 108 additions in FP64

    plain = Several()
    for part, g in zip(plain.parts, given, strict=True):
        part.weight.grad = g.clone()
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), limit)
    assert abs(norm.item() - true) <= 108 * F32 * true
    for part, mine in zip(plain.parts, masters(model, optimizer).values(), strict=True):
        update = part.weight.grad.double()
        if ratio > 1:  # nothing is clipped: the very gradient, and one rounding of 1 - g
            assert torch.equal(mine, 1 - part.weight.grad)
        # torch's factor carries the error of its FP32 norm; product and weight are rounded once
        bound = update.abs() * (108 + 4) * F32 + 2 * F32 * (1 + update.abs())
        assert ((mine.double() - (1 - update)).abs() <= bound).all()


@pytest.mark.parametrize("recipe", SWEEP)
def test_each_optimizer_is_clipped_by_its_own_norm(recipe: str) -> None:
    models = [Weight([0.0]), Weight([0.0])]
    inners = [torch.optim.SGD(m.parameters(), lr=1.0) for m in models]
    prepared, optimizers = ng.prepare(models, inners, recipe, clip_norm=0.25)
    loss = (prepared[0].weight.float() * 0.5).sum() + (prepared[1].weight.float() * 0.125).sum()
    optimizers[0].backward(loss)
    assert [o.step().grad_norm for o in optimizers] == [0.5, 0.125]
    ends = [ng.full_precision_state_dict(m, optimizers)["weight"].item() for m in prepared]
    assert abs(ends[0] + 0.25) <= 0.25 * (1e-6 / 0.5 + 4 * F32)  # torch's 1e-6 in the denominator
    assert ends[1] == -0.125
