"""``narrowgate ledger``: who decided what, on which verdict, and whether it still holds."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from narrowgate.cli.console import one_line, print_lines, print_table
from narrowgate.records import layout

if TYPE_CHECKING:
    from narrowgate.records.decision import LedgerEntry

__all__ = ["ledger"]


class Act(StrEnum):
    """What is asked."""

    show = "show"
    verify = "verify"


def ledger(
    act: Annotated[
        Act,
        typer.Argument(
            metavar="[show|verify]", show_default=False, help="Show it, or only check it."
        ),
    ] = Act.show,
) -> None:
    """Show the ledger of decisions, with acceptances that lapsed, or check its hash chain.

    The chain shows edits and gaps inside the ledger. A cut tail or a ledger written anew it cannot
    show by itself: compare the head with the one that a report prints.
    """
    from narrowgate.pilot.decisions import standing
    from narrowgate.pilot.ledger import Ledger

    path = Path(layout.ROOT) / layout.LEDGER
    entries = Ledger(path).entries()
    if act is Act.show and entries:
        stands = standing(entries)
        rows = [
            [
                one_line(cell)
                for cell in (
                    str(entry.number),
                    entry.time[:16].replace("T", " "),
                    entry.kind,
                    entry.body.get("recipe", "-"),
                    _tell(entry, stands.get(entry.number)),
                )
            ]
            for entry in entries
        ]
        print_table("ledger", ["no.", "UTC", "kind", "recipe", "what"], rows)
    if entries:
        print_lines(f"{len(entries)} entries, the chain is whole; head {entries[-1].hash}")
    else:
        print_lines(f"{path} has no entries")


def _tell(entry: LedgerEntry, end: str | None) -> str:
    """Say what an entry says, in a line."""
    body = entry.body
    if entry.kind == "pilot":
        wishes = ", ".join(body["candidates"])
        return f"{entry.pilot}: {wishes} against {body['baseline']}, {len(body['seeds'])} seeds"
    if entry.kind == "verdict":
        if body["outcome"] is None:
            return f"not compared: {body['error']}"
        short = [f"{g['gate']} {g['outcome']}" for g in body["gates"] if g["outcome"] != "pass"]
        return f"{body['outcome']}: {', '.join(short)}" if short else str(body["outcome"])
    gate = f"{body['gate']}, " if entry.kind == "override" else ""
    told = f"{gate}by {body['by']}: {body['reason']}"
    return f"{told} [{end}]" if end else told
