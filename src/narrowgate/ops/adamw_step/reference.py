"""One AdamW or Adam step: the definition.

What is true here: each line below is a chain of FP32 operations, each rounded once to nearest-even,
in exactly this order; nothing is fused. fl() rounds a float64 setting to FP32; t is the step count.

    t = t + 1                          bc1 = 1 - beta1^t, bc2 = 1 - beta2^t         in float64
    g = fp32(grad) * grad_mult         and g = -g to maximize
    w = the master                     g = g + w * fl(weight_decay)                 if not decoupled
    m = m * fl(beta1) + g * fl(1 - beta1)
    v = v * fl(beta2) + (g * g) * fl(1 - beta2)
    denom = sqrt(v) / fl(sqrt(bc2)) + fl(eps)
    w = w * fl(1 - lr * weight_decay)  if decoupled
    w = w - (m / denom) * fl(lr / bc1)

It is the arithmetic of Kingma, Ba: Adam (2015), and of Loshchilov, Hutter: Decoupled Weight Decay
(2019), with the order that `torch.optim` uses, less its fused multiply-adds.

torch's FP32 square root on a CPU comes from a vector library that is off by one unit in the last
place for one argument in five. So the root is taken in float64 and rounded: the root of a 24-bit
number lies at least 2^-50 (relative) from the midpoint of two FP32 values, unless it is one of
them, which it cannot be, and a float64 root is within 2^-52; so one rounding gives the right one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from narrowgate.ops import _update
from narrowgate.ops._checks import float32

__all__ = ["Correction", "adamw_step", "correction"]


class Correction(NamedTuple):
    """What depends on a parameter's step count, as numbers.

    Args:
        root: fl(sqrt(bc2)).
        size: fl(lr / bc1).
    """

    root: float
    size: float


def correction(t: float, lr: float, beta1: float, beta2: float) -> Correction:
    """Compute the bias corrections of step t."""
    return Correction(root=float32(math.sqrt(1.0 - beta2**t)), size=float32(lr / (1.0 - beta1**t)))


def _of_step(
    step: Tensor, lr: float, beta1: float, beta2: float
) -> Correction | tuple[Tensor, Tensor]:
    """Compute the corrections of the step that `step` counts: numbers on the CPU only."""
    if _update.on_host(step):
        return correction(step.item(), lr, beta1, beta2)
    wide = step.to(torch.float64)
    bc1, bc2 = 1.0 - beta1**wide, 1.0 - beta2**wide
    return bc2.sqrt().to(torch.float32), (lr / bc1).to(torch.float32)


def adamw_step(
    params: list[Tensor],
    remainders: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
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
    """Define `narrowgate.ops.adamw_step`."""
    if _update.on_host(skip) and skip.item() != 0:
        return torch.zeros(len(params), dtype=torch.int64)
    advanced = [step + 1 for step in steps]
    corrections = [_of_step(step, lr, beta1, beta2) for step in advanced]
    decay = float32(1.0 - lr * weight_decay) if decoupled else float32(weight_decay)
    keep_m, take_m = float32(beta1), float32(1.0 - beta1)
    keep_v, take_v = float32(beta2), float32(1.0 - beta2)
    epsilon = float32(eps)

    def apply(i: int, block: _update.Block) -> None:
        root, size = corrections[i]
        w, g, (m, v), x = block.weight, block.grad, block.states, block.temporary
        if weight_decay and not decoupled:
            g.add_(torch.mul(w, decay, out=x))
        m.mul_(keep_m).add_(torch.mul(g, take_m, out=x))
        v.mul_(keep_v).add_(g.mul_(g).mul_(take_v))
        x.copy_(block.wide.copy_(v).sqrt_())
        x.div_(root).add_(epsilon)
        if weight_decay and decoupled:
            w.mul_(decay)
        w.sub_(torch.div(m, x, out=x).mul_(size))

    counts = _update.walk(
        apply,
        params,
        remainders,
        grads,
        [exp_avgs, exp_avg_sqs],
        grad_mult=grad_mult,
        skip=skip,
        maximize=maximize,
    )
    for old, new in zip(steps, advanced, strict=True):
        old.copy_(new if _update.on_host(skip) else torch.where(skip != 0, old, new))
    return counts
