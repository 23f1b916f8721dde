"""From a pilot's folder to its verdict: what counts, what cannot be compared, what was changed."""

from __future__ import annotations

import json
import math
import shutil

import pytest

from narrowgate.errors import PilotError, RunError
from narrowgate.pilot.judge import check_evidence, judge, recompute
from narrowgate.pilot.ledger import Ledger, looks_of, values_hash
from narrowgate.records import Verdict, layout
from narrowgate.records.files import read_json, write_json
from pilot import made
from pilot.made import gate, only, runs


@pytest.fixture
def folder(tmp_path):
    return made.equal_pilot(tmp_path)


def keep(folder, verdict):
    write_json(folder / layout.VERDICT, verdict.to_json())
    return verdict


def test_a_candidate_is_judged_and_says_what_it_was(folder):
    verdict = judge(folder)
    assert (verdict.outcome, verdict.notes) == ("pass", ())
    assert (verdict.pilot, verdict.baseline, verdict.seeds) == (made.NAME, "fp32", (0, 1, 2, 3, 4))
    assert verdict.command == made.COMMAND
    found = only(verdict)
    assert (found.recipe, found.outcome, found.error) == ("bf16", "pass", "")
    assert [g.gate for g in found.gates] == ["quality.val_loss", "stability.finite"]
    assert found.plan_hash == made.plan_of("bf16").hash
    assert (found.code, found.torch, found.device) == (made.CODE, "2.13.0+cpu", "cpu")
    assert (found.num_attempts, found.num_runs) == (5, 5)
    assert sorted(found.data) == ["0", "1", "2", "3", "4"]


def test_candidates_are_judged_in_order_and_the_worst_counts(tmp_path):
    recipes = ("bf16", "fp16", "bf16(master=none)")
    folder = made.pilot(tmp_path, candidates=recipes)
    for recipe, num, add in [("fp32", 5, 0), ("bf16", 5, 0), ("fp16", 5, 1), (recipes[2], 4, 0)]:
        runs(folder, recipe, range(num), add=add)
    verdict = judge(folder)
    assert [c.recipe for c in verdict.candidates] == list(recipes)
    assert [c.outcome for c in verdict.candidates] == ["pass", "fail", "inconclusive"]
    assert verdict.outcome == "fail"


def test_a_verdict_outlives_its_json(folder):
    runs(folder, "bf16", [2], add=math.nan)
    verdict = keep(folder, judge(folder))
    assert gate(verdict).outcome == "fail"
    again = Verdict.from_json(read_json(folder / layout.VERDICT))
    assert again.hash == verdict.hash


def test_a_copied_folder_gives_the_same_verdict(folder, tmp_path):
    verdict = keep(folder, judge(folder, lambda **_: 3))
    assert gate(verdict).look == 3
    copy = tmp_path / "elsewhere under another name"
    shutil.copytree(folder, copy)
    assert recompute(copy) == Verdict.from_json(read_json(folder / layout.VERDICT))
    assert judge(copy).hash == verdict.hash


def test_what_was_printed_is_no_evidence(folder):
    verdict = keep(folder, judge(folder))
    attempt = layout.attempt_folder(folder, "bf16", 1, 1)
    (attempt / layout.STDOUT).write_text("more")
    (attempt / ".owner").write_text("")
    (attempt / "checkpoints").mkdir()
    (attempt / "checkpoints" / "step-1").write_text("weights")
    assert check_evidence(folder, verdict) == []
    recompute(folder)


EVIDENCE = (
    layout.REQUEST,
    layout.ENVIRONMENT,
    layout.PLAN,
    layout.EVENTS,
    layout.RESULT,
    layout.EXIT,
)


def test_the_evidence_is_all_that_counted(folder):
    verdict = judge(folder)
    expected = {layout.CONFIG, layout.PILOT}
    for recipe in ("fp32", "bf16"):
        for seed in range(5):
            expected |= {f"runs/{recipe}/{seed}/attempt-1/{name}" for name in EVIDENCE}
    assert set(verdict.evidence) == expected


@pytest.mark.parametrize(
    "name", [layout.CONFIG, layout.PILOT, *(f"runs/fp32/3/attempt-1/{n}" for n in EVIDENCE)]
)
@pytest.mark.parametrize("edit", ["flip", "remove", "append"])
def test_a_changed_file_is_found_and_named(name, edit, folder):
    verdict = keep(folder, judge(folder))
    path = folder / name
    content = bytearray(path.read_bytes())
    if edit == "flip":
        content[len(content) // 2] ^= 1
    if edit == "append":
        content += b"\n"
    path.write_bytes(content)
    if edit == "remove":
        path.unlink()
    if (name, edit) == (layout.PILOT, "remove"):
        with pytest.raises(PilotError, match=f"has no {layout.PILOT}"):
            recompute(folder)
        return
    try:
        told = check_evidence(folder, verdict)
    except RunError as error:  # pilot.json cannot even be read
        assert layout.PILOT in error.message  # noqa: PT017 - one of two ways to find it
        return
    what = "is missing" if edit == "remove" else "was changed"
    assert f"{name} {what}" in told
    with pytest.raises(PilotError, match=f"{name} {what}"):
        recompute(folder)


def test_a_later_attempt_changes_the_evidence(folder):
    verdict = keep(folder, judge(folder))
    made.run(folder, "bf16", 4, attempt=2, metrics={"val_loss": 0.0})
    told = check_evidence(folder, verdict)
    assert "runs/bf16/4/attempt-2/result.json is new" in told
    assert "runs/bf16/4/attempt-1/result.json is missing" in told
    assert judge(folder).hash != verdict.hash
    assert only(judge(folder)).num_attempts == 6


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda v: v["candidates"][0].update(outcome="fail"), "verdict.candidates[0].outcome"),
        (lambda v: v["candidates"][0]["gates"][0].update(limit=9.0), "gates[0].limit is 9.0 there"),
        (lambda v: v["candidates"][0]["gates"].pop(), "verdict.candidates[0].gates"),
        (lambda v: v.update(command=["python", "other.py"]), "verdict.command"),
        (lambda v: v.update(notes=["all is well"]), "verdict.notes"),
    ],
)
def test_an_edited_verdict_is_found_and_the_difference_named(edit, told, folder):
    verdict = judge(folder).to_json()
    verdict = json.loads(json.dumps(verdict))
    edit(verdict)
    write_json(folder / layout.VERDICT, verdict)
    with pytest.raises(PilotError, match="does not say what the runs say") as caught:
        recompute(folder)
    assert told in caught.value.message


def test_without_a_verdict_nothing_can_be_recomputed(folder, tmp_path):
    with pytest.raises(PilotError, match=r"has no verdict\.json"):
        recompute(folder)
    with pytest.raises(PilotError, match="there is no "):
        recompute(tmp_path / "nowhere")
    with pytest.raises(PilotError, match="there is no "):
        judge(tmp_path / "nowhere")
    with pytest.raises(PilotError, match=r"has no pilot\.json"):
        judge(tmp_path)


def test_limits_that_were_changed_are_refused(folder):
    path = folder / layout.CONFIG
    path.write_text(path.read_text().replace("0.01", "0.1"))
    with pytest.raises(PilotError, match=r"config\.toml was changed after the pilot began"):
        judge(folder)
    path.unlink()
    with pytest.raises(PilotError, match="its hash is none"):
        judge(folder)


def test_looks_come_from_the_ledger_when_it_is_given(folder, tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    found = only(judge(folder))
    for place in range(2):
        tested = {"gate": "quality.val_loss", "alpha": 0.025, "values_hash": f"other {place}"}
        body = {
            "recipe": "bf16",
            "plan_hash": found.plan_hash,
            "code": found.code,
            "command": list(made.COMMAND),
            "gates": [tested],
        }
        ledger.append("verdict", "an earlier one", body)
    looks = looks_of(ledger.entries(), made.COMMAND)
    assert gate(judge(folder, looks)).look == 3
    assert gate(judge(folder, looks)).alpha == 0.00625
    seen = gate(judge(folder))
    tested = {"gate": "quality.val_loss", "alpha": 0.025}
    body["gates"] = [{**tested, "values_hash": values_hash(seen.seeds, seen.values)}]
    ledger.append("verdict", "the same values", body)
    assert gate(judge(folder, looks_of(ledger.entries(), made.COMMAND))).look == 3


def test_names_with_quotes_slashes_and_other_scripts_are_judged(tmp_path):
    name, part, recipe = '損失 "q"', "../../x\n<script>", "bf16-mixed; head.*: fp32"
    config = f"""
[pilot]
candidates = ["{recipe}"]
[quality.'{name}']
better = "higher"
margin = 0.5
[quality.'{name}'.slices.'*']
margin = 0.5
"""
    folder = made.pilot(tmp_path, config=config, candidates=(recipe,), seeds=[3, 1, 2])
    for wish in ("fp32", recipe):
        for seed in (3, 1, 2):
            values = {name: seed / 8}
            made.run(folder, wish, seed, metrics=values, slices={part: values})
    verdict = keep(folder, judge(folder))
    assert [found.gate for found in only(verdict).gates] == [
        f"quality.{name}",
        f"quality.{name}/{part}",
        "stability.finite",
    ]
    assert gate(verdict, f"quality.{name}").seeds == (3, 1, 2)
    assert recompute(folder).outcome == "pass"
