"""Plans: hash, JSON both ways, totals, diff, what is printed; descriptions of models as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace

import pytest
from hypothesis import given

from narrowgate.errors import NarrowgateError
from narrowgate.plan import ModelInfo, ModuleRow, ParamRow, Plan, diff, parse, resolve
from plan.models import gpt, model, model_infos, module, param, recipe_texts


@given(model_infos(), recipe_texts())
def test_a_plan_survives_json(info, text):
    plan = resolve(info, parse(text))
    back = Plan.from_json(plan.to_json())
    assert back == plan
    assert back.hash == plan.hash
    assert diff(plan, back) == []


@given(model_infos())
def test_a_description_survives_json(info):
    assert ModelInfo.from_json(info.to_json()) == info


@given(model_infos(), recipe_texts())
def test_a_plan_depends_on_the_description_and_the_recipe_alone(info, text):
    again = resolve(ModelInfo.from_json(info.to_json()), parse(str(parse(text))))
    assert again.hash == resolve(info, parse(text)).hash


def test_the_hash_is_the_same_in_another_process_with_other_string_hashes():
    script = (
        "from narrowgate.plan import Plan; import sys; print(Plan.from_json(sys.stdin.read()).hash)"
    )
    plan = resolve(gpt(), parse("bf16; blocks.*: fp16; nope: fp32"))
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            input=plan.to_json(),
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        )
        assert done.stdout.strip() == plan.hash
    assert len(plan.hash) == 64


def _others(row):
    """Give copies of a row which differ in one field each."""
    for field in fields(row):
        value = getattr(row, field.name)
        other = (*value, 1) if isinstance(value, tuple) else f"{value}x"
        yield field.name, replace(row, **{field.name: other})


def test_the_hash_sees_every_field():
    plan = resolve(gpt(), parse("bf16"))
    hashes = {plan.hash}
    changed = [
        replace(plan, recipe="fp16"),
        replace(plan, device="cuda"),
        replace(plan, notes=("a",)),
        replace(plan, params=plan.params[1:]),
        replace(plan, modules=plan.modules[::-1]),
    ]
    changed += [replace(plan, params=(r, *plan.params[1:])) for _, r in _others(plan.params[0])]
    changed += [replace(plan, modules=(r, *plan.modules[1:])) for _, r in _others(plan.modules[0])]
    hashes |= {other.hash for other in changed}
    assert len(hashes) == 1 + 5 + len(fields(ParamRow)) + len(fields(ModuleRow))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": 2}', "plan of schema 2; this version knows 1"),
        ("{", "this is no plan: "),
        ("[]", "this is no plan: "),
        ("3", "this is no plan: "),
        ("{}", "this is no plan: 'schema'"),
        ('{"schema": 1}', "this is no plan: 'recipe'"),
        (('{"schema": 1, "recipe": "bf16", "device": "cpu", "params": [{"shape": []}], '
         '"modules": [], "notes": []}'), "this is no plan: "),
    ],
)  # fmt: skip
def test_what_is_no_plan_is_refused(text, message):
    with pytest.raises(NarrowgateError) as caught:
        Plan.from_json(text)
    assert caught.value.message.startswith(message)
    assert caught.value.hint


def test_a_plan_of_an_unknown_field_is_refused():
    data = json.loads(resolve(gpt(), parse("bf16")).to_json())
    data["params"][0]["surprise"] = 1
    with pytest.raises(NarrowgateError, match=r"this is no plan: .*surprise"):
        Plan.from_json(json.dumps(data))


def test_a_description_of_another_schema_is_refused():
    data = json.loads(gpt().to_json())
    data["schema"] = 2
    with pytest.raises(NarrowgateError) as caught:
        ModelInfo.from_json(json.dumps(data))
    assert caught.value.message == "model description of schema 2; this version knows 1"


@pytest.mark.parametrize("text", ["{", "[]", "3", "{}", '{"schema": 1}', ('{"schema": 1, "device": '
                                  '"cpu", "modules": [{"fqn": ""}], "params": []}')])  # fmt: skip
def test_what_is_no_description_is_refused(text):
    with pytest.raises(NarrowgateError, match="this is no model description: ") as caught:
        ModelInfo.from_json(text)
    assert caught.value.hint == "a description is what ModelInfo.to_json() wrote"


# --- bytes ------------------------------------------------------------------------------------


def mixture():
    """Describe one parameter of each fate, of 10 to 50 elements."""
    return model(
        [module(""), module("l", "Linear"), module("n", "LayerNorm")],
        [
            param("l.weight", shape=(10,)),
            param("n.weight", shape=(20,)),
            param("l.bias", shape=(30,), trainable=False, optimized=False),
            param("x", shape=(40,), dtype="int8", optimized=False, trainable=False),
            param("free", shape=(50,), optimized=False),
        ],
    )


@pytest.mark.parametrize(
    ("recipe", "weights", "remainders", "gradients"),
    [
        # l.weight, n.weight, l.bias (frozen), free (no optimizer); x is not counted
        ("bf16", 10 * 2 + 20 * 4 + 30 * 2 + 50 * 4, 10 * 2, 10 * 2 + 20 * 4),
        ("fp16", 10 * 2 + 20 * 4 + 30 * 2 + 50 * 4, 10 * 2, 10 * 2 + 20 * 4),
        ("bf16(master=none)", 10 * 2 + 20 * 4 + 30 * 2 + 50 * 4, 0, 10 * 2 + 20 * 4),
        ("bf16-mixed", (10 + 20 + 30 + 50) * 4, 0, (10 + 20) * 4),
        ("fp32", (10 + 20 + 30 + 50) * 4, 0, (10 + 20) * 4),
    ],
)
def test_totals_are_what_a_hand_count_gives(recipe, weights, remainders, gradients):
    assert resolve(mixture(), parse(recipe)).totals() == {
        "weights": weights,
        "remainders": remainders,
        "gradients": gradients,
        "fp32": (10 + 20 + 30 + 50) * 4 + (10 + 20) * 4,
    }


def test_totals_of_a_tied_parameter_count_it_once():
    info = model(
        [module(""), module("a", "Embedding"), module("b", "Linear")],
        [param("a.weight", "b.weight", shape=(100,))],
    )
    assert resolve(info, parse("bf16")).totals() == {
        "weights": 200, "remainders": 200, "gradients": 200, "fp32": 800,
    }  # fmt: skip


def test_nothing_to_count_prints_without_a_ratio():
    text = resolve(model([module("")], []), parse("bf16")).render()
    assert "in FP32 0 B" in text
    assert "ratio" not in text


def test_the_printed_plan_groups_equal_rows_and_says_why():
    plan = resolve(gpt(), parse("bf16; head: fp32"))
    assert plan.render().splitlines() == [
        f"plan {plan.hash[:12]} of 'bf16; head: fp32' on cpu",
        "  weights 14,624 B, remainders 6,304 B, gradients 14,624 B; in FP32 41,856 B (ratio 0.85)",
        "",
        (
            "  bf16  master=split       1 parameters          2,048 elements           8,192 B  "
            "embed.weight"
        ),
        "        Embedding: bf16 half, with the remainder it is the FP32 master",
        (
            "  fp32  master=params      4 parameters             32 elements             128 B  "
            "blocks.0.norm.weight, ..."
        ),
        "        norm: scale and shift stay FP32",
        (
            "  bf16  master=split       8 parameters          1,104 elements           4,416 B  "
            "blocks.0.up.weight, ..."
        ),
        "        Linear: bf16 half, with the remainder it is the FP32 master",
        (
            "  fp32  master=params      1 parameters          2,048 elements           8,192 B  "
            "head.weight"
        ),
        "        fp32: parameters stay FP32",
        "",
        "  region    in bf16      1 modules  root",
        "  norm      in fp32      2 modules  sums in FP32, returns its input's format",
        "  region    in fp32      1 modules  its rule differs from its parent's bf16",
    ]


# --- diff -------------------------------------------------------------------------------------


def test_a_diff_names_what_changed_from_which_to_which():
    old, new = resolve(gpt(), parse("bf16")), resolve(gpt("cuda"), parse("bf16; head: fp32"))
    assert diff(old, new) == [
        "recipe: bf16 -> bf16; head: fp32",
        "device: cpu -> cuda",
        (
            "parameter head.weight: format bf16 -> fp32; master split -> params; reason Linear: "
            "bf16 half, with the remainder it is the FP32 master -> fp32: parameters stay FP32"
        ),
        "region head: only in the new plan",
    ]
    assert diff(new, old)[-1] == "region head: only in the old plan"


def test_a_diff_names_the_root_and_rows_that_only_one_plan_has():
    old, new = resolve(gpt(), parse("bf16")), resolve(gpt(), parse("fp32"))
    lines = diff(old, new)
    assert "region (root): only in the old plan" in lines
    assert "norm blocks.0.norm: only in the old plan" in lines
    smaller = replace(old, params=old.params[1:])
    assert diff(smaller, old) == ["parameter embed.weight: only in the new plan"]


def test_notes_are_no_difference():
    plan = resolve(gpt(), parse("bf16"))
    assert diff(plan, replace(plan, notes=("x",))) == []


@given(model_infos(), recipe_texts(), recipe_texts())
def test_a_diff_is_empty_only_for_plans_that_are_equal_but_for_notes(info, one, other):
    old, new = resolve(info, parse(one)), resolve(info, parse(other))
    assert (diff(old, new) == []) == (replace(old, notes=()) == replace(new, notes=()))
