"""Runs a pilot: one process at a time, in an order that is fair, from wherever it was left.

A run that crashes, hangs or says nothing costs one row. The pilot itself stops early where more
runs would be wasted: a baseline that fails twice before it ever worked, a script that ignores its
seed or does not report what is judged. It stops without loss at Ctrl-C, at --max-hours, on a full
disk and when it is killed: what is on disk is all that it knows, and each call goes on from there.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from narrowgate.errors import RunError
from narrowgate.pilot.begin import Pilot
from narrowgate.pilot.command import fill
from narrowgate.pilot.disk import check_space, disk_faults_told
from narrowgate.pilot.early import Early
from narrowgate.pilot.estimate import earlier_seconds, finished_seconds
from narrowgate.pilot.interim import explain, last_lines
from narrowgate.pilot.interrupt import Interruptions
from narrowgate.pilot.launch import launch
from narrowgate.pilot.observe import Observer, Row
from narrowgate.pilot.processes import Guard, end_processes
from narrowgate.pilot.schedule import Task, baseline_first, expected_s, missing, order_of_runs
from narrowgate.records import layout
from narrowgate.records.files import utc_now, write_json
from narrowgate.records.run import Ending, Request, Run, load_run

__all__ = ["Stopped", "run_pilot"]

#: Fewer pairs than these are inconclusive whatever they say.
_LEAST_SEEDS = 3
#: So many failures of a baseline that never worked end the pilot.
_MOST_FAILURES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """Why a pilot stopped.

    Attributes:
        reason: ``done``: every run was tried; ``interrupted``: Ctrl-C; ``max-hours``: the next run
            would have taken too long; ``command-failed``: the baseline never worked.
        message: What happened, in words; empty when done.
        num_done: Runs that gave what they had to.
        total: Runs in all.
    """

    reason: Literal["done", "interrupted", "max-hours", "command-failed"]
    message: str
    num_done: int
    total: int


def run_pilot(
    pilot: Pilot,
    observer: Observer,
    interruptions: Interruptions,
    *,
    max_hours: float | None = None,
) -> Stopped:
    """Do the runs of a pilot that are not done yet, each of them once.

    Args:
        pilot: The pilot, locked (`narrowgate.pilot.begin.locked`).
        observer: Who is told how it comes on.
        interruptions: Counts Ctrl-C.
        max_hours: Hours after which no run is to be under way any more, as far as can be estimated.

    Returns:
        Why it stopped.

    Raises:
        PilotError: The script ignores its seed or does not report what is judged, the program
            cannot be started, or the disk is full.
    """
    with disk_faults_told(pilot.folder):
        _settle(pilot)
        return _Running(pilot, observer, interruptions, max_hours).go()


def _settle(pilot: Pilot) -> None:
    """Close what a killed pilot left: end its run, and note that it was interrupted."""
    end_processes(pilot.folder)
    for task in _order(pilot):
        for folder in layout.attempts(pilot.folder, task.recipe, task.seed):
            if not (folder / layout.EXIT).exists():
                ending = Ending(how="interrupted", code=None, seconds=math.nan)
                write_json(folder / layout.EXIT, ending.to_json())


def _order(pilot: Pilot) -> tuple[Task, ...]:
    record = pilot.record
    return order_of_runs(record.baseline, record.candidates, record.seeds)


class _Running:
    """What is known while a pilot runs."""

    def __init__(
        self,
        pilot: Pilot,
        observer: Observer,
        interruptions: Interruptions,
        max_hours: float | None,
    ) -> None:
        self.pilot, self.observer, self.interruptions = pilot, observer, interruptions
        self.limit_s = math.inf if max_hours is None else 3600 * max_hours
        self.begun = time.monotonic()
        self.order = _order(pilot)
        self.early = Early(pilot.record.baseline, pilot.config)
        self.done: set[Task] = set()
        self.failed: list[tuple[Task, Path, str]] = []
        self.baselines: dict[int, Path] = {}
        self.candidates: dict[Task, Path] = {}
        self.seconds = earlier_seconds(pilot)
        self.is_estimated = False

    def go(self) -> Stopped:
        pilot, observer = self.pilot, self.observer
        for task in self.order:
            folders = layout.attempts(pilot.folder, task.recipe, task.seed)
            run = _read(folders[-1])[0] if folders else None
            if run is not None and not explain(run, pilot.config):
                self._take(task, run)
        self._count_seconds()
        observer.began(pilot.folder, len(self.done), len(self.order))
        if len(pilot.record.seeds) < _LEAST_SEEDS:
            observer.noted(f"fewer than {_LEAST_SEEDS} seeds: no gate that tests can pass")
        self._estimate("the runs so far" if self.done else "an earlier pilot of this command")
        todo = missing(self.order, self.done, self.early.dropped)
        with Guard() as guard:
            while todo:
                if stopped := self._should_stop(todo[0]):
                    return stopped
                self._run(todo.pop(0), guard)
                if stopped := self._has_failed(todo):
                    return stopped
                if not self.baselines:
                    todo = baseline_first(todo, pilot.record.baseline)
                todo = missing(todo, (), self.early.dropped)
        return self._stopped("interrupted" if self.interruptions.count else "done", "")

    def _run(self, task: Task, guard: Guard) -> None:
        """Do one run, read it, and tell."""
        number = len(self.done) + len(self.failed) + 1
        folder = self._make(task)
        guard.watch(folder)
        self.observer.run_started(task, folder, number, len(self.order))
        ending = launch(
            fill(self.pilot.command, task.seed),
            folder,
            timeout_s=self.pilot.config.timeout_s,
            stop=lambda: self.interruptions.count,
            tick=self.observer.tick,
        )
        run, why = _read(folder)
        if run is not None:
            why = explain(run, self.pilot.config)
        self._count_seconds()
        rest = missing(self.order, {*self.done, task, *(t for t, _, _ in self.failed)})
        self.observer.run_ended(
            Row(
                task=task,
                folder=folder,
                is_done=not why,
                why=why,
                seconds=ending.seconds,
                number=number,
                total=len(self.order),
                left_s=expected_s(rest, self.seconds),
            )
        )
        if ending.how == "interrupted":
            return
        if run is not None and not why:
            self._take(task, run)
        else:
            is_baseline = task.recipe == self.pilot.record.baseline
            if is_baseline and not self.baselines and run is not None and run.is_complete:
                self.early.check_first(run)
            self.failed.append((task, folder, why))
            check_space(self.pilot.folder)
        self._estimate("the first run")

    def _make(self, task: Task) -> Path:
        """Make the folder of the next attempt; it appears with its request or not at all."""
        pilot = self.pilot
        earlier = layout.attempts(pilot.folder, task.recipe, task.seed)
        attempt = 1 + (int(earlier[-1].name.rpartition("-")[2]) if earlier else 0)
        folder = layout.attempt_folder(pilot.folder, task.recipe, task.seed, attempt)
        request = Request(
            recipe=task.recipe,
            seed=task.seed,
            attempt=attempt,
            pilot=pilot.folder.name,
            command=fill(pilot.record.command, task.seed),
            commit=pilot.commit,
            uncommitted=pilot.uncommitted,
            created=utc_now(),
        )
        beside = folder.with_name(f".{folder.name}")
        shutil.rmtree(beside, ignore_errors=True)
        write_json(beside / layout.REQUEST, request.to_json())
        os.rename(beside, folder)
        return folder

    def _take(self, task: Task, run: Run) -> None:
        """Take in a run that is done, and look for faults that make more runs useless."""
        self.done.add(task)
        if task.recipe == self.pilot.record.baseline:
            self.early.add_baseline(task.seed, run)
            self.baselines[task.seed] = run.folder
            partners = [t for t in self.candidates if t.seed == task.seed]
            for partner in partners:
                self._compare(partner, load_run(self.candidates[partner]), run)
            return
        self.candidates[task] = run.folder
        if task.seed in self.baselines:
            self._compare(task, run, load_run(self.baselines[task.seed]))

    def _compare(self, task: Task, candidate: Run, baseline: Run) -> None:
        if task.recipe in self.early.dropped:
            return
        if why := self.early.compare(task.recipe, task.seed, candidate, baseline):
            self.observer.noted(
                f"{task.recipe} cannot be compared: {why}; its other runs are left out"
            )

    def _count_seconds(self) -> None:
        """Learn how long runs take; what this pilot measured counts before an earlier one's."""
        self.seconds.update(finished_seconds(self.pilot.folder, self.pilot.record))

    def _estimate(self, source: str) -> None:
        """Say how long the rest will take, once, as soon as anything is known."""
        tried = {*self.done, *(task for task, _, _ in self.failed)}
        todo = missing(self.order, tried, self.early.dropped)
        if self.seconds and todo and not self.is_estimated:
            self.is_estimated = True
            self.observer.estimated(expected_s(todo, self.seconds), source)

    def _should_stop(self, task: Task) -> Stopped | None:
        """Stop at Ctrl-C, and where the next run would go beyond --max-hours."""
        if self.interruptions.count:
            return self._stopped("interrupted", "")
        next_s = expected_s([task], self.seconds)
        elapsed_s = time.monotonic() - self.begun
        if self.limit_s < elapsed_s + (0.0 if math.isnan(next_s) else next_s):
            why = f"the next run would end after --max-hours {self.limit_s / 3600:g}"
            if not math.isnan(next_s):
                why += f": it is likely to take {next_s / 60:.1f} minutes"
            return self._stopped("max-hours", why)
        return None

    def _has_failed(self, todo: list[Task]) -> Stopped | None:
        """Stop where the baseline has failed twice, or has no seed left, and never worked."""
        baseline = self.pilot.record.baseline
        fails = [entry for entry in self.failed if entry[0].recipe == baseline]
        is_last = not any(task.recipe == baseline for task in todo)
        if self.baselines or not fails or (len(fails) < _MOST_FAILURES and not is_last):
            return None
        told = "; ".join(f"with seed {task.seed} it {why}" for task, _, why in fails)
        _, folder, _ = fails[-1]
        log = folder / layout.STDERR
        lines = last_lines(log)
        quoted = "".join(f"\n    {line}" for line in lines)
        end = f"the end of {log}:{quoted}" if lines else f"{log} is empty"
        return self._stopped("command-failed", f"the baseline {baseline} failed: {told}; {end}")

    def _stopped(
        self, reason: Literal["done", "interrupted", "max-hours", "command-failed"], message: str
    ) -> Stopped:
        return Stopped(
            reason=reason, message=message, num_done=len(self.done), total=len(self.order)
        )


def _read(folder: Path) -> tuple[Run | None, str]:
    """Read a run; a file that is damaged is a fault of the run, not of the pilot."""
    try:
        return load_run(folder), ""
    except RunError as error:
        return None, f"left a file that cannot be read: {error.message}"
