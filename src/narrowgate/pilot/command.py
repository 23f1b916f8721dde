"""The user's command: a list of words, with ``{seed}`` where the seed goes.

No shell comes between: each word reaches the program as it was typed. What is stored has its
secrets masked; the command with its secrets lives in memory alone, so that whoever resumes a pilot
gives it once more.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from narrowgate.errors import PilotError
from narrowgate.records.masking import MASK, mask_command

__all__ = ["SEED", "check_command", "fill", "render_command", "resumed_command"]

#: What is replaced by the seed, wherever it stands in a word.
SEED = "{seed}"

_EXAMPLE = "narrowgate pilot -- python train.py --seed {seed}"


def fill(command: Sequence[str], seed: int) -> tuple[str, ...]:
    """Put the seed into a command.

    Args:
        command: The command; without ``{seed}`` in it the script asks ``ng.seed()``.
        seed: The seed.

    Returns:
        The command for this seed. Nothing but the exact text ``{seed}`` is replaced.

    Example:
        >>> fill(["python", "train.py", "--seed={seed}", "{other}"], 3)
        ('python', 'train.py', '--seed=3', '{other}')
    """
    return tuple(word.replace(SEED, str(seed)) for word in command)


def render_command(command: Sequence[str]) -> str:
    """Write a command as one would type it, with its secrets masked.

    Args:
        command: The command.
    """
    return shlex.join(mask_command(command)).replace(f"'{SEED}'", SEED)


def check_command(command: Sequence[str]) -> None:
    """Refuse a command that cannot be started, before anything is made for it.

    Args:
        command: The command.

    Raises:
        PilotError: It is empty, or its first word is no program that can be run here.
    """
    if not command or not command[0]:
        raise PilotError("no command was given to the pilot", hint=_EXAMPLE)
    for word in command:
        if "\0" in word:
            raise PilotError(f"the command's word {word!r} has a NUL in it", hint=_EXAMPLE)
    program = command[0]
    if shutil.which(program) is not None:
        return
    path = Path(program)
    if path.is_dir():
        why, hint = "is a folder", _EXAMPLE
    elif path.is_file() and (os.sep in program or path.suffix == ".py"):
        why = "cannot be executed"
        hint = f"put its interpreter before it: narrowgate pilot -- python {shlex.quote(program)}"
    else:
        why, hint = "was not found", "is it installed, and is its environment active?"
    raise PilotError(f"the command's program {program!r} {why}", hint=hint)


def resumed_command(stored: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Choose the command for a pilot that goes on.

    Args:
        stored: The masked command that the pilot began with.
        given: What was given now; empty if nothing was.

    Returns:
        The command with its secrets.

    Raises:
        PilotError: The stored one is masked and none was given, or the one given is another.
    """
    if given:
        if mask_command(given) != tuple(stored):
            raise PilotError(
                f"this pilot began with another command: {render_command(stored)}; now it is "
                f"{render_command(given)}",
                hint="leave the command out to go on with the first, or begin a new pilot",
            )
        return tuple(given)
    if any(MASK in word for word in stored):
        raise PilotError(
            f"the command was stored without its secrets: {render_command(stored)}",
            hint="give it once more, behind --: narrowgate pilot --resume -- COMMAND",
        )
    return tuple(stored)
