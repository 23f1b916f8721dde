"""Does the verdict keep its promises? Thousands of simulated pilots, through the real gates.

Every limit here is one that the rule has to keep and that a wrong rule breaks: the same body runs
over rules that are wrong, and has to find it. 2,000 pilots at a true rate of 2.5 % have a standard
error of 0.35 percentage points, so 3.6 % is three of them away.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from narrowgate.pilot import statistics, tested
from narrowgate.pilot.config import PilotConfig, QualityLimit
from narrowgate.pilot.gates import gates_of
from narrowgate.pilot.ledger import looks_of, values_hash
from narrowgate.records.decision import LedgerEntry
from pilot import made

# A margin of a power of two and a baseline of 0: differences are the numbers drawn.
NUM_PILOTS, NUM_SEEDS, MARGIN = 2_000, 5, 2.0**-7
CONFIG = PilotConfig(
    baseline="fp32",
    candidates=("bf16",),
    seeds=tuple(range(NUM_SEEDS)),
    timeout_s=1.0,
    data_order="same",
    quality=(
        QualityLimit(
            name="val_loss", better="lower", margin=MARGIN, relative=False, owner=None, slices={}
        ),
    ),
    speed=None,
    memory=None,
    stability=None,
    cost=None,
)
BASELINE = [made.measured("fp32", seed, {"val_loss": 0.0}) for seed in range(32)]


def gate_of(differences, looks=lambda **_: 1):
    """The verdict of the quality gate on one simulated pilot."""
    runs = [made.measured("bf16", seed, {"val_loss": d}) for seed, d in enumerate(differences)]
    trial = made.trial(BASELINE[: len(runs)], runs, looks=looks)
    return gates_of(trial, CONFIG, {"val_loss": ()})[0]


def shares(draw, true_difference):
    """How often each outcome came, of 2,000 pilots with a standard deviation of half the margin."""
    differences = draw.normal(true_difference, MARGIN / 2, size=(NUM_PILOTS, NUM_SEEDS))
    counts = Counter(gate_of(row).outcome for row in differences.tolist())
    return {name: counts[name] / NUM_PILOTS for name in ("pass", "fail")}


def broken_promises():
    """The promises that the rule in force breaks, each with what was seen."""
    draw = np.random.default_rng(20261201)
    at_margin, equal, twice = (shares(draw, share * MARGIN) for share in (1, 0, 2))
    promises = {
        f"at the margin at most 3.6 % pass: {at_margin['pass']:.1%}": at_margin["pass"] <= 0.036,
        f"without a difference 88 % pass: {equal['pass']:.1%}": equal["pass"] >= 0.88,
        f"at twice the margin none pass: {twice['pass']:.1%}": twice["pass"] == 0,
        f"at twice the margin 88 % fail: {twice['fail']:.1%}": twice["fail"] >= 0.88,
    }
    for value, outcome in [
        (float(np.nextafter(MARGIN, 0)), "pass"),
        (MARGIN, "inconclusive"),
        (float(np.nextafter(MARGIN, 1)), "fail"),
        (0.0, "pass"),
    ]:
        found = gate_of([value] * NUM_SEEDS).outcome
        promises[f"sd = 0 decides by the mean: {value!r} is {found}"] = found == outcome
    return [promise for promise, is_kept in promises.items() if not is_kept]


def not_significant(differences, margin, alpha):
    """Takes "not significantly worse" for proof."""
    found = statistics.decide(differences, 0.0, alpha)
    return found if found.outcome == "fail" else replace(found, outcome="pass")


def without_shift(differences, margin, alpha):
    """Forgets the margin, so that a candidate has to be better than the baseline."""
    return statistics.decide(differences, 0.0, alpha)


def bootstrap(differences, margin, alpha):
    """Takes the bounds from scipy's BCa bootstrap."""
    plain = statistics.decide(differences, margin, alpha)
    if not plain.sd:
        return plain
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of resamples that are all alike
        lower, upper = stats.bootstrap(
            (differences,),
            np.mean,
            confidence_level=1 - 2 * alpha,
            n_resamples=199,
            rng=np.random.default_rng(1),
        ).confidence_interval
    outcome = "pass" if upper < margin else "fail" if lower > margin else "inconclusive"
    return replace(plain, outcome=outcome, lower=float(lower), upper=float(upper))


def test_the_rule_keeps_its_promises():
    assert broken_promises() == []


@pytest.mark.parametrize(
    ("rule", "promise"),
    [
        (not_significant, "at the margin at most 3.6 % pass"),
        (without_shift, "without a difference 88 % pass"),
        (bootstrap, "at the margin at most 3.6 % pass"),
    ],
)
def test_a_wrong_rule_breaks_a_promise(rule, promise, monkeypatch):
    monkeypatch.setattr(tested, "decide", rule)
    broken = broken_promises()
    assert any(line.startswith(promise) for line in broken), broken


def share_of_impatient_analysts():
    """How many find a pass at a true difference equal to the margin, adding seeds until they do.

    The looks are counted from the ledger that their verdicts make.
    """
    draw = np.random.default_rng(20261202)
    passed = 0
    for row in draw.normal(MARGIN, MARGIN / 2, size=(NUM_PILOTS, 24)).tolist():
        entries = []
        for num in (3, 5, 8, 12, 17, 24):
            gate = gate_of(row[:num], looks_of(entries, made.COMMAND))
            if gate.outcome == "pass":
                passed += 1
                break
            entries.append(entry_of(gate))
    return passed / NUM_PILOTS


def entry_of(gate):
    """What the ledger keeps of a gate that was looked at."""
    told = {
        "gate": gate.gate,
        "alpha": gate.alpha,
        "values_hash": values_hash(gate.seeds, gate.values),
    }
    body = {
        "recipe": "bf16",
        "plan_hash": "p" * 64,
        "code": made.CODE,
        "command": list(made.COMMAND),
        "gates": [told],
    }
    return LedgerEntry(
        number=1, time="", kind="verdict", pilot=made.NAME, body=body, previous="", hash=""
    )


def test_an_analyst_who_looks_until_it_passes_is_held_back():
    assert share_of_impatient_analysts() <= 0.065


def test_without_the_spending_rule_such_an_analyst_gets_through(monkeypatch):
    monkeypatch.setattr(tested, "alpha_of", lambda look: 0.025)
    assert share_of_impatient_analysts() > 0.065
