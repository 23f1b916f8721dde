"""The order of the runs, and how long they will take. Pure functions.

For each seed the baseline and all candidates run one after the other, so that a machine which warms
up or gets busy treats all alike; from seed to seed the order is turned by one place, so that no
recipe always runs first. The very first run is the baseline's. The second seed's baseline comes
early, since it tells whether the script heeds its seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Task", "baseline_first", "expected_s", "mean_seconds", "missing", "order_of_runs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run to do.

    Attributes:
        recipe: The recipe in normal form.
        seed: The seed.
    """

    recipe: str
    seed: int


def order_of_runs(
    baseline: str, candidates: Sequence[str], seeds: Sequence[int]
) -> tuple[Task, ...]:
    """Put all runs of a pilot in order.

    Args:
        baseline: The baseline's recipe.
        candidates: The candidates' recipes.
        seeds: The seeds.

    Returns:
        Each recipe once per seed.

    Example:
        >>> [task.recipe for task in order_of_runs("fp32", ["bf16", "fp16"], range(3))]
        ['fp32', 'bf16', 'fp16', 'fp16', 'fp32', 'bf16', 'bf16', 'fp16', 'fp32']
    """
    recipes = [baseline, *candidates]
    tasks = []
    for turn, seed in enumerate(seeds):
        cut = -turn % len(recipes)
        tasks += [Task(recipe=recipe, seed=seed) for recipe in recipes[cut:] + recipes[:cut]]
    return tuple(tasks)


def missing(
    order: Sequence[Task], done: Collection[Task], dropped: Collection[str] = ()
) -> list[Task]:
    """Say which runs are still to do.

    Args:
        order: All runs.
        done: Those that gave what they had to.
        dropped: Candidates that cannot be compared any more, so that more runs say nothing.

    Returns:
        The rest, in order.
    """
    return [task for task in order if task not in done and task.recipe not in dropped]


def baseline_first(todo: Sequence[Task], baseline: str) -> list[Task]:
    """Bring the baseline's next run to the front.

    After a first baseline that failed it says soonest whether the command works at all.

    Args:
        todo: The runs still to do.
        baseline: The baseline's recipe.
    """
    place = next((i for i, task in enumerate(todo) if task.recipe == baseline), 0)
    return [*todo[place : place + 1], *todo[:place], *todo[place + 1 :]]


def mean_seconds(finished: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Average the times of finished runs by recipe.

    Args:
        finished: Recipe and seconds of each run.
    """
    times: dict[str, list[float]] = {}
    for recipe, seconds in finished:
        if math.isfinite(seconds):
            times.setdefault(recipe, []).append(seconds)
    return {recipe: statistics.fmean(values) for recipe, values in times.items()}


def expected_s(todo: Iterable[Task], seconds: Mapping[str, float]) -> float:
    """Estimate how long runs will take.

    Args:
        todo: The runs.
        seconds: Mean time of a run by recipe; a recipe not in it is taken to be as slow as these
            are on average.

    Returns:
        Seconds; NaN if nothing is known.
    """
    if not seconds:
        return math.nan
    otherwise = statistics.fmean(seconds.values())
    return math.fsum(seconds.get(task.recipe, otherwise) for task in todo)
