"""Tensors as flat memory, in blocks that stay in a core's cache.

What is true here: a chain of n elementwise torch ops over a large tensor goes to memory n times;
over a block of `BLOCK` elements it goes there once. The operands between are `rooms`, allocated
once per call: a fresh one per operation would be paged in anew each time. Blocks run over memory
order, so tensors that are walked together must have the same strides: `in_layout_of` copies the
one that has not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from narrowgate.ops._checks import is_dense, same_layout

__all__ = ["BLOCK", "blocks", "compact", "flat", "in_layout_of", "rooms"]

BLOCK = 1 << 18
"""Elements per block. An FP32 operand is 1 MiB, so a handful of them stay in a shared third-level
cache. Blocks of 2^16, which would fit the second level, are no faster, and cost four times as many
parallel regions: on a machine that is busy with other things each region waits for a thread."""


def rooms(number: int, tensors: Sequence[Tensor]) -> Tensor:
    """Allocate room for blocks of 32-bit operands.

    Args:
        number: How many operands.
        tensors: The tensors to be walked, at least one; their longest block must fit.

    Returns:
        (number, length of a block) int32, on the device of the tensors.
    """
    longest = max(value.numel() for value in tensors)
    return torch.empty(number, min(BLOCK, longest), dtype=torch.int32, device=tensors[0].device)


def flat(value: Tensor) -> Tensor:
    """View a dense tensor as one dimension, in memory order."""
    return value.as_strided((value.numel(),), (1,))


def blocks(count: int) -> Iterator[slice]:
    """Cut `count` elements into slices of at most `BLOCK`."""
    return (slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK))


def compact(value: Tensor) -> Tensor:
    """Give the tensor itself if dense, else a dense copy."""
    return value if is_dense(value) else torch.empty_like(value).copy_(value)


def in_layout_of(value: Tensor, like: Tensor) -> Tensor:
    """Give the tensor itself if its memory order is that of dense `like`, else such a copy."""
    if same_layout(value, like):
        return value
    return torch.empty_like(like, dtype=value.dtype).copy_(value)
