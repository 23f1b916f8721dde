"""The tables of the page as plain data: what stands in which cell, in words and numbers.

Everything here is derived from a verdict and from runs; nothing is judged again.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from narrowgate.records import GateVerdict, Outcome, Run, Summary, Verdict, summarise
from narrowgate.report.outcomes import (
    Decision,
    gate_label,
    limit_text,
    overrides_of,
    range_text,
    slice_of,
    value_text,
)
from narrowgate.report.text import (
    DASH,
    format_bytes,
    format_number,
    format_seconds,
    format_share,
    signed,
)

__all__ = [
    "Cell",
    "GateRow",
    "RecipeRow",
    "SliceTable",
    "gate_rows",
    "metric_rows",
    "recipe_rows",
    "slice_tables",
]

Runs = Mapping[tuple[str, int], Run]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One candidate at one gate.

    Attributes:
        outcome: The outcome; ``none`` is the word where slices were not judged.
        value: The mean in its unit.
        range: The range between the two bounds; empty if none was taken.
        limit: The limit.
        reason: Why.
        override: Who overrode the gate, and why; None if nobody did.
    """

    outcome: Outcome | None
    value: str
    range: str
    limit: str
    reason: str
    override: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRow:
    """One gate over all candidates.

    Attributes:
        gate: The gate's name.
        label: What it is about.
        owner: Who owns it; None if nobody is named.
        cells: One cell a candidate; None where it does not have this gate.
    """

    gate: str
    label: str
    owner: str | None
    cells: tuple[Cell | None, ...]


def _cell(gate: GateVerdict, override: Decision | None) -> Cell:
    return Cell(
        outcome=gate.outcome,
        value=value_text(gate),
        range=range_text(gate),
        limit=limit_text(gate),
        reason=gate.reason,
        override=override,
    )


def _slices_cell(gates: Sequence[GateVerdict], overrides: Mapping[str, Decision]) -> Cell:
    """Put a metric's slices into one cell: how many came out how, and the worst of them."""
    counts = Counter(gate.outcome for gate in gates)
    order: tuple[Outcome, ...] = ("fail", "inconclusive", "pass")
    outcome = next(word for word in order if counts[word])
    worst = max(
        (gate for gate in gates if gate.outcome == outcome),
        key=lambda g: g.mean / g.limit if math.isfinite(g.mean) and g.limit else math.inf,
    )
    parts = slice_of(worst)
    assert parts is not None
    said = ", ".join(f"{counts[word]} {word}" for word in order if counts[word])
    return Cell(
        outcome=outcome,
        value=said,
        range="",
        limit=f"worst {parts[1]}: {value_text(worst)}, limit {limit_text(worst)}",
        reason=worst.reason,
        override=overrides.get(worst.gate),
    )


def gate_rows(verdict: Verdict, decisions: Sequence[Decision]) -> list[GateRow]:
    """Make the matrix of gates by candidates; a metric's slices share one row.

    Args:
        verdict: The verdict.
        decisions: What people decided.
    """
    names: dict[str, str | None] = {}
    sliced: dict[str, None] = {}
    for candidate in verdict.candidates:
        for gate in candidate.gates:
            if parts := slice_of(gate):
                sliced[parts[0]] = None
                names.setdefault(f"quality.{parts[0]}/*", gate.owner)
            else:
                names.setdefault(gate.gate, gate.owner)
    rows = []
    for name, owner in names.items():
        cells: list[Cell | None] = []
        for candidate in verdict.candidates:
            overrides = overrides_of(decisions, candidate.recipe)
            if name.endswith("/*"):
                metric = name.removeprefix("quality.").removesuffix("/*")
                own = [g for g in candidate.gates if (p := slice_of(g)) and p[0] == metric]
                cells.append(_slices_cell(own, overrides) if own else None)
            else:
                own = [gate for gate in candidate.gates if gate.gate == name]
                cells.append(_cell(own[0], overrides.get(name)) if own else None)
        label = gate_label(name)
        if name.endswith("/*"):
            label = f"{label.removesuffix('/*')} by slice"
        rows.append(GateRow(gate=name, label=label, owner=owner, cells=tuple(cells)))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeRow:
    """What the runs of one recipe came to, in numbers for a table.

    Attributes:
        recipe: The recipe.
        cells: One text a column.
    """

    recipe: str
    cells: tuple[str, ...]


def _median(values: Iterable[float], write: Callable[[float], str]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    return write(statistics.median(finite)) if finite else DASH


def recipe_rows(runs: Runs, recipes: Iterable[str]) -> list[RecipeRow]:
    """Sum up the runs of each recipe: time, memory, skipped steps, and how busy the machine was.

    Args:
        runs: The runs.
        recipes: The recipes in their order.
    """
    rows = []
    for recipe in recipes:
        found: list[Summary] = [summarise(r) for (which, _), r in runs.items() if which == recipe]
        steps, skipped = sum(s.num_steps for s in found), sum(s.num_skipped for s in found)
        waited = [s.waited_share for s in found if math.isfinite(s.waited_share)]
        culprits = Counter(
            culprit
            for (which, _), run in runs.items()
            if which == recipe
            for culprit, applied in zip(run.steps.culprit, run.steps.applied, strict=True)
            if culprit is not None and not applied
        )
        most = f"; most often {culprits.most_common(1)[0][0]}" if culprits else ""
        rows.append(
            RecipeRow(
                recipe=recipe,
                cells=(
                    _median((s.median_step_s for s in found), format_seconds),
                    _median((s.p95_step_s for s in found), format_seconds),
                    _median((s.seconds for s in found), format_seconds),
                    _median((s.peak_bytes for s in found), format_bytes),
                    f"{skipped:,} of {steps:,}{most}" if steps else DASH,
                    format_share(max(waited)) if waited else DASH,
                ),
            )
        )
    return rows


def metric_rows(runs: Runs, recipes: Iterable[str]) -> tuple[list[str], list[RecipeRow]]:
    """Sum up the results of each recipe.

    Args:
        runs: The runs.
        recipes: The recipes in their order.

    Returns:
        The metrics, and for each recipe its mean of each with the spread over seeds.
    """
    results = {key: run.result for key, run in runs.items() if run.result is not None}
    metrics = list(dict.fromkeys(name for result in results.values() for name in result.metrics))
    rows = []
    for recipe in recipes:
        cells = []
        for metric in metrics:
            values = [
                result.metrics[metric]
                for (which, _), result in results.items()
                if which == recipe and metric in result.metrics
            ]
            cells.append(_mean_and_sd(values))
        num = sum(which == recipe for which, _ in results)
        rows.append(RecipeRow(recipe=recipe, cells=(str(num), *cells)))
    return metrics, rows


def _mean_and_sd(values: Sequence[float]) -> str:
    if not values:
        return DASH
    bad = sum(not math.isfinite(value) for value in values)
    if bad:
        return f"not finite in {bad} of {len(values)}"
    text = format_number(statistics.fmean(values))
    return f"{text} ± {format_number(statistics.stdev(values), 2)}" if len(values) > 1 else text


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTable:
    """The slices of one metric.

    Attributes:
        metric: The metric.
        rows: For each slice its name and one cell a candidate.
    """

    metric: str
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]


def slice_tables(verdict: Verdict, runs: Runs, decisions: Sequence[Decision]) -> list[SliceTable]:
    """Make a table of each metric's slices, those without a margin included.

    Args:
        verdict: The verdict.
        runs: The runs.
        decisions: What people decided.
    """
    found: dict[str, dict[str, None]] = {}
    for candidate in verdict.candidates:
        for gate in candidate.gates:
            if parts := slice_of(gate):
                found.setdefault(parts[0], {})[parts[1]] = None
    for run in runs.values():
        for part, metrics in (run.result.slices if run.result else {}).items():
            for metric in metrics:
                found.setdefault(metric, {})[part] = None
    tables = []
    for metric, parts_of in found.items():
        rows = []
        for part in parts_of:
            cells: list[Cell | None] = []
            for candidate in verdict.candidates:
                name = f"quality.{metric}/{part}"
                own = [gate for gate in candidate.gates if gate.gate == name]
                if own:
                    override = overrides_of(decisions, candidate.recipe).get(name)
                    cells.append(_cell(own[0], override))
                else:
                    pair = (verdict.baseline, candidate.recipe)
                    cells.append(_unjudged(runs, pair, metric, part))
            rows.append((part, tuple(cells)))
        tables.append(SliceTable(metric=metric, rows=tuple(rows)))
    return tables


def _unjudged(runs: Runs, pair: tuple[str, str], metric: str, part: str) -> Cell | None:
    """Show a slice without a margin: the mean difference, and that nobody asked for more."""

    def values(recipe: str) -> dict[int, float]:
        return {
            seed: run.result.slices[part][metric]
            for (which, seed), run in runs.items()
            if which == recipe and run.result and metric in run.result.slices.get(part, {})
        }

    base, other = values(pair[0]), values(pair[1])
    differences = [other[seed] - base[seed] for seed in base if seed in other]
    if not differences:
        return None
    return Cell(
        outcome=None,
        value=f"{signed(statistics.fmean(differences))}, candidate less baseline",
        range="",
        limit="no margin: not judged",
        reason="",
    )
