"""The loss-scale machine against the scalers of other libraries, and at its limits."""

from __future__ import annotations

import dataclasses
import doctest
import json
import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from narrowgate.errors import LossScaleError, NarrowgateError, RecipeError
from narrowgate.formats import FORMATS
from narrowgate.formats.rounding import round_value
from narrowgate.policies import (
    PRESETS,
    LossScaleConfig,
    LossScaleState,
    fp32,
    initial_state,
    is_halted,
    loss_scale,
    next_state,
)
from policies.traces import SEQUENCES, TORCH_LIMITS, TRACES, Row

# ---------------------------------------------------------------- traces of other libraries


def run(config: LossScaleConfig, steps: Iterable[bool]) -> list[LossScaleState]:
    states = [initial_state(config)]
    for finite in steps:
        states.append(next_state(states[-1], finite, config))
    return states[1:]


def variant(preset: str, **changes: object) -> LossScaleConfig:
    return replace(PRESETS[preset], init=1024.0, interval=4, **changes)  # type: ignore[arg-type]


def scale_and_steps(s: LossScaleState) -> Row:
    return (s.loss_scale, s.good_steps)


def deepspeed_row(s: LossScaleState) -> Row:
    # DeepSpeed stays at 1 where we go to 0: "the next one backs off" against "used up".
    return (s.loss_scale, max(s.hysteresis_left, 1))


def scale_steps_hysteresis(s: LossScaleState) -> Row:
    return (s.loss_scale, s.good_steps, s.hysteresis_left)


# Which variant of which preset is the library's machine, and what its counters are here.
MACHINES: dict[str, tuple[LossScaleConfig, Callable[[LossScaleState], Row]]] = {
    "torch": (variant("torch"), scale_and_steps),
    "apex_amp": (variant("apex"), scale_and_steps),
    "deepspeed_hysteresis2": (variant("deepspeed"), deepspeed_row),
    "deepspeed_hysteresis2_consecutive": (
        variant("deepspeed", hysteresis_reset="clean"),
        deepspeed_row,
    ),
    "deepspeed_hysteresis1": (variant("deepspeed", hysteresis=1), deepspeed_row),
    "megatron_hysteresis2": (variant("megatron"), scale_steps_hysteresis),
    "megatron_hysteresis1": (variant("megatron", hysteresis=1), scale_steps_hysteresis),
    "apex_update_scale_hysteresis2": (variant("torch", hysteresis=2), scale_steps_hysteresis),
}


def their_row(row: Row) -> Row:
    """Map a counter that others let go below 0 to ours, which stops there."""
    assert row is not None
    return row[:2] + tuple(max(counter, 0) for counter in row[2:])


@pytest.mark.parametrize("sequence", SEQUENCES)
@pytest.mark.parametrize("library", TRACES)
def test_every_step_equals_the_librarys(library: str, sequence: str) -> None:
    config, columns = MACHINES[library]
    states = run(config, (step == "." for step in SEQUENCES[sequence]))
    rows = TRACES[library][sequence]
    ended = rows.index(None) if None in rows else len(states)  # None: the library stopped there
    assert [columns(s) for s in states[:ended]] == [their_row(r) for r in rows if r is not None]


def test_a_trace_was_kept_for_every_machine_and_sequence() -> None:
    assert list(TRACES) == list(MACHINES)
    assert all(list(rows) == list(SEQUENCES) for rows in TRACES.values())
    assert {None in r for rows in TRACES.values() for r in rows.values()} == {True, False}


@pytest.mark.parametrize("library", [n for n in TRACES if n.startswith("deepspeed")])
def test_where_deepspeed_raises_we_count_and_patience_decides(library: str) -> None:
    config, _ = MACHINES[library]
    raised = TRACES[library]["all_inf"].index(None)
    for patience in (1, 8):
        config = replace(config, patience=patience)
        states = run(config, [False] * (raised + patience))
        assert states[raised - 1].loss_scale == config.floor
        assert states[raised - 1].floor_skips == 0
        # DeepSpeed's error is patience 1; in between the scale stays at the floor.
        assert [is_halted(s, config) for s in states] == [False] * (raised + patience - 1) + [True]
        assert [s.floor_skips for s in states[raised:]] == list(range(1, patience + 1))
        assert {s.loss_scale for s in states[raised:]} == {config.floor}


@pytest.mark.parametrize(("scale", "step", "theirs"), TORCH_LIMITS)
def test_torch_at_the_limits_of_fp32(scale: float, step: str, theirs: float) -> None:
    config = replace(PRESETS["torch"], init=scale, interval=1)
    state = next_state(initial_state(config), step == ".", config)
    # Where torch falls to 0, and with it every gradient, we stay and count.
    assert state.loss_scale == (theirs if theirs > 0 else scale)
    assert state.floor_skips == (theirs == 0)


fp32_factors = (
    st.floats(1, 8, width=32, exclude_min=True),
    st.floats(0, 1, width=32, exclude_min=True, exclude_max=True),
)


@given(
    steps=st.lists(st.sampled_from([True, True, True, False]), max_size=40),
    init=st.floats(2.0**-149, fp32.FP32_MAX, width=32),
    growth=fp32_factors[0],
    backoff=fp32_factors[1],
    interval=st.integers(1, 5),
)
def test_torch_preset_equals_torchs_operator_while_above_zero(
    steps: list[bool], init: float, growth: float, backoff: float, interval: int
) -> None:
    config = replace(PRESETS["torch"], init=init, growth=growth, backoff=backoff, interval=interval)
    scale, tracker = torch.full((), init), torch.zeros((), dtype=torch.int32)
    state = initial_state(config)
    for finite in steps:
        found_inf = torch.full((), 0.0 if finite else 1.0)
        torch.ops.aten._amp_update_scale_(scale, tracker, found_inf, growth, backoff, interval)
        if scale.item() == 0:
            break
        state = next_state(state, finite, config)
        assert (state.loss_scale, state.good_steps) == (scale.item(), tracker.item())


# ---------------------------------------------------------------- properties

fp32_scales = st.floats(fp32.FP32_MIN, fp32.FP32_MAX, width=32)


@st.composite
def configs(draw: st.DrawFn) -> LossScaleConfig:
    # Near each other half of the time, so that floors and ceilings are met.
    if draw(st.booleans()):
        exponent = draw(st.integers(-145, 120))
        floor, init, ceiling = (2.0 ** (exponent + d) for d in (0, draw(st.integers(0, 3)), 4))
    else:
        floor, init, ceiling = sorted(draw(st.tuples(fp32_scales, fp32_scales, fp32_scales)))
    return LossScaleConfig(
        init=init,
        floor=floor,
        ceiling=ceiling,
        growth=draw(st.just(2.0) | fp32_factors[0]),
        backoff=draw(st.just(0.5) | fp32_factors[1]),
        interval=draw(st.integers(1, 5)),
        hysteresis=draw(st.integers(1, 4)),
        hysteresis_reset=draw(st.sampled_from(["clean", "growth"])),
        growth_delay=draw(st.integers(0, 1)),
        patience=draw(st.integers(1, 5)),
    )


finite_flags = st.lists(st.booleans() | st.just(False), max_size=60)


@given(config=configs(), steps=finite_flags)
def test_scale_stays_an_fp32_number_within_floor_and_ceiling(
    config: LossScaleConfig, steps: list[bool]
) -> None:
    before = initial_state(config)
    for finite, state in zip(steps, run(config, steps), strict=True):
        assert config.floor <= state.loss_scale <= config.ceiling
        assert struct.unpack("<f", struct.pack("<f", state.loss_scale))[0] == state.loss_scale
        # A skipped step never raises the scale, an applied one never lowers it.
        if finite:
            assert state.loss_scale >= before.loss_scale
        else:
            assert state.loss_scale <= before.loss_scale
        before = state


@given(config=configs(), steps=finite_flags)
def test_every_field_survives_a_dictionary_and_json(
    config: LossScaleConfig, steps: list[bool]
) -> None:
    for state in run(config, steps)[-1:]:
        assert LossScaleState(**json.loads(json.dumps(dataclasses.asdict(state)))) == state
    assert LossScaleConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


@given(value=fp32_scales, steps=finite_flags)
def test_a_static_scale_never_moves(value: float, steps: list[bool]) -> None:
    config = LossScaleConfig.static(value)
    assert {s.loss_scale for s in run(config, steps)} <= {value}


@given(config=configs(), clean=st.integers(0, 12))
def test_halted_by_exactly_patience_skips_without_room(config: LossScaleConfig, clean: int) -> None:
    # At the floor from the start, and no room to leave it.
    config = replace(config, init=config.floor, ceiling=config.floor)
    states = run(config, [True] * clean + [False] * 40)[clean:]
    halted = [is_halted(s, config) for s in states]
    # The first hysteresis - 1 skips spend the hysteresis, the next `patience` find no room.
    first = config.hysteresis - 1 + config.patience
    assert halted == [False] * (first - 1) + [True] * (40 - first + 1)
    # One finite step, and the count starts again.
    assert next_state(states[-1], True, config).floor_skips == 0


def test_the_step_which_reaches_the_floor_is_not_counted() -> None:
    config = LossScaleConfig(init=2.0, floor=1.0, patience=2)
    states = run(config, [False] * 3)
    assert [(s.loss_scale, s.floor_skips) for s in states] == [(1.0, 0), (1.0, 1), (1.0, 2)]
    assert [is_halted(s, config) for s in states] == [False, False, True]


def test_a_finite_step_between_skips_starts_the_count_again() -> None:
    config = replace(LossScaleConfig.static(1.0), patience=2)
    counts = [s.floor_skips for s in run(config, [False, True, False, True, False, False])]
    assert counts == [1, 0, 1, 0, 1, 2]


def test_backoff_that_rounds_to_nothing_counts_as_no_room() -> None:
    # Among the subnormals 3 * 2^-149 * 0.9 rounds to 3 * 2^-149: above the floor, but stuck.
    nine_tenths = fp32.to_fp32(0.9)
    config = replace(PRESETS["torch"], init=3 * 2.0**-149, backoff=nine_tenths, patience=1)
    (state,) = run(config, [False])
    assert state.loss_scale == 3 * 2.0**-149
    assert is_halted(state, config)


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_to_fp32_equals_the_rounding_oracle(value: float) -> None:
    assert fp32.to_fp32(value) == round_value(value, FORMATS["fp32"], saturate=False)


def test_limits_are_those_of_the_fp32_format() -> None:
    assert FORMATS["fp32"].max_finite == fp32.FP32_MAX
    assert FORMATS["fp32"].min_subnormal == fp32.FP32_MIN
    assert PRESETS["narrowgate"].floor == FORMATS["fp16"].min_normal


# ---------------------------------------------------------------- presets and bad values


def test_presets_are_what_the_libraries_document() -> None:
    def of(name: str) -> tuple[object, ...]:
        c = PRESETS[name]
        return (c.init, c.growth, c.backoff, c.interval, c.hysteresis, c.hysteresis_reset,
                c.growth_delay, c.floor, c.ceiling, c.patience)  # fmt: skip

    largest = fp32.FP32_MAX
    assert {name: of(name) for name in PRESETS} == {
        "narrowgate": (65536, 2, 0.5, 2000, 1, "clean", 0, 2.0**-14, 2.0**24, 8),
        "torch": (65536, 2, 0.5, 2000, 1, "clean", 0, 2.0**-149, largest, 8),
        "apex": (65536, 2, 0.5, 2000, 1, "clean", 0, 2.0**-149, 2.0**24, 8),
        "deepspeed": (65536, 2, 0.5, 1000, 2, "growth", 1, 1, largest, 8),
        "megatron": (2.0**32, 2, 0.5, 1000, 2, "growth", 0, 1, largest, 8),
    }
    with pytest.raises(TypeError):
        PRESETS["mine"] = LossScaleConfig()  # type: ignore[index]


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0, math.inf, 1e39, 1e-46, 10**400, "8", True])
@pytest.mark.parametrize("field", ["init", "floor", "ceiling"])
def test_a_scale_must_be_positive_and_finite(field: str, bad: object) -> None:
    with pytest.raises(LossScaleError) as error:
        LossScaleConfig(**{field: bad})  # type: ignore[arg-type]
    assert str(error.value) == (
        f"loss scale: {field}={bad!r} is no positive finite number; allowed: "
        "1.401298464324817e-45 to 3.4028234663852886e+38\n\n"
        "hint: 65536.0 is the usual start; loss_scale=off trains without one"
    )


@pytest.mark.parametrize("bad", [math.nan, 0.0, -2.0, math.inf])
def test_a_static_scale_must_be_positive_and_finite(bad: float) -> None:
    with pytest.raises(LossScaleError, match=r"loss scale: value=.* is no positive finite number"):
        LossScaleConfig.static(bad)


ALLOWED_GROWTH = "numbers above 1.0 and below 3.4028234663852886e+38"


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (
            {"init": 0.1},
            LossScaleError,
            (
                "loss scale: init=0.1 is no fp32 number, and the scale is computed in fp32\n\n"
                "hint: the nearest is 0.10000000149011612; powers of two are exact"
            ),
        ),
        (
            {"floor": 4.0, "ceiling": 2.0},
            LossScaleError,
            (
                "loss scale: floor=4.0 lies above ceiling=2.0\n\n"
                "hint: floor <= init <= ceiling is needed"
            ),
        ),
        (
            {"init": 2.0**25},
            LossScaleError,
            (
                "loss scale: init=33554432.0 lies outside [floor, ceiling] = "
                "[6.103515625e-05, 16777216.0]\n\n"
                "hint: move init into the range, or widen it with floor= or ceiling="
            ),
        ),
        *(
            (
                {"growth": bad},
                RecipeError,
                (
                    f"loss scale: growth={bad!r}; allowed: {ALLOWED_GROWTH}\n\n"
                    "hint: growth=2.0 and backoff=0.5 are usual; powers of two round nothing"
                ),
            )
            for bad in (1.0, 0.5, -2.0, math.inf, math.nan, "2")
        ),
        *(
            (
                {"backoff": bad},
                RecipeError,
                (
                    f"loss scale: backoff={bad!r}; allowed: numbers above 0.0 and below 1.0\n\n"
                    "hint: growth=2.0 and backoff=0.5 are usual; powers of two round nothing"
                ),
            )
            for bad in (0.0, 1.0, -0.5, 2.0, math.nan)
        ),
        (
            {"backoff": 0.9},
            RecipeError,
            (
                "loss scale: backoff=0.9 is no fp32 number, and the scale is computed in fp32\n\n"
                "hint: the nearest is 0.8999999761581421; powers of two are exact"
            ),
        ),
        *(
            (
                {field: bad},
                RecipeError,
                (
                    f"loss scale: {field}={bad!r}; allowed: integers >= 1\n\n"
                    f"hint: {field} counts optimizer steps"
                ),
            )
            for field in ("interval", "hysteresis", "patience")
            for bad in (0, -1, 2.5, True)
        ),
        (
            {"growth_delay": 2},
            RecipeError,
            (
                "loss scale: growth_delay=2; allowed: integers from 0 to 1\n\n"
                "hint: growth_delay counts optimizer steps"
            ),
        ),
        (
            {"hysteresis_reset": "never"},
            RecipeError,
            (
                "loss scale: hysteresis_reset='never'; allowed: 'clean', 'growth'\n\n"
                "hint: 'clean' counts non-finite steps in a row, 'growth' all since the last growth"
            ),
        ),
    ],
)
def test_each_bad_field_is_named(
    fields: dict[str, object], error: type[NarrowgateError], message: str
) -> None:
    with pytest.raises(error) as caught:
        LossScaleConfig(**fields)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_growth_one_is_allowed_only_for_a_static_scale() -> None:
    assert replace(LossScaleConfig.static(8.0), growth=1.0).growth == 1.0
    with pytest.raises(RecipeError, match=r"growth=1\.0; allowed"):
        LossScaleConfig(growth=1.0)


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("loss_scale", math.nan),
        ("loss_scale", 0.0),
        ("loss_scale", 0.1),
        ("good_steps", -2),
        ("good_steps", 1.0),
        ("hysteresis_left", -1),
        ("floor_skips", -1),
    ],
)
def test_a_damaged_state_is_refused(field: str, bad: float) -> None:
    good = dataclasses.asdict(initial_state(LossScaleConfig()))
    with pytest.raises(LossScaleError, match=f"loss scale: {field}="):
        LossScaleState(**{**good, field: bad})


@pytest.mark.parametrize("module", [fp32, loss_scale])
def test_examples_in_docstrings(module: ModuleType) -> None:
    failed, attempted = doctest.testmod(module)
    assert attempted > 0
    assert failed == 0
