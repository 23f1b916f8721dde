"""What a verdict says in words, the same on the page and in the terminal.

An outcome is never shown by its colour alone: a symbol and a word go with it. The numbers of a gate
are its mean, the range that its two one-sided bounds enclose, and the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from narrowgate.records import CandidateVerdict, GateVerdict, LedgerEntry, Outcome
from narrowgate.report.text import fixed, format_share

__all__ = [
    "SYMBOLS",
    "WORDS",
    "Decision",
    "decided_by",
    "decisions_of",
    "gate_label",
    "limit_text",
    "overrides_of",
    "range_text",
    "slice_of",
    "value_in_unit",
    "value_text",
]

#: What stands beside the word, where colours are not seen or not printed.
SYMBOLS: dict[Outcome | None, str] = {"pass": "✓", "fail": "✗", "inconclusive": "?", None: "!"}
WORDS: dict[Outcome | None, str] = {
    "pass": "pass",
    "fail": "fail",
    "inconclusive": "inconclusive",
    None: "not compared",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a person wrote into the ledger about a candidate.

    Attributes:
        time: When, UTC.
        kind: ``accept``, ``reject`` or ``override``.
        recipe: The candidate.
        gate: The gate that was overridden; empty for the others.
        by: Who.
        reason: Why.
        number: Place of the entry in the ledger.
    """

    time: str
    kind: str
    recipe: str
    gate: str
    by: str
    reason: str
    number: int


def decisions_of(entries: Sequence[LedgerEntry], pilot: str) -> list[Decision]:
    """Find what people decided about a pilot, in the order in which they did.

    Args:
        entries: The ledger.
        pilot: Name of the pilot's folder.
    """
    found = []
    for entry in entries:
        if entry.pilot == pilot and entry.kind in ("accept", "reject", "override"):
            said = {key: str(entry.body.get(key, "")) for key in ("recipe", "gate", "by", "reason")}
            found.append(Decision(time=entry.time, kind=entry.kind, number=entry.number, **said))
    return found


def overrides_of(decisions: Sequence[Decision], recipe: str) -> dict[str, Decision]:
    """Find the overridden gates of a candidate.

    Args:
        decisions: All decisions.
        recipe: The candidate.

    Returns:
        The last override by gate.
    """
    return {d.gate: d for d in decisions if d.kind == "override" and d.recipe == recipe}


def slice_of(gate: GateVerdict) -> tuple[str, str] | None:
    """Split the name of a slice's gate.

    Args:
        gate: Any gate.

    Returns:
        Metric and slice; None if the gate is no slice's.
    """
    name = gate.gate.removeprefix("quality.")
    if name == gate.gate or "/" not in name:
        return None
    metric, _, part = name.partition("/")
    return metric, part


_LABELS = {
    "speed.median": "Speed: median step",
    "speed.p95": "Speed: slow steps (95th percentile)",
    "memory.peak": "Memory: peak",
    "stability.finite": "Stability: runs with non-finite results",
    "stability.skipped": "Stability: skipped steps",
    "cost.total": "Cost: whole runs",
}


def gate_label(gate: str) -> str:
    """Say what a gate is about.

    Args:
        gate: Its name.
    """
    if gate.startswith("quality."):
        return "Quality: " + gate.removeprefix("quality.")
    return _LABELS.get(gate, gate)


def value_in_unit(gate: GateVerdict, value: float) -> str:
    """Write a value as a gate's other numbers are written, to the decimals that its limit asks for.

    Args:
        gate: The gate.
        value: The value.

    Returns:
        ``+0.0123``, ``0.620×``, ``1.2 %``.
    """
    if gate.measure == "share":
        return format_share(value)
    if gate.measure == "x baseline":
        return f"{fixed(value, _decimals(gate))}×"
    return ("+" if value > 0 else "") + fixed(value, _decimals(gate))


def _decimals(gate: GateVerdict) -> int:
    """Choose as many decimals as the limit asks for, more where a bound would look equal to it."""
    least = 3
    if gate.measure == "worse by" and 0 < gate.limit < math.inf:
        least = max(0, 2 - math.floor(math.log10(gate.limit)))
    others = [v for v in (gate.mean, gate.lower, gate.upper) if v != gate.limit]
    for decimals in range(least, least + 4):
        if all(fixed(v, decimals) != fixed(gate.limit, decimals) for v in others):
            return decimals
    return least + 4


def value_text(gate: GateVerdict) -> str:
    """Write a gate's mean in its unit.

    Args:
        gate: The gate.

    Returns:
        ``+0.0123``, ``0.62×``, ``1.2 %``; ``no value`` where nothing was compared.
    """
    # A metric may well be NaN; a ratio is where one of its sides is not known.
    is_unknown = gate.measure == "x baseline" and math.isnan(gate.mean)
    return "no value" if not gate.values or is_unknown else value_in_unit(gate, gate.mean)


def range_text(gate: GateVerdict) -> str:
    """Write the range between a gate's two bounds.

    Args:
        gate: The gate.

    Returns:
        ``−0.002 to +0.011``; empty where none was taken.
    """
    if math.isnan(gate.lower) or math.isnan(gate.upper):
        return ""
    return f"{value_in_unit(gate, gate.lower)} to {value_in_unit(gate, gate.upper)}"


def limit_text(gate: GateVerdict) -> str:
    """Write a gate's limit.

    Args:
        gate: The gate.

    Returns:
        ``< +0.05``, ``≥ 1.200×``, ``≤ 1 %``.
    """
    limit = value_in_unit(gate, gate.limit)
    if gate.measure == "worse by":
        return f"< {limit}"
    return f"{'≤' if gate.better == 'lower' else '≥'} {limit}"


def _room(gate: GateVerdict) -> float:
    """Say how far a passed gate was from its limit, in widths of its range: 1 is just enough."""
    logs = gate.measure == "x baseline"
    bound = gate.upper if gate.better == "lower" else gate.lower
    if math.isnan(bound) or (logs and min(bound, gate.mean, gate.limit) <= 0):
        return math.nan
    mean, bound, limit = (math.log(v) if logs else v for v in (gate.mean, bound, gate.limit))
    return math.inf if bound == mean else (limit - mean) / (bound - mean)


def decided_by(candidate: CandidateVerdict) -> str:
    """Say in a sentence or two what decided a candidate.

    Args:
        candidate: The candidate.

    Returns:
        The error; the reason of the first gate that failed, else of the first that is open, with
        the number of the others like it; of a passed one, the gate that came closest to its limit.
    """
    if candidate.outcome is None:
        return candidate.error
    same = [gate for gate in candidate.gates if gate.outcome == candidate.outcome]
    num = len(candidate.gates)
    if candidate.outcome == "pass":
        near = [gate for gate in same if not math.isnan(_room(gate))]
        text = f"All {num} gates passed."
        if near:
            closest = min(near, key=_room)
            name = gate_label(closest.gate)
            text = f"All {num} gates passed; closest to its limit: {name}, {closest.reason}."
        return text
    if not same:
        return f"No gate says why: {num} gates."
    others = len(same) - 1
    word = "failed" if candidate.outcome == "fail" else "could not be decided"
    more = f" {others} more {'gate' if others == 1 else 'gates'} {word}." if others else ""
    return f"{gate_label(same[0].gate)}: {same[0].reason}.{more}"
