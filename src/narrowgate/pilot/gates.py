"""The gates: one small function for each kind, from paired runs to an outcome with its reason.

Quality gates test the mean paired difference against the margin; ratio gates do the same on the
logarithms of the ratios, so that twice and half are equally far from one. Gates of stability make
no test: a share is at most its limit or it is not. Whatever the numbers say, a gate does not pass
while a seed has no pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from narrowgate.pilot.config import (
    CostLimit,
    MemoryLimit,
    PilotConfig,
    QualityLimit,
    SpeedLimit,
    StabilityLimit,
)
from narrowgate.pilot.sentences import and_more, named, shown
from narrowgate.pilot.tested import Subject, tested, untested
from narrowgate.pilot.trial import Measured, Trial
from narrowgate.records.verdict import GateVerdict

__all__ = ["gates_of"]

#: Differences of so few kinds look surer than they are where a metric is coarse.
_FEW = 2


def gates_of(
    trial: Trial, config: PilotConfig, slices: Mapping[str, Sequence[str]]
) -> tuple[GateVerdict, ...]:
    """Decide all gates of a candidate, in the order of the configuration.

    Args:
        trial: The candidate's runs.
        config: The limits.
        slices: For each metric the slices that are judged.
    """
    gates: list[GateVerdict] = []
    for limit in config.quality:
        gates.append(_quality(trial, limit, None))
        gates += [_quality(trial, limit, part) for part in slices[limit.name]]
    if config.speed is not None:
        gates += _speed(trial, config.speed)
    if config.memory is not None:
        gates.append(_memory(trial, config.memory))
    gates.append(_finite(trial, config.stability))
    if config.stability is not None:
        gates.append(_skipped(trial, config.stability))
    if config.cost is not None:
        gates.append(_cost(trial, config.cost))
    return tuple(gates)


def _quality(trial: Trial, limit: QualityLimit, part: str | None) -> GateVerdict:
    """Decide on a metric, or on one slice of it."""

    def value(measured: Measured) -> float:
        result = measured.result
        return (result.metrics if part is None else result.slices[part])[limit.name]

    seeds = tuple(pair.seed for pair in trial.pairs)
    theirs = [value(pair.baseline) for pair in trial.pairs]
    mine = [value(pair.candidate) for pair in trial.pairs]
    sign = 1.0 if limit.better == "lower" else -1.0
    given = limit.margin if part is None else limit.slice_margin(part)
    assert given is not None  # `judged_slices` names no other
    margin, words = given, ""
    if limit.relative:
        # Divided first, so that no sum overflows.
        center = (
            abs(math.fsum(v / len(theirs) for v in theirs)) if _finite_all(theirs) else math.nan
        )
        margin = given * center
        words = f" ({shown(100.0 * given)} % of the baseline's {shown(center)})"
    subject = Subject(
        gate=f"quality.{limit.name}" + ("" if part is None else f"/{part}"),
        owner=limit.owner,
        measure="worse by",
        better="lower",
        limit=margin,
        limit_words=words,
        seeds=seeds,
        values=tuple(sign * (a - b) + 0.0 for a, b in zip(mine, theirs, strict=True)),
        says=_worse,
    )
    rows = list(zip(seeds, theirs, mine, strict=True))
    broken = [s for s, b, c in rows if math.isfinite(b) and not math.isfinite(c)]
    lost = [s for s, b, _ in rows if not math.isfinite(b)]
    name = subject.gate.removeprefix("quality.")
    if broken:
        why = f"the candidate's {name} is not finite with {named(broken)}"
        return untested(trial, subject, "fail", why)
    if lost:
        why = f"the baseline's own {name} is not finite with {named(lost)}"
        return untested(trial, subject, "inconclusive", why)
    if not _finite_all(subject.values):
        why = "a difference is beyond the largest FP64 number: report it in a larger unit"
        return untested(trial, subject, "inconclusive", why)
    if rows and not margin:
        why = (
            f"the margin is {shown(100.0 * given)} % of the baseline's mean, and that is 0: give "
            "an absolute margin (relative = false) in a new pilot"
        )
        return untested(trial, subject, "inconclusive", why)
    gate = tested(trial, subject)
    step = _step([*theirs, *mine])
    if gate.outcome == "pass" and len(set(subject.values)) <= _FEW and step > margin:
        # Five times nothing is no evidence where the smallest something is beyond the margin.
        why = f"{name} moves in steps of {shown(step)}, and the margin is {shown(margin)}"
        return replace(
            gate,
            outcome="inconclusive",
            reason=f"{gate.reason}; but {why}: validate on more data",
        )
    return gate


def _step(values: Sequence[float]) -> float:
    """Give the step in which a metric moves, by Euclid's way; 0 if all values are equal.

    All distances between values are whole multiples of it: one sample's worth of an accuracy, next
    to nothing of a loss.
    """
    tolerance = 1e-6 * max(map(abs, values), default=0.0)
    step = 0.0
    for value in values[1:]:
        rest = abs(value - values[0])
        while rest > tolerance:
            step, rest = rest, step % rest
    return step


def _finite_all(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values))


def _worse(mean: float) -> str:
    if not mean:
        return "no difference"
    return f"{'worse' if mean > 0 else 'better'} by {shown(abs(mean))}"


def _speed(trial: Trial, limit: SpeedLimit) -> list[GateVerdict]:
    """Decide on the median and the 95th percentile of step times."""
    gates = []
    if limit.min_ratio is not None:
        gates.append(
            _ratio(
                trial,
                gate="speed.median",
                owner=limit.owner,
                limit=limit.min_ratio,
                is_speed=True,
                value=lambda measured: measured.summary.median_step_s,
                what="the baseline's speed",
                show=lambda mine, theirs: (
                    f"median step {shown(1e3 * mine)} ms against {shown(1e3 * theirs)} ms"
                ),
                lacks="step times (too few steps)",
                needs_rest=True,
            )
        )
    if limit.max_p95_ratio is not None:
        gates.append(
            _ratio(
                trial,
                gate="speed.p95",
                owner=limit.owner,
                limit=limit.max_p95_ratio,
                value=lambda measured: measured.summary.p95_step_s,
                what="the baseline's slow steps",
                show=lambda mine, theirs: (
                    f"95th percentile {shown(1e3 * mine)} ms against {shown(1e3 * theirs)} ms"
                ),
                lacks="step times (too few steps)",
                needs_rest=True,
            )
        )
    return gates


def _memory(trial: Trial, limit: MemoryLimit) -> GateVerdict:
    """Decide on peak memory."""
    return _ratio(
        trial,
        gate="memory.peak",
        owner=limit.owner,
        limit=limit.max_ratio,
        value=lambda measured: measured.summary.peak_bytes,
        what="the baseline's peak memory",
        show=lambda mine, theirs: f"{shown(mine / 1e6)} MB against {shown(theirs / 1e6)} MB",
        lacks="peak memory",
        needs_rest=False,
    )


def _cost(trial: Trial, limit: CostLimit) -> GateVerdict:
    """Decide on whole time, and say it in money if there is a price."""

    def show(mine: float, theirs: float) -> str:
        hours = f"{shown(mine / 3600.0)} h a run against {shown(theirs / 3600.0)} h"
        price = limit.price_per_hour
        if price is None:
            return hours
        cost, base = mine / 3600.0 * price, theirs / 3600.0 * price
        return f"{hours}; at {shown(price)} an hour {shown(cost)} against {shown(base)}"

    return _ratio(
        trial,
        gate="cost.total",
        owner=limit.owner,
        limit=limit.max_ratio,
        value=lambda measured: measured.summary.seconds,
        what="the baseline's whole time",
        show=show,
        lacks="whole time",
        needs_rest=True,
    )


def _ratio(
    trial: Trial,
    *,
    gate: str,
    owner: str | None,
    limit: float,
    value: Callable[[Measured], float],
    what: str,
    show: Callable[[float, float], str],
    lacks: str,
    needs_rest: bool,
    is_speed: bool = False,
) -> GateVerdict:
    """Decide on the ratio of candidate to baseline, or for a speed of baseline to candidate.

    Args:
        trial: The candidate's runs.
        gate: The gate's name.
        owner: Its owner.
        limit: Its limit.
        value: What is measured.
        what: What the ratio is of, in words.
        show: Says the mean values of candidate and baseline.
        lacks: What a run without a value lacks, in words.
        needs_rest: Whether a busy machine spoils it.
        is_speed: Whether a higher ratio is better.
    """
    mine = [value(pair.candidate) for pair in trial.pairs]
    theirs = [value(pair.baseline) for pair in trial.pairs]
    values = tuple(
        _divide(b, c) if is_speed else _divide(c, b) for b, c in zip(theirs, mine, strict=True)
    )
    means = ""
    if values and _finite_all(values):
        means = f" ({show(math.fsum(mine) / len(mine), math.fsum(theirs) / len(theirs))})"
    subject = Subject(
        gate=gate,
        owner=owner,
        measure="x baseline",
        better="higher" if is_speed else "lower",
        limit=limit,
        limit_words="",
        seeds=tuple(pair.seed for pair in trial.pairs),
        values=values,
        says=lambda mean: f"{shown(mean)} x {what}{means}",
    )
    lost = [s for s, v in zip(subject.seeds, values, strict=True) if not math.isfinite(v)]
    if lost:
        why = f"not known with {named(lost)}: {lacks}"
        return untested(trial, subject, "inconclusive", why)
    if needs_rest and trial.busy:
        why = f"the machine was busy with something else ({and_more(trial.busy)})"
        return untested(trial, subject, "inconclusive", why)
    return tested(trial, subject)


def _divide(top: float, bottom: float) -> float:
    """Divide two positive numbers; NaN if they are none, or have no positive finite ratio."""
    if not (0.0 < top < math.inf and 0.0 < bottom < math.inf):
        return math.nan
    ratio = top / bottom
    return ratio if 0.0 < ratio < math.inf else math.nan


def _finite(trial: Trial, limit: StabilityLimit | None) -> GateVerdict:
    """Decide whether all results are finite that the baseline's are, judged or not."""
    theirs = {pair.seed: set(_non_finite(pair.baseline)) for pair in trial.pairs}
    found = {
        run.seed: [
            f"{name} is {value}"
            for name, value in _non_finite(run).items()
            if name not in theirs.get(run.seed, ())
        ]
        for run in trial.runs
    }
    told = [f"seed {seed}: {', '.join(names[:3])}" for seed, names in found.items() if names]
    return _share(
        trial,
        gate="stability.finite",
        owner=None if limit is None else limit.owner,
        limit=0.0,
        shares=[float(bool(names)) for names in found.values()],
        share=len(told) / len(found) if found else math.nan,
        reason=f"results that are not finite: {and_more(told)}"
        if told
        else f"all results of {len(found)} runs are finite"
        + (", but for what is not in the baseline's either" if any(theirs.values()) else ""),
    )


def _non_finite(measured: Measured) -> dict[str, float]:
    """Give the numbers of a result that are not finite, by name."""
    result = measured.result
    numbers = [
        *result.metrics.items(),
        *((f"{m}/{part}", v) for part, values in result.slices.items() for m, v in values.items()),
    ]
    return {name: value for name, value in numbers if not math.isfinite(value)}


def _skipped(trial: Trial, limit: StabilityLimit) -> GateVerdict:
    """Decide on the share of skipped steps, all runs together."""
    skips = [run.summary.num_skipped for run in trial.runs]
    steps = [run.summary.num_steps for run in trial.runs]
    share = sum(skips) / sum(steps) if sum(steps) else math.nan
    return _share(
        trial,
        gate="stability.skipped",
        owner=limit.owner,
        limit=limit.max_skipped_share,
        shares=[a / b if b else math.nan for a, b in zip(skips, steps, strict=True)],
        share=share,
        reason=f"{sum(skips):,} of {sum(steps):,} steps were skipped ({shown(share)}), and "
        f"{shown(limit.max_skipped_share)} may be"
        if sum(steps)
        else "no run recorded a step",
    )


def _share(
    trial: Trial,
    *,
    gate: str,
    owner: str | None,
    limit: float,
    shares: Sequence[float],
    share: float,
    reason: str,
) -> GateVerdict:
    """Hold a share against its limit, without a test."""
    seeds = tuple(run.seed for run in trial.runs)
    subject = Subject(
        gate=gate,
        owner=owner,
        measure="share",
        better="lower",
        limit=limit,
        limit_words="",
        seeds=seeds,
        values=tuple(shares),
        says=shown,
    )
    missing = [seed for seed in trial.seeds if seed not in seeds]
    if share > limit:
        return untested(trial, subject, "fail", reason, mean=share)
    if missing or math.isnan(share):
        why = f"{reason}; {named(missing)} gave no result" if missing else reason
        return untested(trial, subject, "inconclusive", why, mean=share)
    return untested(trial, subject, "pass", reason, mean=share)
