"""Train the example's GPT in FP32, bf16 and fp16 side by side, and compare them.

    make demo

Each recipe trains in a process of its own, from the same seed on the same text, and they take their
steps in turn, so that a machine which slows down slows all of them. torch.autocast, the way without
narrowgate, takes part until it has used twenty seconds: on a CPU without 16-bit units it needs
seconds for a step. Training ends early if the machine is too slow for all steps in three minutes.
Ctrl-C ends it too, and prints what was measured so far.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpt
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from lockstep import Worker, WorkerDiedError, serve
from measure import count_live, peak_rss_bytes, saved_bytes

AUTOCAST = "autocast bf16"
AUTOCAST_SECONDS = 20.0


# --- a worker: one recipe ------------------------------------------------------------------------


def plain_autocast(args: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """Train as `gpt.train` does, with torch.autocast in place of narrowgate."""
    data, _ = gpt.load_text()
    torch.manual_seed(args.seed)
    model = gpt.GPT(args.layers, args.width, args.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    schedule = gpt.schedule_of(optimizer, args)
    order = torch.Generator().manual_seed(args.seed)
    while True:
        starts = torch.randint(len(data) - args.context, (args.batch,), generator=order)
        with torch.autocast("cpu", torch.bfloat16):
            loss = gpt.loss_of(model, *gpt.windows(data, starts, args.context))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield model, optimizer, loss.item(), True


def work(args: argparse.Namespace) -> None:
    """Be the process of one recipe: make a step whenever asked to."""
    steps = plain_autocast(args) if args.recipe == AUTOCAST else gpt.train(args)
    seen: dict[str, Any] = {}

    def step() -> dict[str, Any]:
        begin = time.perf_counter()
        if "model" in seen:
            _, _, loss, applied = next(steps)
        else:  # count the bytes of the first step
            with saved_bytes() as saved:
                model, optimizer, loss, applied = next(steps)
            kept = saved.total(model)
            live = count_live(model, optimizer)
            seen.update(model=model, bytes={
                "weights": live.parameters + live.remainders,
                "gradients": live.gradients,
                "states": live.states,
                "saved": kept,
            })  # fmt: skip
        return {"seconds": time.perf_counter() - begin, "loss": loss, "applied": applied}

    def finish() -> dict[str, Any]:
        return {**seen["bytes"], "rss": peak_rss_bytes()}

    def validate() -> dict[str, Any]:
        return {"val_loss": gpt.validate(seen["model"].eval(), args.context)}

    serve({"step": step, "finish": finish, "validate": validate})


# --- the parent ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Run:
    """What one recipe has done so far."""

    name: str
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    skipped: int = 0
    val_loss: float | None = None
    bytes: dict[str, int] = field(default_factory=dict)

    def add(self, answer: dict[str, Any]) -> None:
        """Take in what a step gave."""
        self.losses.append(answer["loss"])
        self.seconds.append(answer["seconds"])
        self.skipped += not answer["applied"]

    @property
    def loss(self) -> float:
        """The mean loss of the last tenth of the steps."""
        return statistics.fmean(self.losses[-max(len(self.losses) // 10, 1) :])

    def speed(self, other: Run) -> float | None:
        """Give the speed over another run's: the median of the ratios of single rounds.

        The first step is left out: it counts bytes, and all of it happens for the first time.
        """
        pairs = list(zip(other.seconds, self.seconds, strict=False))[1:]
        return statistics.median(theirs / mine for theirs, mine in pairs) if pairs else None


class Screen:
    """Progress bars on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, names: list[str], steps: int) -> None:
        self._console = console
        self._steps = steps
        self._live = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description:<20}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}"),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=steps, words="") for name in names
        }

    def __enter__(self) -> Screen:
        if self._live:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._progress.stop()

    def say(self, words: str) -> None:
        """Print a line above the bars."""
        self._console.print(words)

    def show(self, run: Run, tokens: int) -> None:
        """Show a run after one of its steps."""
        done = len(run.seconds)
        words = f"loss {run.losses[-1]:.3f}  {tokens / run.seconds[-1]:,.0f} tokens/s"
        if self._live:
            self._progress.update(self._tasks[run.name], completed=done, words=words)
        elif done == 1 or done % max(self._steps // 10, 1) == 0:
            self._console.print(f"{run.name:<20} step {done}/{self._steps}  {words}")


def train_all(
    workers: dict[str, Worker], runs: dict[str, Run], screen: Screen, args: argparse.Namespace
) -> None:
    """Let all workers take their steps in turn, then validate and count."""
    with screen:
        for number in range(args.steps):
            if sum(sum(run.seconds) for run in runs.values()) >= args.seconds:
                screen.say(f"stopped after {number} of {args.steps} steps: --seconds are over")
                break
            for name, worker in workers.items():
                run = runs[name]
                if name != AUTOCAST or sum(run.seconds) < AUTOCAST_SECONDS:
                    run.add(worker.ask("step"))
                    screen.show(run, args.batch * args.context)
    for name, worker in workers.items():
        if name != AUTOCAST:
            runs[name].val_loss = worker.ask("validate")["val_loss"]


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def print_results(console: Console, runs: dict[str, Run], tokens: int) -> None:
    """Print what was measured of each run that made a step at all."""
    baseline = runs["fp32"]
    results = _table(
        "The same GPT, seed and text",
        *("train loss", "val loss", "tokens/s", "x fp32", "steps", "skipped"),
    )
    memory = _table(
        "Memory, MB", "weights", "grads", "states", "saved", "sum", "x fp32", "peak RSS"
    )
    kinds = ("weights", "gradients", "states", "saved")
    for run in runs.values():
        if not run.bytes:
            continue
        is_full = len(run.seconds) == len(baseline.seconds)
        speed = run.speed(baseline)
        results.add_row(
            run.name,
            f"{run.loss:.3f}" if is_full else "-",
            "-" if run.val_loss is None else f"{run.val_loss:.3f}",
            f"{tokens / statistics.median(run.seconds[1:] or run.seconds):,.0f}",
            "-" if speed is None else f"{speed:.2f}",
            str(len(run.seconds)),
            str(run.skipped),
        )
        parts = [run.bytes[kind] for kind in kinds]
        whole = sum(baseline.bytes[kind] for kind in kinds)
        memory.add_row(
            run.name,
            *(f"{part / 1e6:.1f}" for part in parts),
            f"{sum(parts) / 1e6:.1f}",
            f"{sum(parts) / whole:.2f}",
            f"{run.bytes['rss'] / 1e6:.0f}",
        )
    if not baseline.bytes:
        return
    console.print(results)
    console.print("Loss in nats per byte; speed as the median over rounds, one step of each.")
    console.print(memory)
    console.print(
        "Counted: weights with their remainders, gradients, optimizer states, what is saved for "
        "backward. The peak is the whole process's, torch itself included."
    )


def parse_arguments() -> argparse.Namespace:
    """Read the command line; a worker's has the arguments of gpt.py."""
    if sys.argv[1:2] == ["--worker"]:
        work(gpt.parse_arguments(sys.argv[2:]))
        raise SystemExit(0)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--recipes", nargs="+", default=["bf16", "fp16"], help="beside fp32")
    defaults = {"steps": 150, "seed": 0, "layers": 4, "width": 256, "context": 128, "batch": 8}
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{value} if left out")
    parser.add_argument("--lr", type=float, default=3e-3, help="the highest learning rate")
    parser.add_argument("--seconds", type=float, default=180.0, help="end training after these")
    parser.add_argument("--no-autocast", action="store_true", help="leave torch.autocast out")
    return parser.parse_args()


def main() -> int:
    """Run the demo; 0 if it came to its end, 130 if it was interrupted."""
    args = parse_arguments()
    console = Console()
    names = ["fp32", *args.recipes, *([] if args.no_autocast else [AUTOCAST])]
    told = ("steps", "seed", "layers", "width", "context", "batch", "lr")
    options = [word for name in told for word in (f"--{name}", str(getattr(args, name)))]
    console.print(
        f"A GPT of {args.layers} layers, width {args.width}, on the source text of Python's own "
        f"library; {args.steps} steps of {args.batch} x {args.context} bytes, "
        f"{torch.get_num_threads()} threads."
    )
    runs = {name: Run(name) for name in names}
    workers: dict[str, Worker] = {}
    code = 0
    try:
        for name in names:
            command = [sys.executable, __file__, "--worker", "--recipe", name, *options]
            workers[name] = Worker(name, command)
        try:
            train_all(workers, runs, Screen(console, names, args.steps), args)
        except KeyboardInterrupt:
            console.print("interrupted: this is what was measured so far")
            code = 130
        for name, worker in workers.items():
            if runs[name].seconds:
                runs[name].bytes = worker.ask("finish")
        said = dict.fromkeys(line for w in workers.values() for line in w.words().splitlines())
    except WorkerDiedError as error:
        console.print(str(error), markup=False)
        return 1
    finally:
        for worker in workers.values():
            worker.close()
    for line in said:
        console.print(line, markup=False)
    print_results(console, runs, args.batch * args.context)
    return code


if __name__ == "__main__":
    sys.exit(main())
