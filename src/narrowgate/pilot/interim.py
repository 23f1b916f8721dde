"""What a run that has ended lacks to count, in words: the same while a pilot runs and after."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from narrowgate.pilot.config import EVERY_SLICE, PilotConfig
from narrowgate.records.run import Result, Run

__all__ = ["explain", "last_lines", "missing_numbers"]

_TAIL_BYTES = 8_192
# Colours and cursor movements, and whatever else a terminal would not print.
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def missing_numbers(result: Result, config: PilotConfig) -> list[str]:
    """Name what the configuration judges and a result does not have.

    Args:
        result: The result.
        config: The limits.

    Returns:
        Names such as ``val_loss`` and ``val_loss/json``.
    """
    missing = []
    for limit in config.quality:
        if limit.name not in result.metrics:
            missing.append(limit.name)
        missing += [
            f"{limit.name}/{part}"
            for part in limit.slices
            if part != EVERY_SLICE and limit.name not in result.slices.get(part, {})
        ]
    return missing


def explain(run: Run, config: PilotConfig) -> str:
    """Say what a run lacks to count, in words.

    Args:
        run: The run.
        config: The limits.

    Returns:
        The reason; empty if the run has what it has to.
    """
    if run.ending is None or run.ending.how == "interrupted":
        return "was interrupted"
    if run.ending.how == "timeout":
        return f"took longer than timeout_s = {config.timeout_s:g} s and was ended"
    code = run.ending.code
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    if code != 0:
        return f"ended with exit code {code}"
    if run.result is None and not run.environment:
        return (
            "ended well, but wrote nothing into its folder: it called nothing of narrowgate, was "
            "not passed NARROWGATE_RUN, or ended before the training did"
        )
    if run.result is None:
        return "ended well, but never called ng.result"
    if missing := missing_numbers(run.result, config):
        return "reported no " + ", ".join(missing)
    return ""


def last_lines(path: Path, num_lines: int = 12) -> list[str]:
    """Read the end of what a run printed, without what a terminal would not print.

    Args:
        path: stdout.log or stderr.log.
        num_lines: How many lines at most.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = [_UNPRINTABLE.sub("", line).rstrip() for line in text.split("\n")]
    return [line[:300] for line in lines if line][-num_lines:]
