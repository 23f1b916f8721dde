"""Pilots of the fake script, run in this process, and what they tell while they run."""

from __future__ import annotations

from pathlib import Path

from narrowgate.pilot.begin import Pilot, begin_pilot, locked
from narrowgate.pilot.interrupt import Interruptions
from narrowgate.pilot.observe import Row, Silent
from narrowgate.pilot.runner import Stopped, run_pilot
from pilot import fake


class Listener(Silent):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.estimates: list[tuple[int, float, str]] = []

    def run_ended(self, row: Row) -> None:
        self.rows.append(row)

    def noted(self, text: str) -> None:
        self.notes.append(text)

    def estimated(self, seconds: float, source: str) -> None:
        self.estimates.append((len(self.rows), seconds, source))

    @property
    def ran(self) -> list[str]:
        return [f"{row.task.recipe}@{row.task.seed}" for row in self.rows]

    @property
    def faults(self) -> dict[str, str]:
        return {f"{r.task.recipe}@{r.task.seed}": r.why for r in self.rows if not r.is_done}


def begin(here: Path, behave=None, *, config: str = fake.CONFIG, **options) -> Pilot:
    root = fake.write(here, behave, config)
    return begin_pilot(root, here / "narrowgate.toml", fake.COMMAND, **options)


def run(pilot: Pilot, **options) -> tuple[Stopped, Listener]:
    listener = Listener()
    with locked(pilot.folder):
        return run_pilot(pilot, listener, Interruptions(), **options), listener
