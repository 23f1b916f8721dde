"""Where no kernel serves, prepare() says so: once, and with the reason."""

from __future__ import annotations

import logging

import pytest
import torch

import narrowgate as ng
from narrowgate import ops


@pytest.mark.parametrize("why", ["no C++ compiler was found", ""])
def test_prepare_says_once_that_no_kernel_serves(
    why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ops, "why_plain", lambda: why)
    with caplog.at_level(logging.WARNING, logger="narrowgate"):
        pairs = []
        for _ in range(2):
            model = torch.nn.Linear(2, 2)
            pairs.append(ng.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), "bf16"))
    for model, optimizer in pairs:
        ng.restore(model, optimizer)
    said = [record.getMessage() for record in caplog.records if "plain torch" in record.message]
    expected = f"narrowgate: steps run in plain torch, the same bits but slower: {why}"
    assert said == ([expected] if why else [])
