"""One SGD step: the definition.

What is true here: each line below is a chain of FP32 operations, each rounded once to nearest-even,
in exactly this order; nothing is fused. fl() rounds a float64 setting to FP32.

    g = fp32(grad) * grad_mult            and g = -g to maximize
    w = the master                        g = g + w * fl(weight_decay)           if weight_decay
    b = b * fl(momentum) + g              if momentum
    g = g + b * fl(momentum) if nesterov, else b
    w = w - g * fl(lr)

It is `torch.optim.SGD` without dampening, less its fused multiply-adds. Buffers start at zero,
which gives the same first step as torch's, which starts them at g.
"""

from __future__ import annotations

import torch
from torch import Tensor

from narrowgate.ops import _update
from narrowgate.ops._checks import float32

__all__ = ["sgd_step"]


def sgd_step(
    params: list[Tensor],
    remainders: list[Tensor],
    grads: list[Tensor],
    momentum_buffers: list[Tensor],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
    grad_mult: Tensor,
    skip: Tensor,
) -> Tensor:
    """Define `narrowgate.ops.sgd_step`."""
    if _update.on_host(skip) and skip.item() != 0:
        return torch.zeros(len(params), dtype=torch.int64)
    rate, keep, decay = float32(lr), float32(momentum), float32(weight_decay)

    def apply(i: int, block: _update.Block) -> None:
        w, g, x = block.weight, block.grad, block.temporary
        if weight_decay:
            g.add_(torch.mul(w, decay, out=x))
        for buffer in block.states:
            buffer.mul_(keep).add_(g)
            g = g.add_(torch.mul(buffer, keep, out=x)) if nesterov else buffer
        w.sub_(torch.mul(g, rate, out=x))

    return _update.walk(
        apply,
        params,
        remainders,
        grads,
        [momentum_buffers] if momentum else [],
        grad_mult=grad_mult,
        skip=skip,
        maximize=maximize,
    )
