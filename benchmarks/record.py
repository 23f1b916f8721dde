"""What recording costs in an empty loop: per logged number, per line, and per step of an optimizer.

    python benchmarks/record.py

Limits: at most 1 µs per logged number, and beside it one line per step. The floor beside each is
what a script would write itself: one json.dumps and one write per step, which waits for the file.
All times are of the whole process until the last line is on its way to the disk, the writing
thread's share included, over the number of steps; variants take turns in short rounds, and the
median of the rounds counts.

Predicted: repr of a float 0.4 µs, taking and reading it 0.3 µs: 0.7 µs a number; a line 5 to 10 µs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rows import Measure, append_rows, print_measures

import narrowgate as ng
from narrowgate.records import script

FEW, MANY = 1, 33


def numbers(count: int) -> dict[str, float]:
    """Make numbers with as many digits as real ones have."""
    draw = random.Random(0)
    return {f"metric_{place:02d}": draw.random() for place in range(count)}


def empty(steps: int, count: int) -> None:
    """Loop and do nothing."""
    for step in range(steps):
        _ = dict(numbers_of[count], step=step)


def recorded(steps: int, count: int) -> None:
    """Log numbers at every step."""
    for step in range(steps):
        ng.log(step=step, **numbers_of[count])
    script.close()


def by_hand(steps: int, count: int) -> None:
    """Write the same numbers as a script would."""
    with Path("by_hand.jsonl").open("a", buffering=1) as file:
        for step in range(steps):
            file.write(json.dumps(dict(numbers_of[count], step=step)) + "\n")


def seconds(loop: Callable[[int, int], None], steps: int, count: int) -> float:
    """Time one loop, per step."""
    if loop is recorded:
        ng.log()  # opens the folder: once a run
    begin = time.perf_counter()
    loop(steps, count)
    return (time.perf_counter() - begin) / steps


def step_seconds(steps: int, *, is_recorded: bool) -> float:
    """Time the steps of an optimizer whose model is as small as can be, per step."""
    model = torch.nn.Linear(1, 1)
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), "bf16")
    x = torch.ones(1, 1)
    if is_recorded:
        ng.log(begin=1)
    begin = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        optimizer.backward(model(x).sum())
        optimizer.step()
    script.close()
    elapsed = time.perf_counter() - begin
    ng.restore(model, optimizer)
    return elapsed / steps


numbers_of = {count: numbers(count) for count in (FEW, MANY)}


def measure(steps: int, rounds: int) -> list[Measure]:
    """Measure everything in turns.

    Args:
        steps: Steps of a round.
        rounds: Rounds.

    Returns:
        One measure per line of the table.
    """
    loops = {"empty": empty, "recorded": recorded, "by hand": by_hand}
    found: dict[tuple[str, int], list[float]] = {}
    with_step: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for name, loop in loops.items():
            for count in (FEW, MANY):
                found.setdefault((name, count), []).append(seconds(loop, steps, count))
        for is_recorded, times in with_step.items():
            times.append(step_seconds(steps // 10, is_recorded=is_recorded))
    median = {key: statistics.median(values) * 1e6 for key, values in found.items()}
    slope = {name: (median[name, MANY] - median[name, FEW]) / (MANY - FEW) for name in loops}
    line = {name: median[name, FEW] - median["empty", FEW] for name in loops}
    pairs = zip(with_step[True], with_step[False], strict=True)
    step = statistics.median(with_step[False]) * 1e6
    return [
        Measure(
            name="record/number",
            value=slope["recorded"] - slope["empty"],
            unit="us over an empty loop; ratio: over 1 us",
            ratio=slope["recorded"] - slope["empty"],
            limit="<= 1.00",
        ),
        Measure(name="record/number/by hand", value=slope["by hand"] - slope["empty"], unit="us"),
        Measure(
            name="record/line",
            value=line["recorded"],
            unit="us; ratio: over a line by hand",
            ratio=line["recorded"] / line["by hand"],
        ),
        Measure(
            name="record/step",
            value=statistics.median(a - b for a, b in pairs) * 1e6,
            unit=f"us more than {step:.0f}; ratio: with over without",
            ratio=statistics.median(with_step[True]) / statistics.median(with_step[False]),
        ),
    ]


def main() -> int:
    """Measure, print, and say whether the limit is met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20_000, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds")
    parser.add_argument("--rows", type=Path, default=None, help="append the rows to this file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = Path.cwd()
        os.chdir(folder)
        measures = measure(args.steps, args.rounds)
        os.chdir(here)
    print_measures(f"What recording costs ({args.rounds} rounds of {args.steps} steps)", measures)
    if args.rows is not None:
        append_rows(args.rows, measures)
    return 0 if all(m.is_met for m in measures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
