"""The op `adamw_step`: AdamW and Adam over a list of parameters, split masters included.

What is true here: one call per optimizer group and step; parameters, remainders, moments and step
counts are changed in place, the gradients are not. A skipped step changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from narrowgate import formats
from narrowgate.ops import _checks, _library, _update
from narrowgate.ops.adamw_step import native, reference

__all__ = ["adamw_step", "samples"]

_NAME = "adamw_step"

# Up to half of the smallest FP32 value rounds to 0, the tie itself to even.
_VANISHES = formats.get("fp32").min_subnormal / 2


def _check(
    params: Sequence[Tensor],
    remainders: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    grad_mult: Tensor,
    skip: Tensor,
    meta: bool,
) -> None:
    _checks.same_length(_NAME, params=params, steps=steps)
    states = {"exp_avgs": exp_avgs, "exp_avg_sqs": exp_avg_sqs}
    _update.check_lists(_NAME, params, remainders, grads, states, meta=meta)
    for i, step in enumerate(steps):
        _checks.scalar(_NAME, f"steps[{i}]", step, params[0], "params[0]")
    _update.check_signals(_NAME, params, grad_mult, skip)
    _checks.interval(_NAME, "lr", lr)
    _checks.interval(_NAME, "beta1", beta1, below=1.0)
    _checks.interval(_NAME, "beta2", beta2, below=1.0)
    _checks.interval(_NAME, "weight_decay", weight_decay)
    _checks.interval(_NAME, "eps", eps)
    if eps <= _VANISHES:
        _checks.refuse(
            _NAME,
            "eps",
            f"{eps!r}, which is 0 in float32",
            f"eps > {_VANISHES!r}",
            "an element whose gradients were all 0 would be divided by 0; 1e-8 is usual",
        )


def _fake(
    params: list[Tensor],
    remainders: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
    *,
    decoupled: bool,
    maximize: bool,
    **settings: Any,
) -> Tensor:
    _check(params, remainders, grads, exp_avgs, exp_avg_sqs, steps, **settings, meta=True)
    return torch.empty(len(params), dtype=torch.int64, device=params[0].device)


_library.define(
    _NAME,
    "(Tensor(a!)[] params, Tensor(b!)[] remainders, Tensor[] grads, Tensor(c!)[] exp_avgs, "
    "Tensor(d!)[] exp_avg_sqs, Tensor(e!)[] steps, *, float lr, float beta1, float beta2, "
    "float eps, float weight_decay, bool decoupled, bool maximize, Tensor grad_mult, "
    "Tensor skip) -> Tensor",
    reference.adamw_step,
    _fake,
)
_library.override(_NAME, native.adamw_step, reference.adamw_step)


def adamw_step(
    params: Sequence[Tensor],
    remainders: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
    grad_mult: Tensor,
    skip: Tensor,
) -> Tensor:
    """Do one AdamW (`decoupled`) or Adam step, in place.

    Args:
        params: FP32 masters, or the 16-bit halves of split masters, all of one format.
        remainders: Beside halves, one each; empty beside FP32 masters.
        grads: Gradients as stored; formats may be mixed, any strides.
        exp_avgs: First moments; zeros at the start.
        exp_avg_sqs: Second moments; zeros at the start.
        steps: Steps applied so far, one count per parameter.
        lr: Learning rate.
        beta1: Decay of the first moments per step.
        beta2: Decay of the second moments per step.
        eps: Added to the root of the second moment.
        weight_decay: Share of the weight taken off per step, times lr; L2 if not `decoupled`.
        decoupled: Whether weights decay beside the gradient (AdamW) or through it (Adam).
        maximize: Whether to go up the gradient.
        grad_mult: Multiplies every gradient: 1 / loss scale, times the clip factor.
        skip: Nonzero leaves everything that would be changed exactly as it was.

    Returns:
        How many weights of each parameter saturated: split ones past `largest_master`, which are
        stored as that limit with their sign, and non-finite ones.

    Raises:
        OpError: Lists of unequal length; a wrong data type, shape, device or stride; lr, eps or
            weight_decay negative, infinite or NaN; an eps that is 0 in FP32; a beta outside [0, 1).

    Shapes:
        params any, dense; remainders int16, exp_avgs and exp_avg_sqs float32 of equal shape and
        strides; grads float32, bfloat16 or float16 of equal shape; steps, grad_mult and skip ()
        float32; all on one device -> (n,) int64.

    Units:
        steps in steps applied; FP32 master 16 bytes/param read and 12 written, split master with
        16-bit gradients 14 read and 12 written.

    Numerics:
        `reference` lists each FP32 operation; the result is defined to the bit on a CPU. (On
        other devices the bias corrections use that device's float64 power.) Nothing waits for the
        device.

    Example:
        >>> w, m, v, t = torch.ones(1), torch.zeros(1), torch.zeros(1), torch.tensor(0.0)
        >>> adamw_step([w], [], [torch.tensor([0.5])], [m], [v], [t], lr=0.1, beta1=0.9,
        ...     beta2=0.999, eps=1e-8, weight_decay=0.0, decoupled=True, maximize=False,
        ...     grad_mult=torch.tensor(1.0), skip=torch.tensor(0.0)), w, t
        (tensor([0]), tensor([0.9000]), tensor(1.))
    """
    lists = [list(given) for given in (params, remainders, grads, exp_avgs, exp_avg_sqs, steps)]
    settings: dict[str, Any] = {
        "lr": lr,
        "beta1": beta1,
        "beta2": beta2,
        "eps": eps,
        "weight_decay": weight_decay,
        "grad_mult": grad_mult,
        "skip": skip,
    }
    _check(*lists, **settings, meta=False)
    if not params:
        return torch.zeros(0, dtype=torch.int64, device=grad_mult.device)
    with torch.no_grad():
        counts: Tensor = torch.ops.narrowgate.adamw_step.default(
            *lists, decoupled=decoupled, maximize=maximize, **settings
        )
    return counts


def samples() -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Give arguments for opcheck, tests and benchmarks: every format, layout and setting."""
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for decoupled in (True, False):
        for params, remainders, grads in _update.samples():
            wide = [param.to(torch.float32) for param in params]
            exp_avgs, exp_avg_sqs = [w * 0.1 for w in wide], [w * w for w in wide]
            steps = [torch.tensor(float(i)) for i in range(len(params))]
            settings = {
                "lr": 1e-2,
                "beta1": 0.9,
                "beta2": 0.999,
                "eps": 1e-8,
                "weight_decay": 0.1,
                "decoupled": decoupled,
                "maximize": not decoupled,
                "grad_mult": torch.tensor(0.5),
                "skip": torch.tensor(0.0),
            }
            found.append(((params, remainders, grads, exp_avgs, exp_avg_sqs, steps), settings))
    return found
