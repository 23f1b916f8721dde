"""Bad input to prepare(): every refusal with its whole message; a refusal changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import narrowgate as ng
from cases.tools import SPLIT, SWEEP, bits
from engine.net import Net, X, adamw, everything, made, message, step
from narrowgate.engine import cpu

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


ORDER = "the order is: model, optimizer, prepare, compile; DistributedDataParallel after prepare"


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
        "hint: use another optimizer, or the recipe fp32, which passes closures on",
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
