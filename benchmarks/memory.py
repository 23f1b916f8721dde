"""Bytes per parameter of each recipe, and of FP32 and torch.amp without narrowgate.

    python benchmarks/memory.py

Counted from the tensors that live after a step with AdamW: weights, remainders, gradients, states.
The batch is tiny, so that what is saved for backward is small beside them; torch.amp's 16-bit
copies of the weights are saved for backward, and stand in a column of their own ("copies": saved
bytes beyond those of FP32). Each variant has a process of its own, and its resident size is beside
the count: the peak, less what the process had before the model was made.

The limits are arithmetic: a split master is 2 + 2 bytes where FP32 has 4, its gradient 2 where FP32
has 4, so 14 bytes a parameter where FP32 and torch.amp have 16. Norms stay FP32: a hundredth of a
byte is allowed for them and for the optimizer's step counts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from lockstep import Worker, serve
from measure import count_live, peak_rss_bytes, saved_bytes
from models import GPT, Task
from rows import Measure, append_rows, print_measures, print_table
from variants import Variant

__all__ = ["VARIANTS", "measure"]

#: What is measured, and the bytes per parameter that it promises.
VARIANTS = {
    "plain": 16.0,
    "autocast-bf16": 16.0,
    "autocast-fp16": 16.0,
    "fp32": 16.0,
    "bf16-mixed": 16.0,
    "fp16-mixed": 16.0,
    "bf16": 14.0,
    "fp16": 14.0,
    "bf16(master=none)": 12.0,
}


def measure(name: str, width: int) -> dict[str, Any]:
    """Train a wide GPT for two steps on a handful of bytes, and count.

    Args:
        name: One of `VARIANTS`.
        width: Of the model.

    Returns:
        Bytes by kind, the number of parameters, and growth of the resident size.
    """
    before = peak_rss_bytes()
    torch.manual_seed(0)
    tokens = torch.randint(256, (1, 9))
    task = Task(
        name="gpt",
        model=GPT(4, width, 8),
        inputs=tokens[:, :-1],
        targets=tokens[:, 1:],
    )
    num_parameters = sum(p.numel() for p in task.model.parameters())
    variant = Variant(name, task)
    variant.step()
    with saved_bytes() as saved:
        variant.forward_backward()
    kept = saved.total(variant.model)
    variant.update()
    live = count_live(variant.model, variant.optimizer)
    return {
        "weights": live.parameters,
        "remainders": live.remainders,
        "gradients": live.gradients,
        "states": live.states,
        "total": live.total,
        "saved": kept,
        "num_parameters": num_parameters,
        "rss": peak_rss_bytes() - before,
    }


def main() -> int:
    """Measure each variant in a process of its own; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the numbers to FILE")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        serve({"measure": lambda: measure(args.worker, args.width)})
        return 0
    found = {}
    for name in VARIANTS:
        command = [sys.executable, __file__, "--worker", name, "--width", str(args.width)]
        worker = Worker(name, command)
        try:
            found[name] = worker.ask("measure")
        finally:
            worker.close()
    num_parameters = found["plain"]["num_parameters"]
    kinds = ("weights", "remainders", "gradients", "states", "total", "saved", "rss")
    print_table(
        f"Bytes per parameter, {num_parameters:,} parameters, AdamW",
        ("variant", *(k.replace("saved", "copies") for k in kinds)),
        [
            (
                name,
                *(
                    f"{(row[k] - (found['plain'][k] if k == 'saved' else 0)) / num_parameters:.3f}"
                    for k in kinds
                ),
            )
            for name, row in found.items()
        ],
    )
    print()
    measures = [
        Measure(
            name=f"memory/{name}/bytes per parameter",
            value=row["total"] / num_parameters,
            unit="bytes",
            ratio=row["total"] / num_parameters / VARIANTS[name],
            limit=f"<= {1 + 0.01:.2f}",
        )
        for name, row in found.items()
    ]
    print_measures("Against what each stores by its definition", measures)
    if args.json is not None:
        append_rows(args.json, measures)
    return 0 if all(m.is_met for m in measures) else 1


if __name__ == "__main__":
    sys.exit(main())
