"""Recipes as people write them, and descriptions of models, for the tests of the plan."""

from __future__ import annotations

from hypothesis import strategies as st

from narrowgate.plan import ModelInfo, ModuleInfo, Owner, ParamInfo

SPACES = st.sampled_from(["", " ", "  "])
NUMBERS = ("1024", "2^16", "2**3", "2^-3", "0.5", "65536.0", "1e3", "3")
COUNTS = ("1024", "2^10", "2**3", "1e3", "3")
MACHINE = ("init", "growth", "backoff", "interval", "hysteresis", "floor", "ceiling")
GLOBS = ("head", "blocks.*", "*.mlp", "blocks.[01].attention", "?x", "*", "embed*")

#: A base, and keys with their values, as they are said.
Call = tuple[str, dict[str, str]]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Draw a base and those keys of it which may stand in a rule, too."""
    base = draw(st.sampled_from(["fp32", "bf16", "fp16", "bf16-mixed", "fp16-mixed"]))
    keys: dict[str, str] = {}
    if base != "fp32":
        master = draw(st.sampled_from([None, "split", "params", "none"]))
        if master is not None:
            keys["master"] = master
        if narrows((base, keys)) and draw(st.booleans()):
            keys["residual"] = "fp32"
    return base, keys


def narrows(call: Call) -> bool:
    """Say whether an entry brings 16-bit parameters."""
    base, keys = call
    return keys.get("master", "split" if base in ("bf16", "fp16") else "params") != "params"


@st.composite
def wishes(draw: st.DrawFn) -> tuple[Call, list[tuple[str, Call]]]:
    """Draw a default and rules whose keys make sense together."""
    if draw(st.integers(0, 15)) == 0:
        return ("tf32", {}), []
    base, keys = draw(calls())
    rules = draw(st.lists(st.tuples(st.sampled_from(GLOBS), calls()), max_size=3))
    entries = [(base, keys), *(call for _, call in rules)]
    whole: dict[str, str] = {}
    if any(narrows(call) for call in entries) and draw(st.booleans()):
        whole["accumulate"] = "fp32"
    if any(call[0] != "fp32" for call in entries):
        scale = draw(st.sampled_from([None, "off", "dynamic", *NUMBERS]))
        if scale is not None:
            whole["loss_scale"] = scale
        usual = any(call[0].startswith("fp16") for call in entries)
        if scale == "dynamic" or (scale is None and usual):
            preset = draw(st.sampled_from([None, "narrowgate", "torch", "apex", "megatron"]))
            if preset is not None:
                whole["preset"] = preset
            for key in draw(st.sets(st.sampled_from(MACHINE))):
                counts = key in ("interval", "hysteresis")
                whole[key] = draw(st.sampled_from(COUNTS if counts else NUMBERS))
    return (base, {**keys, **whole}), rules


@st.composite
def spellings(draw: st.DrawFn, wish: tuple[Call, list[tuple[str, Call]]]) -> str:
    """Write a wish down: keys in any order, spaces wherever they may stand."""

    def spelled(call: Call) -> str:
        base, keys = call
        if not keys:
            return base + draw(st.sampled_from(["", " ", "()", "( )"]))
        said = [
            f"{draw(SPACES)}{key}{draw(SPACES)}={draw(SPACES)}{keys[key]}{draw(SPACES)}"
            for key in draw(st.permutations(sorted(keys)))
        ]
        return f"{base}{draw(SPACES)}({','.join(said)})"

    default, rules = wish
    parts = [spelled(default)]
    for glob, call in rules:
        parts.append(f"{draw(SPACES)}{glob}{draw(SPACES)}:{draw(SPACES)}{spelled(call)}")
    return f"{draw(SPACES)};".join(parts)


def recipe_texts() -> st.SearchStrategy[str]:
    """Write any wish down."""
    return wishes().flatmap(spellings)


def module(fqn: str, kind: str = "Other", *, name: str = "", parametrized: bool = False):
    """Describe a module."""
    return ModuleInfo(fqn=fqn, kind=kind, class_name=name or kind, parametrized=parametrized)


def param(*fqns: str, shape=(8, 8), dtype="fp32", trainable=True, optimized=True, shares=None):
    """Describe a parameter by all its names."""
    owners = tuple(Owner(module=f.rpartition(".")[0], name=f.rpartition(".")[2]) for f in fqns)
    return ParamInfo(
        fqn=fqns[0],
        owners=owners,
        shape=shape,
        dtype=dtype,
        trainable=trainable,
        optimized=optimized,
        shares_storage_with=shares,
    )


def model(modules, params, device="cpu") -> ModelInfo:
    """Describe a model."""
    return ModelInfo(device=device, modules=tuple(modules), params=tuple(params))


def gpt(device: str = "cpu") -> ModelInfo:
    """Describe a GPT of two blocks whose head is not tied."""
    modules = [module("", name="GPT"), module("embed", "Embedding"), module("blocks")]
    params = [param("embed.weight", shape=(256, 8))]
    for i in range(2):
        b = f"blocks.{i}"
        modules += [module(b, name="Block"), module(f"{b}.norm", "LayerNorm")]
        modules += [module(f"{b}.up", "Linear"), module(f"{b}.down", "Linear")]
        params += [param(f"{b}.norm.weight", shape=(8,)), param(f"{b}.norm.bias", shape=(8,))]
        params += [param(f"{b}.up.weight", shape=(32, 8)), param(f"{b}.up.bias", shape=(32,))]
        params += [param(f"{b}.down.weight", shape=(8, 32)), param(f"{b}.down.bias", shape=(8,))]
    modules += [module("head", "Linear")]
    params += [param("head.weight", shape=(256, 8))]
    return model(modules, params, device)


@st.composite
def model_infos(draw: st.DrawFn) -> ModelInfo:
    """Draw a description of a model: a tree of modules, parameters of any kind in it."""
    kinds = ["Other", "Linear", "Conv", "Embedding", "Attention", "RNN"]
    kinds += ["LayerNorm", "GroupNorm", "RMSNorm", "Norm", "Parametrization"]
    fqns = [""]
    for number in range(draw(st.integers(0, 6))):
        above = draw(st.sampled_from(fqns))
        fqns.append(f"{above}.m{number}" if above else f"m{number}")
    modules = [
        module(f, draw(st.sampled_from(kinds)), name="C", parametrized=draw(st.booleans()))
        for f in sorted(fqns)
    ]
    params = []
    for number in range(draw(st.integers(0, 5))):
        homes = draw(st.lists(st.sampled_from(fqns), min_size=1, max_size=2, unique=True))
        name = draw(st.sampled_from(["weight", "bias", "weight_ih_l0", "in_proj_weight", "gate"]))
        names = [f"{f}.{name}{number}" if f else f"{name}{number}" for f in homes]
        params.append(
            param(
                *names,
                shape=tuple(draw(st.lists(st.integers(0, 9), max_size=3))),
                dtype=draw(st.sampled_from(["fp32", "bf16", "fp16", "float64", "int8"])),
                trainable=draw(st.booleans()),
                optimized=draw(st.booleans()),
                shares=draw(st.sampled_from([None, "elsewhere"])),
            )
        )
    return model(modules, params, draw(st.sampled_from(["cpu", "cuda"])))
