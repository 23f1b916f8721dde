from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gpu
import pytest
import rows
import torch
import traffic
import train_step
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode


def row(seconds: float, saved: float, live: float) -> dict[str, Any]:
    steps = [{"gradients": seconds, "update": 0.0}, {"gradients": 90.0, "update": 9.0}]
    return {"steps": steps, "saved": saved, "live": live, "rss": 1e8}


def judged(bf16: dict[str, Any], autocast: float, *, native: bool) -> dict[str, bool]:
    found = {"plain": row(1.0, 1e8, 1e8), "bf16": bf16, "autocast-bf16": row(autocast, 1e8, 1e8)}
    measures = train_step.judge(found, {"bf16": native, "fp16": False}, "t")
    return {m.name: m.is_met for m in measures if m.limit is not None}


def test_limits_are_met_at_the_limit() -> None:
    assert judged(row(1.25, 5.5e7, 7.2e7), 25.0, native=False) == {
        "t/bf16/speed": True,
        "t/bf16/speed over torch.autocast": True,
        "t/bf16/saved": True,
        "t/bf16/live": True,
    }


@pytest.mark.parametrize(
    ("bf16", "autocast", "missed"),
    [
        (row(1.26, 5.5e7, 7.2e7), 25.2, "t/bf16/speed"),
        (row(1.25, 5.5e7, 7.2e7), 24.9, "t/bf16/speed over torch.autocast"),
        (row(1.25, 5.6e7, 7.2e7), 25.0, "t/bf16/saved"),
        (row(1.25, 5.5e7, 7.3e7), 25.0, "t/bf16/live"),
    ],
)
def test_a_limit_is_missed_beyond_it(bf16: dict[str, Any], autocast: float, missed: str) -> None:
    verdicts = judged(bf16, autocast, native=False)
    assert [name for name, is_met in verdicts.items() if not is_met] == [missed]


def test_with_units_nothing_is_asked_against_torch_autocast() -> None:
    assert "t/bf16/speed over torch.autocast" not in judged(row(1.0, 5e7, 7e7), 1.0, native=True)


def test_only_a_busy_fp32_makes_times_inconclusive() -> None:
    found = {"plain": row(1.0, 1e8, 1e8), "bf16": row(2.0, 5e7, 7e7)}
    for plain, busy in ((1.7, False), (1.2, True)):
        for name, cores in (("plain", plain), ("bf16", 1.1)):  # bf16 is slow by its own fault
            found[name]["steps"][0]["cores"] = cores
        assert train_step.was_busy(found, 2) == busy
        measures = train_step.judge(found, {"bf16": False, "fp16": False}, "t", busy)
        speeds = {m.name for m in measures if m.name.endswith("speed")}
        assert {m.name for m in measures if m.is_busy} == (speeds if busy else set())


def test_rows_carry_the_machine(tmp_path: Path) -> None:
    measure = rows.Measure(name="a/b", value=2.0, unit="MB", ratio=0.5, limit="<= 0.55")
    rows.append_rows(tmp_path / "rows.jsonl", [measure])
    rows.append_rows(tmp_path / "rows.jsonl", [measure])
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    first, second = (json.loads(line) for line in lines)
    assert first["name"] == second["name"] == "a/b"
    assert (first["value"], first["ratio"], first["limit"]) == (2.0, 0.5, "<= 0.55")
    assert set(first["machine"]) == {"cpu", "cores", "vector_units"}
    assert first["torch"] == torch.__version__
    assert first["commit"]
    assert first["date"].endswith("+00:00")


def products(x: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    linear, conv = nn.Linear(6, 10).to(x.dtype), nn.Conv2d(4, 8, 3).to(x.dtype)
    batched = torch.bmm(x.view(2, 5, 6), x.view(2, 6, 5))
    return linear(x).sum() + (x @ x.T).sum() + batched.sum() + conv(images).sum()


def test_flops_are_torchs_own_count() -> None:
    x = torch.randn(10, 6, requires_grad=True)
    images = torch.randn(2, 4, 7, 7, requires_grad=True)
    with traffic.TrafficCounter(frozenset()) as counter:
        products(x, images).backward()
    oracle = FlopCounterMode(display=False)
    with oracle:
        products(x, images).backward()
    assert counter.traffic.flops == oracle.get_total_flops()
    assert counter.traffic.native_flops == counter.traffic.widened_bytes == 0


def test_attention_counts_two_products_forward_and_five_backward_half_of_them_if_causal() -> None:
    q = torch.randn(1, 2, 16, 8, requires_grad=True)
    for causal, share in ((False, 1.0), (True, 0.5)):
        with traffic.TrafficCounter(frozenset()) as counter:
            F.scaled_dot_product_attention(q, q, q, is_causal=causal).sum().backward()
        assert counter.traffic.flops == share * 7 * 2 * (2 * 16 * 16 * 8)


def test_widening_moves_six_bytes_for_each_element_of_a_product() -> None:
    a, b = torch.ones(3, 4, dtype=torch.bfloat16), torch.ones(4, 5, dtype=torch.bfloat16)
    with traffic.TrafficCounter(frozenset({torch.bfloat16})) as counter:
        a @ b
    assert counter.traffic.widened_bytes == 6 * (12 + 20 + 15)
    assert (counter.traffic.flops, counter.traffic.native_flops) == (120, 0)
    with traffic.TrafficCounter(frozenset({torch.float16})) as counter:
        a @ b
    assert (counter.traffic.flops, counter.traffic.native_flops) == (0, 120)


def test_a_prediction_adds_up_and_the_best_rates_are_taken() -> None:
    work = traffic.Traffic(flops=2.0, native_flops=6.0, widened_bytes=5.0, other_bytes=7.0)
    slow = traffic.Rates(flops=1.0, native_flops=2.0, widening=1.0, copying=2.0)
    fast = traffic.Rates(flops=2.0, native_flops=1.0, widening=5.0, copying=7.0)
    assert work.seconds(traffic.best_rates([slow, fast])) == 1.0 + 3.0 + 1.0 + 1.0


def test_without_a_gpu_the_gpu_script_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu.py"])
    assert gpu.main() == 0
    assert "no CUDA device: nothing was tested" in capsys.readouterr().out


def test_the_gpu_scripts_steps_train_alike_in_rehearsal() -> None:
    found = gpu.compare_steps("cpu", steps=1, compiled=False, deadline=math.inf)
    assert list(found) == ["amp-bf16", "bf16", "amp-fp16", "fp16"]
    losses = {name: torch.stack(contestant.losses) for name, contestant in found.items()}
    assert all(len(contestant.seconds) == 1 for contestant in found.values())
    # The same weights and batch: before the first update the losses differ by one rounding of the
    # logits (below 2 in size) at most, half an ulp of the format.
    for compute, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        first = losses[f"amp-{compute}"][0] - losses[compute][0]
        assert abs(first) <= torch.finfo(dtype).eps
    assert gpu.check_no_sync("cpu")
