"""B046: a running loss summed in bf16 stops growing: 1,000 losses of 10 give 4,096.

Broken invariant: what is logged is summed in FP64 on the host. In bf16 the sum stops where half an
ulp is larger than a loss, in fp16 it is off by a tenth.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import narrowgate as ng
from narrowgate.records import load_run, script

HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize(("dtype", "total"), [(torch.bfloat16, 4096.0), (torch.float16, 8824.0)])
def test_plain_torch_has_the_fault(dtype: torch.dtype, total: float) -> None:
    running = torch.zeros((), dtype=dtype)
    for _ in range(1000):
        running += torch.tensor(10.0, dtype=dtype)
    assert running.item() == total


@pytest.mark.parametrize("dtype", HALVES)
def test_a_batch_of_half_losses_is_logged_by_its_true_mean(run: Path, dtype: torch.dtype) -> None:
    losses = torch.full((1000,), 10.0, dtype=dtype)
    losses[0] = 1008.0  # a number of both formats
    ng.log(loss=losses)
    script.close()
    assert load_run(run).logs[0].values["loss"] == 10998 / 1000


@pytest.mark.parametrize("dtype", HALVES)
def test_the_loss_of_a_thousand_micro_batches_is_their_true_sum(
    run: Path, dtype: torch.dtype
) -> None:
    weight = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.0)
    model, optimizer = ng.prepare(weight, optimizer)
    for _ in range(1000):
        optimizer.backward(model(torch.ones(1, 1)).sum().to(dtype) * 0 + 10)
    optimizer.step()
    script.close()
    assert load_run(run).steps.loss == (10000.0,)
