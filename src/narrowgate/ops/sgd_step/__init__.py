"""The op `sgd_step`: SGD with and without momentum over a list of parameters, split or not.

What is true here: one call per optimizer group and step; parameters, remainders and momentum
buffers are changed in place, the gradients are not. A skipped step changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from narrowgate.ops import _checks, _library, _update
from narrowgate.ops.sgd_step import native, reference

__all__ = ["samples", "sgd_step"]

_NAME = "sgd_step"


def _check(
    params: Sequence[Tensor],
    remainders: Sequence[Tensor],
    grads: Sequence[Tensor],
    momentum_buffers: Sequence[Tensor],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
    grad_mult: Tensor,
    skip: Tensor,
    meta: bool,
) -> None:
    for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
        _checks.interval(_NAME, name, value)
    if not momentum and (nesterov or momentum_buffers):
        what = "nesterov" if nesterov else f"a list of {len(momentum_buffers)} momentum_buffers"
        _checks.refuse(
            _NAME,
            "momentum",
            f"{momentum!r} beside {what}",
            "momentum > 0, or nesterov=False and momentum_buffers=[]",
            "without momentum there is nothing to look ahead with and nothing to keep",
        )
    states = {"momentum_buffers": momentum_buffers} if momentum else {}
    _update.check_lists(_NAME, params, remainders, grads, states, meta=meta)
    _update.check_signals(_NAME, params, grad_mult, skip)


def _fake(
    params: list[Tensor],
    remainders: list[Tensor],
    grads: list[Tensor],
    momentum_buffers: list[Tensor],
    *,
    maximize: bool,
    **settings: Any,
) -> Tensor:
    _check(params, remainders, grads, momentum_buffers, **settings, meta=True)
    return torch.empty(len(params), dtype=torch.int64, device=params[0].device)


_library.define(
    _NAME,
    "(Tensor(a!)[] params, Tensor(b!)[] remainders, Tensor[] grads, "
    "Tensor(c!)[] momentum_buffers, *, float lr, float momentum, float weight_decay, "
    "bool nesterov, bool maximize, Tensor grad_mult, Tensor skip) -> Tensor",
    reference.sgd_step,
    _fake,
)
_library.override(_NAME, native.sgd_step, reference.sgd_step)


def sgd_step(
    params: Sequence[Tensor],
    remainders: Sequence[Tensor],
    grads: Sequence[Tensor],
    momentum_buffers: Sequence[Tensor],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
    grad_mult: Tensor,
    skip: Tensor,
) -> Tensor:
    """Do one SGD step, in place.

    Args:
        params: FP32 masters, or the 16-bit halves of split masters, all of one format.
        remainders: Beside halves, one each; empty beside FP32 masters.
        grads: Gradients as stored; formats may be mixed, any strides.
        momentum_buffers: Zeros at the start; an empty list if momentum is 0.
        lr: Learning rate.
        momentum: Share of the buffer kept per step.
        weight_decay: L2 factor.
        nesterov: Whether to look ahead by one more momentum step.
        maximize: Whether to go up the gradient.
        grad_mult: Multiplies every gradient: 1 / loss scale, times the clip factor.
        skip: Nonzero leaves everything that would be changed exactly as it was.

    Returns:
        How many weights of each parameter saturated: split ones past `largest_master`, which are
        stored as that limit with their sign, and non-finite ones.

    Raises:
        OpError: Lists of unequal length; a wrong data type, shape, device or stride; lr, momentum
            or weight_decay negative, infinite or NaN; nesterov or buffers without momentum.

    Shapes:
        params any, dense; remainders int16 and momentum_buffers float32 of equal shape and
        strides; grads float32, bfloat16 or float16 of equal shape; grad_mult and skip () float32;
        all on one device -> (n,) int64.

    Units:
        With momentum, FP32 master 12 bytes/param read and 8 written, split master with 16-bit
        gradients 10 read and 8 written.

    Numerics:
        `reference` lists each FP32 operation; the result is defined to the bit. Nothing waits for
        the device.

    Example:
        >>> w = torch.ones(1)
        >>> sgd_step([w], [], [torch.tensor([0.5])], [], lr=0.5, momentum=0.0, weight_decay=0.0,
        ...     nesterov=False, maximize=False, grad_mult=torch.tensor(1.0),
        ...     skip=torch.tensor(0.0)), w
        (tensor([0]), tensor([0.7500]))
    """
    lists = [list(given) for given in (params, remainders, grads, momentum_buffers)]
    settings: dict[str, Any] = {
        "lr": lr,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "nesterov": nesterov,
        "grad_mult": grad_mult,
        "skip": skip,
    }
    _check(*lists, **settings, meta=False)
    if not params:
        return torch.zeros(0, dtype=torch.int64, device=grad_mult.device)
    with torch.no_grad():
        counts: Tensor = torch.ops.narrowgate.sgd_step.default(
            *lists, maximize=maximize, **settings
        )
    return counts


def samples() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Give arguments for opcheck, tests and benchmarks: every format, layout and setting."""
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for momentum, nesterov in ((0.0, False), (0.5, False), (0.9, True)):
        for params, remainders, grads in _update.samples():
            buffers = [param.to(torch.float32) * 0.1 for param in params] if momentum else []
            settings = {
                "lr": 1e-2,
                "momentum": momentum,
                "weight_decay": 0.1,
                "nesterov": nesterov,
                "maximize": nesterov,
                "grad_mult": torch.tensor(0.5),
                "skip": torch.tensor(0.0),
            }
            found.append(((params, remainders, grads, buffers), settings))
    return found
