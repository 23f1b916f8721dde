"""One entry of the ledger, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["EntryKind", "LedgerEntry"]

EntryKind = Literal["pilot", "verdict", "accept", "reject", "override"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One line of the ledger.

    Attributes:
        number: Its place, from 1.
        time: When it was written, UTC.
        kind: ``pilot`` (limits were written down, before any run), ``verdict``, or a person's
            ``accept``, ``reject`` or ``override``.
        pilot: Name of the pilot's folder.
        body: What it says; its keys depend on the kind (`narrowgate.pilot.ledger`).
        previous: Hash of the entry before; of the first, 64 zeros.
        hash: SHA-256 over all of the above.
    """

    number: int
    time: str
    kind: EntryKind
    pilot: str
    body: Mapping[str, Any]
    previous: str
    hash: str
