"""Two ranks train inside of one run's folder; started by test_recording_ranks.py in three ways."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import narrowgate as ng


def work(rank: int, store: str | None) -> None:
    """Train three steps on two ranks; every rank says everything."""
    torch.set_num_threads(1)
    if store is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    rank = dist.get_rank()
    ng.seed(0)
    model = torch.nn.Linear(4, 2)
    model, optimizer = ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert model.weight.dtype is torch.bfloat16, "every rank takes the pilot's recipe"
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    for step in range(3):
        optimizer.zero_grad()
        optimizer.backward(wrapped(torch.full((2, 4), 1.0 + rank)).mean())
        optimizer.step()
        ng.log(step=step, rank=rank)
    ng.result(rank=rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        torch.multiprocessing.spawn(work, args=(f"file://{os.getcwd()}/rendezvous",), nprocs=2)
    else:
        work(0, None)
