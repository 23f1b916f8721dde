"""Join halves and remainders on a GPU: `_triton.bits.join`, block by block, as split_master."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from narrowgate.ops import _native
from narrowgate.ops._blocks import compact, in_layout_of
from narrowgate.ops._triton import bits, tables

__all__ = ["BLOCK", "join_kernel", "join_master"]

BLOCK = 1024
"""Elements per program: 8 per thread, so that 16-bit codes fill one wide load."""


@triton.jit
def _join(
    half, remainder, master, left, FORMAT: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr
):
    offsets = tl.arange(0, BLOCK)
    code = bits.load(half, offsets, left, WHOLE)
    rest = bits.load(remainder, offsets, left, WHOLE)
    bits.store(master, offsets, left, bits.join(code, rest, FORMAT), WHOLE)


@bits.launched
def join_kernel(
    half,
    remainder,
    master,
    count: tl.int64,
    FORMAT: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Join one block."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    left = tl.minimum(count - start, BLOCK).to(tl.int32)
    half, remainder, master = half + start, remainder + start, master + start
    if ALIGNED:
        half, remainder = tl.multiple_of(half, 16), tl.multiple_of(remainder, 16)
        master = tl.multiple_of(master, 16)
    if ALIGNED and left == BLOCK:
        _join(half, remainder, master, left, FORMAT, BLOCK, True)
    else:
        _join(half, remainder, master, left, FORMAT, BLOCK, False)


def join_master(half: Tensor, remainder: Tensor) -> Tensor:
    """Serve `narrowgate.ops.join_master` on a GPU."""
    master = torch.empty_like(half, dtype=torch.float32)
    dense, low = compact(half), in_layout_of(remainder, master)
    blocks = -(-dense.numel() // BLOCK)
    if blocks:
        with tables.on(dense.device):
            join_kernel[(blocks,)](
                dense.view(torch.int16),
                low,
                master,
                dense.numel(),
                FORMAT=_native.FORMAT[half.dtype],
                ALIGNED=tables.is_aligned(dense, low, master),
                BLOCK=BLOCK,
                **tables.OPTIONS,
            )
    return master
