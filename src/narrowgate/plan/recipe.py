"""The recipe: what the user wishes, as one frozen value that prints as one line and parses back.

    BASE(key=value, ...); GLOB: BASE(...); GLOB: BASE(...)

The first entry is the default. Each further entry is a rule: its glob is matched on module paths,
it covers the modules below a module that it matches, and the first rule that matches wins.
Everything numeric is said here and nowhere else, so a recipe string is the whole of an experiment's
precision.

`str(recipe)` is the normal form: keys at their default are left out, the rest stand in the order of
`KEYS`, and two spellings of one wish (`bf16(master=params)`, `bf16-mixed`) print alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from narrowgate.errors import LossScaleError, RecipeError, nearest

__all__ = ["ALIASES", "BASES", "KEYS", "Entry", "LossScale", "Recipe", "Rule", "parse"]

#: Each base: its compute format, where its master lives unless said otherwise, what it is.
BASES: dict[str, tuple[str, str, str]] = {
    "fp32": ("fp32", "params", "changes nothing: the reference"),
    "tf32": ("tf32", "params", "FP32 storage; CUDA matrix products may round inputs to TF32"),
    "bf16-mixed": ("bf16", "params", "FP32 parameters under autocast to bf16, as torch.amp does"),
    "fp16-mixed": ("fp16", "params", "FP32 parameters under autocast to fp16, with loss scaling"),
    "bf16": ("bf16", "split", "bf16 parameters; a 16-bit remainder makes the exact FP32 master"),
    "fp16": ("fp16", "split", "fp16 parameters with a 16-bit remainder, with loss scaling"),
}

#: Apex's optimization levels, as the recipes which do what Apex's documentation says of them.
#: O3 keeps narrowgate's FP32 norms; Apex casts those too.
ALIASES: dict[str, str] = {
    "O0": "fp32",
    "O1": "fp16-mixed(preset=apex)",
    "O2": "fp16(preset=apex)",
    "O3": "fp16(master=none, loss_scale=off)",
}

#: Each key with what it takes. The loss-scale machine's own keys need ``loss_scale=dynamic``.
KEYS: dict[str, str] = {
    "master": "split | params | none: where the exact FP32 weight lives (none is unsafe: no "
    "master)",
    "residual": "fp32: the output of embeddings is widened, so the residual stream is FP32",
    "accumulate": "fp32: micro-batch gradients of 16-bit parameters are summed in FP32",
    "loss_scale": "dynamic | off | a positive number",
    "preset": "narrowgate | torch | apex | deepspeed | megatron: the loss-scale machine's defaults",
    "init": "the first loss scale",
    "growth": "the factor by which the loss scale grows",
    "backoff": "the factor by which it falls after a non-finite step",
    "interval": "clean steps between growths",
    "hysteresis": "non-finite steps which are forgiven before it falls, counting the one it falls "
    "on",
    "floor": "the smallest loss scale",
    "ceiling": "the largest loss scale",
}

_MACHINE_NUMBERS = ("init", "growth", "backoff", "interval", "hysteresis", "floor", "ceiling")
_PRESETS = ("narrowgate", "torch", "apex", "deepspeed", "megatron")
_WHOLE_MODEL = ("accumulate", "loss_scale", "preset", *_MACHINE_NUMBERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """How the loss is scaled.

    Attributes:
        mode: ``"off"``, ``"static"`` or ``"dynamic"``.
        value: The static loss scale; 1.0 when off; unused when dynamic.
        preset: Name of the machine whose defaults the dynamic loss scale starts from.
        changes: The machine's fields which the recipe sets, as (field, value) in the order of
            `KEYS`.
    """

    mode: str
    value: float = 1.0
    preset: str = "narrowgate"
    changes: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What one ``BASE(key=value, ...)`` asks for.

    Attributes:
        base: Name of the base, in normal form.
        compute: Format of matrix products' operands: ``fp32``, ``tf32``, ``bf16`` or ``fp16``.
        master: ``params`` (FP32 parameters), ``split`` (half and remainder) or ``none``.
        residual: True if embeddings give FP32.
        accumulate: True if micro-batch gradients of 16-bit parameters are summed in FP32.
        loss_scale: How the loss is scaled.
    """

    base: str
    compute: str
    master: str
    residual: bool
    accumulate: bool
    loss_scale: LossScale

    @property
    def narrows(self) -> bool:
        """Whether parameters go to 16 bits."""
        return self.master != "params"

    @property
    def is_16bit(self) -> bool:
        """Whether matrix products run in 16 bits."""
        return self.compute in ("bf16", "fp16")

    def __str__(self) -> str:
        """Print the entry in normal form."""
        said: list[str] = []
        if self.master == "none":
            said.append("master=none")
        if self.residual:
            said.append("residual=fp32")
        if self.accumulate:
            said.append("accumulate=fp32")
        scale = self.loss_scale
        usual = "dynamic" if self.compute == "fp16" else "off"
        if scale.mode == "static":
            said.append(f"loss_scale={_number(scale.value)}")
        elif scale.mode != usual:
            said.append(f"loss_scale={scale.mode}")
        if scale.preset != "narrowgate":
            said.append(f"preset={scale.preset}")
        said += [f"{key}={_number(value)}" for key, value in scale.changes]
        return f"{self.base}({', '.join(said)})" if said else self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An entry for the modules whose path matches a glob, and for all modules below them.

    Attributes:
        glob: Shell-style pattern over module paths; ``*`` crosses dots.
        entry: What these modules get.
    """

    glob: str
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The user's wish: a default entry and rules, first match wins.

    Attributes:
        default: What every module gets which no rule matches.
        rules: The rules, in the order in which they are tried.

    Example:
        >>> recipe = parse("bf16(residual=fp32); lm_head: fp32")
        >>> str(recipe)
        'bf16(residual=fp32); lm_head: fp32'
        >>> parse(str(recipe)) == recipe
        True
    """

    default: Entry
    rules: tuple[Rule, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The default's entry, then the rules'."""
        return (self.default, *(rule.entry for rule in self.rules))

    @property
    def is_passthrough(self) -> bool:
        """Whether the recipe leaves model and optimizer as they are (fp32 and tf32)."""
        return not any(entry.is_16bit for entry in self.entries)

    @property
    def loss_scale(self) -> LossScale:
        """The loss scaling of the whole model: the default's, or dynamic if a rule needs fp16."""
        said = self.default.loss_scale
        needed = any(rule.entry.compute == "fp16" for rule in self.rules)
        if needed and said.mode == "off" and self.default.compute != "fp16":
            return LossScale(mode="dynamic")
        return said

    def __str__(self) -> str:
        """Print the recipe in normal form, as one line."""
        rules = [f"{rule.glob}: {rule.entry}" for rule in self.rules]
        return "; ".join([str(self.default), *rules])


def parse(text: str) -> Recipe:
    """Read a recipe from its one-line form.

    Args:
        text: ``BASE(key=value, ...); GLOB: BASE(...); ...``, or one of Apex's levels ``O0`` to
            ``O3``.

    Returns:
        The recipe in normal form: ``parse(str(recipe)) == recipe``.

    Raises:
        RecipeError: An unknown base, key or value (the nearest is named), a key given twice, keys
            that contradict each other, or a part that does not follow the grammar.
        LossScaleError: A number of the loss scale that is not positive and finite.
    """
    if not isinstance(text, str):
        raise RecipeError(
            f"a recipe is a string such as 'bf16'; got {type(text).__name__}",
            hint="write the recipe as one line, e.g. 'fp16(residual=fp32); head: fp32'",
        )
    parts = [part.strip() for part in text.split(";")]
    if not parts[0]:
        raise RecipeError(
            f"the recipe {text!r} does not begin with a base", hint=nearest("", BASES)
        )
    default = _entry(ALIASES.get(parts[0], parts[0]), text)
    rules = []
    for part in parts[1:]:
        glob, colon, wish = part.partition(":")
        if not colon or not glob.strip() or not wish.strip():
            raise RecipeError(
                f"the rule {part!r} in the recipe {text!r} is not of the form GLOB: "
                "BASE(key=value)",
                hint="for example 'bf16; lm_head: fp32' keeps the module lm_head in FP32",
            )
        rules.append(Rule(glob=glob.strip(), entry=_rule_entry(glob.strip(), wish.strip(), text)))
    recipe = Recipe(default=default, rules=tuple(rules))
    if recipe.default.compute == "tf32" and recipe.rules:
        raise RecipeError(
            f"tf32 is a switch of the whole process and takes no rules; got {text!r}",
            hint="use 'fp32' as the default if some modules shall run in 16 bits",
        )
    return recipe


def _rule_entry(glob: str, wish: str, text: str) -> Entry:
    """Read a rule's entry; keys of the whole model are refused there."""
    wish = ALIASES.get(wish, wish)
    for key, _ in _split_call(wish, text)[1]:
        if key in _WHOLE_MODEL:
            raise RecipeError(
                f"{key} holds for the whole model and cannot stand in the rule {glob!r}",
                hint=f"put it into the default: 'BASE({key}=...); {glob}: ...'",
            )
    entry = _entry(wish, text)
    if entry.compute == "tf32":
        raise RecipeError(
            f"tf32 is a switch of the whole process and cannot stand in the rule {glob!r}",
            hint="use fp32 in the rule",
        )
    return entry


_CALL = re.compile(r"([A-Za-z0-9_\-]+)\s*(?:\((.*)\))?", re.DOTALL)


def _split_call(wish: str, text: str) -> tuple[str, list[tuple[str, str]]]:
    """Split ``BASE(key=value, ...)`` into its name and its keys."""
    match = _CALL.fullmatch(wish)
    if match is None:
        raise RecipeError(
            f"{wish!r} in the recipe {text!r} is not of the form BASE(key=value, ...)",
            hint=f"bases: {', '.join(BASES)}",
        )
    pairs = []
    for part in (match[2] or "").split(","):
        if not part.strip():
            continue
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise RecipeError(
                f"{part.strip()!r} in the recipe {text!r} is not of the form key=value",
                hint=f"keys: {', '.join(KEYS)}",
            )
        pairs.append((key, value))
    return match[1], pairs


def _entry(wish: str, text: str) -> Entry:
    """Read ``BASE(key=value, ...)``."""
    base, pairs = _split_call(wish, text)
    if base not in BASES:
        raise RecipeError(
            f"there is no recipe {base!r}; allowed: {', '.join(BASES)}",
            hint=nearest(base, [*BASES, *ALIASES]),
        )
    given: dict[str, str] = {}
    for key, value in pairs:
        if key not in KEYS:
            raise RecipeError(
                f"the recipe {text!r} has no key {key!r}; allowed: {', '.join(KEYS)}",
                hint=nearest(key, KEYS),
            )
        if key in given:
            raise RecipeError(
                f"the key {key!r} stands twice in {wish!r}: {given[key]} and {value}",
                hint="keep one of the two",
            )
        given[key] = value
    return _checked_entry(base, given, text)


def _checked_entry(base: str, given: dict[str, str], text: str) -> Entry:
    """Check that the keys make sense together, and bring them into normal form."""
    compute, master, _ = BASES[base]
    if compute in ("fp32", "tf32"):
        if given:
            raise RecipeError(
                f"{base} takes no keys; got {', '.join(given)} in {text!r}",
                hint="use bf16 or fp16, or leave the keys out",
            )
        off = LossScale(mode="off")
        return Entry(
            base=base, compute=compute, master=master, residual=False, accumulate=False,
            loss_scale=off,
        )  # fmt: skip
    master = _one_of("master", given.get("master", master), ("split", "params", "none"))
    base = f"{compute}-mixed" if master == "params" else compute
    residual = "residual" in given and bool(_one_of("residual", given["residual"], ("fp32",)))
    accumulate = "accumulate" in given and bool(
        _one_of("accumulate", given["accumulate"], ("fp32",))
    )
    for key, said in (("residual", residual), ("accumulate", accumulate)):
        if said and master == "params":
            raise RecipeError(
                f"{key}=fp32 says nothing new in {base}: with FP32 parameters it is so already",
                hint=f"leave {key} out, or use {compute} (16-bit parameters)",
            )
    return Entry(
        base=base, compute=compute, master=master, residual=residual, accumulate=accumulate,
        loss_scale=_loss_scale(compute, given),
    )  # fmt: skip


def _loss_scale(compute: str, given: dict[str, str]) -> LossScale:
    """Read the loss-scale keys of an entry."""
    said = given.get("loss_scale", "dynamic" if compute == "fp16" else "off")
    machine = [key for key in ("preset", *_MACHINE_NUMBERS) if key in given]
    if said != "dynamic" and machine:
        raise RecipeError(
            f"{', '.join(machine)} belong to the dynamic loss scale, and loss_scale is {said}",
            hint="add loss_scale=dynamic, or leave them out",
        )
    if said == "off":
        return LossScale(mode="off")
    if said != "dynamic":
        value = _positive("loss_scale", said)
        return LossScale(mode="static", value=value) if value != 1.0 else LossScale(mode="off")
    preset = _one_of("preset", given.get("preset", "narrowgate"), _PRESETS)
    changes = tuple((key, _positive(key, given[key])) for key in _MACHINE_NUMBERS if key in given)
    return LossScale(mode="dynamic", preset=preset, changes=changes)


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return the value if it is allowed."""
    if value not in allowed:
        raise RecipeError(
            f"{key}={value} is not a value of {key}; allowed: {', '.join(allowed)}",
            hint=nearest(value, allowed),
        )
    return value


def _positive(key: str, value: str) -> float:
    """Read a positive finite number; ``2^16`` and ``2**16`` may be written."""
    power = re.fullmatch(r"2(?:\^|\*\*)(-?\d{1,3})", value)
    try:
        number = 2.0 ** int(power[1]) if power else float(value)
    except ValueError:
        number = float("nan")
    if not 0.0 < number < float("inf"):
        raise LossScaleError(
            f"{key}={value} is not a positive finite number",
            hint=f"for example {key}=2^16"
            + (", loss_scale=dynamic or loss_scale=off" if key == "loss_scale" else ""),
        )
    return number


def _number(value: float) -> str:
    """Print a number so that it reads back as the same number."""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
