"""Where things lie below ``.narrowgate``.

    .narrowgate/
      ledger.jsonl                    decisions, hash-chained
      runs/<utc>-<hash8>/             a run outside of a pilot
      pilots/<utc>-<hash8>/
        config.toml                   the limits, as they stood before the first run
        pilot.json                    the command (masked), the configuration's hash, the code
        verdict.json  report.html
        runs/<recipe-slug>/<seed>/attempt-<n>/
          request.json                what the run was asked to do
          environment.json  plan.json events.jsonl  result.json      written by the run
          stdout.log  stderr.log  exit.json                          written by the pilot

The last attempt of a recipe and a seed is the one that counts; earlier ones were interrupted or
failed, and stay.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path

__all__ = [
    "CONFIG",
    "ENVIRONMENT",
    "EVENTS",
    "EXIT",
    "LEDGER",
    "PILOT",
    "PLAN",
    "REPORT",
    "REQUEST",
    "RESULT",
    "ROOT",
    "STDERR",
    "STDOUT",
    "VERDICT",
    "attempt_folder",
    "attempts",
    "new_folder_name",
    "slug",
]

ROOT = ".narrowgate"
LEDGER = "ledger.jsonl"
CONFIG = "config.toml"
PILOT = "pilot.json"
VERDICT = "verdict.json"
REPORT = "report.html"
REQUEST = "request.json"
ENVIRONMENT = "environment.json"
PLAN = "plan.json"
EVENTS = "events.jsonl"
RESULT = "result.json"
STDOUT = "stdout.log"
STDERR = "stderr.log"
EXIT = "exit.json"

_ATTEMPT = re.compile(r"attempt-(\d+)")


def new_folder_name() -> str:
    """Name a new folder: ``20261201T180322-1f2e3d4c``, in order of time and never twice."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def slug(recipe: str) -> str:
    """Turn a recipe into the name of a folder.

    Args:
        recipe: A recipe in normal form.

    Returns:
        Letters, digits, dots and dashes. Where that loses something, eight digits of the recipe's
        SHA-256 follow, so that two recipes never share a folder.

    Example:
        >>> slug("bf16-mixed"), slug("bf16(master=none)")
        ('bf16-mixed', 'bf16-master-none-04494e99')
    """
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", recipe).strip("-.")[:48]
    if plain == recipe:
        return plain
    return f"{plain}-{hashlib.sha256(recipe.encode()).hexdigest()[:8]}"


def attempt_folder(pilot: Path, recipe: str, seed: int, attempt: int) -> Path:
    """Give the folder of one attempt.

    Args:
        pilot: The pilot's folder.
        recipe: The recipe in normal form.
        seed: The seed.
        attempt: Its number, from 1.
    """
    return pilot / "runs" / slug(recipe) / str(seed) / f"attempt-{attempt}"


def attempts(pilot: Path, recipe: str, seed: int) -> list[Path]:
    """List the folders of all attempts at one recipe and seed, the last one last.

    Args:
        pilot: The pilot's folder.
        recipe: The recipe in normal form.
        seed: The seed.
    """
    folder = pilot / "runs" / slug(recipe) / str(seed)
    try:
        names = os.listdir(folder)  # a fifth of the time that glob takes; asked for every run
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = [match for name in names if (match := _ATTEMPT.fullmatch(name))]
    paths = [folder / match[0] for match in sorted(matches, key=lambda match: int(match[1]))]
    return [path for path in paths if path.is_dir()]
