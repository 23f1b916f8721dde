"""What prepare() refuses, and says about it, before anything is changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from narrowgate.engine.describe import FORMAT_OF, check_made, format_name, overlapping
from narrowgate.engine.swap import is_prepared
from narrowgate.errors import FormatError, NarrowgateError, PrepareError, RecipeError
from narrowgate.ops import largest_master
from narrowgate.plan import Plan, Recipe, parse

__all__ = [
    "check_group",
    "check_models",
    "check_norm",
    "check_optimizers",
    "check_plan",
    "check_shared",
    "check_swaps",
    "check_values",
    "read_recipe",
]

_ORDER = "the order is: model, optimizer, prepare, compile; DistributedDataParallel after prepare"


def read_recipe(recipe: str | Plan | None) -> tuple[Recipe, Plan | None]:
    """Read what was given as a recipe."""
    if isinstance(recipe, str) and recipe.startswith("@"):
        path = Path(recipe[1:])
        try:
            recipe = Plan.from_json(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(
                f"the plan {path} cannot be read: {error}",
                hint="'@FILE' names a file that Plan.to_json() wrote",
            ) from error
    if isinstance(recipe, Plan):
        return parse(recipe.recipe), recipe
    return parse("bf16" if recipe is None else recipe), None


def check_norm(name: str, value: Any, error: type[NarrowgateError] = PrepareError) -> None:
    """Refuse a norm to clip to that is no positive number."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (number and value > 0):
        raise error(
            f"{name} is {value!r}; it must be a positive number", hint="leave it out to not clip"
        )


def check_models(models: Sequence[Any]) -> None:
    """Refuse what is no model, and models in the wrong order."""
    if torch.is_inference_mode_enabled():
        raise PrepareError(
            "prepare() was called under torch.inference_mode(), whose tensors cannot be trained",
            hint="call prepare() outside of it",
        )
    if not models or len({id(model) for model in models}) < len(models):
        raise PrepareError(
            f"prepare() takes each model once, and at least one; got {len(models)}",
            hint="model, optimizer = ng.prepare(model, optimizer, 'bf16')",
        )
    for model in models:
        if not isinstance(model, nn.Module):
            raise PrepareError(
                f"prepare() takes a torch.nn.Module or a list of them; got {type(model).__name__}",
                hint="model, optimizer = ng.prepare(model, optimizer, 'bf16')",
            )
        check_made(model)
        name = type(model).__name__
        if any(is_prepared(module) for module in model.modules()):
            raise PrepareError(
                f"this {name} is prepared already, or holds a part that is",
                hint="ng.restore(model, optimizer) gives it back; several models that share parts "
                "go into one call: ng.prepare([a, b], ...)",
            )
        if isinstance(model, torch.jit.ScriptModule):
            raise PrepareError(f"{name} is scripted", hint="prepare the model before scripting it")
        compiled = hasattr(model, "_orig_mod") or model._compiled_call_impl is not None
        if compiled:
            raise PrepareError(f"this {name} is compiled already", hint=_ORDER)
        wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
        if isinstance(model, wrappers):
            raise PrepareError(f"the model is wrapped in {name} already", hint=_ORDER)
        frozen = [n for n, p in model.named_parameters() if p.is_inference()]
        if frozen:
            raise PrepareError(
                f"{frozen[0]} was made under torch.inference_mode() and cannot be trained",
                hint="build the model outside of it",
            )
        sharded = [n for n, p in model.named_parameters() if isinstance(p, DTensor)]
        if sharded:
            raise PrepareError(
                f"{len(sharded)} parameters are sharded, the first of them {sharded[0]}; this "
                f"version prepares models that each process holds whole",
                hint="use DistributedDataParallel after prepare()",
            )


def check_optimizers(inners: Sequence[Any], models: Sequence[nn.Module], recipe: Recipe) -> None:
    """Refuse what is no optimizer, and optimizers of other models."""
    if not inners or len({id(inner) for inner in inners}) < len(inners):
        raise PrepareError(
            f"prepare() takes each optimizer once, and at least one; got {len(inners)}",
            hint="model, optimizer = ng.prepare(model, optimizer, 'bf16')",
        )
    known = {id(p) for model in models for p in model.parameters()}
    for inner in inners:
        if hasattr(inner, "_session"):
            raise PrepareError(
                "this optimizer is prepared already",
                hint="ng.restore(model, optimizer) gives it back",
            )
        if not isinstance(inner, torch.optim.Optimizer):
            raise PrepareError(
                f"prepare() takes a torch.optim.Optimizer or a list of them; "
                f"got {type(inner).__name__}",
                hint="make the optimizer first: torch.optim.AdamW(model.parameters())",
            )
        if isinstance(inner, torch.optim.LBFGS) and not recipe.is_passthrough:
            raise PrepareError(
                "LBFGS needs a closure, and closures cannot be scaled, checked and skipped as one "
                "step",
                hint="use another optimizer, or the recipe fp32, which passes closures on",
            )
        for index, group in enumerate(inner.param_groups):
            strange = [p for p in group["params"] if id(p) not in known]
            if strange:
                raise PrepareError(
                    f"{len(strange)} of {len(group['params'])} parameters in group {index} of "
                    f"{type(inner).__name__} are not in the model; the first has shape "
                    f"{tuple(strange[0].shape)}",
                    hint="make the optimizer from the parameters of the model that is prepared, "
                    "after every conversion of the model; several models go in as a list",
                )


def check_plan(parameters: dict[str, nn.Parameter], plan: Plan) -> None:
    """Refuse a plan of another model."""
    shapes = {row.fqn: row.shape for row in plan.params}
    here = {fqn: tuple(parameter.shape) for fqn, parameter in parameters.items()}
    if shapes != here:
        parted = next(
            fqn for fqn in dict.fromkeys([*shapes, *here]) if shapes.get(fqn) != here.get(fqn)
        )
        raise PrepareError(
            f"the plan is of another model: {parted} has shape {shapes.get(parted)} in the plan "
            f"and {here.get(parted)} in the model",
            hint="resolve the recipe again on this model",
        )


def check_shared(parameters: Sequence[dict[str, nn.Parameter]], plans: Sequence[Plan]) -> None:
    """Refuse what models of one call share but their plans treat apart."""
    seen: dict[nn.Parameter, tuple[str, str]] = {}
    for number, (table, plan) in enumerate(zip(parameters, plans, strict=True)):
        for row in plan.params:
            place, wish = f"model {number}: {row.fqn}", f"{row.format} master={row.master}"
            other, agreed = seen.setdefault(table[row.fqn], (place, wish))
            if wish != agreed:
                raise PrepareError(
                    f"one parameter is {other} ({agreed}) and {place} ({wish})",
                    hint="what models share needs one format: name it in a rule of both",
                )
    everything = [p for table in parameters for p in table.values()]
    for one, two in overlapping(dict.fromkeys(everything)):
        owners = [{id(p) for p in table.values()} for table in parameters]
        if not any(id(one) in owner and id(two) in owner for owner in owners):
            raise PrepareError(
                f"{seen[one][0]} and {seen[two][0]} are two parameters in one piece of memory",
                hint="share the parameter itself, or give each its own memory",
            )


def check_swaps(model: nn.Module, plan: Plan) -> None:
    """Refuse modules whose forward the instance replaces: a swapped class would not reach it."""
    for row in plan.modules:
        module = model.get_submodule(row.fqn)
        if "forward" in module.__dict__:
            raise PrepareError(
                f"{row.fqn or 'the model'} ({type(module).__name__}) has its forward replaced "
                f"on the instance",
                hint="call prepare() before whatever replaces the forward",
            )


def check_values(
    parameters: dict[str, nn.Parameter], plan: Plan, held: Sequence[torch.Tensor]
) -> None:
    """Refuse parameters that cannot be stored, or trained, in their formats."""
    optimized = {id(p) for p in held}
    for row in plan.params:
        parameter = parameters[row.fqn]
        if parameter.grad is not None:
            raise PrepareError(
                f"{row.fqn} has a gradient already",
                hint="call optimizer.zero_grad() before prepare()",
            )
        if row.master == "foreign":
            if id(parameter) in optimized or parameter.requires_grad:
                raise _not_trained(row.fqn, row.format)
            continue
        _check_value(row.fqn, parameter.detach(), row.format, plan.recipe)


def check_group(parameters: Sequence[torch.Tensor], recipe: str) -> None:
    """Refuse a group whose parameters a 16-bit recipe cannot train.

    Args:
        parameters: What is to be added to an optimizer.
        recipe: The recipe, for messages.
    """
    for index, parameter in enumerate(parameters):
        name, stored = f"parameter {index} of the new group", format_name(parameter.dtype)
        if stored not in FORMAT_OF.values():
            raise _not_trained(name, stored)
        _check_value(name, parameter.detach(), stored, recipe)


def _not_trained(name: str, stored: str) -> FormatError:
    """Say that a parameter's format is none that is trained."""
    return FormatError(
        f"{name} is {stored}; a 16-bit recipe trains parameters of fp32, bf16 or fp16",
        hint="convert it first (model.float()), or keep it out of the prepared model",
    )


def _check_value(name: str, values: torch.Tensor, stored: str, recipe: str) -> None:
    """Refuse values that a format cannot hold."""
    if not values.numel():
        return
    largest = float(values.abs().amax())
    if not largest < float("inf"):
        raise FormatError(
            f"{name} holds {largest} before training has begun",
            hint="look at how it is initialised",
        )
    if stored in ("bf16", "fp16") and largest > largest_master(stored):
        raise FormatError(
            f"{name} holds {largest:.9g}; {stored} holds magnitudes up to "
            f"{largest_master(stored):.9g}",
            hint=f"keep its module in FP32: '{recipe}; {name.rpartition('.')[0] or '*'}: fp32'",
        )
