from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from narrowgate.errors import RunError
from narrowgate.records.numbers import read, take, total


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1.5, 1.5),
        (3, 3.0),
        (True, 1.0),
        (2**80, float(2**80)),
        (Fraction(1, 4), 0.25),
        (Decimal("0.1"), 0.1),
        (math.inf, math.inf),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64(0.1), 0.1),
        (np.int8(-3), -3.0),
        (np.bool_(True), 1.0),
        (np.array([1, 2, 6], dtype=np.uint8), 3.0),
        (np.array([60000, 60000], dtype=np.float16), 60000.0),  # the sum is no fp16 number
        (np.array([1.0, 2.0], dtype=ml_dtypes.bfloat16), 1.5),
        (np.array([1.0, 2.0], dtype=ml_dtypes.float8_e4m3fn), 1.5),
        (torch.tensor(2.5), 2.5),
        (torch.tensor([2.5]), 2.5),
        (torch.tensor([[1, 2], [3, 6]]), 3.0),
        (torch.tensor([True, False]), 0.5),
        (torch.full((1000,), 10.0, dtype=torch.bfloat16), 10.0),
        (torch.full((1000,), 60000.0, dtype=torch.float16), 60000.0),
        (torch.tensor([0.5, 1.0]).to(torch.float8_e4m3fn), 0.75),
        (torch.tensor(0.1, dtype=torch.float64), 0.1),
        (torch.tensor(1.0, requires_grad=True), 1.0),
        (torch.nn.Parameter(torch.tensor([1.0, 3.0])), 2.0),
        (torch.tensor([1.0, math.inf]), math.inf),
    ],
    ids=str,
)
def test_a_number_is_taken_as_it_is(value: object, number: float) -> None:
    got = read(take("x", value))
    assert (type(got) in (float, int), got) == (True, number)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        torch.tensor(math.nan, dtype=torch.bfloat16),
        torch.empty(0, dtype=torch.float16),
        torch.tensor([math.inf, -math.inf]),
        np.empty(0, dtype=np.float16),
        np.float16("nan"),
    ],
    ids=str,
)
def test_nothing_and_what_is_no_number_are_nan(value: object) -> None:
    assert math.isnan(read(take("x", value)))


@pytest.mark.parametrize(
    "value",
    [
        "2.5",
        b"2",
        None,
        [1.0],
        {"a": 1},
        1j,
        np.complex64(1),
        torch.tensor(1j),
        object(),
        "nan",
        float,
        np.array(["a", "b"]),
        np.array([None]),
    ],
    ids=str,
)
def test_what_is_no_real_number_is_refused_by_name(value: object) -> None:
    with pytest.raises(RunError, match=r"^val_loss is ") as error:
        take("val_loss", value)
    assert error.value.hint is not None


def test_a_whole_number_beyond_fp64_is_refused() -> None:
    with pytest.raises(RunError, match="val_loss is a whole number of 401 digits"):
        take("val_loss", 10**400)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_was_taken_does_not_follow_a_later_change(dtype: torch.dtype) -> None:
    tensor = torch.tensor(2.0, dtype=dtype)
    taken = take("x", tensor)
    tensor.mul_(3)
    assert read(taken) == 2.0


def test_losses_are_summed_in_fp64() -> None:
    tenths = [torch.tensor(0.1, dtype=torch.float64) for _ in range(10)]
    assert total(tenths) == 1.0  # left to right it is 0.9999999999999999
    assert total([torch.full((2, 1000), 10.0, dtype=torch.bfloat16)]) == 20000.0
    assert total([]) is None
    assert math.isnan(total([torch.tensor(math.inf), torch.tensor(-math.inf)]) or 0.0)
    assert total([torch.tensor(math.inf), torch.tensor(1.0)]) == math.inf
    large = torch.tensor([1e308, 1e308], dtype=torch.float64)
    assert (total([large]), total([-large])) == (math.inf, -math.inf)
