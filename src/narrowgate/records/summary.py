"""What a run comes to: step times, skips, memory, and how busy the machine was.

Pure functions of a `Run`, used by whoever judges and by whoever draws, so that both see the same
numbers.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from dataclasses import dataclass

from narrowgate.records.files import dumps
from narrowgate.records.run import Run

__all__ = ["Summary", "num_warmup_steps", "percentile", "step_times", "summarise"]


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
        waited_share: Of the time in which its threads could run, the share in which they waited for
            a core; NaN if the system does not say.
        cores: CPU time over wall time: cores kept busy on average; NaN if unknown.
        data: SHA-256 of the checksums of what the models were given, step by step; None if none
            was taken.
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
    """Give the times between successive steps of the first optimizer, without warm-up, in seconds.

    Args:
        run: The run.

    Returns:
        One time per step. What a script does between steps (validation, saving) is in them, as it
        is in the user's own waiting; the median does not see it.
    """
    first = [t for t, which in zip(run.steps.t, run.steps.optimizer, strict=True) if which == 0]
    begin = num_warmup_steps(len(first))
    return tuple(b - a for a, b in zip(first[begin:], first[begin + 1 :], strict=False))


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
    taken = any(value is not None for value in run.steps.data)
    return Summary(
        num_steps=len(run.steps),
        num_skipped=sum(not applied for applied in run.steps.applied),
        median_step_s=statistics.median(times) if times else math.nan,
        p95_step_s=percentile(times, 0.95),
        seconds=seconds,
        peak_bytes=math.nan if run.result is None else float(run.result.peak_bytes),
        waited_share=waited / (waited + cpu) if waited + cpu > 0 else math.nan,
        cores=cpu / wall if wall > 0 else math.nan,
        data=_digest(run.steps.data) if taken else None,
        curve=_digest((run.steps.loss, run.steps.grad_norm, run.steps.data, result)),
    )


def _digest(value: object) -> str:
    return hashlib.sha256(dumps(value).encode()).hexdigest()
