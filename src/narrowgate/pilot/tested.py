"""From values to a gate's verdict: the test, what it spends, and the sentence that says why."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from narrowgate.pilot.sentences import apart, confidence, named, shown
from narrowgate.pilot.statistics import FEWEST_PAIRS, Decision, alpha_of, decide, num_seeds_for
from narrowgate.pilot.trial import Trial
from narrowgate.records.verdict import GateVerdict, Outcome

__all__ = ["Subject", "tested", "untested"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a gate is decided on.

    Attributes:
        gate: Its name.
        owner: Its owner; None if nobody is named.
        measure: What the values are.
        better: Which direction of the values is better.
        limit: The limit, in the values' unit.
        limit_words: What is to be said of where the limit comes from.
        seeds: The seeds.
        values: One value per seed.
        says: Says a mean in words.
    """

    gate: str
    owner: str | None
    measure: Literal["worse by", "x baseline", "share"]
    better: Literal["lower", "higher"]
    limit: float
    limit_words: str
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    says: Callable[[float], str]

    @property
    def is_ratio(self) -> bool:
        """Whether the values are ratios, tested by their logarithms."""
        return self.measure == "x baseline"

    @property
    def sign(self) -> float:
        """What turns a value's logarithm into a difference, positive where worse."""
        return -1.0 if self.better == "higher" else 1.0

    def to_difference(self, value: float) -> float:
        """Turn a value into what is tested: positive is worse."""
        return self.sign * math.log(value) if self.is_ratio else value

    def to_value(self, difference: float) -> float:
        """Turn what was tested back into the values' unit."""
        if not self.is_ratio or math.isnan(difference):
            return difference
        try:
            return math.exp(self.sign * difference)
        except OverflowError:
            return math.inf

    def verdict(
        self,
        outcome: Outcome,
        reason: str,
        decision: Decision,
        *,
        look: int,
        alpha: float,
        num_seeds_needed: int | None,
    ) -> GateVerdict:
        """Make the verdict.

        Args:
            outcome: The outcome.
            reason: Why.
            decision: The decision, on differences.
            look: The number of the look.
            alpha: What it spends.
            num_seeds_needed: How many seeds are likely to answer.
        """
        bounds = sorted((self.to_value(decision.lower), self.to_value(decision.upper)))
        return GateVerdict(
            gate=self.gate,
            outcome=outcome,
            reason=reason,
            owner=self.owner,
            measure=self.measure,
            better=self.better,
            limit=self.limit,
            seeds=self.seeds,
            values=self.values,
            mean=self.to_value(decision.mean),
            sd=decision.sd,
            lower=bounds[0],
            upper=bounds[1],
            look=look,
            alpha=alpha,
            num_seeds_needed=num_seeds_needed,
        )


def untested(
    trial: Trial, subject: Subject, outcome: Outcome, reason: str, *, mean: float | None = None
) -> GateVerdict:
    """Decide a gate without a test.

    Args:
        trial: The candidate's runs.
        subject: What is decided on.
        outcome: The outcome.
        reason: Why.
        mean: What the values come to together; None: their mean, if all are finite.
    """
    is_whole = all(map(math.isfinite, subject.values))
    differences = [subject.to_difference(value) for value in subject.values] if is_whole else []
    decision = decide(differences, 0.0, None)
    if mean is not None:
        decision = replace(decision, mean=mean, sd=math.nan)
    elif not math.isnan(decision.mean):
        reason = f"{reason}; {subject.says(subject.to_value(decision.mean))} on average"
    return subject.verdict(
        outcome,
        reason,
        decision,
        look=trial.look(subject.gate, subject.seeds, subject.values),
        alpha=math.nan,
        num_seeds_needed=None,
    )


def tested(trial: Trial, subject: Subject) -> GateVerdict:
    """Decide a gate by a test of its values, all of them finite.

    Args:
        trial: The candidate's runs.
        subject: What is decided on.
    """
    num = len(subject.values)
    look = trial.look(subject.gate, subject.seeds, subject.values)
    alpha = alpha_of(look) if num >= FEWEST_PAIRS else None
    margin = subject.limit if not num else subject.to_difference(subject.limit)
    decision = decide([subject.to_difference(v) for v in subject.values], margin, alpha)
    outcome, needed = decision.outcome, None
    if alpha is None:
        reason, needed = _too_few(trial, subject, decision)
    else:
        reason = _told(subject, decision, alpha)
        if outcome == "inconclusive":
            needed = num_seeds_for(decision, margin, alpha_of(look + 1))
            if needed is not None:
                reason += f"; about {needed} seeds in all are likely to answer"
            elif decision.sd:
                reason += "; not even 1,000 seeds are likely to answer"
    if trial.unpaired and outcome != "fail":
        outcome = "inconclusive"
        reason += f"; without a pair for {named(trial.unpaired)} it cannot pass"
    return subject.verdict(
        outcome,
        reason,
        decision,
        look=look,
        alpha=math.nan if alpha is None else alpha,
        num_seeds_needed=needed,
    )


def _too_few(trial: Trial, subject: Subject, decision: Decision) -> tuple[str, int | None]:
    """Say that there are too few pairs, and how many there have to be."""
    num = len(subject.values)
    if not num:
        reason = f"no seed has a pair of results; at least {FEWEST_PAIRS} are needed"
    else:
        reason = (
            f"{subject.says(subject.to_value(decision.mean))} with {named(subject.seeds)}; at "
            f"least {FEWEST_PAIRS} pairs are needed"
        )
    return reason, FEWEST_PAIRS if len(trial.seeds) < FEWEST_PAIRS else None


def _told(subject: Subject, decision: Decision, alpha: float) -> str:
    """Say what was seen and how it lies to the limit."""
    num = len(subject.values)
    noun = "limit" if subject.is_ratio else "margin"
    mean = subject.to_value(decision.mean)
    lower, upper = sorted((subject.to_value(decision.lower), subject.to_value(decision.upper)))
    if not decision.sd:
        value, limit = apart(mean, subject.limit)
        how = "above" if mean > subject.limit else "below" if mean < subject.limit else "exactly"
        return (
            f"{subject.says(mean)} with each of {num} seeds (sd 0): {value} is {how} the {noun} "
            f"{limit}{subject.limit_words}"
        )
    sd = f"{shown(100.0 * decision.sd)} %" if subject.is_ratio else shown(decision.sd)
    head = f"{subject.says(mean)} on average over {num} seeds (sd {sd}); "
    sure = f"({confidence(alpha)} confidence)"
    if decision.outcome == "inconclusive":
        low, high, limit = apart(lower, upper, subject.limit)
        return (
            f"{head}the {noun} {limit}{subject.limit_words} lies within the bounds {low} and "
            f"{high} {sure}"
        )
    is_upper = (decision.outcome == "pass") == (subject.better == "lower")
    bound, limit = apart(upper if is_upper else lower, subject.limit)
    which, how = ("upper", "below") if is_upper else ("lower", "above")
    return (
        f"{head}the {which} bound {bound} {sure} is {how} the {noun} {limit}{subject.limit_words}"
    )
