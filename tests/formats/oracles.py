"""Other people's formats under our names, and the inputs at which rounding can go wrong.

What is true here: ml_dtypes (C++) and gfloat (Python) were written by others and share no code
with us or with each other. NaN is compared by class, everything else by bit pattern.
"""

from __future__ import annotations

import math

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
from gfloat import Domain, FormatInfo

from narrowgate.formats import FORMATS, Format, codes, decode

ML_DTYPES = {
    "fp32": np.dtype(np.float32),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e4m3_ieee": np.dtype(ml_dtypes.float8_e4m3),
    "e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "e8m0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "e2m1": np.dtype(ml_dtypes.float4_e2m1fn),
    "e3m2": np.dtype(ml_dtypes.float6_e3m2fn),
    "e2m3": np.dtype(ml_dtypes.float6_e2m3fn),
}
"""All but tf32, which ml_dtypes does not have."""


def _info(name: str, k: int, precision: int, bias: int, **special: object) -> FormatInfo:
    return FormatInfo(
        name,
        k,
        precision,
        bias=bias,
        is_signed=True,
        has_subnormals=True,
        is_twos_complement=False,
        **special,
    )


_FNUZ = {"domain": Domain.Finite, "has_nz": False, "num_high_nans": 0}

GFLOAT = {
    "fp32": gfloat.formats.format_info_binary32,
    "tf32": _info("tf32", 19, 11, 127, domain=Domain.Extended, has_nz=True, num_high_nans=1023),
    "fp16": gfloat.formats.format_info_binary16,
    "bf16": gfloat.formats.format_info_bfloat16,
    "e5m2": gfloat.formats.format_info_ocp_e5m2,
    "e4m3": gfloat.formats.format_info_ocp_e4m3,
    "e4m3_ieee": _info("e4m3", 8, 4, 7, domain=Domain.Extended, has_nz=True, num_high_nans=7),
    "e4m3fnuz": _info("e4m3fnuz", 8, 4, 8, **_FNUZ),
    "e5m2fnuz": _info("e5m2fnuz", 8, 3, 16, **_FNUZ),
    "e8m0": gfloat.formats.format_info_ocp_e8m0,
    "e2m1": gfloat.formats.format_info_ocp_e2m1,
    "e3m2": gfloat.formats.format_info_ocp_e3m2,
    "e2m3": gfloat.formats.format_info_ocp_e2m3,
}

LISTABLE = [name for name, spec in FORMATS.items() if spec.storage_bits <= 16]
NARROW = [name for name, spec in FORMATS.items() if spec.storage_bits <= 8]
SIGNED = [name for name, spec in FORMATS.items() if spec.signed]


def finite_values(spec: Format) -> list[float]:
    """List the distinct finite values of a format of at most 16 bits, in order, 0 once."""
    values = {decode(code, spec) for code in codes(spec)}
    return sorted(v + 0.0 for v in values if math.isfinite(v))


def boundary_magnitudes(spec: Format) -> np.ndarray:
    """Give neighbouring magnitudes at which a wide format can go wrong, as exact float64.

    The eight codes on each side of: zero, the first normal value, 1, the last but one binade, the
    largest value; and the first continued value above the largest.
    """
    step = 1 << spec.padding_bits
    one = spec.bias << (spec.mantissa_bits + spec.padding_bits)
    first_normal = 1 << (spec.mantissa_bits + spec.padding_bits)
    centres = [0, first_normal, one, spec.max_code - first_normal, spec.max_code]
    around = {c + step * i for c in centres for i in range(-8, 9)}
    values = [decode(c, spec) for c in sorted(around) if 0 <= c <= spec.max_code]
    past_largest = spec.max_finite + 2 * (spec.overflow_threshold - spec.max_finite)
    return np.array([*values, past_largest])


def rounding_inputs(spec: Format, dtype: type[np.floating]) -> np.ndarray:
    """Give every value and every midpoint between neighbours, each with its next `dtype` values.

    For formats of more than 8 bits only around the boundaries. Both signs, zeros and infinities
    included, NaN not; 500 random bit patterns at the end.
    """
    if spec.storage_bits <= 8:
        magnitudes = np.array([v for v in finite_values(spec) if v >= 0])
        magnitudes = np.append(magnitudes, 2 * spec.overflow_threshold - spec.max_finite)
    else:
        magnitudes = boundary_magnitudes(spec)
    midpoints = magnitudes[:-1] + (magnitudes[1:] - magnitudes[:-1]) / 2
    with np.errstate(over="ignore", under="ignore"):
        points = np.concatenate([magnitudes, midpoints, [spec.min_subnormal / 2]]).astype(dtype)
    points = points[np.isfinite(points)]
    with np.errstate(over="ignore", under="ignore"):
        near = np.concatenate([points, np.nextafter(points, -np.inf), np.nextafter(points, np.inf)])
    info = np.finfo(dtype)
    special = [0, info.smallest_subnormal, info.tiny, 1, info.max, np.inf]
    magnitudes = np.concatenate([near, np.array(special, dtype)])
    random = np.random.default_rng(20240607)
    bits = random.integers(0, 256, size=(500, np.dtype(dtype).itemsize), dtype=np.uint8)
    noise = bits.view(dtype).ravel()
    both = np.concatenate([magnitudes, -magnitudes, noise[~np.isnan(noise)]])
    return np.unique(both.view(f"u{np.dtype(dtype).itemsize}")).view(dtype)


def ml_encode(x: np.ndarray, name: str, *, saturate: bool) -> np.ndarray:
    """Convert with ml_dtypes to codes; saturating by clipping first, which maps Inf to max."""
    dtype = ML_DTYPES[name]
    if saturate:
        limit = x.dtype.type(FORMATS[name].max_finite)
        x = np.clip(x, -limit, limit)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        converted = x.astype(dtype)
    return converted.view(f"u{dtype.itemsize}").astype(np.int64)


def same_codes(ours: list[int], theirs: np.ndarray, spec: Format) -> list[int]:
    """Give the indices at which codes differ, any two NaNs being equal."""
    pairs = enumerate(zip(ours, theirs.tolist(), strict=True))
    return [i for i, (a, b) in pairs if a != b and not (spec.is_nan(a) and spec.is_nan(b))]


def same_values(ours: list[float], theirs: np.ndarray) -> list[int]:
    """Give the indices at which values differ, sign of zero included, NaNs being equal."""
    a, b = np.array(ours, np.float64), np.asarray(theirs, np.float64)
    differ = (a.view(np.uint64) != b.view(np.uint64)) & ~(np.isnan(a) & np.isnan(b))
    return np.flatnonzero(differ).tolist()
