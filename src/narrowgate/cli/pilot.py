"""``narrowgate pilot``: try recipes on the user's own command, and judge them by limits set before.

The runs are made by `narrowgate.pilot`; here are the options, what is printed, and the exit code.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from narrowgate.cli.console import CommandFailed, complain, print_lines
from narrowgate.errors import PilotError, RunError
from narrowgate.records import layout
from narrowgate.records.masking import MASK

if TYPE_CHECKING:
    from narrowgate.pilot.begin import Pilot
    from narrowgate.pilot.runner import Stopped
    from narrowgate.records.run import Run
    from narrowgate.records.verdict import Outcome

__all__ = ["pilot"]

_CONFIG = Path("narrowgate.toml")
_EXIT = {"pass": 0, "fail": 3, "inconclusive": 4, None: 2}


def pilot(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND",
            show_default=False,
            help="The command that trains, behind --; {seed} in it is replaced by the seed.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", show_default=str(_CONFIG), help="The limits."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds", metavar="N", help="Seeds 0 to N-1 in the place of the configuration's."
        ),
    ] = None,
    max_hours: Annotated[
        float | None,
        typer.Option("--max-hours", metavar="H", help="Start no run that would end after H hours."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="RECIPE", help="Try this candidate alone; may be given again."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the pilot begun last, or with the one whose folder follows.",
        ),
    ] = False,
) -> None:
    """Try recipes on your own command, several seeds each, and judge them by your limits.

    Example: narrowgate pilot -- python train.py --seed {seed}

    The baseline and each candidate of narrowgate.toml train in processes of their own, one after
    the other. ng.prepare in the script takes the recipe from the pilot, and ng.result ends the run.
    Then each candidate passes, fails or is inconclusive; a page shows why. Ctrl-C loses nothing:
    narrowgate pilot --resume goes on. With more --seeds it goes on with a pilot that was not sure.

    Exit code: 0 pass, 2 usage or not comparable, 3 fail, 4 inconclusive, 5 the command failed.
    """
    from narrowgate.cli.progress import make_observer
    from narrowgate.pilot.begin import begin_pilot, locked, resume_pilot
    from narrowgate.pilot.config import config_hash
    from narrowgate.pilot.disk import disk_faults_told
    from narrowgate.pilot.interrupt import Interruptions
    from narrowgate.pilot.runner import run_pilot
    from narrowgate.records.environment import git_facts

    if max_hours is not None and not max_hours > 0:
        raise typer.BadParameter(f"--max-hours is {max_hours:g}; it must be above 0")
    if resume and only:
        raise typer.BadParameter("--only narrows a new pilot, and not one that goes on")
    if resume and config is not None:
        raise typer.BadParameter(
            "--config is for a new pilot; one that goes on is judged by the limits it began with"
        )
    root = Path.cwd() / layout.ROOT
    facts = git_facts(Path.cwd())
    with contextlib.ExitStack() as lock:
        with Interruptions() as interruptions:
            if resume:
                folder, command = _folder_and_command(words or [])
                begun = resume_pilot(root, folder, command, seeds=seeds, facts=facts)
            else:
                limits = _CONFIG if config is None else config
                begun = begin_pilot(
                    root, limits, words or [], seeds=seeds, only=only or [], facts=facts
                )
            with disk_faults_told(begun.folder):
                lock.enter_context(locked(begun.folder))
            with make_observer() as observer:
                if (
                    resume
                    and _CONFIG.is_file()
                    and config_hash(_CONFIG) != begun.record.config_hash
                ):
                    observer.noted(
                        f"the limits are those of {_short(begun.folder / layout.CONFIG)}, as they "
                        f"stood when the pilot began; {_CONFIG} has others now"
                    )
                stopped = run_pilot(begun, observer, interruptions, max_hours=max_hours)
        if stopped.reason != "done":
            _end_early(begun, stopped)
        try:
            outcome = _conclude(begun)
        except KeyboardInterrupt:
            complain("interrupted; every run is done", _way_on(begun))
            raise
    raise typer.Exit(_EXIT[outcome])


def _folder_and_command(words: Sequence[str]) -> tuple[Path | None, Sequence[str]]:
    """Part what follows --resume: a pilot's folder, a command, both or neither."""
    if not words:
        return None, ()
    if (Path(words[0]) / layout.PILOT).is_file():
        return Path(words[0]), words[1:]
    if shutil.which(words[0]) is None:
        raise PilotError(
            f"{words[0]!r} is neither a pilot's folder nor a program",
            hint=f"the folders lie below {layout.ROOT}/pilots; without one, the pilot that was "
            "begun last goes on",
        )
    return None, words


def _way_on(begun: Pilot) -> str:
    """Say how to go on with a pilot that did not come to its end."""
    words = ["narrowgate", "pilot", "--resume", str(_short(begun.folder))]
    if any(MASK in word for word in begun.record.command):
        words += ["--", "COMMAND"]
    return f"go on with: {shlex.join(words)}"


def _end_early(begun: Pilot, stopped: Stopped) -> NoReturn:
    """Say why there is no verdict, and how to get one."""
    way_on = _way_on(begun)
    count = f"{stopped.num_done} of {stopped.total} runs are done"
    if stopped.reason == "interrupted":
        complain(f"interrupted; {count} and kept", way_on)
        raise CommandFailed(130)
    if stopped.reason == "max-hours":
        complain(f"stopped, without a verdict: {stopped.message}; {count} and kept", way_on)
        raise CommandFailed(4)
    complain(
        stopped.message,
        f"mend the script, then {way_on}; a command that was wrong needs a new pilot",
    )
    raise CommandFailed(5)


def _conclude(begun: Pilot) -> Outcome | None:
    """Judge, draw and print; give the outcome of all candidates."""
    from narrowgate.pilot.conclude import conclude
    from narrowgate.pilot.ledger import Ledger
    from narrowgate.report import print_verdict, write_report

    runs: dict[tuple[str, int], Run] = {}
    verdict = conclude(begun, runs)
    entries = Ledger(begun.ledger).entries()
    page = None
    try:
        page = write_report(begun.folder, verdict, runs, entries, entries[-1].hash)
    except RunError as error:
        complain(f"no page: {error.message}", error.hint)
    print_verdict(verdict)
    if page is not None:
        print_lines(f"report: {_short(page)}")
    print_lines(f"ledger: {entries[-1].hash}")
    return verdict.outcome


def _short(path: Path) -> Path:
    """Give a path as seen from here, where it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
