"""The format records: every derived limit, every code."""

from __future__ import annotations

import doctest
import math
from collections.abc import Mapping
from itertools import pairwise
from types import ModuleType

import gfloat
import ml_dtypes
import numpy as np
import pytest

from formats.oracles import GFLOAT, LISTABLE, ML_DTYPES, same_values
from narrowgate.errors import FormatError
from narrowgate.formats import ALIASES, FORMATS, codes, decode, get, registry, rounding, spec

# The published limits, written out by hand: (bits, storage bits, max finite, its code, min normal,
# min subnormal, eps, Inf code, number of NaNs, has -0, emax, largest exact integer).
TABLE = {
    "fp32": (32, 32, 3.4028234663852886e38, 0x7F7FFFFF, 2.0**-126, 2.0**-149, 2.0**-23, 0x7F800000,
             2**24 - 2, True, 127, 16777216),
    "tf32": (19, 32, 3.4011621342146535e38, 0x7F7FE000, 2.0**-126, 2.0**-136, 2.0**-10, 0x7F800000,
             2046, True, 127, 2048),
    "bf16": (16, 16, 3.3895313892515355e38, 0x7F7F, 2.0**-126, 2.0**-133, 2.0**-7, 0x7F80,
             254, True, 127, 256),
    "fp16": (16, 16, 65504.0, 0x7BFF, 2.0**-14, 2.0**-24, 2.0**-10, 0x7C00, 2046, True, 15, 2048),
    "e5m2": (8, 8, 57344.0, 0x7B, 2.0**-14, 2.0**-16, 0.25, 0x7C, 6, True, 15, 8),
    "e4m3": (8, 8, 448.0, 0x7E, 2.0**-6, 2.0**-9, 0.125, None, 2, True, 8, 16),
    "e4m3_ieee": (8, 8, 240.0, 0x77, 2.0**-6, 2.0**-9, 0.125, 0x78, 14, True, 7, 16),
    "e4m3fnuz": (8, 8, 240.0, 0x7F, 2.0**-7, 2.0**-10, 0.125, None, 1, False, 7, 16),
    "e5m2fnuz": (8, 8, 57344.0, 0x7F, 2.0**-15, 2.0**-17, 0.25, None, 1, False, 15, 8),
    "e8m0": (8, 8, 2.0**127, 0xFE, 2.0**-127, 2.0**-127, 1.0, None, 1, False, 127, 2),
    "e2m1": (4, 4, 6.0, 0x7, 1.0, 0.5, 0.5, None, 0, True, 2, 4),
    "e3m2": (6, 6, 28.0, 0x1F, 0.25, 0.0625, 0.25, None, 0, True, 4, 8),
    "e2m3": (6, 6, 7.5, 0x1F, 1.0, 0.125, 0.125, None, 0, True, 2, 7),
}  # fmt: skip

# The magnitude at which nearest-even overflows, and whether it does at the tie itself.
THRESHOLDS = {
    "fp32": (2.0**128 - 2.0**103, True),
    "tf32": (2.0**128 - 2.0**116, True),
    "bf16": (2.0**128 - 2.0**119, True),  # the fp32 bits 0x7F7F8000
    "fp16": (65520.0, True),
    "e5m2": (61440.0, True),
    "e4m3": (464.0, False),
    "e4m3_ieee": (248.0, True),
    "e4m3fnuz": (248.0, True),
    "e5m2fnuz": (61440.0, True),
    "e8m0": (1.5 * 2.0**127, True),
    "e2m1": (7.0, True),
    "e3m2": (30.0, True),
    "e2m3": (7.75, True),
}


def test_table_and_thresholds_cover_every_format() -> None:
    assert list(TABLE) == list(FORMATS) == list(THRESHOLDS)


@pytest.mark.parametrize("name", FORMATS)
def test_limits_equal_the_published_table(name: str) -> None:
    f = FORMATS[name]
    got = (
        f.bits, f.storage_bits, f.max_finite, f.max_code, f.min_normal, f.min_subnormal, f.eps,
        f.inf_code, f.nan_count, f.has_negative_zero, f.emax, f.max_exact_integer,
    )  # fmt: skip
    assert got == TABLE[name]
    assert f.name == name
    assert f.has_inf == (f.inf_code is not None)
    assert f.has_nan == (f.nan_count > 0) == (f.nan_code is not None)


@pytest.mark.parametrize("name", FORMATS)
def test_overflow_thresholds_equal_the_published_ones(name: str) -> None:
    f = FORMATS[name]
    assert (f.overflow_threshold, f.overflows_at_threshold) == THRESHOLDS[name]


@pytest.mark.parametrize("name", ML_DTYPES)
def test_limits_equal_ml_dtypes_finfo(name: str) -> None:
    f, theirs = FORMATS[name], ml_dtypes.finfo(ML_DTYPES[name])
    assert f.bits == theirs.bits
    assert f.exponent_bits == theirs.nexp
    assert f.mantissa_bits == theirs.nmant
    assert f.max_finite == float(theirs.max)
    assert f.min_normal == float(theirs.smallest_normal)
    assert f.min_subnormal == float(theirs.smallest_subnormal)
    assert f.eps == float(theirs.eps)
    assert f.emax == theirs.maxexp - 1
    assert f.emin == theirs.minexp


@pytest.mark.parametrize("name", FORMATS)
def test_limits_equal_gfloat(name: str) -> None:
    f, theirs = FORMATS[name], GFLOAT[name]
    assert (f.bits, f.exponent_bits, f.bias) == (theirs.k, theirs.expBits, theirs.bias)
    assert (f.max_finite, f.eps, f.emax) == (theirs.max, theirs.eps, theirs.emax)
    assert f.min_subnormal == theirs.smallest
    assert f.nan_count == theirs.num_nans
    assert (f.has_inf, f.has_negative_zero) == (bool(theirs.num_posinfs), theirs.has_nz)


@pytest.mark.parametrize("name", LISTABLE)
def test_every_code_decodes_as_in_ml_dtypes_and_gfloat(name: str) -> None:
    f = FORMATS[name]
    values = [decode(code, f) for code in codes(f)]
    stored = np.array(codes(f), f"u{ML_DTYPES[name].itemsize}").view(ML_DTYPES[name])
    with np.errstate(invalid="ignore"):  # a signalling NaN, made quiet
        assert same_values(values, stored.astype(np.float64)) == []
    assert same_values(values, gfloat.decode_ndarray(GFLOAT[name], np.array(codes(f)))) == []


@pytest.mark.parametrize("name", LISTABLE)
def test_every_code_is_of_one_class(name: str) -> None:
    f = FORMATS[name]
    values = [decode(code, f) for code in codes(f)]
    assert sum(map(math.isnan, values)) == f.nan_count
    assert sum(map(math.isinf, values)) == (2 if f.has_inf else 0)
    for code, value in zip(codes(f), values, strict=True):
        assert f.is_nan(code) == math.isnan(value)
        assert f.is_inf(code) == math.isinf(value)
    if f.nan_code is not None:
        assert f.is_nan(f.nan_code)


@pytest.mark.parametrize("name", LISTABLE)
def test_positive_codes_grow_with_their_values(name: str) -> None:
    f = FORMATS[name]
    values = [decode(code, f) for code in range(f.max_code + 1)]
    assert all(a < b for a, b in pairwise(values))
    assert values[-1] == f.max_finite


@pytest.mark.parametrize("name", LISTABLE)
def test_max_exact_integer_is_followed_by_a_gap(name: str) -> None:
    f = FORMATS[name]
    values = {decode(code, f) for code in range(f.max_code + 1)}
    assert all(n in values for n in range(1, f.max_exact_integer + 1))
    assert f.max_exact_integer + 1 not in values


def test_fp32_codes_are_the_bits_of_a_numpy_float32() -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 5000, dtype=np.uint32)
    edges = np.array([0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000], np.uint32)
    bits = np.concatenate([bits, edges, edges | np.uint32(1 << 31)])
    ours = [decode(code, FORMATS["fp32"]) for code in bits.tolist()]
    with np.errstate(invalid="ignore"):  # a signalling NaN, made quiet
        assert same_values(ours, bits.view(np.float32).astype(np.float64)) == []
    # tf32 has the same codes, of which only those with 13 zero bits at the end exist.
    bits &= np.uint32(0xFFFFE000)
    ours = [decode(code, FORMATS["tf32"]) for code in bits.tolist()]
    with np.errstate(invalid="ignore"):
        assert same_values(ours, bits.view(np.float32).astype(np.float64)) == []


@pytest.mark.parametrize("table", [FORMATS, ALIASES])
def test_the_tables_are_read_only(table: Mapping[str, object]) -> None:
    with pytest.raises(TypeError):
        table["fp99"] = None  # type: ignore[index]


def test_get_knows_the_libraries_spellings() -> None:
    assert {alias: get(alias).name for alias in ALIASES} == dict(ALIASES)
    assert set(ALIASES) & set(FORMATS) == set()
    # The one trap: ml_dtypes' float8_e4m3 is not OCP's e4m3.
    assert get("e4m3") is get("e4m3fn")
    assert get("e4m3").max_finite == 448.0
    assert get("e4m3_ieee").max_finite == 240.0


def test_get_names_the_nearest_format() -> None:
    with pytest.raises(FormatError) as error:
        get("bf61")
    assert str(error.value) == (
        "unknown number format 'bf61'; known: fp32, tf32, bf16, fp16, e5m2, e4m3, e4m3_ieee, "
        "e4m3fnuz, e5m2fnuz, e8m0, e2m1, e3m2, e2m3\n\nhint: did you mean 'bf16'?"
    )


@pytest.mark.parametrize(("name", "code"), [("e2m1", 16), ("e2m1", -1), ("tf32", 1)])
def test_decode_refuses_what_is_no_code(name: str, code: int) -> None:
    with pytest.raises(FormatError, match=f"is no code of {name}: allowed are 0x0 to"):
        decode(code, FORMATS[name])


def test_codes_refuses_wide_formats() -> None:
    with pytest.raises(FormatError, match="tf32 is stored in 32 bits; codes\\(\\) lists formats"):
        codes(FORMATS["tf32"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"exponent_bits": 0}, "needs exponent_bits >= 1"),
        ({"mantissa_bits": 0}, "has no code for nan='ieee' beside Inf without a mantissa"),
        ({"signed": False, "nan": "none"}, "leaves no code for a negative value"),
        ({"signed": False, "nan": "negative_zero"}, "leaves no code for a negative value"),
    ],
)
def test_contradicting_fields_are_refused(fields: dict[str, object], message: str) -> None:
    good = {"exponent_bits": 5, "mantissa_bits": 2, "bias": 15, "nan": "ieee"}
    assert spec.Format(name="x", **good).max_finite == 57344.0  # type: ignore[arg-type]
    with pytest.raises(FormatError, match=message):
        spec.Format(name="x", **{**good, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("module", [spec, registry, rounding])
def test_examples_in_docstrings(module: ModuleType) -> None:
    failed, attempted = doctest.testmod(module)
    assert attempted > 0
    assert failed == 0
