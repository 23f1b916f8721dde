"""Join a 16-bit half and its remainder to the FP32 master: the definition.

What is true here: this is the exact inverse of `split_master.reference` on all that it produces.

bf16: ``u = (half << 16) + remainder`` in int32, wrapping.

fp16: ``w = sign(half) * (|half| + remainder * q)``, ``q = 2^(max(exponent of half, -14) - 25)``.
The bracket is an integer number of q, of 24 significant bits in every code that a split makes; so
its conversion to FP32 and the product with a power of two are exact, and neither is a narrowing
that a compiler could drop. (Remainders that no split makes are rounded once, to nearest-even.) A
non-finite half joins to a non-finite master: the exponent field is filled with ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from narrowgate import formats
from narrowgate.ops._blocks import blocks, compact, flat, in_layout_of, rooms
from narrowgate.ops.split_master.reference import GUARD_BITS

__all__ = ["JOIN_ROOMS", "join_bits", "join_master"]

JOIN_ROOMS = 4
"""Operands that `join_bits` needs room for."""

_FP32, _BF16, _FP16 = (formats.get(name) for name in ("fp32", "bf16", "fp16"))
_SIGN_SHIFT = _FP32.storage_bits - _FP16.storage_bits
_FP16_MAGNITUDE = _FP16.sign_mask - 1
_FP32_EXPONENT = ((1 << _FP32.exponent_bits) - 1) << _FP32.mantissa_bits
# FP32 exponent field of q at the bottom of the normal range: -14 - 10 - 15 + 127 = 88.
_STEP_FIELD = _FP16.emin - _FP16.mantissa_bits - GUARD_BITS + _FP32.bias


def join_bits(
    codes: Tensor, remainder: Tensor, half: torch.dtype, room: Tensor, out: Tensor
) -> None:
    """Join a half's codes and remainders.

    Args:
        codes: int16, (length,): the half's bit patterns.
        remainder: int16, (length,).
        half: torch.bfloat16 or torch.float16, the format of the codes.
        room: int32, (JOIN_ROOMS, length): overwritten.
        out: float32, (length,): where the masters go.
    """
    bits = out.view(torch.int32)
    if half is torch.bfloat16:
        low = _FP32.mantissa_bits - _BF16.mantissa_bits
        bits.copy_(codes).bitwise_left_shift_(low).add_(remainder)
        return
    units, sign, binade, non_finite = room
    units.copy_(codes)
    torch.bitwise_and(units, _FP16.sign_mask, out=sign).bitwise_left_shift_(_SIGN_SHIFT)
    units.bitwise_and_(_FP16_MAGNITUDE)
    torch.neg(units, out=non_finite).add_(_FP16.max_code).bitwise_right_shift_(31)
    torch.bitwise_right_shift(units, _FP16.mantissa_bits, out=binade).sub_(1).clamp_(min=0)
    units.sub_(torch.bitwise_left_shift(binade, _FP16.mantissa_bits, out=bits))
    units.bitwise_left_shift_(GUARD_BITS).add_(remainder)
    step = binade.add_(_STEP_FIELD).bitwise_left_shift_(_FP32.mantissa_bits).view(torch.float32)
    out.copy_(units).mul_(step)
    bits.bitwise_xor_(sign).bitwise_or_(non_finite.bitwise_and_(_FP32_EXPONENT))


def join_master(half: Tensor, remainder: Tensor) -> Tensor:
    """Define `narrowgate.ops.join_master`."""
    master = torch.empty_like(half, dtype=torch.float32)
    codes = flat(compact(half)).view(torch.int16)
    low, out = flat(in_layout_of(remainder, master)), flat(master)
    room = rooms(JOIN_ROOMS, [out])
    for block in blocks(out.numel()):
        part = room[:, : block.stop - block.start]
        join_bits(codes[block], low[block], half.dtype, part, out[block])
    return master
