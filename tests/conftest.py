"""What holds for every test: no clock decides, the same examples each time, no GPU is assumed."""

from __future__ import annotations

import hypothesis
import pytest

# A shared machine is slow at times: no deadline. Examples are derived from the test itself, so that
# a red test is red again.
hypothesis.settings.register_profile("narrowgate", deadline=None, derandomize=True)
hypothesis.settings.load_profile("narrowgate")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU on a machine without one, and say so."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in wanting:
        item.add_marker(pytest.mark.skip(reason="no CUDA device"))
