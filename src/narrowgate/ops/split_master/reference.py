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
"""

from __future__ import annotations

import torch
from torch import Tensor

from narrowgate import formats
from narrowgate.ops._blocks import blocks, compact, flat
from narrowgate.ops._limits import HALF_OF, largest_master_bits

__all__ = ["GUARD_BITS", "split_bits", "split_finite_bits", "split_master"]

GUARD_BITS = 15
"""The remainder's step is 2^-15 of the half's: its 2^16 codes span one step, to either side."""

_FP32, _BF16, _FP16 = (formats.get(name) for name in ("fp32", "bf16", "fp16"))
_MAGNITUDE = (1 << 31) - 1
_HIDDEN = 1 << _FP32.mantissa_bits
_SIGN_SHIFT = _FP32.storage_bits - _FP16.storage_bits
# First FP32 exponent field whose values are normal in fp16: 1 - 15 + 127 = 113.
_NORMAL = _FP16.emin + _FP32.bias
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


def _nearest_even(x: Tensor, shift: int) -> Tensor:
    """Divide non-negative integers by 2^shift, rounding to nearest with ties to even."""
    return (x + ((1 << (shift - 1)) - 1) + ((x >> shift) & 1)) >> shift


def _split_bf16(u: Tensor) -> tuple[Tensor, Tensor]:
    low = _FP32.mantissa_bits - _BF16.mantissa_bits
    return (u + (1 << (low - 1))) >> low, u


def _split_fp16(u: Tensor) -> tuple[Tensor, Tensor]:
    magnitude = u & _MAGNITUDE
    exponent = magnitude >> _FP32.mantissa_bits
    # |w'| in units of q: the significand with one bit to spare, shifted right by 1 in the normal
    # range and by one more per binade below. From 2^-16 upwards only zeros are shifted out; a
    # shift of 28 already takes every significand (27 bits) to 0, and so stands for all larger.
    spare = ((magnitude & (_HIDDEN - 1)) | _HIDDEN) << (_EXTRA + 1)
    shift = (_NORMAL + 1 - exponent).clamp(1, _FP32.mantissa_bits + _EXTRA + 3)
    half_step = torch.bitwise_left_shift(torch.ones_like(shift), shift - 1)
    units = (spare + (half_step - 1) + ((spare >> shift) & 1)) >> shift
    significand = _nearest_even(units, GUARD_BITS)
    remainder = units - (significand << GUARD_BITS)
    # Rounded up into the next binade (significand 2^11): q is twice as large there.
    remainder = remainder >> (significand >> (_FP16.mantissa_bits + 1))
    binade = (exponent - _NORMAL).clamp(min=0)
    sign = (u >> _SIGN_SHIFT) & _FP16.sign_mask
    return sign | (significand + (binade << _FP16.mantissa_bits)), remainder


def split_finite_bits(u: Tensor, half: torch.dtype) -> tuple[Tensor, Tensor]:
    """Split bit patterns of masters that are known to be no larger than `largest_master`.

    Args:
        u: int32, the FP32 bit patterns.
        half: torch.bfloat16 or torch.float16.

    Returns:
        The half's codes and the remainders, both int16.
    """
    high, low = _split_bf16(u) if half is torch.bfloat16 else _split_fp16(u)
    return high.to(torch.int16), low.to(torch.int16)


def split_bits(u: Tensor, half: torch.dtype) -> tuple[Tensor, Tensor]:
    """Split any FP32 bit patterns, non-finite ones included.

    Args:
        u: int32, the FP32 bit patterns.
        half: torch.bfloat16 or torch.float16.

    Returns:
        The half's codes and the remainders, both int16.
    """
    magnitude = u & _MAGNITUDE
    # Masks of all ones where the condition holds: differences of magnitudes never overflow.
    nan = (_FP32_INF - magnitude) >> 31
    if half is torch.bfloat16:
        high, low = _split_bf16(u)
        high = (high & ~nan) | (nan & _BF16_NAN)
        return high.to(torch.int16), (low & ~nan).to(torch.int16)
    high, low = _split_fp16(u)
    too_large = (_LARGEST_FP16 - magnitude) >> 31
    sign = (u >> _SIGN_SHIFT) & _FP16.sign_mask
    high = (high & ~too_large) | (too_large & (sign | _FP16_INF))
    high = (high & ~nan) | (nan & _FP16_NAN)
    return high.to(torch.int16), (low & ~too_large).to(torch.int16)


def split_master(master: Tensor, format: str) -> tuple[Tensor, Tensor]:  # noqa: A002
    """Define `narrowgate.ops.split_master`."""
    half = torch.empty_like(master, dtype=HALF_OF[format])
    remainder = torch.empty_like(half, dtype=torch.int16)
    u = flat(compact(master)).view(torch.int32)
    codes, remainders = flat(half).view(torch.int16), flat(remainder)
    for block in blocks(u.numel()):
        high, low = split_bits(u[block], half.dtype)
        codes[block].copy_(high)
        remainders[block].copy_(low)
    return half, remainder
