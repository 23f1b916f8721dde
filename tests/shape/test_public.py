"""Public names and options of the commands are lists in this folder: a change is on purpose.

To change one, write the new list here in the same commit, and say so in CHANGELOG.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

import narrowgate
from narrowgate.cli.app import app

HERE = Path(__file__).parent


def checked_in(name: str) -> list[str]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def options() -> list[str]:
    """Every command with its arguments and options: `narrowgate plan --json`."""
    root = typer.main.get_command(app)
    commands = {"narrowgate": root, **{f"narrowgate {n}": c for n, c in root.commands.items()}}
    return [
        f"{name} {flag}"
        for name, command in commands.items()
        for parameter in command.params
        for flag in (
            [parameter.metavar] if parameter.param_type_name == "argument" else parameter.opts
        )
    ]


def test_public_names_are_the_checked_in_list():
    assert sorted(narrowgate.__all__) == checked_in("public_names.txt")


def test_options_of_the_commands_are_the_checked_in_list():
    assert options() == checked_in("cli_options.txt")


@pytest.mark.parametrize("name", narrowgate.__all__)
def test_public_name_is_there_and_explained(name):
    value = getattr(narrowgate, name)
    assert name in dir(narrowgate)
    if callable(value):
        assert value.__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = narrowgate.no_such_name
