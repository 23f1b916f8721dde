"""Statistics of gradients on a GPU: one launch over the elements, then one per level of the tree.

What is true here: the tree is that of the definition, so the sums have its bits. A warp folds one
chunk of `BRANCHES` squares; its tile is laid out so that the first levels add registers of one
thread and the rest exchange between the threads of that warp. The largest magnitude is found on
bits as integers, in FP64's format, which puts Inf above all finite values and NaN above Inf; an
atomic maximum of integers does not depend on its order.

Squares and sums are rounded separately (`tables.OPTIONS`): a fused one would be another number.
"""

from __future__ import annotations

import itertools

import torch
import triton
import triton.language as tl
from torch import Tensor

from narrowgate.ops import _native
from narrowgate.ops._blocks import compact
from narrowgate.ops._triton import bits, tables
from narrowgate.ops.grad_stats.reference import BRANCHES

__all__ = ["CHUNKS", "chunks_kernel", "grad_stats", "level_kernel"]

CHUNKS = 4
"""Chunks per program, one for each warp."""

_DTYPE = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.int16,  # codes
    torch.float16: tl.float16,
    torch.float64: tl.float64,
}
_FP32_MAGNITUDE = tl.constexpr((1 << 31) - 1)
_FP64_MAGNITUDE = tl.constexpr((1 << 63) - 1)
_FP64_INF = tl.constexpr(0x7FF << 52)


@triton.jit
def _fold(x):
    """Fold (parts of a chunk, chunks, elements of a part) to (chunks,): upper halves on lower."""
    for _ in tl.static_range(10):  # 1,024 values
        if x.shape[0] > 1:
            x = tl.sum(tl.reshape(x, [2, x.shape[0] // 2, x.shape[1], x.shape[2]]), axis=0)
        else:
            x = tl.reshape(x, [1, x.shape[1], 2, x.shape[2] // 2])
            x = tl.sum(x, axis=2)
    return tl.reshape(x, [x.shape[1]])


@triton.jit
def _offsets(PARTS: tl.constexpr, CHUNKS: tl.constexpr, COLUMNS: tl.constexpr):
    """Number the elements of a tile: (parts, chunks, elements of a part)."""
    part = tl.arange(0, PARTS)[:, None, None] * COLUMNS
    chunk = tl.arange(0, CHUNKS)[None, :, None] * (PARTS * COLUMNS)
    return part + chunk + tl.arange(0, COLUMNS)[None, None, :]


@triton.jit
def _chunk(
    grads,
    left,
    FORMAT: tl.constexpr,
    WHOLE: tl.constexpr,
    CHUNKS: tl.constexpr,
    BRANCHES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Give the sum of squares of each chunk, and the bits of the largest magnitude as FP64."""
    offsets = _offsets(BRANCHES // COLUMNS, CHUNKS, COLUMNS)
    x = bits.widen(bits.load(grads, offsets, left, WHOLE), FORMAT)
    if FORMAT == bits.FP64:
        wide = x
        largest = tl.max(tl.ravel(x.to(tl.int64, bitcast=True) & _FP64_MAGNITUDE))
    else:
        wide = x.to(tl.float64)
        most = tl.max(tl.ravel(x.to(tl.int32, bitcast=True) & _FP32_MAGNITUDE))
        magnitude = most.to(tl.float32, bitcast=True).to(tl.float64)
        largest = magnitude.to(tl.int64, bitcast=True) & _FP64_MAGNITUDE
    return _fold(wide * wide), largest


@bits.launched
def chunks_kernel(
    rows,
    firsts,
    counts,
    grads,
    positions,
    first_chunks,
    sums,
    largest,
    DTYPE: tl.constexpr,
    FORMAT: tl.constexpr,
    ALIGNED: tl.constexpr,
    CHUNKS: tl.constexpr,
    BRANCHES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Sum the squares of `CHUNKS` chunks of one gradient, and raise its largest magnitude."""
    row, start, left = bits.block_of(rows, firsts, counts, CHUNKS * BRANCHES)
    from_ = bits.pointer(grads, row, start, DTYPE, ALIGNED)
    if ALIGNED and left == CHUNKS * BRANCHES:
        total, most = _chunk(from_, left, FORMAT, True, CHUNKS, BRANCHES, COLUMNS)
    else:
        total, most = _chunk(from_, left, FORMAT, False, CHUNKS, BRANCHES, COLUMNS)
    position = tl.load(positions + row)
    chunk = tl.arange(0, CHUNKS)
    to = sums + tl.load(first_chunks + position) + start // BRANCHES
    tl.store(to + chunk, total, mask=chunk * BRANCHES < left)
    # Most programs find nothing larger. An old value read here costs an atomic, and no bit.
    tl.atomic_max(largest + position, most, mask=most > tl.load(largest + position))


@bits.launched
def level_kernel(
    rows,
    firsts,
    counts,
    sums,
    starts,
    next_sums,
    largest,
    table,
    LAST: tl.constexpr,
    BRANCHES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Fold `BRANCHES` sums to one; the last level leaves one, and writes the table's row."""
    row, start, left = bits.block_of(rows, firsts, counts, BRANCHES)
    from_ = sums + tl.load(starts + row) + start
    total = _fold(bits.load(from_, _offsets(BRANCHES // COLUMNS, 1, COLUMNS), left, False))
    one = tl.arange(0, 1)
    if LAST:
        most = tl.load(largest + row)
        to = table + 3 * row
        tl.store(to + one, total)
        tl.store(to + 1, most.to(tl.float64, bitcast=True))
        tl.store(to + 2, (most >= _FP64_INF).to(tl.float64))
    else:
        tl.store(next_sums + tl.program_id(0) + one, total)


def _columns(dtype: torch.dtype) -> int:
    """Give how many elements a warp loads at once: each thread 16 bytes."""
    return 32 * tables.WIDE_BYTES // dtype.itemsize


def grad_stats(grads: list[Tensor]) -> Tensor:
    """Serve `narrowgate.ops.grad_stats` on a GPU."""
    device = grads[0].device
    dense = [compact(grad) for grad in grads]
    table = torch.zeros(len(dense), 3, dtype=torch.float64, device=device)
    largest = torch.zeros(len(dense), dtype=torch.int64, device=device)
    left = [-(-grad.numel() // BRANCHES) for grad in dense]  # sums that are left of each
    if not any(left):
        return table
    with tables.on(device):
        sums = torch.empty(sum(left), dtype=torch.float64, device=device)
        starts = tables.column([0, *itertools.accumulate(left)][:-1], device)
        for (dtype, aligned), group in tables.groups(
            [(grad.dtype, tables.is_aligned(grad)) for grad in dense]
        ).items():
            members = [dense[i] for i in group]
            cut = tables.cut([grad.numel() for grad in members], CHUNKS * BRANCHES, device)
            if cut.blocks:
                chunks_kernel[(cut.blocks,)](
                    cut.rows,
                    cut.firsts,
                    cut.counts,
                    tables.addresses(members, device),
                    tables.column(group, device),
                    starts,
                    sums,
                    largest,
                    DTYPE=_DTYPE[dtype],
                    FORMAT=_native.FORMAT[dtype],
                    ALIGNED=aligned,
                    CHUNKS=CHUNKS,
                    BRANCHES=BRANCHES,
                    COLUMNS=_columns(dtype),
                    **tables.OPTIONS,
                )
        last = False
        while not last:
            cut = tables.cut(left, BRANCHES, device)
            left = [-(-count // BRANCHES) for count in left]
            last = max(left) == 1
            next_sums = torch.empty(cut.blocks, dtype=torch.float64, device=device)
            level_kernel[(cut.blocks,)](
                cut.rows,
                cut.firsts,
                cut.counts,
                sums,
                starts,
                next_sums,
                largest,
                table,
                LAST=last,
                BRANCHES=BRANCHES,
                COLUMNS=_columns(torch.float64),
                **tables.OPTIONS | {"num_warps": 1},
            )
            sums, starts = next_sums, cut.firsts
    return table
