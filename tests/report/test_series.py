"""What is done to a curve on its way to a chart, and what is not lost on it."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from narrowgate.records import Steps
from narrowgate.report.series import (
    changes,
    first_break,
    loss_curve,
    smooth,
    spread,
    thin,
    window_of,
)
from report import sample


@pytest.mark.parametrize("length", [0, 1, 2, 7, 40, 101])
@pytest.mark.parametrize("window", [1, 2, 5, 40, 200])
def test_a_smoothed_value_is_the_mean_of_the_last_ones(length, window):
    draw = random.Random(length)
    values = [draw.gauss(0, 1) for _ in range(length)]
    wanted = [np.mean(values[max(0, i + 1 - window) : i + 1]) for i in range(length)]
    np.testing.assert_allclose(smooth(values, window), wanted, rtol=1e-12, atol=1e-12)


def test_a_spike_leaves_no_residue():
    values = [1.0] * 10 + [1e30] + [1.0] * 20
    assert smooth(values, 4)[14:] == [1.0] * 17


def test_a_value_that_is_not_finite_stays_a_gap_and_does_not_spread():
    assert smooth([1.0, math.nan, 3.0, math.inf], 2)[::2] == [1.0, 3.0]
    assert all(math.isnan(value) for value in smooth([1.0, math.nan, 3.0, math.inf], 2)[1::2])


def test_the_window_is_a_fortieth_of_the_run():
    assert [window_of(n) for n in (0, 30, 200, 100_000)] == [1, 1, 5, 2500]


def test_seeds_that_end_early_or_are_not_finite_are_left_out_of_the_spread():
    found = spread([{1: 1.0, 2: 5.0, 3: math.nan}, {1: 3.0, 2: math.inf}, {1: 2.0}])
    assert found.steps == (1, 2, 3)
    assert found.median[:2] == (2.0, 5.0)
    assert found.low[:2] == (1.0, 5.0)
    assert found.high[:2] == (3.0, 5.0)
    assert math.isnan(found.median[2])


def test_thinning_keeps_the_extremes_the_ends_and_every_gap():
    draw = random.Random(0)
    values = [draw.gauss(0, 1) for _ in range(50_000)]
    values[12_345], values[23_456], values[34_567] = 99.0, -99.0, math.nan
    kept = thin(len(values), values)
    assert {0, 12_345, 23_456, 34_567, len(values) - 1} <= set(kept)
    assert kept == sorted(set(kept))
    assert len(kept) <= 202 * 3


def test_a_short_curve_is_not_thinned():
    assert thin(800, [0.0] * 800) == list(range(800))


def test_a_stepped_curve_keeps_every_change():
    assert changes([4.0, 4.0, 2.0, 2.0, 2.0, 4.0, 4.0]) == [0, 2, 5, 6]
    assert changes([]) == []


def test_the_first_loss_that_is_not_finite_is_found_with_the_last_before_it():
    where = first_break({1: 2.0, 2: 1.5, 3: math.inf, 4: 1.0, 5: math.nan})
    assert (where.step, where.value, where.before, where.num) == (3, math.inf, 1.5, 2)
    assert first_break({1: 2.0}) is None
    assert math.isnan(first_break({1: math.nan, 2: 1.0}).before)


def test_losses_of_a_script_that_calls_backward_itself_are_no_curve():
    steps = sample.steps_of("fp32", 0, 5)
    run = sample.run("fp32", 0, 5, steps=replace(steps, loss=(math.nan,) * 5))
    assert loss_curve(run) == {}


def test_only_the_first_optimizer_makes_the_curve():
    steps = Steps(
        t=(0.0, 0.1), step=(1, 1), optimizer=(0, 1), loss=(2.0, 9.0), applied=(True, True),
        reason=("", ""), loss_scale=(1.0, 1.0), grad_norm=(1.0, 1.0), culprit=(None, None),
        data=(None, None),
    )  # fmt: skip
    assert loss_curve(sample.run("fp32", 0, 5, steps=steps)) == {1: 2.0}
