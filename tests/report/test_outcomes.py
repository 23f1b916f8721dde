"""What a verdict says in words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from narrowgate.report.outcomes import (
    decided_by,
    decisions_of,
    gate_label,
    limit_text,
    overrides_of,
    range_text,
    slice_of,
    value_text,
)
from report import sample

RATIO = {"measure": "x baseline"}
MINUS = "\N{MINUS SIGN}"


def one(*gates, **changed):
    return replace(sample.candidate("bf16", sample.runs(3)), gates=gates, **changed)


def test_of_a_passed_candidate_the_gate_nearest_to_its_limit_is_named():
    far = sample.gate("quality.a", [0.001, 0.002, 0.003], 0.1)
    near = sample.gate("memory.peak", [0.99, 1.0, 1.01], 1.03, **RATIO)
    fast = sample.gate("speed.median", [2.0, 2.1, 1.9], 1.2, better="higher", **RATIO)
    said = decided_by(one(far, near, fast, outcome="pass"))
    assert said == f"All 3 gates passed; closest to its limit: Memory: peak, {near.reason}."


def test_a_gate_without_bounds_is_no_nearest_one():
    exact = sample.gate("stability.finite", [0.0], 0.0, measure="share")
    assert decided_by(one(exact, outcome="pass")) == "All 1 gates passed."
    same = sample.gate("quality.a", [0.0, 0.0, 0.0], 0.1)
    assert "closest to its limit: Quality: a" in decided_by(one(exact, same, outcome="pass"))


def test_of_a_failed_candidate_the_first_failed_gate_is_named_and_the_others_counted():
    good = sample.gate("quality.a", [0.001, 0.002, 0.003], 0.1)
    bad = sample.gate("quality.b", [0.5, 0.6, 0.7], 0.1)
    said = decided_by(one(good, bad, replace(bad, gate="quality.c"), outcome="fail"))
    assert said == f"Quality: b: {bad.reason}. 1 more gate failed."


def test_of_an_open_candidate_the_first_open_gate_is_named():
    vague = sample.gate("quality.b", [0.0, 0.1, 0.2], 0.1)
    assert vague.outcome == "inconclusive"
    assert decided_by(one(vague, outcome="inconclusive")) == f"Quality: b: {vague.reason}."


def test_of_one_that_could_not_be_compared_the_error_is_told():
    assert decided_by(one(outcome=None, error="the data differ")) == "the data differ"


@pytest.mark.parametrize(
    ("gate", "value", "between", "limit"),
    [
        (
            sample.gate("quality.a", [-0.01, 0.0, 0.02], 0.05),
            "+0.0033", f"{MINUS}0.0346 to +0.0413", "< +0.0500",
        ),
        (
            sample.gate("speed.median", [1.4, 1.5, 1.6], 1.2, better="higher", **RATIO),
            "1.498×", "1.269× to 1.768×", "≥ 1.200×",
        ),
        (sample.gate("cost.total", [0.9], 1.0, **RATIO), "0.900×", "", "≤ 1.000×"),
        (
            sample.gate("stability.skipped", [0.02], 0.01, measure="share"),
            "2\N{NO-BREAK SPACE}%", "", "≤ 1\N{NO-BREAK SPACE}%",
        ),
        (sample.gate("quality.a", [], 12.0), "no value", "", "< +12.0"),
        (sample.gate("quality.a", [math.nan, 1.0], 12.0), "NaN", "", "< +12.0"),
    ],
)  # fmt: skip
def test_numbers_of_a_gate(gate, value, between, limit):
    assert (value_text(gate), range_text(gate), limit_text(gate)) == (value, between, limit)


def test_a_bound_beside_the_limit_gets_the_decimals_that_tell_them_apart():
    gate = replace(sample.gate("quality.a", [0.0, 0.1, 0.2], 0.01), upper=0.010004)
    assert range_text(gate).endswith("to +0.010004")
    assert limit_text(gate) == "< +0.010000"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("quality.loss/json", ("loss", "json")),
        ("quality.loss/a/b", ("loss", "a/b")),
        ("quality.loss", None),
        ("speed.median", None),
    ],
)
def test_the_name_of_a_slices_gate_holds_metric_and_slice(name, parts):
    assert slice_of(sample.gate(name, [], 1.0)) == parts


def test_an_unknown_gate_keeps_its_name():
    assert gate_label("watch.something") == "watch.something"


def test_decisions_of_other_pilots_are_left_out():
    entries = sample.ledger()
    assert [d.kind for d in decisions_of(entries, sample.PILOT)] == ["accept", "override"]
    assert decisions_of(entries, "another") == []
    found = overrides_of(decisions_of(entries, sample.PILOT), "fp16")
    assert found["quality.val_loss/email"].by == "Charles Babbage"
    assert overrides_of(decisions_of(entries, sample.PILOT), "bf16") == {}
