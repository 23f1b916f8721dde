"""The recipe: what the user wishes, as one frozen value that prints as one line and parses back.

    BASE(key=value, ...); GLOB: BASE(...); GLOB: BASE(...)

The first entry is the default. Each further entry is a rule: its glob is matched on module paths,
it covers the modules below a module that it matches, and the first rule that matches wins.
Everything numeric is said here and nowhere else, so a recipe string is the whole of an experiment's
precision.

`str(recipe)` is the normal form: what a base brings anyway is left out, keys stand in the order of
`KEYS`, and two spellings of one wish (`bf16(master=params)`, `bf16-mixed`) print alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from narrowgate.errors import LossScaleError, RecipeError, nearest
from narrowgate.formats import get

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

#: What others call these formats, for hints.
_OTHER_NAMES = {
    "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32",
    "tensorfloat32": "tf32",
}  # fmt: skip

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
    """What one ``BASE(key=value, ...)`` asks for the modules that it covers.

    Attributes:
        base: Name of the base, in normal form.
        compute: Format of matrix products' operands: ``fp32``, ``tf32``, ``bf16`` or ``fp16``.
        master: ``params`` (FP32 parameters), ``split`` (half and remainder) or ``none``.
        residual: True if embeddings give FP32.
    """

    base: str
    compute: str
    master: str
    residual: bool

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
        return _call(self.base, self._keys())

    def _keys(self) -> list[str]:
        """Print the keys that are not at their default."""
        master = ["master=none"] if self.master == "none" else []
        return [*master, "residual=fp32"] if self.residual else master


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
        accumulate: True if micro-batch gradients of 16-bit parameters are summed in FP32.
        loss_scale: How the loss is scaled.

    Example:
        >>> recipe = parse("bf16(residual=fp32); lm_head: fp32")
        >>> str(recipe)
        'bf16(residual=fp32); lm_head: fp32'
        >>> parse(str(recipe)) == recipe
        True
    """

    default: Entry
    rules: tuple[Rule, ...]
    accumulate: bool
    loss_scale: LossScale

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The default's entry, then the rules'."""
        return (self.default, *(rule.entry for rule in self.rules))

    @property
    def is_passthrough(self) -> bool:
        """Whether the recipe leaves model and optimizer as they are (fp32 and tf32)."""
        return not any(entry.is_16bit for entry in self.entries)

    def __str__(self) -> str:
        """Print the recipe in normal form; what holds for the whole model stands in the default."""
        scale = self.loss_scale
        keys = self.default._keys()
        if self.accumulate:
            keys.append("accumulate=fp32")
        if scale.mode == "static":
            keys.append(f"loss_scale={_number(scale.value)}")
        elif scale.mode != _usual_mode(self.entries):
            keys.append(f"loss_scale={scale.mode}")
        if scale.preset != "narrowgate":
            keys.append(f"preset={scale.preset}")
        keys += [f"{key}={_number(value)}" for key, value in scale.changes]
        rules = [f"{rule.glob}: {rule.entry}" for rule in self.rules]
        return "; ".join([_call(self.default.base, keys), *rules])


def _call(base: str, keys: list[str]) -> str:
    """Print a base with keys."""
    return f"{base}({', '.join(keys)})" if keys else base


def _usual_mode(entries: Sequence[Entry]) -> str:
    """Say how the loss is scaled if the recipe says nothing: dynamically if there is any fp16."""
    return "dynamic" if any(entry.compute == "fp16" for entry in entries) else "off"


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
    first, *others = (part.strip() for part in text.split(";"))
    if not first:
        raise RecipeError(
            f"the recipe {text!r} does not begin with a base", hint=nearest("", BASES)
        )
    base, given = _read_call(ALIASES.get(first, first), text)
    rules = tuple(_rule(part, text) for part in others)
    default = _entry(base, {k: v for k, v in given.items() if k not in _WHOLE_MODEL}, text)
    whole = {key: value for key, value in given.items() if key in _WHOLE_MODEL}
    entries = (default, *(rule.entry for rule in rules))
    if default.compute == "tf32" and rules:
        raise RecipeError(
            f"tf32 is a switch of the whole process and takes no rules; got {text!r}",
            hint="use 'fp32' as the default if some modules shall run in 16 bits",
        )
    if whole and not any(entry.is_16bit for entry in entries):
        raise _takes_no_keys(base, whole, text)
    accumulate = "accumulate" in whole
    if accumulate:
        _one_of("accumulate", whole["accumulate"], ("fp32",))
        if not any(entry.narrows for entry in entries):
            raise _says_nothing_new("accumulate", default)
    return Recipe(
        default=default,
        rules=rules,
        accumulate=accumulate,
        loss_scale=_loss_scale(_usual_mode(entries), whole),
    )


def _rule(part: str, text: str) -> Rule:
    """Read ``GLOB: BASE(key=value, ...)``; keys of the whole model are refused there."""
    glob, colon, wish = (piece.strip() for piece in part.partition(":"))
    if not colon or not glob or not wish:
        raise RecipeError(
            f"the rule {part!r} in the recipe {text!r} is not of the form GLOB: BASE(key=value)",
            hint="for example 'bf16; lm_head: fp32' keeps the module lm_head in FP32",
        )
    if wish in ALIASES:
        raise RecipeError(
            f"{wish} is a whole recipe and cannot stand in the rule {glob!r}",
            hint=f"it stands for {ALIASES[wish]!r}: name the base",
        )
    base, given = _read_call(wish, text)
    for key in given:
        if key in _WHOLE_MODEL:
            raise RecipeError(
                f"{key} holds for the whole model and cannot stand in the rule {glob!r}",
                hint=f"put it into the default: 'BASE({key}=...); {glob}: ...'",
            )
    entry = _entry(base, given, text)
    if entry.compute == "tf32":
        raise RecipeError(
            f"tf32 is a switch of the whole process and cannot stand in the rule {glob!r}",
            hint="use fp32 in the rule",
        )
    return Rule(glob=glob, entry=entry)


_CALL = re.compile(r"([A-Za-z0-9_\-]+)\s*(?:\((.*)\))?", re.DOTALL)


def _read_call(wish: str, text: str) -> tuple[str, dict[str, str]]:
    """Split ``BASE(key=value, ...)`` into a base and keys that exist, each once."""
    match = _CALL.fullmatch(wish)
    if match is None:
        raise RecipeError(
            f"{wish!r} in the recipe {text!r} is not of the form BASE(key=value, ...)",
            hint=f"bases: {', '.join(BASES)}",
        )
    if match[1] not in BASES:
        raise RecipeError(
            f"there is no recipe {match[1]!r}; allowed: {', '.join(BASES)}",
            hint=nearest(_OTHER_NAMES.get(match[1].lower(), match[1].lower()), [*BASES, *ALIASES]),
        )
    given: dict[str, str] = {}
    for part in (match[2] or "").split(","):
        if not part.strip():
            continue
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise RecipeError(
                f"{part.strip()!r} in the recipe {text!r} is not of the form key=value",
                hint=f"keys: {', '.join(KEYS)}",
            )
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
    return match[1], given


def _entry(base: str, given: dict[str, str], text: str) -> Entry:
    """Check that the keys of an entry make sense together; bring it into normal form."""
    compute, master, _ = BASES[base]
    if compute in ("fp32", "tf32"):
        if given:
            raise _takes_no_keys(base, given, text)
        return Entry(base=base, compute=compute, master=master, residual=False)
    master = _one_of("master", given.get("master", master), ("split", "params", "none"))
    entry = Entry(
        base=f"{compute}-mixed" if master == "params" else compute,
        compute=compute,
        master=master,
        residual="residual" in given,
    )
    if entry.residual:
        _one_of("residual", given["residual"], ("fp32",))
        if not entry.narrows:
            raise _says_nothing_new("residual", entry)
    return entry


def _takes_no_keys(base: str, given: dict[str, str], text: str) -> RecipeError:
    """Say that nothing can be set where nothing runs in 16 bits."""
    return RecipeError(
        f"{base} takes no keys; got {', '.join(given)} in {text!r}",
        hint="use bf16 or fp16, or leave the keys out",
    )


def _says_nothing_new(key: str, entry: Entry) -> RecipeError:
    """Say that FP32 parameters bring what a key asks for."""
    return RecipeError(
        f"{key}=fp32 says nothing new in {entry.base}: with FP32 parameters it is so already",
        hint=f"leave {key} out, or use 16-bit parameters (bf16, fp16)",
    )


def _loss_scale(usual: str, given: dict[str, str]) -> LossScale:
    """Read the loss-scale keys."""
    said = given.get("loss_scale", usual)
    machine = [key for key in ("preset", *_MACHINE_NUMBERS) if key in given]
    if said != "dynamic" and machine:
        raise RecipeError(
            f"only the dynamic loss scale takes {', '.join(machine)}, and loss_scale is {said}",
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
    """Read a number of the loss scale; ``2^16`` and ``2**16`` may be written."""
    power = re.fullmatch(r"2(?:\^|\*\*)(-?\d{1,3})", value)
    try:
        number = 2.0 ** int(power[1]) if power else float(value)
    except ValueError:
        number = float("nan")
    fp32 = get("fp32")
    if not fp32.min_subnormal <= number <= fp32.max_finite:
        raise LossScaleError(
            f"{key}={value} is not a positive finite FP32 number",
            hint=f"for example {key}=2^16"
            + (", loss_scale=dynamic or loss_scale=off" if key == "loss_scale" else ""),
        )
    if key in ("interval", "hysteresis") and number != int(number):
        raise LossScaleError(
            f"{key}={value} is not a whole number", hint=f"{key} counts optimizer steps"
        )
    return number


def _number(value: float) -> str:
    """Print a number so that it reads back as the same number."""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
