"""Sum of squares, largest magnitude and verdict of each gradient: the definition.

What is true here: the stored values are judged, before any unscaling or conversion. A square of an
fp32, bf16 or fp16 value has at most 48 significant bits and lies between 2^-298 and 2^256, so it
is exact in float64 and never overflows. The sum of n squares goes through trees of 256 branches a
level, one over each block and one over the blocks; so each square passes at most
d = 255 * ceil(log256 n) additions, in whatever order torch adds within a level. All terms are
non-negative: the sum is within (1 + 2^-53)^d - 1 of exact, the norm within half of that. For
n <= 2^32: d <= 1020, and the norm is within 5.7e-14.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from narrowgate.ops._blocks import BLOCK, blocks, compact, flat

__all__ = ["grad_stats"]

_BRANCHES = 256


def _tree_sum(values: Tensor) -> Tensor:
    """Sum float64 values of one dimension, `_BRANCHES` at a time."""
    while values.numel() > _BRANCHES:
        if missing := -values.numel() % _BRANCHES:
            values = functional.pad(values, (0, missing))
        values = values.view(-1, _BRANCHES).sum(1)
    return values.sum()


def _stats(grad: Tensor, scratch: Tensor) -> tuple[Tensor, Tensor]:
    """Give the sum of squares and the largest magnitude of one gradient, both float64."""
    values = flat(compact(grad))
    if not values.numel():
        return scratch.new_zeros(()), scratch.new_zeros(())
    squares, lowest, highest = [], [], []
    for block in blocks(values.numel()):
        low, high = torch.aminmax(values[block])
        lowest.append(low)
        highest.append(high)
        wide = scratch[: block.stop - block.start].copy_(values[block])
        squares.append(_tree_sum(wide.mul_(wide)))
    # Both ends of aminmax are NaN if any element is, and `maximum` hands NaN on.
    largest = torch.maximum(torch.stack(highest).amax(), -torch.stack(lowest).amin())
    return _tree_sum(torch.stack(squares)), largest.to(torch.float64)


def grad_stats(grads: list[Tensor]) -> Tensor:
    """Define `narrowgate.ops.grad_stats`."""
    size = min(BLOCK, max(grad.numel() for grad in grads))
    scratch = torch.empty(size, dtype=torch.float64, device=grads[0].device)
    pairs = [_stats(grad, scratch) for grad in grads]
    sums = torch.stack([pair[0] for pair in pairs])
    # abs: the largest magnitude of zeros is +0, also if all of them were negative.
    largest = torch.stack([pair[1] for pair in pairs]).abs_()
    bad = torch.isfinite(largest).logical_not_().to(torch.float64)
    return torch.stack([sums, largest, bad], dim=1)
