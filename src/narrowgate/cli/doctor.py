"""``narrowgate doctor``: what this machine and this torch can do, and what narrowgate does there.

The facts are gathered by ``narrowgate.engine.doctor`` in a subprocess; here they are only printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer

from narrowgate.cli.console import ask_engine, print_json, print_lines, print_table

__all__ = ["doctor"]

# One table per part of the report: its key, its title, and column head -> key of the row.
_TABLES: Sequence[tuple[str, str, Mapping[str, str]]] = (
    ("versions", "Versions", {"what": "name", "version": "version"}),
    (
        "devices",
        "Devices",
        {"device": "device", "name": "name", "memory (GiB)": "memory_gib", "note": "note"},
    ),
    (
        "cpu_formats",
        "16-bit formats on this CPU",
        {
            "format": "format",
            "own units": "native",
            "median time / FP32's": "probe_ratio",
            "products of a prepared model": "products",
        },
    ),
    (
        "probe",
        "Time of torch's own kernels / FP32's, one thread",
        {"operation": "operation", "bf16": "bf16", "fp16": "fp16"},
    ),
    (
        "ops",
        "Which version of an op serves",
        {"op": "op", "device": "device", "version": "version", "why": "why"},
    ),
    ("flags", "Flags of torch", {"flag": "flag", "value": "value", "note": "note"}),
)


def doctor(
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
) -> None:
    """Show versions, devices, which kernels serve, and the flags that change numbers."""
    report = ask_engine("doctor")
    if as_json:
        print_json(report)
        return
    for key, title, columns in _TABLES:
        print_table(title, list(columns), _rows(report[key], list(columns.values())))
    notes = report["notes"]
    assert isinstance(notes, list)
    for note in notes:
        print_lines(f"note: {note}")


def _rows(part: object, keys: Sequence[str]) -> list[list[object]]:
    assert isinstance(part, list)
    return [[row[key] for key in keys] for row in part]
