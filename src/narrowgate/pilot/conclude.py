"""What follows the runs: the verdict, written beside them and entered into the ledger.

It can be cut off anywhere and done again: the same values are the same look, and what the ledger
has already is not entered twice.
"""

from __future__ import annotations

from typing import Any

from narrowgate.pilot.begin import Pilot
from narrowgate.pilot.disk import disk_faults_told
from narrowgate.pilot.folder import read_pilot
from narrowgate.pilot.judge import judge
from narrowgate.pilot.ledger import Ledger, check_limits, looks_of, values_hash
from narrowgate.records import layout
from narrowgate.records.files import write_json
from narrowgate.records.run import Run
from narrowgate.records.verdict import CandidateVerdict, Verdict

__all__ = ["conclude", "verdict_body"]


def conclude(pilot: Pilot, keep: dict[tuple[str, int], Run] | None = None) -> Verdict:
    """Judge a pilot whose runs are over, and write the verdict down.

    Args:
        pilot: The pilot, locked.
        keep: Gets the runs by recipe and seed, for who draws them.

    Returns:
        The verdict, as in verdict.json.

    Raises:
        PilotError: The runs cannot be compared, or the disk is full.
        LedgerError: The ledger is damaged.
    """
    ledger = Ledger(pilot.ledger)
    entries = ledger.entries()
    check_limits(entries, pilot.folder.name, read_pilot(pilot.folder))
    verdict = judge(pilot.folder, looks_of(entries, pilot.record.command), keep=keep)
    name = pilot.folder.name
    entered = {
        (entry.body["recipe"], entry.body["verdict_hash"])
        for entry in entries
        if entry.kind == "verdict" and entry.pilot == name
    }
    with disk_faults_told(pilot.folder):
        write_json(pilot.folder / layout.VERDICT, verdict.to_json())
        for candidate in verdict.candidates:
            if (candidate.recipe, verdict.hash) not in entered:
                ledger.append("verdict", name, verdict_body(verdict, candidate))
    return verdict


def verdict_body(verdict: Verdict, candidate: CandidateVerdict) -> dict[str, Any]:
    """Say in the ledger what was found, and by hashes what it rests on."""
    return {
        "recipe": candidate.recipe,
        "outcome": candidate.outcome,
        "error": candidate.error,
        "gates": [
            {
                "gate": gate.gate,
                "outcome": gate.outcome,
                "look": gate.look,
                "alpha": gate.alpha,
                "limit": gate.limit,
                "values_hash": values_hash(gate.seeds, gate.values),
            }
            for gate in candidate.gates
        ],
        "verdict_hash": verdict.hash,
        "evidence_hash": verdict.evidence_hash,
        "plan_hash": candidate.plan_hash,
        "code": candidate.code,
        "torch": candidate.torch,
        "device": candidate.device,
        "data": dict(candidate.data),
        "command": list(verdict.command),
    }
