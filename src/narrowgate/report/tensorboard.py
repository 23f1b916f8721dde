"""A run as TensorBoard event files, by the ``tensorboard`` package alone.

Tags: ``loss``, ``loss_scale``, ``grad_norm``, ``applied`` by step (of a second optimizer
``optimizer_1/loss`` and so on), ``logged/NAME`` for what ng.log said, ``result/NAME`` and
``result/NAME/SLICE`` at the last step. TensorBoard holds them in FP32; the run's folder has them
whole.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from narrowgate.errors import RunError
from narrowgate.records import Run

__all__ = ["export_tensorboard"]

_SUFFIX = ".narrowgate"


def export_tensorboard(run: Run, folder: Path) -> Path:
    """Write a run's numbers as TensorBoard event files. What was exported there before goes.

    Args:
        run: The run.
        folder: Where to.

    Returns:
        The folder.

    Raises:
        RunError: The tensorboard package is not installed, or the folder cannot be written.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # type: ignore[import-untyped]
    except ImportError as error:
        raise RunError(
            "the export needs the tensorboard package, which is not installed here",
            hint="pip install 'narrowgate[tensorboard]'",
        ) from error
    began = datetime.fromisoformat(run.request.created).timestamp()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
            old.unlink()
        writer = EventFileWriter(str(folder), filename_suffix=_SUFFIX)
        for t, step, values in _rows(run):
            told = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            writer.add_event(Event(wall_time=began + t, step=step, summary=Summary(value=told)))
        writer.close()
    except OSError as error:
        raise RunError(
            f"{folder} cannot be written: {error.strerror}", hint="choose another folder"
        ) from error
    return folder


def _rows(run: Run) -> Iterator[tuple[float, int, Mapping[str, float]]]:
    """Give time, step and values by tag."""
    steps = run.steps
    # A column that is NaN throughout was not recorded; a single NaN is news.
    has = {
        name: any(not math.isnan(value) for value in getattr(steps, name))
        for name in ("loss", "grad_norm")
    }
    for i, which in enumerate(steps.optimizer):
        under = f"optimizer_{which}/" if which else ""
        values = {f"{under}applied": float(steps.applied[i])}
        values[f"{under}loss_scale"] = steps.loss_scale[i]
        if has["loss"]:
            values[f"{under}loss"] = steps.loss[i]
        if has["grad_norm"]:
            values[f"{under}grad_norm"] = steps.grad_norm[i]
        yield steps.t[i], steps.step[i], values
    for said in run.logs:
        at = said.step
        if at is None or not math.isfinite(at):
            # Said for no step: the one that was done last when it was said.
            before = bisect.bisect_right(steps.t, said.t)
            at = steps.step[before - 1] if before else 0
        yield said.t, int(at), {f"logged/{name}": value for name, value in said.values.items()}
    if run.result is not None:
        found = {f"result/{name}": value for name, value in run.result.metrics.items()}
        for part, metrics in run.result.slices.items():
            found |= {f"result/{name}/{part}": value for name, value in metrics.items()}
        yield run.result.seconds, max(steps.step, default=0), found
