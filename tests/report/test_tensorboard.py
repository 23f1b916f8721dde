"""TensorBoard files, read back by TensorBoard."""

from __future__ import annotations

import builtins
import math
import subprocess
import sys
from dataclasses import replace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from narrowgate.errors import RunError
from narrowgate.records import LogLine, Steps
from narrowgate.report import export_tensorboard
from report import sample


def read(folder):
    """All scalars by tag, as step and value."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def fp32(value):
    """A number as TensorBoard keeps it."""
    import numpy as np

    return float(np.float32(value))


def test_steps_logs_and_results_come_back(tmp_path):
    run = sample.run("fp16", 1, 30)
    found = read(export_tensorboard(run, tmp_path / "deep" / "folder"))
    steps = run.steps
    assert found["loss"] == [(s, fp32(v)) for s, v in zip(steps.step, steps.loss, strict=True)]
    assert found["loss_scale"] == list(zip(steps.step, steps.loss_scale, strict=True))
    assert found["applied"] == list(zip(steps.step, map(float, steps.applied), strict=True))
    assert len(found["grad_norm"]) == 30
    assert found["logged/lr"] == [(int(o.step), fp32(o.values["lr"])) for o in run.logs]
    assert found["result/val_loss"] == [(30, fp32(run.result.metrics["val_loss"]))]
    assert found["result/val_loss/json"] == [(30, fp32(run.result.slices["json"]["val_loss"]))]


def test_times_are_those_of_the_run(tmp_path):
    run = sample.run("bf16", 1, 3)
    found = EventAccumulator(str(export_tensorboard(run, tmp_path)))
    found.Reload()
    times = [event.wall_time for event in found.Scalars("loss")]
    assert times == pytest.approx([1796148202.0 + t for t in run.steps.t], abs=1e-3)


def test_a_nan_is_written_and_a_column_that_was_not_recorded_is_not(tmp_path):
    steps = sample.steps_of("bf16", 0, 4)
    broken = replace(steps, loss=(1.0, math.nan, math.inf, 2.0), grad_norm=(math.nan,) * 4)
    found = read(export_tensorboard(sample.run("bf16", 0, 4, steps=broken), tmp_path))
    assert math.isnan(found["loss"][1][1])
    assert found["loss"][2] == (3, math.inf)
    assert "grad_norm" not in found


def test_a_second_optimizer_has_tags_of_its_own(tmp_path):
    steps = replace(sample.steps_of("bf16", 0, 4), optimizer=(0, 1, 0, 1))
    found = read(export_tensorboard(sample.run("bf16", 0, 4, steps=steps), tmp_path))
    assert [step for step, _ in found["loss"]] == [1, 3]
    assert [step for step, _ in found["optimizer_1/loss"]] == [2, 4]


def test_what_was_logged_for_no_step_belongs_to_the_last_one_done(tmp_path):
    steps = replace(sample.steps_of("bf16", 0, 3), t=(1.0, 2.0, 3.0))
    logs = tuple(LogLine(t=t, step=None, values={"a": t}) for t in (0.5, 2.5, 9.0))
    found = read(export_tensorboard(sample.run("bf16", 0, 3, steps=steps, logs=logs), tmp_path))
    assert found["logged/a"] == [(0, 0.5), (2, 2.5), (3, 9.0)]


def test_a_run_without_steps_or_result_is_an_empty_file(tmp_path):
    run = sample.run("bf16", 0, 3, steps=Steps(), logs=(), result=None)
    assert read(export_tensorboard(run, tmp_path)) == {}


def test_a_second_export_takes_the_place_of_the_first_and_of_nothing_else(tmp_path):
    (tmp_path / "events.out.tfevents.1.other").write_bytes(b"")
    run = sample.run("bf16", 0, 5)
    export_tensorboard(run, tmp_path)
    export_tensorboard(run, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert len(read(tmp_path)["loss"]) == 5


def test_without_the_package_the_way_to_it_is_told(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("tensorboard"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(RunError) as caught:
        export_tensorboard(sample.run("bf16", 0, 3), tmp_path)
    assert str(caught.value) == (
        "the export needs the tensorboard package, which is not installed here\n"
        "\n"
        "hint: pip install 'narrowgate[tensorboard]'"
    )


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"file/x cannot be written: Not a directory"):
        export_tensorboard(sample.run("bf16", 0, 3), tmp_path / "file" / "x")


def test_neither_torch_nor_tensorflow_is_imported():
    code = (
        "import sys\n"
        "from tensorboard.compat.proto.event_pb2 import Event\n"
        "from tensorboard.summary.writer.event_file_writer import EventFileWriter\n"
        "print([name for name in ('torch', 'tensorflow') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
