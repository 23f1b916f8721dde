"""A 64-bit checksum of a 16-bit tensor: the definition.

What is true here: the codes in logical (row-major) order, four to a 64-bit word with the first in
the lowest bits, the last word filled up with zeros, give words w_0, w_1, ... In arithmetic modulo
2^64, with logical shifts,

    h_j = (w_j xor ((j + 1) * GAMMA)) * MIX_1;    h_j = (h_j xor (h_j >> 32)) * MIX_2
    checksum = sum of h_j + number of codes * GAMMA

Each h_j is a one-to-one function of its word, so a change within one word always changes the sum;
any other change, permutations included, passes with a chance of about 2^-64. It guards against
mix-ups, not against malice. The three odd constants are those of SplitMix64 (Steele, Lea, Flood:
Fast Splittable Pseudorandom Number Generators, 2014). Integers only: equal on every device, in
any order of summation. The words are read as the machine stores them, little-endian.
"""

from __future__ import annotations

import torch
from torch import Tensor

from narrowgate.ops._blocks import BLOCK, blocks

__all__ = ["GAMMA", "MIX_1", "MIX_2", "half_checksum"]

_CODES_PER_WORD = 4
_LOW_32 = (1 << 32) - 1


def _signed(value: int) -> int:
    """Read the low 64 bits of an integer as int64."""
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


GAMMA = _signed(0x9E3779B97F4A7C15)
MIX_1 = _signed(0xBF58476D1CE4E5B9)
MIX_2 = _signed(0x94D049BB133111EB)


def _checksum(half: Tensor, keys: Tensor, room: Tensor) -> Tensor:
    """Checksum one tensor, with the keys of the first block and room for three blocks of words."""
    words, mixed, shifted = room
    codes = half.contiguous().view(torch.int16).view(-1)
    total = torch.full((), _signed(codes.numel() * GAMMA), dtype=torch.int64, device=half.device)
    cells = words.view(torch.int16)
    for block in blocks(codes.numel()):
        count = block.stop - block.start
        used = -(-count // _CODES_PER_WORD)
        cells[count : used * _CODES_PER_WORD] = 0
        cells[:count].copy_(codes[block])
        first_word = block.start // _CODES_PER_WORD
        h = torch.add(keys[:used], _signed(first_word * GAMMA), out=mixed[:used])
        h.bitwise_xor_(words[:used]).mul_(MIX_1)
        high = torch.bitwise_right_shift(h, 32, out=shifted[:used]).bitwise_and_(_LOW_32)
        total += h.bitwise_xor_(high).mul_(MIX_2).sum()
    return total


def half_checksum(halves: list[Tensor]) -> Tensor:
    """Define `narrowgate.ops.half_checksum`."""
    longest = min(BLOCK, max(half.numel() for half in halves))
    size = -(-longest // _CODES_PER_WORD)
    device = halves[0].device
    room = torch.empty(3, size, dtype=torch.int64, device=device)
    keys = torch.arange(1, size + 1, dtype=torch.int64, device=device).mul_(GAMMA)
    return torch.stack([_checksum(half, keys, room) for half in halves])
