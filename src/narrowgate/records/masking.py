"""Secrets in a command line, masked before it is stored.

What follows a name with a word for a secret (`SECRET_WORDS`) is masked, whether it is written
``--api-key X``, ``--api-key=X`` or ``API_KEY=X``, also inside of a string for a shell; so are
passwords in addresses, and what follows Bearer or Basic. Words, not letters: ``--tokenizer``,
``--monkey`` and ``--max-tokens`` are left alone. A secret under another name is not seen. The
process that runs still gets the secret; its own output is not masked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["MASK", "SECRET_WORDS", "mask_command"]

#: What stands in the place of a secret.
MASK = "***"

#: Words which make what follows them a secret.
SECRET_WORDS = frozenset(
    {"token", "password", "passwords", "passwd", "pwd", "passphrase", "secret", "secrets"}
    | {"credential", "credentials", "key", "keys", "apikey", "apikeys", "auth", "authorization"}
)
#: A name may also end in one of these without a gap: hftoken.
_ENDINGS = ("token", "password", "secret", "apikey")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# a name, what parts it from its value, and the value: quoted, or up to the next blank
_PAIR = re.compile(
    r"(?P<name>[\w.-]+)(?P<gap>[\"']?\s*[=:]\s*|\s+)(?P<value>\"[^\"]*\"|'[^']*'|\S+)"
)
_SCHEME = re.compile(r"\b(Bearer|Basic)\s+[^\s\"']+")
_ADDRESS = re.compile(r"(://[^/\s:@]*):[^/\s@]+@")


def mask_command(command: Sequence[str]) -> tuple[str, ...]:
    """Mask the secrets of a command.

    Args:
        command: The command and its arguments.

    Returns:
        The same, with ``***`` in the place of what is secret.

    Example:
        >>> mask_command(["python", "t.py", "--hub-token", "abc", "WANDB_API_KEY=x", "--key=y"])
        ('python', 't.py', '--hub-token', '***', 'WANDB_API_KEY=***', '--key=***')
    """
    masked = []
    is_value = False
    for argument in command:
        if is_value and not argument.startswith("--"):
            masked.append(MASK)
            is_value = False
            continue
        is_value = argument.startswith("-") and "=" not in argument and _is_secret(argument)
        shown = _mask_pairs(_SCHEME.sub(rf"\1 {MASK}", argument))
        masked.append(_ADDRESS.sub(rf"\1:{MASK}@", shown))
    return tuple(masked)


def _is_secret(name: str) -> bool:
    """Say whether a name has a word for something secret: ``apiKey``, ``API_KEY``, ``--key``."""
    words = [word.lower() for word in _WORD.findall(name)]
    return any(word in SECRET_WORDS or word.endswith(_ENDINGS) for word in words)


def _mask_pairs(text: str) -> str:
    """Mask the values of all secret names in one argument."""
    parts = []
    place = 0
    while match := _PAIR.search(text, place):
        is_option = match["name"].startswith("-") or match["gap"].strip()
        if is_option and _is_secret(match["name"]):
            parts += [text[place : match.start("value")], MASK]
            place = match.end("value")
        else:  # the value may itself be a name: `bash -c` gives one long string
            parts.append(text[place : match.end("gap")])
            place = match.end("gap")
    return "".join([*parts, text[place:]])
