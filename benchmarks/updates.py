"""The optimizer's step on a CPU, against the bytes that it must move and against torch's own.

50 million parameters in 100 tensors of mixed size, FP32 gradients, everything in one run and
interleaved. What must be moved, in bytes a parameter:

    AdamW, torch, FP32         read weight 4, gradient 4, moments 8; written weight 4, moments 8: 28
    AdamW, ours, split master  read half 2, remainder 2, gradient 4, moments 8; written 2, 2, 8: 28
    the same, bf16 gradients   read 2 less: 26
    SGD with momentum          split: read 2 + 2 + 4 + 4, written 2 + 2 + 4: 20
    statistics of gradients    read 4: 4; the factors that they give cost the update nothing
    GradScaler and clipping    unscale_ reads and writes 4, the norm reads 4, clipping reads and
                               writes 4: 20
    checksums of halves        read 2: 2

Prediction, written down before the first run, where memory is the limit and R is the rate at which
one FP32 tensor is copied to another, a read and a written byte counting alike: our AdamW takes
28 bytes / R, or less, since a copy also reads what it overwrites and an update has read it anyway:
between 0.67 and 1.0 of it. Torch's takes the same, so the ratio to it is 1.0 on an idle machine,
and the 1.3 that is wanted can come only from what is not bytes: torch opens a parallel region for
each tensor, ours one for all. Statistics against GradScaler and clipping: 20 / 4 = 5 times, less
what FP64 sums cost. Against our own definition in plain torch: twenty operations a block, about
ten times.

    python benchmarks/updates.py

Run it on an idle machine: beside other work, torch's many regions wait for threads, and it looks
worse than it is. Where threads waited for a core, ratios are printed as inconclusive.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rows import Measure, append_rows, print_measures
from torch.nn.utils import clip_grad_norm_

from narrowgate import ops
from narrowgate.ops import _native

__all__ = ["Problem", "measure", "sizes", "waited"]

COUNT = 50_000_000
"""Parameters: 1.4 GB with gradients and states, which no cache holds."""

BUSY = 0.1
"""The share of a thread's time, waited for a core, above which the pilot also calls speed open."""

ADAMW: dict[str, Any] = {
    "lr": 1e-3,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "weight_decay": 0.01,
    "decoupled": True,
    "maximize": False,
}
SGD: dict[str, Any] = {
    "lr": 1e-3,
    "momentum": 0.9,
    "weight_decay": 0.0,
    "nesterov": False,
    "maximize": False,
}


def sizes(count: int) -> list[int]:
    """Cut parameters into 100 tensors: 40 small ones, as norms and biases, 60 that hold the rest.

    Args:
        count: Parameters in all.

    Returns:
        Sizes, in the order of a model: small ones between large ones.
    """
    small = [64 << i % 5 for i in range(40)]  # 64 to 1,024, as layers are wide
    shares = [1 + i % 4 for i in range(60)]  # as projections of 1, 2, 3 and 4 times the width
    rest = count - sum(small)
    large = [rest * share // sum(shares) for share in shares]
    large[-1] += rest - sum(large)
    return [size for i in range(60) for size in (*small[i : i + 1], large[i])]


class Problem:
    """The tensors of all steps: nothing is allocated in a timed step but what the step allocates.

    Args:
        count: Parameters in all.
    """

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        cut = sizes(count)
        self.count = count
        self.masters = [torch.randn(size, generator=generator) * 0.05 for size in cut]
        self.grads = [torch.randn(size, generator=generator) * 0.01 for size in cut]
        self.halves_of_grads = [grad.bfloat16() for grad in self.grads]
        self.theirs = [torch.nn.Parameter(master.clone()) for master in self.masters]
        for parameter, grad in zip(self.theirs, self.grads, strict=True):
            parameter.grad = grad.clone()
        self.fused = torch.optim.AdamW(self.theirs, lr=1e-3, weight_decay=0.01, fused=True)
        # Scale 1 and a norm that is never reached: the same passes, and the numbers stay.
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=1 << 30)
        self.scaler.scale(torch.ones(()))
        pairs = [ops.split_master(master, "bf16") for master in self.masters]
        self.halves, self.remainders = [a for a, _ in pairs], [b for _, b in pairs]
        self.first, self.second, self.buffers = (
            [torch.zeros_like(master) for master in self.masters] for _ in range(3)
        )
        self.steps = [torch.tensor(0.0) for _ in cut]
        self.one, self.zero = torch.tensor(1.0), torch.tensor(0.0)
        self.source, self.target = torch.zeros(count), torch.ones(count)

    def copy(self) -> None:
        """Copy 4 bytes a parameter."""
        self.target.copy_(self.source)

    def adamw(self, grads: list[torch.Tensor]) -> None:
        """Step our AdamW on split masters."""
        lists = (self.halves, self.remainders, grads, self.first, self.second, self.steps)
        ops.adamw_step(*lists, **ADAMW, grad_mult=self.one, skip=self.zero)

    def sgd(self) -> None:
        """Step our SGD on split masters."""
        lists = (self.halves, self.remainders, self.grads, self.buffers)
        ops.sgd_step(*lists, **SGD, grad_mult=self.one, skip=self.zero)

    def check(self) -> None:
        """Find norm, verdict and factor, which the update then takes."""
        stats = ops.grad_stats(self.grads)
        norm = stats[:, 0].sum().sqrt()
        (1e9 / norm).clamp_(max=1.0).float()
        stats[:, 2].any().float()

    def scaler_and_clip(self) -> None:
        """Do the same as torch.amp's users do."""
        self.scaler.unscale_(self.fused)
        clip_grad_norm_(self.theirs, 1e9)
        self.scaler.update()  # it holds on to the verdict otherwise, and refuses the next one

    def checksum(self) -> None:
        """Checksum the halves."""
        ops.half_checksum(self.halves)

    def plain(self, step: Callable[[], None]) -> None:
        """Run a step of ours in plain torch."""
        with _native.serve(_native.PLAIN):
            step()


def waited() -> tuple[float, float]:
    """Give the seconds that this process' threads ran, and waited for a core, as Linux counts."""
    ran = wait = 0
    for task in os.listdir("/proc/self/task"):
        try:
            words = Path(f"/proc/self/task/{task}/schedstat").read_text().split()
        except OSError:  # the thread has ended
            continue
        ran, wait = ran + int(words[0]), wait + int(words[1])
    return ran * 1e-9, wait * 1e-9


def seconds(step: Callable[[], None]) -> float:
    """Time one call."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def measure(count: int, rounds: int) -> tuple[list[Measure], float]:
    """Measure all steps, interleaved.

    Args:
        count: Parameters.
        rounds: Timed rounds, after one that is not counted; of plain torch a third as many.

    Returns:
        The measures, and the share of their time that threads waited for a core.
    """
    problem = Problem(count)
    steps: dict[str, Callable[[], None]] = {
        "copy": problem.copy,
        "torch fused": problem.fused.step,
        "adamw": lambda: problem.adamw(problem.grads),
        "adamw, bf16 gradients": lambda: problem.adamw(problem.halves_of_grads),
        "sgd": problem.sgd,
        "scaler and clip": problem.scaler_and_clip,
        "check": problem.check,
        "checksum": problem.checksum,
        "adamw, plain torch": lambda: problem.plain(lambda: problem.adamw(problem.grads)),
        "check, plain torch": lambda: problem.plain(problem.check),
    }
    found: dict[str, list[float]] = {name: [] for name in steps}
    before = waited()
    for i in range(-1, rounds):
        for name, step in steps.items():
            if "plain" in name and i % 3:
                continue
            taken = seconds(step)
            if i >= 0:
                found[name].append(taken)
    ran, wait = (after - start for after, start in zip(waited(), before, strict=True))
    busy = wait / max(ran + wait, 1e-9)
    return judge(count, found, is_busy=busy > BUSY), busy


def judge(count: int, found: dict[str, list[float]], *, is_busy: bool) -> list[Measure]:
    """Turn times into ratios with limits.

    Args:
        count: Parameters.
        found: Seconds by step; of a round each, in order.
        is_busy: Whether they say little.

    Returns:
        The measures: milliseconds by median; ratios too, of times of the same round.
    """

    def ratio(over: str, under: str, factor: float = 1.0) -> float:
        a, b = found[over], found[under]
        if len(a) != len(b):  # plain torch, in a third of the rounds
            return statistics.median(a) / statistics.median(b) * factor
        return statistics.median(x / y for x, y in zip(a, b, strict=True)) * factor

    def row(name: str, what: str, ratio: float | None, limit: str | None = None) -> Measure:
        taken = statistics.median(found[name])
        return Measure(
            name=f"updates/{name}{what}",
            value=taken * 1e3,
            unit="ms",
            ratio=ratio,
            limit=limit,
            is_busy=is_busy,
        )

    rate = 8 * count / statistics.median(found["copy"]) / 1e9
    return [
        replace(row("copy", "", None), value=rate, unit="GB/s, read and written"),
        row("torch fused", " / its 28 bytes", ratio("torch fused", "copy", 8 / 28)),
        row("adamw", " / its 28 bytes", ratio("adamw", "copy", 8 / 28), "<= 1.30"),
        row("adamw", ", torch fused / it", ratio("torch fused", "adamw"), ">= 1.30"),
        row("adamw", ", plain torch / it", ratio("adamw, plain torch", "adamw")),
        row(
            "adamw, bf16 gradients",
            " / its 26 bytes",
            ratio("adamw, bf16 gradients", "copy", 8 / 26),
        ),
        row("sgd", " / its 20 bytes", ratio("sgd", "copy", 8 / 20)),
        row("scaler and clip", " / its 20 bytes", ratio("scaler and clip", "copy", 8 / 20)),
        row("check", " / its 4 bytes", ratio("check", "copy", 8 / 4)),
        row("check", ", scaler and clip / it", ratio("scaler and clip", "check"), ">= 3.00"),
        row("check", ", plain torch / it", ratio("check, plain torch", "check")),
        row("checksum", " / its 2 bytes", ratio("checksum", "copy", 8 / 2)),
    ]


def main() -> int:
    """Measure, print, and say whether the limits are met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=COUNT, help="parameters")
    parser.add_argument("--rounds", type=int, default=9, help="rounds")
    parser.add_argument("--threads", type=int, default=None, help="torch's threads")
    parser.add_argument("--version", default=None, help="such as 'C++ avx2'; the best by default")
    parser.add_argument("--rows", type=Path, default=None, help="append the rows to this file")
    args = parser.parse_args()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    with _native.serve(args.version or _native.versions()[-1]):
        version = _native.serving()
        measures, busy = measure(args.count, args.rounds)
    title = f"{args.count:,} parameters, {torch.get_num_threads()} threads, {version}"
    print_measures(f"{title}; threads waited {busy:.0%} of their time", measures)
    if args.rows is not None:
        append_rows(args.rows, measures)
    limited = [m for m in measures if m.limit is not None]
    if any(not (m.is_met or m.is_busy) for m in limited):
        return 1
    return 4 if any(m.is_busy for m in limited) else 0


if __name__ == "__main__":
    sys.exit(main())
