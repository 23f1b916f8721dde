"""The page of a pilot: one HTML file that needs no network, the verdicts first.

Every string from a user goes through jinja's autoescape, and before that through `printable`, by
the environment's ``finalize``: a template cannot forget it. Data for charts is JSON in a script
block of its own, ASCII without a single ``<``. A content security policy in the page lets only our
two scripts run, by hash, and nothing be fetched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from narrowgate.records import LedgerEntry, Run, Verdict, layout
from narrowgate.report.bars import bytes_figure
from narrowgate.report.curves import loss_scale_figure
from narrowgate.report.dots import gate_figures, slice_figures
from narrowgate.report.figure import Figure, series_of
from narrowgate.report.html import render, write_page
from narrowgate.report.losses import loss_figures
from narrowgate.report.outcomes import SYMBOLS, WORDS, decided_by, decisions_of
from narrowgate.report.sheets import facts, plan_table
from narrowgate.report.tables import gate_rows, metric_rows, recipe_rows, slice_tables
from narrowgate.report.text import format_seconds

__all__ = ["write_report"]


def write_report(
    folder: Path,
    verdict: Verdict,
    runs: Mapping[tuple[str, int], Run],
    entries: Sequence[LedgerEntry],
    head: str | None,
) -> Path:
    """Write a pilot's page.

    Args:
        folder: The pilot's folder.
        verdict: Its verdict.
        runs: The attempt that counts, by recipe and seed.
        entries: The ledger; empty if there is none.
        head: The ledger's head hash; None if there is none.

    Returns:
        Where it was written: ``report.html`` in the folder.

    Raises:
        RunError: The folder cannot be written; what was there before stays.
    """
    recipes = [verdict.baseline, *(candidate.recipe for candidate in verdict.candidates)]
    series = series_of(verdict.baseline, recipes[1:])
    decisions = decisions_of(entries, verdict.pilot)
    metrics, results = metric_rows(runs, recipes)
    figures: dict[str, list[Figure]] = {
        "loss": loss_figures(runs, series, verdict.baseline),
        "quality": gate_figures(verdict, ("quality.",), "quality", 0.0),
        "speed": gate_figures(verdict, ("speed.", "memory.", "cost."), "ratio", 1.0),
        "bytes": _one(bytes_figure(runs, series)),
        "scale": _one(loss_scale_figure(runs, series)),
        "slices": slice_figures(verdict, series),
    }
    alphas = {g.alpha for c in verdict.candidates for g in c.gates if g.alpha == g.alpha}
    page = render(
        "pilot.html.j2",
        [figure for group in figures.values() for figure in group],
        verdict=verdict,
        charts=figures,
        series=series,
        symbols=SYMBOLS,
        words=WORDS,
        decided=[(candidate, decided_by(candidate)) for candidate in verdict.candidates],
        decisions=decisions,
        gates=gate_rows(verdict, decisions),
        metrics=metrics,
        results=results,
        spent=recipe_rows(runs, recipes),
        slices=slice_tables(verdict, runs, decisions),
        plans=[
            plan_table(recipe, [run for (which, _), run in runs.items() if which == recipe])
            for recipe in recipes
        ],
        facts=facts(runs),
        about=_about(folder),
        config=_config(folder),
        attempts=_attempts(folder, recipes, verdict.seeds),
        faults=[(k, fault) for k, run in runs.items() for fault in run.faults],
        alphas=sorted(alphas, reverse=True),
        head=head,
        num_entries=len(entries),
    )
    return write_page(folder / layout.REPORT, page)


def _one(figure: Figure | None) -> list[Figure]:
    return [] if figure is None else [figure]


def _about(folder: Path) -> dict[str, str]:
    """Read what pilot.json says of time and code; a page is drawn without it too."""
    try:
        found = json.loads((folder / layout.PILOT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    told = found if isinstance(found, dict) else {}
    return {key: str(told.get(key) or "") for key in ("created", "commit", "uncommitted")}


def _config(folder: Path) -> str | None:
    """Read the limits as they stood before the first run."""
    try:
        return (folder / layout.CONFIG).read_text(encoding="utf-8-sig", errors="replace")
    except OSError:
        return None


def _attempts(folder: Path, recipes: Sequence[str], seeds: Sequence[int]) -> list[dict[str, str]]:
    """List all attempts with how they ended, those that do not count included."""
    rows = []
    for recipe in recipes:
        for seed in seeds:
            for path in layout.attempts(folder, recipe, seed):
                rows.append(
                    {
                        "recipe": recipe,
                        "seed": str(seed),
                        "attempt": path.name.removeprefix("attempt-"),
                        "folder": str(path.relative_to(folder)),
                        "ending": _ending(path / layout.EXIT),
                        "result": "yes" if (path / layout.RESULT).exists() else "no",
                    }
                )
    return rows


def _ending(path: Path) -> str:
    """Say how an attempt ended."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        seconds, code = format_seconds(float(found["seconds"])), found["code"]
        how = str(found["how"])
    except (OSError, ValueError, KeyError, TypeError):
        return "not known: no exit.json"
    if how == "ended":
        return f"ended with code {code} after {seconds}"
    return f"{how} after {seconds}"
