"""What people decide about a candidate, and what it takes for a decision to count.

A candidate is accepted if every gate passes or was overridden by name and with a reason; a gate
that names an owner is overridden by that owner alone. Before anything is written the verdict is
computed again from the folder and looked up in the ledger, so that neither changed evidence nor an
edited verdict can be decided on. Names are what people say they are: nobody is asked for a proof.

An acceptance holds for what was judged. It lapses when a later verdict on the same command and
recipe comes from another plan, other code, another torch, another kind of device or, at a seed that
both have, other data; and it ends when a later verdict fails what was accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from narrowgate.errors import LedgerError, nearest
from narrowgate.pilot.folder import read_pilot
from narrowgate.pilot.judge import recompute
from narrowgate.pilot.ledger import Ledger, check_limits
from narrowgate.plan import parse
from narrowgate.records.decision import LedgerEntry
from narrowgate.records.verdict import CandidateVerdict, Verdict

__all__ = ["accept", "overridden", "override", "reject", "standing"]

_IDENTITY = ("plan_hash", "code", "torch", "device")
_CALLED = {
    "plan_hash": "another plan",
    "code": "other code",
    "torch": "another torch",
    "device": "another kind of device",
}


def accept(ledger: Ledger, folder: Path, recipe: str, *, by: str, reason: str) -> LedgerEntry:
    """Accept a candidate.

    Args:
        ledger: The ledger.
        folder: The pilot's folder.
        recipe: The candidate, in any spelling.
        by: Who accepts it.
        reason: Why.

    Returns:
        The entry.

    Raises:
        LedgerError: A gate neither passes nor was overridden; the name or the reason is empty; or
            the ledger does not hold this verdict.
        PilotError: The folder is not what its verdict rests on.
    """
    said = _said(by, reason)
    verdict, candidate = _found(ledger, folder, recipe)
    waived = overridden(ledger.entries(), verdict, candidate.recipe)
    _refuse_uncompared(candidate)
    open_gates = [g for g in candidate.gates if g.outcome != "pass" and g.gate not in waived]
    if open_gates:
        told = "; ".join(f"{gate.gate}: {gate.outcome}" for gate in open_gates)
        first = open_gates[0]
        raise LedgerError(
            f"{candidate.recipe} cannot be accepted: {told}",
            hint=f"a gate that does not pass can be overridden by {first.owner or 'a person'}, "
            f"with a reason: narrowgate decide override {candidate.recipe!r} {first.gate!r} --by "
            "NAME --reason TEXT",
        )
    used = [gate.gate for gate in candidate.gates if gate.outcome != "pass"]
    body = {**_body(verdict, candidate, said), "overridden": used}
    return ledger.append("accept", verdict.pilot, body)


def reject(ledger: Ledger, folder: Path, recipe: str, *, by: str, reason: str) -> LedgerEntry:
    """Reject a candidate, whatever its gates say.

    Args:
        ledger: The ledger.
        folder: The pilot's folder.
        recipe: The candidate, in any spelling.
        by: Who rejects it.
        reason: Why.

    Returns:
        The entry.

    Raises:
        LedgerError: The name or the reason is empty, or the ledger does not hold this verdict.
        PilotError: The folder is not what its verdict rests on.
    """
    said = _said(by, reason)
    verdict, candidate = _found(ledger, folder, recipe)
    return ledger.append("reject", verdict.pilot, _body(verdict, candidate, said))


def override(
    ledger: Ledger, folder: Path, recipe: str, gate: str, *, by: str, reason: str
) -> LedgerEntry:
    """Overrule a gate of a candidate, for this verdict.

    Args:
        ledger: The ledger.
        folder: The pilot's folder.
        recipe: The candidate, in any spelling.
        gate: The gate's name, such as ``quality.val_loss/json``.
        by: Who overrules it.
        reason: Why.

    Returns:
        The entry.

    Raises:
        LedgerError: There is no such gate, it passes, it is another's, the name or the reason is
            empty, or the ledger does not hold this verdict.
        PilotError: The folder is not what its verdict rests on.
    """
    said = _said(by, reason)
    verdict, candidate = _found(ledger, folder, recipe)
    _refuse_uncompared(candidate)
    gates = {found.gate: found for found in candidate.gates}
    if gate not in gates:
        raise LedgerError(
            f"{candidate.recipe} has no gate {gate!r}; it has {', '.join(gates)}",
            hint=nearest(gate, gates),
        )
    found = gates[gate]
    if found.outcome == "pass":
        raise LedgerError(
            f"{gate} passes for {candidate.recipe}: there is nothing to overrule",
            hint=f"narrowgate decide accept {candidate.recipe!r} --by NAME --reason TEXT",
        )
    if found.owner is not None and found.owner.strip() != said["by"]:
        raise LedgerError(
            f"{gate} is owned by {found.owner!r} and cannot be overruled by {said['by']!r}",
            hint=f"ask {found.owner}",
        )
    body = {**_body(verdict, candidate, said), "gate": gate, "outcome": found.outcome}
    return ledger.append("override", verdict.pilot, body)


def overridden(entries: Sequence[LedgerEntry], verdict: Verdict, recipe: str) -> set[str]:
    """Name the gates that were overruled for exactly this verdict.

    Args:
        entries: The ledger's entries.
        verdict: The verdict.
        recipe: The candidate.
    """
    return {
        entry.body["gate"]
        for entry in entries
        if entry.kind == "override"
        and (entry.body["recipe"], entry.body["verdict_hash"]) == (recipe, verdict.hash)
    }


def standing(entries: Sequence[LedgerEntry]) -> dict[int, str]:
    """Say of each acceptance whether it still holds.

    Args:
        entries: The ledger's entries, the oldest first.

    Returns:
        By the acceptance's number: empty if it holds, else why not and by which entry.
    """
    found = {}
    for entry in entries:
        if entry.kind == "accept":
            ends = (_end(entry, later) for later in entries[entry.number :])
            found[entry.number] = next((why for why in ends if why), "")
    return found


def _end(acceptance: LedgerEntry, later: LedgerEntry) -> str:
    """Say how a later entry ends an acceptance; empty if it does not."""
    old, new = acceptance.body, later.body
    if (new.get("recipe"), new.get("command")) != (old["recipe"], old["command"]):
        return ""
    if later.kind == "reject":
        return f"rejected by entry {later.number}"
    if later.kind != "verdict":
        return ""
    changes = [
        f"{_CALLED[name]} ({_short(old[name])} -> {_short(new[name])})"
        for name in _IDENTITY
        if new[name] is not None and new[name] != old[name]
    ]
    common = [seed for seed in old["data"] if seed in new["data"]]
    if any(old["data"][seed] != new["data"][seed] for seed in common):
        changes.append("other data")
    if changes:
        return f"lapsed by entry {later.number}: {', '.join(changes)}"
    return f"failed by entry {later.number}" if new["outcome"] == "fail" else ""


def _short(value: object) -> str:
    """Cut a hash to what tells it from another."""
    text = str(value)
    return text[:8] if len(text) == 64 else text


def _said(by: str, reason: str) -> dict[str, str]:
    """Refuse a decision that nobody signs or explains."""
    said = {"by": by.strip(), "reason": reason.strip()}
    for name, text in said.items():
        if not any(sign.isprintable() and not sign.isspace() for sign in text):
            raise LedgerError(
                f"--{name} is {text!r}; a decision has a name and a reason",
                hint='narrowgate decide accept bf16 --by "Ada" --reason "passes every gate"',
            )
    return said


def _found(ledger: Ledger, folder: Path, recipe: str) -> tuple[Verdict, CandidateVerdict]:
    """Compute the verdict again, and make sure that it is the one in the ledger."""
    wish = str(parse(recipe))
    verdict = recompute(folder)
    check_limits(ledger.entries(), verdict.pilot, read_pilot(folder))
    candidates = {candidate.recipe: candidate for candidate in verdict.candidates}
    if wish not in candidates:
        raise LedgerError(
            f"the pilot {verdict.pilot} has no candidate {wish!r}; it has {', '.join(candidates)}",
            hint=nearest(wish, candidates),
        )
    known: str | None = None
    for entry in ledger.entries():
        if (entry.kind, entry.pilot) == ("verdict", verdict.pilot) and entry.body["recipe"] == wish:
            known = entry.body["verdict_hash"]
    if known != verdict.hash:
        what = "no verdict" if known is None else f"another verdict ({known[:12]})"
        raise LedgerError(
            f"{ledger.path} holds {what} on {wish} of the pilot {verdict.pilot}; the folder's is "
            f"{verdict.hash[:12]}",
            hint="decide where the pilot ran, or let it judge again: narrowgate pilot --resume",
        )
    return verdict, candidates[wish]


def _refuse_uncompared(candidate: CandidateVerdict) -> None:
    if candidate.outcome is None:
        raise LedgerError(
            f"{candidate.recipe} was not compared: {candidate.error}",
            hint="mend that and run a new pilot; no gate was decided, so none can be overruled",
        )


def _body(verdict: Verdict, candidate: CandidateVerdict, said: Mapping[str, str]) -> dict[str, Any]:
    """Say what a decision is about."""
    return {
        "recipe": candidate.recipe,
        **said,
        **{name: getattr(candidate, name) for name in _IDENTITY},
        "data": dict(candidate.data),
        "command": list(verdict.command),
        "verdict_hash": verdict.hash,
        "evidence_hash": verdict.evidence_hash,
    }
