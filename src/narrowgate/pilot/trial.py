"""Runs made ready to be judged: read, and paired by seed.

A run counts if its process ended well, ng.result was called, and everything that is judged is in
the result; any other costs its pair and gets a note.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from narrowgate.errors import RunError
from narrowgate.pilot.config import EVERY_SLICE, PilotConfig, QualityLimit
from narrowgate.pilot.interim import explain
from narrowgate.pilot.ledger import Looks, values_hash
from narrowgate.records import layout
from narrowgate.records.files import dumps
from narrowgate.records.run import Result, Run, load_run
from narrowgate.records.summary import Summary, summarise

__all__ = [
    "Measured",
    "Pair",
    "Trial",
    "busy_runs",
    "code_of",
    "judged_slices",
    "pair_up",
    "read_runs",
    "uneven_names",
    "with_all",
]

#: More of its time than this spent waiting for a core: the machine was busy.
_MOST_WAITED = 0.10
#: Where the system does not say: fewer cores than this share of what like runs had.
_LEAST_CORES = 0.7

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run that ended well and gave a result.

    Attributes:
        seed: Its seed.
        run: The run.
        result: Its result.
        summary: What it comes to.
    """

    seed: int
    run: Run
    result: Result
    summary: Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Baseline and candidate with one seed.

    Attributes:
        seed: The seed.
        baseline: The baseline's run.
        candidate: The candidate's run.
    """

    seed: int
    baseline: Measured
    candidate: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What one candidate's gates are decided on.

    Attributes:
        recipe: The candidate.
        seeds: The seeds asked for.
        pairs: The pairs, in the order of the seeds asked for.
        unpaired: Seeds asked for that have no pair.
        runs: All of the candidate's runs that gave a result, paired or not.
        busy: Runs in the pairs during which the machine was busy, in words.
        plan_hash: Hash of the candidate's plan; None if no run got as far.
        code: Hash of its code; None likewise.
        looks: Who counts the looks.
    """

    recipe: str
    seeds: tuple[int, ...]
    pairs: tuple[Pair, ...]
    unpaired: tuple[int, ...]
    runs: tuple[Measured, ...]
    busy: tuple[str, ...]
    plan_hash: str | None
    code: str | None
    looks: Looks

    def look(self, gate: str, seeds: Sequence[int], values: Sequence[float]) -> int:
        """Give the number of this look at a gate.

        Args:
            gate: The gate's name.
            seeds: The seeds that are compared.
            values: What is compared.
        """
        return self.looks(
            recipe=self.recipe,
            gate=gate,
            plan_hash=self.plan_hash,
            code=self.code,
            values=values_hash(seeds, values),
        )


def read_runs(
    folder: Path,
    recipe: str,
    seeds: Sequence[int],
    config: PilotConfig,
    notes: list[str],
    keep: dict[tuple[str, int], Run],
) -> dict[int, Measured]:
    """Read the attempts of a recipe that count and gave a result.

    Args:
        folder: The pilot's folder.
        recipe: The recipe in normal form.
        seeds: The seeds asked for.
        config: The limits.
        notes: Gets a line for each run that is left out, and for each fault of a file.
        keep: Gets every run that could be read, by recipe and seed.

    Returns:
        The runs by seed.
    """
    found = {}
    for seed in seeds:
        attempts = layout.attempts(folder, recipe, seed)
        who = f"{recipe}, seed {seed}"
        if not attempts:
            notes.append(f"{who}: was not run")
            continue
        try:
            run = load_run(attempts[-1])
        except RunError as error:
            told = error.message.replace(f"{folder}/", "")
            notes.append(f"{who}: counts as without result: {told}")
            continue
        keep[recipe, seed] = run
        notes += [f"{who}: {fault}" for fault in run.faults]
        if run.ending is None or not run.is_complete or run.result is None:
            notes.append(f"{who}: {explain(run, config)}")
            continue
        found[seed] = Measured(seed=seed, run=run, result=run.result, summary=summarise(run))
    return found


def judged_slices(limit: QualityLimit, baseline: Mapping[int, Measured]) -> tuple[str, ...]:
    """Name the slices of a metric that are judged.

    ``"*"`` covers the slices that at least half of the baseline's runs report, so that neither a
    run that lost one nor a run that invents one decides for the others.

    Args:
        limit: The metric's limits.
        baseline: The baseline's runs by seed.

    Returns:
        Those named in the configuration, in its order, then those that ``"*"`` covers, by name.
    """
    named = [name for name in limit.slices if name != EVERY_SLICE]
    if EVERY_SLICE not in limit.slices:
        return tuple(named)
    counts = Counter(
        name
        for measured in baseline.values()
        for name, values in measured.result.slices.items()
        if limit.name in values
    )
    others = (name for name, count in counts.items() if 2 * count >= len(baseline))
    return (*named, *sorted(set(others).difference(named)))


def with_all(
    recipe: str,
    runs: Mapping[int, Measured],
    config: PilotConfig,
    slices: Mapping[str, Sequence[str]],
    notes: list[str],
) -> dict[int, Measured]:
    """Keep the runs that report everything that is judged.

    Args:
        recipe: Their recipe.
        runs: Runs that gave a result, by seed.
        config: The limits.
        slices: For each metric the slices that are judged.
        notes: Gets a line for each run that is left out.
    """
    kept = {}
    for seed, measured in runs.items():
        result = measured.result
        missing = [limit.name for limit in config.quality if limit.name not in result.metrics]
        missing += [
            f"{name}/{part}"
            for name, parts in slices.items()
            for part in parts
            if name not in result.slices.get(part, {})
        ]
        if not missing:
            kept[seed] = measured
            continue
        has = ", ".join(sorted(_names(result))) or "nothing"
        notes.append(
            f"{recipe}, seed {seed}: counts as without result: it reported no "
            f"{', '.join(missing)}, but {has}"
        )
    return kept


def _names(result: Result) -> list[str]:
    """Name all that a result reports: metrics, and slices as METRIC/SLICE."""
    parts = (f"{name}/{part}" for part, values in result.slices.items() for name in values)
    return [*result.metrics, *parts]


def pair_up(
    seeds: Sequence[int], baseline: Mapping[int, Measured], candidate: Mapping[int, Measured]
) -> tuple[tuple[Pair, ...], tuple[int, ...]]:
    """Pair runs by seed.

    Args:
        seeds: The seeds asked for.
        baseline: The baseline's runs that count.
        candidate: The candidate's runs that count.

    Returns:
        The pairs, and the seeds without one.
    """
    pairs = tuple(
        Pair(seed=seed, baseline=baseline[seed], candidate=candidate[seed])
        for seed in seeds
        if seed in baseline and seed in candidate
    )
    paired = {pair.seed for pair in pairs}
    return pairs, tuple(seed for seed in seeds if seed not in paired)


def busy_runs(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Name the runs during which the machine was busy with something else.

    Args:
        pairs: The pairs.

    Returns:
        A line for each: it waited for a core more than a tenth of the time; or, where the system
        does not say, it had fewer than 0.7 of the cores that a run of the same recipe had.
    """
    busy = []
    for runs in ([pair.baseline for pair in pairs], [pair.candidate for pair in pairs]):
        known = [run.summary.cores for run in runs if math.isfinite(run.summary.cores)]
        most = max(known, default=math.nan)
        for run in runs:
            who = f"{run.run.request.recipe}, seed {run.seed}"
            waited, cores = run.summary.waited_share, run.summary.cores
            if waited > _MOST_WAITED:
                busy.append(f"{who}: waited for a core {waited:.0%} of the time")
            elif math.isnan(waited) and cores < _LEAST_CORES * most:
                busy.append(f"{who}: had {cores:.2g} cores where another run had {most:.2g}")
    return tuple(busy)


def code_of(runs: Sequence[Measured]) -> str | None:
    """Give one hash for the code that runs loaded; of all of it, if it was not the same.

    Args:
        runs: The runs of one recipe.
    """
    codes = sorted({run.result.code for run in runs})
    if len(codes) < 2:
        return codes[0] if codes else None
    return hashlib.sha256(dumps(codes).encode()).hexdigest()


def uneven_names(runs: Sequence[Measured]) -> list[str]:
    """Name metrics and slices that only some runs report.

    Args:
        runs: All runs that gave a result.

    Returns:
        At most one line.
    """
    counts = Counter(name for run in runs for name in _names(run.result))
    uneven = sorted(name for name, count in counts.items() if count < len(runs))
    if not uneven:
        return []
    shown = ", ".join(f"{name} ({counts[name]} of {len(runs)} runs)" for name in uneven[:_SHOWN])
    more = f" and {len(uneven) - _SHOWN} more" if len(uneven) > _SHOWN else ""
    return [f"reported by some runs only: {shown}{more}"]
