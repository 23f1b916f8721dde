"""B085: what logs want to know of a tensor, 16- and 8-bit ones do not say: numpy, quantile, amax.

Broken invariant: whatever is logged is widened first. bf16, fp16 and fp8 tensors, empty ones and
ones with NaN or infinities are recorded as what they are; nothing raises and nothing is invented.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import narrowgate as ng
from narrowgate.records import load_run, script

NARROW = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


def test_plain_torch_has_the_fault() -> None:
    with pytest.raises(TypeError, match="unsupported ScalarType BFloat16"):
        torch.ones(1).bfloat16().numpy()
    with pytest.raises(RuntimeError, match="quantile"):
        torch.ones(1).half().quantile(0.5)
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.ones(1).to(torch.float8_e4m3fn).amax()


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_narrow_tensors_are_logged_and_reported(run: Path, dtype: torch.dtype) -> None:
    values = torch.tensor([0.5, 1.0, 1.5]).to(dtype)
    ng.log(step=1, mean=values, one=values[0], none=values[:0])
    ng.result(val_loss=values[2], slices={"a": {"val_loss": values}})
    found = load_run(run)
    assert found.logs[0].values["mean"] == 1.0
    assert found.logs[0].values["one"] == 0.5
    assert math.isnan(found.logs[0].values["none"])
    assert found.result is not None
    assert found.result.metrics == {"val_loss": 1.5}
    assert found.result.slices == {"a": {"val_loss": 1.0}}
    assert found.faults == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_what_it_is(run: Path, dtype: torch.dtype, value: float) -> None:
    ng.log(x=torch.tensor([value, 1.0]).to(dtype))
    script.close()
    got = load_run(run).logs[0].values["x"]
    assert math.isnan(got) if math.isnan(value) else got == value


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_large_finite_half_is_no_false_alarm(run: Path, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    ng.log(x=torch.full((4,), largest, dtype=dtype))  # summed in its own format this is infinite
    script.close()
    assert load_run(run).logs[0].values["x"] == largest
