"""The loss-scale machine on the device does what the host's does, step by step."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from narrowgate.engine.scaling import LossScaler, config_of
from narrowgate.plan import parse
from narrowgate.policies import PRESETS, LossScaleConfig, initial_state, is_halted, next_state

VARIANTS = {
    **{name: replace(config, interval=3) for name, config in PRESETS.items()},
    "static": LossScaleConfig.static(128.0),
    "narrow": LossScaleConfig(init=4.0, floor=2.0, ceiling=8.0, interval=2, patience=3),
    "odd factors": LossScaleConfig(init=1000.0, growth=1.5, backoff=0.375, interval=2),
    "forgiving": LossScaleConfig(init=8.0, floor=1.0, hysteresis=3, interval=2, patience=2),
    "at the top": LossScaleConfig(init=2.0**127, ceiling=2.0**127, interval=1),
    "at the bottom": LossScaleConfig(init=2.0**-148, floor=2.0**-149, interval=2),
}


@pytest.mark.parametrize("name", VARIANTS)
@given(verdicts=st.lists(st.booleans(), max_size=40))
@settings(max_examples=40)
def test_device_equals_host_exact(name: str, verdicts: list[bool]) -> None:
    config = VARIANTS[name]
    scaler, state = LossScaler(config, torch.device("cpu")), initial_state(config)
    for step, finite in enumerate(verdicts):
        halted_before = is_halted(state, config)
        if not halted_before:  # a halted run stays halted; the host's caller stops calling
            state = next_state(state, finite, config)
        skip, halted = scaler.advance(torch.tensor(finite))
        assert bool(skip) == (halted_before or not finite)
        assert bool(halted) == is_halted(state, config)
        told = scaler.read()
        assert told["loss_scale"] == state.loss_scale
        assert told["good_steps"] == state.good_steps
        assert told["hysteresis_left"] == state.hysteresis_left
        assert told["floor_skips"] == state.floor_skips
        if not halted_before:
            assert told["attempted"] == step + 1
            assert told["applied"] == sum(verdicts[: step + 1])


def test_recipe_reaches_the_machine() -> None:
    config = config_of(parse("fp16(preset=megatron, init=2^10, interval=50, floor=2)").loss_scale)
    expected = replace(PRESETS["megatron"], init=1024.0, interval=50, floor=2.0)
    assert config == expected
    assert config_of(parse("fp16(loss_scale=96)").loss_scale) == LossScaleConfig.static(96.0)
    assert config_of(parse("bf16").loss_scale) == LossScaleConfig.static(1.0)
