"""The rounding oracle against other people's, and against brute force."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import gfloat
import numpy as np
import pytest
from gfloat import RoundMode
from hypothesis import given
from hypothesis import strategies as st

from formats.oracles import (
    GFLOAT,
    LISTABLE,
    ML_DTYPES,
    NARROW,
    SIGNED,
    finite_values,
    ml_encode,
    rounding_inputs,
    same_codes,
    same_values,
)
from narrowgate.errors import FormatError
from narrowgate.formats import FORMATS, codes, decode, encode, get, quantum, round_value


@pytest.mark.parametrize("name", LISTABLE)
def test_every_code_comes_back(name: str) -> None:
    f = FORMATS[name]
    for code in codes(f):
        value = decode(code, f)
        if math.isnan(value):
            assert encode(value, f, saturate=True) == f.nan_code
        else:
            # Without saturation: an Inf must come back as itself.
            assert encode(value, f, saturate=False) == code


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("name", [n for n in ML_DTYPES if n != "e8m0"])
def test_nearest_equals_ml_dtypes(name: str, saturate: bool) -> None:
    f, x = FORMATS[name], rounding_inputs(FORMATS[name], np.float32)
    ours = [encode(v, f, saturate=saturate) for v in x.tolist()]
    assert same_codes(ours, ml_encode(x, name, saturate=saturate), f) == []


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("mode", ["nearest", "zero"])
@pytest.mark.parametrize("name", SIGNED)
def test_nearest_and_zero_equal_gfloat(name: str, mode: str, saturate: bool) -> None:
    f, x = FORMATS[name], rounding_inputs(FORMATS[name], np.float32).astype(np.float64)
    saturate = saturate or not f.has_nan  # gfloat raises where we always saturate
    rounding = {"nearest": RoundMode.TiesToEven, "zero": RoundMode.TowardZero}[mode]
    theirs = gfloat.round_ndarray(GFLOAT[name], x, rounding, saturate)
    ours = [round_value(v, f, saturate=saturate, rounding=mode) for v in x.tolist()]  # type: ignore[arg-type]
    assert same_values(ours, theirs) == []


@pytest.mark.parametrize("name", [n for n in ML_DTYPES if n != "e8m0"])
def test_a_64_bit_value_is_rounded_once(name: str) -> None:
    f, x = FORMATS[name], rounding_inputs(FORMATS[name], np.float64)
    ours = [encode(v, f, saturate=False) for v in x.tolist()]
    assert same_codes(ours, ml_encode(x, name, saturate=False), f) == []
    if name == "fp32":
        return
    # The inputs can tell: rounding to fp32 on the way gives other codes for some of them.
    with np.errstate(over="ignore", under="ignore"):
        twice = ml_encode(x.astype(np.float32), name, saturate=False)
    assert len(same_codes(ours, twice, f)) > 0


def test_bf16_and_tf32_equal_their_integer_formulas() -> None:
    # The formulas that kernels use, on fp32 bits: add half of what is cut off, less one, plus the
    # last kept bit; cut.
    for name, cut in (("bf16", 16), ("tf32", 13)):
        f = FORMATS[name]
        x = rounding_inputs(f, np.float32)
        b = x.view(np.uint32).astype(np.int64)
        kept = b + (1 << cut - 1) - 1 + (b >> cut & 1) >> cut
        ours = [encode(v, f, saturate=False) for v in x.tolist()]
        assert same_codes(ours, kept << cut - (16 if name == "bf16" else 0), f) == []
        finite = np.isfinite(x)
        ours = [round_value(v, f, saturate=False, rounding="zero") for v in x[finite].tolist()]
        truncated = (x[finite].view(np.uint32) >> cut << cut).view(np.float32)
        assert same_values(ours, truncated.astype(np.float64)) == []


@pytest.mark.parametrize("name", NARROW)
@given(value=st.fractions(min_value=-300, max_value=300) | st.fractions(-1, 1))
def test_nearest_of_a_fraction_by_brute_force(name: str, value: Fraction) -> None:
    f = FORMATS[name]
    if value < 0 and not f.signed:
        value = -value
    values = [Fraction(v) for v in finite_values(f)]
    # The nearest of all values; of two, the one whose code is even. An overflow to the largest
    # value is nearest too, so saturation needs no case here.
    nearest = min(abs(v - value) for v in values)
    candidates = [float(v) for v in values if abs(v - value) == nearest]
    got = round_value(value, f, saturate=True)
    assert got in candidates
    if len(candidates) == 2:
        even = [v for v in candidates if encode(v, f, saturate=False) % 2 == 0]
        # e8m0 has no mantissa to be even: the larger one.
        assert [got] == (even if f.mantissa_bits else [max(candidates)])


@pytest.mark.parametrize("name", FORMATS)
@given(pair=st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)))
def test_rounding_keeps_order_and_is_idempotent(name: str, pair: tuple[float, float]) -> None:
    f = FORMATS[name]
    low, high = sorted(abs(v) if not f.signed else v for v in pair)
    for mode in ("nearest", "zero"):
        a = round_value(low, f, saturate=True, rounding=mode)  # type: ignore[arg-type]
        b = round_value(high, f, saturate=True, rounding=mode)  # type: ignore[arg-type]
        assert a <= b
        assert round_value(a, f, saturate=True, rounding=mode) == a  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FORMATS)
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_error_is_bounded_by_the_quantum(name: str, value: float) -> None:
    f = FORMATS[name]
    value = abs(value)
    if not f.min_normal <= value <= f.max_finite:
        value = f.min_normal + value % 1.0
    exact = Fraction(value)
    step = quantum(value, f)
    assert abs(Fraction(round_value(value, f, saturate=False)) - exact) <= step / 2
    cut = Fraction(round_value(value, f, saturate=False, rounding="zero"))
    assert 0 <= exact - cut < step


@pytest.mark.parametrize("name", LISTABLE)
def test_quantum_is_the_distance_between_neighbours(name: str) -> None:
    f = FORMATS[name]
    values = [v for v in finite_values(f) if v >= 0]
    # All neighbours of narrow formats; of 16-bit ones every 7th pair, which meets every binade.
    stride = 1 if f.storage_bits <= 8 else 7
    for low, high in list(pairwise(values))[::stride]:
        assert quantum(low, f) == Fraction(high) - Fraction(low)
        assert quantum(-low, f) == quantum((Fraction(low) + Fraction(high)) / 2, f)
    # The grid goes on above the largest value; twice it lies one binade higher.
    assert quantum(2 * f.max_finite, f) == 2 * quantum(f.max_finite, f)


@pytest.mark.parametrize("name", FORMATS)
def test_overflow_begins_exactly_at_the_threshold(name: str) -> None:
    f = FORMATS[name]
    at, tiny = Fraction(f.overflow_threshold), Fraction(1, 10**30)
    largest = f.max_code
    past = f.inf_code if f.has_inf else f.nan_code if f.has_nan else largest
    assert encode(at - tiny, f, saturate=False) == largest
    assert encode(at, f, saturate=False) == (past if f.overflows_at_threshold else largest)
    assert encode(at + tiny, f, saturate=False) == past
    assert encode(at + tiny, f, saturate=True) == largest
    assert encode(Fraction(10) ** 400, f, saturate=False) == past
    assert encode(Fraction(10) ** 400, f, saturate=False, rounding="zero") == largest


@pytest.mark.parametrize("name", [n for n in SIGNED if n != "fp32"])
def test_underflow_begins_exactly_at_half_the_smallest_value(name: str) -> None:
    f = FORMATS[name]
    smallest, tiny = Fraction(f.min_subnormal), Fraction(1, 10**60)
    step = 1 << f.padding_bits
    minus_zero = f.sign_mask if f.has_negative_zero else 0
    assert encode(smallest / 2 + tiny, f, saturate=False) == step
    assert encode(smallest / 2, f, saturate=False) == 0
    assert encode(-smallest / 2, f, saturate=False) == minus_zero
    assert encode(-smallest / 2 - tiny, f, saturate=False) == f.sign_mask | step
    assert encode(-smallest + tiny, f, saturate=False, rounding="zero") == minus_zero
    assert encode(-0.0, f, saturate=False) == minus_zero


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("name", [n for n, f in FORMATS.items() if f.has_nan])
def test_nan_is_tested_before_saturation(name: str, saturate: bool) -> None:
    f = FORMATS[name]
    for value in (math.nan, -math.nan):
        assert f.is_nan(encode(value, f, saturate=saturate))


@pytest.mark.parametrize(
    ("name", "saturated", "otherwise"),
    [
        ("e4m3", 448.0, math.nan),
        ("e4m3_ieee", 240.0, math.inf),
        ("e5m2", 57344.0, math.inf),
        ("e4m3fnuz", 240.0, math.nan),
        ("e5m2fnuz", 57344.0, math.nan),
        ("fp16", 65504.0, math.inf),
        ("e8m0", 2.0**127, math.nan),
        ("e2m1", 6.0, 6.0),
        ("e3m2", 28.0, 28.0),
        ("e2m3", 7.5, 7.5),
    ],
)
def test_inf_and_overflow_by_the_conversion_table(
    name: str, saturated: float, otherwise: float
) -> None:
    f = FORMATS[name]
    for value in (math.inf, 1e300):
        for sign in (1, -1) if f.signed else (1,):
            sat = round_value(sign * value, f, saturate=True)
            raw = round_value(sign * value, f, saturate=False)
            assert same_values([sat, raw], np.array([sign * saturated, sign * otherwise])) == []
    # Rounding toward zero overflows nowhere, but an Inf stays what it was.
    assert round_value(1e300, f, saturate=False, rounding="zero") == f.max_finite
    raw = round_value(math.inf, f, saturate=False, rounding="zero")
    assert same_values([raw], np.array([otherwise])) == []


@pytest.mark.parametrize("value", ["1.0", None, np.float32(1.0), True, 1j])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(FormatError, match=r"of type .* to bf16; allowed: float, int, Fraction"):
        encode(value, get("bf16"), saturate=True)  # type: ignore[arg-type]


def test_an_unknown_rounding_is_refused() -> None:
    with pytest.raises(FormatError) as error:
        encode(1.0, get("bf16"), saturate=True, rounding="up")  # type: ignore[arg-type]
    assert str(error.value) == (
        "unknown rounding 'up'; allowed: nearest, zero, stochastic\n\n"
        "hint: 'nearest' is to nearest with ties to even"
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_quantum_refuses_non_finite_values(value: float) -> None:
    with pytest.raises(FormatError, match=r"no spacing of bf16 at .*; allowed: finite values"):
        quantum(value, get("bf16"))
