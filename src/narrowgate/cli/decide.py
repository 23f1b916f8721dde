"""``narrowgate decide``: what a person says about a candidate, by name and with a reason."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from narrowgate.cli.console import one_line, print_lines
from narrowgate.errors import LedgerError
from narrowgate.records import layout

__all__ = ["decide"]


class Act(StrEnum):
    """What is decided."""

    accept = "accept"
    reject = "reject"
    override = "override"


def decide(
    act: Annotated[
        Act,
        typer.Argument(
            metavar="accept|reject|override",
            help="accept or reject a candidate, or override one of its gates.",
        ),
    ],
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="The candidate.")],
    gate: Annotated[
        str, typer.Argument(metavar="[GATE]", show_default=False, help="The gate to override.")
    ] = "",
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who decides.")] = "",
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why.")] = "",
    pilot: Annotated[
        Path | None,
        typer.Option(
            "--pilot", metavar="FOLDER", help="The pilot's folder; else the one begun last."
        ),
    ] = None,
) -> None:
    """Enter a decision into the ledger.

    The verdict is computed again from the pilot's folder first. A candidate is accepted if every
    gate passes or was overridden; a gate that names an owner is overridden by that owner alone.

    Example: narrowgate decide accept bf16 --by Ada --reason "passes every gate"
    """
    from narrowgate.pilot import decisions
    from narrowgate.pilot.begin import last_pilot
    from narrowgate.pilot.ledger import Ledger, ledger_of

    if bool(gate) != (act is Act.override):
        raise LedgerError(
            "override needs the gate to override"
            if act is Act.override
            else f"{act} takes no gate, and got {gate!r}",
            hint="narrowgate decide override RECIPE GATE, or accept RECIPE, or reject RECIPE",
        )
    folder = last_pilot(Path(layout.ROOT)) if pilot is None else pilot
    ledger = Ledger(ledger_of(folder))
    if act is Act.override:
        entry = decisions.override(ledger, folder, recipe, gate, by=by, reason=reason)
    else:
        choose = decisions.accept if act is Act.accept else decisions.reject
        entry = choose(ledger, folder, recipe, by=by, reason=reason)
    told = f"{entry.kind} {entry.body['recipe']} by {entry.body['by']}"
    print_lines(f"entry {entry.number}: {one_line(told)}", f"head {entry.hash}")
