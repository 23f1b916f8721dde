"""Tables for people, rows for files, and the machine that the numbers are from.

A limit is printed beside its value with ok or MISSED, so that nobody needs to remember it. Rows in
a file are appended, one JSON object a line, each with the machine, the commit and the date: a
number without them says nothing.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from narrowgate.records.environment import processor_name

__all__ = ["Measure", "append_rows", "describe_versions", "print_measures", "print_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One number that a benchmark found.

    Attributes:
        name: What was measured, ``train_step/gpt/bf16/speed``.
        value: The number itself, in its unit.
        unit: Its unit.
        ratio: Over the baseline's, or None.
        limit: What is wanted of the ratio, ``>= 0.80``, or None.
        is_busy: Whether the machine had other things to do, so that a time says little.
    """

    name: str
    value: float
    unit: str
    ratio: float | None = None
    limit: str | None = None
    is_busy: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the limit is met, if there is one."""
        if self.limit is None or self.ratio is None:
            return True
        sign, number = self.limit.split()
        return self.ratio >= float(number) if sign == ">=" else self.ratio <= float(number)


def print_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in plain columns; the first is left-aligned, the others are too.

    Args:
        title: What stands above it.
        heads: The heads of the columns.
        rows: The cells.
    """
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    print(title)
    for number, line in enumerate(lines):
        print("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def print_measures(title: str, measures: Sequence[Measure]) -> None:
    """Print measures with their limits.

    Args:
        title: What stands above them.
        measures: The measures.
    """

    def verdict(measure: Measure) -> str:
        if measure.limit is None:
            return ""
        if measure.is_busy:
            return "inconclusive: machine busy"
        return "ok" if measure.is_met else "MISSED"

    print_table(
        title,
        ("what", "value", "unit", "ratio", "limit", ""),
        [
            (
                m.name,
                f"{m.value:,.1f}",
                m.unit,
                "-" if m.ratio is None else f"{m.ratio:.3f}",
                m.limit or "",
                verdict(m),
            )
            for m in measures
        ],
    )


def describe_machine() -> dict[str, str | int]:
    """Name the processor and its cores.

    Returns:
        Plain data for a row.
    """
    return {
        "cpu": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "vector_units": torch.backends.cpu.get_cpu_capability(),
    }


def describe_versions() -> dict[str, str]:
    """Name the versions, and the date.

    Returns:
        Plain data for a row; a checkout with changes is marked in its commit.
    """
    return {
        "torch": str(torch.__version__),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str:
    root = Path(__file__).resolve().parents[1]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def append_rows(path: Path, measures: Sequence[Measure]) -> None:
    """Append measures to a file, one JSON object a line.

    Args:
        path: The file; made if there is none.
        measures: The measures.
    """
    origin = {**describe_versions(), "machine": describe_machine()}
    with path.open("a") as file:
        for m in measures:
            row = {"name": m.name, "value": m.value, "unit": m.unit, "ratio": m.ratio}
            file.write(json.dumps({**row, "limit": m.limit, "busy": m.is_busy, **origin}) + "\n")
