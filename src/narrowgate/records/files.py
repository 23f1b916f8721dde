"""How records reach the disk: JSON written beside and renamed, logs read as far as they are whole.

JSON knows no NaN and no infinity; they stand in our files as the strings ``"nan"``, ``"inf"`` and
``"-inf"``, so that any reader can parse them. Every JSON object carries ``"schema"``; a higher one
than is known here is refused, since it may mean something else by the same word.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from narrowgate.errors import RunError

__all__ = [
    "SCHEMA",
    "dumps",
    "number",
    "read_json",
    "read_lines",
    "replacing",
    "sha256",
    "utc_now",
    "write_json",
]

#: The schema that this version writes, and the highest that it reads.
SCHEMA = 1

_encode = json.JSONEncoder(allow_nan=False).encode
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def utc_now() -> str:
    """Give the time of now as ``2026-12-01T18:03:22.123456Z``."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def number(value: Any) -> float:
    """Read a number from JSON, non-finite ones included.

    Args:
        value: A JSON number, or ``"nan"``, ``"inf"``, ``"-inf"``.

    Returns:
        The number.

    Raises:
        RunError: It is neither.
    """
    if type(value) is float:  # nearly all are, and a log has many
        return value
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            pass  # a whole number beyond the largest float
    raise RunError(f"{value!r:.80} stands where a number belongs")


def _plain(value: Any) -> Any:
    """Put strings in the place of non-finite numbers, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def dumps(value: Any) -> str:
    """Write a value as one line of JSON.

    Args:
        value: Numbers, strings, None, mappings and sequences.

    Returns:
        The line, without a newline. Floats come back bit for bit.
    """
    try:
        return _encode(value)
    except ValueError:
        return _encode(_plain(value))


@contextlib.contextmanager
def replacing(path: Path, hint: str) -> Iterator[Path]:
    """Write a file beside its place, and rename it there when it is whole.

    Args:
        path: Where it belongs.
        hint: The way out when it cannot be written.

    Yields:
        Where to write it.

    Raises:
        RunError: It cannot be written; what was there before stays.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield beside
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise RunError(f"{path} cannot be written: {error.strerror}", hint=hint) from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object beside its place, sync it, and rename it there.

    Args:
        path: Where it belongs. Its folder is made if it is missing.
        value: The object; ``"schema"`` is added.

    Raises:
        RunError: The disk is full or the folder cannot be written; what was there before stays.
    """
    text = json.dumps(_plain({"schema": SCHEMA, **value}), indent=1, allow_nan=False) + "\n"
    hint = "free some space or choose another folder; what was there before is unchanged"
    with replacing(path, hint) as beside:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote.

    Args:
        path: The file.

    Returns:
        The object.

    Raises:
        RunError: It is missing, no JSON object, or of a schema newer than this version.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RunError(
            f"{path} cannot be read: {why}", hint="it is damaged, or was not written by narrowgate"
        ) from error
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise RunError(
            f"{path} has no schema number", hint="it was not written by narrowgate, or was edited"
        )
    if schema > SCHEMA:
        raise RunError(
            f"{path} has schema {schema}; this version of narrowgate knows {SCHEMA}",
            hint="read it with the version of narrowgate that wrote it",
        )
    return dict(value)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Read a log of one JSON object a line, as far as its lines are whole.

    Args:
        path: The log. A missing one reads as empty.

    Returns:
        The objects, and what was wrong, in words: a torn last line, unreadable ones. Lines that a
        killed process left torn in the middle of the log are left out, too.
    """
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return [], []
    lines = text.split("\n")
    found: list[dict[str, Any]] = []
    faults: list[str] = []
    if lines[-1] == "" and (whole := _all_at_once(lines[:-1])) is not None:
        return whole, faults
    for place, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        is_last = place == len(lines)
        if isinstance(value, dict) and not is_last:
            found.append(value)
        else:
            what = "is torn" if is_last else "cannot be read"
            faults.append(f"{path.name}: line {place} {what} ({len(line)} characters), left out")
    return found, faults


def _all_at_once(lines: list[str]) -> list[dict[str, Any]] | None:
    """Read a log that is whole in half the time that its lines take one by one.

    Args:
        lines: Its lines.

    Returns:
        The objects, one a line; None if that is not what it holds, for the slow way to say why.
    """
    try:
        values = json.loads(f"[{','.join(lines)}]")
    except ValueError:
        return None
    is_whole = len(values) == len(lines) and all(type(value) is dict for value in values)
    return values if is_whole else None


def sha256(path: Path) -> str:
    """Hash a file.

    Args:
        path: The file.

    Returns:
        64 hexadecimal digits.
    """
    # Not hashlib.file_digest, whose buffer of 256 KiB costs more than most of our files.
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(1 << 16):
            digest.update(block)
    return digest.hexdigest()
