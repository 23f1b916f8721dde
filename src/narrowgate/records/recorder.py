"""How a training process writes its events: a queue, and a thread which empties it into the file.

The training loop only appends to the queue. Four times a second the thread turns what is there into
lines, reads what is still on a device, and writes. So nothing in the step path waits for the disk,
and a full disk stops the writing, not the training: lines wait until there is room.

One process at a time owns a run's folder, by a lock that goes with the process. One that is started
again in the same folder (a launcher's restart) goes on where the file ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from narrowgate.errors import RunError
from narrowgate.records import layout
from narrowgate.records.environment import code_files, machine_facts
from narrowgate.records.files import dumps, read_lines, utc_now, write_json
from narrowgate.records.numbers import read_all, total
from narrowgate.records.run import Request, Result
from narrowgate.records.step import StepRecord

__all__ = ["Measures", "Recorder"]

_log = logging.getLogger("narrowgate")

#: Seconds between two writes.
_INTERVAL_S = 0.25
#: Seconds between two notes of how busy the processor is; there is one at the end, too.
_LOAD_INTERVAL_S = 10.0
_OWNER = ".owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What the engine measures for a result; see `Result`."""

    device: str = "none"
    peak_bytes: int = 0
    base_bytes: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    took_effect: bool = True


class Recorder:
    """The record of one run under way; made in `records.script`, not by users.

    Args:
        folder: The run's folder, with its request.json.
        request: What is asked of the run.

    Raises:
        RunError: Another process is writing into the folder, or it cannot be written.
    """

    def __init__(self, folder: Path, request: Request) -> None:
        self.folder = folder
        self.request = request
        self.measure: Callable[[], Measures] = Measures
        self.is_finished = False
        self._process = os.getpid()
        self._root = _project_of(folder)
        self._code = code_files(self._root)  # as it was loaded: it may be edited while it runs
        self._queue: queue.SimpleQueue[Callable[[], Mapping[str, Any]]] = queue.SimpleQueue()
        self._late: list[str] = []  # lines that the disk had no room for
        self._trouble: OSError | None = None
        self._stop = threading.Event()
        self._owner = self._own()
        self.environment({})
        lines, _ = read_lines(folder / layout.EVENTS)
        self._path = folder / layout.EVENTS
        self._before_s = max((_time_of(line) for line in lines), default=0.0)
        self._begin = time.perf_counter()
        self._load_at_s = -math.inf
        self._mend_torn_line()
        began = {"kind": "begin", "t": self._before_s, "time": utc_now(), "process": os.getpid()}
        self._queue.put(lambda: began)
        self._waits: dict[str, int] = {}
        begun = {"kind": "load", "t": self.now_s, **self._load()}
        self._queue.put(lambda: begun)
        self._load_at_s = self.now_s
        self._thread = threading.Thread(target=self._write, name="narrowgate-record", daemon=True)
        self._thread.start()

    # --- what the training loop calls --------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Seconds since the run began; a clock that is set does not move it."""
        return self._before_s + time.perf_counter() - self._begin

    @property
    def is_mine(self) -> bool:
        """Whether this process made the recorder: a forked child has only its copy."""
        return self._process == os.getpid()

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is taken."""
        return self._stop.is_set()

    def environment(self, facts: Mapping[str, str | int | float | bool | None]) -> None:
        """Write the facts of code and machine.

        Args:
            facts: Those that the engine adds: torch's version, device, flags, threads.
        """
        write_json(self.folder / layout.ENVIRONMENT, {**machine_facts(), **facts})

    def plans(self, combined_hash: str, plans: list[str]) -> None:
        """Write the plans that prepare() has resolved.

        Args:
            combined_hash: A hash over all of them.
            plans: The JSON of each.
        """
        write_json(self.folder / layout.PLAN, {"hash": combined_hash, "plans": plans})

    def step(
        self,
        optimizer: int,
        losses: list[Any],
        record_of: Callable[[], StepRecord],
        *,
        data: list[Any],
        floats: list[Any],
    ) -> None:
        """Record one optimizer step; what is on a device is read later, by the other thread.

        Args:
            optimizer: Number of the optimizer.
            losses: What backward was given since the last step: copies, read with ``tolist``.
            record_of: Gives the record of the step.
            data: Checksums of whole numbers that the models were given, read with ``tolist``.
            floats: Checksums of floats that they were given.
        """
        t = self.now_s

        def line() -> Mapping[str, Any]:
            record = record_of()
            return {
                "kind": "step",
                "t": t,
                "step": record.attempted,
                "optimizer": optimizer,
                "loss": total(losses),
                "applied": record.applied,
                "reason": record.reason,
                "loss_scale": record.loss_scale,
                "grad_norm": record.grad_norm,
                "culprit": record.culprit,
                "data": _checksum(data),
                "floats": _checksum(floats),
            }

        self._queue.put(line)

    def log(self, step: float | None, values: Mapping[str, Any]) -> None:
        """Record numbers of the user's own.

        Args:
            step: The step they belong to.
            values: Numbers, or tensors that are still on a device.
        """
        t = self.now_s
        self._queue.put(lambda: {"kind": "log", "t": t, "step": step, "values": read_all(values)})

    def finish(self, metrics: Mapping[str, float], slices: Mapping[str, Any]) -> None:
        """Write the result, after all that was recorded before it.

        Args:
            metrics: The numbers by name.
            slices: The numbers of each slice by name.

        Raises:
            RunError: There is one already, or it cannot be written.
        """
        if self.is_finished or (self.folder / layout.RESULT).exists():
            raise RunError(
                f"this run has its result already, in {self.folder / layout.RESULT}",
                hint="call ng.result once, at the end; ng.log(step=..., ...) takes what comes "
                "before",
            )
        measures = self.measure()
        self.close()
        found = Result(
            metrics=metrics,
            slices=slices,
            seconds=self.now_s,
            device=measures.device,
            peak_bytes=measures.peak_bytes,
            base_bytes=measures.base_bytes,
            kinds=measures.kinds,
            files={**code_files(self._root), **self._code},
            took_effect=measures.took_effect,
        )
        if self._trouble is not None:
            raise RunError(
                f"{self._path} could not be written: {self._trouble.strerror}",
                hint="free some space and run again; the training itself was not touched",
            ) from self._trouble
        write_json(self.folder / layout.RESULT, found.to_json())
        self.is_finished = True

    def close(self) -> None:
        """Write what is left, and let the folder go."""
        if not self.is_mine or self._stop.is_set():
            return
        self._stop.set()
        self._thread.join()
        self._load_at_s = -math.inf
        self._drain()
        if self._late:
            _log.warning(
                "narrowgate: %d lines of %s are lost: %s",
                len(self._late), self._path, self._trouble,
            )  # fmt: skip
        os.close(self._owner)

    # --- the thread --------------------------------------------------------------------------

    def _write(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            self._drain()

    def _drain(self) -> None:
        """Turn what is queued into lines and write them, whole, in one call if the disk lets us."""
        lines = []
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            try:
                lines.append(dumps(item()))
            except RuntimeError as error:  # torch's, of a tensor that cannot be read any more
                lines.append(dumps({"kind": "fault", "t": self.now_s, "text": str(error)[:500]}))
        if not lines and not self._late:
            return
        if self.now_s - self._load_at_s >= _LOAD_INTERVAL_S:
            self._load_at_s = self.now_s
            lines.append(dumps({"kind": "load", "t": self.now_s, **self._load()}))
        self._late += lines
        try:
            self._append("".join(f"{line}\n" for line in self._late).encode())
        except OSError as error:
            self._trouble = error
        else:
            self._late, self._trouble = [], None

    def _append(self, block: bytes) -> None:
        """Append a block or nothing of it: a part that was written is cut off again."""
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(file).st_size
            try:
                written = 0
                while written < len(block):
                    written += os.write(file, block[written:])
            except OSError:
                os.ftruncate(file, size)
                raise
        finally:
            os.close(file)

    def _load(self) -> dict[str, float]:
        """Say how much CPU time this process had, and how long its threads waited for a core.

        What a thread has waited is kept when it has ended, as its CPU time is.
        """
        try:
            for thread in os.listdir("/proc/self/task"):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it just ended
                    text = Path(f"/proc/self/task/{thread}/schedstat").read_text()
                    self._waits[thread] = int(text.split()[1])
        except (OSError, ValueError, IndexError):  # no Linux, or one that does not say
            return {"cpu_s": time.process_time(), "waited_s": math.nan}
        waited = sum(self._waits.values()) * 1e-9 if self._waits else math.nan
        return {"cpu_s": time.process_time(), "waited_s": waited}

    def _mend_torn_line(self) -> None:
        """End a line that a killed process left torn, so that the next one stands alone."""
        text = self._path.read_bytes() if self._path.exists() else b""
        if text and not text.endswith(b"\n"):
            self._append(b"\n")

    def _own(self) -> int:
        """Take the folder for this process; the lock goes with the process, and not to children."""
        try:
            file = os.open(self.folder / _OWNER, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RunError(
                f"{self.folder} cannot be written: {error.strerror}",
                hint="free some space, or run where you may write",
            ) from error
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            raise RunError(
                f"another process is writing into {self.folder}",
                hint="of several processes that train together, initialise torch.distributed "
                "before prepare(), so that rank 0 alone records; two runs need two folders",
            ) from error
        return file


def _checksum(sums: list[Any]) -> int | None:
    """Add up sums from several devices; None of none, or if one cannot be read."""
    if not sums:
        return None
    try:
        return sum(int(value.tolist()) for value in sums) % 2**63
    except RuntimeError:
        return None


def _project_of(folder: Path) -> Path:
    """Give the folder in which ``.narrowgate`` lies: where the run was started, or its pilot."""
    for above in folder.absolute().parents:
        if above.name == layout.ROOT:
            return above.parent
    return Path.cwd()


def _time_of(line: Mapping[str, Any]) -> float:
    t = line.get("t")
    return float(t) if isinstance(t, (int, float)) else 0.0
