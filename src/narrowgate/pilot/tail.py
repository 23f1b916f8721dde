"""The last step of a run under way, read from the end of its growing log."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

from narrowgate.errors import RunError
from narrowgate.records.files import number

__all__ = ["last_step"]

#: A step's line is a few hundred bytes; so many hold the last one, whatever is logged between.
_BLOCK_BYTES = 65_536


def last_step(path: Path) -> tuple[int, float] | None:
    """Read the last step that a run has logged.

    Args:
        path: The run's events.jsonl, complete or growing.

    Returns:
        The step's number and its loss (NaN if it had none); None if there is none yet. A line that
        is still being written is not read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _BLOCK_BYTES))
            block = file.read(_BLOCK_BYTES)
    except OSError:
        return None
    for line in reversed(block.split(b"\n")[:-1]):
        if b'"step"' not in line:
            continue
        try:
            value = json.loads(line)
            if value["kind"] == "step":
                loss = math.nan if value["loss"] is None else number(value["loss"])
                return int(value["step"]), loss
        except (ValueError, TypeError, KeyError, RunError):
            continue
    return None
