"""Bad input: every refusal with its whole message, and what is in memory and on disk afterwards.

A refusal changes nothing: weights, states, counters and files are as they were, to the bit.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import pickle
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
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
from cases.tools import SCALED, SPLIT, SWEEP, bits
from narrowgate.engine import cpu

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Net(nn.Sequential):
    """A Linear, a norm (which stays FP32) and a Linear."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


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


# --- recipes --------------------------------------------------------------------------------

BASES = "fp32, tf32, bf16-mixed, fp16-mixed, bf16, fp16"
KEYS = (
    "master, residual, accumulate, loss_scale, preset, init, growth, backoff, interval, "
    "hysteresis, floor, ceiling"
)


@pytest.mark.parametrize(
    ("recipe", "error", "told"),
    [
        (
            "bf61",
            ng.RecipeError,
            f"there is no recipe 'bf61'; allowed: {BASES}\n\nhint: did you mean 'bf16'?",
        ),
        (
            "int4",
            ng.RecipeError,
            (
                f"there is no recipe 'int4'; allowed: {BASES}\n\n"
                f"hint: allowed: {BASES}, O0, O1, O2, O3"
            ),
        ),
        (
            "bf16(residul=fp32)",
            ng.RecipeError,
            (
                f"the recipe 'bf16(residul=fp32)' has no key 'residul'; allowed: {KEYS}\n\n"
                "hint: did you mean 'residual'?"
            ),
        ),
        (
            "bf16(master=splitt)",
            ng.RecipeError,
            (
                "master=splitt is not a value of master; allowed: split, params, none\n\n"
                "hint: did you mean 'split'?"
            ),
        ),
        (
            "bf16; head: fp61",
            ng.RecipeError,
            f"there is no recipe 'fp61'; allowed: {BASES}\n\nhint: did you mean 'fp16'?",
        ),
        *(
            (
                f"fp16(loss_scale={value})",
                ng.LossScaleError,
                (
                    f"loss_scale={value} is not a positive finite FP32 number\n\n"
                    "hint: for example loss_scale=2^16, loss_scale=dynamic or loss_scale=off"
                ),
            )
            for value in ("nan", "0", "-8", "inf", "-inf", "0.0", "many")
        ),
        *(
            (
                f"fp16(init={value})",
                ng.LossScaleError,
                f"init={value} is not a positive finite FP32 number\n\nhint: for example init=2^16",
            )
            for value in ("nan", "0", "-8", "inf")
        ),
    ],
)
def test_a_recipe_that_means_nothing(recipe: str, error: type[Exception], told: str) -> None:
    model = Net()
    optimizer = adamw(model.parameters())
    before = bits([model.state_dict(), optimizer.state_dict()])
    assert message(error, lambda: ng.prepare(model, optimizer, recipe)) == told
    assert bits([model.state_dict(), optimizer.state_dict()]) == before
    assert type(model) is Net
    assert not cpu.installed()
    ng.prepare(model, optimizer, "bf16")  # nothing stands in the way of the right one


# --- models and optimizers ------------------------------------------------------------------

ORDER = (
    "the order is: model, fully_shard, optimizer, prepare, compile; DistributedDataParallel after "
    "prepare"
)


class Case:
    """A model and an optimizer which prepare() refuses."""

    def __init__(self, model: Any, optimizer: Any, error: type[Exception], told: str) -> None:
        self.model, self.optimizer, self.error, self.told = model, optimizer, error, told


def foreign() -> Case:
    model, other = Net(), nn.Linear(3, 5)
    return Case(
        model,
        adamw([*model.parameters(), *other.parameters()]),
        ng.PrepareError,
        "2 of 8 parameters in group 0 of AdamW are not in the model; the first has shape (5, 3)\n\n"
        "hint: make the optimizer from the parameters of the model that is prepared, after every "
        "conversion of the model; several models go in as a list",
    )


def compiled() -> Case:
    model = Net()
    return Case(
        torch.compile(model, backend="eager"),
        adamw(model.parameters()),
        ng.PrepareError,
        f"this OptimizedModule is compiled already\n\nhint: {ORDER}",
    )


def compiled_in_place() -> Case:
    model = Net()
    model.compile(backend="eager")
    return Case(
        model,
        adamw(model.parameters()),
        ng.PrepareError,
        f"this Net is compiled already\n\nhint: {ORDER}",
    )


def data_parallel() -> Case:
    model = nn.DataParallel(Net())
    return Case(
        model,
        adamw(model.parameters()),
        ng.PrepareError,
        f"the model is wrapped in DataParallel already\n\nhint: {ORDER}",
    )


def with_gradients() -> Case:
    model = Net()
    model(X).sum().backward()
    return Case(
        model,
        adamw(model.parameters()),
        ng.PrepareError,
        "0.weight has a gradient already\n\nhint: call optimizer.zero_grad() before prepare()",
    )


def of_dtype(dtype: torch.dtype, name: str) -> Callable[[], Case]:
    def case() -> Case:
        model = Net()
        model[2].bias = nn.Parameter(
            model[2].bias.detach().to(dtype), requires_grad=name != "int32"
        )
        return Case(
            model,
            adamw(model.parameters()),
            ng.FormatError,
            f"2.bias is {name}; a 16-bit recipe trains parameters of fp32, bf16 or fp16\n\n"
            "hint: convert it first (model.float()), or keep it out of the prepared model",
        )

    return case


def holding(value: float) -> Callable[[], Case]:
    def case() -> Case:
        model = Net()
        with torch.no_grad():
            model[2].weight[1, 7] = value
        return Case(
            model,
            adamw(model.parameters()),
            ng.FormatError,
            f"2.weight holds {abs(value)} before training has begun\n\n"
            "hint: look at how it is initialised",
        )

    return case


def lbfgs() -> Case:
    model = Net()
    return Case(
        model,
        torch.optim.LBFGS(model.parameters()),
        ng.PrepareError,
        "LBFGS needs a closure, and closures cannot be scaled, checked and skipped as one step\n\n"
        "hint: use another optimizer, or leave this model in FP32 without prepare()",
    )


def swapped() -> Case:
    model = Net()
    return Case(
        adamw(model.parameters()),
        model,
        ng.PrepareError,
        "prepare() takes a torch.nn.Module or a list of them; got AdamW\n\n"
        "hint: model, optimizer = ng.prepare(model, optimizer, 'bf16')",
    )


def of_parameters() -> Case:
    model = Net()
    return Case(
        model,
        model.parameters(),
        ng.PrepareError,
        "prepare() takes a torch.optim.Optimizer or a list of them; got generator\n\n"
        "hint: make the optimizer first: torch.optim.AdamW(model.parameters())",
    )


def replaced_forward(where: str) -> Callable[[], Case]:
    def case() -> Case:
        model = Net()
        module = model if where == "root" else model[1]
        module.forward = lambda x: x  # type: ignore[method-assign]
        name = "the model (Net)" if where == "root" else "1 (LayerNorm)"
        return Case(
            model,
            adamw(model.parameters()),
            ng.PrepareError,
            f"{name} has its forward replaced on the instance\n\n"
            "hint: call prepare() before whatever replaces the forward",
        )

    return case


CASES = {
    "optimizer of another model": foreign,
    "compiled": compiled,
    "compiled in place": compiled_in_place,
    "DataParallel": data_parallel,
    "gradients": with_gradients,
    "fp64": of_dtype(torch.float64, "float64"),
    "complex64": of_dtype(torch.complex64, "complex64"),
    "int32": of_dtype(torch.int32, "int32"),
    "Inf": holding(float("inf")),
    "-Inf": holding(float("-inf")),
    "NaN": holding(float("nan")),
    "LBFGS": lbfgs,
    "arguments swapped": swapped,
    "parameters for an optimizer": of_parameters,
    "forward on the root": replaced_forward("root"),
    "forward on a norm": replaced_forward("norm"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("recipe", SPLIT)
def test_what_cannot_be_prepared_is_left_as_it_was(recipe: str, name: str) -> None:
    case = CASES[name]()
    held = [h for h in (case.model, case.optimizer) if hasattr(h, "state_dict")]
    before = bits([h.state_dict() for h in held])
    classes = [[type(m) for m in h.modules()] for h in held if isinstance(h, nn.Module)]
    assert message(case.error, lambda: ng.prepare(case.model, case.optimizer, recipe)) == case.told
    assert bits([h.state_dict() for h in held]) == before
    assert [[type(m) for m in h.modules()] for h in held if isinstance(h, nn.Module)] == classes
    assert not cpu.installed()


@pytest.mark.parametrize(
    ("recipe", "value", "held", "limit"),
    [
        ("fp16", 65520.0, "65520", "65519.9961"),
        ("fp16", -1e6, "1000000", "65519.9961"),
        ("bf16", 3.4e38, "3.39999995e+38", "3.39617733e+38"),
    ],
)
def test_values_that_the_format_cannot_hold(
    recipe: str, value: float, held: str, limit: str
) -> None:
    model = Net()
    with torch.no_grad():
        model[2].weight[0, 0] = value
    optimizer = adamw(model.parameters())
    before = bits(model.state_dict())
    told = message(ng.FormatError, lambda: ng.prepare(model, optimizer, recipe))
    assert told == (
        f"2.weight holds {held}; {recipe} holds magnitudes up to {limit}\n\n"
        f"hint: keep its module in FP32: '{recipe}; 2: fp32'"
    )
    assert bits(model.state_dict()) == before
    ng.prepare(model, optimizer, f"{recipe}; 2: fp32")  # the hint is a way out


@pytest.mark.parametrize("recipe", [*SWEEP, "fp32"])
def test_a_model_prepared_twice(recipe: str) -> None:
    model, optimizer = made(recipe)
    step(model, optimizer)
    before = everything(model, optimizer)
    told = (
        "this Net is prepared already, or holds a part that is\n\n"
        "hint: ng.restore(model, optimizer) gives it back; several models that share parts go into "
        "one call: ng.prepare([a, b], ...)"
    )
    for again in (optimizer, adamw(model.parameters())):
        assert message(ng.PrepareError, lambda again=again: ng.prepare(model, again)) == told
    around = nn.Sequential(model, nn.Linear(2, 2))
    told_around = told.replace("Net", "Sequential", 1)
    assert message(ng.PrepareError, lambda: ng.prepare(around, adamw(around.parameters()))) == (
        told_around
    )
    part = model[0]
    if recipe != "fp32":
        with pytest.raises(ng.NarrowgateError):
            ng.prepare(nn.ModuleList([model, nn.Linear(2, 2)]), adamw(part.parameters()))
    assert everything(model, optimizer) == before
    assert step(model, optimizer)


def test_a_prepared_optimizer_with_a_fresh_model() -> None:
    _, optimizer = made()
    assert message(ng.PrepareError, lambda: ng.prepare(Net(), optimizer)) == (
        "this optimizer is prepared already\n\nhint: ng.restore(model, optimizer) gives it back"
    )


@pytest.mark.parametrize("shape", ["no optimizer", "nothing", "model twice", "optimizer twice"])
def test_lists_that_make_no_sense(shape: str) -> None:
    model = Net()
    optimizer = adamw(model.parameters())
    models = [] if shape == "nothing" else [model] * (2 if shape == "model twice" else 1)
    optimizers = [optimizer] * {"optimizer twice": 2, "model twice": 1}.get(shape, 0)
    before = bits(model.state_dict())
    with pytest.raises(ng.PrepareError):
        ng.prepare(models, optimizers)
    assert bits(model.state_dict()) == before
    assert type(model) is Net


@pytest.mark.parametrize("clip", [0, -1.0, float("nan"), "1"])
@pytest.mark.parametrize("recipe", [*SWEEP, "fp32"])
def test_a_norm_that_cannot_be_clipped_to(recipe: str, clip: Any) -> None:
    with pytest.raises(
        ng.PrepareError, match=f"clip_norm is '?{clip}'?; it must be a positive number"
    ):
        made(recipe, clip_norm=clip)
    model, optimizer = made(recipe)
    optimizer.backward(model(X).pow(2).mean())
    before = everything(model, optimizer)
    with pytest.raises(ng.StepError, match=f"max_norm is '?{clip}'?; it must be a positive number"):
        optimizer.step(max_norm=clip)
    assert everything(model, optimizer) == before
    assert optimizer.step(max_norm=float("inf")).applied  # never clips


@pytest.mark.parametrize("mode", ["prepare", "model", "step"])
def test_inference_mode_is_refused_before_it_can_harm(mode: str) -> None:
    if mode == "step":
        model, optimizer = made()
        optimizer.backward(model(X).pow(2).mean())
        with torch.inference_mode(), pytest.raises(ng.StepError, match="inference_mode"):
            optimizer.step()
        assert optimizer.step()
        assert step(model, optimizer)
        return
    if mode == "model":
        with torch.inference_mode():
            model = Net()
    else:
        model = Net()
    inner = adamw(model.parameters())
    with torch.inference_mode(mode == "prepare"), pytest.raises(ng.PrepareError, match="inference"):
        ng.prepare(model, inner)
    assert model[0].weight.dtype is torch.float32
    assert type(model) is Net


def test_prepare_under_no_grad_is_as_good() -> None:
    with torch.no_grad():
        model, optimizer = made("fp16")
    other, reference = made("fp16")
    for _ in range(2):
        assert step(model, optimizer).grad_norm == step(other, reference).grad_norm
    assert everything(model, optimizer) == everything(other, reference)


# --- steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", SWEEP)
@pytest.mark.parametrize(
    ("loss", "got"),
    [(3, "int"), (1.5, "float"), (None, "NoneType"), ([torch.ones(())], "list")]
    + [(torch.ones((), dtype=d), str(d)) for d in (torch.int64, torch.bool, torch.complex64)],
)
def test_a_loss_that_is_none(recipe: str, loss: Any, got: str) -> None:
    model, optimizer = made(recipe)
    assert message(ng.StepError, lambda: optimizer.backward(loss)) == (
        f"backward() takes a floating-point loss tensor; got {got}\n\n"
        "hint: call optimizer.backward(loss) once for each loss"
    )
    assert step(model, optimizer)


@pytest.mark.parametrize("recipe", SWEEP)
@pytest.mark.parametrize("bad", ["not scalar", "no grad", "frozen", "raises in forward"])
def test_a_backward_that_torch_refuses_leaves_a_clean_window(recipe: str, bad: str) -> None:
    model, optimizer = made(recipe)
    other, reference = made(recipe)
    step(model, optimizer), step(other, reference)
    optimizer.zero_grad()
    if bad == "raises in forward":
        handle = model[1].register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(X)
        handle.remove()
        assert not torch.is_autocast_enabled("cpu")
    else:
        loss = model(X) * float("inf")
        loss = loss if bad == "not scalar" else loss.mean().detach()
        with pytest.raises(RuntimeError):
            optimizer.backward(loss)
    assert step(model, optimizer).grad_norm == step(other, reference).grad_norm
    assert everything(model, optimizer) == everything(other, reference)


@pytest.mark.parametrize("recipe", SWEEP)
def test_a_step_without_gradients_moves_nothing(recipe: str) -> None:
    model, optimizer = made(recipe)
    before = bits(model.state_dict())
    result = optimizer.step()
    assert result.applied
    assert result.grad_norm == 0.0
    assert bits(model.state_dict()) == before
    assert step(model, optimizer)


FOREIGN = (
    "there are gradients, but none were made by optimizer.backward(loss); they would be divided by "
    "the loss scale although they were not, or not only, multiplied by it\n\nhint: replace "
    "loss.backward() by optimizer.backward(loss), and clip_grad_norm_ or other changes of .grad by "
    "prepare(clip_norm=...) or optimizer.step(max_norm=...)"
)


@pytest.mark.parametrize("recipe", SCALED)
@pytest.mark.parametrize("lr", [0.0, 0.01])
def test_a_plain_backward_is_refused_where_the_loss_is_scaled(recipe: str, lr: float) -> None:
    model, optimizer = made(recipe)
    optimizer.param_groups[0]["lr"] = lr
    before = everything(model, optimizer)
    for _ in range(2):
        model(X).pow(2).mean().backward()
        assert message(ng.StepError, optimizer.step) == FOREIGN
        assert everything(model, optimizer) == before
        optimizer.zero_grad()
    assert step(model, optimizer)


@pytest.mark.parametrize("recipe", ["bf16", "bf16-mixed"])
def test_a_plain_backward_is_right_where_it_is_not(recipe: str) -> None:
    model, optimizer = made(recipe)
    other, reference = made(recipe)
    for lr in (0.0, 0.01):  # the first step of a warm-up is a step
        optimizer.param_groups[0]["lr"] = reference.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        model(X).pow(2).mean().backward()
        assert optimizer.step()
        step(other, reference)
    assert everything(model, optimizer) == everything(other, reference)


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def plain(model: nn.Module) -> None:
    model(X).pow(2).mean().backward()


@pytest.mark.parametrize("what", [clip, plain])
@pytest.mark.parametrize("recipe", ["bf16(accumulate=fp32)", "fp16(accumulate=fp32)"])
def test_fp32_sums_do_not_hide_a_foreign_hand(recipe: str, what: Any) -> None:
    model, optimizer = made(recipe)
    optimizer.backward(model(X).pow(2).mean())
    what(model)
    before = everything(model, optimizer)
    with pytest.raises(ng.StepError, match="changed between"):
        optimizer.step()
    assert everything(model, optimizer) == before
    optimizer.zero_grad()
    assert step(model, optimizer)


@pytest.mark.parametrize("clear", ["model", "model to zero", "each"])
@pytest.mark.parametrize("recipe", [*SWEEP, "bf16(accumulate=fp32)", "fp16(accumulate=fp32)"])
def test_gradients_cleared_by_somebody_else_are_cleared(recipe: str, clear: str) -> None:
    model, optimizer = made(recipe)
    other, reference = made(recipe)
    optimizer.backward(model(X).mul(3).pow(2).mean())
    if clear == "each":
        for parameter in model.parameters():
            parameter.grad = None
    else:
        model.zero_grad(set_to_none=clear == "model")
    optimizer.backward(model(X).pow(2).mean())
    assert optimizer.step().grad_norm == step(other, reference).grad_norm
    assert everything(model, optimizer) == everything(other, reference)


@pytest.mark.parametrize("recipe", [*SWEEP, "bf16(accumulate=fp32)", "fp16(accumulate=fp32)"])
def test_cleared_gradients_are_not_applied(recipe: str) -> None:
    model, optimizer = made(recipe)
    optimizer.backward(model(X).pow(2).mean())
    model.zero_grad()
    before = bits(model.state_dict())
    assert optimizer.step().grad_norm == 0.0
    assert bits(model.state_dict()) == before


@pytest.mark.parametrize("recipe", SWEEP)
def test_a_closure(recipe: str) -> None:
    model, optimizer = made(recipe)
    before = everything(model, optimizer)
    told = message(ng.StepError, lambda: optimizer.step(lambda: model(X).mean()))
    assert told == (
        "AdamW was given a closure; closures cannot be scaled, checked and skipped as one step\n\n"
        "hint: compute the loss, call optimizer.backward(loss), then optimizer.step()"
    )
    assert everything(model, optimizer) == before
    assert optimizer.step(None).applied  # as some libraries call it


@pytest.mark.parametrize("recipe", [*SWEEP, "fp32"])
def test_the_optimizer_that_was_passed_in_is_not_stepped(recipe: str) -> None:
    model = Net()
    inner = adamw(model.parameters())
    model, optimizer = ng.prepare(model, inner, recipe)
    optimizer.backward(model(X).pow(2).mean())
    before = everything(model, optimizer)
    assert message(ng.StepError, inner.step) == (
        "AdamW.step() was called on the optimizer that was passed to prepare(): it would apply "
        "gradients which are scaled, on halves instead of masters\n\n"
        "hint: use the optimizer that prepare() returned"
    )
    assert everything(model, optimizer) == before
    assert optimizer.step()


def test_sparse_gradients() -> None:
    model = nn.Embedding(4, 2, sparse=True)
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer.backward(model(torch.tensor([1])).mean())
    before = everything(model, optimizer)
    assert message(ng.StepError, optimizer.step) == (
        "the gradient of weight is torch.sparse_coo; dense ones are read\n\n"
        "hint: make the embedding with sparse=False"
    )
    assert everything(model, optimizer) == before


# --- parameters that are changed behind our back --------------------------------------------

PARTED = (
    "{} do not belong to their remainders: the two halves of the master are of different steps\n\n"
    "hint: load model and optimizer from the same checkpoint; if the weights were changed on "
    "purpose, optimizer.adopt_weights() takes them as they stand"
)


@pytest.mark.parametrize("recipe", SPLIT)
@pytest.mark.parametrize("then", ["step", "restore", "full", "save"])
@pytest.mark.parametrize("what", ["model", "optimizer", "edit"])
def test_halves_and_remainders_of_different_steps(
    recipe: str, what: str, then: str, tmp_path: Path
) -> None:
    model, optimizer = made(recipe)
    old = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    step(model, optimizer)
    if what == "model":
        model.load_state_dict(old[0])
    elif what == "optimizer":
        optimizer.load_state_dict(old[1])
    else:
        with torch.no_grad():
            model[0].weight.mul_(0.5)
    named = "the 16-bit weights of " + (
        "0.weight" if what == "edit" else "0.weight, 0.bias, 2.weight and 1 more"
    )
    optimizer.zero_grad()
    optimizer.backward(model(X).pow(2).mean())
    before = everything(model, optimizer)
    calls: dict[str, Callable[[], Any]] = {
        "step": optimizer.step,
        "restore": lambda: ng.restore(model, optimizer),
        "full": lambda: ng.full_precision_state_dict(model, optimizer),
        "save": lambda: ng.save_checkpoint(tmp_path, model, optimizer),
    }
    for _ in range(2):
        assert message(ng.CheckpointError, calls[then]) == PARTED.format(named)
        assert everything(model, optimizer) == before
        assert list(tmp_path.iterdir()) == []
    optimizer.adopt_weights()
    calls[then]()


@pytest.mark.parametrize("recipe", SWEEP)
@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("then", ["step", "full", "save", "restore"])
def test_a_model_cast_after_prepare_is_refused(
    recipe: str, to: torch.dtype, then: str, tmp_path: Path
) -> None:
    model, optimizer = made(recipe)
    step(model, optimizer)
    optimizer.zero_grad()
    optimizer.backward(model(X).pow(2).mean())
    was = {name: p.dtype for name, p in model.named_parameters()}
    model.to(to)  # the gradients with it
    if all(dtype is to for dtype in was.values()):
        return
    before = bits(dict(model.named_parameters()))
    calls: dict[str, Callable[[], Any]] = {
        "step": optimizer.step,
        "full": lambda: ng.full_precision_state_dict(model, optimizer),
        "save": lambda: ng.save_checkpoint(tmp_path, model, optimizer),
        "restore": lambda: ng.restore(model, optimizer),
    }
    with pytest.raises(ng.NarrowgateError) as caught:
        calls[then]()
    told = str(caught.value)
    first = next(name for name, dtype in was.items() if dtype is not to)
    assert first in told
    assert "hint:" in told
    assert bits(dict(model.named_parameters())) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", SPLIT)
def test_channels_last_after_prepare(recipe: str) -> None:
    """Torch's own optimizers cope with it."""
    x = torch.linspace(-1, 1, 150).reshape(2, 3, 5, 5)
    ends = []
    for late in (False, True):
        torch.manual_seed(0)
        model: Any = nn.Conv2d(3, 4, 3)
        model, optimizer = ng.prepare(model, adamw(model.parameters()), recipe)
        for turn in range(3):
            step(model, optimizer, x)
            if late and turn == 0:
                model.to(memory_format=torch.channels_last)
        ends.append(ng.full_precision_state_dict(model, optimizer)["weight"].contiguous())
    assert bits(ends[0]) == bits(ends[1])


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "expanded", "strided"])
@pytest.mark.parametrize("recipe", SWEEP)
def test_any_layout_before_prepare(recipe: str, layout: str) -> None:
    if layout == "expanded" and recipe not in SPLIT:
        return  # one memory for several elements: torch's optimizers refuse it too
    ends = []
    for plain_layout in (True, False):
        torch.manual_seed(0)
        if layout == "channels_last":
            model: Any = nn.Conv2d(3, 4, 3)
            x = torch.linspace(-1, 1, 150).reshape(2, 3, 5, 5)
            if not plain_layout:
                model.to(memory_format=torch.channels_last)
        else:
            model, x = nn.Linear(4, 6), X
            wide = torch.randn(8, 12)
            data = {
                "transposed": wide[:4, :6].clone().t(),
                "expanded": wide[:1, :4].clone().expand(6, 4),
                "strided": wide[1:7, 1:9:2],
            }[layout]
            model.weight = nn.Parameter(data.clone(memory_format=torch.contiguous_format))
            if not plain_layout:
                model.weight = nn.Parameter(data)
        model, optimizer = ng.prepare(model, adamw(model.parameters()), recipe)
        for _ in range(2):
            step(model, optimizer, x)
        other = copy.deepcopy(optimizer.state_dict())
        optimizer.load_state_dict(other)
        step(model, optimizer, x)
        ends.append(ng.full_precision_state_dict(model, optimizer)["weight"].contiguous())
    assert bits(ends[0]) == bits(ends[1])


@pytest.mark.parametrize("recipe", SPLIT)
def test_parameters_replaced_by_assign_are_refused_by_name(recipe: str, tmp_path: Path) -> None:
    model, optimizer = made(recipe)
    step(model, optimizer)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    for call in (
        lambda: ng.full_precision_state_dict(model, optimizer),
        lambda: ng.save_checkpoint(tmp_path, model, optimizer),
    ):
        with pytest.raises(ng.NarrowgateError, match=r"0\.weight"):
            call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.int64])
@pytest.mark.parametrize("recipe", SWEEP)
def test_a_group_that_cannot_be_trained_is_refused_when_it_is_added(
    recipe: str, dtype: torch.dtype
) -> None:
    model, optimizer = made(recipe)
    step(model, optimizer)
    before = everything(model, optimizer)
    late = nn.Parameter(torch.ones(2, dtype=dtype), requires_grad=dtype is not torch.int64)
    with pytest.raises(ng.NarrowgateError, match=str(dtype).removeprefix("torch.")):
        optimizer.add_param_group({"params": [late]})
    assert everything(model, optimizer) == before
    assert step(model, optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("recipe", SWEEP)
def test_a_group_that_can_be_trained_is(recipe: str, dtype: torch.dtype) -> None:
    model, optimizer = made(recipe)
    step(model, optimizer)
    late = nn.Parameter(torch.ones(2, dtype=dtype))
    optimizer.add_param_group({"params": [late], "lr": 2.0**-12})
    for _ in range(3):
        optimizer.zero_grad()
        optimizer.backward(model(X).pow(2).mean() + (late.float() * 0.25).sum())
        assert optimizer.step()
    if dtype is not torch.float32:  # 3 updates of 2^-12 and a decay: lost without a master
        assert len(optimizer.state_dict()["state"]) == 7
        master = optimizer._session.masters.master(late)
        # lr * (1 + weight decay of 0.01), three times, beside roundings of the master near 1
        assert abs(master[0].item() - (1 - 3 * 2.0**-12 * 1.01)) < 2.0**-20
    with pytest.raises(ValueError, match="some parameters appear in more than one"):
        optimizer.add_param_group({"params": [late]})
    assert len(optimizer.param_groups) == 2
    assert step(model, optimizer)


@pytest.mark.parametrize("recipe", SWEEP)
@pytest.mark.parametrize("held", [True, False])
def test_unfreezing(recipe: str, held: bool) -> None:
    model = Net()
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    chosen = [p for p in model.parameters() if held or p.requires_grad]
    model, optimizer = ng.prepare(model, adamw(chosen), recipe)
    step(model, optimizer)
    model[0].requires_grad_(True)
    if not held:
        optimizer.add_param_group({"params": list(model[0].parameters())})
    result = step(model, optimizer)
    while not result:
        result = step(model, optimizer)
    assert not torch.equal(ng.full_precision_state_dict(model, optimizer)["0.weight"], before)


@pytest.mark.parametrize("recipe", SWEEP)
def test_everything_frozen_and_parameters_of_no_size(recipe: str, tmp_path: Path) -> None:
    model: Any = nn.Linear(4, 2)
    model.none = nn.Parameter(torch.zeros(0, 3))
    inner = nn.Linear(1, 1)
    inner.weight = nn.Parameter(torch.zeros(0, 4))
    model.inner = inner
    model, optimizer = ng.prepare(model, adamw(model.parameters()), recipe)
    for _ in range(2):
        optimizer.zero_grad()
        optimizer.backward(
            model(X).mean() / 8 + model.none.sum() + model.inner.weight.sum().float()
        )
        assert optimizer.step(max_norm=1.0)
    ng.save_checkpoint(tmp_path, model, optimizer)
    ng.load_checkpoint(tmp_path, model, optimizer)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(RuntimeError, match="does not require grad"):
        optimizer.backward(model(X).mean())
    optimizer.zero_grad()
    before = bits(model.state_dict())
    assert optimizer.step()
    assert bits(model.state_dict()) == before


# --- interrupted ----------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", SWEEP)
@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_exception_in_the_middle_of_a_step_does_not_end_the_run(
    recipe: str, group: int, error: type[BaseException]
) -> None:
    model = Net()
    first, *rest = model
    groups = [
        {"params": list(first.parameters())},
        {"params": [p for module in rest for p in module.parameters()]},
    ]
    inner = torch.optim.RMSprop(groups, lr=0.01)
    stock, calls = inner.step, []

    def interrupted(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 3 + group:  # two groups in the first step
            raise error("stop")
        return stock(*args)

    inner.step = interrupted  # type: ignore[method-assign]
    model, optimizer = ng.prepare(model, inner, recipe)
    assert step(model, optimizer)
    kept = [p.dtype for p in model.parameters()]
    optimizer.zero_grad()
    optimizer.backward(model(X).pow(2).mean())
    with pytest.raises(error, match="stop"):
        optimizer.step()
    assert [p.dtype for p in model.parameters()] == kept
    assert step(model, optimizer)
    ng.restore(model, optimizer)


# --- restore, copies ------------------------------------------------------------------------

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


# --- states ---------------------------------------------------------------------------------


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


# --- checkpoints on disk --------------------------------------------------------------------

FILES = ("manifest.json", "state.json", "model.safetensors", "optimizer.safetensors")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the checkpoints of step 1 and step 2."""
    logging.getLogger("narrowgate").setLevel(logging.ERROR)
    folder = tmp_path_factory.mktemp("saved")
    model, optimizer = made("fp16")
    for number in range(2):
        step(model, optimizer)
        ng.save_checkpoint(folder, model, optimizer, number=number)
    yield folder
    logging.getLogger("narrowgate").setLevel(logging.NOTSET)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(folder: Path) -> str:
    """Load a damaged checkpoint: refused, nothing changed, and the one before still loads."""
    model, optimizer = made("fp16")
    step(model, optimizer)
    torch.manual_seed(5)
    before, files = everything(model, optimizer), contents(folder)
    generator = bits(torch.get_rng_state())
    told = message(ng.CheckpointError, lambda: ng.load_checkpoint(folder, model, optimizer))
    assert everything(model, optimizer) == before
    assert bits(torch.get_rng_state()) == generator
    assert contents(folder) == files
    assert ng.load_checkpoint(folder / "step-1", model, optimizer) == {"number": 0}
    assert step(model, optimizer)
    return told


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_a_file_cut_short(saved: Path, tmp_path: Path, name: str, share: float) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    path = folder / "step-2" / name
    whole = path.read_bytes()
    left = min(int(len(whole) * share), len(whole) - 1)
    path.write_bytes(whole[:left])
    told = refused(folder)
    assert told.startswith(f"the checkpoint {folder / 'step-2'} cannot be read whole: ")
    assert told.endswith(f"; nothing was loaded\n\nhint: load another one: {folder / 'step-1'}")
    if name != "manifest.json":
        assert f": {name} has {left} bytes of {len(whole)};" in told


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0.0, 0.1, 0.6, 1.0])
def test_a_flipped_bit(saved: Path, tmp_path: Path, name: str, place: float) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    path = folder / "step-2" / name
    data = bytearray(path.read_bytes())
    where = min(int(len(data) * place), len(data) - 1)
    data[where] ^= 0x80
    path.write_bytes(data)
    told = refused(folder)
    if name != "manifest.json":
        assert f": {name} was changed: its SHA-256 is not the manifest's; nothing" in told
    else:
        assert ": its manifest is damaged (" in told


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(saved: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    (folder / "step-2" / name).unlink()
    assert "nothing was loaded" in refused(folder)


@pytest.mark.parametrize(
    "latest", [b"", b"\xf3tep-2\n", b"step-", b"../step-2\n", b"step-9\n", None]
)
def test_a_damaged_latest(saved: Path, tmp_path: Path, latest: bytes | None) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    (folder / "latest").unlink()
    if latest is not None:
        (folder / "latest").write_bytes(latest)
    told = refused(folder)
    assert "step-1" in told  # says what is there
    # and it does not keep a run from saving
    model, optimizer = made("fp16")
    ng.load_checkpoint(folder / "step-2", model, optimizer)
    step(model, optimizer)
    ng.save_checkpoint(folder, model, optimizer)
    assert (folder / "latest").read_text() == "step-3\n"
    ng.load_checkpoint(folder, model, optimizer)


@pytest.mark.parametrize(
    "change", [{"schema": 99}, {"files": {}}, {"files": []}, {"schema": "x"}, {"schema": None}]
)
def test_a_foreign_manifest(saved: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    path = folder / "step-2" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert "nothing was loaded" in refused(folder)
    path.write_text("[]")
    assert "nothing was loaded" in refused(folder)


def test_nothing_there(tmp_path: Path) -> None:
    model, optimizer = made()
    place = tmp_path / "nowhere"
    assert message(ng.CheckpointError, lambda: ng.load_checkpoint(place, model, optimizer)) == (
        f"there is no checkpoint in {place}: no readable 'latest'\n\nhint: look at the path"
    )
    assert not place.exists()
    place.write_text("a file")
    for call in (ng.load_checkpoint, ng.save_checkpoint):
        with pytest.raises(ng.CheckpointError, match="nowhere"):
            call(place, model, optimizer)
    assert place.read_text() == "a file"


def wider(model: Net) -> None:
    model[2] = nn.Linear(8, 3)


def deeper(model: Net) -> None:
    model.append(nn.Linear(2, 2))


def without_bias(model: Net) -> None:
    model[2] = nn.Linear(8, 2, bias=False)


@pytest.mark.parametrize(
    ("change", "parted"),
    [
        (
            wider,
            "2.weight is float16 of shape (2, 8) in the checkpoint and float16 of shape (3, 8)",
        ),
        (deeper, "3.weight is absent in the checkpoint and float16 of shape (2, 2)"),
        (without_bias, "2.bias is float16 of shape (2,) in the checkpoint and absent"),
    ],
)
def test_a_checkpoint_of_another_model(saved: Path, change: Any, parted: str) -> None:
    model = Net()
    change(model)
    optimizer: Any
    model, optimizer = ng.prepare(model, adamw(model.parameters()), "fp16")
    step(model, optimizer)
    before, files = everything(model, optimizer), contents(saved)
    assert message(ng.CheckpointError, lambda: ng.load_checkpoint(saved, model, optimizer)) == (
        f"the checkpoint {saved / 'step-2'} is of another model: {parted} in the model\n\n"
        "hint: build the model as it was when the checkpoint was saved"
    )
    assert everything(model, optimizer) == before
    assert contents(saved) == files


@pytest.mark.parametrize(
    "recipe", ["bf16", "fp16-mixed", "fp16(init=1024)", "fp16; 2: fp32", "fp32"]
)
def test_a_checkpoint_of_another_recipe(saved: Path, recipe: str) -> None:
    model, optimizer = made(recipe)
    step(model, optimizer)
    before = everything(model, optimizer)
    told = message(ng.CheckpointError, lambda: ng.load_checkpoint(saved, model, optimizer))
    assert told.startswith(
        f"the checkpoint {saved / 'step-2'} is of the recipe 'fp16'; this model was prepared with "
        f"{recipe!r}\n\nhint: "
    )
    assert everything(model, optimizer) == before


def test_a_checkpoint_with_other_optimizers(saved: Path) -> None:
    model = Net()
    first, *rest = model
    halves = [
        adamw(first.parameters()),
        adamw([p for module in rest for p in module.parameters()]),
    ]
    model, optimizers = ng.prepare(model, halves, "fp16")
    before = bits([model.state_dict(), [o.state_dict() for o in optimizers]])
    assert message(ng.CheckpointError, lambda: ng.load_checkpoint(saved, model, optimizers)) == (
        f"the checkpoint {saved / 'step-2'} holds 1 optimizers; there are 2\n\n"
        "hint: prepare the same models and optimizers together"
    )
    for call in (ng.load_checkpoint, ng.save_checkpoint):
        assert message(
            ng.CheckpointError, lambda call=call: call(saved, model, optimizers[0])
        ).startswith("a checkpoint holds all models and optimizers of one prepare() call")
    assert bits([model.state_dict(), [o.state_dict() for o in optimizers]]) == before


@pytest.mark.parametrize("extra", [object(), {1, 2}, print, {"deep": [0, (b"bytes",)]}])
def test_an_extra_that_cannot_be_saved_leaves_the_folder(
    saved: Path, tmp_path: Path, extra: Any
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    files = contents(folder)
    model, optimizer = made("fp16")
    told = message(
        ng.CheckpointError, lambda: ng.save_checkpoint(folder, model, optimizer, thing=extra)
    )
    assert told.startswith("extra.thing")
    assert told.endswith("hint: pass state_dict() of an object, not the object")
    assert contents(folder) == files
    assert sorted(p.name for p in folder.iterdir()) == ["latest", "step-1", "step-2"]


def save_interrupted(folder: Path, pair: Any, at: int | None) -> list[int]:
    """Save, with Ctrl-C just before a line of the module of checkpoints is executed first.

    Returns:
        The lines which were executed, in the order in which they were reached.
    """
    import narrowgate.engine.checkpoint as module

    lines: dict[int, None] = {}

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != module.__file__:
            return None
        if event == "line" and frame.f_lineno not in lines:
            lines[frame.f_lineno] = None
            if frame.f_lineno == at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        ng.save_checkpoint(folder, *pair, number="new")
    finally:
        sys.settrace(before)
    return list(lines)


@pytest.mark.parametrize("again", [False, True], ids=["a new step", "the same step again"])
def test_ctrl_c_at_any_line_of_saving_leaves_a_whole_checkpoint(
    saved: Path, tmp_path: Path, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # what reaches the disk is not what is tested
    pair = made("fp16")
    ng.load_checkpoint(saved, *pair)
    if not again:
        step(*pair)
    reader = made("fp16")
    folder = tmp_path / "whole"
    shutil.copytree(saved, folder)
    lines = save_interrupted(folder, pair, None)
    seen = set()
    assert len(lines) > 40
    for number, line in enumerate(lines):
        folder = tmp_path / str(line)
        shutil.copytree(saved, folder)
        with pytest.raises(KeyboardInterrupt):
            save_interrupted(folder, pair, line)
        # the one before or the new one; whole, and by the plain way
        seen.add(ng.load_checkpoint(folder, *reader)["number"])
        # and the next save is served
        if number % 8 == 0:
            ng.save_checkpoint(folder, *pair, number="next")
            assert ng.load_checkpoint(folder, *reader)["number"] == "next"
            assert not [p for p in folder.iterdir() if p.name.startswith(".")]
        shutil.rmtree(folder)
    assert seen == {1, "new"}
