"""The verdict in the terminal, in 80 columns: one line a candidate, then its gates.

Where there is less room, each gate is lines of its own: a table would cut what it says.

A gate that passed says so in numbers; one that did not has its reason below the table. Every
string enters as `rich.text.Text`, so nothing that a user named is read as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from narrowgate.records import CandidateVerdict, GateVerdict, Verdict
from narrowgate.report.outcomes import (
    SYMBOLS,
    WORDS,
    decided_by,
    limit_text,
    range_text,
    value_text,
)
from narrowgate.report.text import printable

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_verdict"]

#: A gate's name is folded to no less than this.
_LEAST_WIDTH = 12
_COLUMNS = ("outcome", "value", "range", "limit")
_STYLES = {"pass": "green", "fail": "red", "inconclusive": "yellow", None: "magenta"}


def print_verdict(verdict: Verdict, console: Console | None = None) -> None:
    """Print a verdict.

    Args:
        verdict: The verdict.
        console: Where; None is stdout, without colours if it is no terminal.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False) if console is None else console
    for candidate in verdict.candidates:
        _print_candidate(candidate, len(verdict.seeds), console)
    for note in verdict.notes:
        console.print(Text(f"note: {printable(note)}"))
    console.print(
        Text(f"verdict {verdict.hash[:16]}, evidence {verdict.evidence_hash[:16]}", style="dim")
    )


def _print_candidate(candidate: CandidateVerdict, num_seeds: int, console: Console) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    style = _STYLES[candidate.outcome]
    line = Text(f"{SYMBOLS[candidate.outcome]} {WORDS[candidate.outcome].upper()}", style=style)
    line.append(f"  {printable(candidate.recipe)}", style="bold default")
    line.append(f"  {candidate.num_runs} of {num_seeds} runs gave a result", style="dim default")
    console.print(line)
    console.print(Padding(Text(printable(decided_by(candidate))), (0, 0, 0, 2)))
    # The line above the table has the reason of the gate that decided, already.
    decided = next((gate for gate in candidate.gates if gate.outcome == candidate.outcome), None)
    rows = [(gate, _cells(gate)) for gate in candidate.gates]
    if _has_room([cells for _, cells in rows], console):
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("gate", overflow="fold")
        for name in _COLUMNS:
            table.add_column(name, no_wrap=True)
        for gate, (outcome, *numbers) in rows:
            coloured = Text(outcome, style=_STYLES[gate.outcome])
            table.add_row(Text(printable(gate.gate)), coloured, *map(Text, numbers))
        console.print(Padding(table, (0, 0, 0, 2)))
    else:
        for gate, (outcome, value, told, limit) in rows:
            line = Text(outcome, style=_STYLES[gate.outcome])
            line.append(f"  {printable(gate.gate)}: {value}", style="default")
            line.append(f" ({told})" if told else "", style="default")
            line.append(f", limit {limit}", style="default")
            console.print(Padding(line, (0, 0, 0, 2)))
    for gate in candidate.gates:
        if gate.outcome != "pass" and gate is not decided:
            reason = Text(f"{SYMBOLS[gate.outcome]} ", style=_STYLES[gate.outcome])
            reason.append(f"{printable(gate.gate)}: {printable(gate.reason)}", style="default")
            console.print(Padding(reason, (0, 0, 0, 2)))
    console.print()


def _cells(gate: GateVerdict) -> tuple[str, str, str, str]:
    """Say a gate's outcome, value, range and limit."""
    outcome = f"{SYMBOLS[gate.outcome]} {WORDS[gate.outcome]}"
    return outcome, value_text(gate), range_text(gate), limit_text(gate)


def _has_room(rows: Sequence[tuple[str, ...]], console: Console) -> bool:
    """Say whether there are rows, and they leave a gate's name its least width."""
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    return bool(rows) and sum(widths) + 2 * len(widths) + 2 + _LEAST_WIDTH <= console.width
