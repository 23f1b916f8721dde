"""Resolving: which rule decides, what goes to 16 bits, and what the plan says about the rest."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narrowgate.plan import NARROWED, parse, resolve
from plan.models import gpt, model, model_infos, module, param, recipe_texts


def row_of(plan, fqn):
    """Find the row of a parameter."""
    return next(row for row in plan.params if row.fqn == fqn)


def stored(plan):
    """Give format and master of each parameter."""
    return {row.fqn: (row.format, row.master) for row in plan.params}


def treatments(plan):
    """Give the treatments of each changed module."""
    return {(row.fqn, row.treatment): row.compute for row in plan.modules}


HALF, WIDE = ("bf16", "split"), ("fp32", "params")


# --- rules --------------------------------------------------------------------------------------


def test_without_rules_the_allow_list_goes_to_16_bits_and_norms_stay():
    plan = resolve(gpt(), parse("bf16"))
    for fqn, what in stored(plan).items():
        assert what == (WIDE if ".norm." in fqn else HALF), fqn
    assert plan.notes == ()


def test_a_rule_covers_the_modules_below_the_one_it_names():
    got = stored(resolve(gpt(), parse("bf16; blocks.1: fp32")))
    assert {fqn for fqn, what in got.items() if what == WIDE} == {
        fqn for fqn in got if fqn.startswith("blocks.1.") or ".norm." in fqn
    }


def test_a_rule_does_not_cover_a_module_whose_name_only_begins_alike():
    info = model(
        [module(""), module("head", "Linear"), module("head2", "Linear")],
        [param("head.weight"), param("head2.weight")],
    )
    got = stored(resolve(info, parse("bf16; head: fp32")))
    assert got == {"head.weight": WIDE, "head2.weight": HALF}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bf16; blocks.0.up: fp16; blocks.0: fp32", ("fp16", "split")),
        ("bf16; blocks.0: fp32; blocks.0.up: fp16", WIDE),
        ("bf16; *.up: fp16; *: fp32", ("fp16", "split")),
        ("bf16; blocks: bf16-mixed; *.up: fp16", WIDE),
        ("fp32; blocks: bf16(master=none)", ("bf16", "none")),
    ],
)
def test_the_first_rule_that_matches_wins_however_exact_a_later_one_is(text, expected):
    assert stored(resolve(gpt(), parse(text)))["blocks.0.up.weight"] == expected


def test_the_root_is_matched_by_globs_that_match_an_empty_path_only():
    info = model([module("", "Linear")], [param("weight")])
    assert stored(resolve(info, parse("bf16; *: fp32")))["weight"] == WIDE
    assert stored(resolve(info, parse("bf16; ?*: fp32")))["weight"] == HALF


def test_rules_that_match_nothing_or_never_win_are_told():
    plan = resolve(gpt(), parse("bf16; nope: fp32; blocks: fp32; *.up: fp16; head.weight: fp32"))
    assert plan.notes == (
        "the rule 'nope' matches no module",
        "the rule '*.up' is shadowed by the rules before it",
        "the rule 'head.weight' matches no module",
    )
    assert "note: the rule 'nope' matches no module" in plan.render()


@given(model_infos(), recipe_texts())
def test_every_module_gets_the_entry_that_the_grammar_says(info, text):
    """An oracle written the other way round: from each rule, over all paths below what it names."""
    recipe = parse(text)
    if recipe.is_passthrough:
        return
    decided = {}
    for rule in recipe.rules:
        named = [m.fqn for m in info.modules if fnmatchcase(m.fqn, rule.glob)]
        for m in info.modules:
            below = any(m.fqn == n or (n and m.fqn.startswith(f"{n}.")) for n in named)
            if below and m.fqn not in decided:
                decided[m.fqn] = rule.entry
    computes = {m.fqn: decided.get(m.fqn, recipe.default).compute for m in info.modules}
    regions = {row.fqn: row.compute for row in resolve(info, recipe).modules
               if row.treatment == "region"}  # fmt: skip
    for fqn, compute in computes.items():
        path = fqn  # the innermost region around a module is in the format of its entry
        while path not in regions:
            path = path.rpartition(".")[0]
        assert regions[path] == compute, fqn


# --- which parameters -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Linear", "Conv", "Embedding", "Attention", "RNN", "Other",
                                  "LayerNorm", "GroupNorm", "RMSNorm", "Norm"])  # fmt: skip
@pytest.mark.parametrize("name", ["weight", "bias", "in_proj_weight", "weight_hh_l3", "gate"])
def test_only_what_is_on_the_allow_list_is_narrowed(kind, name):
    listed = {
        "Linear": ("weight", "bias"),
        "Conv": ("weight", "bias"),
        "Embedding": ("weight",),
        "Attention": ("in_proj_weight",),
        "RNN": ("weight_hh_l3",),
    }
    info = model([module(""), module("m", kind, name="Mine")], [param(f"m.{name}")])
    row = resolve(info, parse("fp16")).params[0]
    if name in listed.get(kind, ()):
        assert (row.format, row.master) == ("fp16", "split")
        assert row.reason == f"{kind}: fp16 half, with the remainder it is the FP32 master"
    else:
        assert (row.format, row.master) == ("fp32", "params")
        norm = kind in ("LayerNorm", "GroupNorm", "RMSNorm", "Norm")
        assert row.reason == (
            "norm: scale and shift stay FP32"
            if norm
            else "raw parameter of Mine: not on the list of what is safe in 16 bits"
        )


@pytest.mark.parametrize("recipe", ["bf16-mixed", "fp16-mixed"])
def test_mixed_recipes_leave_every_parameter_in_fp32(recipe):
    plan = resolve(gpt(), parse(recipe))
    assert set(stored(plan).values()) == {WIDE}
    assert {row.reason for row in plan.params} == {f"{recipe}: parameters stay FP32"}


@pytest.mark.parametrize("recipe", ["fp32", "tf32"])
def test_pass_throughs_leave_formats_as_they_are_and_change_no_module(recipe):
    info = model([module("", "Linear")], [param("weight"), param("bias", dtype="bf16")])
    plan = resolve(info, parse(recipe))
    assert stored(plan) == {"weight": WIDE, "bias": ("bf16", "params")}
    assert plan.modules == ()


def test_without_a_master_the_reason_says_that_it_is_unsafe():
    info = model([module("", "Linear")], [param("weight")])
    row = resolve(info, parse("bf16(master=none)")).params[0]
    assert (row.format, row.master, row.remainder_bytes) == ("bf16", "none", 0)
    assert row.reason == "Linear: UNSAFE, no master: updates smaller than half an ulp are lost"


def test_frozen_foreign_and_forgotten_parameters():
    info = model(
        [module("", "Linear")],
        [
            param("weight", trainable=False, optimized=False),
            param("bias", optimized=False),
            param("table", dtype="int8", trainable=False, optimized=False),
            param("wide", dtype="float64"),
        ],
    )
    plan = resolve(info, parse("bf16"))
    assert stored(plan) == {
        "weight": ("bf16", "frozen"),
        "bias": ("fp32", "frozen"),
        "table": ("int8", "foreign"),
        "wide": ("float64", "foreign"),
    }
    assert [row.reason for row in plan.params] == [
        "Linear: frozen, rounded to nearest without a remainder",
        "asks for gradients, but no optimizer given to prepare holds it",
        "stored as int8: left alone",
        "stored as float64: left alone",
    ]


def test_parametrized_weights_stay_fp32():
    info = model([module("", "Linear", parametrized=True)], [param("weight")])
    row = resolve(info, parse("bf16")).params[0]
    assert (row.format, row.reason) == (
        "fp32",
        "parametrized: the weight is computed from it in FP32",
    )


# --- tied parameters ------------------------------------------------------------------------------


def tied(*kinds, shares=None):
    """Describe a model whose parts a, b, ... hold one parameter."""
    parts = "ab"[: len(kinds)]
    return model(
        [module(""), *(module(p, k, name=k) for p, k in zip(parts, kinds, strict=True))],
        [param(*(f"{p}.weight" for p in parts), shares=shares)],
    )


def test_a_tied_parameter_is_narrowed_once_if_all_its_owners_are():
    plan = resolve(tied("Embedding", "Linear"), parse("bf16"))
    assert stored(plan) == {"a.weight": HALF}
    assert plan.totals()["weights"] == 64 * 2


@pytest.mark.parametrize(
    ("kinds", "text", "reason"),
    [
        (("Embedding", "Linear"), "bf16; b: fp32",
         "fp32: parameters stay FP32 (tied; decided by b)"),
        (("Embedding", "Linear"), "bf16; a: bf16-mixed",
         "bf16-mixed: parameters stay FP32 (tied; decided by a)"),
        (("Linear", "Other"), "bf16",
         "raw parameter of Other: not on the list of what is safe in 16 bits (tied; decided by b)"),
        (("LayerNorm", "Linear"), "bf16", "norm: scale and shift stay FP32 (tied; decided by a)"),
        (("Embedding", "Linear"), "bf16; b: fp16", "tied between modules of different recipes"),
        (("Embedding", "Linear"), "bf16; b: bf16(master=none)",
         "tied between modules of different recipes"),
    ],
)  # fmt: skip
def test_one_owner_that_is_not_narrowed_keeps_a_tied_parameter_in_fp32(kinds, text, reason):
    row = resolve(tied(*kinds), parse(text)).params[0]
    assert (row.format, row.master, row.reason) == ("fp32", "params", reason)


def test_parameters_that_share_memory_without_being_one_stay_fp32():
    row = resolve(tied("Linear", shares="c.weight"), parse("bf16")).params[0]
    assert (row.format, row.reason) == ("fp32", "shares memory with c.weight")


# --- raw parameters -------------------------------------------------------------------------------


def experts(raw: int, linear: int):
    """Describe a model with raw parameters of two classes beside a Linear."""
    return model(
        [module("", name="Net"), module("moe", name="Experts"), module("out", "Linear")],
        [param("moe.w", shape=(raw,)), param("scale", shape=(0,)),
         param("out.weight", shape=(linear,))],
    )  # fmt: skip


def test_raw_parameters_are_told_loudly_from_one_percent_on():
    assert resolve(experts(99, 9_901), parse("bf16")).notes == ()
    assert resolve(experts(100, 9_900), parse("bf16")).notes == (
        (
            "100 of 10,000 elements stay FP32 as raw parameters of Experts, Net: put them into "
            "Linear, Conv or Embedding modules to have them narrowed"
        ),
    )


def test_raw_parameters_are_no_matter_where_nothing_is_narrowed():
    assert resolve(experts(100, 100), parse("bf16-mixed")).notes == ()
    assert resolve(experts(100, 100), parse("fp32")).notes == ()


# --- modules --------------------------------------------------------------------------------------


def test_modules_change_only_where_the_recipe_needs_it():
    modules = [
        module(""), module("e", "Embedding"), module("n", "LayerNorm"), module("r", "RNN"),
        module("p", "Parametrization"), module("b", "Norm"), module("l", "Linear"),
    ]  # fmt: skip
    root = {("", "region"): "bf16", ("p", "island"): "fp32"}
    lean = {("n", "norm"): "fp32"}
    rnn = {("r", "rnn"): "fp32"}
    wide = {("e", "embedding"): "fp32"}
    for device, text, expected in [
        ("cpu", "bf16", root | lean | rnn),
        ("cuda", "bf16", root | lean | rnn),
        ("cpu", "bf16(residual=fp32)", root | lean | rnn | wide),
        ("cpu", "bf16-mixed", root | rnn),
        ("cuda", "bf16-mixed", root),
        ("cpu", "fp32", {}),
    ]:
        assert treatments(resolve(model(modules, [], device), parse(text))) == expected, text


def test_a_rule_opens_a_region_where_the_format_changes_and_only_there():
    plan = resolve(gpt(), parse("bf16; blocks.1: fp32; head: bf16(master=none)"))
    regions = {row.fqn: (row.compute, row.reason) for row in plan.modules
               if row.treatment == "region"}  # fmt: skip
    assert regions == {
        "": ("bf16", "root"),
        "blocks.1": ("fp32", "its rule differs from its parent's bf16"),
    }
    assert ("blocks.0.norm", "norm") in treatments(plan)
    assert ("blocks.1.norm", "norm") not in treatments(plan)


def test_residual_may_stand_in_a_rule():
    got = treatments(resolve(gpt(), parse("bf16; embed: bf16(residual=fp32)")))
    assert got["embed", "embedding"] == "fp32"


# --- always ---------------------------------------------------------------------------------------


@given(model_infos(), recipe_texts())
def test_every_parameter_gets_one_row_with_a_reason_and_the_right_bytes(info, text):
    recipe = parse(text)
    plan = resolve(info, recipe)
    assert [row.fqn for row in plan.params] == [p.fqn for p in info.params]
    assert plan.recipe == str(recipe)
    for row, p in zip(plan.params, info.params, strict=True):
        assert row.reason
        elements = 1
        for size in p.shape:
            elements *= size
        width = {"fp32": 4, "bf16": 2, "fp16": 2}.get(row.format, 0)
        assert row.numel == elements
        assert row.weight_bytes == width * elements
        assert row.remainder_bytes == (2 * elements if row.master == "split" else 0)
        trained = row.master in ("params", "split", "none")
        assert row.gradient_bytes == (width * elements if trained else 0)
        assert trained == (p.optimized and p.dtype in ("fp32", "bf16", "fp16"))
        if row.master in ("split", "none"):
            assert row.format in ("bf16", "fp16")
            assert any(kind in row.reason for kind in NARROWED)


@given(st.data())
def test_a_rule_that_matches_nothing_changes_the_notes_and_the_recipe_only(data):
    info, text = data.draw(model_infos()), data.draw(recipe_texts())
    if parse(text).is_passthrough:
        return
    plan, more = resolve(info, parse(text)), resolve(info, parse(f"{text}; nowhere: fp32"))
    assert (more.params, more.modules) == (plan.params, plan.modules)
    assert set(more.notes) == {*plan.notes, "the rule 'nowhere' matches no module"}
