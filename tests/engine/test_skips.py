"""Skipped steps, one verdict for several optimizers, what a StepResult says, what saturates."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import narrowgate as ng
from cases.tools import SCALED, SPLIT, SWEEP, Weight, give, memory

F32 = 2.0**-24  # half an ulp of 1 in FP32


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


@pytest.mark.parametrize("recipe", SWEEP)
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_several_optimizers_share_one_verdict(recipe: str, bad: int) -> None:
    models = [Weight([1.0]), Weight([1.0]), Weight([1.0])]
    makes = [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop]
    inners = [make(m.parameters(), lr=0.1) for make, m in zip(makes, models, strict=True)]
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
    # each clears its own gradients just before its backward, so each steps on its own loss alone
    ends = [1 - ng.full_precision_state_dict(m, optimizers)["weight"].item() for m in models]
    reference = [torch.zeros(()), torch.zeros(())]
    held = [0, 0]
    for _ in range(4):
        for index in (0, 1):
            held[index] = 0
            held = [held[0] + 1, held[1] + 1]
            reference[index] += held[index] * 2.0**-16
    assert ends == [r.item() for r in reference]


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


@pytest.mark.parametrize("recipe", SWEEP)
@pytest.mark.parametrize("clear", ["optimizer", "model", "in place"])
def test_one_bad_loss_costs_one_step(recipe: str, clear: str) -> None:
    model = nn.Linear(2, 2)
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe)
    applied = []
    for factor in (1.0, float("inf"), 1.0, 1.0):
        if clear == "optimizer":
            optimizer.zero_grad()
        else:
            model.zero_grad(set_to_none=clear == "model")
        optimizer.backward(model(torch.ones(3, 2)).mean() * factor)
        applied.append(optimizer.step().applied)
    assert applied == [True, False, True, True]
