from __future__ import annotations

import hashlib
import math
import os
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from narrowgate.errors import RunError
from narrowgate.records import StepRecord, layout, load_run
from narrowgate.records.files import read_lines
from narrowgate.records.recorder import Recorder
from records import asked


class Value:
    """A tensor of no dimension, as far as the recorder knows."""

    def __init__(self, value: float) -> None:
        self.value = value

    def double(self) -> Value:
        return self

    flatten = double

    def tolist(self) -> Any:
        return [self.value]


class Whole:
    def __init__(self, value: int) -> None:
        self.value = value

    def tolist(self) -> int:
        return self.value


def step(number: int, *, applied: bool = True) -> StepRecord:
    return StepRecord(
        applied=applied,
        reason="" if applied else "non-finite gradient",
        loss_scale=2.0,
        grad_norm=math.inf if not applied else 1.5,
        culprit=None if applied else "head.weight",
        attempted=number,
    )


@pytest.fixture
def recorder(tmp_path: Path) -> Any:
    made = Recorder(asked.folder(tmp_path / "run"), asked.request())
    yield made
    made.close()


def test_what_is_recorded_is_read_back(recorder: Recorder) -> None:
    recorder.step(
        0, [Value(2.0), Value(0.5)], lambda: step(1), data=[Whole(7), Whole(-2)], floats=[Whole(9)]
    )
    recorder.step(1, [], lambda: step(1, applied=False), data=[], floats=[])
    recorder.log(3, {"lr": 0.1, "bad": math.nan})
    recorder.log(None, {"x": 1.0})
    recorder.finish({"val_loss": 2.5}, {"json": {"val_loss": math.inf}})
    run = load_run(recorder.folder)
    assert run.faults == ()
    steps = run.steps
    assert (steps.step, steps.optimizer, steps.applied) == ((1, 1), (0, 1), (True, False))
    assert (steps.loss[0], math.isnan(steps.loss[1])) == (2.5, True)
    assert (steps.reason, steps.culprit) == (("", "non-finite gradient"), (None, "head.weight"))
    assert (steps.loss_scale, steps.grad_norm) == ((2.0, 2.0), (1.5, math.inf))
    assert (steps.data, steps.floats) == ((5, None), (9, None))
    assert [(line.step, set(line.values)) for line in run.logs] == [
        (3.0, {"lr", "bad"}),
        (None, {"x"}),
    ]
    assert math.isnan(run.logs[0].values["bad"])
    assert run.result is not None
    assert run.result.metrics == {"val_loss": 2.5}
    assert run.result.slices == {"json": {"val_loss": math.inf}}
    first, last = run.load  # one at the begin and one at the end
    assert 0 < first.cpu_s <= last.cpu_s
    assert first.waited_s <= last.waited_s
    assert run.is_complete


def test_times_are_those_of_the_call_and_never_go_back(recorder: Recorder) -> None:
    before = recorder.now_s
    recorder.step(0, [], lambda: step(1), data=[], floats=[])
    between = recorder.now_s
    recorder.step(0, [], lambda: step(2), data=[], floats=[])
    recorder.close()
    first, second = load_run(recorder.folder).steps.t
    assert before <= first <= between <= second


def test_nothing_is_read_or_written_in_the_call(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[str] = []

    def read() -> StepRecord:
        readers.append(threading.current_thread().name)
        return step(1)

    opened: list[str] = []
    real = os.open

    def watched(*arguments: Any) -> int:
        opened.append(threading.current_thread().name)
        return real(*arguments)

    monkeypatch.setattr("narrowgate.records.recorder.os.open", watched)
    recorder.step(0, [Value(1.0)], read, data=[], floats=[])
    recorder._stop.wait(0.6)  # not a timing: only lets the thread have its turn
    while not readers:
        recorder._stop.wait(0.1)
    assert set(readers) == set(opened) == {"narrowgate-record"}


def test_a_full_disk_stops_neither_training_nor_what_waits(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    room = [12]  # the first write fits in part, and then nothing does

    def full(file: int, block: bytes) -> int:
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        taken, room[0] = room[0], 0
        return real(file, block[:taken])

    recorder.step(0, [Value(1.0)], lambda: step(1), data=[], floats=[])
    with monkeypatch.context() as patch:
        patch.setattr("narrowgate.records.recorder.os.write", full)
        while recorder._trouble is None:
            recorder._stop.wait(0.1)
        recorder.step(0, [Value(2.0)], lambda: step(2), data=[], floats=[])
        torn = read_lines(recorder.folder / layout.EVENTS)
    assert torn[1] == []  # the part of a block was cut off again
    recorder.finish({"val_loss": 1.0}, {})
    run = load_run(recorder.folder)
    assert (run.steps.step, run.steps.loss, run.faults) == ((1, 2), (1.0, 2.0), ())


def test_a_disk_that_stays_full_is_said_at_the_end(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("narrowgate.records.recorder.os.write", full)
    recorder.step(0, [Value(1.0)], lambda: step(1), data=[], floats=[])
    with pytest.raises(RunError, match=r"events\.jsonl could not be written: No space") as error:
        recorder.finish({"val_loss": 1.0}, {})
    assert error.value.hint is not None
    assert not (recorder.folder / layout.RESULT).exists()


def test_a_step_that_cannot_be_read_is_a_fault_and_not_the_end(recorder: Recorder) -> None:
    def broken() -> StepRecord:
        raise RuntimeError("CUDA error: an illegal memory access")

    recorder.step(0, [], broken, data=[], floats=[])
    recorder.step(0, [], lambda: step(2), data=[], floats=[])
    recorder.close()
    run = load_run(recorder.folder)
    assert run.steps.step == (2,)
    assert run.faults == ("events.jsonl: CUDA error: an illegal memory access",)


def test_a_checksum_that_cannot_be_read_costs_no_step(recorder: Recorder) -> None:
    class Meta:
        def tolist(self) -> int:
            raise RuntimeError("Cannot copy out of meta tensor; no data!")

    recorder.step(0, [Value(1.0)], lambda: step(1), data=[Whole(1), Meta()], floats=[])
    recorder.close()
    steps = load_run(recorder.folder).steps
    assert (steps.step, steps.loss, steps.data) == ((1,), (1.0,), (None,))


def test_the_project_is_where_its_records_lie_whatever_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "model_code.py"
    code.write_text("x = 1")
    module = types.ModuleType("model_code")
    module.__file__ = str(code)
    monkeypatch.setitem(sys.modules, "model_code", module)
    made = Recorder(asked.folder(tmp_path / ".narrowgate" / "a" / "run"), asked.request())
    monkeypatch.chdir("/")
    code.write_text("x = 2")  # edited while it runs: what was loaded counts
    made.finish({"a": 1.0}, {})
    result = load_run(made.folder).result
    assert result is not None
    assert result.files == {"model_code.py": hashlib.sha256(b"x = 1").hexdigest()}


def test_a_second_result_is_refused(recorder: Recorder) -> None:
    recorder.finish({"val_loss": 1.0}, {})
    with pytest.raises(RunError, match="has its result already"):
        recorder.finish({"val_loss": 2.0}, {})
    run = load_run(recorder.folder)
    assert run.result is not None
    assert run.result.metrics == {"val_loss": 1.0}


def test_a_launchers_restart_goes_on_in_the_file(tmp_path: Path) -> None:
    folder = asked.folder(tmp_path / "run")
    first = Recorder(folder, asked.request())
    first.step(0, [], lambda: step(1), data=[], floats=[])
    first.close()
    path = folder / layout.EVENTS
    path.write_text(path.read_text() + '{"kind": "step", "t": 0.')  # killed while writing
    second = Recorder(folder, asked.request())
    second.step(0, [], lambda: step(2), data=[], floats=[])
    second.close()
    run = load_run(folder)
    assert run.steps.step == (1, 2)
    assert run.steps.t[0] <= run.steps.t[1]
    assert len(run.faults) == 1
    assert "cannot be read" in run.faults[0]
