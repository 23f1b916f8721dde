"""The test behind a verdict: is the candidate worse by more than the margin, and how sure is that?

Every difference is that of one seed, candidate against baseline, positive where the candidate is
worse. A one-sided Student t bound of their mean on each side decides: *pass* if the upper one lies
below the margin, *fail* if the lower one lies above it, *inconclusive* otherwise. Looking again
costs: look k at the same gate spends 0.05 / 2^k, so that all looks together stay below 0.05.

t and not a bootstrap: at five seeds a nominal 90 % BCa interval covers 78 %. The quantile of t is
found from the closed series that its distribution has at whole degrees of freedom, in decimal
arithmetic, so that no tail is lost to cancellation; it is the nearest double.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from statistics import NormalDist

from narrowgate.records.verdict import Outcome

__all__ = [
    "FEWEST_PAIRS",
    "Decision",
    "alpha_of",
    "decide",
    "num_seeds_for",
    "power",
    "t_quantile",
]

#: Fewer pairs than this answer nothing.
FEWEST_PAIRS = 3

_ALPHA = 0.05  # what all looks at one gate spend together, on either side
_POWER = 0.80
_MOST_SEEDS = 1_000  # beyond, "how many seeds" is no advice


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the differences say about the margin.

    Attributes:
        outcome: pass, fail or inconclusive.
        mean: Their mean; NaN of nothing.
        sd: Their standard deviation (n - 1); NaN of fewer than two.
        lower: Lower one-sided bound of the mean; NaN if there were too few for one.
        upper: Upper one.
    """

    outcome: Outcome
    mean: float
    sd: float
    lower: float
    upper: float


def alpha_of(look: int) -> float:
    """Give what a look spends on each side: 0.025, 0.0125, ...

    Args:
        look: Its number, from 1.

    Example:
        >>> alpha_of(1), alpha_of(3)
        (0.025, 0.00625)
    """
    return math.ldexp(_ALPHA, -look)


def decide(differences: Sequence[float], margin: float, alpha: float | None) -> Decision:
    """Decide whether differences stay below a margin.

    Args:
        differences: One finite number per seed, positive where the candidate is worse.
        margin: How much worse the mean may be.
        alpha: The risk of a wrong answer on each side, 0 to 0.5; None: take no bounds, answer
            nothing.

    Returns:
        The decision. Equal differences decide by their mean; a bound or a mean that equals the
        margin is inconclusive, as are fewer than three differences.

    Numerics:
        Sums are exact before they are rounded, and taken of differences scaled by a power of two,
        so that neither 1e308 nor 1e-320 overflows or vanishes on the way.
    """
    num = len(differences)
    if not num:
        return Decision(
            outcome="inconclusive", mean=math.nan, sd=math.nan, lower=math.nan, upper=math.nan
        )
    largest = max(map(abs, differences))
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest else 1.0
    scaled = [value / scale for value in differences]
    if min(scaled) == max(scaled):  # a mean of equal numbers must not be rounded
        mean, sd = scaled[0], 0.0 if num > 1 else math.nan
    else:
        mean = math.fsum(scaled) / num
        sd = math.sqrt(math.fsum((value - mean) ** 2 for value in scaled) / (num - 1))
    if num < FEWEST_PAIRS or alpha is None:
        return Decision(
            outcome="inconclusive",
            mean=mean * scale,
            sd=sd * scale,
            lower=math.nan,
            upper=math.nan,
        )
    half = t_quantile(alpha, num - 1) * sd / math.sqrt(num) if sd else 0.0
    lower, upper = mean - half, mean + half
    limit = margin / scale
    outcome: Outcome = "inconclusive"
    if upper < limit:
        outcome = "pass"
    elif lower > limit:
        outcome = "fail"
    return Decision(
        outcome=outcome,
        mean=mean * scale,
        sd=sd * scale,
        lower=lower * scale,
        upper=upper * scale,
    )


def num_seeds_for(decision: Decision, margin: float, alpha: float) -> int | None:
    """Say how many seeds in all are likely to be enough for an answer.

    Args:
        decision: What was seen so far.
        margin: How much worse the mean may be.
        alpha: What the next look will spend.

    Returns:
        The fewest seeds at which an answer has a chance of 80 % if the observed mean and standard
        deviation are the true ones. None if that takes more than 1,000, or cannot be said.
    """
    distance = abs(margin - decision.mean)
    if not (decision.sd > 0 and distance > 0 and math.isfinite(distance / decision.sd)):
        return None
    effect = distance / decision.sd
    normal = NormalDist()
    if alpha <= 0:
        return None
    # Were the deviation known, this many would be enough: the t test never needs fewer.
    known = ((normal.inv_cdf(_POWER) - normal.inv_cdf(alpha)) / effect) ** 2
    if known > _MOST_SEEDS:
        return None
    num = max(FEWEST_PAIRS, math.ceil(known))
    while num <= _MOST_SEEDS:
        if power(num, effect, alpha) >= _POWER:
            return num
        num += 1
    return None


def power(num_seeds: int, effect: float, alpha: float) -> float:
    """Give the chance that a one-sided t test finds an effect.

    Args:
        num_seeds: Number of differences, at least 2.
        effect: Distance of the true mean from the margin, in true standard deviations.
        alpha: Risk of the test.

    Returns:
        The upper tail of the noncentral t distribution at the test's threshold.
    """
    df = num_seeds - 1
    threshold = t_quantile(alpha, df)
    shift = effect * math.sqrt(num_seeds)
    # With s the observed over the true deviation, the chance given s is that of a normal above
    # threshold * s - shift. Taken over u = log s, the density of s falls off exponentially on both
    # sides, where the trapezoid rule gains digits with every halving of its step.
    width = 1.0 / math.sqrt(2.0 * df)  # about the deviation of u
    begin, end, num_points = -40.0 / df - 12.0 * width, math.log1p(14.0 * width), 400
    step = (end - begin) / num_points
    log_factor = math.log(2.0) + 0.5 * df * math.log(0.5 * df) - math.lgamma(0.5 * df)
    total = 0.0
    for place in range(num_points + 1):
        u = begin + place * step
        s = math.exp(u)
        density = math.exp(log_factor + df * u - 0.5 * df * s * s)
        total += density * 0.5 * math.erfc((threshold * s - shift) / math.sqrt(2.0))
    return min(1.0, total * step)


@functools.lru_cache(maxsize=4096)
def t_quantile(alpha: float, df: int) -> float:
    """Give the value that Student's t exceeds with a given chance.

    Args:
        alpha: The chance, 0 to 0.5.
        df: Degrees of freedom, at least 1.

    Returns:
        The double nearest to it; infinity for a chance of 0, and beyond the largest double.

    Example:
        >>> round(t_quantile(0.025, 4), 4)
        2.7764
    """
    if alpha <= 0.0:
        return math.inf
    if alpha >= 0.5:
        return 0.0
    # The tail is 1 minus a sum near 1: as many digits more as the tail has zeros.
    digits = 40 - math.floor(math.log10(alpha))
    with localcontext(Context(prec=digits)):
        chance = Decimal(alpha)
        high = 1.0
        while _tail(high, df, digits) > chance:
            high *= 2.0
            if math.isinf(high):
                return high
        low = 0.0 if high == 1.0 else high / 2.0
        while math.nextafter(low, math.inf) < high:
            middle = low + (high - low) / 2.0
            if _tail(middle, df, digits) > chance:
                low = middle
            else:
                high = middle
        # The tail is all but straight between neighbours.
        nearer_low = _tail(low, df, digits) - chance < chance - _tail(high, df, digits)
        return low if nearer_low else high


def _tail(t: float, df: int, digits: int) -> Decimal:
    """Give the chance that Student's t exceeds t, by its closed series at whole df.

    With tan(angle) = t / sqrt(df), the chance of |T| < t is, for even df, sin * (1 + 1/2 cos^2 +
    1*3/(2*4) cos^4 + ...) up to cos^(df - 2), and for odd df 2/pi * (angle + sin * (cos +
    2/3 cos^3 + 2*4/(3*5) cos^5 + ...)) up to the same power.
    """
    x = Decimal(t)
    whole = x * x + df
    cos2 = df / whole
    sin = x / whole.sqrt()
    odd = df % 2
    term = total = Decimal(0 if df == 1 else 1)
    for j in range(1, (df - odd) // 2):
        term *= cos2 * (2 * j - 1 + odd) / (2 * j + odd)
        total += term
    if not odd:
        return (1 - sin * total) / 2
    angle = _arctan(x / Decimal(df).sqrt())
    return Decimal(1) / 2 - (angle + sin * cos2.sqrt() * total) / _pi(digits)


def _arctan(x: Decimal) -> Decimal:
    """Give the arc tangent: halve the angle until its Taylor series is short."""
    num_halvings = 0
    while x > Decimal("0.02"):
        x /= 1 + (1 + x * x).sqrt()
        num_halvings += 1
    square, power_of_x, total, place = x * x, x, Decimal(0), 1
    while (more := total + power_of_x / place) != total:
        total, power_of_x, place = more, -power_of_x * square, place + 2
    return total * (1 << num_halvings)


@functools.lru_cache(maxsize=64)
def _pi(digits: int) -> Decimal:
    """Give pi to as many digits, by Machin's formula."""
    with localcontext(Context(prec=digits + 5)):
        return 16 * _arctan(Decimal(1) / 5) - 4 * _arctan(Decimal(1) / 239)
