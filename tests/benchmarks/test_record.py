from __future__ import annotations

import json
from pathlib import Path

import pytest
import record


def test_the_benchmark_measures_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    arguments = ["--steps", "40", "--rounds", "1", "--rows", str(rows)]
    monkeypatch.setattr("sys.argv", ["record.py", *arguments])
    record.main()
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["name"] for row in found] == [
        "record/number", "record/number/by hand", "record/line", "record/step",
    ]  # fmt: skip
    assert [row["limit"] for row in found] == ["<= 1.00", None, None, None]
    assert "record/number" in capsys.readouterr().out


def test_the_lines_that_are_timed_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record.recorded(5, record.MANY)
    record.by_hand(5, record.MANY)
    (events,) = tmp_path.glob(".narrowgate/runs/*/events.jsonl")
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    logged = [line["values"] for line in lines if line["kind"] == "log"]
    assert logged == [record.numbers(record.MANY)] * 5
    assert len((tmp_path / "by_hand.jsonl").read_text().splitlines()) == 5
