"""What makes runs incomparable, so that there is no verdict: found here, and named.

A script that ignores its seed spoils the whole pilot. A candidate that had another plan, no plan,
other data, another torch or another kind of device than it ought to is an error of its own.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from narrowgate.errors import PilotError
from narrowgate.pilot.config import PilotConfig
from narrowgate.pilot.trial import Measured
from narrowgate.records.run import Steps

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
        # Of a run that recorded nothing on its way only the result is left, and two seeds may well
        # reach one accuracy.
        steps = measured.run.steps
        if not any(map(math.isfinite, (*steps.loss, *steps.grad_norm))) and not any(steps.data):
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
        elif not len(run.steps):
            yield (
                f"{who}: the optimizer that ng.prepare returned made no step, so that nothing is "
                "known of the recipe"
            )
        elif not measured.result.took_effect:
            yield (
                f"{who}: the prepared model's forward was never entered in training, so the recipe "
                "had no effect; call the model itself, or its methods inside of ng.autocast(model)"
            )


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
        theirs = _by_place(baseline[seed].run.steps)
        for (optimizer, place), data in _by_place(measured.run.steps).items():
            other = theirs.get((optimizer, place))
            if data is not None and other is not None and data != other:
                yield (
                    f"{recipe}, seed {seed}: from step {place} on its model was given other data "
                    "than the baseline's; make the data depend on the seed alone, or, where they "
                    "depend on the model (a state that is carried on, a GAN, reinforcement "
                    'learning), set data_order = "free"'
                )
                return


def _by_place(steps: Steps) -> dict[tuple[int, int], int | None]:
    """Give the checksums by optimizer and by how many steps it had made, this one included."""
    made: Counter[int] = Counter()
    found = {}
    for optimizer, data in zip(steps.optimizer, steps.data, strict=True):
        made[optimizer] += 1
        found[optimizer, made[optimizer]] = data
    return found
