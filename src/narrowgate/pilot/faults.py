"""What makes runs incomparable, so that there is no verdict: found here, and named.

A script that ignores its seed spoils the whole pilot. A candidate that had another plan, no plan,
other data, another torch or another kind of device than it ought to is an error of its own.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from narrowgate.errors import PilotError
from narrowgate.pilot.config import PilotConfig
from narrowgate.pilot.trial import Measured

__all__ = ["check_seeds_differ", "fault_of"]


def check_seeds_differ(recipe: str, runs: Mapping[int, Measured]) -> None:
    """Refuse a baseline that does the same whatever its seed.

    Args:
        recipe: The baseline.
        runs: Its runs by seed.

    Raises:
        PilotError: Two of them are equal, bit for bit.
    """
    seen: dict[str, int] = {}
    for seed, measured in runs.items():
        # Without losses only the result is left, and two seeds may well reach one accuracy.
        if not any(map(math.isfinite, measured.run.steps.loss)):
            continue
        other = seen.setdefault(measured.summary.curve, seed)
        if other != seed:
            raise PilotError(
                f"the runs of the baseline {recipe!r} with seeds {other} and {seed} are equal, bit "
                "for bit: the script ignores its seed",
                hint="pass it on: narrowgate pilot -- python train.py --seed {seed}, or read it "
                "in the script with ng.seed(); then begin a new pilot",
            )


def fault_of(
    recipe: str,
    reference: str,
    baseline: Mapping[int, Measured],
    candidate: Mapping[int, Measured],
    config: PilotConfig,
) -> str:
    """Say why a candidate cannot be compared with the baseline.

    Args:
        recipe: The candidate.
        reference: The baseline.
        baseline: The baseline's runs by seed.
        candidate: The candidate's runs by seed.
        config: The limits.

    Returns:
        The first reason found; empty if there is none.
    """
    others = [(reference, run) for run in baseline.values()]
    mine = [(recipe, run) for run in candidate.values()]
    runs = [*others, *mine]
    is_same = config.data_order == "same"
    faults = itertools.chain(
        _misplaced(runs),
        _mixed("pilots", runs, _pilot),
        _mixed("versions of torch", runs, _torch),
        _mixed("kinds of device", runs, _device),
        _mixed("plans", mine, _plan_hash),
        _mixed("plans", others, _plan_hash),
        _data(recipe, baseline, candidate) if is_same else (),
    )
    return next(faults, "")


def _misplaced(runs: Sequence[tuple[str, Measured]]) -> Iterator[str]:
    """Name runs that did not do what their place says."""
    for recipe, measured in runs:
        run, who = measured.run, f"{recipe}, seed {measured.seed}"
        if (run.request.recipe, run.request.seed) != (recipe, measured.seed):
            yield f"{who}: its folder holds a run of {run.request.recipe}, seed {run.request.seed}"
        elif run.plan is None:
            yield f"{who}: ng.prepare was never called, so the recipe had no effect"
        elif (planned := _recipe_of(run.plan)) != recipe:
            yield f"{who}: ng.prepare was given the recipe {planned!r}"


def _recipe_of(plan: str) -> str:
    try:
        return str(json.loads(plan)["recipe"])
    except (ValueError, LookupError, TypeError):
        return "of a damaged plan"


def _plan_hash(measured: Measured) -> str:
    return str(measured.run.plan_hash)[:12]


def _pilot(measured: Measured) -> str:
    return str(measured.run.request.pilot)


def _torch(measured: Measured) -> str:
    return str(measured.run.environment.get("torch"))


def _device(measured: Measured) -> str:
    return measured.result.device


def _mixed(
    what: str, runs: Sequence[tuple[str, Measured]], fact: Callable[[Measured], str]
) -> Iterator[str]:
    """Name a fact in which runs differ that have to be alike."""
    first: dict[str, str] = {}
    for recipe, measured in runs:
        first.setdefault(fact(measured), f"{recipe}, seed {measured.seed}")
    if len(first) > 1:
        yield f"its runs had different {what}: " + "; ".join(
            f"{who}: {value}" for value, who in first.items()
        )


def _data(
    recipe: str, baseline: Mapping[int, Measured], candidate: Mapping[int, Measured]
) -> Iterator[str]:
    """Name the first step at which a candidate was given other data than the baseline."""
    for seed, measured in candidate.items():
        if seed not in baseline:
            continue
        theirs, mine = baseline[seed].run.steps, measured.run.steps
        given = dict(zip(zip(theirs.optimizer, theirs.step, strict=True), theirs.data, strict=True))
        for optimizer, step, data in zip(mine.optimizer, mine.step, mine.data, strict=True):
            other = given.get((optimizer, step))
            if data is not None and other is not None and data != other:
                yield (
                    f"{recipe}, seed {seed}: from step {step} on it was given other data than the "
                    "baseline; make the order of the data depend on the seed alone, or, where "
                    'data depend on the model, set data_order = "free"'
                )
                return
