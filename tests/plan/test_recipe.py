"""The recipe grammar: what is written parses, prints and parses back; errors show the way out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowgate.errors import LossScaleError, NarrowgateError, RecipeError
from narrowgate.plan import ALIASES, BASES, KEYS, Entry, LossScale, Recipe, Rule, parse
from plan.models import GLOBS, MACHINE, narrows, recipe_texts, spellings, wishes

FP32_MAX = (2 - 2.0**-23) * 2.0**127


@given(recipe_texts())
def test_what_a_recipe_prints_parses_back_to_it(text):
    recipe = parse(text)
    assert parse(str(recipe)) == recipe
    assert str(parse(str(recipe))) == str(recipe)


@given(st.data())
def test_order_of_keys_and_spaces_mean_nothing(data):
    wish = data.draw(wishes())
    one, other = data.draw(spellings(wish)), data.draw(spellings(wish))
    assert parse(one) == parse(other)
    assert str(parse(one)) == str(parse(other))


@given(st.data())
def test_every_wish_is_kept(data):
    default, rules = data.draw(wishes())
    recipe = parse(data.draw(spellings((default, rules))))
    assert [rule.glob for rule in recipe.rules] == [glob for glob, _ in rules]
    for entry, call in zip(recipe.entries, [default, *(c for _, c in rules)], strict=True):
        base, keys = call
        usual = "split" if base in ("bf16", "fp16") else "params"
        assert entry.compute == base.removesuffix("-mixed")
        assert entry.master == keys.get("master", usual)
        assert entry.narrows == narrows(call)
        assert entry.residual == ("residual" in keys)
    keys = default[1]
    assert recipe.accumulate == ("accumulate" in keys)
    fp16 = any(entry.compute == "fp16" for entry in recipe.entries)
    said = keys.get("loss_scale", "dynamic" if fp16 else "off")
    scale = recipe.loss_scale
    assert scale.mode == (said if said in ("off", "dynamic") else "static")
    assert scale.preset == keys.get("preset", "narrowgate")
    assert [key for key, _ in scale.changes] == [key for key in MACHINE if key in keys]


def test_a_rule_keeps_its_glob_and_its_entry():
    recipe = parse("fp32 ;  a.*b : bf16( master = none ); c:fp16")
    assert recipe == Recipe(
        default=parse("fp32").default,
        rules=(
            Rule(glob="a.*b", entry=parse("bf16(master=none)").default),
            Rule(glob="c", entry=parse("fp16").default),
        ),
        accumulate=False,
        loss_scale=LossScale(mode="dynamic"),
    )
    assert str(recipe) == "fp32; a.*b: bf16(master=none); c: fp16"


def test_the_fields_of_a_recipe_are_what_the_words_say():
    assert parse("bf16(residual=fp32, accumulate=fp32)") == Recipe(
        default=Entry(base="bf16", compute="bf16", master="split", residual=True),
        rules=(),
        accumulate=True,
        loss_scale=LossScale(mode="off"),
    )
    assert parse("fp16(interval=500, init=2^10, preset=apex)").loss_scale == LossScale(
        mode="dynamic", preset="apex", changes=(("init", 1024.0), ("interval", 500.0))
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bf16(master=params)", "bf16-mixed"),
        ("fp16(master=params)", "fp16-mixed"),
        ("bf16-mixed(master=split)", "bf16"),
        ("fp16-mixed(master=none)", "fp16(master=none)"),
        ("bf16(master=split)", "bf16"),
        ("bf16(loss_scale=off)", "bf16"),
        ("fp16(loss_scale=dynamic)", "fp16"),
        ("fp16(preset=narrowgate)", "fp16"),
        ("fp16(loss_scale=1)", "fp16(loss_scale=off)"),
        ("fp16(loss_scale=2^16)", "fp16(loss_scale=65536)"),
        ("fp16(loss_scale=2**16)", "fp16(loss_scale=6.5536e4)"),
    ],
)
def test_two_spellings_of_one_wish_are_one_recipe(one, other):
    assert parse(one) == parse(other)
    assert str(parse(one)) == other.replace("6.5536e4", "65536")


@pytest.mark.parametrize("base", BASES)
def test_every_base_is_its_own_normal_form(base):
    compute, master, _ = BASES[base]
    entry = parse(base).default
    assert (str(parse(base)), entry.compute, entry.master) == (base, compute, master)
    assert entry.narrows == (base in ("bf16", "fp16"))
    assert entry.is_16bit == ("16" in base)
    assert parse(base).is_passthrough == (base in ("fp32", "tf32"))


# --- Apex's levels ----------------------------------------------------------------------------


def test_apex_levels_are_what_apex_says_of_them():
    assert set(ALIASES) == {"O0", "O1", "O2", "O3"}
    assert parse("O0").is_passthrough
    # O1: operators are cast and parameters stay FP32; O2: 16-bit model, FP32 masters; both scale.
    for level, master in (("O1", "params"), ("O2", "split")):
        recipe = parse(level)
        assert (recipe.default.compute, recipe.default.master) == ("fp16", master)
        assert recipe.loss_scale == LossScale(mode="dynamic", preset="apex")
    # O3: pure fp16, no masters, no loss scale.
    recipe = parse("O3")
    entry = recipe.default
    assert (entry.compute, entry.master, recipe.loss_scale.mode) == ("fp16", "none", "off")


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_a_level_prints_as_the_recipe_it_stands_for(level):
    assert str(parse(level)) == ALIASES[level]
    assert str(parse(f"{level}; head: fp32")) == f"{ALIASES[level]}; head: fp32"


# --- the loss scale ---------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["loss_scale", "init", "floor", "ceiling", "interval"])
@pytest.mark.parametrize(
    "value",
    ["nan", "NaN", "0", "-0.0", "-1", "inf", "-inf", "ten", "2^", "0x", "1e39", "2^128", "2^-150"],
)
def test_numbers_that_are_not_positive_and_finite_are_refused(key, value):
    with pytest.raises(LossScaleError) as caught:
        parse(f"fp16({key}={value})")
    assert caught.value.message == f"{key}={value} is not a positive finite FP32 number"
    assert caught.value.hint is not None
    assert f"for example {key}=2^16" in caught.value.hint


@pytest.mark.parametrize(
    ("written", "value"),
    [("2^16", 65536.0), ("2**16", 65536.0), ("2^-3", 0.125), ("128", 128.0), ("1e3", 1000.0)],
)
def test_a_static_loss_scale_is_the_number_written(written, value):
    scale = parse(f"fp16(loss_scale={written})").loss_scale
    assert (scale.mode, scale.value) == ("static", value)


@given(st.floats(min_value=2.0**-149, max_value=FP32_MAX))
def test_any_positive_number_prints_so_that_it_reads_back(value):
    recipe = parse(f"fp16(init={value!r})")
    assert recipe.loss_scale.changes == (("init", value),)
    assert parse(str(recipe)) == recipe


def test_the_loss_is_scaled_dynamically_if_there_is_fp16_anywhere_and_nothing_else_is_said():
    assert parse("bf16; head: fp16").loss_scale == LossScale(mode="dynamic")
    assert parse("fp32; head: fp16").loss_scale == LossScale(mode="dynamic")
    assert parse("bf16; head: fp32").loss_scale == LossScale(mode="off")
    assert parse("bf16(loss_scale=off); head: fp16").loss_scale == LossScale(mode="off")
    assert parse("fp32(init=8); head: fp16").loss_scale == LossScale(
        mode="dynamic", changes=(("init", 8.0),)
    )
    assert parse("fp16(loss_scale=off); head: fp16").loss_scale == LossScale(mode="off")
    assert parse("fp16(loss_scale=8); head: bf16").loss_scale == LossScale(mode="static", value=8.0)
    dynamic = parse("bf16(loss_scale=dynamic, preset=torch); head: fp16").loss_scale
    assert dynamic == LossScale(mode="dynamic", preset="torch")


# --- what means nothing -----------------------------------------------------------------------

BASE_LIST = "fp32, tf32, bf16-mixed, fp16-mixed, bf16, fp16"
KEY_LIST = (
    "master, residual, accumulate, loss_scale, preset, init, growth, backoff, interval, "
    "hysteresis, floor, ceiling"
)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("bf61", f"there is no recipe 'bf61'; allowed: {BASE_LIST}", "did you mean 'bf16'?"),
        (
            "bf16-mixd; head: fp32",
            f"there is no recipe 'bf16-mixd'; allowed: {BASE_LIST}",
            "did you mean 'bf16-mixed'?",
        ),
        (
            "bf16; head: fp_32",
            f"there is no recipe 'fp_32'; allowed: {BASE_LIST}",
            "did you mean 'fp32'?",
        ),
        ("O7", f"there is no recipe 'O7'; allowed: {BASE_LIST}",
         f"allowed: {BASE_LIST}, O0, O1, O2, O3"),
        ("", "the recipe '' does not begin with a base", f"allowed: {BASE_LIST}"),
        ("; a: fp32", "the recipe '; a: fp32' does not begin with a base",
         f"allowed: {BASE_LIST}"),
        ("bf16(fp32", ("'bf16(fp32' in the recipe 'bf16(fp32' is not of the form "
         "BASE(key=value, ...)"), f"bases: {BASE_LIST}"),
        ("bf16(master)", "'master' in the recipe 'bf16(master)' is not of the form key=value",
         f"keys: {KEY_LIST}"),
        ("bf16(=split)", "'=split' in the recipe 'bf16(=split)' is not of the form key=value",
         f"keys: {KEY_LIST}"),
        ("bf16(residul=fp32)",
         f"the recipe 'bf16(residul=fp32)' has no key 'residul'; allowed: {KEY_LIST}",
         "did you mean 'residual'?"),
        ("fp16(los_scale=8)",
         f"the recipe 'fp16(los_scale=8)' has no key 'los_scale'; allowed: {KEY_LIST}",
         "did you mean 'loss_scale'?"),
        ("bf16(master=splt)", "master=splt is not a value of master; allowed: split, params, none",
         "did you mean 'split'?"),
        ("bf16(residual=bf16)", "residual=bf16 is not a value of residual; allowed: fp32",
         "allowed: fp32"),
        ("bf16(accumulate=yes)", "accumulate=yes is not a value of accumulate; allowed: fp32",
         "allowed: fp32"),
        *((name, f"there is no recipe {name!r}; allowed: {', '.join(BASES)}",
           f"did you mean {ours!r}?")
          for name, ours in (("half", "fp16"), ("float16", "fp16"), ("BF16", "bf16"),
                             ("bfloat16", "bf16"), ("float32", "fp32"))),
        ("fp16(preset=apx)",
         ("preset=apx is not a value of preset; allowed: narrowgate, torch, apex, deepspeed, "
         "megatron"), "did you mean 'apex'?"),
        ("bf16(master=split, master=none)",
         "the key 'master' stands twice in 'bf16(master=split, master=none)': split and none",
         "keep one of the two"),
        ("bf16(init=4)", "only the dynamic loss scale takes init, and loss_scale is off",
         "add loss_scale=dynamic, or leave them out"),
        ("fp16(loss_scale=8, floor=4)",
         "only the dynamic loss scale takes floor, and loss_scale is 8",
         "add loss_scale=dynamic, or leave them out"),
        ("bf16(master=params, residual=fp32)",
         "residual=fp32 says nothing new in bf16-mixed: with FP32 parameters it is so already",
         "leave residual out, or use 16-bit parameters (bf16, fp16)"),
        ("fp16-mixed(accumulate=fp32)",
         "accumulate=fp32 says nothing new in fp16-mixed: with FP32 parameters it is so already",
         "leave accumulate out, or use 16-bit parameters (bf16, fp16)"),
        ("fp32(loss_scale=off)", "fp32 takes no keys; got loss_scale in 'fp32(loss_scale=off)'",
         "use bf16 or fp16, or leave the keys out"),
        ("bf16; head fp32",
         ("the rule 'head fp32' in the recipe 'bf16; head fp32' is not of the form GLOB: "
         "BASE(key=value)"), "for example 'bf16; lm_head: fp32' keeps the module lm_head in FP32"),
        ("bf16; : fp32",
         "the rule ': fp32' in the recipe 'bf16; : fp32' is not of the form GLOB: BASE(key=value)",
         "for example 'bf16; lm_head: fp32' keeps the module lm_head in FP32"),
        ("bf16;", "the rule '' in the recipe 'bf16;' is not of the form GLOB: BASE(key=value)",
         "for example 'bf16; lm_head: fp32' keeps the module lm_head in FP32"),
        ("bf16; head: tf32",
         "tf32 is a switch of the whole process and cannot stand in the rule 'head'",
         "use fp32 in the rule"),
        ("tf32; head: bf16",
         "tf32 is a switch of the whole process and takes no rules; got 'tf32; head: bf16'",
         "use 'fp32' as the default if some modules shall run in 16 bits"),
    ],
    ids=lambda value: value[:30],
)  # fmt: skip
def test_what_means_nothing_is_told_with_the_way_out(text, message, hint):
    with pytest.raises(RecipeError) as caught:
        parse(text)
    assert caught.value.message == message
    assert caught.value.hint == hint
    assert str(caught.value) == f"{message}\n\nhint: {hint}"


@pytest.mark.parametrize("key", ["accumulate", "loss_scale", "preset", *MACHINE])
def test_keys_of_the_whole_model_are_refused_in_rules(key):
    value = {"accumulate": "fp32", "preset": "apex"}.get(key, "8")
    with pytest.raises(RecipeError) as caught:
        parse(f"fp16; head: fp16({key}={value})")
    assert caught.value.message == (
        f"{key} holds for the whole model and cannot stand in the rule 'head'"
    )
    assert caught.value.hint == f"put it into the default: 'BASE({key}=...); head: ...'"


@pytest.mark.parametrize("key", ["interval", "hysteresis"])
def test_counts_must_be_whole_numbers(key):
    with pytest.raises(LossScaleError) as caught:
        parse(f"fp16({key}=2.5)")
    assert caught.value.message == f"{key}=2.5 is not a whole number"
    assert caught.value.hint == f"{key} counts optimizer steps"


@pytest.mark.parametrize("level", ALIASES)
def test_a_level_in_a_rule_is_refused(level):
    with pytest.raises(RecipeError) as caught:
        parse(f"bf16; head: {level}")
    assert caught.value.message == f"{level} is a whole recipe and cannot stand in the rule 'head'"
    assert caught.value.hint == f"it stands for {ALIASES[level]!r}: name the base"


def test_keys_of_the_whole_model_need_something_in_16_bits():
    assert parse("fp32(loss_scale=8); head: bf16").loss_scale.value == 8.0
    with pytest.raises(RecipeError, match="fp32 takes no keys; got loss_scale"):
        parse("fp32(loss_scale=8); head: fp32")


def test_accumulate_needs_16_bit_parameters_somewhere():
    assert parse("bf16-mixed(accumulate=fp32); head: bf16").accumulate
    with pytest.raises(RecipeError, match="accumulate=fp32 says nothing new in bf16-mixed"):
        parse("bf16-mixed(accumulate=fp32); head: fp32")


@pytest.mark.parametrize("given_value", [None, 3, b"bf16", ["bf16"]])
def test_what_is_no_string_is_refused(given_value):
    name = type(given_value).__name__
    with pytest.raises(RecipeError) as caught:
        parse(given_value)
    assert caught.value.message == f"a recipe is a string such as 'bf16'; got {name}"


@pytest.mark.parametrize("key", KEYS)
def test_a_key_with_one_letter_missing_names_the_key(key):
    for place in range(len(key)):
        with pytest.raises(RecipeError) as caught:
            parse(f"fp16({key[:place]}{key[place + 1 :]}=8)")
        assert caught.value.hint == f"did you mean {key!r}?"


def assert_parses_or_is_told(text):
    """Check that a text gives a recipe which prints back, or an error with a hint."""
    recipe, told = None, None
    try:
        recipe = parse(text)
    except NarrowgateError as error:
        told = error
    assert (recipe is not None and parse(str(recipe)) == recipe) or (told and told.hint)


@given(st.text(max_size=40))
def test_any_text_parses_or_is_told_and_nothing_else(text):
    assert_parses_or_is_told(text)


@given(recipe_texts(), st.integers(0, 80), st.sampled_from(";:=(),#\n^"))
def test_a_stray_character_is_told_or_parses_to_something_that_prints_back(text, place, stray):
    assert_parses_or_is_told(text[:place] + stray + text[place:])


def test_globs_of_the_strategy_are_usable():
    assert all(parse(f"bf16; {glob}: fp32").rules[0].glob == glob for glob in GLOBS)
