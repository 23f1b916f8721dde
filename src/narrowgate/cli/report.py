"""``narrowgate report``: a pilot's verdict from its folder alone, as tables and as a page.

The verdict is decided again from the files; where one of them is not what it was, there is no page
but an error that names it. A single run has a page of its own, without a verdict.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from narrowgate.cli.console import complain, print_lines, print_table
from narrowgate.errors import LedgerError, PilotError, RunError
from narrowgate.records import Run, layout, load_run

if TYPE_CHECKING:
    from narrowgate.records.decision import LedgerEntry
    from narrowgate.records.verdict import Verdict

__all__ = ["report"]

_CODES = {"pass": 0, "fail": 3, "inconclusive": 4, None: 2}


def report(
    folder: str = typer.Argument(
        "",
        metavar="[FOLDER]",
        help="A pilot's folder, or a single run's; the newest pilot if it is left out.",
    ),
    tensorboard: str = typer.Option(
        "", "--tensorboard", metavar="DIR", help="Write TensorBoard event files there, too."
    ),
) -> None:
    """Decide a pilot's verdict again from its files, print it, and write the page."""
    path = Path(folder) if folder else _newest()
    if (path / layout.PILOT).is_file():
        # All that is read lives to the end: looking for garbage in it is a twentieth of the time.
        was_on = gc.isenabled()
        gc.disable()
        try:
            _report_pilot(path, tensorboard)
        finally:
            if was_on:
                gc.enable()
    elif (path / layout.REQUEST).is_file():
        _report_run(path, tensorboard)
    else:
        what = "is neither a pilot's folder nor a run's" if path.is_dir() else "is no folder"
        raise PilotError(
            f"{path} {what}",
            hint=f"name one below {layout.ROOT}/pilots or {layout.ROOT}/runs, or an attempt's",
        )


def _newest() -> Path:
    """Find the pilot that was begun last: by the ledger, or by its name where none is."""
    from narrowgate.pilot.begin import last_pilot

    with contextlib.suppress(PilotError, LedgerError):
        return last_pilot(Path(layout.ROOT))
    pilots = Path(layout.ROOT) / "pilots"
    found = [path for path in pilots.glob("*") if (path / layout.PILOT).is_file()]
    if not found:
        raise PilotError(
            f"there is no pilot below {pilots}",
            hint="narrowgate pilot -- python train.py --seed {seed}, or name a folder",
        )
    return max(found, key=lambda path: path.name)


def _report_pilot(folder: Path, tensorboard: str) -> None:
    from narrowgate.pilot.judge import recompute
    from narrowgate.report import export_tensorboard, print_verdict, write_report

    runs: dict[tuple[str, int], Run] = {}
    verdict = recompute(folder, keep=runs)
    entries, damage = _ledger_beside(folder, verdict)
    head = entries[-1].hash if entries else None
    page = _written(lambda: write_report(folder, verdict, runs, entries, head))
    print_verdict(verdict)
    print_lines(*page, f"ledger: {head or 'none beside this folder'}")
    if tensorboard:
        for (recipe, seed), run in runs.items():
            export_tensorboard(run, Path(tensorboard) / layout.slug(recipe) / f"seed-{seed}")
        print_lines(f"tensorboard: {tensorboard}")
    if damage is not None:
        raise damage
    raise typer.Exit(_CODES[verdict.outcome])


def _ledger_beside(
    folder: Path, verdict: Verdict
) -> tuple[Sequence[LedgerEntry], LedgerError | None]:
    """Read the ledger that a pilot is entered in, if it lies there, and hold the two together.

    The verdict rests on the folder alone: a ledger that is damaged is told behind it. One that
    holds other limits or another verdict of this pilot is a reason to print none.
    """
    from narrowgate.pilot.folder import read_pilot
    from narrowgate.pilot.ledger import Ledger, check_limits, check_verdict, ledger_of

    path = ledger_of(folder)
    if not path.is_file():
        return (), None
    try:
        entries = Ledger(path).entries()
    except LedgerError as error:
        return (), error
    if any(entry.pilot == verdict.pilot for entry in entries):  # else it is a copy from elsewhere
        check_limits(entries, verdict.pilot, read_pilot(folder))
        check_verdict(entries, verdict)
    return entries, None


def _report_run(folder: Path, tensorboard: str) -> None:
    from narrowgate.report import export_tensorboard, run_facts, write_run_page
    from narrowgate.report.text import format_number

    run = load_run(folder)
    rows = [("folder", str(folder)), *run_facts(run), *(("fault", fault) for fault in run.faults)]
    if run.result is not None:
        rows += [(name, format_number(value)) for name, value in run.result.metrics.items()]
    page = _written(lambda: write_run_page(run))
    print_table("Run", ["what", "value"], rows)
    print_lines(*page)
    if tensorboard:
        print_lines(f"tensorboard: {export_tensorboard(run, Path(tensorboard))}")


def _written(write: Callable[[], Path]) -> list[str]:
    """Write a page and give the line that says where it is, or complain and give none."""
    try:
        return [f"report: {write()}"]
    except RunError as error:
        complain(f"no page: {error.message}", error.hint)
        return []
