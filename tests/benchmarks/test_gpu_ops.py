"""The GPU script's part on ops, rehearsed on the CPU: it sees a wrong bit, and times every op."""

from __future__ import annotations

import gpu_ops
import pytest
import torch

from narrowgate import ops


def test_what_serves_here_has_the_definitions_bits() -> None:
    """C++ in the rehearsal, Triton on a GPU; every call of every op."""
    assert gpu_ops.conform("cpu") == []
    assert gpu_ops.waiting_ops("cpu") == []


def test_a_wrong_bit_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowest bit of one remainder, in what serves and not in the definition."""
    split, calls = ops.split_master, []

    def broken(master: torch.Tensor, format: str) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: A002
        half, remainder = split(master, format)
        calls.append(half)
        if len(calls) % 2:  # each call: what serves, then the definition
            remainder ^= 1
        return half, remainder

    monkeypatch.setattr(ops, "split_master", broken)
    wrong = gpu_ops.conform("cpu")
    assert wrong
    assert all(line.startswith("split_master, call ") for line in wrong)


def test_every_op_is_timed_beside_its_bytes() -> None:
    """And beside its definition."""
    rows = {measure.name for measure in gpu_ops.measure_ops("cpu", 20_000, 1)}
    for name in gpu_ops.NAMES:
        assert any(row.startswith(f"ops/{name}") and "bytes" in row for row in rows)
        assert any(row.startswith(f"ops/{name}") and "plain torch" in row for row in rows)
