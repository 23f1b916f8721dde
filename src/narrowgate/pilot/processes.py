"""Ending all processes of a run, also those which left its group, and also after the pilot's death.

A run's processes are known by their environment: each has inherited ``NARROWGATE_RUN``, whether a
launcher put it into a session of its own or a shell forgot it. They are read from /proc; where
there is none, a run ends with its process group alone. Signals go through a descriptor that is
opened before the environment is read, so that they cannot hit a stranger who got the same number.

This file runs on its own, too, by its path and with the standard library alone: as the guard, which
reads from its pilot which run is under way and, when the pilot dies, ends that run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

__all__ = ["Guard", "end_processes"]

_VARIABLE = b"NARROWGATE_RUN="
#: Seconds between TERM and KILL.
_GRACE_S = 5.0
#: Seconds after which a process that does not even die of KILL is left to the kernel.
_GIVE_UP_S = 10.0
_PAUSE_S = 0.02


def end_processes(
    folder: Path, *, grace_s: float = _GRACE_S, hurry: Callable[[], bool] = lambda: False
) -> int:
    """End every process of the runs in or below a folder, by TERM and then by KILL.

    Args:
        folder: An attempt's folder, or one above it.
        grace_s: Seconds from TERM to KILL.
        hurry: Says whether to kill at once.

    Returns:
        How many there were.
    """
    told: set[int] = set()
    begun = time.monotonic()
    while True:
        waited = time.monotonic() - begun
        is_hard = waited >= grace_s or hurry()
        found = 0
        for number in _numbers():
            if _signal_if_of(number, folder, is_hard or number not in told, is_hard):
                found += 1
                told.add(number)
        if not found or waited >= grace_s + _GIVE_UP_S:
            return len(told)
        time.sleep(_PAUSE_S)


def _numbers() -> list[int]:
    """List the processes, but this one."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]


def _signal_if_of(number: int, folder: Path, send: bool, is_hard: bool) -> bool:
    """Signal a process if it belongs to the folder's runs; say whether it does and lives."""
    try:
        handle = os.pidfd_open(number)
    except OSError:  # gone
        return False
    try:
        content = Path(f"/proc/{number}/environ").read_bytes()  # of a dead one it is empty
        if not _belongs(content, os.fsencode(folder)):
            return False
        if send:
            signal.pidfd_send_signal(handle, signal.SIGKILL if is_hard else signal.SIGTERM)
    except OSError:  # gone, or somebody else's
        return False
    finally:
        os.close(handle)
    return True


def _belongs(environment: bytes, folder: bytes) -> bool:
    """Say whether an environment names a folder, or one below it, as its run's."""
    for entry in environment.split(b"\0"):
        if entry.startswith(_VARIABLE):
            run = entry[len(_VARIABLE) :]
            return run == folder or run.startswith(folder + b"/")
    return False


class Guard:
    """A process which outlives its pilot for as long as it takes to end the run under way.

    It has a session of its own, so that no signal of the terminal reaches it.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def watch(self, folder: Path) -> None:
        """Name the run that is to end with this process.

        Args:
            folder: The attempt's folder.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: the pilot does without
            self._process.stdin.write(os.fsencode(folder) + b"\0")
            self._process.stdin.flush()

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # it looks once more, finds nothing, and ends
        self._process.wait()


def _stand_guard() -> None:
    """Read which run is under way until the pilot is gone, then end that run."""
    told = b""
    while block := os.read(0, 65536):
        told = (told + block)[-65536:]
    runs = [name for name in told.split(b"\0") if name]
    if runs:
        end_processes(Path(os.fsdecode(runs[-1])))


if __name__ == "__main__":
    _stand_guard()
