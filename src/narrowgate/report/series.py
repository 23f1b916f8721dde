"""Curves from runs: smoothed, spread over seeds, thinned. Numbers in, numbers out.

Nothing that a reader would act on is lost on the way to a chart: a smoothed curve keeps its highest
and lowest points however much it is thinned, a loss scale keeps every change, and where a run's
numbers stopped being finite is told apart from where it ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from narrowgate.records import Run

__all__ = [
    "NUM_STRETCHES",
    "Break",
    "Spread",
    "changes",
    "first_break",
    "loss_curve",
    "smooth",
    "spread",
    "thin",
    "window_of",
]

#: Stretches of a curve that a chart can tell apart; each keeps its extremes.
NUM_STRETCHES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Where a run's loss first was not finite.

    Attributes:
        step: The step.
        value: NaN or an infinity.
        before: The last finite loss before it; NaN if there was none.
        num: How many losses of the run were not finite.
    """

    step: int
    value: float
    before: float
    num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Curves of several seeds, reduced to three. At each step over the seeds that are finite there.

    Attributes:
        steps: The steps that any of them has, in order.
        median: The median over seeds; NaN where none is finite.
        low: The smallest.
        high: The largest.
    """

    steps: tuple[int, ...]
    median: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def loss_curve(run: Run) -> dict[int, float]:
    """Give a run's loss by step, of its first optimizer.

    Args:
        run: The run.

    Returns:
        The losses; empty if not a single finite one was recorded, as in a script that calls
        ``loss.backward()`` itself.
    """
    steps = run.steps
    curve = {steps.step[row]: steps.loss[row] for row in steps.main_rows}
    return curve if any(math.isfinite(loss) for loss in curve.values()) else {}


def first_break(curve: Mapping[int, float]) -> Break | None:
    """Find where a curve first was not finite.

    Args:
        curve: Loss by step, in order.

    Returns:
        The place; None if all of it is finite.
    """
    found: tuple[int, float, float] | None = None
    before, num = math.nan, 0
    for step, loss in curve.items():
        if math.isfinite(loss):
            before = loss if found is None else before
        else:
            num += 1
            found = found or (step, loss, before)
    return found and Break(step=found[0], value=found[1], before=found[2], num=num)


def window_of(num_steps: int) -> int:
    """Choose how many steps a smoothed point is the mean of: a fortieth of the curve, at least 1.

    Args:
        num_steps: Steps of the longest run.
    """
    return max(1, num_steps // 40)


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Average each value with those before it.

    Args:
        values: Any numbers.
        window: How many values a mean is of, its own included; at the beginning fewer.

    Returns:
        One mean per value, over the finite ones; NaN where the value itself is not finite.

    Numerics:
        Sums are built up from both ends of blocks as long as the window, never by taking away what
        left it: a spike of 1e30 leaves no residue in the means after it.
    """
    if all(map(math.isfinite, values)):
        sums = _window_sums(values, window)
        return [total / min(place, window) for place, total in enumerate(sums, start=1)]
    finite = [value if math.isfinite(value) else 0.0 for value in values]
    counted = [1.0 if math.isfinite(value) else 0.0 for value in values]
    sums, counts = _window_sums(finite, window), _window_sums(counted, window)
    return [
        total / count if math.isfinite(value) else math.nan
        for value, total, count in zip(values, sums, counts, strict=True)
    ]


def _window_sums(values: Sequence[float], window: int) -> list[float]:
    length = len(values)
    from_start, from_end = list(values), list(values)
    for i in range(1, length):
        if i % window:
            from_start[i] += from_start[i - 1]
    for i in range(length - 2, -1, -1):
        if (i + 1) % window:
            from_end[i] += from_end[i + 1]
    sums = []
    for i in range(length):
        first = i - window + 1
        whole = first < 0 or first % window == 0
        sums.append(from_start[i] if whole else from_start[i] + from_end[first])
    return sums


def spread(curves: Sequence[Mapping[int, float]]) -> Spread:
    """Reduce curves of several seeds to median, smallest and largest.

    Args:
        curves: Value by step; a seed that ended early lacks the later steps.
    """
    found: dict[int, list[float]] = {}
    for curve in curves:
        for step, value in curve.items():
            values = found.setdefault(step, [])
            if math.isfinite(value):
                values.append(value)
    steps = tuple(sorted(found))
    columns: list[tuple[float, float, float]] = []
    for step in steps:
        values = sorted(found[step])
        if values:
            half = len(values) // 2
            middle = values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2
            columns.append((middle, values[0], values[-1]))
        else:
            columns.append((math.nan, math.nan, math.nan))
    median, low, high = zip(*columns, strict=True) if columns else ((), (), ())
    return Spread(steps=steps, median=tuple(median), low=tuple(low), high=tuple(high))


def thin(length: int, *columns: Sequence[float]) -> list[int]:
    """Choose the points of a long curve that a chart needs.

    Args:
        length: Number of points.
        columns: The values that are drawn over them.

    Returns:
        Places in order: all of a short curve. Of a long one, for each of 200 stretches the places
        where a column is lowest, highest or not finite for the first time; and the two ends.
    """
    if length <= 4 * NUM_STRETCHES:
        return list(range(length))
    kept = {0, length - 1}
    for k in range(NUM_STRETCHES):
        places = range(k * length // NUM_STRETCHES, (k + 1) * length // NUM_STRETCHES)
        for column in columns:
            finite = [i for i in places if math.isfinite(column[i])]
            if finite:
                kept.add(min(finite, key=column.__getitem__))
                kept.add(max(finite, key=column.__getitem__))
            if len(finite) < len(places):
                kept.add(next(i for i in places if not math.isfinite(column[i])))
    return sorted(kept)


def changes(values: Sequence[float]) -> list[int]:
    """Choose the points at which a stepped curve changes, and its two ends.

    Args:
        values: The curve.
    """
    last = len(values) - 1
    return [i for i, value in enumerate(values) if i in (0, last) or value != values[i - 1]]
