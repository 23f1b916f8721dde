"""Split an FP32 master into a 16-bit half and a 16-bit remainder: the definition.

What is true here: everything is integer arithmetic on the bits of the master (int32, wrapping), so
no compiler can fuse a rounding away. u is the bit pattern, |w| its magnitude.

bf16: ``half = (u + 0x8000) >> 16``, nearest with ties away; ``remainder = int16(u)``, the low 16
bits read as signed. `join_master` gives u back for every u but a NaN, which becomes 0x7FC00000.

fp16: no 16-bit remainder can be lossless (855,638,017 non-negative FP32 values round to +0), so
masters below 2^-16 are first rounded, ties to even, to a grid of 2^-39: w'. Then, with
``q = 2^(max(exponent of half, -14) - 25)``,

    half = w' rounded to nearest-even          remainder = (|w'| - |half|) / q,  an exact integer

so half is what torch's own conversion makes of w', |remainder| <= 2^14, and w' comes back exactly.
w' is w for |w| >= 2^-16, and within 2^-40 of it below. The remainder goes by magnitude: a signed
one would lose the sign of -0 and of tiny negatives. |w| past `largest_master` gives an Inf half
and remainder 0, NaN the canonical NaN and remainder 0.

The code works in rooms that it is given, so that a chain of twenty operations allocates nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from narrowgate import formats
from narrowgate.ops._blocks import blocks, compact, flat, rooms
from narrowgate.ops._limits import HALF_OF, largest_master_bits

__all__ = ["GUARD_BITS", "SPLIT_ROOMS", "split_bits", "split_master"]

GUARD_BITS = 15
"""The remainder's step is 2^-15 of the half's: its 2^16 codes span one step, to either side."""

SPLIT_ROOMS = 4
"""Operands that `split_bits` needs room for."""

_FP32, _BF16, _FP16 = (formats.get(name) for name in ("fp32", "bf16", "fp16"))
_MAGNITUDE = (1 << 31) - 1
_HIDDEN = 1 << _FP32.mantissa_bits
_SIGN_SHIFT = _FP32.storage_bits - _FP16.storage_bits
# First FP32 exponent field whose values are normal in fp16: 1 - 15 + 127 = 113.
_NORMAL = _FP16.emin + _FP32.bias
# Exponent field of its largest binade, less the one that a hidden bit adds: 15 - -14 = 29.
_TOP_BINADE = _FP16.emax - _FP16.emin
# fp16: the significand is taken in units of q, which has this many bits more than FP32: 2.
_EXTRA = _FP16.mantissa_bits + GUARD_BITS - _FP32.mantissa_bits
_LARGEST_FP16 = largest_master_bits("fp16")


def _inf_and_nan(spec: formats.Format) -> tuple[int, int]:
    inf, nan = spec.inf_code, spec.nan_code
    assert inf is not None, spec
    assert nan is not None, spec
    return inf, nan


_FP32_INF = _inf_and_nan(_FP32)[0]
_BF16_NAN = _inf_and_nan(_BF16)[1]
_FP16_INF, _FP16_NAN = _inf_and_nan(_FP16)


def _mask_above(u: Tensor, limit: int, out: Tensor) -> Tensor:
    """Write all ones where the magnitude is above the limit, else zero."""
    # A difference of magnitudes never overflows, and its sign bit is the answer.
    return torch.bitwise_and(u, _MAGNITUDE, out=out).neg_().add_(limit).bitwise_right_shift_(31)


def _split_bf16(u: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """Split finite masters; the second result is u itself, whose low 16 bits are the remainder."""
    low = _FP32.mantissa_bits - _BF16.mantissa_bits
    return torch.add(u, 1 << (low - 1), out=room[0]).bitwise_right_shift_(low), u


def _split_fp16(u: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """Split masters of at most `largest_master`."""
    high, units, shift, x = room
    torch.bitwise_and(u, _MAGNITUDE, out=high).bitwise_right_shift_(_FP32.mantissa_bits)
    # |w'| in units of q: the significand with one bit to spare, shifted right by 1 in the normal
    # range and by one more per binade below. From 2^-16 upwards only zeros are shifted out; a
    # shift of 28 already takes every significand (27 bits) to 0, and so stands for all larger.
    torch.bitwise_and(u, _HIDDEN - 1, out=units).bitwise_or_(_HIDDEN)
    units.bitwise_left_shift_(_EXTRA + 1)
    torch.neg(high, out=shift).add_(_NORMAL + 1).clamp_(1, _FP32.mantissa_bits + _EXTRA + 3)
    # Nearest-even: add one less than half a step, one more if the result would be odd.
    torch.bitwise_right_shift(units, shift, out=x).bitwise_and_(1).sub_(1)
    units.add_(x)
    x.fill_(1).bitwise_left_shift_(shift).bitwise_right_shift_(1)
    units.add_(x).bitwise_right_shift_(shift)
    # The significand of the half, 11 bits, again to nearest-even; then what that rounding left.
    torch.bitwise_right_shift(units, GUARD_BITS, out=x).bitwise_and_(1).add_(units)
    x.add_((1 << (GUARD_BITS - 1)) - 1).bitwise_right_shift_(GUARD_BITS)
    units.sub_(torch.bitwise_left_shift(x, GUARD_BITS, out=shift))
    # Rounded up into the next binade (significand 2^11): q is twice as large there.
    units.bitwise_right_shift_(torch.bitwise_right_shift(x, _FP16.mantissa_bits + 1, out=shift))
    # Beyond the top binade, whose values the caller makes Inf, nothing may reach the sign's bit.
    high.sub_(_NORMAL).clamp_(0, _TOP_BINADE).bitwise_left_shift_(_FP16.mantissa_bits).add_(x)
    torch.bitwise_right_shift(u, _SIGN_SHIFT, out=x).bitwise_and_(_FP16.sign_mask)
    return high.bitwise_or_(x), units


def split_bits(
    u: Tensor, half: torch.dtype, room: Tensor, *, within_limit: bool = False
) -> tuple[Tensor, Tensor]:
    """Split FP32 bit patterns.

    Args:
        u: int32, (length,): the bit patterns.
        half: torch.bfloat16 or torch.float16.
        room: int32, (SPLIT_ROOMS, length): overwritten.
        within_limit: Whether no magnitude is above `largest_master`, which saves some work.

    Returns:
        The half's codes and the remainders: in the low 16 bits of int32, in `room` or in `u`.
    """
    if half is torch.bfloat16:
        high, low = _split_bf16(u, room)
    else:
        high, low = _split_fp16(u, room)
    if within_limit:
        return high, low
    _, kept, value, mask = room
    nan = _BF16_NAN
    if half is torch.float16:
        nan = _FP16_NAN
        _mask_above(u, _LARGEST_FP16, mask)
        torch.bitwise_and(mask, _FP16_INF, out=value)
        low.bitwise_and_(mask.bitwise_not_())
        high.bitwise_and_(mask.bitwise_or_(_FP16.sign_mask)).bitwise_or_(value)
    _mask_above(u, _FP32_INF, mask)
    torch.bitwise_and(mask, nan, out=value)
    high.bitwise_and_(mask.bitwise_not_()).bitwise_or_(value)
    return high, torch.bitwise_and(low, mask, out=kept)


def split_master(master: Tensor, format: str) -> tuple[Tensor, Tensor]:  # noqa: A002
    """Define `narrowgate.ops.split_master`."""
    half = torch.empty_like(master, dtype=HALF_OF[format])
    remainder = torch.empty_like(half, dtype=torch.int16)
    u = flat(compact(master)).view(torch.int32)
    codes, remainders = flat(half).view(torch.int16), flat(remainder)
    room = rooms(SPLIT_ROOMS, [u])
    for block in blocks(u.numel()):
        high, low = split_bits(u[block], half.dtype, room[:, : block.stop - block.start])
        codes[block].copy_(high)
        remainders[block].copy_(low)
    return half, remainder
