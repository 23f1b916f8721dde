"""What this machine and this torch can do, as one JSON object; nothing is installed or changed.

Run as ``python -m narrowgate.engine.doctor`` by the command ``narrowgate doctor``, so that the
command itself starts without torch and the probe has a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from importlib import metadata

import torch

from narrowgate import __version__, ops
from narrowgate.engine import cpu, switches
from narrowgate.engine.cpu import ProbeRow
from narrowgate.engine.describe import format_name
from narrowgate.engine.versions import note_on_torch
from narrowgate.records.environment import processor_name

__all__ = ["notes_on_probe", "report"]

_SCHEMA = 1
# Ratios beyond these contradict the processor's flags: units make products at least as fast as
# FP32's, and without units they were 3 to 30 times slower wherever it was measured.
_SLOW, _FAST = 2.0, 0.5

_SWITCH_NOTES = {
    "fp16_reduced_precision_reduction": "CUDA; prepare() turns it off for 16-bit recipes",
    "bf16_reduced_precision_reduction": "CUDA; prepare() turns it off for 16-bit recipes",
    "cudnn_tf32": "CUDA; with it on, fp32 is not FP32 in convolutions",
    "float32_matmul_precision": "anything but 'highest' lets FP32 products use fewer bits",
}

Row = dict[str, str | int | float | bool | None]


def report() -> dict[str, object]:
    """Gather the facts.

    Returns:
        An object for JSON with the lists of rows ``versions``, ``devices``, ``cpu_formats``,
        ``probe``, ``ops`` and ``flags``, and ``notes`` for people.

    Units:
        ``memory_gib`` in GiB; a probe's ratios are time in the format / time in FP32, one thread.
    """
    rows = cpu.probe()
    notes = [note_on_torch(torch.__version__), *notes_on_probe(rows, cpu.native_dtypes())]
    return {
        "schema": _SCHEMA,
        "versions": _versions(),
        "devices": _devices(),
        "cpu_formats": [_cpu_format(dtype, rows) for dtype in (torch.bfloat16, torch.float16)],
        "probe": _probe_table(rows),
        "ops": [
            {"op": s.op, "device": s.device, "version": s.version, "why": s.why}
            for s in ops.status()
        ],
        "flags": [
            {"flag": name, "value": value, "note": _SWITCH_NOTES[name]}
            for name, value in switches.read().items()
        ],
        "notes": [note for note in notes if note],
    }


def _versions() -> list[Row]:
    found = {
        "narrowgate": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "CUDA of torch": torch.version.cuda,
        "safetensors": metadata.version("safetensors"),
        "system": f"{platform.system()} {platform.machine()}",
    }
    return [{"name": name, "version": version} for name, version in found.items()]


def _devices() -> list[Row]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    rows: list[Row] = [
        {
            "device": "cpu",
            "name": processor_name(),
            "memory_gib": memory / 2**30,
            "note": f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads",
        }
    ]
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        rows.append(
            {
                "device": f"cuda:{index}",
                "name": found.name,
                "memory_gib": found.total_memory / 2**30,
                "note": f"compute capability {found.major}.{found.minor}",
            }
        )
    return rows


def _cpu_format(dtype: torch.dtype, rows: Sequence[ProbeRow]) -> Row:
    native = dtype in cpu.native_dtypes()
    return {
        "format": format_name(dtype),
        "native": native,
        "probe_ratio": _typical(rows, dtype),
        "products": "torch's own kernels" if native else "FP32 kernels, rounded once",
    }


def _typical(rows: Sequence[ProbeRow], dtype: torch.dtype) -> float:
    return statistics.median(row.ratio for row in rows if row.dtype == dtype)


def _probe_table(rows: Sequence[ProbeRow]) -> list[Row]:
    table: dict[str, Row] = {}
    for row in rows:
        cells = table.setdefault(row.operation, {"operation": row.operation})
        cells[format_name(row.dtype)] = row.ratio
    return list(table.values())


def notes_on_probe(rows: Sequence[ProbeRow], native: frozenset[torch.dtype]) -> list[str]:
    """Say where the probe contradicts the processor's flags. The flags decide all the same.

    Args:
        rows: What the probe measured.
        native: The formats which the flags call native.

    Returns:
        One sentence for each format with a contradiction.
    """
    notes = []
    for dtype in (torch.bfloat16, torch.float16):
        ratio, name = _typical(rows, dtype), format_name(dtype)
        if dtype in native and ratio > _SLOW:
            notes.append(
                f"{name} counts as native here, yet takes {ratio:.1f} times as long as FP32; "
                "is the machine busy?"
            )
        if dtype not in native and ratio < _FAST:
            notes.append(
                f"{name} does not count as native here, yet takes {ratio:.2f} of FP32's time; "
                "is the machine busy?"
            )
    return notes


if __name__ == "__main__":
    json.dump(report(), sys.stdout)
    print()
