"""The page of one run: what it did, and no verdict."""

from __future__ import annotations

import math
from pathlib import Path

from narrowgate.records import Run, layout, summarise
from narrowgate.report.curves import loss_scale_figure, values_figure
from narrowgate.report.figure import Figure, series_of
from narrowgate.report.html import render, write_page
from narrowgate.report.series import first_break, loss_curve, window_of
from narrowgate.report.sheets import facts, plan_table
from narrowgate.report.text import (
    DASH,
    format_bytes,
    format_number,
    format_seconds,
    format_share,
)

__all__ = ["run_facts", "write_run_page"]

#: What a run outside of a pilot, which was not told its recipe, is called.
_OWN = "recipe chosen by the script"


def write_run_page(run: Run) -> Path:
    """Write the page of one run.

    Args:
        run: The run.

    Returns:
        Where it was written: ``report.html`` in its folder.

    Raises:
        RunError: The folder cannot be written; what was there before stays.
    """
    recipe = run.request.recipe or _OWN
    key = (recipe, run.request.seed or 0)
    figures = _figures(run, key)
    result = run.result
    slices = {} if result is None else result.slices
    names = dict.fromkeys(name for values in slices.values() for name in values)
    page = render(
        "run.html.j2",
        figures,
        run=run,
        recipe=recipe,
        charts=figures,
        told=run_facts(run),
        results=[] if result is None else list(result.metrics.items()),
        slice_names=list(names),
        slices=[
            (part, [values.get(n, math.nan) for n in names]) for part, values in slices.items()
        ],
        plan=plan_table(recipe, [run]),
        facts=facts({key: run}),
    )
    return write_page(run.folder / layout.REPORT, page)


def _figures(run: Run, key: tuple[str, int]) -> list[Figure]:
    steps = run.steps
    loss = loss_curve(run)
    window = window_of(len(loss))
    norms = {float(steps.step[row]): steps.grad_norm[row] for row in steps.main_rows}
    logged: dict[str, dict[float, float]] = {}
    for place, said in enumerate(run.logs):
        for name, value in said.values.items():
            logged.setdefault(name, {})[place if said.step is None else said.step] = value
    curve = {float(step): value for step, value in loss.items()}
    found = [
        values_figure("loss", "Training loss", {"loss": curve}, window),
        loss_scale_figure({key: run}, series_of(None, [key[0]])),
        values_figure("grad-norm", "Gradient norm before clipping", {"gradient norm": norms}),
        *(
            values_figure(f"logged-{place}", f"Logged: {name}", {name: values})
            for place, (name, values) in enumerate(logged.items())
        ),
    ]
    return [figure for figure in found if figure is not None]


def run_facts(run: Run) -> list[tuple[str, str]]:
    """Say in words and numbers what a run did.

    Args:
        run: The run.

    Returns:
        Pairs of what and how much.
    """
    summary = summarise(run)
    reasons = dict.fromkeys(
        culprit
        for culprit, applied in zip(run.steps.culprit, run.steps.applied, strict=True)
        if culprit is not None and not applied
    )
    ending = DASH
    if run.ending is not None:
        took = format_seconds(run.ending.seconds)
        ending = f"{run.ending.how}, code {run.ending.code}, after {took}"
    where = first_break(loss_curve(run))
    broken = "none"
    if where is not None:
        broken = f"{where.num:,}, the first at step {where.step} ({format_number(where.value)})"
    times = (summary.median_step_s, summary.p95_step_s)
    return [
        ("result", "given" if run.result is not None else "none: ng.result was not called"),
        ("process", ending),
        ("steps", f"{summary.num_steps:,}"),
        ("skipped steps", f"{summary.num_skipped:,}" + _first(reasons)),
        ("losses that are not finite", broken),
        ("median step", format_seconds(times[0]) if math.isfinite(times[0]) else DASH),
        ("95th percentile", format_seconds(times[1]) if math.isfinite(times[1]) else DASH),
        ("whole run", format_seconds(summary.seconds) if summary.seconds > 0 else DASH),
        ("peak memory", format_bytes(summary.peak_bytes) if summary.peak_bytes > 0 else DASH),
        (
            "waited for a core",
            format_share(summary.waited_share) if math.isfinite(summary.waited_share) else DASH,
        ),
    ]


def _first(culprits: dict[str, None]) -> str:
    named = list(culprits)[:3]
    return f"; culprits: {', '.join(named)}" if named else ""
