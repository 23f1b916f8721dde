"""narrowgate.toml: the limits, written down before the run, read strictly.

A key that is not known, a margin that is missing, zero, negative or NaN, a recipe that means
nothing: each is refused with its place, its value and what would be right. Nothing is guessed and
nothing falls back to a default that would make a gate laxer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from narrowgate.errors import ConfigError, RecipeError, nearest
from narrowgate.plan import parse
from narrowgate.records.files import sha256

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

    from narrowgate.pilot.schema import ConfigTable

__all__ = [
    "EVERY_SLICE",
    "MINIMAL",
    "CostLimit",
    "MemoryLimit",
    "PilotConfig",
    "QualityLimit",
    "SpeedLimit",
    "StabilityLimit",
    "config_hash",
    "load_config",
    "read_seeds",
]

#: The slice that stands for every slice without an entry of its own.
EVERY_SLICE = "*"

#: A narrowgate.toml that works for a script which reports a val_loss.
MINIMAL = """\
[pilot]
candidates = ["bf16"]
seeds = 5

[quality.val_loss]
better = "lower"
margin = 0.01
"""

_MOST_SEEDS = 1_000
_SEED_END = 2**32  # NumPy's legacy generator takes no seed from here on


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityLimit:
    """How much worse than the baseline one metric may be.

    Attributes:
        name: The metric's name, as ng.result reports it.
        better: Which way it is better.
        margin: How much worse the mean may be: in the metric's unit, or a share.
        relative: Whether margins are shares of |mean of the baseline's values|.
        owner: Who may override the gate; None if anybody may.
        slices: Margins by slice, in the same unit; ``"*"`` is for all without an entry.
    """

    name: str
    better: Literal["lower", "higher"]
    margin: float
    relative: bool
    owner: str | None
    slices: Mapping[str, float]

    def slice_margin(self, name: str) -> float | None:
        """Give the margin of a slice; None if it is shown and not judged.

        Args:
            name: The slice.
        """
        return self.slices.get(name, self.slices.get(EVERY_SLICE))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedLimit:
    """Limits on step times.

    Attributes:
        min_ratio: Baseline's median over candidate's, at least; None if not judged.
        max_p95_ratio: Candidate's 95th percentile over baseline's, at most; None if not judged.
        owner: Who may override the gates; None if anybody may.
    """

    min_ratio: float | None
    max_p95_ratio: float | None
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The limit on peak memory.

    Attributes:
        max_ratio: Candidate's peak over baseline's, at most.
        owner: Who may override the gate; None if anybody may.
    """

    max_ratio: float
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StabilityLimit:
    """The limit on skipped steps.

    Attributes:
        max_skipped_share: Share of the steps that may be skipped, at most.
        owner: Who may override the gates of stability; None if anybody may.
    """

    max_skipped_share: float
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CostLimit:
    """The limit on whole time, and what time costs.

    Attributes:
        max_ratio: Candidate's seconds over baseline's, at most.
        price_per_hour: Price of an hour of one run; None if it was not given.
        owner: Who may override the gate; None if anybody may.
    """

    max_ratio: float
    price_per_hour: float | None
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotConfig:
    """A narrowgate.toml that was found to be right.

    Attributes:
        baseline: The baseline's recipe in normal form.
        candidates: The candidates' recipes in normal form, in the order of the file.
        seeds: The seeds, in the order in which they are run.
        timeout_s: The longest that one run may take, seconds.
        data_order: ``same`` if a candidate must be given the baseline's data.
        quality: The limits by metric, in the order of the file.
        speed: Limits on step times, or None.
        memory: Limit on memory, or None.
        stability: Limit on skips, or None.
        cost: Limit on whole time, or None.
    """

    baseline: str
    candidates: tuple[str, ...]
    seeds: tuple[int, ...]
    timeout_s: float
    data_order: Literal["same", "free"]
    quality: tuple[QualityLimit, ...]
    speed: SpeedLimit | None
    memory: MemoryLimit | None
    stability: StabilityLimit | None
    cost: CostLimit | None


def config_hash(path: Path) -> str:
    """Hash a configuration file, byte by byte.

    Args:
        path: The file.

    Returns:
        64 hexadecimal digits.
    """
    return sha256(path)


def load_config(path: Path) -> PilotConfig:
    """Read a narrowgate.toml.

    Args:
        path: The file.

    Returns:
        The limits.

    Raises:
        ConfigError: The file is missing, no TOML, or says too little, too much or nonsense.
    """
    from pydantic import ValidationError

    from narrowgate.pilot.schema import ConfigTable

    values = _read(path)
    try:
        table = ConfigTable.model_validate(values)
    except ValidationError as error:
        raise _explain(path, ConfigTable, error.errors(include_url=False)) from None
    return _freeze(path, table)


def _read(path: Path) -> dict[str, Any]:
    """Read the file as TOML."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        return tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no {path}",
            hint=f"write the limits into it before the run; this would do:\n\n{MINIMAL}",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="name a TOML file with --config"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}",
            hint="save it as UTF-8",
        ) from error
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(
            f"{path} is no TOML: {error}",
            hint='strings stand in quotes, tables in brackets: [pilot], candidates = ["bf16"]',
        ) from error


def _freeze(path: Path, table: ConfigTable) -> PilotConfig:
    """Check what spans several keys, and turn the tables into plain data."""
    pilot = table.pilot
    baseline = _recipe(path, "baseline", pilot.baseline)
    candidates: list[str] = []
    for place, wish in enumerate(pilot.candidates, start=1):
        recipe = _recipe(path, f"candidate {place}", wish)
        if recipe == baseline or recipe in candidates:
            is_base = recipe == baseline
            first = "the baseline" if is_base else f"candidate {candidates.index(recipe) + 1}"
            raise ConfigError(
                f"{path}: [pilot] candidates: {wish!r} is the same recipe as {first}, {recipe!r}",
                hint="name each recipe once",
            )
        candidates.append(recipe)
    for name, limit in table.quality.items():
        for word in (name, *limit.slices):
            if not word or not word.isprintable():
                raise ConfigError(
                    f"{path}: [quality]: the name {word!r} cannot be printed",
                    hint="name metrics and slices by printable characters",
                )
        if "/" in name:  # the gate of a slice is quality.METRIC/SLICE
            raise ConfigError(
                f"{path}: [quality]: the metric's name {name!r} has a slash, which parts a metric "
                "from its slice",
                hint=f"report it as {name.replace('/', '_')!r}",
            )
    speed = table.speed
    if speed is not None and speed.min_ratio is None and speed.max_p95_ratio is None:
        raise ConfigError(
            f"{path}: [speed] sets no limit",
            hint="give it min_ratio, max_p95_ratio or both, or leave the table out",
        )
    memory, stability, cost = table.memory, table.stability, table.cost
    return PilotConfig(
        baseline=baseline,
        candidates=tuple(candidates),
        seeds=read_seeds(pilot.seeds, f"{path}: [pilot] seeds"),
        timeout_s=pilot.timeout_s,
        data_order=pilot.data_order,
        quality=tuple(
            QualityLimit(
                name=name,
                better=limit.better,
                margin=limit.margin,
                relative=limit.relative,
                owner=limit.owner,
                slices={key: part.margin for key, part in limit.slices.items()},
            )
            for name, limit in table.quality.items()
        ),
        speed=None if speed is None else SpeedLimit(**dict(speed)),
        memory=None if memory is None else MemoryLimit(**dict(memory)),
        stability=None if stability is None else StabilityLimit(**dict(stability)),
        cost=None if cost is None else CostLimit(**dict(cost)),
    )


def _recipe(path: Path, what: str, wish: str) -> str:
    """Give a recipe's normal form."""
    try:
        return str(parse(wish))
    except RecipeError as error:
        raise ConfigError(f"{path}: [pilot] {what}: {error.message}", hint=error.hint) from error


def read_seeds(value: object, where: str) -> tuple[int, ...]:
    """Read a number of seeds or a list of seeds.

    Args:
        value: A whole number N, for 0 to N-1, or a list of whole numbers.
        where: What the error is to name as the place.

    Returns:
        The seeds.

    Raises:
        ConfigError: It is neither, or names no seed, one twice, too many or one out of range.
    """
    hint = "five seeds answer most questions: seeds = 5, or a list such as [1, 2, 3]"
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= _MOST_SEEDS:
            raise ConfigError(
                f"{where} = {_short(value)}; allowed: 1 to {_MOST_SEEDS:,}", hint=hint
            )
        return tuple(range(value))
    if not isinstance(value, list) or not value or len(value) > _MOST_SEEDS:
        raise ConfigError(
            f"{where} = {_short(value)}; allowed: a whole number from 1 to {_MOST_SEEDS:,} or a "
            "list of as many whole numbers",
            hint=hint,
        )
    for seed in value:
        if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < _SEED_END:
            raise ConfigError(
                f"{where} has {_short(seed)}; allowed: whole numbers from 0 to {_SEED_END - 1:,}",
                hint=hint,
            )
        if value.count(seed) > 1:
            raise ConfigError(f"{where} names {seed} {value.count(seed)} times", hint=hint)
    return tuple(value)


def _explain(path: Path, model: type[BaseModel], errors: Sequence[ErrorDetails]) -> ConfigError:
    """Say each fault in a line: the place, the value, what is allowed; a hint for the first."""
    # A typo often leaves the right key missing: the typo's hint is the one that helps.
    told = [_fault(model, error) for error in sorted(errors, key=lambda e: e["type"] == "missing")]
    message = f"{path}: {told[0][0]}" + "".join(f"\n{path}: {line}" for line, _ in told[1:])
    return ConfigError(message, hint=told[0][1])


def _fault(model: type[BaseModel], error: ErrorDetails) -> tuple[str, str]:
    """Say one fault, and its hint."""
    *tables, key = error["loc"]
    table, meaning = _walk(model, error["loc"])
    place = f"[{'.'.join(map(str, tables))}] " if tables else ""
    if error["type"] == "extra_forbidden":
        allowed = list(table.model_fields)
        what = "table" if isinstance(error["input"], dict) else "key"
        return (
            f"{place}{key} = {_short(error['input'])}: there is no such {what}; allowed: "
            + ", ".join(allowed),
            nearest(str(key), allowed),
        )
    if error["type"] == "missing":
        return f"{place}{key} is missing", f"{key} is {meaning}"
    return (
        f"{place}{key} = {_short(error['input'])}: {_allowed(error)}",
        f"{key} is {meaning}" if meaning else "see the configuration's reference",
    )


def _walk(model: type[BaseModel], place: Sequence[int | str]) -> tuple[type[BaseModel], str]:
    """Find the model of the table which a fault lies in, and what the key there means."""
    from pydantic import BaseModel

    table, meaning, skip = model, "", False
    for key in place:
        if skip:  # the name of a metric or a slice
            skip = False
            continue
        field = table.model_fields.get(str(key))
        if field is None:
            return table, meaning
        meaning = field.description or ""
        kinds = [field.annotation, *_arguments(field.annotation)]
        inner = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        skip = dict in [getattr(kind, "__origin__", None) for kind in kinds]
        if inner:
            table = inner[0]
        else:
            return table, meaning
    return table, meaning


def _arguments(annotation: object) -> tuple[object, ...]:
    return cast("tuple[object, ...]", getattr(annotation, "__args__", ()))


def _allowed(error: ErrorDetails) -> str:
    """Say what a value ought to have been."""
    if error["type"] in ("too_short", "string_too_short"):
        return "it must not be empty"
    if error["type"] in ("dict_type", "model_type"):
        return "it must be a table"
    return error["msg"].replace("Input should be", "it must be")


def _short(value: object) -> str:
    """Print a value, cut to what fits in a line."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python prints
        text = "a number of very many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
