"""Starting one run, waiting for it, ending it: any command, any launcher.

The command gets a session of its own, nothing to read, and files to print into: there is no pipe
which could fill up, and no terminal whose Ctrl-C would reach it beside the pilot. It ends by
itself, by its time-out or by Ctrl-C, and everything that it left running ends with it. Times are
taken from a clock that nobody sets. A pilot that was stopped itself (Ctrl-Z) when the run ended
does not know how long it took, and says so: its own pause is no time of the run.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from narrowgate.errors import PilotError
from narrowgate.pilot.processes import end_processes
from narrowgate.records import layout
from narrowgate.records.files import write_json
from narrowgate.records.run import Ending
from narrowgate.records.script import VARIABLE

__all__ = ["launch"]

_Ladder = tuple[tuple[float, signal.Signals], ...]

# Seconds since the first signal, and the next one. A script that is interrupted may want to save.
_INTERRUPTED: _Ladder = ((0.0, signal.SIGINT), (10.0, signal.SIGTERM), (15.0, signal.SIGKILL))
_TIMED_OUT: _Ladder = ((0.0, signal.SIGTERM), (10.0, signal.SIGKILL))
_AT_ONCE: _Ladder = ((0.0, signal.SIGKILL),)

#: Longest pause between two looks at the process, seconds; shorter while the run is young.
_PAUSE_S = 0.05
#: With more than this between the last look that saw it run and the one that found its end, the
#: time of a run is not known, seconds.
_LATE_S = 1.0
_NO_PROGRAM = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC}


def launch(
    command: Sequence[str],
    folder: Path,
    *,
    timeout_s: float,
    stop: Callable[[], int],
    tick: Callable[[], None],
) -> Ending:
    """Run a command as one attempt, to its end, and write exit.json.

    Args:
        command: The command with its seed.
        folder: The attempt's folder, absolute, with its request.json.
        timeout_s: Seconds after which it is ended.
        stop: Says how often Ctrl-C was pressed: once ends the run, twice kills it.
        tick: Called at each look at the process, for who draws progress.

    Returns:
        How it ended; its seconds are NaN if the end was seen late.

    Raises:
        PilotError: The program cannot be started.
        OSError: The disk is full.
        RunError: Likewise, when exit.json is written.
    """
    begun = time.monotonic()
    with (folder / layout.STDOUT).open("wb") as out, (folder / layout.STDERR).open("wb") as err:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, VARIABLE: str(folder)},
                start_new_session=True,
            )
        except OSError as error:
            if error.errno not in _NO_PROGRAM:
                raise
            raise PilotError(
                f"the command's program {command[0]!r} cannot be started: {error.strerror}",
                hint="a script without a #! line needs its interpreter before it",
            ) from error
    how: Literal["ended", "timeout", "interrupted"] = "interrupted"
    seconds = math.nan
    try:
        how, seconds = _wait(process, begun, timeout_s, stop, tick)
    finally:
        # Whatever happens here, nothing goes on running. The first process is reaped last: its
        # number stays taken until then, so that the group cannot be somebody else's.
        if how == "interrupted":
            _signal_group(process, signal.SIGKILL)
        end_processes(folder, hurry=lambda: stop() > 0)
        _signal_group(process, signal.SIGKILL)
        code = process.wait()
    ending = Ending(how=how, code=code, seconds=seconds)
    write_json(folder / layout.EXIT, ending.to_json())
    return ending


def _wait(
    process: subprocess.Popen[bytes],
    begun: float,
    timeout_s: float,
    stop: Callable[[], int],
    tick: Callable[[], None],
) -> tuple[Literal["ended", "timeout", "interrupted"], float]:
    """Wait for the process to end, and see to it that it does; say how and after how long."""
    how: Literal["ended", "timeout", "interrupted"] = "ended"
    ladder: _Ladder = ()
    since = ran_at = begun
    is_killed = False
    while True:
        # The clock is read on both sides of a look, since the pilot may be stopped at it; what
        # follows goes by the time at which the process was seen to run.
        now = time.monotonic()
        if _has_ended(process):
            ended = time.monotonic()
            return how, ended - begun if ended - ran_at <= _LATE_S else math.nan
        ran_at = now
        tick()
        presses = stop()
        if presses and how != "interrupted":
            how, ladder, since = "interrupted", _INTERRUPTED, now
        elif how == "ended" and now - begun > timeout_s:
            how, ladder, since = "timeout", _TIMED_OUT, now
        if presses > 1 and not is_killed:
            is_killed, ladder, since = True, _AT_ONCE, now
        while ladder and now - since >= ladder[0][0]:
            _signal_group(process, ladder[0][1])
            ladder = ladder[1:]
        time.sleep(min(_PAUSE_S, 0.002 + (now - begun) / 50))


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Say whether the process has ended, without reaping it."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the process and all that stayed in its group."""
    with contextlib.suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, number)
