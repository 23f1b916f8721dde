"""The tables of plans and of environments, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from narrowgate.errors import NarrowgateError
from narrowgate.plan import Plan
from narrowgate.records import Run
from narrowgate.report.text import DASH, format_bytes

__all__ = ["Facts", "PlanGroup", "PlanTable", "facts", "plan_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanGroup:
    """Rows of a plan that are treated alike.

    Attributes:
        what: Format and master, or treatment and format.
        num: How many, in words.
        size: Elements and bytes; empty for modules.
        names: The first of them.
        reason: Why.
    """

    what: str
    num: str
    size: str
    names: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTable:
    """A plan, grouped.

    Attributes:
        recipe: The recipe.
        hash: The plan's hash; None where no run got as far.
        total: Its bytes, in a sentence.
        groups: The groups.
        notes: The plan's notes.
    """

    recipe: str
    hash: str | None
    total: str
    groups: tuple[PlanGroup, ...]
    notes: tuple[str, ...]


def plan_table(recipe: str, runs: Iterable[Run]) -> PlanTable:
    """Group the plan that some runs of a recipe resolved.

    Args:
        recipe: The recipe.
        runs: Its runs.
    """
    run = next((run for run in runs if run.plan is not None), None)
    if run is None or run.plan is None:
        total = "No run got as far as a plan: prepare() was not called."
        return PlanTable(recipe=recipe, hash=None, total=total, groups=(), notes=())
    try:
        plan = Plan.from_json(run.plan)
    except (NarrowgateError, KeyError, TypeError, ValueError) as error:
        total = f"The plan cannot be read: {error}"
        return PlanTable(recipe=recipe, hash=run.plan_hash, total=total, groups=(), notes=())
    totals = plan.totals()
    held = totals["weights"] + totals["remainders"] + totals["gradients"]
    total = (
        f"On {plan.device}: weights {format_bytes(totals['weights'])}, remainders "
        f"{format_bytes(totals['remainders'])}, gradients {format_bytes(totals['gradients'])}; "
        f"in FP32 {format_bytes(totals['fp32'])}"
    )
    total += f" (ratio {held / totals['fp32']:.2f})." if totals["fp32"] else "."
    params: dict[tuple[str, str, str], list[int]] = {}
    for place, row in enumerate(plan.params):
        params.setdefault((row.format, row.master, row.reason), []).append(place)
    groups = []
    for (stored, master, reason), places in params.items():
        rows = [plan.params[place] for place in places]
        size = sum(row.weight_bytes + row.remainder_bytes for row in rows)
        groups.append(
            PlanGroup(
                what=f"{stored}, master={master}",
                num=f"{len(rows):,} parameters",
                size=f"{sum(row.numel for row in rows):,} elements, {format_bytes(size)}",
                names=rows[0].fqn + (", …" if len(rows) > 1 else ""),
                reason=reason,
            )
        )
    counts = Counter((row.treatment, row.compute, row.reason) for row in plan.modules)
    for (treatment, compute, reason), count in counts.items():
        what = f"{treatment} in {compute}"
        groups.append(
            PlanGroup(what=what, num=f"{count:,} modules", size="", names="", reason=reason)
        )
    return PlanTable(
        recipe=recipe, hash=run.plan_hash, total=total, groups=tuple(groups), notes=plan.notes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The environments of all runs.

    Attributes:
        same: What all runs agree in: name and value.
        differing: What they differ in: name, and each value with the runs that have it.
    """

    same: tuple[tuple[str, str], ...]
    differing: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


def facts(runs: Mapping[tuple[str, int], Run]) -> Facts:
    """Compare the environments of runs.

    Args:
        runs: The runs; one without an environment is left out.
    """
    told = {key: run for key, run in runs.items() if run.environment}
    names = list(dict.fromkeys(name for run in told.values() for name in run.environment))
    same, differing = [], []
    for name in names:
        values: dict[str, list[str]] = {}
        for (recipe, seed), run in told.items():
            word = _word(run.environment.get(name))
            values.setdefault(word, []).append(f"{recipe} seed {seed}")
        if len(values) == 1:
            same.append((name, next(iter(values))))
        else:
            differing.append((name, tuple((v, _some(who)) for v, who in values.items())))
    return Facts(same=tuple(same), differing=tuple(differing))


def _word(value: object) -> str:
    """Write one fact."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
