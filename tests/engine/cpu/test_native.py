"""The flags decide what is native; the probe reports and leaves no trace."""

from __future__ import annotations

import pytest
import torch

from narrowgate.engine import cpu
from narrowgate.engine.cpu import native

HALVES = {torch.bfloat16, torch.float16}


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("fp16", [False, True])
def test_the_flags_decide(monkeypatch: pytest.MonkeyPatch, bf16: bool, fp16: bool) -> None:
    monkeypatch.setattr(native, "native_bf16", lambda: bf16)
    monkeypatch.setattr(native, "native_fp16", lambda: fp16)
    assert cpu.native_dtypes() == {
        dtype for dtype, flag in ((torch.bfloat16, bf16), (torch.float16, fp16)) if flag
    }


def test_without_onednn_nothing_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(native, "native_bf16", lambda: True)
    assert cpu.native_dtypes() == frozenset()


def test_the_probe_times_each_operation_in_each_format_and_restores_the_threads() -> None:
    threads = torch.get_num_threads()
    rows = cpu.probe()
    assert {(row.operation, row.dtype) for row in rows} == {
        (operation, dtype) for operation in native._OPERATIONS for dtype in HALVES
    }
    assert all(0 < row.ratio < float("inf") for row in rows)
    assert torch.get_num_threads() == threads


def test_the_probe_runs_on_one_thread_and_restores_them_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def fail(_: torch.Tensor) -> None:
        seen.append(torch.get_num_threads())
        raise MemoryError

    monkeypatch.setattr(native, "_OPERATIONS", {"mm": (((2, 2),), fail)})
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(MemoryError):
            cpu.probe()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert seen == [1]


def test_the_ratio_is_the_least_time_over_fp32s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run takes the next of the given times: a fake clock, so that no real time is judged."""
    durations = {
        torch.float32: [9.0, 2.0, 9.0, 9.0, 9.0],
        torch.bfloat16: [8.0, 8.0, 8.0, 8.0, 1.0],
        torch.float16: [6.0, 7.0, 8.0, 9.0, 10.0],
    }
    clock = [0.0]
    warm: set[torch.dtype] = set()

    def run(x: torch.Tensor) -> None:
        if x.dtype not in warm:
            warm.add(x.dtype)
            return
        clock[0] += durations[x.dtype].pop(0)

    monkeypatch.setattr(native, "_OPERATIONS", {"mm": (((2, 2),), run)})
    monkeypatch.setattr(native.time, "perf_counter", lambda: clock[0])
    ratios = {row.dtype: row.ratio for row in cpu.probe()}
    assert ratios == {torch.bfloat16: 0.5, torch.float16: 3.0}
