"""The order of the runs and their time: fair to each recipe, the same from any starting point."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowgate.pilot.schedule import (
    Task,
    baseline_first,
    expected_s,
    mean_seconds,
    missing,
    order_of_runs,
)

CANDIDATES = ["bf16", "fp16", "bf16-mixed", "fp16-mixed"]
ORDER = order_of_runs("fp32", CANDIDATES, range(5))


def recipes(turn: int, size: int = 5) -> list[str]:
    return [task.recipe for task in ORDER[turn * size : (turn + 1) * size]]


def test_the_very_first_run_is_the_baselines_and_the_second_baseline_comes_early():
    assert recipes(0) == ["fp32", *CANDIDATES]
    assert recipes(1) == ["fp16-mixed", "fp32", "bf16", "fp16", "bf16-mixed"]


def test_every_recipe_takes_every_place_once_in_as_many_seeds_as_recipes():
    for place in range(5):
        assert {recipes(turn)[place] for turn in range(5)} == {"fp32", *CANDIDATES}


@given(
    st.integers(0, 6),
    st.lists(st.integers(0, 100), unique=True, min_size=1, max_size=9),
    st.sets(st.integers(0, 62)),
)
def test_what_is_missing_is_what_is_not_done_in_the_same_order(count, seeds, places):
    names = [f"recipe{number}" for number in range(count)]
    order = order_of_runs("fp32", names, seeds)
    assert len(set(order)) == len(order) == (count + 1) * len(seeds)
    done = {task for place, task in enumerate(order) if place in places}
    todo = missing(order, done)
    assert set(todo) | done == set(order)
    assert sorted(todo, key=order.index) == todo
    assert not done.intersection(todo)


def test_runs_of_a_dropped_candidate_are_left_out():
    assert {task.recipe for task in missing(ORDER, (), {"fp16"})} == {"fp32", *CANDIDATES} - {
        "fp16"
    }


def test_the_next_baseline_comes_first_and_the_rest_keep_their_order():
    todo = list(ORDER[1:])
    first, *rest = baseline_first(todo, "fp32")
    assert first == Task(recipe="fp32", seed=1)
    assert rest == [task for task in todo if task != first]
    assert baseline_first(rest[:2], "fp32") == rest[:2]
    assert baseline_first([], "fp32") == []


def test_time_is_summed_by_recipe_and_a_new_recipe_is_taken_to_be_average():
    seconds = mean_seconds([("fp32", 10.0), ("fp32", 20.0), ("bf16", 5.0), ("bf16", math.nan)])
    assert seconds == {"fp32": 15.0, "bf16": 5.0}
    todo = [Task(recipe=name, seed=0) for name in ("fp32", "bf16", "fp16")]
    assert expected_s(todo, seconds) == pytest.approx(15 + 5 + 10)


def test_nothing_known_is_said_as_such():
    assert math.isnan(expected_s(ORDER, {}))
    assert mean_seconds([("fp32", math.nan)]) == {}
