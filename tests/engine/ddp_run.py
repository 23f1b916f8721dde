"""Two processes under gloo train one prepared model; run by test_ddp.py."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

import narrowgate as ng
from tiny import GPT, text_loss


def main(rank: int, folder: Path) -> None:
    """Train six steps; on the fourth, one rank's loss overflows."""
    torch.set_num_threads(1)
    store = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    for recipe in ("bf16", "fp16", "bf16-mixed"):
        torch.manual_seed(0)
        model = GPT()
        model, optimizer = ng.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3), recipe)
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        applied = []
        for step in range(6):
            optimizer.zero_grad()
            loss = text_loss(wrapped, seed=2 * step + rank)
            optimizer.backward(loss * float("inf") if (step, rank) == (3, 1) else loss)
            applied.append(optimizer.step().applied)
        masters = ng.full_precision_state_dict(model, optimizer)
        out = {key: value.clone() for key, value in masters.items()}
        out["applied"] = torch.tensor(applied)
        out["machine"] = optimizer.param_groups[0]["narrowgate"]["machine"].clone()
        save_file(out, folder / f"{recipe}-{rank}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
