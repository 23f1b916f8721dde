"""How long runs took, read from the disk: this pilot's, or an earlier one's of the same command."""

from __future__ import annotations

from pathlib import Path

from narrowgate.errors import NarrowgateError
from narrowgate.pilot.begin import Pilot
from narrowgate.pilot.folder import PilotRecord, read_pilot
from narrowgate.pilot.schedule import mean_seconds, order_of_runs
from narrowgate.records import layout
from narrowgate.records.files import number, read_json

__all__ = ["earlier_seconds", "finished_seconds"]


def finished_seconds(folder: Path, record: PilotRecord) -> dict[str, float]:
    """Average the times of a pilot's runs that ended well.

    Args:
        folder: The pilot's folder.
        record: The pilot's record.

    Returns:
        Seconds by recipe; recipes without such a run are not in it.
    """
    found = []
    for task in order_of_runs(record.baseline, record.candidates, record.seeds):
        for attempt in layout.attempts(folder, task.recipe, task.seed)[-1:]:
            if not (attempt / layout.RESULT).exists():
                continue
            try:
                ending = read_json(attempt / layout.EXIT)
                if ending["how"] == "ended" and ending["code"] == 0:
                    found.append((task.recipe, number(ending["seconds"])))
            except (NarrowgateError, KeyError):  # no time is lost by not knowing one
                continue
    return mean_seconds(found)


def earlier_seconds(pilot: Pilot) -> dict[str, float]:
    """Average the times of the newest earlier pilot of the same command.

    Args:
        pilot: The pilot that is about to run.

    Returns:
        Seconds by recipe; empty if there was none.
    """
    for folder in sorted(pilot.folder.parent.iterdir(), reverse=True):
        if folder == pilot.folder:
            continue
        try:
            record = read_pilot(folder)
        except NarrowgateError:  # not a pilot's, or damaged: it estimates nothing
            continue
        is_same = record.command == pilot.record.command
        if is_same and (seconds := finished_seconds(folder, record)):
            return seconds
    return {}
