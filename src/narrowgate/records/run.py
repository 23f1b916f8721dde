"""One run, read back from its folder: what it was asked, what it did, how it ended.

A run that was killed in the middle of a line is read up to that line, and says so. Nothing here
judges: a run without a result is a run without a result.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from narrowgate.errors import RunError
from narrowgate.records import layout
from narrowgate.records.files import dumps, number, read_json, read_lines

__all__ = [
    "Ending",
    "Load",
    "LogLine",
    "Request",
    "Result",
    "Run",
    "Steps",
    "load_run",
]

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a run was asked to do.

    Attributes:
        recipe: The recipe that prepare() is to take; None outside of a pilot: the script's own.
        seed: The seed; None outside of a pilot: the script's own.
        attempt: Number of this attempt, from 1.
        pilot: Name of the pilot's folder; None outside of a pilot.
        command: The command, with secrets masked.
        commit: Git commit of the working directory; None if there is none.
        uncommitted: SHA-256 of what git calls changed or untracked there; None if nothing is.
        created: When it was asked, UTC.
    """

    recipe: str | None
    seed: int | None
    attempt: int
    pilot: str | None
    command: tuple[str, ...]
    commit: str | None
    uncommitted: str | None
    created: str

    def to_json(self) -> dict[str, Any]:
        """Give the object for request.json, without its schema."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Request:
        """Read what `to_json` gave.

        Args:
            data: The object.

        Raises:
            RunError: Something is missing.
        """
        try:
            values = {name: data[name] for name in cls.__slots__}
            return cls(**{**values, "command": tuple(values["command"])})
        except (KeyError, TypeError) as error:
            raise RunError(f"this is no request: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What the optimizer steps did, in columns of equal length, in the order of time.

    Attributes:
        t: Seconds since the run began, when the step was called.
        step: Number of the step, as its optimizer counts: skipped ones count.
        optimizer: Number of the optimizer, in the order of prepare(); 0 for the first.
        loss: Sum, in FP64, of the losses given to backward since the last step; NaN if none was.
        applied: Whether the step was applied.
        reason: Why not; or what happened to it.
        loss_scale: The loss scale.
        grad_norm: Norm of the true gradients before clipping; NaN if it was not taken.
        culprit: The parameter nearest the loss with a non-finite gradient, or None.
        data: Checksum of the whole numbers that the models were given for this step; None if there
            were none, or none was taken.
        floats: Checksum of the FP32 and FP64 numbers that they were given; None likewise.
    """

    t: tuple[float, ...] = ()
    step: tuple[int, ...] = ()
    optimizer: tuple[int, ...] = ()
    loss: tuple[float, ...] = ()
    applied: tuple[bool, ...] = ()
    reason: tuple[str, ...] = ()
    loss_scale: tuple[float, ...] = ()
    grad_norm: tuple[float, ...] = ()
    culprit: tuple[str | None, ...] = ()
    data: tuple[int | None, ...] = ()
    floats: tuple[int | None, ...] = ()

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.t)

    @property
    def main(self) -> int:
        """The optimizer that made the most steps, of several the first: whose steps are timed."""
        made = Counter(self.optimizer)
        return max(sorted(made), key=made.__getitem__, default=0)

    @property
    def main_rows(self) -> list[int]:
        """Rows of the optimizer that made the most steps."""
        main = self.main
        return [row for row, which in enumerate(self.optimizer) if which == main]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """What one ng.log call said.

    Attributes:
        t: Seconds since the run began.
        step: The step it was said for; None if it was not named.
        values: The numbers.
    """

    t: float
    step: float | None
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the processor kept the run, at one moment; all counted since the process began.

    Attributes:
        t: Seconds since the run began.
        cpu_s: CPU time of all its threads.
        waited_s: Time in which its threads could have run and had to wait for a core; NaN where
            the system does not say.
    """

    t: float
    cpu_s: float
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What ng.result said, and what was measured when it was called.

    Attributes:
        metrics: The numbers by name.
        slices: The numbers of each slice by name.
        seconds: Seconds from the first prepare() or log to the result.
        device: Kind of device: ``cpu``, ``cuda``.
        peak_bytes: Since the first prepare(): on a GPU the allocator's peak, on a CPU the largest
            resident size less ``base_bytes``. 0 if it is not known.
        base_bytes: Resident size when prepare() was called, less the model's parameters and
            buffers: the interpreter, the libraries, the data that was loaded by then. 0 on a GPU.
        kinds: Bytes held from step to step by kind: ``parameters``, ``remainders``, ``gradients``,
            ``states``, ``buffers``. Empty if prepare() was not called.
        files: SHA-256 of each Python file that was loaded from below the project's folder, by path.
        took_effect: False if the recipe cannot have had an effect: its parameters are FP32, and no
            training forward of a prepared model was entered.
    """

    metrics: Mapping[str, float]
    slices: Mapping[str, Mapping[str, float]]
    seconds: float
    device: str
    peak_bytes: int
    base_bytes: int
    kinds: Mapping[str, int]
    files: Mapping[str, str]
    took_effect: bool = True

    @property
    def code(self) -> str:
        """SHA-256 over the paths and hashes of `files`."""
        return hashlib.sha256(dumps(sorted(self.files.items())).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Give the object for result.json, without its schema."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """Read what `to_json` gave.

        Args:
            data: The object.

        Raises:
            RunError: Something is missing or no number.
        """
        try:
            return cls(
                metrics={k: number(v) for k, v in data["metrics"].items()},
                slices={
                    s: {k: number(v) for k, v in metrics.items()}
                    for s, metrics in data["slices"].items()
                },
                seconds=number(data["seconds"]),
                device=str(data["device"]),
                peak_bytes=int(data["peak_bytes"]),
                base_bytes=int(data["base_bytes"]),
                kinds={k: int(v) for k, v in data["kinds"].items()},
                files={str(k): str(v) for k, v in data["files"].items()},
                took_effect=bool(data["took_effect"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise RunError(f"this is no result: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run's process ended, as the pilot saw it.

    Attributes:
        how: ``ended`` (by itself), ``timeout``, ``interrupted`` (Ctrl-C, or the pilot died).
        code: Exit code of the process, negative for a signal; None if it is not known.
        seconds: Wall time from start to end; NaN if the end was seen late.
    """

    how: Literal["ended", "timeout", "interrupted"]
    code: int | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Give the object for exit.json, without its schema."""
        return {"how": self.how, "code": self.code, "seconds": self.seconds}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ending:
        """Read what `to_json` gave.

        Args:
            data: The object.

        Raises:
            RunError: Something is missing.
        """
        try:
            return cls(how=data["how"], code=data["code"], seconds=number(data["seconds"]))
        except KeyError as error:
            raise RunError(f"exit.json lacks {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt at one run.

    Attributes:
        folder: Where it lies.
        request: What it was asked to do.
        environment: Named facts: versions, device, flags, threads.
        plan_hash: Hash of the plans that prepare() resolved; None if it was not called.
        plan: The JSON of the first plan; None if there is none.
        steps: What the optimizer steps did.
        logs: What ng.log said.
        load: How busy the processor was.
        result: What ng.result said; None if it was not called.
        ending: How the process ended; None while it runs, and outside of a pilot.
        faults: What was wrong with the files, in words.
    """

    folder: Path
    request: Request
    environment: Mapping[str, Scalar]
    plan_hash: str | None
    plan: str | None
    steps: Steps
    logs: tuple[LogLine, ...]
    load: tuple[Load, ...]
    result: Result | None
    ending: Ending | None
    faults: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether the run gave a result and its process ended well."""
        return self.result is not None and (
            self.ending is None or (self.ending.how == "ended" and self.ending.code == 0)
        )


def load_run(folder: Path) -> Run:
    """Read a run's folder.

    Args:
        folder: An attempt's folder, or one below ``.narrowgate/runs``.

    Returns:
        The run, as far as it got.

    Raises:
        RunError: There is no request.json, or a file that is damaged where only a whole one can
            have been written.
    """
    if not folder.is_dir():
        raise RunError(f"there is no folder {folder}", hint="name a folder below .narrowgate")
    request = Request.from_json(read_json(folder / layout.REQUEST))
    environment, plan, result, ending = (
        read_json(folder / name) if (folder / name).exists() else None
        for name in (layout.ENVIRONMENT, layout.PLAN, layout.RESULT, layout.EXIT)
    )
    lines, faults = read_lines(folder / layout.EVENTS)
    steps, logs, load = _events(lines, faults)
    plan_hash, first = (None, None) if plan is None else _plan(plan, folder / layout.PLAN)
    return Run(
        folder=folder,
        request=request,
        environment={k: v for k, v in (environment or {}).items() if k != "schema"},
        plan_hash=plan_hash,
        plan=first,
        steps=steps,
        logs=logs,
        load=load,
        result=None if result is None else Result.from_json(result),
        ending=None if ending is None else Ending.from_json(ending),
        faults=tuple(faults),
    )


def _plan(data: Mapping[str, Any], path: Path) -> tuple[str, str]:
    """Give the hash of all plans, and the first plan."""
    try:
        return str(data["hash"]), str(data["plans"][0])
    except (KeyError, TypeError, IndexError) as error:
        raise RunError(f"{path} holds no plan: {error!r}") from error


_columns = itemgetter(*Steps.__slots__)
#: What nearly every step's line holds, up to its reason; only others are converted one by one.
_USUAL = (float, int, int, float, bool, str, float, float)


def _as_usual(
    t: Any,
    step: Any,
    optimizer: Any,
    loss: Any,
    applied: Any,
    reason: Any,
    loss_scale: Any,
    grad_norm: Any,
    *rest: Any,
) -> tuple[Any, ...]:
    """Convert what one step's line holds to the types of the columns."""
    return (
        number(t),
        int(step),
        int(optimizer),
        math.nan if loss is None else number(loss),
        bool(applied),
        str(reason),
        number(loss_scale),
        number(grad_norm),
        *rest,
    )


def _events(
    lines: Sequence[Mapping[str, Any]], faults: list[str]
) -> tuple[Steps, tuple[LogLine, ...], tuple[Load, ...]]:
    """Sort the lines of events.jsonl by their kind; a line of an unknown kind is left out."""
    rows: list[tuple[Any, ...]] = []
    logs: list[LogLine] = []
    load: list[Load] = []
    for line in lines:
        try:
            kind = line["kind"]
            if kind == "step":
                row = _columns(line)
                if tuple(map(type, row[:8])) != _USUAL:
                    row = _as_usual(*row)
                rows.append(row)
            elif kind == "log":
                values = {str(k): number(v) for k, v in line["values"].items()}
                step = None if line["step"] is None else number(line["step"])
                logs.append(LogLine(t=number(line["t"]), step=step, values=values))
            elif kind == "load":
                waited = number(line["waited_s"])
                load.append(Load(t=number(line["t"]), cpu_s=number(line["cpu_s"]), waited_s=waited))
            elif kind == "fault":
                faults.append(f"events.jsonl: {line['text']}")
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            faults.append(f"events.jsonl: a line was left out: {type(error).__name__}: {error}")
    columns = dict(zip(Steps.__slots__, zip(*rows, strict=True), strict=True)) if rows else {}
    if rows:
        least = min(columns["optimizer"])  # models of before the run may have taken numbers
        columns["optimizer"] = tuple(number - least for number in columns["optimizer"])
    return Steps(**columns), tuple(logs), tuple(load)
