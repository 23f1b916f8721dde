"""Who may decide what, on which verdict, and when an acceptance ends."""

from __future__ import annotations

import dataclasses

import pytest

from narrowgate.errors import LedgerError, PilotError, RecipeError
from narrowgate.pilot.begin import write_limits
from narrowgate.pilot.conclude import verdict_body
from narrowgate.pilot.decisions import accept, override, reject, standing
from narrowgate.pilot.folder import read_pilot
from narrowgate.pilot.judge import judge
from narrowgate.pilot.ledger import Ledger, check_limits, check_verdict, ledger_of, looks_of
from narrowgate.records import layout
from narrowgate.records.files import read_json, sha256, write_json
from pilot import made

OWNED = made.MINIMAL + 'owner = "Ada"\n[memory]\nmax_ratio = 0.5\n'


def conclude(folder):
    """Judge a folder and enter the verdict into its ledger, as a pilot does at its end."""
    ledger = Ledger(ledger_of(folder))
    write_limits(ledger, folder, read_pilot(folder))
    verdict = judge(folder, looks_of(ledger.entries(), made.COMMAND))
    write_json(folder / layout.VERDICT, verdict.to_json())
    for candidate in verdict.candidates:
        ledger.append("verdict", folder.name, verdict_body(verdict, candidate))
    return ledger


@pytest.fixture
def good(tmp_path):
    """A pilot whose candidate passes every gate, and the ledger."""
    folder = made.equal_pilot(tmp_path)
    return folder, conclude(folder)


@pytest.fixture
def bad(tmp_path):
    """One whose candidate fails two gates: quality, which Ada owns, and memory, which nobody."""
    folder = made.pilot(tmp_path, config=OWNED)
    made.runs(folder, "fp32")
    made.runs(folder, "bf16", add=1.0)
    return folder, conclude(folder)


ADA = {"by": "Ada", "reason": "because"}


def test_a_candidate_that_passes_is_accepted_with_what_it_was(good):
    folder, ledger = good
    entry = accept(ledger, folder, "bf16", by=" Ada ", reason="passes\n")
    assert entry == ledger.entries()[-1]
    verdict = judge(folder)
    found = made.only(verdict)
    assert entry.body == {
        "recipe": "bf16",
        "by": "Ada",
        "reason": "passes",
        "plan_hash": found.plan_hash,
        "code": made.CODE,
        "torch": "2.13.0+cpu",
        "device": "cpu",
        "data": dict(found.data),
        "command": list(made.COMMAND),
        "verdict_hash": verdict.hash,
        "evidence_hash": verdict.evidence_hash,
        "overridden": [],
    }


def test_another_spelling_is_the_same_candidate(tmp_path):
    folder = made.pilot(tmp_path, candidates=("bf16-mixed",))
    made.runs(folder, "fp32")
    made.runs(folder, "bf16-mixed")
    entry = accept(conclude(folder), folder, "bf16( master = params )", **ADA)
    assert entry.body["recipe"] == "bf16-mixed"


def test_a_candidate_that_fails_is_not_accepted(bad):
    folder, ledger = bad
    before = ledger.head
    with pytest.raises(LedgerError) as caught:
        accept(ledger, folder, "bf16", **ADA)
    assert caught.value.message == (
        "bf16 cannot be accepted: quality.val_loss: fail; memory.peak: fail"
    )
    assert "narrowgate decide override 'bf16' 'quality.val_loss'" in (caught.value.hint or "")
    assert "overridden by Ada" in (caught.value.hint or "")
    assert ledger.head == before


def test_overridden_gates_open_the_way(bad):
    folder, ledger = bad
    override(ledger, folder, "bf16", "memory.peak", by="Grace", reason="there is room")
    with pytest.raises(LedgerError, match=r"accepted: quality\.val_loss: fail\n"):
        accept(ledger, folder, "bf16", **ADA)
    entry = override(ledger, folder, "bf16", "quality.val_loss", by="Ada", reason="a known shift")
    assert (entry.body["gate"], entry.body["outcome"]) == ("quality.val_loss", "fail")
    accepted = accept(ledger, folder, "bf16", by="Grace", reason="both said so")
    assert accepted.body["overridden"] == ["quality.val_loss", "memory.peak"]


def test_a_gate_is_overridden_by_its_owner_alone(bad):
    folder, ledger = bad
    for name in ("Grace", "ada", "Ada Lovelace"):
        with pytest.raises(LedgerError) as caught:
            override(ledger, folder, "bf16", "quality.val_loss", by=name, reason="I say so")
        assert f"is owned by 'Ada' and cannot be overruled by {name!r}" in caught.value.message
        assert caught.value.hint == "ask Ada"


def test_an_override_is_for_one_verdict(bad):
    folder, ledger = bad
    for gate in ("memory.peak", "quality.val_loss"):
        override(ledger, folder, "bf16", gate, **ADA)
    made.runs(folder, "bf16", [4], add=2.0, attempt=2)
    with pytest.raises(PilotError, match=r"attempt-1/\S+ is missing"):
        accept(ledger, folder, "bf16", **ADA)
    conclude(folder)
    with pytest.raises(LedgerError, match="cannot be accepted"):
        accept(ledger, folder, "bf16", **ADA)


def test_gates_that_are_not_there_or_pass_are_not_overridden(good):
    folder, ledger = good
    with pytest.raises(LedgerError, match=r"bf16 has no gate 'quality\.valloss'") as caught:
        override(ledger, folder, "bf16", "quality.valloss", **ADA)
    assert caught.value.hint == "did you mean 'quality.val_loss'?"
    with pytest.raises(LedgerError, match="there is nothing to overrule"):
        override(ledger, folder, "bf16", "quality.val_loss", **ADA)


@pytest.mark.parametrize("act", [accept, reject])
@pytest.mark.parametrize("text", ["", "  \n", "\u200b", "\t\x00"])
def test_a_decision_has_a_name_and_a_reason(act, text, good):
    folder, ledger = good
    with pytest.raises(LedgerError, match="--by is "):
        act(ledger, folder, "bf16", by=text, reason="because")
    with pytest.raises(LedgerError, match="--reason is "):
        act(ledger, folder, "bf16", by="Ada", reason=text)


def test_unknown_candidates_are_named(good):
    folder, ledger = good
    with pytest.raises(LedgerError, match="has no candidate 'fp16'; it has bf16"):
        accept(ledger, folder, "fp16", **ADA)
    with pytest.raises(RecipeError):
        accept(ledger, folder, "bf61", **ADA)


def test_what_was_not_compared_is_rejected_at_most(tmp_path):
    folder = made.pilot(tmp_path)
    made.runs(folder, "fp32")
    made.runs(folder, "bf16", with_plan=False)
    ledger = conclude(folder)
    with pytest.raises(LedgerError, match=r"bf16 was not compared: .*never called"):
        accept(ledger, folder, "bf16", **ADA)
    with pytest.raises(LedgerError, match="was not compared"):
        override(ledger, folder, "bf16", "quality.val_loss", **ADA)
    assert reject(ledger, folder, "bf16", **ADA).kind == "reject"


@pytest.mark.parametrize("act", [accept, reject])
def test_changed_evidence_cannot_be_decided_on(act, good):
    folder, ledger = good
    path = layout.attempt_folder(folder, "bf16", 1, 1) / layout.RESULT
    path.write_bytes(path.read_bytes().replace(b"2.125", b"2.124"))
    with pytest.raises(PilotError, match=r"runs/bf16/1/attempt-1/result\.json was changed"):
        act(ledger, folder, "bf16", **ADA)


def test_a_verdict_that_is_not_the_ledgers_cannot_be_decided_on(good):
    folder, ledger = good
    # All of the folder is of a piece, but it is not what was entered.
    made.runs(folder, "bf16", add=-1.0)
    write_json(folder / layout.VERDICT, judge(folder).to_json())
    with pytest.raises(LedgerError, match="holds another verdict"):
        accept(ledger, folder, "bf16", **ADA)


def test_a_look_that_was_edited_is_not_the_ledgers(good):
    folder, ledger = good
    write_json(folder / layout.VERDICT, judge(folder, lambda **_: 2).to_json())
    with pytest.raises(LedgerError, match="holds another verdict"):
        accept(ledger, folder, "bf16", **ADA)


def test_without_a_verdict_in_the_ledger_there_is_no_decision(good):
    folder, ledger = good
    ledger.path.unlink()
    with pytest.raises(PilotError, match="the ledger knows no pilot"):
        accept(ledger, folder, "bf16", **ADA)
    write_limits(ledger, folder, read_pilot(folder))
    with pytest.raises(LedgerError, match="holds no verdict on bf16"):
        accept(ledger, folder, "bf16", **ADA)


def test_a_broken_ledger_takes_no_decision(good):
    folder, ledger = good
    accept(ledger, folder, "bf16", **ADA)
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join(lines[1:]))
    with pytest.raises(LedgerError, match="line 1 is entry 2"):
        accept(ledger, folder, "bf16", **ADA)


def later(folder, ledger, **changes):
    """Enter a later verdict on the same recipe, changed in what is given."""
    verdict = judge(folder)
    candidate = dataclasses.replace(made.only(verdict), **changes)
    ledger.append("verdict", "a later one", verdict_body(verdict, candidate))


LAPSES = {
    "plan": ({"plan_hash": "q" * 64}, "lapsed by entry 4: another plan ("),
    "code": ({"code": "d" * 64}, f"lapsed by entry 4: other code ({made.CODE[:8]} -> dddddddd)"),
    "torch": ({"torch": "2.14.0"}, "lapsed by entry 4: another torch (2.13.0+cpu -> 2.14.0)"),
    "device": ({"device": "cuda"}, "lapsed by entry 4: another kind of device (cpu -> cuda)"),
    "data": ({"data": {"7": "x", "3": "other"}}, "lapsed by entry 4: other data"),
    "a later fail": ({"outcome": "fail"}, "failed by entry 4"),
    "a later look that is not sure": ({"outcome": "inconclusive"}, ""),
    "data of other seeds": ({"data": {"7": "x"}}, ""),
    "nothing": ({}, ""),
    "a run that never began": ({"plan_hash": None, "code": None, "torch": None}, ""),
    "another recipe": ({"recipe": "fp16", "torch": "2.14.0"}, ""),
}


@pytest.mark.parametrize("name", LAPSES)
def test_an_acceptance_lapses_when_what_was_accepted_changes(name, good):
    changes, told = LAPSES[name]
    folder, ledger = good
    accept(ledger, folder, "bf16", **ADA)
    later(folder, ledger, **changes)
    end = standing(ledger.entries())[3]
    assert end.startswith(told) if told else end == ""


def test_a_verdict_on_another_command_does_not_end_an_acceptance(good, tmp_path):
    folder, ledger = good
    accept(ledger, folder, "bf16", **ADA)
    other = made.pilot(tmp_path / "b", command=("python", "another.py"))
    made.runs(other, "fp32", file="e" * 64)
    made.runs(other, "bf16", file="e" * 64)
    later(other, ledger)
    assert standing(ledger.entries()) == {3: ""}


def test_an_acceptance_ends_with_a_rejection_and_begins_anew(good):
    folder, ledger = good
    accept(ledger, folder, "bf16", **ADA)
    reject(ledger, folder, "bf16", by="Grace", reason="it was slow")
    accept(ledger, folder, "bf16", **ADA)
    assert standing(ledger.entries()) == {3: "rejected by entry 4", 5: ""}


@pytest.mark.parametrize("name", ["config_hash", "seeds", "candidates", "command", "baseline"])
def test_limits_that_were_changed_after_the_pilot_began_are_found(name, good):
    folder, ledger = good
    about = read_json(folder / layout.PILOT)
    if name == "config_hash":
        config = folder / layout.CONFIG
        config.write_text(config.read_text().replace("margin = 0.01", "margin = 0.05"))
        other = sha256(config)
    else:
        other = {"seeds": [0, 1, 2], "candidates": ["fp16"], "command": ["x"], "baseline": "tf32"}[
            name
        ]
    write_json(folder / layout.PILOT, {**about, name: other})
    with pytest.raises(PilotError, match=f"{name} of the pilot {folder.name} was changed"):
        check_limits(ledger.entries(), folder.name, read_pilot(folder))


def test_limits_that_nobody_wrote_down_are_none(good):
    folder, ledger = good
    with pytest.raises(PilotError, match="knows no pilot another"):
        check_limits(ledger.entries(), "another", read_pilot(folder))


def test_seeds_that_were_added_are_written_down_again(good):
    folder, ledger = good
    about = dataclasses.replace(read_pilot(folder), seeds=tuple(range(8)))
    with pytest.raises(PilotError, match="seeds of the pilot"):
        check_limits(ledger.entries(), folder.name, about)
    write_limits(ledger, folder, about)
    check_limits(ledger.entries(), folder.name, about)


def test_a_verdict_of_which_the_ledger_holds_another_is_found(good):
    folder, ledger = good
    verdict = judge(folder)
    check_verdict(ledger.entries(), verdict)
    check_verdict((), verdict)
    changed = dataclasses.replace(verdict, notes=("another",))
    with pytest.raises(PilotError, match="the ledger holds the verdict"):
        check_verdict(ledger.entries(), changed)
