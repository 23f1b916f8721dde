"""The page of one run."""

from __future__ import annotations

import math
from dataclasses import replace

from narrowgate.records import LogLine, Steps
from narrowgate.report import run_facts, write_run_page
from report import hostile, html, sample


def test_a_run_has_its_results_its_curves_and_no_verdict(tmp_path):
    run = sample.run("fp16", 1, 60, folder=tmp_path)
    page = html.read(write_run_page(run))
    assert page.text.startswith("Run: fp16 narrowgate")
    assert "There is no verdict here" in page.text
    assert [figure["name"] for figure in page.figures] == [
        "loss", "loss-scale", "grad-norm", "logged-0",
    ]  # fmt: skip
    assert f"val_loss {run.result.metrics['val_loss']:.3f}" in page.text
    assert page.figures[3]["data"][0]["x"] == [10, 20, 30, 40, 50, 60]
    assert "culprits: blocks.3.down.weight" in page.text
    for row in sample.plan("fp16").params:
        assert row.reason in page.text


def test_a_run_outside_of_a_pilot_has_neither_recipe_nor_seed(tmp_path):
    run = sample.run("bf16", 1, 60, folder=tmp_path)
    request = replace(run.request, recipe=None, seed=None, pilot=None, command=(), commit=None)
    page = html.read(write_run_page(replace(run, request=request, ending=None)))
    assert "One run: recipe chosen by the script" in page.text
    assert ", seed" not in page.text.split("Result")[0]
    assert "Command not known" in page.text


def test_a_run_that_did_nothing(tmp_path):
    run = sample.run(
        "bf16", 1, 3, folder=tmp_path, steps=Steps(), logs=(), load=(), result=None, plan=None,
        plan_hash=None, environment={}, faults=("events.jsonl: line 1 is torn",), ending=None,
    )  # fmt: skip
    page = html.read(write_run_page(run))
    assert page.figures == []
    assert "No step was recorded, and nothing was logged." in page.text
    assert "none: ng.result was not called" in page.text
    assert "events.jsonl: line 1 is torn" in page.text
    assert dict(run_facts(run))["whole run"] == "\N{EN DASH}"


def test_where_the_loss_stopped_being_finite_is_told():
    facts = dict(run_facts(sample.run("bf16(master=none)", 3, 60)))
    assert facts["losses that are not finite"] == "12, the first at step 49 (NaN)"
    assert facts["steps"] == "60"


def test_logged_values_without_a_step_are_drawn_in_their_order(tmp_path):
    logs = tuple(LogLine(t=float(t), step=None, values={"a": t, "b": math.nan}) for t in range(3))
    page = html.read(write_run_page(sample.run("bf16", 1, 60, folder=tmp_path, logs=logs)))
    (logged,) = [figure for figure in page.figures if figure["name"].startswith("logged")]
    assert logged["data"][0]["x"] == [0, 1, 2]


def test_no_name_breaks_out_of_the_page(tmp_path):
    _, runs, _ = hostile.pilot()
    run = next(iter(runs.values()))
    logs = tuple(LogLine(t=0.0, step=1.0, values={name: 1.0}) for name in hostile.NAMES)
    request = replace(run.request, recipe=hostile.NAMES[1], command=hostile.NAMES)
    page = html.read(write_run_page(replace(run, folder=tmp_path, request=request, logs=logs)))
    assert len(page.scripts) == 3
    assert not [key for _, attrs in page.tags for key in attrs if key.startswith("on")]
    assert "\u202e" not in page.text
