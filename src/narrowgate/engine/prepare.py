"""prepare(): from a model and an optimizer to the same two in another precision, and back.

Everything is checked before anything is changed. Parameters keep their identity, so whatever holds
them (optimizers, schedulers, hooks) goes on holding them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeVar, overload

import torch
from torch import nn

from narrowgate.engine import lease, switches
from narrowgate.engine.buffers import BufferGuard
from narrowgate.engine.checks import (
    check_models,
    check_norm,
    check_optimizers,
    check_plan,
    check_shared,
    check_swaps,
    check_values,
    read_recipe,
)
from narrowgate.engine.cpu.native import HALVES
from narrowgate.engine.describe import FORMAT_OF, describe
from narrowgate.engine.optimizer import PreparedOptimizer
from narrowgate.engine.recording import Recording, recipe_of
from narrowgate.engine.session import Session
from narrowgate.engine.swap import is_covered, mark, swap, unswap
from narrowgate.engine.versions import warn_once
from narrowgate.errors import PrepareError
from narrowgate.plan import Plan, resolve

__all__ = ["full_precision_state_dict", "prepare", "restore", "session_of"]

Model = TypeVar("Model", bound=nn.Module)

_log = logging.getLogger("narrowgate")
_DTYPE = {name: dtype for dtype, name in FORMAT_OF.items()}


@overload
def prepare(
    model: Model,
    optimizer: torch.optim.Optimizer,
    recipe: str | Plan | None = None,
    *,
    clip_norm: float | None = None,
) -> tuple[Model, PreparedOptimizer]: ...
@overload
def prepare(
    model: Sequence[nn.Module],
    optimizer: torch.optim.Optimizer,
    recipe: str | Plan | None = None,
    *,
    clip_norm: float | None = None,
) -> tuple[list[nn.Module], PreparedOptimizer]: ...
@overload
def prepare(
    model: Model,
    optimizer: Sequence[torch.optim.Optimizer],
    recipe: str | Plan | None = None,
    *,
    clip_norm: float | None = None,
) -> tuple[Model, list[PreparedOptimizer]]: ...
@overload
def prepare(
    model: Sequence[nn.Module],
    optimizer: Sequence[torch.optim.Optimizer],
    recipe: str | Plan | None = None,
    *,
    clip_norm: float | None = None,
) -> tuple[list[nn.Module], list[PreparedOptimizer]]: ...
def prepare(
    model: Any,
    optimizer: Any,
    recipe: str | Plan | None = None,
    *,
    clip_norm: float | None = None,
) -> tuple[Any, Any]:
    """Put a model and its optimizer into a recipe's precision.

    Args:
        model: A model, or a list of models that are trained together.
        optimizer: Its optimizer, or a list of optimizers. All that is given to one call shares one
            loss scale and one verdict: a step is applied everywhere or nowhere.
        recipe: A recipe such as ``"bf16"`` or ``"fp16(residual=fp32); head: fp32"``; a `Plan`, or
            ``"@plan.json"`` for one in a file. None means ``bf16``. In a pilot the pilot's recipe
            is taken instead, and this is said.
        clip_norm: Clip the true gradients of each optimizer to this norm at every step.

    Returns:
        The model, the same object, and the prepared optimizer; lists where lists were given.

    Raises:
        RecipeError: A recipe that means nothing; the nearest is named.
        PrepareError: A model that is prepared already, compiled, or wrapped in the wrong order; an
            optimizer with parameters of another model; parameters with gradients; sharded ones.
        FormatError: Parameters in FP64 or complex formats, or with values that the recipe's format
            cannot hold.
        RunError: In a pilot: its run folder cannot be written, or another process does.

    Example:
        >>> import torch, narrowgate as ng
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> model, optimizer = ng.prepare(model, optimizer, "bf16")
        >>> optimizer.backward(model(torch.ones(2, 4)).pow(2).mean())
        >>> bool(optimizer.step())
        True
    """
    warn_once()
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    inners = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
    wish, plan = read_recipe(recipe_of(recipe))
    check_models(models)
    check_optimizers(inners, models, wish)
    held = [p for inner in inners for group in inner.param_groups for p in group["params"]]
    infos = [describe(m, held) for m in models]
    if plan is not None and len(models) != 1:
        raise PrepareError(
            f"a plan is for one model; {len(models)} were given",
            hint="give a recipe, or prepare the models in calls of their own",
        )
    plans = (plan,) if plan is not None else tuple(resolve(info, wish) for info in infos)
    parameters = [_named(m) for m in models]
    check_shared(parameters, plans)
    for one, table, resolved in zip(models, parameters, plans, strict=True):
        check_plan(table, resolved)
        if not wish.is_passthrough:
            check_swaps(one, resolved)
            check_values(table, resolved, held)
    check_norm("clip_norm", clip_norm)
    device = held[0].device if held else torch.device("cpu")
    session = Session(
        recipe=wish,
        plans=plans,
        models=models,
        names=_names(parameters),
        device=device,
    )
    for one in models:
        if type(one).forward is nn.Module.forward and not wish.is_passthrough:
            _log.warning(
                "narrowgate: %s has no forward of its own, which would enter autocast: call its "
                "methods and parts inside of ng.autocast(model)",
                type(one).__name__,
            )
    session.recording = Recording(session)
    _convert(session, parameters)
    for inner in inners:
        if not wish.is_passthrough:
            _widen_states(inner)
        session.optimizers.append(PreparedOptimizer(inner, session, clip_norm))
    session.masters.refresh(list(session.masters.remainders))
    session.formats = {parameter: parameter.dtype for parameter in session.order}
    session.switches = switches.apply(wish, device.type)
    lease.take(session)
    session.recording.begin(session)
    shape = session.optimizers
    return (
        models if isinstance(model, (list, tuple)) else model,
        shape if isinstance(optimizer, (list, tuple)) else shape[0],
    )


def _named(model: nn.Module) -> dict[str, nn.Parameter]:
    """List a model's parameters by their first name."""
    return dict(model.named_parameters())


def _names(parameters: Sequence[dict[str, nn.Parameter]]) -> dict[torch.Tensor, str]:
    """Name every parameter; several models are told apart by their number."""
    names: dict[torch.Tensor, str] = {}
    for number, table in enumerate(parameters):
        for fqn, parameter in table.items():
            names.setdefault(parameter, fqn if len(parameters) == 1 else f"model {number}: {fqn}")
    return names


# --- changes --------------------------------------------------------------------------------


def _convert(session: Session, parameters: Sequence[dict[str, nn.Parameter]]) -> None:
    """Convert parameters and swap classes as the plans say."""
    if session.recipe.is_passthrough:
        for model, plan in zip(session.models, session.plans, strict=True):
            mark(model, plan.device)
        return
    for model, table, plan in zip(session.models, parameters, session.plans, strict=True):
        done: set[torch.Tensor] = set(session.masters.remainders)
        for row in plan.params:
            parameter = table[row.fqn]
            if row.master == "foreign" or parameter in done:
                continue
            dtype = _DTYPE[row.format]
            if row.master == "split":
                session.masters.narrow(parameter, dtype)
            elif parameter.dtype != dtype:
                parameter.data = parameter.detach().to(dtype)
        _widen_norm_buffers(model)
        guard = BufferGuard(model)
        session.guards.append(guard)
        for change in plan.modules:
            swap(
                model.get_submodule(change.fqn),
                change.treatment,
                device=plan.device,
                compute=_region_of(change.fqn, plan),
                guard=None if change.fqn else guard,
            )


def _region_of(fqn: str, plan: Plan) -> torch.dtype | None:
    """Give the dtype of the region that a module is in; None if that is FP32."""
    regions = {row.fqn: row.compute for row in plan.modules if row.treatment == "region"}
    while fqn not in regions:
        fqn = fqn.rpartition(".")[0]
    return None if regions[fqn] == "fp32" else _DTYPE[regions[fqn]]


def _widen_norm_buffers(model: nn.Module) -> None:
    """Keep the statistics of norms in FP32, also where the user cast the whole model before."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.dtype in HALVES:
                    setattr(module, name, buffer.float())


def _widen_states(inner: torch.optim.Optimizer) -> None:
    """Keep states in FP32 which an optimizer made on 16-bit parameters."""
    for state in inner.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.dtype in HALVES:
                state[key] = value.float()


# --- and back -------------------------------------------------------------------------------


def session_of(optimizer: Any) -> Session:
    """Give the session behind a prepared optimizer.

    Args:
        optimizer: What prepare() returned, or a list of it.

    Returns:
        The session.

    Raises:
        PrepareError: It is no prepared optimizer.
    """
    first = optimizer[0] if isinstance(optimizer, (list, tuple)) and optimizer else optimizer
    if not isinstance(first, PreparedOptimizer):
        raise PrepareError(
            f"this takes the optimizer that prepare() returned; got {type(first).__name__}",
            hint="model, optimizer = ng.prepare(model, optimizer, 'bf16')",
        )
    return first._session


def restore(model: Any, optimizer: Any) -> tuple[Any, Any]:
    """Give back a plain FP32 model and a plain optimizer.

    Masters become the parameters; states stay; gradients are dropped. Frozen weights that went to
    16 bits come back rounded: they had no master. Process-wide switches go back to what they were,
    and the CPU kernels go with the last prepared model.

    Args:
        model: What prepare() returned: a model or a list.
        optimizer: What prepare() returned: an optimizer or a list.

    Returns:
        The models and the optimizers that were passed to prepare(), in the same shape.

    Raises:
        PrepareError: It is not what prepare() returned.
        StepError: The model was converted, or its parameters replaced, since prepare().
    """
    session = session_of(optimizer)
    session.require_live()
    given = list(model) if isinstance(model, (list, tuple)) else [model]
    if [id(m) for m in given] != [id(m) for m in session.models]:
        raise PrepareError(
            "the models are not those which were prepared together with this optimizer",
            hint="pass model and optimizer as prepare() returned them",
        )
    for one in session.models:
        for fqn, module in one.named_modules():
            if is_covered(module):
                raise PrepareError(
                    f"{fqn or 'the model'} was parametrized after prepare()",
                    hint="remove the parametrization first, or parametrize before prepare()",
                )
    session.check_models()
    session.masters.verify(session.masters.remainders)
    for parameter in session.order if not session.recipe.is_passthrough else ():
        parameter.grad = None  # it may be scaled, or of the half's format
        if parameter.dtype in HALVES:
            parameter.data = session.masters.master(parameter)
    for restored in session.models:
        for module in restored.modules():
            unswap(module)
    inners = []
    for prepared in session.optimizers:
        inners.append(prepared.release())
    switches.put_back(session.switches)
    session.recording.end(session)
    session.restored = True
    lease.give_back(session)
    return (
        session.models if isinstance(model, (list, tuple)) else model,
        inners if isinstance(optimizer, (list, tuple)) else inners[0],
    )


def full_precision_state_dict(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """Give a model's state with its FP32 masters in the place of the halves.

    Args:
        model: A prepared model.
        optimizer: Its prepared optimizer, or the list of them.

    Returns:
        What ``model.state_dict()`` of the same model in FP32 would be; tied weights stay tied.
        Frozen weights that went to 16 bits are rounded: they have no master. Tensors that are not
        joined are the model's own.

    Raises:
        PrepareError: The model does not belong to the optimizer.
        CheckpointError: Halves and remainders that do not belong together.
        StepError: The model was converted, or its parameters replaced, since prepare().
    """
    session = session_of(optimizer)
    if not any(model is m for m in session.models):
        raise PrepareError(
            "this model was not prepared together with this optimizer",
            hint="pass model and optimizer as prepare() returned them",
        )
    session.check_models()
    session.masters.verify(session.masters.remainders)
    state: dict[str, Any] = model.state_dict()
    joined: dict[torch.Tensor, torch.Tensor] = {}
    for fqn, parameter in model.named_parameters(remove_duplicate=False):
        if fqn in state and parameter.dtype in HALVES and not session.recipe.is_passthrough:
            if parameter not in joined:
                joined[parameter] = session.masters.master(parameter)
            state[fqn] = joined[parameter]
    return state
