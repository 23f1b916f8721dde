"""What a prepared optimizer's state holds in a checkpoint, and how it comes back bit for bit.

torch's own ``load_state_dict`` casts every state to the parameter's format, which destroys FP32
moments and integer remainders of 16-bit parameters. Here each state keeps its format. Remainders
and checksums are bytes in the states; the loss scale and the counters are live in the first group,
the only place that distributed checkpoints carry besides the states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch.optim import Optimizer

from narrowgate.engine.masters import remainder_to_bytes
from narrowgate.engine.session import Session
from narrowgate.errors import CheckpointError

__all__ = [
    "check",
    "hidden",
    "load",
    "load_plain",
    "pack",
    "publish",
    "publish_states",
    "withdraw",
]

_KEY = "narrowgate"
_SCHEMA = 1
_REMAINDER = "master_lo"
_CHECKSUM = "master_check"

#: States which Adam, AdamW and SGD keep in the shape of the parameter.
_SHAPED = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")

_OTHER_RECIPE = (
    "prepare with the recipe of the checkpoint and load it; to go on in another, give model and "
    "optimizer back with ng.restore() and prepare them again"
)


def publish(inner: Optimizer, session: Session) -> None:
    """Put the live state of a prepare() call into an optimizer's first group.

    Args:
        inner: The user's optimizer.
        session: The call.
    """
    inner.param_groups[0][_KEY] = {
        "schema": _SCHEMA,
        "recipe": str(session.recipe),
        "optimizer": type(inner).__name__,
        "machine": session.scaler.state,
    }


def publish_states(inner: Optimizer, session: Session) -> None:
    """Show remainders and checksums in the live states, where distributed checkpoints look.

    They take the keys from the live states and the values from ``state_dict()``, and want a state
    for every parameter or for none. Before the first step there must be none: then they make the
    states exist by a step of their own.

    Args:
        inner: The user's optimizer.
        session: The call.
    """
    for group in inner.param_groups:
        for parameter in group["params"]:
            state = inner.state[parameter]
            if parameter not in session.masters:
                continue
            remainder = session.masters.remainders[parameter]
            shown = state.get(_REMAINDER)
            if shown is None or shown.data_ptr() != remainder.data_ptr():
                state[_REMAINDER] = remainder_to_bytes(remainder)
                state[_CHECKSUM] = torch.zeros(8, dtype=torch.uint8, device=remainder.device)


@contextmanager
def hidden(inner: Optimizer, group: dict[str, Any]) -> Iterator[None]:
    """Hide what `publish_states` shows, from an optimizer that asks whether a state is empty.

    Args:
        inner: The user's optimizer.
        group: The group that is about to step.
    """
    kept = {}
    for parameter in group["params"]:
        state = inner.state.get(parameter)
        if state is not None:
            kept[parameter] = {k: state.pop(k) for k in (_REMAINDER, _CHECKSUM) if k in state}
    try:
        yield
    finally:
        for parameter, shown in kept.items():
            inner.state[parameter].update(shown)


def withdraw(inner: Optimizer) -> None:
    """Take out what `publish` and `publish_states` put in.

    Args:
        inner: The user's optimizer.
    """
    inner.param_groups[0].pop(_KEY, None)
    for parameter, state in list(inner.state.items()):
        state.pop(_REMAINDER, None)
        state.pop(_CHECKSUM, None)
        if not state:
            del inner.state[parameter]


def pack(
    packed: dict[str, Any], parameters: Sequence[torch.Tensor], session: Session
) -> dict[str, Any]:
    """Add remainders and checksums to a packed state.

    Args:
        packed: What torch's ``state_dict`` gives.
        parameters: The optimizer's parameters in the order of its groups.
        session: The prepare() call.

    Returns:
        The packed state with both; remainders are views of the live ones.
    """
    states = {key: dict(value) for key, value in packed["state"].items()}
    numbers = (n for group in packed["param_groups"] for n in group["params"])
    for number, parameter in zip(numbers, parameters, strict=True):
        if parameter in session.masters:
            held = states.setdefault(number, {})
            held[_REMAINDER] = remainder_to_bytes(session.masters.remainders[parameter])
            held[_CHECKSUM] = session.masters.checksum_bytes(parameter)
        elif parameter.requires_grad:
            states.setdefault(number, {})
    return {**packed, "state": states}


def check(inner: Optimizer, state_dict: dict[str, Any], session: Session) -> None:
    """Refuse a state that is not wholly there.

    Args:
        inner: The user's optimizer.
        state_dict: What is to be loaded.
        session: The prepare() call.

    Raises:
        CheckpointError: It is of another recipe or optimizer, of a plain optimizer, or incomplete.
    """
    groups = inner.param_groups
    saved = state_dict.get("param_groups") if isinstance(state_dict, dict) else None
    if not saved or "state" not in state_dict:
        raise CheckpointError(
            "this is no optimizer state: it has no param_groups or no state",
            hint="pass what optimizer.state_dict() returned",
        )
    sizes, here = ([len(group["params"]) for group in some] for some in (saved, groups))
    if sizes != here:
        raise CheckpointError(
            f"the optimizer state has groups of {sizes} parameters; this optimizer has {here}",
            hint="build model and optimizer as they were when the state was saved",
        )
    told, recipe = saved[0].get(_KEY), str(session.recipe)
    if told is None:
        if session.recipe.is_passthrough:
            return
        raise CheckpointError(
            f"the optimizer state has no loss-scale state and no masters: a plain optimizer "
            f"saved it, and this one was prepared with {recipe!r}",
            hint="load it into the plain optimizer and model first, then call prepare()",
        )
    schema = told.get("schema") if isinstance(told, dict) else None
    if schema != _SCHEMA:
        raise CheckpointError(
            f"optimizer state of schema {schema}; this version knows {_SCHEMA}",
            hint="load it with the version of narrowgate that saved it",
        )
    if told["recipe"] != recipe:
        raise CheckpointError(
            f"the optimizer state is of the recipe {told['recipe']!r}; this optimizer was "
            f"prepared with {recipe!r}",
            hint=_OTHER_RECIPE,
        )
    if told["optimizer"] != type(inner).__name__:
        raise CheckpointError(
            f"the optimizer state is of {told['optimizer']}; this optimizer is "
            f"{type(inner).__name__}",
            hint="make the optimizer that the state was saved from",
        )
    machine = told.get("machine")
    shaped = isinstance(machine, torch.Tensor) and machine.shape == session.scaler.state.shape
    if not shaped or not torch.isfinite(machine).all() or not machine[0] > 0:
        raise CheckpointError(
            f"the loss-scale state of the optimizer state is damaged: {machine}",
            hint="load another checkpoint",
        )
    numbers = [n for group in saved for n in group["params"]]
    parameters = [p for group in groups for p in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        _check_shapes(state_dict["state"].get(number, {}), parameter, session)


def _check_shapes(held: dict[str, Any], parameter: torch.Tensor, session: Session) -> None:
    """Refuse the states of another parameter."""
    required: dict[str, tuple[int, ...]] = {}
    if parameter in session.masters:
        required = {_REMAINDER: (*parameter.shape, 2), _CHECKSUM: (8,)}
    for key in _SHAPED:
        if held.get(key) is not None:
            required[key] = tuple(parameter.shape)
    for key, shape in required.items():
        found = tuple(held[key].shape) if key in held else None
        if found != shape:
            raise CheckpointError(
                f"the optimizer state of {session.name_of(parameter)} has {key} of shape {found}; "
                f"it must be {shape}",
                hint="the state is incomplete or of another model",
            )


def load(inner: Optimizer, state_dict: dict[str, Any], session: Session) -> None:
    """Take groups, states, remainders and the loss scale from a checked state.

    The dictionaries and lists of the groups stay the same objects, since others may hold them.

    Args:
        inner: The user's optimizer.
        state_dict: A state that `check` let through.
        session: The prepare() call.
    """
    saved = state_dict["param_groups"]
    numbers = [n for group in saved for n in group["params"]]
    parameters = [p for group in inner.param_groups for p in group["params"]]
    inner.state.clear()
    for number, parameter in zip(numbers, parameters, strict=True):
        held = state_dict["state"].get(number, {})
        own = {k: v for k, v in held.items() if k not in (_REMAINDER, _CHECKSUM)}
        if own:
            inner.state[parameter] = _place(own, parameter.device)
        if parameter in session.masters:
            session.masters.load(parameter, held[_REMAINDER], held[_CHECKSUM])
    for old, new in zip(inner.param_groups, saved, strict=True):
        kept = ("params", _KEY) if "param_names" in new else ("params", _KEY, "param_names")
        old.update({k: deepcopy(v) for k, v in new.items() if k not in kept})
    session.scaler.state.copy_(saved[0][_KEY]["machine"])
    inner.__setstate__({})
    session.clear()
    publish(inner, session)
    publish_states(inner, session)


def load_plain(inner: Optimizer, state_dict: dict[str, Any]) -> None:
    """Load as torch does, keeping the dictionaries and lists that others may hold.

    Args:
        inner: The user's optimizer.
        state_dict: A plain optimizer's state.
    """
    groups, states = inner.param_groups, inner.state
    inner.load_state_dict(state_dict)
    new_groups, new_states = inner.param_groups, inner.state
    for old, new in zip(groups, new_groups, strict=True):
        old.update(new)
    states.clear()
    states.update(new_states)
    inner.param_groups, inner.state = groups, states


def _place(value: Any, device: torch.device) -> Any:
    """Copy a state to a device in its own format, through containers."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device=device, copy=True)
    if isinstance(value, dict):
        return {key: _place(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_place(item, device) for item in value)
    return deepcopy(value)
