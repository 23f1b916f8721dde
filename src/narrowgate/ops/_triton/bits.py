"""Number formats as bits, for Triton: what `_native/floats.h` is for C++, function by function.

What is true here: masters are split and joined by integer operations on 32-bit patterns, in the
order of the definitions. The formulas and their proofs are in split_master/reference.py and
join_master/reference.py. 16-bit floats are read and written as int16 codes.

Known limits. Triton's interpreter runs these functions on NumPy: every operation is rounded as
IEEE says, as on a GPU with the options of `tables.OPTIONS`, but it knows neither threads nor
caches, so it proves arithmetic and indices and says nothing of races; NaN payloads may differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from narrowgate import formats
from narrowgate.ops._limits import largest_master_bits
from narrowgate.ops.split_master.reference import GUARD_BITS

__all__ = [
    "BF16",
    "FP16",
    "FP32",
    "FP64",
    "block_of",
    "join",
    "launched",
    "load",
    "pointer",
    "split",
    "store",
    "widen",
]

FP32, BF16, FP16, FP64 = (tl.constexpr(number) for number in range(4))
"""A data type's number: _native/__init__.py, FORMAT."""

_FP32, _BF16, _FP16 = (formats.get(name) for name in ("fp32", "bf16", "fp16"))
_BF16_LOW = tl.constexpr(_FP32.mantissa_bits - _BF16.mantissa_bits)
_BF16_HALF_STEP = tl.constexpr(1 << (_BF16_LOW.value - 1))
_FP32_MANTISSA = tl.constexpr(_FP32.mantissa_bits)
_FP32_MAGNITUDE = tl.constexpr((1 << 31) - 1)
_FP32_INF = tl.constexpr(_FP32.inf_code)
_HIDDEN = tl.constexpr(1 << _FP32.mantissa_bits)
_BF16_NAN = tl.constexpr(_BF16.nan_code)
_FP16_MANTISSA = tl.constexpr(_FP16.mantissa_bits)
_FP16_SIGN = tl.constexpr(_FP16.sign_mask)
_FP16_INF = tl.constexpr(_FP16.inf_code)
_FP16_NAN = tl.constexpr(_FP16.nan_code)
_SIGN_SHIFT = tl.constexpr(_FP32.storage_bits - _FP16.storage_bits)
_GUARD = tl.constexpr(GUARD_BITS)
_BELOW_HALF = tl.constexpr((1 << (GUARD_BITS - 1)) - 1)
_EXTRA = tl.constexpr(_FP16.mantissa_bits + GUARD_BITS - _FP32.mantissa_bits)
_NORMAL = tl.constexpr(_FP16.emin + _FP32.bias)
_STEP_FIELD = tl.constexpr(_FP16.emin - _FP16.mantissa_bits - GUARD_BITS + _FP32.bias)
_LARGEST_FP16 = tl.constexpr(largest_master_bits("fp16"))
_MOST_SHIFT = tl.constexpr(_FP32.mantissa_bits + _EXTRA.value + 3)


def launched(function: Callable[..., Any]) -> Any:
    """Make a kernel of a function, compiled once per set of constants and formats.

    By itself triton compiles anew for each combination of arguments that are 1 or a multiple of
    16, which no test could cover; what a kernel may assume is in its constants.
    """
    parameters = inspect.signature(function).parameters.values()
    values = [p.name for p in parameters if p.annotation != "tl.constexpr"]
    return triton.jit(function, do_not_specialize=values)


@triton.jit
def block_of(rows, firsts, counts, BLOCK: tl.constexpr):
    """Give this program's row, the first element of its block, and how many the block has."""
    block = tl.program_id(0)
    row = tl.load(rows + block)
    start = (block - tl.load(firsts + row)) * BLOCK
    # In 32 bits: offsets are compared with it, and would all be widened.
    return row, start, tl.minimum(tl.load(counts + row) - start, BLOCK).to(tl.int32)


@triton.jit
def pointer(column, row, start, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Give a pointer to element `start` of a row's tensor."""
    to = tl.load(column + row).to(tl.pointer_type(DTYPE)) + start
    if ALIGNED:
        to = tl.multiple_of(to, 16)
    return to


@triton.jit
def load(start, offsets, left, WHOLE: tl.constexpr):
    """Load a block; of one that is not `WHOLE` zeros stand for what lies beyond its end."""
    if WHOLE:
        value = tl.load(start + offsets)
    else:
        value = tl.load(start + offsets, mask=offsets < left, other=0)
    return value


@triton.jit
def store(start, offsets, left, value, WHOLE: tl.constexpr):
    """Store a block, or what of it lies before its end."""
    if WHOLE:
        tl.store(start + offsets, value)
    else:
        tl.store(start + offsets, value, mask=offsets < left)


@triton.jit
def _low_16(x):
    return x.to(tl.uint16).to(tl.int16, bitcast=True)


@triton.jit
def widen(x, FORMAT: tl.constexpr):
    """Widen what was loaded (float32, float16, float64; bfloat16 as int16 codes): exact."""
    if FORMAT == BF16:
        wide = (x.to(tl.int32) << _BF16_LOW).to(tl.float32, bitcast=True)
    elif FORMAT == FP16:
        wide = x.to(tl.float32)
    else:
        wide = x
    return wide


@triton.jit
def _split_bf16(u):
    half = (u + _BF16_HALF_STEP) >> _BF16_LOW
    is_nan = (u & _FP32_MAGNITUDE) > _FP32_INF
    return _low_16(tl.where(is_nan, _BF16_NAN, half)), _low_16(tl.where(is_nan, 0, u))


@triton.jit
def _split_fp16(u):
    magnitude = u & _FP32_MAGNITUDE
    field = (magnitude >> _FP32_MANTISSA).to(tl.int32)
    shift = tl.minimum(tl.maximum(-field + (_NORMAL + 1), 1), _MOST_SHIFT).to(tl.uint32)
    units = ((u & (_HIDDEN - 1)) | _HIDDEN) << (_EXTRA + 1)
    # Nearest-even: add one less than half a step, one more if the result would be odd.
    units = units + (((units >> shift) & 1) - 1)
    one = tl.full(u.shape, 1, tl.uint32)
    units = (units + ((one << shift) >> 1)) >> shift
    odd = (units >> _GUARD) & 1
    significand = (units + odd + _BELOW_HALF) >> _GUARD
    rest = (units - (significand << _GUARD)).to(tl.int32, bitcast=True)
    rest = rest >> (significand >> (_FP16_MANTISSA + 1)).to(tl.int32)
    binade = tl.maximum(field - _NORMAL, 0).to(tl.uint32)
    half = (binade << _FP16_MANTISSA) + significand
    half = tl.where(magnitude > _LARGEST_FP16, _FP16_INF, half)
    half = half | ((u >> _SIGN_SHIFT) & _FP16_SIGN)
    half = tl.where(magnitude > _FP32_INF, _FP16_NAN, half)
    rest = tl.where(magnitude > _LARGEST_FP16, 0, rest)
    return _low_16(half), _low_16(rest)


@triton.jit
def split(master, FORMAT: tl.constexpr):
    """Split float32 masters into codes of halves and remainders, both int16."""
    u = master.to(tl.uint32, bitcast=True)
    if FORMAT == FP16:
        half, rest = _split_fp16(u)
    else:
        half, rest = _split_bf16(u)
    return half, rest


@triton.jit
def _join_fp16(code, rest):
    magnitude = code & (_FP16_SIGN - 1)
    binade = tl.maximum((magnitude >> _FP16_MANTISSA) - 1, 0)
    units = ((magnitude - (binade << _FP16_MANTISSA)) << _GUARD) + rest
    step = ((binade + _STEP_FIELD) << _FP32_MANTISSA).to(tl.float32, bitcast=True)
    u = (units.to(tl.float32) * step).to(tl.int32, bitcast=True)
    u = u ^ ((code & _FP16_SIGN) << _SIGN_SHIFT)
    return tl.where(magnitude >= _FP16_INF, u | _FP32_INF, u)


@triton.jit
def join(half, remainder, FORMAT: tl.constexpr):
    """Join codes of halves and remainders, both int16, to float32 masters."""
    code, rest = half.to(tl.int32), remainder.to(tl.int32)
    u = _join_fp16(code, rest) if FORMAT == FP16 else (code << _BF16_LOW) + rest
    return u.to(tl.float32, bitcast=True)
