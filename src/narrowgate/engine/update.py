"""The two ways in which an optimizer's update reaches split masters.

AdamW, Adam and SGD run as one op per group and format: gradients are read in their own format,
unscaled and clipped in FP32 registers, and a step is skipped by a device flag, without a read by
the host. Any other optimizer gets its masters materialised in FP32, one group at a time, takes its
own step on them, and they are split again; whether to step at all must then be read by the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from narrowgate.engine.masters import Masters
from narrowgate.formats import get
from narrowgate.ops import adamw_step, is_dense, sgd_step

__all__ = ["Gradient", "has_own_op", "materialised_step", "update"]

#: FP32 rounds this and whatever is smaller to 0: half the smallest number, and the tie goes to 0.
_VANISHES = get("fp32").min_subnormal / 2

#: Gives a parameter's gradient as the update shall read it, or None if it has none.
Gradient = Callable[[torch.Tensor], "torch.Tensor | None"]


def has_own_op(inner: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    """Say whether our op makes the very update that the optimizer would make with this group.

    Args:
        inner: The user's optimizer.
        group: One of its groups, as it is now.

    Returns:
        False for subclasses, variants that the ops do not know, learning rates held in tensors, and
        an eps that vanishes in FP32.
    """
    if any(isinstance(group[key], torch.Tensor) for key in ("lr", "momentum") if key in group):
        return False
    if group.get("differentiable"):
        return False
    if type(inner) in (torch.optim.AdamW, torch.optim.Adam):
        tensors = any(isinstance(beta, torch.Tensor) for beta in group["betas"])
        return not group["amsgrad"] and not tensors and group["eps"] > _VANISHES
    return type(inner) is torch.optim.SGD and group["dampening"] == 0


def update(
    inner: torch.optim.Optimizer,
    group: dict[str, Any],
    masters: Masters,
    gradient: Gradient,
    mult: torch.Tensor,
    skip: torch.Tensor,
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Update one group with our op.

    Args:
        inner: The user's optimizer, whose ``state`` is read and written.
        group: The group.
        masters: The remainders.
        gradient: Gives each parameter's gradient.
        mult: 0-d FP32 tensor by which gradients are multiplied: 1 / loss scale, times the clip
            factor.
        skip: 0-d FP32 tensor; nonzero leaves everything as it is.

    Returns:
        The parameters that have a gradient, and for each the number of elements which its format
        could not hold, as an int64 tensor; None if there are none.
    """
    by_format: dict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
    for parameter in group["params"]:
        if gradient(parameter) is not None:
            by_format[parameter.dtype].append(parameter)
    touched: list[torch.Tensor] = []
    saturated = []
    for dtype, parameters in by_format.items():
        if dtype == torch.float32:
            remainders: list[torch.Tensor] = []
        else:  # without a master, the remainder of each step is dropped
            remainders = [
                masters.laid_out(p) if p in masters else torch.zeros_like(p, dtype=torch.int16)
                for p in parameters
            ]
        gradients = [g for p in parameters if (g := gradient(p)) is not None]
        # a parameter with gaps in its memory is updated as a dense copy, and written back
        weights = [p.detach() if is_dense(p) else p.detach().contiguous() for p in parameters]
        saturated.append(_run(inner, group, parameters, weights, remainders, gradients, mult, skip))
        for parameter, weight in zip(parameters, weights, strict=True):
            if weight.data_ptr() != parameter.data_ptr():
                parameter.detach().copy_(weight)
        touched += parameters
    return touched, torch.cat(saturated) if saturated else None


def _run(
    inner: torch.optim.Optimizer,
    group: dict[str, Any],
    parameters: list[torch.Tensor],
    weights: list[torch.Tensor],
    remainders: list[torch.Tensor],
    gradients: list[torch.Tensor],
    mult: torch.Tensor,
    skip: torch.Tensor,
) -> torch.Tensor:
    """Call the op for parameters of one format."""
    if isinstance(inner, torch.optim.SGD):
        buffers = []
        if group["momentum"] != 0:
            buffers = [
                _state(inner, p, w, "momentum_buffer")
                for p, w in zip(parameters, weights, strict=True)
            ]
        return sgd_step(
            weights,
            remainders,
            gradients,
            buffers,
            lr=group["lr"],
            momentum=group["momentum"],
            weight_decay=group["weight_decay"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
            grad_mult=mult,
            skip=skip,
        )
    beta1, beta2 = group["betas"]
    pairs = list(zip(parameters, weights, strict=True))
    return adamw_step(
        weights,
        remainders,
        gradients,
        [_state(inner, p, w, "exp_avg") for p, w in pairs],
        [_state(inner, p, w, "exp_avg_sq") for p, w in pairs],
        [_step_count(inner, p) for p in parameters],
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        decoupled=type(inner) is torch.optim.AdamW or group.get("decoupled_weight_decay", False),
        maximize=group["maximize"],
        grad_mult=mult,
        skip=skip,
    )


def _state(
    inner: torch.optim.Optimizer, parameter: torch.Tensor, weight: torch.Tensor, name: str
) -> torch.Tensor:
    """Give an FP32 state laid out like its weight, made at the first step as torch does."""
    state = inner.state[parameter]
    if state.get(name) is None:
        state[name] = torch.zeros_like(weight, dtype=torch.float32)
    elif state[name].stride() != weight.stride():  # the model went to another memory format
        state[name] = torch.empty_like(weight, dtype=torch.float32).copy_(state[name])
    held: torch.Tensor = state[name]
    return held


def _step_count(inner: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.Tensor:
    """Give a parameter's own step count, on its device so that a skip needs no read."""
    state = inner.state[parameter]
    step = state.get("step", 0.0)
    if not isinstance(step, torch.Tensor) or step.device != parameter.device:
        state["step"] = torch.tensor(float(step), dtype=torch.float32, device=parameter.device)
    held: torch.Tensor = state["step"]
    return held


def materialised_step(
    inner: torch.optim.Optimizer,
    group: dict[str, Any],
    masters: Masters,
    gradient: Gradient,
    mult: torch.Tensor,
    take_step: Callable[[], Any],
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Let any optimizer take its own step on the FP32 masters of one group.

    Args:
        inner: The user's optimizer.
        group: The group.
        masters: The remainders.
        gradient: Gives each parameter's gradient.
        mult: 0-d FP32 tensor by which gradients are multiplied.
        take_step: The optimizer's step.

    Returns:
        The parameters that have a gradient, and for each the number of elements which its format
        could not hold; None if there are none.
    """
    touched = [p for p in group["params"] if gradient(p) is not None]
    with _materialised(touched, masters, gradient, mult) as saturated, _only(inner, group):
        take_step()
    return touched, torch.stack(saturated) if saturated else None


@contextmanager
def _only(inner: torch.optim.Optimizer, group: dict[str, Any]) -> Iterator[None]:
    """Show an optimizer one group, so that only that group's masters must live at once."""
    groups = inner.param_groups
    inner.param_groups = [group]
    try:
        yield
    finally:
        inner.param_groups = groups


@contextmanager
def _materialised(
    parameters: list[torch.Tensor], masters: Masters, gradient: Gradient, mult: torch.Tensor
) -> Iterator[list[torch.Tensor]]:
    """Put masters and true gradients in the place of halves and scaled gradients.

    What is given fills at the end: the number of elements of each parameter that its format could
    not hold.
    """
    kept = [(p, p.data, p.grad) for p in parameters]
    saturated: list[torch.Tensor] = []
    try:
        for parameter in parameters:
            true = gradient(parameter)
            assert true is not None
            # a product with exactly 1 is exact, so an unscaled, unclipped gradient keeps its bits
            wide = true.float() * mult
            master = None if parameter.dtype == torch.float32 else masters.master(parameter)
            parameter.grad = None
            if master is not None:
                parameter.data = master
            parameter.grad = wide
        yield saturated
    finally:
        for parameter, stored, grad in kept:
            parameter.grad = None
            if stored.dtype == torch.float32:
                saturated.append((~torch.isfinite(stored)).sum())
            else:
                master = parameter.data
                parameter.data = stored
                saturated.append(masters.store(parameter, master))
            parameter.grad = grad
