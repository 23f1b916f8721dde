"""The verdict in the terminal: one line a candidate, then a table of its gates, in 80 columns.

Every string enters as `rich.text.Text`, so nothing that a user named is read as markup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowgate.records import CandidateVerdict, Verdict
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

_STYLES = {"pass": "green", "fail": "red", "inconclusive": "yellow", None: "magenta"}


def print_verdict(verdict: Verdict, console: Console | None = None) -> None:
    """Print a verdict.

    Args:
        verdict: The verdict.
        console: Where; None is stdout, without colours if it is no terminal.
    """
    from rich.console import Console

    console = Console(highlight=False) if console is None else console
    for candidate in verdict.candidates:
        _print_candidate(candidate, len(verdict.seeds), console)
    for note in verdict.notes:
        _print(console, f"note: {printable(note)}")
    _print(console, f"verdict {verdict.hash[:16]}, evidence {verdict.evidence_hash[:16]}")


def _print(console: Console, text: str, style: str = "") -> None:
    from rich.text import Text

    console.print(Text(text, style=style), soft_wrap=False)


def _print_candidate(candidate: CandidateVerdict, num_seeds: int, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    style = _STYLES[candidate.outcome]
    line = Text(f"{SYMBOLS[candidate.outcome]} {WORDS[candidate.outcome].upper()}", style=style)
    line.append(f"  {printable(candidate.recipe)}", style="bold")
    line.append(f"  {candidate.num_runs} of {num_seeds} runs gave a result", style="dim")
    console.print(line)
    console.print(Text(f"  {printable(decided_by(candidate))}"))
    if not candidate.gates:
        console.print()
        return
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="dim")
    # The widths of the words and numbers are known; the reason gets what is left.
    for name, least in (("gate", 14), ("outcome", 14), ("value", 8), ("limit", 8), ("reason", 20)):
        table.add_column(Text(name), overflow="fold", min_width=least)
    for gate in candidate.gates:
        found = range_text(gate)
        table.add_row(
            Text(printable(gate.gate)),
            Text(f"{SYMBOLS[gate.outcome]} {WORDS[gate.outcome]}", style=_STYLES[gate.outcome]),
            Text(value_text(gate) + (f"\n{found}" if found else "")),
            Text(limit_text(gate)),
            Text(printable(gate.reason)),
        )
    console.print(table)
    console.print()
