"""Which runs count, which cannot be compared, and which slices are judged."""

from __future__ import annotations

import json
import math
import shutil

import pytest

from narrowgate.errors import PilotError
from narrowgate.pilot.judge import judge
from narrowgate.records import layout
from narrowgate.records.files import read_json, write_json
from pilot import made
from pilot.made import gate, only, runs

SLICED = made.MINIMAL + '\n[quality.val_loss.slices]\na = {margin = 0.02}\n"*" = {margin = 0.03}\n'
FREE = made.MINIMAL.replace("seeds = 5", 'data_order = "free"')


@pytest.fixture
def folder(tmp_path):
    return made.equal_pilot(tmp_path)


def test_a_script_that_ignores_its_seed_gets_no_verdict(tmp_path):
    folder = made.pilot(tmp_path)
    for seed in range(5):
        losses = [1.0, 0.5 + seed // 3]
        made.run(folder, "fp32", seed, metrics={"val_loss": 2.0}, losses=losses, data=[1, 2])
    with pytest.raises(PilotError, match="with seeds 0 and 1 are equal, bit for bit") as caught:
        judge(folder)
    assert "{seed}" in (caught.value.hint or "")


@pytest.mark.parametrize("losses", [[math.nan] * 4, [2.0, 1.0, math.nan, 1.0]])
def test_equal_accuracies_alone_do_not_accuse_a_script(losses, tmp_path):
    folder = made.pilot(tmp_path)
    for recipe in ("fp32", "bf16"):
        for seed in range(5):
            mine = [loss + seed for loss in losses]
            made.run(folder, recipe, seed, metrics={"val_loss": 0.5}, losses=mine)
    assert judge(folder).outcome == "pass"


@pytest.mark.parametrize("seen", ["data", "grad_norm"])
def test_a_script_that_ignores_its_seed_is_found_without_losses(seen, tmp_path):
    folder = made.pilot(tmp_path)
    for recipe in ("fp32", "bf16"):
        for seed in range(5):
            at = made.run(
                folder, recipe, seed, metrics={"val_loss": 0.5}, data=[3] * 4, losses=[1.0] * 4
            )
            blank = {"loss": None, **({"data": None} if seen != "data" else {"grad_norm": "nan"})}
            change_steps(at, lambda step, blank=blank: {**step, **blank})
    with pytest.raises(PilotError, match="with seeds 0 and 1 are equal, bit for bit"):
        judge(folder)


def change_steps(at, change):
    """Rewrite the steps of a run; `change` gives None for one that is left out."""
    lines = [json.loads(line) for line in (at / layout.EVENTS).read_text().splitlines()]
    kept = [change(line) if line["kind"] == "step" else line for line in lines]
    text = "".join(json.dumps(line) + "\n" for line in kept if line is not None)
    (at / layout.EVENTS).write_text(text)


def test_a_candidate_whose_optimizer_never_stepped_is_not_compared(folder):
    change_steps(layout.attempt_folder(folder, "bf16", 2, 1), lambda step: None)
    error = only(judge(folder)).error
    assert error.startswith("bf16, seed 2: the optimizer that ng.prepare returned made no step")


def test_a_recipe_that_took_no_effect_is_not_compared(folder):
    path = layout.attempt_folder(folder, "bf16", 2, 1) / layout.RESULT
    write_json(path, {**read_json(path), "took_effect": False})
    error = only(judge(folder)).error
    assert error.startswith("bf16, seed 2: the prepared model's forward was never entered")
    assert "ng.autocast(model)" in error


def test_data_are_paired_by_what_each_optimizer_has_done(folder):
    # A baseline may count its steps otherwise than a candidate: by two for two optimizers.
    for seed in range(5):
        at = layout.attempt_folder(folder, "fp32", seed, 1)
        change_steps(at, lambda step: {**step, "step": 2 * step["step"] + 1})
    assert only(judge(folder)).outcome == "pass"


INCOMPARABLE = {
    "never prepared": ({"with_plan": False}, "ng.prepare was never called"),
    "another torch": (
        {"torch": "2.12.0"},
        "its runs had different versions of torch: fp32, seed 0",
    ),
    "another device": ({"device": "cuda"}, "its runs had different kinds of device"),
    "another number of threads": (
        {"environment": {"threads": 7}},
        "its runs had different numbers of threads: fp32, seed 0: 2; bf16, seed 3: 7",
    ),
    "another device of the kind": (
        {"environment": {"device_name": "another"}},
        "its runs had different devices: fp32, seed 0",
    ),
    "other data": (
        {"data": [*range(3), 99], "losses": [1.0, 2.0, 3.0, 4.0]},
        "bf16, seed 3: from step 4 on its model was given other data than the baseline's",
    ),
}


@pytest.mark.parametrize("name", INCOMPARABLE)
def test_what_cannot_be_compared_is_an_error_of_the_candidate(name, tmp_path):
    options, told = INCOMPARABLE[name]
    folder = made.pilot(tmp_path, candidates=("bf16", "fp16"))
    same = {"data": [0, 1, 2, 3]} if "data" in options else {}
    for seed in range(5):
        for recipe in ("fp32", "bf16", "fp16"):
            mine = options if (recipe, seed) == ("bf16", 3) else same
            losses = [1.0 + seed, 2.0, 3.0, 4.0]
            metrics = {"val_loss": 2.0 + seed + seed**2 / 1024}
            made.run(folder, recipe, seed, metrics=metrics, **{"losses": losses, **mine})
    verdict = judge(folder)
    bad, good = verdict.candidates
    assert told in bad.error
    assert (bad.outcome, bad.gates, verdict.outcome) == (None, (), None)
    assert (good.outcome, good.error) == ("pass", "")


def test_different_plans_of_one_recipe_are_not_compared(folder):
    runs(folder, "bf16", [4], plan_hash="9" * 64)
    assert "its runs had different plans: bf16, seed 0: " in only(judge(folder)).error
    assert "bf16, seed 4: 999999999999" in only(judge(folder)).error


def test_a_run_in_the_wrong_place_is_found(folder):
    shutil.rmtree(folder / "runs" / "bf16")
    shutil.copytree(folder / "runs" / "fp32", folder / "runs" / "bf16")
    assert "bf16, seed 0: its folder holds a run of fp32, seed 0" in only(judge(folder)).error


def test_a_run_of_another_pilot_is_found(folder, tmp_path):
    other = made.pilot(tmp_path / "b", name="20270101T000000-00000000")
    runs(other, "bf16", [3])
    place = "runs/bf16/3"
    shutil.rmtree(folder / place)
    shutil.copytree(other / place, folder / place)
    assert "its runs had different pilots" in only(judge(folder)).error


def test_a_plan_for_another_recipe_is_found(folder):
    path = layout.attempt_folder(folder, "bf16", 2, 1) / layout.PLAN
    plan = read_json(path)
    for text, told in [(made.plan_of("fp16").to_json(), "'fp16'"), ("[", "'of a damaged plan'")]:
        write_json(path, {**plan, "plans": [text]})
        error = only(judge(folder)).error
        assert error == f"bf16, seed 2: ng.prepare was given the recipe {told}"


def test_data_that_depend_on_the_model_are_not_compared(tmp_path):
    folder = made.pilot(tmp_path, config=FREE)
    runs(folder, "fp32")
    runs(folder, "bf16", data=list(range(40)))
    assert only(judge(folder)).outcome == "pass"
    assert only(judge(folder)).data == {}


ORDER, ARANGE = [3, 1, 4, 1], [6, 6, 6, 6]


@pytest.mark.parametrize(
    ("whole", "floats", "told"),
    [
        (ORDER, [7, 9, 9, 9], ""),  # a state that is carried on, beside tokens
        (ARANGE, [7, 9, 9, 9], "from step 2 on"),  # images, beside the places of their patches
        ([3, 1, 4, 5], [7, 8, 9, 9], "from step 4 on"),
        (ARANGE, [7, 8, 9, 9], ""),
    ],
)
def test_floats_tell_the_order_where_whole_numbers_do_not(whole, floats, told, tmp_path):
    folder = made.pilot(tmp_path)
    same = ARANGE if whole is ARANGE else ORDER
    for seed in range(5):
        common = {"metrics": {"val_loss": 1.0}, "losses": [1.0 + seed, 2.0, 3.0, 4.0]}
        made.run(folder, "fp32", seed, data=same, floats=[7, 8, 9, 9], **common)
        made.run(folder, "bf16", seed, data=whole, floats=floats, **common)
    error = only(judge(folder)).error
    assert told in error if told else error == ""


def test_data_that_nobody_could_compare_are_told(folder):
    runs(folder, "bf16", [3, 4], with_data=False)
    (note,) = judge(folder).notes
    assert note.startswith("bf16: that its data are the baseline's was not checked with seeds 3, 4")


def test_data_are_compared_where_both_have_them(tmp_path):
    folder = made.pilot(tmp_path)
    runs(folder, "fp32", num_steps=40)
    runs(folder, "bf16", [0, 1], num_steps=20)  # it stopped early
    runs(folder, "bf16", [2, 3, 4], with_data=False)
    assert only(judge(folder)).outcome == "pass"
    assert sorted(only(judge(folder)).data) == ["0", "1"]


LEFT_OUT = {
    "no result": ({"metrics": None}, "bf16, seed 2: ended well, but never called ng.result"),
    "crashed": ({"exit_code": 1}, "bf16, seed 2: ended with exit code 1"),
    "killed": ({"exit_code": -9}, "bf16, seed 2: was killed by SIGKILL"),
    "timeout": ({"how": "timeout", "exit_code": None}, "bf16, seed 2: took longer than timeout_s"),
    "interrupted": ({"how": "interrupted", "exit_code": None}, "bf16, seed 2: was interrupted"),
    "no metric": (
        {"metrics": {"valloss": 1.0}},
        "bf16, seed 2: counts as without result: it reported no val_loss, but valloss",
    ),
    "no metrics": ({"metrics": {}}, "it reported no val_loss, but nothing"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_run_without_result_costs_a_pair_and_is_told(name, folder):
    options, told = LEFT_OUT[name]
    made.run(folder, "bf16", 2, attempt=2, **{"metrics": {"val_loss": 2.25}, **options})
    verdict = judge(folder)
    assert any(told in note for note in verdict.notes)
    assert only(verdict).outcome == "inconclusive"
    assert gate(verdict).seeds == (0, 1, 3, 4)
    assert "without a pair for seed 2 it cannot pass" in gate(verdict).reason
    assert (only(verdict).num_runs, only(verdict).num_attempts) == (4, 6)


def test_a_run_whose_end_nobody_saw_does_not_count(folder):
    (layout.attempt_folder(folder, "fp32", 1, 1) / layout.EXIT).unlink()
    verdict = judge(folder)
    assert verdict.notes == ("fp32, seed 1: was interrupted",)
    assert gate(verdict).seeds == (0, 2, 3, 4)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (layout.RESULT, "{"),
        (layout.RESULT, '{"schema": 1, "metrics": {"val_loss": "low"}}'),
        (layout.RESULT, '{"schema": 99}'),
        (layout.PLAN, '{"schema": 1}'),
        (layout.PLAN, '{"schema": 1, "hash": "x", "plans": []}'),
        (layout.EXIT, '{"schema": 1}'),
        (layout.REQUEST, "[]"),
    ],
)
def test_a_damaged_file_costs_its_run_and_not_the_table(name, text, folder):
    (layout.attempt_folder(folder, "bf16", 2, 1) / name).write_text(text)
    verdict = judge(folder)
    (note,) = verdict.notes
    assert note.startswith("bf16, seed 2: counts as without result: ")
    assert str(folder) not in note  # or a copy would have another verdict
    assert gate(verdict).seeds == (0, 1, 3, 4)


def test_a_torn_last_line_is_told_and_the_run_counts(folder):
    path = layout.attempt_folder(folder, "bf16", 2, 1) / layout.EVENTS
    path.write_bytes(path.read_bytes()[:-5])
    verdict = judge(folder)
    (note,) = verdict.notes
    assert note.startswith("bf16, seed 2: events.jsonl: line 42 is torn")
    assert verdict.outcome == "pass"


def test_a_pilot_without_any_run_is_inconclusive(tmp_path):
    verdict = judge(made.pilot(tmp_path, seeds=[7]))
    assert verdict.notes == ("fp32, seed 7: was not run", "bf16, seed 7: was not run")
    assert (verdict.pilot, only(verdict).outcome) == (made.NAME, "inconclusive")
    assert only(verdict).plan_hash is None
    assert gate(verdict).reason == (
        "no seed has a pair of results; at least 3 are needed; without a pair for seed 7 it "
        "cannot pass"
    )


def test_the_star_covers_what_the_baseline_reports(tmp_path):
    folder = made.pilot(tmp_path, config=SLICED)
    names = ["a", "b/c", "d.e"]
    runs(folder, "fp32", slices=names)
    runs(folder, "fp32", [4], slices=[*names, "rogue"])
    runs(folder, "bf16", slices=names)
    verdict = judge(folder)
    gates = {found.gate: found.limit for found in only(verdict).gates}
    assert gates == {
        "quality.val_loss": 0.01,
        "quality.val_loss/a": 0.02,
        "quality.val_loss/b/c": 0.03,
        "quality.val_loss/d.e": 0.03,
        "stability.finite": 0.0,
    }
    assert verdict.notes == ("reported by some runs only: val_loss/rogue (1 of 10 runs)",)
    assert verdict.outcome == "pass"


def test_a_slice_that_a_candidate_lost_is_not_forgotten(tmp_path):
    folder = made.pilot(tmp_path, config=SLICED)
    runs(folder, "fp32", slices=["a", "hard"])
    runs(folder, "bf16", slices=["a"])
    verdict = judge(folder)
    assert only(verdict).outcome == "inconclusive"
    assert gate(verdict, "quality.val_loss/hard").seeds == ()
    assert (
        "bf16, seed 0: counts as without result: it reported no val_loss/hard, but val_loss, "
        "val_loss/a"
    ) in verdict.notes


def test_a_slice_that_nobody_reports_is_inconclusive_and_told(tmp_path):
    config = made.MINIMAL + "[quality.val_loss.slices.absent]\nmargin = 1.0\n"
    folder = made.pilot(tmp_path, config=config)
    runs(folder, "fp32")
    runs(folder, "bf16")
    verdict = judge(folder)
    assert {found.outcome for found in only(verdict).gates} == {"inconclusive"}
    assert len([note for note in verdict.notes if "no val_loss/absent" in note]) == 10


def test_metrics_that_are_not_judged_may_differ_and_are_told(folder):
    made.run(folder, "bf16", 2, metrics={"val_loss": 2.25, "best_epoch": 3.0})
    verdict = judge(folder)
    assert verdict.notes == ("reported by some runs only: best_epoch (1 of 10 runs)",)
    assert verdict.outcome == "pass"


@pytest.mark.parametrize("who", ["bf16", "fp32"])
def test_runs_of_code_that_was_edited_between_them_are_not_compared(who, folder):
    runs(folder, who, [3, 4], file="e" * 64)
    error = only(judge(folder)).error
    assert error.startswith("train.py was edited between its runs: ")
    assert "seed 3 loaded another than fp32, seed 0" in error


def test_a_file_that_only_some_runs_load_is_no_edit(folder):
    path = layout.attempt_folder(folder, "bf16", 3, 1) / layout.RESULT
    result = read_json(path)
    write_json(path, {**result, "files": {**result["files"], "fallback.py": "e" * 64}})
    assert only(judge(folder)).outcome == "pass"
