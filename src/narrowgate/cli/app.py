"""The table of commands, and how a mistake becomes a message and an exit code.

Every command lives in a file of its own and is listed here. A mistake that the user can mend prints
``error: ...``, a blank line and ``hint: ...`` on stderr and ends with 2; Ctrl-C ends with 130;
anything else is a bug of ours, keeps its traceback and ends with 1.
"""

from __future__ import annotations

from typing import cast

import typer

import narrowgate
from narrowgate.cli.console import CommandFailed, complain, print_lines, tell
from narrowgate.cli.decide import decide
from narrowgate.cli.doctor import doctor
from narrowgate.cli.ledger import ledger
from narrowgate.cli.pilot import pilot
from narrowgate.cli.plan import plan
from narrowgate.cli.report import report
from narrowgate.cli.streams import kept_going
from narrowgate.errors import NarrowgateError

__all__ = ["app", "run"]

# click's UsageError: a typer which carries its own copy of click exports it only through this.
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_lines(f"narrowgate {narrowgate.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    _version: bool = typer.Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
) -> None:
    """Mixed-precision training for PyTorch, with proof."""
    if context.invoked_subcommand is None:
        tell(context.get_help())
        raise typer.Exit(2)


app.command()(decide)
app.command()(doctor)
app.command()(ledger)
app.command()(pilot)
app.command()(plan)
app.command()(report)


def run(arguments: list[str]) -> int:
    """Run one command, whatever becomes of what it prints.

    Args:
        arguments: The command's name, its arguments and options.

    Returns:
        The exit code: what the command came to; 1 where that was to print, and it could not.
    """
    with kept_going() as output:
        code = _run(arguments)
        output.flush()
    return int(output.is_cut) if code is None else code


def _run(arguments: list[str]) -> int | None:
    """Run one command; give the exit code that it chose, if it chose one."""
    try:
        code = app(arguments, prog_name="narrowgate", standalone_mode=False)
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "narrowgate"
        hint = f"{path} --help"
        if path == "narrowgate pilot" and "--" not in arguments:
            hint += "; a command and its own options stand behind --: narrowgate pilot -- COMMAND"
        complain(str(getattr(error, "format_message", error.__str__)()), hint)
        return 2
    except NarrowgateError as error:
        complain(error.message, error.hint)
        return 2
    except CommandFailed as failure:
        return failure.code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    return code if isinstance(code, int) else None
