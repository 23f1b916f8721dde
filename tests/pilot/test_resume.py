"""A pilot that stops half-way, on a full disk or dead, and goes on where it was."""

from __future__ import annotations

import errno
import textwrap

import pytest

from narrowgate.errors import ConfigError, PilotError
from narrowgate.pilot import runner
from narrowgate.pilot.begin import begin_pilot, last_pilot, resume_pilot
from narrowgate.pilot.folder import read_pilot
from narrowgate.pilot.ledger import Ledger
from narrowgate.pilot.schedule import Task
from narrowgate.records import layout
from narrowgate.records.files import read_json
from pilot import fake
from pilot.running import begin, run
from small_disk import mounted

# --- a full disk ---


@pytest.mark.parametrize("place", range(4))
def test_a_full_disk_stops_the_pilot_and_loses_nothing(here, monkeypatch, place):
    """Each write of the second run in turn finds no room: request, logs, exit."""
    pilot = begin(here, only=["bf16"])
    left = [place + 2]  # the first run has a request and an exit
    real_write = runner.write_json

    def write(path, value):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real_write(path, value)

    with monkeypatch.context() as patch:
        for module in ("runner", "launch"):
            patch.setattr(f"narrowgate.pilot.{module}.write_json", write)
        with pytest.raises(PilotError, match="is full: No space left") as caught:
            run(pilot)
    assert "--resume" in caught.value.hint
    stopped, told = run(resume_pilot(pilot.ledger.parent, None))
    assert (stopped.reason, stopped.num_done) == ("done", 6)
    assert len(told.rows) == 6 - (place + 2) // 2


def test_a_disk_that_is_really_full_is_told(here):
    """On a file system of its own, 600 kB large, that the script fills."""
    small = here / "small"
    small.mkdir()
    with mounted(small, "-o", "size=600k"):
        fake.write(here)
        script = here / "train.py"
        fill = """
        import pathlib
        full = pathlib.Path("small/filling").open("wb", buffering=0)
        while seed == 1:
            full.write(b"x" * 4096)
        """
        script.write_text(
            fake.SCRIPT.replace("def leave", f"{textwrap.dedent(fill)}\ndef leave", 1)
        )
        pilot = begin_pilot(
            small / ".narrowgate", here / "narrowgate.toml", fake.COMMAND, only=["bf16"]
        )
        with pytest.raises(PilotError, match="is full") as caught:
            run(pilot)
        assert "--resume" in caught.value.hint
        (small / "filling").unlink()
        script.write_text(fake.SCRIPT)
        stopped, _ = run(resume_pilot(small / ".narrowgate", None))
        assert (stopped.reason, stopped.num_done) == ("done", 6)
        Ledger(pilot.ledger).verify()


# --- going on ---


def test_what_failed_is_tried_again_and_what_is_done_is_not(here):
    pilot = begin(here, {"bf16@1": "crash", "fp16@2": "no-slice"})
    run(pilot)
    fake.write(here)
    stopped, told = run(resume_pilot(here / ".narrowgate", pilot.folder))
    assert told.ran == ["bf16@1", "fp16@2"]
    assert (stopped.reason, stopped.num_done) == ("done", 9)
    assert [path.name for path in layout.attempts(pilot.folder, "bf16", 1)] == [
        "attempt-1",
        "attempt-2",
    ]
    stopped, told = run(resume_pilot(here / ".narrowgate", None))
    assert (stopped.reason, told.ran) == ("done", [])


def test_what_was_found_before_is_found_again(here):
    pilot = begin(here, {"*": "deaf"})
    for _ in range(2):
        with pytest.raises(PilotError, match="equal, bit for bit"):
            run(pilot)


def test_seeds_are_added_to_a_pilot_and_entered_first(here):
    pilot = begin(here, only=["bf16"])
    run(pilot)
    root = here / ".narrowgate"
    _, told = run(resume_pilot(root, None, seeds=5))
    assert told.ran == ["bf16@3", "fp32@3", "fp32@4", "bf16@4"]
    assert read_pilot(pilot.folder).seeds == (0, 1, 2, 3, 4)
    assert [entry.body["seeds"] for entry in Ledger(pilot.ledger).entries()] == [
        [0, 1, 2],
        [0, 1, 2, 3, 4],
    ]
    with pytest.raises(
        ConfigError, match="would leave out seeds which this pilot began with: 2, 3"
    ):
        resume_pilot(root, None, seeds=2)


def test_limits_that_were_changed_are_refused(here):
    pilot = begin(here)
    (pilot.folder / layout.CONFIG).write_text(fake.CONFIG.replace("0.5", "5.0"))
    with pytest.raises(PilotError, match="was changed after the pilot began"):
        resume_pilot(here / ".narrowgate", None)


def test_the_last_pilot_is_the_one_begun_last_whatever_its_name(here, monkeypatch):
    root = here / ".narrowgate"
    with pytest.raises(PilotError, match="there is no pilot"):
        last_pilot(root)
    names = iter(["20301201T000000-aaaaaaaa", "20201201T000000-bbbbbbbb"])
    monkeypatch.setattr(layout, "new_folder_name", lambda: next(names))
    begin(here)
    assert begin(here).folder == last_pilot(root)


def test_an_attempt_left_without_an_end_was_interrupted(here):
    pilot = begin(here, only=["bf16"], seeds=1)
    run(pilot)
    attempt = layout.attempt_folder(pilot.folder, "bf16", 0, 1)
    (attempt / layout.EXIT).unlink()  # as if the pilot had died after the result
    stopped, told = run(pilot)
    assert told.ran == ["bf16@0"]
    assert stopped.num_done == 2
    assert read_json(attempt / layout.EXIT)["how"] == "interrupted"
    assert told.rows[0].task == Task(recipe="bf16", seed=0)
    assert told.rows[0].folder.name == "attempt-2"
