"""Requests for runs, as a pilot writes them."""

from __future__ import annotations

from pathlib import Path

from narrowgate.records import Request, layout
from narrowgate.records.files import write_json


def request(recipe: str | None = "bf16", seed: int | None = 3) -> Request:
    return Request(
        recipe=recipe,
        seed=seed,
        attempt=1,
        pilot="20261201T180322-1f2e3d4c",
        command=("python", "train.py"),
        commit=None,
        uncommitted=None,
        created="2026-12-01T18:03:22.000000Z",
    )


def folder(path: Path, **changes: object) -> Path:
    """Make a run's folder with its request.json."""
    write_json(path / layout.REQUEST, request(**changes).to_json())
    return path
