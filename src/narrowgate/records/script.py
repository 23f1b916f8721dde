"""The run of this process, and what a script says in it: ``ng.log`` and ``ng.result``.

A process records if ``NARROWGATE_RUN`` names a run's folder, which only the pilot sets, or once
``ng.log`` or ``ng.result`` is called, into a folder of its own. Of several processes that train
together rank 0 records; a forked child of a process that records does not.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from narrowgate.errors import RunError
from narrowgate.records import layout
from narrowgate.records.environment import git_facts
from narrowgate.records.files import read_json, utc_now, write_json
from narrowgate.records.masking import mask_command
from narrowgate.records.numbers import plain, read, take, take_all
from narrowgate.records.recorder import Recorder
from narrowgate.records.run import Request

__all__ = ["VARIABLE", "active", "close", "introduce_by", "log", "request", "requested", "result"]

#: The one environment variable: the folder of the run that the pilot asks for.
VARIABLE = "NARROWGATE_RUN"

_log = logging.getLogger("narrowgate")


class _State:
    """The recorder of this process, if it has one."""

    recorder: Recorder | None = None
    introduce: Callable[[Recorder], None] | None = None
    is_silent = False


def request() -> Request | None:
    """Give what the pilot asks of this process, on whatever rank it is.

    Returns:
        The request; None outside of a pilot.

    Raises:
        RunError: ``NARROWGATE_RUN`` names no run's folder.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    path = Path(name) / layout.REQUEST
    if not path.is_file():
        raise RunError(
            f"{VARIABLE} is {name!r}, where there is no {layout.REQUEST}",
            hint=f"only `narrowgate pilot` sets {VARIABLE}; unset it to run without a pilot",
        )
    return Request.from_json(read_json(path))


def requested() -> Recorder | None:
    """Give the recorder of the run that a pilot asks for.

    Returns:
        It; None outside of a pilot, on ranks but the first, and in a forked child.

    Raises:
        RunError: ``NARROWGATE_RUN`` names no run's folder, or another process is writing there.
    """
    asked = request()
    if asked is None or _is_silent():
        return None
    folder = Path(os.environ[VARIABLE])
    if _State.recorder is None or _State.recorder.folder != folder:
        close()  # a run of before, that nobody asked for
        return _start(folder, asked)
    return _State.recorder


def introduce_by(introduce: Callable[[Recorder], None]) -> None:
    """Say who tells a recorder about the model that is trained; done at once if there is one.

    Args:
        introduce: Called with each recorder that is opened from now on.
    """
    _State.introduce = introduce
    recorder = active()
    if recorder is not None:
        introduce(recorder)


def _start(folder: Path, asked: Request) -> Recorder:
    """Start to record into a folder."""
    _State.recorder = Recorder(folder, asked)
    if _State.introduce is not None:
        _State.introduce(_State.recorder)
    return _State.recorder


def active() -> Recorder | None:
    """Give the recorder that takes this process's steps; None if there is none, or it is done."""
    recorder = _State.recorder
    return None if recorder is None or recorder.is_closed or not recorder.is_mine else recorder


def close() -> None:
    """Write what is left and forget the run; the next log opens another folder."""
    if _State.recorder is not None:
        _State.recorder.close()
        _State.recorder = None


def _open() -> Recorder | None:
    """Give the recorder, making a folder for a run that nobody asked for."""
    if (recorder := active()) is not None:
        return recorder
    if _is_silent():
        return None
    if os.environ.get(VARIABLE):
        return requested()
    close()
    folder = Path.cwd() / layout.ROOT / "runs" / layout.new_folder_name()
    commit, uncommitted = git_facts(Path.cwd())
    asked = Request(
        recipe=None,
        seed=None,
        attempt=1,
        pilot=None,
        command=mask_command([sys.executable, *sys.argv]),
        commit=commit,
        uncommitted=uncommitted,
        created=utc_now(),
    )
    write_json(folder / layout.REQUEST, asked.to_json())
    return _start(folder, asked)


def log(*, step: float | None = None, **values: Any) -> None:
    """Record numbers of your own, beside the losses and steps that are recorded anyway.

    In a pilot they go to the run's folder. Outside of one, the first call makes a folder below
    ``.narrowgate/runs``, which ``narrowgate report FOLDER`` draws; steps are recorded from then on.

    Args:
        step: The step they belong to.
        **values: Numbers, or tensors and arrays of any dtype and device. Of more than one element
            the mean is taken, in FP64; of none it is NaN. NaN and infinities are recorded as such.

    Raises:
        RunError: A value that is no number, or a folder that cannot be written.

    Example:
        >>> import narrowgate as ng
        >>> ng.log(step=100, learning_rate=3e-4, accuracy=0.91)  # doctest: +SKIP
    """
    if step is not None and type(step) is not int:
        step = plain("step", step)
    taken = take_all(values)
    recorder = _open()
    if recorder is None:
        return
    if recorder.is_finished:
        raise RunError(
            "ng.log() was called after ng.result(), which ends the run",
            hint="call ng.result last",
        )
    recorder.log(step, taken)


def result(*, slices: Mapping[str, Mapping[str, Any]] | None = None, **metrics: Any) -> None:
    """End the run with its result: what a pilot compares.

    Args:
        slices: Metrics of parts of the validation data: ``{"json": {"val_loss": 2.4}}``. A good
            mean can hide a bad part.
        **metrics: The numbers over all of it: ``val_loss=2.31``. As for `log`.

    Raises:
        RunError: No metric, a value that is no number, a second result, or a folder that cannot be
            written.

    Example:
        >>> import narrowgate as ng
        >>> ng.result(val_loss=2.31, slices={"json": {"val_loss": 2.40}})  # doctest: +SKIP
    """
    if not metrics:
        raise RunError(
            "ng.result() was called without a metric", hint="ng.result(val_loss=loss.item())"
        )
    numbers = {name: read(take(name, value)) for name, value in metrics.items()}
    parts: dict[str, dict[str, float]] = {}
    for part, values in (slices or {}).items():
        if not isinstance(values, Mapping) or not values:
            raise RunError(
                f"slice {part!r} is {values!r}; it must map names of metrics to numbers",
                hint='slices={"json": {"val_loss": 2.40}}',
            )
        if str(part) in parts:
            raise RunError(
                f"there are two slices {str(part)!r}", hint="names of slices are strings"
            )
        parts[str(part)] = {
            str(name): read(take(f"{part}/{name}", value)) for name, value in values.items()
        }
    recorder = _open()
    if recorder is not None:
        recorder.finish(numbers, parts)
        if recorder.request.pilot is None:
            _log.warning("narrowgate: recorded in %s", recorder.folder)


def _is_silent() -> bool:
    """Say whether another process records for this one; once it is so it stays so.

    torch.distributed forgets the rank when its group is destroyed, which is often before the end.
    """
    if _State.recorder is None and not _State.is_silent and _rank() != 0:
        _State.is_silent = True
    return _State.is_silent


def _rank() -> int:
    """Give this process's rank among those that train together.

    Once torch.distributed is initialised it knows. Before, launchers say it in RANK, which is
    theirs and no setting of ours.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else 0


def _after_fork() -> None:
    """Let a forked child go without a record if its parent has one."""
    if _State.recorder is not None:
        _State.is_silent = True
        _State.recorder = None


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close)
