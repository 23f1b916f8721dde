"""Everything that needs a GPU, in one command of less than four minutes.

    python benchmarks/gpu.py

The engine's and the ops' tests on the device, every Triton kernel beside its definition, the
swamping audit (which kernels sum 16 bits in 16 bits), the audit of autocast's lists, ops and a step
under torch's alarm for host synchronisation, the ops against the bytes they must move (gpu_ops.py),
and training steps of bf16 and fp16 against compiled torch.autocast: milliseconds, peak memory,
losses.
Without a GPU it says so and exits 0; with one it exits 1 if a test, an audit or the alarm is red.

None of this has run on a GPU yet: it was written on a machine without one, where only its parts
could be rehearsed (`--device cpu`). The first run on a GPU is the test of this script, too.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from gpu_ops import conform, measure_ops, waiting_ops
from models import DTYPES, GPT, load_text, windows
from rows import describe_versions, print_measures, print_table
from torch import nn
from torch.nn import functional as F

import narrowgate as ng
from narrowgate.engine.audits import audit

__all__ = ["Contestant", "audit_sums", "check_no_sync", "compare_steps", "run_tests"]

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 220.0
"""No new part is begun after this; four minutes are what a shared GPU is lent for."""

_COUNT = {"cuda": 50_000_000, "cpu": 1_000_000}
"""Parameters of the ops' rows."""

_SIZES = {
    "cuda": {"layers": 6, "width": 768, "context": 512, "batch": 16},
    "cpu": {"layers": 2, "width": 64, "context": 32, "batch": 2},
}


def run_tests(*arguments: str, timeout: float) -> bool:
    """Run pytest in a process of its own.

    Args:
        arguments: Its arguments.
        timeout: Seconds after which it is stopped and counts as failed.

    Returns:
        Whether it passed.
    """
    command = [sys.executable, "-m", "pytest", *arguments]
    try:
        return subprocess.run(command, cwd=ROOT, timeout=timeout, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"stopped after {timeout:.0f} s")
        return False


def audit_sums(device: str) -> int:
    """Audit which kernels sum 16-bit values in 16 bits, and print those that do.

    Args:
        device: Where.

    Returns:
        How many findings are wrong.
    """
    findings = [f for dtype in DTYPES.values() for f in audit(device, dtype)]
    wrong = [f for f in findings if not f.right]
    refused = sum(f.refused is not None for f in findings)
    print(f"{len(findings)} sums audited, {len(wrong)} wrong, {refused} refused by {device}")
    if wrong:
        print_table(
            "Summed in 16 bits",
            ("operator", "format", "exact", "given"),
            [(f.name, str(f.dtype), f"{f.expected:g}", f"{f.worst}") for f in wrong],
        )
    return len(wrong)


def check_no_sync(device: str) -> bool:
    """Make steps of our own optimizers under torch's alarm for host synchronisation.

    Args:
        device: ``cuda``; elsewhere there is nothing to wait for.

    Returns:
        Whether the host never waited.
    """
    for recipe in DTYPES:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8)).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        model, prepared = ng.prepare(model, optimizer, recipe)
        x = torch.randn(16, 64, device=device)
        try:
            for step in range(4):
                if device == "cuda" and step >= 2:  # the first steps make states
                    torch.cuda.set_sync_debug_mode("error")
                prepared.zero_grad()
                prepared.backward(model(x).square().mean())
                prepared.step()
        except RuntimeError as error:
            print(f"{recipe}: a step made the host wait: {error}")
            return False
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
            ng.restore(model, prepared)
    print("no step of bf16 or fp16 made the host wait")
    return True


@dataclass(slots=True)
class Contestant:
    """One way to train.

    Attributes:
        name: What it is called.
        step: Makes one step on a batch and returns the loss, on the device.
        seconds: Of each timed step.
        losses: Of each step.
        peak: Bytes at the peak of a step, this contestant's own.
    """

    name: str
    step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    seconds: list[float] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)
    peak: int = 0


def _contestant(name: str, model: nn.Module, *, compiled: bool) -> Contestant:
    """Make torch.autocast's (``amp-bf16``) or a recipe's contestant."""
    device = next(model.parameters()).device.type
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device == "cuda")
    if not name.startswith("amp-"):
        model, prepared = ng.prepare(model, optimizer, name)
        run = torch.compile(model) if compiled else model

        def recipe_step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            loss = F.cross_entropy(run(tokens).flatten(0, 1), targets.flatten())
            prepared.zero_grad()
            prepared.backward(loss)
            prepared.step()
            return loss.detach()

        return Contestant(name, recipe_step)
    dtype = DTYPES[name.removeprefix("amp-")]
    scaler = torch.amp.GradScaler(device, enabled=dtype is torch.float16)
    run = torch.compile(model) if compiled else model

    def amp_step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, dtype):
            loss = F.cross_entropy(run(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return Contestant(name, amp_step)


def compare_steps(
    device: str, *, steps: int, compiled: bool, deadline: float
) -> dict[str, Contestant]:
    """Train recipes and torch.autocast in turn, on the same batches.

    Args:
        device: Where.
        steps: How many timed steps, after three that compile and warm up.
        compiled: Whether the models are compiled.
        deadline: Value of `time.perf_counter` after which no other contestant is made.

    Returns:
        The contestants by name.
    """
    sizes = _SIZES[device]
    text, _ = load_text()
    order = torch.Generator().manual_seed(0)

    def batch() -> tuple[torch.Tensor, ...]:
        span = len(text) - sizes["context"]
        starts = torch.randint(span, (sizes["batch"],), generator=order)
        return tuple(part.to(device) for part in windows(text, starts, sizes["context"]))

    warm = [batch() for _ in range(3)]
    contestants: dict[str, Contestant] = {}
    for name in ("amp-bf16", "bf16", "amp-fp16", "fp16"):
        if time.perf_counter() > deadline:
            print(f"no time left for {name}")
            continue
        before = torch.cuda.memory_allocated() if device == "cuda" else 0
        torch.manual_seed(0)
        model = GPT(sizes["layers"], sizes["width"], sizes["context"]).to(device)
        contestant = _contestant(name, model, compiled=compiled)
        for tokens, targets in warm:
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            contestant.losses.append(contestant.step(tokens, targets))
        if device == "cuda":
            contestant.peak = torch.cuda.max_memory_allocated() - before
        contestants[name] = contestant
    for _ in range(steps):
        tokens, targets = batch()
        for contestant in contestants.values():
            _wait(device)
            begin = time.perf_counter()
            contestant.losses.append(contestant.step(tokens, targets))
            _wait(device)
            contestant.seconds.append(time.perf_counter() - begin)
    return contestants


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _print_steps(contestants: dict[str, Contestant]) -> None:
    rows = []
    for name, found in contestants.items():
        rival = contestants.get(f"amp-{name.removeprefix('amp-')}", found)
        times, rivals = statistics.median(found.seconds), statistics.median(rival.seconds)
        rows.append(
            (
                name,
                f"{times * 1e3:.2f}",
                f"{min(found.seconds) * 1e3:.2f}",
                f"{rivals / times:.2f}",
                f"{found.peak / 1e6:.0f}",
                f"{found.peak / rival.peak:.2f}" if rival.peak else "-",
                f"{found.losses[-1].item():.4f}",
            )
        )
    heads = ("", "median ms", "min ms", "speed / amp", "peak MB", "peak / amp", "last loss")
    print_table("Training steps", heads, rows)


def main() -> int:
    """Run all parts; 0 if all are green, or if there is no GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: nothing was tested; --device cpu rehearses the script")
        return 0
    begin = time.perf_counter()
    what = torch.cuda.get_device_name() if args.device == "cuda" else "a rehearsal on the CPU"
    versions = describe_versions()
    print(f"{what}, torch {versions['torch']}, narrowgate {versions['commit']}\n")
    good = True
    if args.device == "cuda":
        print("== tests on the device")
        good &= run_tests("-m", "gpu", "tests/engine", "tests/ops", "tests/cases", timeout=90)
    print("\n== kernels beside their definitions")
    wrong_bits = conform(args.device)
    print("\n".join(wrong_bits) or "the same bits everywhere")
    good &= not wrong_bits
    print("\n== autocast's lists")
    lists = ("tests/engine/cpu/test_islands.py", "-k", "lists or tables")
    good &= run_tests(*lists, timeout=60)
    print("\n== sums")
    wrong = audit_sums(args.device)
    if args.device == "cuda":  # torch's own CPU kernels are known to fail
        good &= wrong == 0
    print("\n== waiting")
    waited = waiting_ops(args.device)
    print("\n".join(waited) or "no op made the host wait")
    good &= not waited
    good &= check_no_sync(args.device)
    print("\n== ops")
    measures = measure_ops(args.device, _COUNT[args.device], args.steps)
    print_measures(f"{_COUNT[args.device]:,} parameters", measures)
    print("\n== steps")
    found = compare_steps(
        args.device,
        steps=args.steps,
        compiled=args.device == "cuda",
        deadline=begin + SECONDS * 0.75,
    )
    _print_steps(found)
    print(f"\n{'green' if good else 'RED'} after {time.perf_counter() - begin:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
