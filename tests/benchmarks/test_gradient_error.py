"""The limits of gradient error, at a size that a test can afford: no number here depends on time.

Over all parameters, against torch.amp with its own kernels and with the repaired ones: 1.10 for
recipes which keep torch.amp's residual stream, since they round where it rounds (the tied weight's
gradient once more, as it is summed in 16 bits: small beside the error of a whole backward pass);
1.6 where the residual stream is 16-bit too, one more rounding in each of a block's two additions.
"""

from __future__ import annotations

import gradient_error
import pytest
import sums
import torch
from models import DTYPES, make_task


@pytest.mark.parametrize("name", ["gpt", "resnet", "lstm"])
def test_no_recipe_exceeds_its_limit(name: str) -> None:
    rows, _ = gradient_error.measure_model(name, "small", 3)
    assert [row.recipe for row in rows] == list(gradient_error.LIMITS)
    for row in rows:
        assert row.is_met, row
        # an error below the format's own rounding would mean that nothing ran in 16 bits
        eps = torch.finfo(DTYPES[row.recipe[:4]]).eps
        assert eps / 8 < row.ours.overall < row.ours.worst, row


def test_a_wide_residual_stream_is_worth_its_bytes() -> None:
    rows, _ = gradient_error.measure_model("gpt", "small", 3)
    errors = {row.recipe: row.ours.overall for row in rows}
    for compute in ("bf16", "fp16"):
        assert errors[f"{compute}(residual=fp32)"] < errors[compute]


def test_fp32_has_fp32s_error() -> None:
    task = make_task("gpt", "small")
    reference = gradient_error.reference_gradients(task)
    # some hundred roundings in a row, each 2^-24 at most
    assert gradient_error.measure_recipe(task, "fp32", reference).overall < 300 * 2.0**-24


def test_sums_are_within_one_rounding_of_fp32s_and_stock_kernels_are_not() -> None:
    rows = sums.compare_sums()
    assert [(row.name, row.compute) for row in rows] == [
        (name, compute)
        for name in ("LayerNorm", "embedding", "index")
        for compute in ("bf16", "fp16")
    ]
    for row in rows:
        stock, repaired = row.roundings
        assert repaired <= 1.0 < stock, row


def test_the_error_is_of_all_parameters_and_the_worst_is_named() -> None:
    reference = {"a": torch.tensor([3.0, 0.0]).double(), "b": torch.tensor([4.0]).double()}
    found = {"a": torch.tensor([3.0, 1.5]).double(), "b": torch.tensor([6.0]).double()}
    error = gradient_error._error(found, reference)
    assert error.overall == 0.5  # sqrt(1.5^2 + 2^2) / sqrt(3^2 + 4^2)
    assert error.worst == 0.5

    found["b"] = torch.tensor([7.0]).double()
    worse = gradient_error._error(found, reference)
    assert (worse.worst, worse.worst_name) == (0.75, "b")


def test_a_missed_limit_is_missed() -> None:
    def error(overall: float) -> gradient_error.GradientError:
        return gradient_error.GradientError(overall=overall, worst=1.0, worst_name="w")

    def row(ours: float, stock: float | None, repaired: float | None) -> gradient_error.ErrorRow:
        known = [None if x is None else error(x) for x in (stock, repaired)]
        return gradient_error.ErrorRow(
            task="gpt",
            recipe="bf16",
            ours=error(ours),
            stock=known[0],
            repaired=known[1],
            limit=1.1,
        )

    assert row(1.0, 1.0, 1.0).is_met
    assert not row(1.2, 2.0, 1.0).is_met  # the better of torch.amp's two counts
    assert row(1.0, None, None).is_met
    assert not row(float("nan"), None, None).is_met
