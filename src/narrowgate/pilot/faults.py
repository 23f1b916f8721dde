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
from narrowgate.pilot.sentences import named
from narrowgate.pilot.trial import Measured
from narrowgate.records.run import Steps
from narrowgate.records.summary import varies

__all__ = ["check_seeds_differ", "fault_of", "unchecked"]

#: What a run's environment has to have in common with the others', and what it is called.
_FACTS = {
    "python": "versions of Python",
    "cuda": "versions of CUDA",
    "device_name": "devices",
    "processor": "processors",
    "cores": "numbers of cores",
    "threads": "numbers of threads",
}


def check_seeds_differ(recipe: str, runs: Mapping[int, Measured]) -> None:
    """Refuse a baseline that does the same whatever its seed.

    Args:
        recipe: The baseline.
        runs: Its runs by seed.

    Raises:
        PilotError: Two of them are equal, bit for bit.
    """
    curves: dict[str, int] = {}
    for seed, measured in runs.items():
        # Of a run that recorded nothing on its way only the result is left, and two seeds may well
        # reach one accuracy.
        steps = measured.run.steps
        seen = any(map(math.isfinite, (*steps.loss, *steps.grad_norm)))
        if not seen and not any(value is not None for value in (*steps.data, *steps.floats)):
            continue
        other = curves.setdefault(measured.summary.curve, seed)
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
        *(_mixed(what, runs, _fact(name)) for name, what in _FACTS.items()),
        _edited(runs),
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


def _fact(name: str) -> Callable[[Measured], str]:
    return lambda measured: str(measured.run.environment.get(name))


def _edited(runs: Sequence[tuple[str, Measured]]) -> Iterator[str]:
    """Name a file of the code that was not the same in two runs which loaded it."""
    first: dict[str, tuple[str, str]] = {}
    for recipe, measured in runs:
        who = f"{recipe}, seed {measured.seed}"
        for place, found in measured.result.files.items():
            other, hashed = first.setdefault(place, (who, found))
            if hashed != found:
                yield (
                    f"{place} was edited between its runs: {who} loaded another than {other}; "
                    "what was run before belongs to another pilot"
                )


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
        steps = baseline[seed].run.steps
        theirs, has_order = _by_place(steps), varies(steps.data)
        for place, (whole, floats) in _by_place(measured.run.steps).items():
            other_whole, other_floats = theirs.get(place, (None, None))
            if _differ(whole, other_whole) or (
                # Beside whole numbers that tell the order, floats may be the model's own.
                _differ(floats, other_floats)
                and not (has_order and whole is not None and whole == other_whole)
            ):
                yield (
                    f"{recipe}, seed {seed}: from step {place[1]} on its model was given other "
                    "data than the baseline's; make the data depend on the seed alone, or, where "
                    "they depend on the model (a state that is carried on, a GAN, reinforcement "
                    'learning), set data_order = "free"'
                )
                return


def unchecked(
    recipe: str, baseline: Mapping[int, Measured], candidate: Mapping[int, Measured]
) -> str:
    """Say that nobody could compare a candidate's data with the baseline's.

    Args:
        recipe: The candidate.
        baseline: The baseline's runs by seed.
        candidate: The candidate's runs by seed.

    Returns:
        A note; empty if at least one step of each pair was compared.
    """
    missed = []
    for seed in (seed for seed in candidate if seed in baseline):
        theirs = _by_place(baseline[seed].run.steps)
        mine = _by_place(candidate[seed].run.steps)
        pairs = [
            pair
            for place in mine
            if place in theirs
            for pair in zip(mine[place], theirs[place], strict=True)
        ]
        if all(None in pair for pair in pairs):
            missed.append(seed)
    if not missed:
        return ""
    return (
        f"{recipe}: that its data are the baseline's was not checked with {named(missed)}: no "
        "checksums were taken, as in a compiled forward, or the inputs were cast to 16 bits"
    )


def _differ(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one != other


def _by_place(steps: Steps) -> dict[tuple[int, int], tuple[int | None, int | None]]:
    """Give the checksums by optimizer and by how many steps it had made, this one included."""
    made: Counter[int] = Counter()
    found = {}
    rows = zip(steps.optimizer, steps.data, steps.floats, strict=True)
    for optimizer, whole, floats in rows:
        made[optimizer] += 1
        found[optimizer, made[optimizer]] = whole, floats
    return found
