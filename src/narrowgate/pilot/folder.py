"""What a pilot's folder says about the pilot itself: pilot.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from narrowgate.errors import PilotError, RunError
from narrowgate.records import layout
from narrowgate.records.files import read_json

__all__ = ["PilotRecord", "read_pilot"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotRecord:
    """What a pilot set out to do.

    Attributes:
        command: The command, with secrets masked and its placeholders as the user typed them.
        config_hash: SHA-256 of config.toml.
        seeds: The seeds, in the order in which they are run.
        baseline: The baseline's recipe in normal form.
        candidates: The candidates' recipes in normal form.
        created: When it began, UTC.
        commit: Git commit of the working directory; None if there is none.
        uncommitted: SHA-256 of what git calls changed or untracked there; None if nothing is.
    """

    command: tuple[str, ...]
    config_hash: str
    seeds: tuple[int, ...]
    baseline: str
    candidates: tuple[str, ...]
    created: str
    commit: str | None
    uncommitted: str | None

    def to_json(self) -> dict[str, Any]:
        """Give the object for pilot.json, without its schema."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PilotRecord:
        """Read what `to_json` gave.

        Args:
            data: The object.

        Raises:
            RunError: Something is missing.
        """
        try:
            values = {field.name: data[field.name] for field in fields(cls)}
            for name in ("command", "seeds", "candidates"):
                values[name] = tuple(values[name])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise RunError(f"this is no pilot.json: {error}") from error


def read_pilot(folder: Path) -> PilotRecord:
    """Read a pilot's own record.

    Args:
        folder: The pilot's folder.

    Raises:
        PilotError: There is no such folder, or it is not a pilot's.
        RunError: pilot.json is damaged.
    """
    if not (folder / layout.PILOT).is_file():
        what = f"{folder} has no {layout.PILOT}" if folder.is_dir() else f"there is no {folder}"
        raise PilotError(
            what, hint=f"name a folder below {layout.ROOT}/pilots; `narrowgate pilot` makes them"
        )
    return PilotRecord.from_json(read_json(folder / layout.PILOT))
