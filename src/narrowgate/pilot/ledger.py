"""The ledger: one JSON line per entry, each carrying the hash of the one before.

What the chain shows is an edit or a gap *inside* the ledger: a line that was changed, removed,
moved or put in between no longer fits its neighbours. What it cannot show by itself is a cut tail,
or a ledger rewritten from some line to the end: both are whole chains. Every report therefore
prints the head hash, so that two copies can be compared, and nothing here claims more.

A line is written by one write under a lock and synced before `append` returns. A line that a crash
left without its end is moved aside to a file of its own at the next append, and that is said.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast, get_args

from narrowgate.errors import LedgerError, PilotError
from narrowgate.pilot.folder import PilotRecord
from narrowgate.records.decision import EntryKind, LedgerEntry
from narrowgate.records.files import SCHEMA, dumps, utc_now
from narrowgate.records.layout import LEDGER, new_folder_name
from narrowgate.records.verdict import Verdict

__all__ = [
    "FIRST",
    "Ledger",
    "Looks",
    "check_limits",
    "check_verdict",
    "ledger_of",
    "looks_of",
    "values_hash",
]

_log = logging.getLogger("narrowgate")

#: What the first entry carries in the place of the hash of the one before.
FIRST = "0" * 64

_CHANGED = (
    "keep the file as it is and compare it with a copy: every report prints the hash of the "
    "ledger's last entry; to begin anew, move the file away"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """What a ledger's bytes hold.

    Attributes:
        entries: The whole entries.
        torn: Bytes at the end that are no whole entry.
        needs_newline: Whether the last entry is whole but for its newline.
    """

    entries: tuple[LedgerEntry, ...]
    torn: bytes
    needs_newline: bool


class Ledger:
    """The log of decisions of one ``.narrowgate`` folder.

    Args:
        path: The file. It need not exist; the first `append` makes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Read all entries, the oldest first, and check the chain on the way.

        Raises:
            LedgerError: The ledger was changed, or cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                data = file.read()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise LedgerError(
                f"{self.path} cannot be read: {error.strerror}", hint="see who owns the file"
            ) from error
        chain = _read(data, self.path)
        if chain.torn:
            _log.warning(
                "%s ends in a torn line of %d bytes, which is left out; the next entry moves it "
                "to a file of its own",
                self.path,
                len(chain.torn),
            )
        return chain.entries

    def verify(self) -> None:
        """Check every line and every link.

        Raises:
            LedgerError: A line was changed, removed, moved or put in between; it is named.
        """
        self.entries()

    @property
    def head(self) -> str | None:
        """Hash of the last entry; None of an empty ledger."""
        entries = self.entries()
        return entries[-1].hash if entries else None

    def append(self, kind: EntryKind, pilot: str, body: Mapping[str, Any]) -> LedgerEntry:
        """Add an entry, and return when it is on the disk.

        Args:
            kind: What it is.
            pilot: Name of the pilot's folder.
            body: What it says: numbers, strings, None, mappings, sequences.

        Returns:
            The entry.

        Raises:
            LedgerError: The ledger was changed before, or the line cannot be written; then nothing
                of it stays.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise LedgerError(
                f"{self.path} cannot be written: {error.strerror}", hint="see who owns the folder"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            return self._append(fd, kind, pilot, body)
        except OSError as error:
            raise LedgerError(
                f"{self.path}: the entry {kind!r} could not be written: {error.strerror}",
                hint="free some space; the entries before it are unchanged",
            ) from error
        finally:
            os.close(fd)

    def _append(self, fd: int, kind: EntryKind, pilot: str, body: Mapping[str, Any]) -> LedgerEntry:
        """Add an entry to the file that is open and locked."""
        with open(fd, "rb", closefd=False) as file:
            data = file.read()
        chain = _read(data, self.path)
        if chain.torn:
            aside = self.path.with_name(f"{self.path.name}.torn-{new_folder_name()}")
            with aside.open("wb") as file:
                file.write(chain.torn)
                file.flush()
                os.fsync(file.fileno())
            os.ftruncate(fd, len(data) - len(chain.torn))
            _log.warning(
                "%s ended in a torn line; its %d bytes are now in %s",
                self.path,
                len(chain.torn),
                aside.name,
            )
        entry = _make(chain.entries, kind, pilot, body)
        size = os.fstat(fd).st_size
        line = ("\n" if chain.needs_newline else "") + _render(entry) + "\n"
        try:
            written = os.write(fd, line.encode())
            if written != len(line):
                raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes found room")
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise
        if not size:  # a new file's name has to reach the disk, too
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return entry


def _make(
    before: Sequence[LedgerEntry], kind: EntryKind, pilot: str, body: Mapping[str, Any]
) -> LedgerEntry:
    """Make the entry that follows others."""
    values: dict[str, Any] = {
        "number": len(before) + 1,
        "time": utc_now(),
        "kind": kind,
        "pilot": pilot,
        "body": json.loads(dumps(body)),  # as it will be read
        "previous": before[-1].hash if before else FIRST,
    }
    return LedgerEntry(**values, hash=_hash(values))


def _hash(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(dumps(list(values.values())).encode()).hexdigest()


def _values(entry: LedgerEntry) -> dict[str, Any]:
    """Give all of an entry but its hash, in the order in which it is hashed."""
    return {name: getattr(entry, name) for name in LedgerEntry.__slots__ if name != "hash"}


def _render(entry: LedgerEntry) -> str:
    """Write an entry as its line, always the same way, so that no byte of it is free."""
    return dumps({"schema": SCHEMA, **_values(entry), "hash": entry.hash})


def _read(data: bytes, path: Path) -> _Chain:
    """Read a ledger's bytes, checking every line and every link."""
    *lines, tail = data.split(b"\n")
    entries: list[LedgerEntry] = []
    for line in lines:
        entries.append(_parse(line, entries, path))
    if not tail:
        return _Chain(entries=tuple(entries), torn=b"", needs_newline=False)
    try:
        last = _parse(tail, entries, path)
    except LedgerError:
        if _holds_an_object(tail):
            raise  # a crash cuts a line short; it does not write on behind its end
        return _Chain(entries=tuple(entries), torn=tail, needs_newline=False)
    return _Chain(entries=(*entries, last), torn=b"", needs_newline=True)


def _holds_an_object(tail: bytes) -> bool:
    """Whether bytes begin with a whole JSON object."""
    try:
        json.JSONDecoder().raw_decode(tail.decode("ascii", "replace"))
    except (ValueError, RecursionError):
        return False
    return True


def _parse(line: bytes, before: Sequence[LedgerEntry], path: Path) -> LedgerEntry:
    """Read one line, which has to follow the entries before it."""
    place = f"{path}: line {len(before) + 1}"
    try:
        values = json.loads(line)
        schema = values.pop("schema")
        entry = LedgerEntry(**values)
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
        raise LedgerError(f"{place} was changed: it is no entry", hint=_CHANGED) from None
    if isinstance(schema, int) and schema > SCHEMA:
        raise LedgerError(
            f"{place} has schema {schema}; this version of narrowgate knows {SCHEMA}",
            hint="read it with the version of narrowgate that wrote it",
        )
    found = _hash(_values(entry))
    if (
        _render(entry).encode() != line
        or entry.kind not in get_args(EntryKind)
        or not isinstance(entry.body, dict)
    ):
        raise LedgerError(f"{place} was changed: it is not as it was written", hint=_CHANGED)
    if found != entry.hash:
        raise LedgerError(
            f"{place} was changed: its content has the hash {found[:12]}, and it carries "
            f"{str(entry.hash)[:12]}",
            hint=_CHANGED,
        )
    previous = before[-1].hash if before else FIRST
    if entry.previous != previous or entry.number != len(before) + 1:
        raise LedgerError(
            f"{place} is entry {entry.number} and does not follow the line before it: a line was "
            "removed, moved or put in",
            hint=_CHANGED,
        )
    return entry


def ledger_of(folder: Path) -> Path:
    """Give the ledger of a pilot: it lies two folders above the pilot's, links or not.

    Args:
        folder: The pilot's folder.
    """
    return folder.absolute().parent.parent / LEDGER


def check_limits(entries: Sequence[LedgerEntry], pilot: str, about: PilotRecord) -> None:
    """Refuse a pilot that is not what the ledger says was written down before its first run.

    Args:
        entries: The ledger's entries.
        pilot: The pilot's name.
        about: What its folder says that it set out to do.

    Raises:
        PilotError: The ledger does not know it, or knows other limits, another command, other
            candidates or other seeds.
    """
    begun = [entry.body for entry in entries if (entry.kind, entry.pilot) == ("pilot", pilot)]
    if not begun:
        raise PilotError(
            f"the ledger knows no pilot {pilot}: its limits were not written down before it ran",
            hint="begin a new pilot",
        )
    written = {**begun[0], "seeds": begun[-1]["seeds"]}  # seeds may be added; that is an entry, too
    says = about.to_json()
    for name in ("config_hash", "command", "baseline", "candidates", "seeds"):
        if list(written[name]) != list(says[name]):
            raise PilotError(
                f"{name} of the pilot {pilot} was changed after it began: its folder says "
                f"{says[name]!r:.80}, and the ledger {written[name]!r:.80}",
                hint="put it back; other limits need a pilot of their own",
            )


def check_verdict(entries: Sequence[LedgerEntry], verdict: Verdict) -> None:
    """Refuse a verdict that is not the last one which the ledger holds of its pilot.

    Args:
        entries: The ledger's entries.
        verdict: The verdict of a pilot that ran here.

    Raises:
        PilotError: The ledger holds another.
    """
    held = [e for e in entries if (e.kind, e.pilot) == ("verdict", verdict.pilot)]
    if held and held[-1].body["verdict_hash"] != verdict.hash:
        raise PilotError(
            f"the ledger holds the verdict {held[-1].body['verdict_hash'][:12]} of the pilot "
            f"{verdict.pilot}, and its folder {verdict.hash[:12]}",
            hint="the folder was changed, or the ledger is another's; narrowgate pilot --resume "
            "judges again",
        )


def values_hash(seeds: Sequence[int], values: Sequence[float]) -> str:
    """Hash what a gate compared, so that the same numbers seen twice are one look.

    Args:
        seeds: The seeds.
        values: One value per seed.
    """
    return hashlib.sha256(dumps([list(seeds), list(values)]).encode()).hexdigest()


class Looks(Protocol):
    """Whoever knows how often a gate has been looked at."""

    def __call__(
        self, *, recipe: str, gate: str, plan_hash: str | None, code: str | None, values: str
    ) -> int:
        """Give the number of this look, from 1.

        Args:
            recipe: The candidate.
            gate: The gate's name.
            plan_hash: Hash of the candidate's plan.
            code: Hash of the code that it ran.
            values: Hash of what is compared now.
        """
        ...


def looks_of(entries: Sequence[LedgerEntry], command: Sequence[str]) -> Looks:
    """Count the looks that a ledger's verdicts took.

    A look is an earlier verdict on the same command, candidate, gate, plan and code that tested
    other values; one that made no test could not have passed, and spent nothing. The same values
    seen again are the look that they were.

    Args:
        entries: The ledger's entries.
        command: The pilot's command, with secrets masked.
    """
    seen: dict[tuple[object, ...], list[str]] = {}
    for entry in entries:
        if entry.kind != "verdict" or list(entry.body["command"]) != list(command):
            continue
        about = (entry.body["recipe"], entry.body["plan_hash"], entry.body["code"])
        for gate in entry.body["gates"]:
            tested = seen.setdefault((*about, gate["gate"]), [])
            if gate["alpha"] != "nan" and gate["values_hash"] not in tested:
                tested.append(cast("str", gate["values_hash"]))

    def look(
        *, recipe: str, gate: str, plan_hash: str | None, code: str | None, values: str
    ) -> int:
        tested = seen.get((recipe, plan_hash, code, gate), [])
        return tested.index(values) + 1 if values in tested else len(tested) + 1

    return look
