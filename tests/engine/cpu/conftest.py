"""Each test says whether it wants the kernels in place; all leave the process as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from narrowgate.engine import cpu

HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The operands are small: on a busy machine more threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def stock() -> Iterator[None]:
    """Torch's own kernels, whatever ran before."""
    before = cpu.widened() if cpu.installed() else None
    cpu.uninstall()
    yield
    cpu.uninstall()
    if before is not None:
        cpu.install(widen=before)


@pytest.fixture
def both(stock: None) -> None:
    """Kernels for bf16 and fp16, also where the processor has units for one of them."""
    cpu.install(widen=HALVES)
