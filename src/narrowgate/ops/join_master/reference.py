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
from narrowgate.ops._blocks import blocks, compact, flat, in_layout_of
from narrowgate.ops.split_master.reference import GUARD_BITS

__all__ = ["join_bits", "join_master"]

_FP32, _BF16, _FP16 = (formats.get(name) for name in ("fp32", "bf16", "fp16"))
_SIGN_SHIFT = _FP32.storage_bits - _FP16.storage_bits
_FP16_MAX = _FP16.max_code
_FP16_MAGNITUDE = _FP16.sign_mask - 1
_FP32_EXPONENT = ((1 << _FP32.exponent_bits) - 1) << _FP32.mantissa_bits
# FP32 exponent field of q at the bottom of the normal range: -14 - 10 - 15 + 127 = 88.
_STEP_FIELD = _FP16.emin - _FP16.mantissa_bits - GUARD_BITS + _FP32.bias


def join_bits(codes: Tensor, remainder: Tensor, half: torch.dtype) -> Tensor:
    """Join a half's codes and remainders.

    Args:
        codes: int16, the half's bit patterns.
        remainder: int16.
        half: torch.bfloat16 or torch.float16, the format of the codes.

    Returns:
        The masters, float32.
    """
    wide = codes.to(torch.int32)
    if half is torch.bfloat16:
        low = _FP32.mantissa_bits - _BF16.mantissa_bits
        return ((wide << low) + remainder).view(torch.float32)
    magnitude = wide & _FP16_MAGNITUDE
    binade = ((magnitude >> _FP16.mantissa_bits) - 1).clamp(min=0)
    units = ((magnitude - (binade << _FP16.mantissa_bits)) << GUARD_BITS) + remainder
    step = ((binade + _STEP_FIELD) << _FP32.mantissa_bits).view(torch.float32)
    bits = (units.to(torch.float32) * step).view(torch.int32)
    sign = (wide & _FP16.sign_mask) << _SIGN_SHIFT
    non_finite = (_FP16_MAX - magnitude) >> 31
    return ((bits ^ sign) | (non_finite & _FP32_EXPONENT)).view(torch.float32)


def join_master(half: Tensor, remainder: Tensor) -> Tensor:
    """Define `narrowgate.ops.join_master`."""
    master = torch.empty_like(half, dtype=torch.float32)
    codes = flat(compact(half)).view(torch.int16)
    low, out = flat(in_layout_of(remainder, master)), flat(master)
    for block in blocks(out.numel()):
        out[block].copy_(join_bits(codes[block], low[block], half.dtype))
    return master
