"""The last step of a run under way, from a log that may be cut off anywhere."""

from __future__ import annotations

import math

import pytest

from narrowgate.pilot.tail import last_step
from narrowgate.records.files import dumps


def step(number: int, loss: float | None = 2.5) -> str:
    return dumps({"kind": "step", "step": number, "loss": loss}) + "\n"


def said(tmp_path, text: str):
    path = tmp_path / "events.jsonl"
    path.write_text(text, encoding="utf-8")
    return last_step(path)


def test_the_last_whole_step_counts(tmp_path):
    log = dumps({"kind": "log", "step": 9, "values": {}}) + "\n"
    assert said(tmp_path, step(1) + step(2, 1.25) + log + step(3)[:-1]) == (2, 1.25)


def test_a_torn_line_amid_the_log_is_passed_over(tmp_path):
    assert said(tmp_path, step(1) + step(2)[:12] + "\n") == (1, 2.5)


def test_a_step_without_a_loss_has_none(tmp_path):
    number, loss = said(tmp_path, step(1, None))
    assert number == 1
    assert math.isnan(loss)


def test_a_loss_that_is_infinite_is_read(tmp_path):
    assert said(tmp_path, step(1, math.inf)) == (1, math.inf)


@pytest.mark.parametrize("text", ["", "\n", '{"kind": "begin", "t": 0}\n', "[]\n\x00\n"])
def test_a_log_without_a_step_says_nothing(tmp_path, text):
    assert said(tmp_path, text) is None


def test_no_log_says_nothing(tmp_path):
    assert last_step(tmp_path / "events.jsonl") is None


def test_only_the_end_of_a_long_log_is_read(tmp_path):
    assert said(tmp_path, step(1) * 5_000 + step(77)) == (77, 2.5)
    assert said(tmp_path, step(1) + "x" * 200_000 + "\n") is None
