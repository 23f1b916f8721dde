"""Where libraries disagree: what each one does, which side we take, and why.

Each test states the other library's behaviour too, so that it goes red when that changes and the
choice can be looked at again.
"""

from __future__ import annotations

import math

import gfloat
import ml_dtypes
import numpy as np
import pytest
from gfloat import RoundMode

from formats.oracles import GFLOAT, ML_DTYPES, finite_values, ml_encode
from narrowgate.errors import FormatError
from narrowgate.formats import FORMATS, decode, encode, get, round_value

E8M0 = FORMATS["e8m0"]
FP6_FP4 = ["e2m1", "e3m2", "e2m3"]


def ml(value: float, name: str) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.array([value], np.float32).astype(ML_DTYPES[name])[0])


def test_fnuz_saturating_inf_is_the_largest_value_as_in_gfloat_not_nan_as_in_onnx() -> None:
    # ONNX's cast table gives NaN for Inf in the fnuz formats even when saturating. We take
    # gfloat's side, and that of clip-then-cast: one rule for saturation in all formats.
    for name in ("e4m3fnuz", "e5m2fnuz"):
        f = FORMATS[name]
        assert gfloat.round_float(GFLOAT[name], math.inf, sat=True) == f.max_finite
        assert round_value(math.inf, f, saturate=True) == f.max_finite
        assert round_value(-math.inf, f, saturate=True) == -f.max_finite


@pytest.mark.parametrize("name", FP6_FP4)
def test_nan_in_a_format_without_nan_is_refused_as_in_gfloat_not_zero_as_in_ml_dtypes(
    name: str,
) -> None:
    # A NaN that becomes 0 in silence is a fault found weeks later.
    assert ml(math.nan, name) == 0.0
    with pytest.raises(ValueError, match="No NaN in format"):
        gfloat.round_float(GFLOAT[name], math.nan, sat=True)
    with pytest.raises(FormatError) as error:
        encode(math.nan, FORMATS[name], saturate=True)
    assert str(error.value) == (
        f"NaN has no code in {name}, whose {1 << FORMATS[name].bits} codes are all finite\n\n"
        "hint: test for NaN before converting; a block format carries it in the scale"
    )


@pytest.mark.parametrize("name", FP6_FP4)
def test_no_specials_means_saturate_always_as_in_ml_dtypes_not_raise_as_in_gfloat(
    name: str,
) -> None:
    f = FORMATS[name]
    assert ml(1e9, name) == ml(math.inf, name) == f.max_finite
    with pytest.raises(ValueError, match="No Infs or NaNs"):
        gfloat.round_float(GFLOAT[name], 1e9, sat=False)
    assert round_value(1e9, f, saturate=False) == round_value(1e9, f, saturate=True) == f.max_finite


def test_e8m0_ties_go_up_as_in_torch_and_ml_dtypes_not_to_the_even_code_as_in_gfloat() -> None:
    # With one significant bit both neighbours have an odd significand; IEEE 754-2019 (4.3.1) then
    # takes the larger one. Which code is even depends on the bias, which is no property of values.
    ties = [1.5 * v for v in finite_values(E8M0)[:-1]]
    x = np.array(ties, np.float32)
    ours = [encode(v, E8M0, saturate=True) for v in ties]
    assert ours == ml_encode(x, "e8m0", saturate=False).tolist() == list(range(1, 255))
    theirs = gfloat.round_ndarray(GFLOAT["e8m0"], np.array(ties), RoundMode.TiesToEven, True)
    differ = sum(decode(a, E8M0) != b for a, b in zip(ours, theirs.tolist(), strict=True))
    assert differ == 127  # every second one of 254


def test_e8m0_off_the_ties_all_agree() -> None:
    values = np.array(finite_values(E8M0), np.float32)
    with np.errstate(over="ignore"):
        x = np.concatenate(
            [values]
            + [
                np.nextafter(np.float32(s) * values, np.float32(t))
                for s in (1, 1.5)
                for t in (0, 1e38)
            ]
        )
    x = x[(x >= E8M0.min_normal) & (x < 1.5 * 2.0**127)]
    ours = [encode(v, E8M0, saturate=False) for v in x.tolist()]
    assert len(ours) > 1000
    assert ours == ml_encode(x, "e8m0", saturate=False).tolist()
    theirs = gfloat.round_ndarray(GFLOAT["e8m0"], x.astype(np.float64), RoundMode.TiesToEven, True)
    assert [decode(code, E8M0) for code in ours] == theirs.tolist()


def test_e8m0_zero_is_the_smallest_scale_as_in_torch_not_nan_as_in_ml_dtypes() -> None:
    # An all-zero MX block has the scale 2^-127 (OCP MX: code 0), so zero has to lead there.
    assert math.isnan(ml(0.0, "e8m0"))
    assert encode(0.0, E8M0, saturate=False) == encode(-0.0, E8M0, saturate=False) == 0


def test_e8m0_below_the_smallest_is_the_smallest_as_in_torch_and_ml_dtypes_not_gfloats_nan() -> (
    None
):
    for value in (2.0**-128, 2.0**-149):
        assert ml(value, "e8m0") == E8M0.min_normal
        code = gfloat.encode_float(
            GFLOAT["e8m0"], gfloat.round_float(GFLOAT["e8m0"], value, sat=True)
        )
        assert math.isnan(decode(code, E8M0))
        for mode in ("nearest", "zero"):
            assert encode(value, E8M0, saturate=False, rounding=mode) == 0  # type: ignore[arg-type]


def test_e8m0_negative_is_nan_as_in_ml_dtypes_not_its_magnitude_as_in_torch() -> None:
    # A negative scale is somebody's fault; to drop its sign would flip a whole block.
    for value in (-1.0, -(2.0**-140), -math.inf):
        assert math.isnan(ml(value, "e8m0"))
        for saturate in (True, False):
            assert E8M0.is_nan(encode(value, E8M0, saturate=saturate))


def test_e8m0_overflow_obeys_the_flag_as_in_gfloat_and_is_nan_without_as_in_ml_dtypes() -> None:
    fp32_max = FORMATS["fp32"].max_finite
    assert math.isnan(ml(fp32_max, "e8m0"))
    assert math.isnan(ml(math.inf, "e8m0"))
    assert gfloat.round_float(GFLOAT["e8m0"], fp32_max, sat=True) == 2.0**127
    for value in (fp32_max, math.inf):
        assert encode(value, E8M0, saturate=True) == E8M0.max_code
        assert encode(value, E8M0, saturate=False) == E8M0.nan_code


def test_nan_sign_and_payload_are_nobodys_so_nan_has_one_code_here() -> None:
    # e5m2: ml_dtypes gives 0x7E or 0xFE by sign. We always give nan_code, and compare by class.
    x = np.array([math.nan, -math.nan], np.float32)
    theirs = x.astype(ml_dtypes.float8_e5m2).view(np.uint8).tolist()
    assert theirs == [0x7E, 0xFE]
    assert [encode(v, get("e5m2"), saturate=False) for v in (math.nan, -math.nan)] == [0x7E, 0x7E]


def test_zero_rounding_never_overflows_to_inf() -> None:
    # IEEE 754-2019, 7.4. A cast by truncating bits agrees: it cannot reach the next binade.
    f = FORMATS["bf16"]
    assert (
        round_value(FORMATS["fp32"].max_finite, f, saturate=False, rounding="zero") == f.max_finite
    )
