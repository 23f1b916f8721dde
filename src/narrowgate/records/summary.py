"""What a run comes to: step times, skips, memory, and how busy the machine was.

Pure functions of a `Run`, used by whoever judges and by whoever draws, so that both see the same
numbers.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from narrowgate.records.files import dumps
from narrowgate.records.run import Run

__all__ = ["Summary", "num_warmup_steps", "percentile", "step_times", "summarise", "varies"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run comes to.

    Attributes:
        num_steps: Steps attempted, of all optimizers.
        num_skipped: Those not applied.
        median_step_s: Median time of a step without warm-up, seconds; NaN if there are too few.
        p95_step_s: 95th percentile of the same times.
        seconds: Wall time of the whole process where a pilot measured it, else up to the result.
        peak_bytes: Peak memory; NaN if there is no result.
        waited_share: How long its threads waited for a core, over the time in which they could run,
            or over wall time where that is longer; NaN if the system does not say.
        cores: CPU time over wall time: cores kept busy on average; NaN if unknown.
        data: SHA-256 of the checksums of what the models were given, step by step: of whole numbers
            alone where they vary, since floats may be the model's own; None if none was taken.
        curve: SHA-256 of losses, gradient norms, data checksums and results, bit for bit: equal for
            two runs that did the same.
    """

    num_steps: int
    num_skipped: int
    median_step_s: float
    p95_step_s: float
    seconds: float
    peak_bytes: float
    waited_share: float
    cores: float
    data: str | None
    curve: str


def num_warmup_steps(num_steps: int) -> int:
    """Say how many first steps are left out of times: a tenth, at least 1 and at most 10.

    Args:
        num_steps: Steps of the run.
    """
    return min(10, num_steps // 10 + 1)


def step_times(run: Run) -> tuple[float, ...]:
    """Give the times between successive steps of the main optimizer, without warm-up, in seconds.

    Args:
        run: The run.

    Returns:
        One time per step. What a script does between steps (validation, saving) is in them, as it
        is in the user's own waiting; the median does not see it.
    """
    times = [run.steps.t[row] for row in run.steps.main_rows]
    begin = num_warmup_steps(len(times))
    return tuple(b - a for a, b in zip(times[begin:], times[begin + 1 :], strict=False))


def percentile(values: tuple[float, ...], share: float) -> float:
    """Give a percentile by linear interpolation, as NumPy's default does.

    Args:
        values: Any numbers.
        share: 0 to 1.

    Returns:
        The percentile; NaN of nothing.
    """
    if not values:
        return math.nan
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarise(run: Run) -> Summary:
    """Reduce a run to what gates and tables need.

    Args:
        run: The run.

    Returns:
        The summary; what cannot be said is NaN or None.
    """
    times = step_times(run)
    cpu = waited = wall = math.nan
    if len(run.load) > 1:
        first, last = run.load[0], run.load[-1]
        cpu, waited = last.cpu_s - first.cpu_s, last.waited_s - first.waited_s
        wall = last.t - first.t
    seconds = math.nan
    if run.result is not None:
        seconds = run.result.seconds
    if run.ending is not None:
        seconds = run.ending.seconds
    result = None if run.result is None else (run.result.metrics, run.result.slices)
    steps = run.steps
    given = steps.data if varies(steps.data) else (steps.data, steps.floats)
    taken = any(value is not None for value in (*steps.data, *steps.floats))
    return Summary(
        num_steps=len(run.steps),
        num_skipped=sum(not applied for applied in run.steps.applied),
        median_step_s=statistics.median(times) if times else math.nan,
        p95_step_s=percentile(times, 0.95),
        seconds=seconds,
        peak_bytes=math.nan if run.result is None else float(run.result.peak_bytes),
        waited_share=waited / max(wall, waited + cpu) if wall > 0 else math.nan,
        cores=cpu / wall if wall > 0 else math.nan,
        data=_digest(given) if taken else None,
        curve=_digest((steps.loss, steps.grad_norm, steps.data, steps.floats, result)),
    )


def varies(checksums: Sequence[int | None]) -> bool:
    """Say whether checksums differ from step to step, so that they tell the order of the data.

    Args:
        checksums: One per step; None where none was taken.
    """
    return len({value for value in checksums if value is not None}) > 1


def _digest(value: object) -> str:
    return hashlib.sha256(dumps(value).encode()).hexdigest()
