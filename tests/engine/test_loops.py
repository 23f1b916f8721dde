"""What ordinary training loops do, against plain torch: schedulers, accumulation, clipping, skips.

References are torch's own: optimizers on FP32 parameters, `clip_grad_norm_` on FP32 gradients.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as lrs
from torch.utils._python_dispatch import TorchDispatchMode

import narrowgate as ng
from cases.tools import SCALED, SPLIT, SWEEP, Weight, bits, give, masters, memory

F32 = 2.0**-24  # half an ulp of 1 in FP32

# --- schedulers -----------------------------------------------------------------------------

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


# --- accumulation ---------------------------------------------------------------------------

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


# --- clipping -------------------------------------------------------------------------------


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


# --- skips ----------------------------------------------------------------------------------


class Normed(nn.Module):
    """Conv, batch norm, a Linear and a LayerNorm: halves, FP32 parameters and buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(2, 4, 1)
        self.bn = nn.BatchNorm1d(4)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.norm(self.bn(self.conv(x)).mean(-1)))
        return y


SKIPPERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=0.1, nesterov=True),
    "dampened": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, dampening=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, weight_decay=0.1, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


def turn(model: Any, optimizer: Any, factor: float = 1.0) -> Any:
    x = torch.linspace(-1, 1, 40).reshape(5, 2, 4)
    optimizer.zero_grad()
    optimizer.backward(model(x).square().mean() * factor)
    return optimizer.step()


@pytest.mark.parametrize("name", SKIPPERS)
@pytest.mark.parametrize("recipe", SWEEP)
def test_a_skip_leaves_every_bit(recipe: str, name: str) -> None:
    model = Normed()
    model, optimizer = ng.prepare(model, SKIPPERS[name](model.parameters()), recipe)
    while not turn(model, optimizer):
        pass
    twin, reference = copy.deepcopy((model, optimizer))
    for factor in (float("inf"), float("nan"), float("-inf")):
        before = memory(model, optimizer)
        result = turn(model, optimizer, factor)
        assert not result
        assert result.reason == "non-finite loss"
        assert memory(model, optimizer) == before
    # training goes on as if the bad steps had not been: but for the loss scale, a power of two
    assert turn(model, optimizer).applied
    assert turn(twin, reference).applied
    if not recipe.startswith("fp16"):
        assert memory(model, optimizer) == memory(twin, reference)


def elements() -> list[tuple[int, int, float]]:
    """First, a middle and the last element of the first, a middle and the last parameter."""
    model = Normed()
    found = []
    parameters = list(model.parameters())
    for index in (0, len(parameters) // 2, len(parameters) - 1):
        parameter = parameters[index]
        for place in {0, parameter.numel() // 2, parameter.numel() - 1}:
            for value in (float("inf"), float("-inf"), float("nan")):
                found.append((index, place, value))
    return found


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("recipe", ["bf16", "bf16-mixed", "fp16", "fp16-mixed"])
def test_one_bad_element_of_any_gradient_skips(recipe: str, groups: int) -> None:
    model: Any = Normed()
    names = [name for name, _ in model.named_parameters()]
    parameters = list(model.parameters())
    split = [parameters] if groups == 1 else [parameters[:3], parameters[3:]]
    inner = torch.optim.AdamW([{"params": p} for p in split], lr=0.01)
    model, optimizer = ng.prepare(
        model, inner, f"{recipe}(loss_scale=dynamic, init=2^16, floor=2^-120)"
    )
    while not turn(model, optimizer):
        pass
    before = memory(model, optimizer)
    for index, place, value in elements():
        optimizer.zero_grad()
        factors = [torch.full_like(p, 2.0**-6, dtype=torch.float32) for p in parameters]
        factors[index].view(-1)[place] = value
        loss = sum(Jump.apply(p.float(), f).sum() for p, f in zip(parameters, factors, strict=True))
        optimizer.backward(loss)
        result = optimizer.step()
        assert not result.applied, (names[index], place, value)
        assert result.reason == "non-finite gradient"
        assert result.culprit == names[index]
        assert memory(model, optimizer) == before


class Jump(torch.autograd.Function):
    """Zero in forward, any gradient in backward."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.save_for_backward(factor)
        return value * 0

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return grad * ctx.saved_tensors[0], None


# --- several optimizers ---------------------------------------------------------------------


@pytest.mark.parametrize("recipe", SWEEP)
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_several_optimizers_share_one_verdict(recipe: str, bad: int) -> None:
    models = [Weight([1.0]), Weight([1.0]), Weight([1.0])]
    makes = [OPTIMIZERS["sgd"], OPTIMIZERS["adamw"], OPTIMIZERS["rmsprop"]]
    inners = [make(m.parameters()) for make, m in zip(makes, models, strict=True)]
    prepared, optimizers = ng.prepare(models, inners, recipe)
    for number, skip in enumerate((False, True, False, True), start=1):
        before = [memory(m, o) for m, o in zip(prepared, optimizers, strict=True)]
        for optimizer in optimizers:
            optimizer.zero_grad()
        for index, model in enumerate(prepared):
            give(optimizers[index], model, float("nan") if skip and index == bad else 0.25)
        results = [o.step() for o in optimizers]
        assert [r.applied for r in results] == [not skip] * 3
        assert [r.attempted for r in results] == [number] * 3
        assert len({r.loss_scale for r in results}) == 1  # the scale moves once
        assert {r.culprit for r in results} == {f"model {bad}: weight" if skip else None}
        after = [memory(m, o) for m, o in zip(prepared, optimizers, strict=True)]
        if skip and number > 1:
            assert after == before
    expected = 2.0**15 if recipe in SCALED else 1.0  # one back-off, seen by the step after
    assert results[0].loss_scale == expected


@pytest.mark.parametrize("recipe", SCALED)
def test_losses_that_alternate_between_optimizers(recipe: str) -> None:
    """As in adversarial training: one model steps, then the other, each with its own loss."""
    one, two = Weight([1.0]), Weight([1.0])
    inners = [torch.optim.SGD(m.parameters(), lr=1.0) for m in (one, two)]
    models, optimizers = ng.prepare([one, two], inners, f"{recipe}(interval=2)")
    for _ in range(4):
        for index in (0, 1):
            optimizers[index].zero_grad()
            # the loss reaches both models; only one of them steps
            loss = (models[0].weight.float() * 2.0**-8).sum() * 2.0**-8
            loss = loss + (models[1].weight.float() * 2.0**-8).sum() * 2.0**-8
            optimizers[index].backward(loss)
            assert optimizers[index].step()
    # own loss and the other's loss before: 1 part the first time of model 0, then 2 each time
    ends = [1 - ng.full_precision_state_dict(m, optimizers)["weight"].item() for m in models]
    reference = [torch.zeros(()), torch.zeros(())]
    held = [0, 0]
    for _ in range(4):
        for index in (0, 1):
            held[index] = 0
            held = [held[0] + 1, held[1] + 1]
            reference[index] += held[index] * 2.0**-16
    assert ends == [r.item() for r in reference]


# --- StepResult -----------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", SWEEP)
def test_what_a_step_result_says(recipe: str) -> None:
    model = Weight([1.0, 1.0])
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5), recipe)
    assert optimizer.last_result is None
    give(optimizer, model, [0.375, 0.5])
    first = optimizer.step()
    assert isinstance(first, ng.StepResult)
    scale = 65536.0 if recipe in SCALED else 1.0
    assert (first.applied, first.reason, first.culprit) == (True, "", None)
    assert (first.loss_scale, first.grad_norm, first.attempted) == (scale, 0.625, 1)
    assert bool(first) is True
    optimizer.zero_grad()
    give(optimizer, model, [0.375, float("nan")])
    second = optimizer.step()
    assert (second.applied, second.reason, second.culprit) == (False, "non-finite loss", "weight")
    assert math.isnan(second.grad_norm)
    assert (second.loss_scale, second.attempted, bool(second)) == (scale, 2, False)
    assert optimizer.last_result is second
    # the first says what it said; both print as what they hold
    assert first.attempted == 1
    assert repr(first) == (
        f"StepResult(applied=True, reason='', loss_scale={scale}, grad_norm=0.625, culprit=None, "
        "attempted=1)"
    )
    assert isinstance(first.record(), ng.StepRecord)
    assert first.record() == first.record()
    with pytest.raises(AttributeError):
        first.applied = False


@pytest.mark.parametrize("recipe", SWEEP)
def test_a_result_is_read_late_and_still_right(recipe: str) -> None:
    model = Weight([1.0])
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5), recipe)
    results = []
    for bad in (False, True, False, True, True, False):
        optimizer.zero_grad()
        give(optimizer, model, float("inf") if bad else 0.25)
        results.append(optimizer.step())
    assert [r.attempted for r in results] == [1, 2, 3, 4, 5, 6]
    assert [r.applied for r in results] == [True, False, True, False, False, True]
    scales = [65536.0, 65536.0, 32768.0, 32768.0, 16384.0, 8192.0]
    assert [r.loss_scale for r in results] == (scales if recipe in SCALED else [1.0] * 6)
    assert ng.full_precision_state_dict(model, optimizer)["weight"].item() == 1 - 3 * 0.125


def test_a_step_of_our_own_optimizers_is_not_read() -> None:
    """On the CPU a read is free, and only the look for a halted run makes one; count them."""
    model = Weight([1.0])
    model, optimizer = ng.prepare(model, torch.optim.AdamW(model.parameters()), "bf16")
    reads: list[str] = []

    class Reads(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if "_local_scalar_dense" in str(func) or "nonzero" in str(func):
                reads.append(str(func))
            return func(*args, **(kwargs or {}))

    for _ in range(2):
        optimizer.zero_grad()
        give(optimizer, model, 0.25)
        reads.clear()
        with Reads():
            result = optimizer.step()
        assert len(reads) <= 1
        assert result._record is None
        assert result.applied
        assert result._record is not None


# --- every optimizer of torch ---------------------------------------------------------------

ANY: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD dampened": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, dampening=0.1),
    "SGD tensor lr": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.01)),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW amsgrad foreach": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, foreach=True),
    "AdamW amsgrad fused": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, fused=True),
    "AdamW amsgrad loop": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, foreach=False),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01, weight_decay=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "Muon": lambda p: torch.optim.Muon(p, lr=0.01),
}


def test_no_optimizer_of_torch_is_forgotten() -> None:
    known = {name.split()[0] for name in ANY}
    there = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    # LBFGS needs a closure and is refused; SparseAdam takes sparse gradients only
    assert there - known == {"Optimizer", "LBFGS", "SparseAdam"}


@pytest.mark.parametrize("name", ANY)
@pytest.mark.parametrize("recipe", ["bf16", "bf16-mixed", "fp16"])
def test_any_optimizer_is_itself_on_fp32_parameters(recipe: str, name: str) -> None:
    torch.manual_seed(1)
    values = [torch.randn(4, 6), torch.randn(3, 4)]
    if recipe == "fp16":  # masters are exact from 2^-16 on, multiples of 2^-39: keep clear of it
        values = [v.sign() * (v.abs() + 0.5) for v in values]
    model: Any = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Linear(4, 3, bias=False))
    plain = [nn.Parameter(v.clone()) for v in values]
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)
    reference = ANY[name](plain)
    model, optimizer = ng.prepare(model, ANY[name](model.parameters()), recipe)
    dtype = torch.float16 if recipe == "fp16" else torch.bfloat16
    for turn_number in range(5):
        given = [(torch.randn(v.shape) * 2.0**-4).to(dtype).float() for v in values]
        optimizer.zero_grad()
        loss = sum((p.float() * g).sum() for p, g in zip(model.parameters(), given, strict=True))
        optimizer.backward(loss)
        assert optimizer.step(), turn_number
        for parameter, g in zip(plain, given, strict=True):
            parameter.grad = g
        reference.step()
        got = list(ng.full_precision_state_dict(model, optimizer).values())
        assert bits(got) == bits([p.data for p in plain]), turn_number
    states = [{k: v for k, v in s.items() if k not in OURS} for s in optimizer.state.values()]
    assert bits([s for s in states if s]) == bits([dict(s) for s in reference.state.values() if s])


#: what narrowgate keeps beside an optimizer's own state
OURS = ("master_lo", "master_check")


# --- saturation -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "rmsprop"])
@pytest.mark.parametrize("recipe", SPLIT)
def test_an_update_beyond_the_format_is_told(recipe: str, name: str) -> None:
    """Finite gradients, but a learning rate that drives the weight out of its format."""
    model = Weight([1.0, 1.0])
    kind = torch.optim.SGD if name == "sgd" else torch.optim.RMSprop
    model, optimizer = ng.prepare(model, kind(model.parameters(), lr=1e38), recipe)
    give(optimizer, model, [0.5, 0.0])
    for _ in range(8):
        result = optimizer.step()
        if result.reason:
            break
    assert result.reason == "1 elements saturated"
    assert result.culprit == "weight"
    assert model.weight[0, 1].item() == 1.0
