from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import updates


def test_the_tensors_hold_what_was_asked_for_and_differ_in_size() -> None:
    cut = updates.sizes(updates.COUNT)
    assert (len(cut), sum(cut)) == (100, updates.COUNT)
    assert min(cut) == 64
    assert max(cut) > 1_000_000


def test_every_row_is_measured_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    arguments = ["--count", "50000", "--rounds", "1", "--threads", "1", "--rows", str(rows)]
    monkeypatch.setattr("sys.argv", ["updates.py", *arguments])
    before = torch.get_num_threads()
    try:
        assert updates.main() in (0, 1, 4)
    finally:
        torch.set_num_threads(before)
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len(found) == 12
    assert {row["name"]: row["limit"] for row in found if row["limit"]} == {
        "updates/adamw / its 28 bytes": "<= 1.30",
        "updates/adamw, torch fused / it": ">= 1.30",
        "updates/check, scaler and clip / it": ">= 3.00",
    }
    assert "50,000 parameters, 1 threads" in capsys.readouterr().out


def test_ratios_are_of_the_same_round() -> None:
    found = {"a": [1.0, 9.0, 2.0], "copy": [1.0, 3.0, 1.0]}
    names = ("torch fused", "adamw", "adamw, bf16 gradients", "sgd", "scaler and clip", "check")
    found |= {name: [8.0, 3.0, 7.0] for name in (*names, "checksum")}
    found |= {"adamw, plain torch": [70.0], "check, plain torch": [14.0]}
    rows = {row.name: row for row in updates.judge(1, found, is_busy=False)}
    # 8 / 1, 3 / 3 and 7 / 1: the median is 7; of medians it would be the same here, of means not.
    assert rows["updates/adamw / its 28 bytes"].ratio == pytest.approx(7 * 8 / 28)
    assert rows["updates/adamw, plain torch / it"].ratio == pytest.approx(10)
    assert rows["updates/adamw / its 28 bytes"].is_met is False
