"""Where a command's output goes, and how it asks the torch half.

Whatever a command prints goes through here and nowhere else. Names of metrics, reasons in a ledger
that somebody else committed, and messages that quote them are foreign: what would steer a terminal
is shown as its escape. stdout carries what was asked for and nothing else, so that it can be piped;
stderr has the rest. rich drops colours when stdout is no terminal or NO_COLOR is set.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = [
    "CommandFailed",
    "ask_engine",
    "complain",
    "one_line",
    "print_json",
    "print_lines",
    "print_table",
    "shown",
    "tell",
]


class CommandFailed(Exception):  # noqa: N818 - an outcome that carries its exit code, no error
    """A command that ends with an exit code after its message has been printed.

    Args:
        code: The exit code of the process.
    """

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"exit code {code}")


def shown(text: str) -> str:
    """Show what would steer a terminal, or could not be seen, as its escape.

    Args:
        text: Any string; newlines and tabs stay.
    """
    from narrowgate.report.text import printable  # not at the top: the report's room is large

    return printable(text)


def one_line(text: str) -> str:
    r"""Show a foreign string so that it stays in its line.

    Args:
        text: Any string.

    Example:
        >>> one_line("because\nentry 9: accept")
        'because\\nentry 9: accept'
    """
    return shown(text.replace("\r\n", "\n")).replace("\n", "\\n").replace("\t", " ")


def print_lines(*lines: str) -> None:
    """Print on stdout.

    Args:
        lines: Lines, or texts of several; what is foreign in them is made harmless.
    """
    for line in lines:
        print(shown(line))


def tell(text: str) -> None:
    """Print on stderr.

    Args:
        text: The text; what is foreign in it is made harmless.
    """
    print(shown(text), file=sys.stderr)


def complain(message: str, hint: str | None) -> None:
    """Print a mistake and the way out on stderr.

    Args:
        message: What was wrong, the value got, what is allowed.
        hint: The way out, after a blank line. None prints none.
    """
    lines = [f"error: {message}"] if hint is None else [f"error: {message}", "", f"hint: {hint}"]
    tell("\n".join(lines))


def print_json(value: object) -> None:
    """Print a value as JSON on stdout.

    Args:
        value: What ``json.dumps`` takes.
    """
    print(json.dumps(value, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print one table on stdout; nothing in a cell is read as markup, or steers a terminal.

    Args:
        title: What stands above it.
        columns: The heads of the columns.
        rows: One sequence of cells per line. A bool prints as yes or no, None as a dash.
    """
    table = Table(title=Text(shown(title)), title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(Text(shown(column)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    Console().print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else shown(str(value))


def ask_engine(module: str, *arguments: str) -> Mapping[str, object]:
    """Run a module of the torch half in a subprocess and read the JSON object it prints.

    Args:
        module: Name of the module below ``narrowgate.engine``.
        arguments: What follows it.

    Returns:
        The object printed on its stdout. What it says on stderr is shown as it comes.

    Raises:
        CommandFailed: The subprocess failed, after its own message (2), or printed no object (1).
    """
    command = [sys.executable, "-m", f"narrowgate.engine.{module}", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 2:
        raise CommandFailed(2)
    if done.returncode != 0:
        complain(f"narrowgate.engine.{module} ended with code {done.returncode}", None)
        raise CommandFailed(1)
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        complain(
            f"narrowgate.engine.{module} printed no JSON object but {done.stdout[:200]!r}",
            "a module which prints when it is imported must print to stderr",
        )
        raise CommandFailed(1)
    return answer
