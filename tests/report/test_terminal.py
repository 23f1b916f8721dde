"""The verdict in the terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from narrowgate.report import print_verdict
from narrowgate.report.outcomes import limit_text, range_text, value_text
from narrowgate.report.text import printable
from report import hostile, sample


def printed(verdict, width=80, **options):
    file = io.StringIO()
    console = Console(file=file, width=width, **options)
    print_verdict(verdict, console)
    return file.getvalue()


@pytest.fixture(scope="module")
def verdict():
    return sample.verdict(sample.runs(60))


def test_each_candidate_has_its_word_and_its_symbol(verdict):
    lines = printed(verdict).splitlines()
    heads = [line for line in lines if "runs gave a result" in line]
    assert [line.split("  ")[:2] for line in heads] == [
        ["✓ PASS", "bf16"],
        ["✓ PASS", "bf16-mixed"],
        ["? INCONCLUSIVE", "fp16"],
        ["✗ FAIL", "bf16(master=none)"],
    ]


def test_each_gate_has_a_line_with_its_numbers(verdict):
    text = printed(verdict)
    for candidate in verdict.candidates:
        for gate in candidate.gates:
            # A name wider than its column goes on below.
            assert gate.gate[:16] in text
    line = next(line for line in text.splitlines() if "speed.median" in line)
    assert line.split()[1:3] == ["✓", "pass"]
    assert line.rstrip().endswith("≥ 0.980×")


def test_what_did_not_pass_has_its_reason_once(verdict):
    text = " ".join(printed(verdict).split())
    candidate = verdict.candidates[2]
    for gate in candidate.gates:
        reason = " ".join(gate.reason.split())
        assert text.count(reason) == (0 if gate.outcome == "pass" else 1), gate.gate


@pytest.mark.parametrize("width", [24, 40, 60, 70, 80, 100])
def test_nothing_is_cut_where_there_is_little_room(verdict, width):
    text = printed(verdict, width)
    assert "…" not in text
    whole = "".join(text.split())
    for candidate in verdict.candidates:
        for gate in candidate.gates:
            for told in (value_text(gate), range_text(gate), limit_text(gate)):
                assert "".join(told.split()) in whole
    assert max(map(len, text.splitlines())) <= width
    if width < 70:
        for gate in verdict.candidates[0].gates:
            assert "".join(f"{gate.gate}: {value_text(gate)}".split()) in whole


def test_it_fits_into_80_columns(verdict):
    assert max(len(line) for line in printed(verdict).splitlines()) <= 80


def test_a_candidate_that_could_not_be_compared_says_why():
    one = sample.candidate(
        "bf16", sample.runs(3), outcome=None, error="the data differ", gates=(), num_runs=2
    )
    text = printed(sample.verdict(sample.runs(3), candidates=(one,), notes=("a file was torn",)))
    assert "! NOT COMPARED  bf16  2 of 5 runs gave a result" in text
    assert "  the data differ" in text
    assert "note: a file was torn" in text


def test_a_users_string_is_no_markup_and_moves_no_cursor():
    verdict, _, _ = hostile.pilot()
    text = printed(verdict, width=400)
    assert "\x1b" not in text
    assert "\u202e" not in text
    for name in hostile.NAMES[:-1]:
        assert f"note: {printable(name)}" in text
    assert re.search(r"quality\.\[red\]markup\[/red\] +\? inconclusive", text)


def test_colours_go_with_the_words_on_a_terminal(verdict):
    text = printed(verdict, force_terminal=True, color_system="standard")
    assert "\x1b[32m✓ PASS" in text
    assert "\x1b[31m✗ FAIL" in text
    assert "\x1b[33m? INCONCLUSIVE" in text


def test_stdout_is_the_default(verdict, capsys):
    print_verdict(verdict)
    assert "✓ PASS  bf16" in capsys.readouterr().out
