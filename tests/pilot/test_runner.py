"""A pilot of a script without torch: what each fault costs, and what it does not."""

from __future__ import annotations

import errno
import math
import time
from pathlib import Path

import pytest

from narrowgate.errors import ConfigError, LedgerError, PilotError
from narrowgate.pilot import runner
from narrowgate.pilot.begin import begin_pilot, locked, resume_pilot
from narrowgate.pilot.folder import read_pilot
from narrowgate.pilot.interrupt import Interruptions
from narrowgate.pilot.ledger import Ledger
from narrowgate.pilot.observe import Row
from narrowgate.pilot.runner import run_pilot
from narrowgate.records import layout
from narrowgate.records.files import read_json
from narrowgate.records.run import load_run
from pilot import fake
from pilot.running import Listener, begin, run


def pilot_of(here: Path, behave=None, **options):
    return run(begin(here, behave, **options))


def refused(here: Path, behave, **options) -> tuple[PilotError, Listener]:
    pilot, listener = begin(here, behave, **options), Listener()
    with pytest.raises(PilotError) as caught:
        run_pilot(pilot, listener, Interruptions())
    assert caught.value.hint
    return caught.value, listener


def test_all_runs_are_made_in_turn_and_nothing_is_left_to_say(here):
    pilot = begin(here)
    stopped, told = run(pilot)
    assert (stopped.reason, stopped.message, stopped.num_done, stopped.total) == ("done", "", 9, 9)
    assert told.ran[:5] == ["fp32@0", "bf16@0", "fp16@0", "fp16@1", "fp32@1"]
    assert (told.faults, told.notes) == ({}, [])
    assert [row.number for row in told.rows] == list(range(1, 10))
    assert told.rows[-1].left_s == 0
    folder = layout.attempt_folder(pilot.folder, "bf16", 2, 1)
    request = read_json(folder / layout.REQUEST)
    assert (request["recipe"], request["seed"], request["attempt"]) == ("bf16", 2, 1)
    assert request["command"] == [*fake.COMMAND[:-1], "2"]
    assert (folder / layout.STDOUT).read_text() == "training bf16 2 ['--seed', '2']\n"
    assert not fake.living(pilot.folder)


def test_the_ledger_has_the_limits_before_the_first_run(here):
    pilot = begin(here, only=["fp16"], seeds=2)
    (entry,) = Ledger(pilot.ledger).entries()
    assert (entry.kind, entry.pilot) == ("pilot", pilot.folder.name)
    assert entry.body["config"] == fake.CONFIG
    assert entry.body["config_hash"] == read_pilot(pilot.folder).config_hash
    assert (entry.body["candidates"], entry.body["seeds"]) == (["fp16"], [0, 1])
    assert (pilot.folder / layout.CONFIG).read_text() == fake.CONFIG
    assert not (pilot.folder / "runs").exists()


def test_a_secret_is_given_to_the_script_and_stored_nowhere(here):
    root = fake.write(here)
    command = (*fake.COMMAND, "--hub-token", "s3cr3t")
    pilot = begin_pilot(root, here / "narrowgate.toml", command, seeds=1, only=["bf16"])
    run(pilot)
    assert (
        "s3cr3t" in (layout.attempt_folder(pilot.folder, "bf16", 0, 1) / layout.STDOUT).read_text()
    )
    for path in root.rglob("*"):
        if path.is_file() and path.name != layout.STDOUT:
            assert b"s3cr3t" not in path.read_bytes()
    with pytest.raises(PilotError, match="without its secrets"):
        resume_pilot(root, None)
    assert resume_pilot(root, None, command).command == command


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("crash", "ended with exit code 3"),
        ("killed", "was killed by SIGKILL (out of memory?)"),
        (
            "silent",
            (
                "ended well, but wrote nothing into its folder: it called nothing of narrowgate, "
                "was not passed NARROWGATE_RUN, or ended before the training did"
            ),
        ),
        ("no-result", "ended well, but never called ng.result"),
        ("crash-after-result", "ended with exit code 4"),
        ("other-metric", "reported no val_loss"),
        ("no-slice", "reported no val_loss/json"),
    ],
)
def test_a_run_that_fails_costs_its_row_alone(here, does, why):
    stopped, told = pilot_of(here, {"bf16@1": does}, only=["bf16"])
    assert told.faults == {"bf16@1": why}
    assert (stopped.reason, stopped.num_done, stopped.total) == ("done", 5, 6)


def test_a_result_that_cannot_be_read_is_the_runs_fault(here):
    _, told = pilot_of(here, {"bf16@1": "garbage"}, only=["bf16"])
    (why,) = told.faults.values()
    assert why.startswith("left a file that cannot be read: ")
    assert "result.json" in why


def test_a_script_that_removes_its_own_folder_costs_its_row(here):
    stopped, told = pilot_of(here, {"bf16@1": "tidy"}, only=["bf16"])
    (why,) = told.faults.values()
    assert why.startswith("left a file that cannot be read: ")
    assert "request.json" in why
    assert (stopped.reason, stopped.num_done) == ("done", 5)


@pytest.mark.parametrize("does", ["nan", "torn"])
def test_a_nan_and_a_torn_line_are_results(here, does):
    pilot = begin(here, {"bf16@1": does}, only=["bf16"])
    _, told = run(pilot)
    assert told.faults == {}
    found = load_run(layout.attempts(pilot.folder, "bf16", 1)[-1])
    assert math.isnan(found.result.metrics["val_loss"]) == (does == "nan")
    assert len(found.faults) == (does == "torn")


def test_a_run_that_hangs_is_ended_and_the_others_go_on(here, monkeypatch):
    real = runner.launch

    def launch(command, folder, *, timeout_s, stop, tick):
        """Let the time of the run that hangs be up as soon as it hangs."""
        assert timeout_s == 60
        if folder.parts[-3:-1] == ("bf16", "1"):
            timeout_s = 0

            def tick() -> None:
                fake.wait_for((folder / "hanging.json").exists, "the run")

        return real(command, folder, timeout_s=timeout_s, stop=stop, tick=tick)

    monkeypatch.setattr(runner, "launch", launch)
    _, told = pilot_of(here, {"bf16@1": "hang"}, only=["bf16"])
    assert told.faults == {"bf16@1": "took longer than timeout_s = 60 s and was ended"}
    assert len(told.rows) == 6


@pytest.mark.parametrize("does", ["child", "daemon"])
def test_what_a_run_leaves_behind_is_ended_before_the_next(here, does):
    pilot = begin(here, {"bf16@0": does}, only=["bf16"], seeds=1)
    _, told = run(pilot)
    assert told.faults == {}
    number = int((told.rows[-1].folder / "left.json").read_text())
    assert not fake.is_alive(number)


def test_a_baseline_that_fails_twice_ends_the_pilot_at_once(here):
    stopped, told = pilot_of(here, {"fp32": "crash"})
    assert told.ran == ["fp32@0", "fp32@1"]
    assert stopped.reason == "command-failed"
    assert "with seed 0 it ended with exit code 3; with seed 1" in stopped.message
    assert "stderr.log:\n    Traceback: it broke here" in stopped.message
    assert "\x1b" not in stopped.message


def test_a_baseline_without_another_seed_ends_it_with_the_first(here):
    stopped, told = pilot_of(here, {"fp32": "silent"}, seeds=1)
    assert told.ran == ["fp32@0"]
    assert stopped.reason == "command-failed"
    assert stopped.message.endswith("stderr.log is empty")


def test_a_baseline_that_fails_once_is_tried_with_the_next_seed_first(here):
    stopped, told = pilot_of(here, {"fp32@0": "crash"})
    assert told.ran[:3] == ["fp32@0", "fp32@1", "bf16@0"]
    assert sorted(told.ran) == sorted(
        f"{r}@{s}" for r in ("fp32", "bf16", "fp16") for s in (0, 1, 2)
    )
    assert (stopped.reason, stopped.num_done) == ("done", 8)


def test_a_baseline_that_worked_may_fail_later(here):
    stopped, told = pilot_of(here, {"fp32@1": "crash", "fp32@2": "crash"})
    assert set(told.faults) == {"fp32@1", "fp32@2"}
    assert (stopped.reason, stopped.num_done) == ("done", 7)


@pytest.mark.parametrize(
    ("does", "message", "hint"),
    [
        ("other-metric", "judges val_loss, which", "did you mean 'valid_loss'?"),
        ("no-slice", "judges val_loss/json, which", "did you mean 'val_loss'?"),
    ],
)
def test_a_baseline_without_what_is_judged_ends_the_pilot_at_once(here, does, message, hint):
    error, told = refused(here, {"fp32": does})
    assert told.ran == ["fp32@0"]
    assert message in error.message
    assert error.hint.startswith(hint)


def test_a_script_that_ignores_its_seed_ends_the_pilot_with_its_second_baseline(here):
    error, told = refused(here, {"*": "deaf"})
    assert told.ran[-1] == "fp32@1"
    assert len(told.rows) == 5
    assert "seeds 0 and 1 are equal, bit for bit" in error.message
    assert "{seed}" in error.hint
    assert "ng.seed()" in error.hint


def test_a_candidate_with_other_data_is_dropped_and_the_others_go_on(here):
    stopped, told = pilot_of(here, {"bf16@1": "other-data"})
    (note,) = told.notes
    assert note.startswith(
        "bf16 cannot be compared: bf16, seed 1: from step 4 on its model was given other"
    )
    assert "bf16@2" not in told.ran
    assert "fp16@2" in told.ran
    assert (stopped.reason, stopped.num_done) == ("done", 8)


def test_where_data_depend_on_the_model_they_are_not_compared(here):
    config = fake.CONFIG.replace("[pilot]", '[pilot]\ndata_order = "free"')
    stopped, told = pilot_of(here, {"bf16": "other-data"}, config=config)
    assert (told.notes, stopped.num_done) == ([], 9)


def test_a_candidate_that_never_called_prepare_is_dropped(here):
    _, told = pilot_of(here, {"bf16": "no-plan"})
    (note,) = told.notes
    assert note.startswith("bf16 cannot be compared: bf16, seed 0: ng.prepare was never called")
    assert [name for name in told.ran if name.startswith("bf16")] == ["bf16@0"]


def test_a_baseline_that_never_called_prepare_ends_the_pilot_at_once(here):
    error, told = refused(here, {"*": "no-plan"})
    assert told.ran == ["fp32@0"]
    assert "fp32, seed 0: ng.prepare was never called" in error.message
    assert "ng.prepare(model, optimizer)" in error.hint


def test_time_is_estimated_after_the_first_run_and_beforehand_from_an_earlier_pilot(here):
    _, told = run(begin(here, seeds=1))
    ((after, seconds, source),) = told.estimates
    assert (after, source) == (1, "the first run")
    assert seconds == pytest.approx(2 * told.rows[0].seconds)
    _, again = run(begin(here, seeds=2))
    ((after, seconds, source),) = again.estimates
    assert (after, source) == (0, "an earlier pilot of this command")
    assert seconds == pytest.approx(2 * sum(row.seconds for row in told.rows))


def test_no_run_starts_that_would_end_too_late(here):
    pilot = begin(here)
    stopped, told = run(pilot, max_hours=1e-9)
    assert (stopped.reason, told.ran) == ("max-hours", [])
    run(begin(here, seeds=1))  # from now on there is an estimate
    hours = [0.0]

    class Clock:
        """A run takes an hour on it; the estimate is of the real time."""

        @staticmethod
        def monotonic() -> float:
            return hours[0]

    class Hourly(Listener):
        def run_ended(self, row: Row) -> None:
            super().run_ended(row)
            hours[0] += 3600.0

    told = Hourly()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "time", Clock)
        stopped = run_pilot(pilot, told, Interruptions(), max_hours=3.5)
    assert (stopped.reason, len(told.rows), stopped.num_done) == ("max-hours", 4, 4)
    assert "--max-hours 3.5" in stopped.message
    stopped, told = run(pilot)
    assert (stopped.reason, len(told.rows), stopped.num_done) == ("done", 5, 9)


def test_few_seeds_are_said_to_be_few(here):
    _, told = pilot_of(here, seeds=2, only=["bf16"])
    assert told.notes == ["fewer than 3 seeds: no gate that tests can pass"]


def test_two_pilots_on_one_folder_are_refused(here):
    pilot = begin(here)
    with (
        locked(pilot.folder),
        pytest.raises(PilotError, match="another process is running") as caught,
        locked(pilot.folder),
    ):
        pass
    assert caught.value.hint
    with locked(pilot.folder):  # and it can be had again
        pass


def test_a_clock_that_jumps_changes_nothing(here, monkeypatch):
    jumps = iter([2e9, 1.0, 3e9, 5.0] * 10_000)
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    stopped, told = pilot_of(here, only=["bf16"])
    assert (stopped.reason, told.faults) == ("done", {})
    assert all(0 < row.seconds < 60 for row in told.rows)


# --- nothing is made for what is wrong from the start ---


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"command": ("no-such-program", "{seed}")}, PilotError),
        ({"command": ()}, PilotError),
        ({"seeds": 0}, ConfigError),
        ({"only": ["fp16-mixed"]}, ConfigError),
        ({"config": "[pilot]\n"}, ConfigError),
        ({"ledger": "no entry\n"}, LedgerError),
    ],
)
def test_nothing_is_made_for_what_is_wrong(here, change, error):
    root = fake.write(here, config=change.pop("config", fake.CONFIG))
    if (text := change.pop("ledger", None)) is not None:
        root.mkdir()
        (root / layout.LEDGER).write_text(text)
    command = change.pop("command", fake.COMMAND)
    with pytest.raises(error) as caught:
        begin_pilot(root, here / "narrowgate.toml", command, **change)
    assert caught.value.hint
    assert not (root / "pilots").exists()


def test_a_folder_that_may_not_be_written_is_told(here, monkeypatch):
    def closed(path, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "mkdir", closed)
    with pytest.raises(PilotError, match="may not be written: Read-only file system") as caught:
        begin(here)
    assert caught.value.hint


def test_a_pilot_that_the_ledger_has_no_room_for_leaves_no_folder(here, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Ledger, "append", full)
    with pytest.raises(PilotError, match="is full") as caught:
        begin(here)
    assert "--resume" in caught.value.hint
    assert list((here / ".narrowgate" / "pilots").iterdir()) == []
