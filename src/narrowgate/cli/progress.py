"""How a pilot under way looks: bars on a terminal, and a line per finished run elsewhere.

Both go to stderr. The bars are drawn when the runner looks at the run and never by a thread of
their own, so that nothing is drawn into the middle of anything.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from narrowgate.cli.console import shown
from narrowgate.pilot.observe import Row, Silent
from narrowgate.pilot.schedule import Task
from narrowgate.pilot.tail import last_step
from narrowgate.records import layout

__all__ = ["Bars", "Lines", "make_observer", "render_seconds"]

#: Seconds between two looks into a run's log.
_INTERVAL_S = 0.5


def render_seconds(seconds: float) -> str:
    """Write a time as a person would say it.

    Args:
        seconds: The time; NaN if it is not known.

    Example:
        >>> [render_seconds(s) for s in (4.24, 90, 3700, 90_000, math.nan)]
        ['4.2 s', '2 min', '1 h 2 min', '25 h 0 min', 'an unknown time']
    """
    if math.isnan(seconds):
        return "an unknown time"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def make_observer() -> Lines | Bars:
    """Choose by whether stderr is a terminal."""
    return Bars() if sys.stderr.isatty() else Lines()


class Lines(Silent):
    """A line per event: for logs, CI and pipes."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, soft_wrap=True, highlight=False)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Print a line; nothing in it is read as markup, or steers a terminal.

        Args:
            text: The line.
        """
        self.console.print(Text(shown(text)))

    def began(self, folder: Path, num_done: int, total: int) -> None:
        """Say where the pilot lies and how much there is to do."""
        done = f", {num_done} of them done before" if num_done else ""
        self.say(f"pilot {folder}: {total} runs{done}")

    def estimated(self, seconds: float, source: str) -> None:
        """Say how long it will take."""
        self.say(f"the rest is likely to take {render_seconds(seconds)}, going by {source}")

    def run_ended(self, row: Row) -> None:
        """Say what a run came to."""
        width = len(str(row.total))
        left = f", about {render_seconds(row.left_s)} to go" if row.left_s > 0 else ""
        what = f"in {render_seconds(row.seconds)}"
        if math.isnan(row.seconds):
            what += ": its end was seen late"
        if not row.is_done:
            what = f"{row.why} after {render_seconds(row.seconds)}; see {row.folder}"
        self.say(
            f"[{row.number:{width}}/{row.total}] {row.task.recipe}, seed {row.task.seed}: "
            f"{'done ' if row.is_done else ''}{what}{left}"
        )

    def noted(self, text: str) -> None:
        """Say it."""
        self.say(f"note: {text}")


class Bars(Lines):
    """A bar over all runs, and one for the run under way with its step and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            console=self.console,
            auto_refresh=False,
            transient=True,
        )
        self.overall: TaskID | None = None
        self.current: TaskID | None = None
        self.events: Path | None = None
        self.num_steps: int | None = None
        self.ends_at = math.nan
        self.looked_at = -math.inf

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def began(self, folder: Path, num_done: int, total: int) -> None:
        """Draw the bar over all runs."""
        super().began(folder, num_done, total)
        self.overall = self.progress.add_task("all runs", total=total, state="")
        self.progress.update(self.overall, completed=num_done)

    def estimated(self, seconds: float, source: str) -> None:
        """Say how long it will take, and count down from there."""
        super().estimated(seconds, source)
        self.ends_at = time.monotonic() + seconds

    def run_started(self, task: Task, folder: Path, number: int, total: int) -> None:
        """Draw a bar for the run."""
        self.events = folder / layout.EVENTS
        self.current = self.progress.add_task(
            f"{task.recipe}, seed {task.seed}", total=self.num_steps, state="starting"
        )
        self.looked_at = -math.inf
        self.tick()

    def tick(self) -> None:
        """Look into the run's log, a few times a second at most, and draw."""
        now = time.monotonic()
        if now - self.looked_at < _INTERVAL_S:
            return
        self.looked_at = now
        found = None if self.events is None else last_step(self.events)
        if self.current is not None and found is not None:
            step, loss = found
            of = f" of {self.num_steps}" if self.num_steps else ""
            state = f"step {step}{of}" + ("" if math.isnan(loss) else f", loss {loss:.4g}")
            self.progress.update(self.current, completed=step, state=state)
        if self.overall is not None and not math.isnan(self.ends_at):
            left = max(0.0, self.ends_at - now)
            self.progress.update(self.overall, state=f"about {render_seconds(left)} to go")
        self.progress.refresh()

    def run_ended(self, row: Row) -> None:
        """Say what the run came to, and take its bar away."""
        if row.is_done and (found := last_step(row.folder / layout.EVENTS)) is not None:
            self.num_steps = found[0]
        if self.current is not None:
            self.progress.remove_task(self.current)
            self.current = None
        if self.overall is not None:
            self.progress.update(self.overall, completed=row.number)
        if not math.isnan(row.left_s):
            self.ends_at = time.monotonic() + row.left_s
        super().run_ended(row)
        self.progress.refresh()
