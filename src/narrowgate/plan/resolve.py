"""Resolving: one recipe against one model gives one plan.

Which tensor gets which format is decided here and nowhere else.

One narrowing rule holds: an allow-list by module kind goes to 16 bits, everything else stays FP32,
and the row says why. A list of exceptions the other way round fails on the first model with a
state-space matrix or a spectral norm in it. A tied parameter is narrowed only if all its owners
are.
"""

from __future__ import annotations

from collections import defaultdict
from fnmatch import fnmatchcase

from narrowgate.formats import FORMATS
from narrowgate.plan.model import ModelInfo, ModuleInfo, Owner, ParamInfo
from narrowgate.plan.recipe import Entry, Recipe
from narrowgate.plan.table import ModuleRow, ParamRow, Plan

__all__ = ["NARROWED", "resolve"]

#: The allow-list: module kinds, and which of their own parameters go to 16 bits. All of these feed
#: matrix products or look-ups, whose operands autocast would round to 16 bits anyway.
NARROWED: dict[str, tuple[str, ...]] = {
    "Linear": ("weight", "bias"),
    "Conv": ("weight", "bias"),
    "Embedding": ("weight",),
    "Attention": (
        "in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight",
    ),
    "RNN": ("weight_*", "bias_*"),
}  # fmt: skip

#: Kinds that would be on the list but for the way they are called.
_KEPT = {
    "RenormalisedEmbedding": "max_norm: the forward writes into the weight, past its remainder",
    "WeightedBag": "mode sum: its per-sample weights are FP32, and so must the weight be",
}

_NORMS = ("LayerNorm", "GroupNorm", "RMSNorm")
_FLOATS = ("fp32", "bf16", "fp16")


def resolve(model: ModelInfo, recipe: Recipe) -> Plan:
    """Resolve a recipe against a model.

    Args:
        model: The description of the model.
        recipe: The wish.

    Returns:
        The plan: a row for each parameter and each changed module, with reasons, and notes for
        rules that matched nothing, rules shadowed by earlier ones, large parts left in FP32.
    """
    chosen, rule_notes = _choose(model, recipe)
    modules = {module.fqn: module for module in model.modules}
    params = tuple(_param_row(param, modules, chosen, recipe) for param in model.params)
    notes = [*rule_notes, *_raw_notes(params, model, modules)]
    return Plan(
        recipe=str(recipe),
        device=model.device,
        params=params,
        modules=() if recipe.is_passthrough else _module_rows(model, chosen),
        notes=tuple(notes),
    )


def _choose(model: ModelInfo, recipe: Recipe) -> tuple[dict[str, Entry], list[str]]:
    """Find the entry of each module; say which rules do nothing."""
    chosen: dict[str, Entry] = {}
    matched: dict[int, int] = defaultdict(int)
    won: dict[int, int] = defaultdict(int)
    for module in model.modules:
        names = module.fqn.split(".")
        line = [".".join(names[: depth + 1]) for depth in range(len(names))]
        chosen[module.fqn] = recipe.default
        first = True
        for index, rule in enumerate(recipe.rules):
            if any(fnmatchcase(path, rule.glob) for path in line):
                matched[index] += 1
                if first:
                    chosen[module.fqn], first = rule.entry, False
                    won[index] += 1
    notes = []
    for index, rule in enumerate(recipe.rules):
        if not matched[index]:
            notes.append(f"the rule {rule.glob!r} matches no module")
        elif not won[index]:
            notes.append(f"the rule {rule.glob!r} is shadowed by the rules before it")
    return chosen, notes


def _param_row(
    param: ParamInfo, modules: dict[str, ModuleInfo], chosen: dict[str, Entry], recipe: Recipe
) -> ParamRow:
    """Decide about one parameter."""

    def row(stored: str, master: str, reason: str) -> ParamRow:
        return ParamRow(
            fqn=param.fqn, shape=param.shape, format=stored, master=master, reason=reason
        )

    if param.dtype not in FORMATS or param.dtype not in _FLOATS:
        return row(param.dtype, "foreign", f"stored as {param.dtype}: left alone")
    kept = "params" if param.optimized else "frozen"
    if recipe.is_passthrough:
        return row(param.dtype, kept, f"{recipe.default.base} leaves parameters as they are")
    if param.trainable and not param.optimized:
        return row(
            "fp32", "frozen", "asks for gradients, but no optimizer given to prepare holds it"
        )
    entries = []
    for owner in param.owners:
        entry = chosen[owner.module]
        why_not = _why_not(owner, modules[owner.module], entry)
        if why_not is not None:
            tied = "" if len(param.owners) == 1 else f" (tied; decided by {owner.module or 'root'})"
            return row("fp32", kept, why_not + tied)
        entries.append(entry)
    if len({(entry.compute, entry.master) for entry in entries}) > 1:
        return row("fp32", kept, "tied between modules of different recipes")
    if param.shares_storage_with is not None:
        return row("fp32", kept, f"shares memory with {param.shares_storage_with}")
    entry, kind = entries[0], modules[param.owners[0].module].kind
    if not param.optimized:
        return row(
            entry.compute, "frozen", f"{kind}: frozen, rounded to nearest without a remainder"
        )
    reasons = {
        "split": f"{kind}: {entry.compute} half, with the remainder it is the FP32 master",
        "none": f"{kind}: UNSAFE, no master: updates smaller than half an ulp are lost",
    }
    return row(entry.compute, entry.master, reasons[entry.master])


def _why_not(owner: Owner, module: ModuleInfo, entry: Entry) -> str | None:
    """Say why a parameter of this module is not narrowed; None if it is."""
    if not entry.narrows:
        return f"{entry.base}: parameters stay FP32"
    if module.parametrized:
        return "parametrized: the weight is computed from it in FP32"
    if module.kind in (*_NORMS, "Norm"):
        return "norm: scale and shift stay FP32"
    if module.kind in _KEPT:
        return _KEPT[module.kind]
    allowed = NARROWED.get(module.kind, ())
    if not any(fnmatchcase(owner.name, pattern) for pattern in allowed):
        return f"raw parameter of {module.class_name}: not on the list of what is safe in 16 bits"
    return None


def _raw_notes(
    params: tuple[ParamRow, ...], model: ModelInfo, modules: dict[str, ModuleInfo]
) -> list[str]:
    """Say loudly how much stays FP32 because nothing is known about it."""
    raw = [row for row in params if row.reason.startswith("raw parameter")]
    total = sum(row.numel for row in params)
    elements = sum(row.numel for row in raw)
    if not raw or elements * 100 < total:
        return []
    owners = {param.fqn: modules[param.owners[0].module].class_name for param in model.params}
    classes = ", ".join(sorted({owners[row.fqn] for row in raw}))
    told = f"{elements:,} of {total:,} elements stay FP32 as raw parameters of {classes}"
    return [f"{told}: put them into Linear, Conv or Embedding modules to have them narrowed"]


def _module_rows(model: ModelInfo, chosen: dict[str, Entry]) -> tuple[ModuleRow, ...]:
    """Decide which modules change, and how."""
    rows = []
    for module in model.modules:
        entry = chosen[module.fqn]
        parent = module.fqn.rpartition(".")[0]
        above = chosen[parent] if module.fqn else None
        if above is None or entry.compute != above.compute:
            reason = "root" if above is None else f"its rule differs from its parent's {above.base}"
            rows.append(_row(module, entry.compute, "region", reason))
        if not entry.is_16bit:
            continue
        if module.kind == "Parametrization":
            rows.append(
                _row(module, "fp32", "island", "weights are computed in FP32, then rounded")
            )
        elif module.kind == "RNN" and (entry.narrows or model.device == "cpu"):
            rows.append(_row(module, "fp32", "rnn", "fused FP32 recurrence, output rounded once"))
        elif module.kind in _NORMS and entry.narrows:
            rows.append(_row(module, "fp32", "norm", "sums in FP32, returns its input's format"))
        elif module.kind == "Embedding" and entry.residual:
            rows.append(_row(module, "fp32", "embedding", "residual=fp32 widens its output"))
    return tuple(rows)


def _row(module: ModuleInfo, compute: str, treatment: str, reason: str) -> ModuleRow:
    """Write the row of a module."""
    return ModuleRow(
        fqn=module.fqn, kind=module.kind, compute=compute, treatment=treatment, reason=reason
    )
