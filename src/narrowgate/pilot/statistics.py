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

    Numerics:
        With threshold c and v degrees of freedom, t exceeds c with a chance of 80 % if its shift
        is c (1 - 1 / 4v) + z sqrt(1 + c^2 / 2v): the normal approximation of the noncentral t
        (Abramowitz and Stegun, 26.7.10), right to within one seed.
    """
    distance = abs(margin - decision.mean)
    if not (alpha > 0 and decision.sd > 0 and distance > 0):
        return None
    effect = distance / decision.sd
    z_power = NormalDist().inv_cdf(_POWER)
    # Were the deviation known, this many would be enough: the t test never needs fewer.
    known = ((z_power - NormalDist().inv_cdf(alpha)) / effect) ** 2
    if not known <= _MOST_SEEDS:
        return None
    for num in range(max(FEWEST_PAIRS, math.ceil(known)), _MOST_SEEDS + 1):
        df = num - 1
        threshold = t_quantile(alpha, df)
        spread = math.sqrt(1.0 + threshold * threshold / (2 * df))
        if effect * math.sqrt(num) >= threshold * (1.0 - 0.25 / df) + z_power * spread:
            return num
    return None


@functools.lru_cache(maxsize=16_384)
def t_quantile(alpha: float, df: int) -> float:
    """Give the value that Student's t exceeds with a given chance.

    Args:
        alpha: The chance, 0 to 0.5.
        df: Degrees of freedom, at least 1.

    Returns:
        The double nearest to it; infinity for a chance below 1e-150, which no look has that
        anybody takes.

    Example:
        >>> round(t_quantile(0.025, 4), 4)
        2.7764
    """
    if alpha < 1e-150:
        return math.inf
    if alpha >= 0.5:
        return 0.0
    # The tail is 1 minus a sum near 1: as many digits more as the tail has zeros.
    digits = 40 - math.floor(math.log10(alpha))
    log_factor = math.lgamma(0.5 * df + 0.5) - math.lgamma(0.5 * df) - 0.5 * math.log(math.pi * df)
    low, high = 0.0, math.inf
    z = -NormalDist().inv_cdf(alpha)
    t = max(0.0, z + (z**3 + z) / (4 * df))  # where many degrees of freedom would put it
    with localcontext(Context(prec=digits)):
        chance = Decimal(alpha)
        while True:
            excess = _tail(t, df, digits) - chance
            if excess > 0:
                low, over_low = t, excess
            else:
                high, under_high = t, -excess
            if math.nextafter(low, math.inf) >= high:
                # The tail is all but straight between neighbours.
                return low if over_low < under_high else high
            # The tail is convex: Newton's steps come to lie below the value and then do not pass
            # it but by rounding; then the neighbour is tried, and the bracket closes.
            log_density = log_factor - 0.5 * (df + 1) * math.log1p(t * t / df)
            t += float(excess) / math.exp(log_density)
            t = min(max(t, math.nextafter(low, math.inf)), math.nextafter(high, 0.0))


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
