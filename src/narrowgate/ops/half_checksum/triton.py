"""Checksums on a GPU: one launch for all tensors.

What is true here: arithmetic is modulo 2^64 (int64 wraps), so the order in which programs add to a
checksum changes nothing. A program takes 4,096 codes, 1,024 words; in aligned memory a word is one
load, elsewhere and at a tensor's end four codes are put together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from narrowgate.ops._triton import bits, tables
from narrowgate.ops.half_checksum import reference

__all__ = ["CODES", "checksum_kernel", "half_checksum"]

CODES = 4096
"""Codes per program, a whole number of words: 8 words, or 4 wide loads, per thread."""

_CODES_PER_WORD = tl.constexpr(4)
_GAMMA = tl.constexpr(reference.GAMMA)
_MIX_1 = tl.constexpr(reference.MIX_1)
_MIX_2 = tl.constexpr(reference.MIX_2)


@triton.jit
def _mix(word, place):
    h = (word ^ ((place + 1) * _GAMMA)) * _MIX_1
    high = (h.to(tl.uint64, bitcast=True) >> 32).to(tl.int64, bitcast=True)
    return (h ^ high) * _MIX_2


@bits.launched
def checksum_kernel(
    rows,
    firsts,
    counts,
    halves,
    positions,
    checksums,
    ALIGNED: tl.constexpr,
    CODES: tl.constexpr,
):
    """Add one block to its tensor's checksum."""
    row, start, left = bits.block_of(rows, firsts, counts, CODES)
    words = tl.arange(0, CODES // _CODES_PER_WORD)
    places = start // _CODES_PER_WORD + words
    if ALIGNED and left == CODES:
        whole = bits.pointer(halves, row, start, tl.int16, True).to(tl.pointer_type(tl.int64))
        mixed = _mix(tl.load(tl.multiple_of(whole, 16) + words), places)
    else:
        codes = bits.pointer(halves, row, start, tl.uint16, False)
        word = tl.zeros([CODES // _CODES_PER_WORD], tl.int64)
        for i in tl.static_range(_CODES_PER_WORD):
            at = words * _CODES_PER_WORD + i
            code = tl.load(codes + at, mask=at < left, other=0)
            word = word | (code.to(tl.int64) << (16 * i))
        # A word beyond the end is no word: it adds nothing.
        mixed = tl.where(words * _CODES_PER_WORD < left, _mix(word, places), 0)
    tl.atomic_add(checksums + tl.load(positions + row), tl.sum(mixed) + left.to(tl.int64) * _GAMMA)


def half_checksum(halves: list[Tensor]) -> Tensor:
    """Serve `narrowgate.ops.half_checksum` on a GPU."""
    device = halves[0].device
    dense = [half.contiguous() for half in halves]
    checksums = torch.zeros(len(dense), dtype=torch.int64, device=device)
    with tables.on(device):
        for aligned, group in tables.groups([tables.is_aligned(half) for half in dense]).items():
            members = [dense[i] for i in group]
            cut = tables.cut([half.numel() for half in members], CODES, device)
            if cut.blocks:
                checksum_kernel[(cut.blocks,)](
                    cut.rows,
                    cut.firsts,
                    cut.counts,
                    tables.addresses(members, device),
                    tables.column(group, device),
                    checksums,
                    ALIGNED=aligned,
                    CODES=CODES,
                    **tables.OPTIONS,
                )
    return checksums
