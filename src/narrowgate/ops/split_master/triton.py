"""Split FP32 masters on a GPU: `_triton.bits.split`, block by block.

What is true here: one launch, 8 elements per thread. Blocks whose memory is aligned are read and
written 16 bytes at a time, others and the last one element by element.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from narrowgate.ops import _native
from narrowgate.ops._blocks import compact
from narrowgate.ops._limits import HALF_OF
from narrowgate.ops._triton import bits, tables

__all__ = ["BLOCK", "split_kernel", "split_master"]

BLOCK = 1024
"""Elements per program: 8 per thread, so that 16-bit codes fill one wide store."""


@triton.jit
def _split(
    master, half, remainder, left, FORMAT: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr
):
    offsets = tl.arange(0, BLOCK)
    code, rest = bits.split(bits.load(master, offsets, left, WHOLE), FORMAT)
    bits.store(half, offsets, left, code, WHOLE)
    bits.store(remainder, offsets, left, rest, WHOLE)


@bits.launched
def split_kernel(
    master,
    half,
    remainder,
    count: tl.int64,
    FORMAT: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Split one block."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    left = tl.minimum(count - start, BLOCK).to(tl.int32)
    master, half, remainder = master + start, half + start, remainder + start
    if ALIGNED:
        master, half = tl.multiple_of(master, 16), tl.multiple_of(half, 16)
        remainder = tl.multiple_of(remainder, 16)
    if ALIGNED and left == BLOCK:
        _split(master, half, remainder, left, FORMAT, BLOCK, True)
    else:
        _split(master, half, remainder, left, FORMAT, BLOCK, False)


def split_master(master: Tensor, format: str) -> tuple[Tensor, Tensor]:  # noqa: A002
    """Serve `narrowgate.ops.split_master` on a GPU."""
    half = torch.empty_like(master, dtype=HALF_OF[format])
    remainder = torch.empty_like(half, dtype=torch.int16)
    dense = compact(master)
    blocks = -(-dense.numel() // BLOCK)
    if blocks:
        with tables.on(dense.device):
            split_kernel[(blocks,)](
                dense,
                half.view(torch.int16),
                remainder,
                dense.numel(),
                FORMAT=_native.FORMAT[half.dtype],
                ALIGNED=tables.is_aligned(dense, half, remainder),
                BLOCK=BLOCK,
                **tables.OPTIONS,
            )
    return half, remainder
