"""What a pilot found: gates decided, candidates judged. Plain data, written by the pilot's judge.

An outcome is ``pass``, ``fail`` or ``inconclusive``. A candidate passes if all its gates pass,
fails if one fails, and is inconclusive otherwise. One that could not be compared at all has an
error in the place of an outcome.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from narrowgate.errors import RunError
from narrowgate.records.files import dumps, number

__all__ = ["CandidateVerdict", "GateVerdict", "Outcome", "Verdict"]

Outcome = Literal["pass", "fail", "inconclusive"]

_NUMBERS = ("limit", "mean", "sd", "lower", "upper", "alpha")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateVerdict:
    """One gate, decided.

    Attributes:
        gate: Its name: ``quality.val_loss``, ``quality.val_loss/json`` (a slice),
            ``speed.median``, ``speed.p95``, ``memory.peak``, ``stability.finite``,
            ``stability.skipped``, ``cost.total``.
        outcome: Whether it passed.
        reason: Why, in a sentence with the numbers.
        owner: Who owns it; None if nobody is named.
        measure: What the values are: ``worse by`` (candidate against baseline in the metric's unit,
            positive is worse), ``x baseline`` (a ratio to the baseline), ``share``.
        better: Which direction of the values is better.
        limit: The limit, in the values' unit.
        seeds: The seeds that were compared.
        values: One value per seed.
        mean: Their mean; of ratios the geometric one. NaN without values.
        sd: Their standard deviation; of ratios that of their logarithms. NaN if not taken.
        lower: Lower one-sided bound of the mean at confidence 1 − alpha; NaN if none was taken.
        upper: Upper one, likewise.
        look: The number of this look at the same gate, from 1.
        alpha: What this look spends: 0.05 / 2^look. NaN where no test was made.
        num_seeds_needed: Seeds in all after which an answer is likely; None if it was answered or
            cannot be said.
    """

    gate: str
    outcome: Outcome
    reason: str
    owner: str | None
    measure: Literal["worse by", "x baseline", "share"]
    better: Literal["lower", "higher"]
    limit: float
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    mean: float
    sd: float
    lower: float
    upper: float
    look: int
    alpha: float
    num_seeds_needed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateVerdict:
    """One candidate, judged.

    Attributes:
        recipe: The recipe in normal form.
        outcome: Its outcome; None if it could not be compared.
        error: Why it could not be compared; empty if it could.
        gates: Its gates, in the order of the configuration.
        plan_hash: Hash of its plan; None if no run got as far.
        code: Hash of the code that the runs loaded; None if no run got as far.
        torch: Version of torch; None if no run got as far.
        device: Kind of device; None likewise.
        data: For each seed, as text, the hash of the data that the models were given.
        num_attempts: Attempts at its runs, those that were interrupted or failed included.
        num_runs: Runs that gave a result.
    """

    recipe: str
    outcome: Outcome | None
    error: str
    gates: tuple[GateVerdict, ...]
    plan_hash: str | None
    code: str | None
    torch: str | None
    device: str | None
    data: Mapping[str, str]
    num_attempts: int
    num_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a pilot found.

    Attributes:
        pilot: Name of the pilot's folder.
        baseline: The baseline's recipe.
        command: The command, with secrets masked.
        config_hash: SHA-256 of the pilot's config.toml.
        seeds: The seeds that were asked for.
        candidates: The candidates, in the order of the configuration.
        notes: What a reader should know: faults of files, runs that were left out.
        evidence: SHA-256 of every file that the verdict rests on, by its path in the folder.
    """

    pilot: str
    baseline: str
    command: tuple[str, ...]
    config_hash: str
    seeds: tuple[int, ...]
    candidates: tuple[CandidateVerdict, ...]
    notes: tuple[str, ...]
    evidence: Mapping[str, str]

    @property
    def outcome(self) -> Outcome | None:
        """All candidates' outcome, fail before inconclusive; None if one was not comparable."""
        outcomes = [candidate.outcome for candidate in self.candidates]
        if None in outcomes:
            return None
        if "fail" in outcomes:
            return "fail"
        return "inconclusive" if "inconclusive" in outcomes else "pass"

    @property
    def evidence_hash(self) -> str:
        """SHA-256 over the evidence's paths and hashes."""
        return hashlib.sha256(dumps(sorted(self.evidence.items())).encode()).hexdigest()

    @property
    def hash(self) -> str:
        """SHA-256 over all of the verdict."""
        return hashlib.sha256(dumps(self.to_json()).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Give the object for verdict.json, without its schema."""
        # Field by field: asdict copies every string of the evidence, at 30 times the cost.
        candidates = [
            {**_fields(candidate), "gates": [_fields(gate) for gate in candidate.gates]}
            for candidate in self.candidates
        ]
        return {**_fields(self), "candidates": candidates}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Read what `to_json` gave.

        Args:
            data: The object, as read from JSON.

        Raises:
            RunError: Something is missing.
        """
        try:
            candidates = tuple(_candidate(entry) for entry in data["candidates"])
            return cls(
                pilot=data["pilot"],
                baseline=data["baseline"],
                command=tuple(data["command"]),
                config_hash=data["config_hash"],
                seeds=tuple(data["seeds"]),
                candidates=candidates,
                notes=tuple(data["notes"]),
                evidence=dict(data["evidence"]),
            )
        except (KeyError, TypeError) as error:
            raise RunError(f"this is no verdict: {error}") from error


def _fields(value: Verdict | CandidateVerdict | GateVerdict) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _candidate(data: Mapping[str, Any]) -> CandidateVerdict:
    values = {field.name: data[field.name] for field in fields(CandidateVerdict)}
    return CandidateVerdict(**{**values, "gates": tuple(_gate(g) for g in data["gates"])})


def _gate(data: Mapping[str, Any]) -> GateVerdict:
    values = {field.name: data[field.name] for field in fields(GateVerdict)}
    for name in _NUMBERS:
        values[name] = math.nan if values[name] is None else number(values[name])
    values["values"] = tuple(number(value) for value in values["values"])
    return GateVerdict(**{**values, "seeds": tuple(values["seeds"])})
