"""The loss-scale machine: when to skip, back off, grow, and give up.

What is true here: the machine is a pure function of (state, finite), on records without torch. A
training run on a device carries the same numbers in tensors and computes the same transition with
``where``; the two are tested against each other. `next_state`, with all values but the counters in
fp32 and every product rounded to nearest-even, is exactly:

    # a step whose gradients are not all finite; the step is skipped
    left      = max(hysteresis_left - 1, 0)
    due       = left == 0
    lowered   = max(fp32(loss_scale * backoff), floor)
    bad_scale = where(due, lowered, loss_scale)
    stuck     = due and not lowered < loss_scale
    bad       = (bad_scale, -growth_delay, left, floor_skips + stuck)

    # a step with finite gradients; the step is applied
    steps      = good_steps + 1
    grow       = steps >= interval
    grown      = fp32(loss_scale * growth)                          # may be Inf
    good_scale = where(grow and isfinite(grown), min(grown, ceiling), loss_scale)
    reset      = (hysteresis_reset == "clean") or grow
    good       = (good_scale, where(grow, 0, steps), where(reset, hysteresis, hysteresis_left), 0)

    (loss_scale, good_steps, hysteresis_left, floor_skips) = where(finite, good, bad)
    halted = floor_skips >= patience

What follows: a scale within [floor, ceiling] stays there, so it is never 0, Inf or NaN. Hysteresis
is used up before a step counts as stuck, so at the floor training is halted after
``hysteresis - 1 + patience`` non-finite steps in a row at most. As growth and backoff are fp32
numbers, ``loss_scale * growth`` is exact in 64 bits, and rounding it is what an fp32 multiplication
does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from narrowgate.errors import LossScaleError, RecipeError
from narrowgate.policies.fp32 import (
    FP32_MAX,
    FP32_MIN,
    check_count,
    check_factor,
    check_scale,
    to_fp32,
)

__all__ = [
    "PRESETS",
    "LossScaleConfig",
    "LossScaleState",
    "initial_state",
    "is_halted",
    "next_state",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaleConfig:
    """What the machine is told; the defaults are the preset "narrowgate".

    Args:
        init: The first loss scale.
        growth: Factor of a growth, above 1 (1 is allowed if floor == ceiling).
        backoff: Factor of a back-off, between 0 and 1, both excluded.
        interval: How many finite steps in a row make the scale grow.
        hysteresis: How many non-finite steps it takes until the scale backs off; 1: the first.
        hysteresis_reset: What gives the hysteresis back: "clean": every finite step; "growth":
            only the end of an interval, whether or not the scale had room to grow.
        growth_delay: 1: the first growth after the start and after a non-finite step takes one
            finite step more than ``interval``, as in DeepSpeed. 0: it does not.
        floor: The smallest loss scale.
        ceiling: The largest loss scale.
        patience: After how many non-finite steps in a row that found no room to back off training
            is halted.

    Raises:
        LossScaleError: init, floor or ceiling is no positive finite fp32 number, or they are out
            of order.
        RecipeError: Another field is outside its range.

    Units:
        All factors and scales are fp32 numbers; interval, hysteresis, growth_delay and patience
        are optimizer steps.

    Example:
        >>> LossScaleConfig(init=1024.0, interval=500).ceiling
        16777216.0
    """

    # torch's and Apex's: gradients down to 2^-40 are lifted to fp16's smallest number, 2^-24. Too
    # high a start costs one skipped step per halving, too low a start an interval per doubling.
    init: float = 2.0**16
    # Powers of two: scaling and unscaling then round nothing.
    growth: float = 2.0
    backoff: float = 0.5
    # torch's: rare enough that the skip which an attempt to grow may cost is 1 step in 2000.
    interval: int = 2000
    hysteresis: int = 1
    hysteresis_reset: Literal["clean", "growth"] = "clean"
    growth_delay: int = 0
    # fp16's smallest normal number. Gradients that overflow fp16 at this scale exceed 65504 * 2^14,
    # about 10^9, unscaled: no loss scale mends that, the run has diverged.
    floor: float = 2.0**-14
    # Apex's. True gradients down to 2^-48 are then fp16 numbers, far below anything an optimizer
    # step can feel, and a loss may reach 2^103 before its product with the scale overflows fp32.
    ceiling: float = 2.0**24
    patience: int = 8

    def __post_init__(self) -> None:
        """Check every field, and name the one that is wrong."""
        for name, value in (("init", self.init), ("floor", self.floor), ("ceiling", self.ceiling)):
            check_scale(name, value)
        if self.floor > self.ceiling:
            raise LossScaleError(
                f"loss scale: floor={self.floor!r} lies above ceiling={self.ceiling!r}",
                hint="floor <= init <= ceiling is needed",
            )
        if not self.floor <= self.init <= self.ceiling:
            raise LossScaleError(
                f"loss scale: init={self.init!r} lies outside [floor, ceiling] = "
                f"[{self.floor!r}, {self.ceiling!r}]",
                hint="move init into the range, or widen it with floor= or ceiling=",
            )
        if self.growth != 1 or self.floor != self.ceiling:
            check_factor("growth", self.growth, above=1.0, below=FP32_MAX)
        check_factor("backoff", self.backoff, above=0.0, below=1.0)
        check_count("interval", self.interval, RecipeError, low=1)
        check_count("hysteresis", self.hysteresis, RecipeError, low=1)
        check_count("growth_delay", self.growth_delay, RecipeError, low=0, high=1)
        check_count("patience", self.patience, RecipeError, low=1)
        if self.hysteresis_reset not in ("clean", "growth"):
            raise RecipeError(
                f"loss scale: hysteresis_reset={self.hysteresis_reset!r}; allowed: "
                "'clean', 'growth'",
                hint="'clean' counts non-finite steps in a row, 'growth' all since the last growth",
            )

    @classmethod
    def static(cls, value: float) -> LossScaleConfig:
        """Make a machine whose scale never moves.

        Args:
            value: The loss scale.

        Returns:
            A configuration with init = floor = ceiling = value. Non-finite steps are skipped and
            counted as usual, and none of them finds room to back off.

        Raises:
            LossScaleError: The value is no positive finite fp32 number.

        Example:
            >>> config = LossScaleConfig.static(128.0)
            >>> next_state(initial_state(config), False, config)
            LossScaleState(loss_scale=128.0, good_steps=0, hysteresis_left=0, floor_skips=1)
        """
        check_scale("value", value)
        return cls(init=value, floor=value, ceiling=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaleState:
    """What the machine remembers between steps.

    Args:
        loss_scale: The scale of the next step: a Python float that holds an fp32 number.
        good_steps: Finite steps since the last growth or non-finite step; starts at
            -growth_delay.
        hysteresis_left: Non-finite steps until the scale backs off; 0: used up, each one does.
        floor_skips: Non-finite steps in a row that were due to back off and found no room.

    Raises:
        LossScaleError: loss_scale is no positive finite fp32 number, or a counter is no integer
            or too small: the remains of a damaged checkpoint.
    """

    loss_scale: float
    good_steps: int
    hysteresis_left: int
    floor_skips: int

    def __post_init__(self) -> None:
        """Refuse what no run of the machine can have left behind."""
        check_scale("loss_scale", self.loss_scale)
        check_count("good_steps", self.good_steps, LossScaleError, low=-1)
        check_count("hysteresis_left", self.hysteresis_left, LossScaleError, low=0)
        check_count("floor_skips", self.floor_skips, LossScaleError, low=0)


def initial_state(config: LossScaleConfig) -> LossScaleState:
    """Give the state before the first step.

    Args:
        config: The machine.

    Returns:
        Scale ``init``, hysteresis full, nothing counted.

    Example:
        >>> initial_state(PRESETS["deepspeed"])
        LossScaleState(loss_scale=65536.0, good_steps=-1, hysteresis_left=2, floor_skips=0)
    """
    return LossScaleState(
        loss_scale=float(config.init),
        good_steps=-config.growth_delay,
        hysteresis_left=config.hysteresis,
        floor_skips=0,
    )


def next_state(state: LossScaleState, finite: bool, config: LossScaleConfig) -> LossScaleState:
    """Give the state after one optimizer step; the module's pseudo-code, line by line.

    Args:
        state: The state before the step.
        finite: Whether every gradient of the step was finite. False: the step was skipped.
        config: The machine.

    Returns:
        The state after the step.

    Example:
        >>> config = LossScaleConfig(interval=2)
        >>> state = initial_state(config)
        >>> for finite in (False, True, True):
        ...     state = next_state(state, finite, config)
        ...     print(state.loss_scale, state.good_steps)
        32768.0 0
        32768.0 1
        65536.0 0
    """
    scale = state.loss_scale
    if not finite:
        left = max(state.hysteresis_left - 1, 0)
        due = left == 0
        lowered = max(to_fp32(scale * config.backoff), float(config.floor))
        return LossScaleState(
            loss_scale=lowered if due else scale,
            good_steps=-config.growth_delay,
            hysteresis_left=left,
            floor_skips=state.floor_skips + (due and not lowered < scale),
        )
    steps = state.good_steps + 1
    grow = steps >= config.interval
    grown = to_fp32(scale * config.growth)
    reset = config.hysteresis_reset == "clean" or grow
    return LossScaleState(
        loss_scale=min(grown, float(config.ceiling)) if grow and math.isfinite(grown) else scale,
        good_steps=0 if grow else steps,
        hysteresis_left=config.hysteresis if reset else state.hysteresis_left,
        floor_skips=0,
    )


def is_halted(state: LossScaleState, config: LossScaleConfig) -> bool:
    """Tell whether training must stop: every step is non-finite and no lower scale is allowed.

    Args:
        state: The state after a step.
        config: The machine.

    Returns:
        True from the ``patience``-th non-finite step in a row on that found no room to back off,
        until a finite step.
    """
    return state.floor_skips >= config.patience


PRESETS: Mapping[str, LossScaleConfig] = MappingProxyType(
    {
        "narrowgate": LossScaleConfig(),
        # torch.amp.GradScaler has no limits of its own; it keeps a scale whose growth would be
        # infinite, and falls to 0 below fp32's smallest number, where this machine halts instead.
        "torch": LossScaleConfig(floor=FP32_MIN, ceiling=FP32_MAX),
        # apex.amp's dynamic scaler: a ceiling, no floor.
        "apex": LossScaleConfig(floor=FP32_MIN, ceiling=2.0**24),
        # DeepSpeed keeps the scale as a Python float, without a ceiling. Its error at the floor,
        # raised at the first step without room, would be patience=1.
        "deepspeed": LossScaleConfig(
            init=2.0**16,
            interval=1000,
            hysteresis=2,
            hysteresis_reset="growth",
            growth_delay=1,
            floor=1.0,
            ceiling=FP32_MAX,
        ),
        # Megatron's DynamicGradScaler grows past 2^127 to Inf; this machine stays.
        "megatron": LossScaleConfig(
            init=2.0**32,
            interval=1000,
            hysteresis=2,
            hysteresis_reset="growth",
            floor=1.0,
            ceiling=FP32_MAX,
        ),
    }
)
"""The machines of other libraries, equal to theirs while their scale is finite and above 0.

``dataclasses.replace`` gives variants. ``hysteresis_reset="clean"`` with "deepspeed" is its
``consecutive_hysteresis``; with "torch" and ``hysteresis=2`` it is Apex's
``update_scale_hysteresis``.
"""
