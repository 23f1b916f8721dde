"""A disk that is full or may not be written, told as such, whoever meets it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from narrowgate.errors import NarrowgateError, PilotError

__all__ = ["check_space", "disk_faults_told"]

_FULL = {errno.ENOSPC, errno.EDQUOT}
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}
#: With less than this a run's own files do not fit, bytes.
_LEAST_BYTES = 65_536


@contextlib.contextmanager
def disk_faults_told(folder: Path) -> Iterator[None]:
    """Turn every error of the disk that a user can mend into one that says how to go on.

    Args:
        folder: The pilot's folder.

    Raises:
        PilotError: The disk is full, or may not be written.
    """
    try:
        yield
    except (OSError, NarrowgateError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and cause.errno in _FULL:
            raise _full(folder, cause.strerror) from error
        if isinstance(cause, OSError) and cause.errno in _CLOSED:
            raise PilotError(
                f"{cause.filename or folder} may not be written: {cause.strerror}",
                hint="see who owns it; what is there stays, and narrowgate pilot --resume goes on",
            ) from error
        raise


def check_space(folder: Path) -> None:
    """Refuse to go on where a run's files would not fit.

    Args:
        folder: The pilot's folder.

    Raises:
        PilotError: The disk is full.
    """
    space = os.statvfs(folder)
    if space.f_bavail * space.f_frsize < _LEAST_BYTES:
        raise _full(folder, f"{space.f_bavail * space.f_frsize:,} bytes are free")


def _full(folder: Path, why: str | None) -> PilotError:
    return PilotError(
        f"the disk under {folder} is full: {why}",
        hint="free some space, then go on: narrowgate pilot --resume; the runs that ended are kept",
    )
