"""Every test of an op runs once per version that can serve it here, on one thread.

One thread: a parallel region per operation waits long on a busy machine. Where the C++ kernels were
not built, their half of the tests is skipped, and says why.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from narrowgate.ops import _native


def versions() -> list[object]:
    """The definition and the best C++ body always, lesser bodies with the slow tests."""
    plain, *bodies = _native.versions()
    if not bodies:
        reason = f"the C++ kernels do not serve: {_native.loaded.why}"
        return [plain, pytest.param("C++", marks=pytest.mark.skip(reason=reason))]
    *lesser, best = bodies
    return [plain, best, *(pytest.param(body, marks=pytest.mark.slow) for body in lesser)]


@pytest.fixture(autouse=True, params=versions())
def version(request: pytest.FixtureRequest) -> Iterator[str]:
    """Have one version serve the ops on the CPU."""
    with _native.serve(request.param):
        yield request.param


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Set torch to one thread, and back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
