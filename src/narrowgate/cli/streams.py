"""stdout and stderr while a command runs: whatever becomes of them, the work goes on.

A reader may go away (``| head``, a dropped connexion), a disk may fill up, an encoding may lack a
character, and a stream may be closed from the start. A training that runs for hours must not end
for any of that: what cannot be encoded is replaced, what cannot be written is lost, and the command
goes on to its end and its own exit code.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO, cast

__all__ = ["Output", "kept_going"]

# A reader that is gone, and a terminal that is gone: nobody is left who would miss anything.
_GONE = {errno.EPIPE, errno.EIO, errno.EBADF}


class Output:
    """A text stream which takes all that it is given, and loses what cannot be written.

    Args:
        stream: Where the text goes.
        name: What the stream is called, for who is told that text was lost.

    Attributes:
        is_cut: Whether text was lost that somebody waits for, as on a full disk.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name = stream, name
        self._is_lost = self.is_cut = False

    def write(self, text: str) -> int:
        """Write text, if that is still possible.

        Args:
            text: The text.

        Returns:
            Its length.
        """
        if not self._is_lost:
            try:
                self._stream.write(text)
            except (OSError, ValueError) as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Bring what was written to its place, if that is still possible."""
        if not self._is_lost:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._give_up(error)

    def _give_up(self, error: OSError | ValueError) -> None:
        """Write no more; and let what is still in a buffer go nowhere, at the end as well."""
        self._is_lost = True
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        if isinstance(error, OSError) and error.errno not in _GONE:
            self.is_cut = True
            print(f"error: {self._name} cannot be written: {error.strerror}", file=sys.stderr)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@contextlib.contextmanager
def kept_going() -> Iterator[Output]:
    """Let nothing that is printed stop what prints it.

    Yields:
        stdout as it is until the end; then it and stderr are what they were before.
    """
    before = sys.stdout, sys.stderr
    _fill_gaps()
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        out = Output(before[0] or nowhere, "stdout")
        err = Output(before[1] or nowhere, "stderr")
        if isinstance(before[0], io.TextIOWrapper):
            before[0].reconfigure(errors="replace")  # stderr escapes what it cannot encode
        sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
        try:
            yield out
        finally:
            out.flush()
            err.flush()
            sys.stdout, sys.stderr = before


def _fill_gaps() -> None:
    """Open what was closed from the start: else a file that is opened later would be stdout."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest one that is free
