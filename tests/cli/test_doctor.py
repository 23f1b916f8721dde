"""The torch half of `narrowgate doctor`: a note where facts contradict each other, only there."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

from narrowgate.engine import doctor, versions
from narrowgate.engine.cpu import ProbeRow

BF16 = torch.bfloat16


def rows(bf16, fp16=1.0):
    return [
        ProbeRow(operation="mm", dtype=dtype, ratio=ratio)
        for dtype, ratio in ((BF16, bf16), (torch.float16, fp16))
    ]


SLOW = "bf16 counts as native here, yet takes 20.0 times as long as FP32; is the machine busy?"
FAST = "bf16 does not count as native here, yet takes 0.25 of FP32's time; is the machine busy?"


@pytest.mark.parametrize(
    ("ratio", "native", "said"),
    [(20.0, False, []), (0.6, True, []), (20.0, True, [SLOW]), (0.25, False, [FAST])],
)
def test_a_probe_against_the_flags_is_noted(ratio, native, said):
    assert doctor.notes_on_probe(rows(ratio), frozenset({BF16} if native else ())) == said


@pytest.mark.parametrize(
    ("version", "known"),
    [("2.10.1", False), ("2.11.0", True), ("2.14.1+cu130", True), ("2.15.0", False)],
)
def test_a_torch_outside_the_supported_range_is_noted(version, known):
    assert (versions.note_on_torch(version) == "") == known


def test_the_oldest_torch_is_the_one_that_pip_is_told():
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    # newer ones than were tried are not refused: prepare() warns of them
    (oldest,) = re.search(r'"torch>=(\d+\.\d+)"', text).groups()
    assert oldest == "{}.{}".format(*versions.OLDEST_TORCH)


def test_prepare_warns_of_another_torch_once(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    versions.warn_once.cache_clear()
    try:
        with pytest.warns(UserWarning, match="torch 2.99.0 is outside 2.11 to 2.14"):
            versions.warn_once()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            versions.warn_once()
    finally:
        versions.warn_once.cache_clear()
