"""Runs whose time is not known, since their end was seen late: what is said of it, everywhere."""

from __future__ import annotations

import math

import pytest

from narrowgate import cli
from narrowgate.cli import progress
from narrowgate.pilot import launch
from narrowgate.pilot.judge import read_verdict
from narrowgate.pilot.observe import Row
from narrowgate.pilot.schedule import Task
from narrowgate.records import layout
from pilot import fake
from report import html

COST = "\n[cost]\nmax_ratio = 2.0\n"


@pytest.fixture
def late(tmp_path, monkeypatch, capsys):
    """A pilot that sees the end of every run late; give its folder and what it said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "_LATE_S", -1.0)
    fake.write(tmp_path, {"bf16@2": "crash"}, config=fake.CONFIG + COST)
    assert cli.main(["pilot", "--only", "bf16", "--", *fake.COMMAND]) == 4
    (folder,) = (tmp_path / layout.ROOT / "pilots").iterdir()
    return folder, *capsys.readouterr()


def test_its_cost_is_inconclusive_and_its_quality_is_not(late):
    (candidate,) = read_verdict(late[0]).candidates
    gates = {gate.gate: gate for gate in candidate.gates}
    assert gates["cost.total"].outcome == "inconclusive"
    assert "whole time" in gates["cost.total"].reason
    assert gates["quality.val_loss"].mean == pytest.approx(0.001)


def test_nothing_is_estimated_from_it_and_progress_says_so(late):
    _, _, err = late
    lines = err.splitlines()
    assert "1/6] fp32, seed 0: done in an unknown time: its end was seen late" in err
    assert [line for line in lines if "ended with exit code 3 after an unknown time; see " in line]
    assert not [line for line in lines if "likely" in line or "nan" in line.lower()]


def test_no_page_shows_a_time_that_is_none(late, capsys):
    folder, out, _ = late
    assert "NaN" not in out
    text = html.read(folder / layout.REPORT).text
    assert "ended with code 0 after an unknown time" in text
    assert "NaN" not in text
    attempt = layout.attempt_folder(folder, "fp32", 0, 1)
    assert cli.main(["report", str(attempt)]) == 0
    assert "NaN" not in capsys.readouterr().out
    text = html.read(attempt / layout.REPORT).text
    assert "ended, code 0, after an unknown time" in text
    assert "NaN" not in text


def test_a_stop_at_max_hours_without_any_time_says_no_more_than_it_knows(
    late, monkeypatch, tmp_path, capsys
):
    arguments = ["pilot", "--resume", str(late[0]), "--seeds", "4", "--max-hours", "1e-9"]
    assert cli.main(arguments) == 4
    _, err = capsys.readouterr()
    assert "the next run would end after --max-hours 1e-09;" in err
    assert "nan" not in err.lower()


@pytest.mark.parametrize("observe", [progress.Lines, progress.Bars])
def test_bars_and_lines_take_what_is_not_known(observe, tmp_path, capsys):
    unknown = Row(
        task=Task(recipe="bf16", seed=0), folder=tmp_path, is_done=True, why="",
        seconds=math.nan, number=1, total=2, left_s=math.nan,
    )  # fmt: skip
    with observe() as observer:
        observer.began(tmp_path, 0, 2)
        observer.run_started(unknown.task, tmp_path, 1, 2)
        observer.run_ended(unknown)
        observer.tick()
    err = capsys.readouterr().err
    assert "[1/2] bf16, seed 0: done in an unknown time" in err
    assert "nan" not in err.lower()
