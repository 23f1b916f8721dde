"""What a pilot tells while it runs, and the one who listens.

The runner draws nothing and prints nothing; it calls an observer, at moments when no file is half
written. Nothing that an observer is told is needed to go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from narrowgate.pilot.schedule import Task

__all__ = ["Observer", "Row", "Silent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run that has ended.

    Attributes:
        task: The recipe and the seed.
        folder: The attempt's folder.
        is_done: Whether it gave what it had to.
        why: What it lacks, in words; empty if it is done.
        seconds: Wall time of the process.
        number: Its number among the runs, from 1.
        total: Number of runs in all.
        left_s: How long the rest is likely to take, seconds; NaN if nothing is known.
    """

    task: Task
    folder: Path
    is_done: bool
    why: str
    seconds: float
    number: int
    total: int
    left_s: float


class Observer(Protocol):
    """Who is told how a pilot comes on."""

    def began(self, folder: Path, num_done: int, total: int) -> None:
        """The pilot begins or goes on.

        Args:
            folder: Its folder.
            num_done: Runs that were done before.
            total: Runs in all.
        """

    def estimated(self, seconds: float, source: str) -> None:
        """There is an estimate of the time for the runs still to do.

        Args:
            seconds: The estimate.
            source: What it rests on, in words.
        """

    def run_started(self, task: Task, folder: Path, number: int, total: int) -> None:
        """A run starts.

        Args:
            task: The recipe and the seed.
            folder: The attempt's folder.
            number: Its number among the runs, from 1.
            total: Runs in all.
        """

    def tick(self) -> None:
        """The run under way was looked at; comes many times a second."""

    def run_ended(self, row: Row) -> None:
        """A run has ended.

        Args:
            row: What it came to.
        """

    def noted(self, text: str) -> None:
        """There is something to say.

        Args:
            text: A sentence or several.
        """


class Silent:
    """The observer that lets everything pass; others may build on it."""

    def began(self, folder: Path, num_done: int, total: int) -> None:
        """Let it pass."""

    def estimated(self, seconds: float, source: str) -> None:
        """Let it pass."""

    def run_started(self, task: Task, folder: Path, number: int, total: int) -> None:
        """Let it pass."""

    def tick(self) -> None:
        """Let it pass."""

    def run_ended(self, row: Row) -> None:
        """Let it pass."""

    def noted(self, text: str) -> None:
        """Let it pass."""
