"""Every test of the engine starts and ends with torch's own kernels."""

from __future__ import annotations

import pytest
import torch

from narrowgate.engine import cpu


@pytest.fixture(autouse=True)
def own_kernels():
    torch.manual_seed(0)
    yield
    if cpu.installed():
        cpu.uninstall()
