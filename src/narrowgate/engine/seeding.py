"""ng.seed: every generator of the process from one number, which in a pilot is the pilot's."""

from __future__ import annotations

import logging
import random
import sys

import torch

from narrowgate.errors import RunError
from narrowgate.records import script

__all__ = ["seed"]

_log = logging.getLogger("narrowgate")

#: What a script gave first, by the pilot's seed that took its place.
_first: dict[int, int] = {}
#: Seeds that follow lie so far apart that they meet no seed of another run.
_STRIDE = 65_537


def seed(number: int = 0) -> int:
    """Seed Python's, NumPy's (if it is loaded) and torch's generators, on all devices.

    Call it before the model is made: a pilot pairs runs of one seed, and they are to start from the
    same weights.

    Args:
        number: The seed, 0 to 2^32 - 1. In a pilot the pilot's is taken instead, and this is said;
            another number later (one for each epoch) gives another seed there, too.

    Returns:
        The seed that was taken, for generators of your own.

    Raises:
        RunError: It is no whole number in that range.

    Example:
        >>> import narrowgate as ng
        >>> ng.seed(3)
        3
    """
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**32:
        raise RunError(
            f"the seed is {number!r}; it must be a whole number from 0 to {2**32 - 1}",
            hint="ng.seed(0)",
        )
    asked = script.request()
    if asked is not None and asked.seed is not None:
        first = _first.setdefault(asked.seed, number)
        taken = (asked.seed + _STRIDE * (number - first)) % 2**32
        if number == first != taken:
            _log.warning("narrowgate: the pilot's seed %d is taken", taken)
        number = taken
    random.seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number)
    torch.manual_seed(number)
    return number
