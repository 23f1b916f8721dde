"""The torch releases with which narrowgate was run; with others it says so once, and goes on."""

from __future__ import annotations

import functools
import warnings

import torch

__all__ = ["NEWEST_TORCH", "OLDEST_TORCH", "note_on_torch", "warn_once"]

OLDEST_TORCH = (2, 11)
NEWEST_TORCH = (2, 14)
"""The first and the last torch release, as (major, minor), with which narrowgate was run."""


def note_on_torch(version: str) -> str:
    """Say whether this torch is one that narrowgate was run with.

    Args:
        version: torch's version, such as ``2.13.0+cpu``.

    Returns:
        A sentence, or the empty string if it is.

    Example:
        >>> note_on_torch("2.13.0+cpu")
        ''
        >>> note_on_torch("2.9.1")
        'torch 2.9.1 is outside 2.11 to 2.14, with which narrowgate was run'
    """
    release = tuple(int(part) for part in version.split(".")[:2])
    if OLDEST_TORCH <= release <= NEWEST_TORCH:
        return ""
    oldest, newest = (".".join(map(str, pair)) for pair in (OLDEST_TORCH, NEWEST_TORCH))
    return f"torch {version} is outside {oldest} to {newest}, with which narrowgate was run"


@functools.cache
def warn_once() -> None:
    """Warn, the first time, if the torch that is installed is none of those."""
    note = note_on_torch(torch.__version__)
    if note:
        warnings.warn(note, stacklevel=3)
