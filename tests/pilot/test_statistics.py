"""The quantile, the bounds, the rule and the number of seeds, against scipy and by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy import stats

from narrowgate.pilot.statistics import (
    Decision,
    alpha_of,
    decide,
    num_seeds_for,
    t_quantile,
)

ALPHAS = [0.05 / 2**look for look in range(13)]
INF = math.inf


@pytest.mark.parametrize("alpha", ALPHAS)
def test_quantiles_are_scipys(alpha):
    df = np.array([*range(1, 41), *range(41, 501, 17), 500])
    ours = np.array([t_quantile(alpha, int(n)) for n in df])
    # scipy promises no last digits: it was seen to be off by 35 ulps where ours was right.
    assert np.abs(ours / -stats.t.ppf(alpha, df) - 1).max() <= 1e-14


@pytest.mark.parametrize("alpha", [0.05, 0.025, 0.3, ALPHAS[-1]])
def test_quantiles_are_the_nearest_doubles(alpha):
    # Exact: with one degree of freedom t = cot(pi alpha), with two a root of a quadratic.
    exact = (1 - 2 * Fraction(alpha)) ** 2 * 2 / (1 - (1 - 2 * Fraction(alpha)) ** 2)
    ours = t_quantile(alpha, 2)
    below, above = (Fraction(math.nextafter(ours, to)) for to in (0.0, INF))
    assert ((below + Fraction(ours)) / 2) ** 2 <= exact <= ((above + Fraction(ours)) / 2) ** 2
    assert t_quantile(alpha, 1) == pytest.approx(1 / math.tan(math.pi * alpha), rel=4e-16)


def test_quantiles_of_looks_that_nobody_takes():
    # The tail with one degree of freedom is 1 / (pi t), with two 1 / (2 t^2), this far out.
    assert t_quantile(1e-149, 1) == pytest.approx(1e149 / math.pi, rel=4e-16)
    assert t_quantile(1e-149, 2) == pytest.approx(math.sqrt(0.5e149), rel=4e-16)
    assert t_quantile(alpha_of(600), 4) == INF
    assert t_quantile(alpha_of(10**9), 4) == INF
    assert t_quantile(0.5, 4) == 0.0


def test_looks_spend_halves_that_stay_below_five_percent():
    assert [alpha_of(look) for look in (1, 2, 3)] == [0.025, 0.0125, 0.00625]
    assert sum(alpha_of(look) for look in range(1, 2_000)) <= 0.05


VALUES = some.lists(some.floats(-1e6, 1e6), min_size=3, max_size=12)


@given(VALUES, some.floats(-1e6, 1e6), some.sampled_from(ALPHAS))
def test_the_rule_is_two_one_sided_t_tests(values, margin, alpha):
    values = [round(value, 3) for value in values]  # so that scipy's own sums are no question
    found = decide(values, margin, alpha)
    if np.std(values) < 1e-3:
        return
    less = stats.ttest_1samp(values, margin, alternative="less").pvalue
    greater = stats.ttest_1samp(values, margin, alternative="greater").pvalue
    expected = "pass" if less < alpha else "fail" if greater < alpha else "inconclusive"
    # Where a p value is alpha to 1e-9, the two may differ by rounding.
    if min(abs(less - alpha), abs(greater - alpha)) > 1e-9:
        assert found.outcome == expected


@given(VALUES, some.sampled_from(ALPHAS))
def test_bounds_are_scipys(values, alpha):
    found = decide(values, 0.0, alpha)
    mean, scale = np.mean(values), stats.sem(values)
    if scale > 1e-9 * max(map(abs, values)):
        low, high = stats.t.interval(1 - 2 * alpha, len(values) - 1, loc=mean, scale=scale)
        slack = 1e-6 * scale + 1e-9 * abs(mean)
        assert found.lower == pytest.approx(low, abs=slack)
        assert found.upper == pytest.approx(high, abs=slack)
        assert found.sd == pytest.approx(np.std(values, ddof=1), rel=1e-6)


@given(VALUES, some.floats(-1e6, 1e6), some.integers(-1000, 900))
def test_the_unit_does_not_matter(values, margin, exponent):
    values = [round(value, 6) for value in values]
    margin = round(margin, 6)
    scaled = [math.ldexp(value, exponent) for value in values]
    if any(math.ldexp(x, -exponent) != v for x, v in zip(scaled, values, strict=True)):
        return  # it fell below what FP64 holds
    if math.ldexp(math.ldexp(margin, exponent), -exponent) == margin:
        one, other = (
            decide(values, margin, 0.025),
            decide(scaled, math.ldexp(margin, exponent), 0.025),
        )
        assert one.outcome == other.outcome
        assert math.ldexp(one.mean, exponent) == other.mean


@pytest.mark.parametrize(
    ("values", "margin", "outcome"),
    [
        ([0.1] * 3, math.nextafter(0.1, 1), "pass"),
        ([0.1] * 3, 0.1, "inconclusive"),
        ([0.1] * 7, math.nextafter(0.1, 0), "fail"),
        ([0.0, -0.0, 0.0], 5e-324, "pass"),
        ([-0.0] * 3, 0.0, "inconclusive"),
        ([1e308] * 5, 1.1e308, "pass"),
        ([1.7e308, 1.7e308, 1.6e308], 1e307, "fail"),
        ([1.7e308, -1.7e308, 1.6e308], 1e308, "inconclusive"),
        ([5e-324, 0.0, 5e-324], 1.0, "pass"),
        ([5e-324] * 3, 5e-324, "inconclusive"),
        ([1e-320, 2e-320, 3e-320], 1e308, "pass"),
        ([-1.0] * 100, 0.5, "pass"),
        ([2.0], 1.0, "inconclusive"),
        ([0.0, 0.0], 1.0, "inconclusive"),
        ([], 1.0, "inconclusive"),
    ],
)
def test_extreme_differences_are_decided(values, margin, outcome):
    assert decide(values, margin, 0.025).outcome == outcome


def test_a_mean_of_equal_numbers_is_not_rounded():
    for num in range(3, 101):
        found = decide([0.1] * num, 1.0, 0.025)
        assert (found.mean, found.sd, found.lower, found.upper) == (0.1, 0.0, 0.1, 0.1)


def test_bounds_that_touch_the_margin_are_inconclusive():
    found = decide([1.0, 2.0, 4.0], 0.0, 0.025)
    for bound in (found.lower, found.upper):
        # The bound was rounded as the margin is compared: in units of a power of two.
        assert decide([1.0, 2.0, 4.0], bound, 0.025).outcome == "inconclusive"


def test_too_few_have_a_mean_but_no_bounds():
    one, two = decide([2.0], 1.0, 0.025), decide([2.0, 4.0], 1.0, 0.025)
    assert (one.mean, two.mean, two.sd) == (2.0, 3.0, math.sqrt(2.0))
    assert math.isnan(one.sd)
    assert all(map(math.isnan, (one.lower, one.upper, two.lower, two.upper)))
    untested = decide([1.0, 2.0, 3.0], 9.0, None)
    assert (untested.outcome, untested.mean, untested.sd) == ("inconclusive", 2.0, 1.0)
    assert math.isnan(untested.upper)


def seen(mean, sd):
    return Decision(outcome="inconclusive", mean=mean, sd=sd, lower=-INF, upper=INF)


def test_seeds_needed_are_the_noncentral_ts_within_one():
    effects = (0.12, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 20.0, 400.0)
    num = np.arange(3, 1001)
    off = []
    for alpha in (0.025, 0.0125, ALPHAS[5], ALPHAS[-1]):
        threshold = stats.t.isf(alpha, num - 1)
        for effect in effects:
            enough = num[stats.nct.sf(threshold, num - 1, effect * np.sqrt(num)) >= 0.8]
            ours = num_seeds_for(seen(0.0, 1.0), effect, alpha)
            if len(enough):
                assert ours is not None
                off.append(ours - enough[0])
            else:
                assert ours is None
    assert max(map(abs, off)) <= 1
    assert np.count_nonzero(off) <= len(off) / 20


def test_seeds_needed_look_at_the_distance_on_either_side():
    assert num_seeds_for(seen(1.0, 1.0), 2.0, 0.025) == num_seeds_for(seen(3.0, 1.0), 2.0, 0.025)


@pytest.mark.parametrize(
    ("mean", "sd", "alpha"),
    [(1.0, 1.0, 0.025), (0.0, 0.0, 0.025), (0.0, 1e3, 0.025), (0.0, 1e308, 0.025),
     (0.0, math.nan, 0.025), (math.nan, 1.0, 0.025), (0.0, 1.0, 0.0)],
)  # fmt: skip
def test_seeds_needed_are_not_made_up(mean, sd, alpha):
    assert num_seeds_for(seen(mean, sd), 1.0, alpha) is None
