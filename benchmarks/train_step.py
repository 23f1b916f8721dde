"""Speed and memory of a training step: FP32, narrowgate's recipes, torch.autocast.

    python benchmarks/train_step.py
    python benchmarks/train_step.py --without-units      # as on a CPU without 16-bit units

Each variant is a process of its own; they take their steps in turn, and the machine's drift hits
all alike. FP32 is a plain script without narrowgate. torch.autocast is one too, with torch's own
kernels: nothing is ever installed in its process. Where the processor has no units for its format,
one step of it can take half a minute, and two are made.

Judged are the least times of all rounds, since whatever else the machine does only adds; medians
stand beside them. "Live" is counted at the step's peak: parameters, remainders, gradients, states
and what is saved for backward. The limits are those of bf16; the one against torch.autocast holds
where the processor has no bf16 units. The exit code is 1 if one is missed, and 4 if none is but a
speed is inconclusive: the best step of FP32 had to share the cores with something else.

--without-units asks torch, oneDNN and MKL to use AVX2 and nothing newer, in all processes alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lockstep import Worker, serve
from measure import peak_rss_bytes
from models import DTYPES, make_task
from rows import Measure, append_rows, print_measures, print_table
from traffic import Rates, Traffic, best_rates, measure_rates
from variants import Variant

from narrowgate.engine import cpu

__all__ = ["judge", "run_rounds", "was_busy"]

#: What is wanted of bf16. Two numbers a parameter less and half the activations give what is saved
#: and what lives; widening and the split update may cost a fifth of the speed.
SPEED, SPEED_AUTOCAST, SAVED, LIVE = ">= 0.80", ">= 20", "<= 0.55", "<= 0.72"

#: A step of FP32 keeps its threads busy for more than nine tenths of the time if it is let to.
BUSY = 0.8

#: How the libraries below torch are kept to AVX2; each variable is documented by its library.
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


# --- the worker ----------------------------------------------------------------------------------


def work(name: str, model: str, size: str) -> None:
    """Be the process of one variant.

    Args:
        name: The variant.
        model: Name of the model.
        size: ``full`` or ``small``.
    """
    variant = Variant(name, make_task(model, size))
    serve(
        {
            "rates": lambda: measure_rates().to_json(),
            "native": lambda: {k: v in cpu.native_dtypes() for k, v in DTYPES.items()},
            "count": variant.count,
            "step": variant.step,
            "rss": lambda: {"peak": peak_rss_bytes()},
        }
    )


# --- the parent ----------------------------------------------------------------------------------


def run_rounds(
    variants: Sequence[str],
    autocast: Sequence[str],
    *,
    model: str,
    size: str,
    rounds: int,
    without_units: bool,
) -> tuple[dict[str, dict[str, Any]], dict[str, bool], Rates]:
    """Start a worker for each variant, and let them take their steps in turn.

    Args:
        variants: ``plain`` and recipes.
        autocast: ``autocast-bf16``, ``autocast-fp16``.
        model: Name of the model.
        size: ``full`` or ``small``.
        rounds: How many steps of each are timed, after one that is counted.
        without_units: Whether all are kept to AVX2.

    Returns:
        For each variant its counts, the times of its steps and its peak RSS; whether the processor
        has units for each format; its rates.
    """
    environment = {**os.environ, **(AVX2 if without_units else {})}
    workers: dict[str, Worker] = {}
    try:
        for name in (*variants, *autocast):
            script = str(Path(__file__).resolve())
            command = [sys.executable, script, "--worker", name, "--model", model, "--size", size]
            workers[name] = Worker(name, command, environment)
        native = workers["plain"].ask("native")
        found: dict[str, dict[str, Any]] = {}
        for name, worker in workers.items():
            print(f"counting {name} ...", file=sys.stderr, flush=True)
            found[name] = {**worker.ask("count"), "steps": []}
        measured = []
        for number in range(rounds):
            print(f"round {number + 1} of {rounds} ...", file=sys.stderr, flush=True)
            measured.append(Rates(**workers["plain"].ask("rates")))
            for name, worker in workers.items():
                slow = name in autocast and not native[name.removeprefix("autocast-")]
                if not slow or number < 1:
                    found[name]["steps"].append(worker.ask("step"))
        for name, worker in workers.items():
            slow = name in autocast and not native[name.removeprefix("autocast-")]
            if slow:  # its counted step took half a minute too: counting is lost in it
                first = {key: found[name][key] for key in ("gradients", "update", "cores")}
                found[name]["steps"].append(first)
            found[name]["rss"] = worker.ask("rss")["peak"]
    finally:
        for worker in workers.values():
            worker.close()
    return found, native, best_rates(measured)


def _seconds(row: dict[str, Any], pick: Callable[[list[float]], float] = min) -> float:
    return pick([step["gradients"] + step["update"] for step in row["steps"]])


def _best(row: dict[str, Any]) -> dict[str, float]:
    return min(row["steps"], key=lambda step: step["gradients"] + step["update"])


def was_busy(found: dict[str, dict[str, Any]], threads: int) -> bool:
    """Say whether the machine had other things to do, by the best step of FP32.

    Rounds are interleaved, so what takes cores from one variant takes them from FP32 too. A variant
    that uses fewer cores by itself is slow by its own fault, and not excused.

    Args:
        found: What `run_rounds` gave.
        threads: How many cores a step could have had.

    Returns:
        True if FP32's best step did not have them to itself.
    """
    return bool(_best(found["plain"])["cores"] < BUSY * threads)


def judge(
    found: dict[str, dict[str, Any]],
    native: dict[str, bool],
    title: str,
    busy: bool = False,
) -> list[Measure]:
    """Turn what was found into numbers with limits.

    Args:
        found: What `run_rounds` gave.
        native: Whether the processor has units for each format.
        title: What the names of the measures begin with.
        busy: Whether times are inconclusive.

    Returns:
        The measures.
    """
    plain = found["plain"]
    measures = []
    for name, row in found.items():
        limited = name == "bf16"
        relative = _seconds(plain) / _seconds(row)
        measures.append(
            Measure(
                name=f"{title}/{name}/speed",
                value=1 / _seconds(row),
                unit="steps/s",
                ratio=relative,
                limit=SPEED if limited else None,
                is_busy=busy,
            )
        )
        amp = found.get(f"autocast-{name[:4]}")
        if name[:4] in native and amp is not None:
            limit = SPEED_AUTOCAST if limited and not native[name[:4]] else None
            measures.append(
                Measure(
                    name=f"{title}/{name}/speed over torch.autocast",
                    value=_seconds(amp) / _seconds(row),
                    unit="times",
                    ratio=_seconds(amp) / _seconds(row),
                    limit=limit,
                    is_busy=busy,
                )
            )
        for key, limit in (("saved", SAVED), ("live", LIVE), ("rss", None)):
            measures.append(
                Measure(
                    name=f"{title}/{name}/{key}",
                    value=row[key] / 1e6,
                    unit="MB",
                    ratio=row[key] / plain[key],
                    limit=limit if limited else None,
                )
            )
    return measures


def _print_parts(found: dict[str, dict[str, Any]], rates: Rates) -> None:
    """Print where time and bytes go, and what was predicted."""
    plain = found["plain"]
    expected_plain = Traffic(**plain["traffic"]).seconds(rates)
    rows = []
    for name, row in found.items():
        expected = Traffic(**row["traffic"]).seconds(rates)
        measured = min(step["gradients"] for step in row["steps"])
        measured_plain = min(step["gradients"] for step in plain["steps"])
        stock = name.startswith("autocast")
        rows.append(
            (
                name,
                f"{_seconds(row) * 1e3:.0f}",
                f"{_seconds(row, statistics.median) * 1e3:.0f}",
                str(len(row["steps"])),
                f"{min(s['update'] for s in row['steps']) * 1e3:.0f}",
                f"{_best(row)['cores']:.2f}",
                f"{measured_plain / measured:.2f}",
                "-" if stock else f"{expected_plain / expected:.2f}",
                f"{row['traffic']['widened_bytes'] / 1e6:.0f}",
                f"{(row['traffic']['flops'] + row['traffic']['native_flops']) / 1e9:.0f}",
            )
        )
    heads = ("variant", "min ms", "median", "n", "update", "cores", "fwd+bwd", "predicted")
    print_table("Time (ratios over plain FP32)", (*heads, "MB widened", "GFLOP"), rows)
    print(
        f"predicted from {rates.flops / 1e9:.0f} GFLOP/s in FP32, "
        f"{rates.native_flops / 1e9:.0f} in bf16 by torch, "
        f"{rates.widening / 1e9:.1f} GB/s widening, {rates.copying / 1e9:.1f} GB/s adding\n"
    )
    kinds = ("parameters", "remainders", "gradients", "states")
    parts = (*(f"{kind}_bytes" for kind in kinds), "saved", "live", "rss")
    print_table(
        "Memory, MB",
        ("variant", *(part.partition("_")[0] for part in parts)),
        [(name, *(f"{row[part] / 1e6:.1f}" for part in parts)) for name, row in found.items()],
    )
    print()


def main() -> int:
    """Measure, print, and append to a file if asked; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=("gpt", "resnet", "lstm"), default="gpt")
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--recipes", nargs="+", default=["bf16", "fp16", "bf16-mixed"])
    parser.add_argument("--autocast", nargs="*", choices=list(DTYPES), default=["bf16"])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--without-units", action="store_true", help="keep everything to AVX2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the numbers to FILE")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        work(args.worker, args.model, args.size)
        return 0
    found, native, rates = run_rounds(
        ["plain", *args.recipes],
        [f"autocast-{compute}" for compute in args.autocast],
        model=args.model,
        size=args.size,
        rounds=args.rounds,
        without_units=args.without_units,
    )
    units = ", ".join(f"{name} {'yes' if has else 'no'}" for name, has in native.items())
    print(f"{args.model}, {args.size}; 16-bit units of the processor: {units}\n")
    _print_parts(found, rates)
    title = f"train_step/{args.model}" + ("/without units" if args.without_units else "")
    measures = judge(found, native, title, was_busy(found, torch.get_num_threads()))
    if args.size != "full":  # the limits are the full size's, where activations outweigh weights
        measures = [replace(measure, limit=None) for measure in measures]
    print_measures("Judged", measures)
    if args.json is not None:
        append_rows(args.json, measures)
    limited = [measure for measure in measures if measure.limit is not None]
    if any(not (measure.is_met or measure.is_busy) for measure in limited):
        return 1
    return 4 if any(measure.is_busy for measure in limited) else 0


if __name__ == "__main__":
    sys.exit(main())
