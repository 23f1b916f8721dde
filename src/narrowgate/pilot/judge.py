"""The judge: a pilot's folder in, a verdict out, and nothing else looked at.

The limits are those of config.toml, the runs the last attempt at each seed, the looks those that
the caller counted or that verdict.json carries: so a copied folder gives the same verdict, to the
bit, on any machine. What the verdict rests on is listed with its hashes; a byte changed in any of
it is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from narrowgate.errors import PilotError, RunError
from narrowgate.pilot.config import PilotConfig, config_hash, load_config
from narrowgate.pilot.faults import check_seeds_differ, fault_of, unchecked
from narrowgate.pilot.folder import PilotRecord, read_pilot
from narrowgate.pilot.gates import gates_of
from narrowgate.pilot.ledger import Looks
from narrowgate.pilot.sentences import and_more
from narrowgate.pilot.trial import (
    Measured,
    Trial,
    busy_runs,
    code_of,
    judged_slices,
    pair_up,
    read_runs,
    uneven_names,
    with_all,
)
from narrowgate.records import layout
from narrowgate.records.files import dumps, read_json, sha256
from narrowgate.records.run import Run
from narrowgate.records.verdict import CandidateVerdict, Outcome, Verdict

__all__ = ["check_evidence", "evidence_of", "judge", "read_verdict", "recompute"]


def judge(
    folder: Path, looks: Looks | None = None, *, keep: dict[tuple[str, int], Run] | None = None
) -> Verdict:
    """Judge a pilot from its folder alone.

    Args:
        folder: The pilot's folder.
        looks: Who counts the looks (`narrowgate.pilot.ledger.looks_of`); None: those of its
            verdict.json, or the first if there is none.
        keep: Gets the runs that were read, for who draws them.

    Returns:
        The verdict.

    Raises:
        PilotError: The folder is no pilot's, its limits were changed after it began, or its
            baseline does the same whatever its seed.
        ConfigError: Its config.toml is wrong.
        RunError: pilot.json or verdict.json is damaged.
    """
    about = read_pilot(folder)
    found = config_hash(folder / layout.CONFIG) if (folder / layout.CONFIG).is_file() else "none"
    if found != about.config_hash:
        raise PilotError(
            f"{folder / layout.CONFIG} was changed after the pilot began: its hash is "
            f"{found[:12]}, and was {about.config_hash[:12]}",
            hint="put it back; other limits need a pilot of their own",
        )
    config = load_config(folder / layout.CONFIG)
    if looks is None:
        looks = _looks_of_verdict(folder)
    notes: list[str] = []
    runs = {
        recipe: read_runs(folder, recipe, about.seeds, config, notes, {} if keep is None else keep)
        for recipe in (about.baseline, *about.candidates)
    }
    baseline = runs[about.baseline]
    check_seeds_differ(about.baseline, baseline)
    slices = {limit.name: judged_slices(limit, baseline) for limit in config.quality}
    if config.data_order == "same":
        told = (unchecked(recipe, baseline, runs[recipe]) for recipe in about.candidates)
        notes += [note for note in told if note]
    notes += uneven_names([run for found in runs.values() for run in found.values()])
    counted = {
        recipe: with_all(recipe, found, config, slices, notes) for recipe, found in runs.items()
    }
    return Verdict(
        pilot=_name(folder, about),
        baseline=about.baseline,
        command=about.command,
        config_hash=about.config_hash,
        seeds=about.seeds,
        candidates=tuple(
            _candidate(folder, about, config, recipe, runs, counted, slices, looks)
            for recipe in about.candidates
        ),
        notes=tuple(notes),
        evidence=evidence_of(folder, about),
    )


def _candidate(
    folder: Path,
    about: PilotRecord,
    config: PilotConfig,
    recipe: str,
    runs: Mapping[str, Mapping[int, Measured]],
    counted: Mapping[str, Mapping[int, Measured]],
    slices: Mapping[str, tuple[str, ...]],
    looks: Looks,
) -> CandidateVerdict:
    """Judge one candidate.

    Args:
        folder: The pilot's folder.
        about: What the pilot set out to do.
        config: The limits.
        recipe: The candidate.
        runs: The runs that gave a result, by recipe and seed.
        counted: Those of them that report all that is judged.
        slices: For each metric the slices that are judged.
        looks: Who counts the looks.
    """
    mine = runs[recipe]
    error = fault_of(recipe, about.baseline, runs[about.baseline], mine, config)
    code = code_of(list(mine.values()))
    first = next(iter(mine.values()), None)
    plan_hash = None if first is None else first.run.plan_hash
    pairs, unpaired = pair_up(about.seeds, counted[about.baseline], counted[recipe])
    trial = Trial(
        recipe=recipe,
        seeds=about.seeds,
        pairs=pairs,
        unpaired=unpaired,
        runs=tuple(counted[recipe].values()),
        busy=busy_runs(pairs),
        plan_hash=plan_hash,
        code=code,
        looks=looks,
    )
    gates = () if error else gates_of(trial, config, slices)
    is_fixed = config.data_order == "same"
    return CandidateVerdict(
        recipe=recipe,
        outcome=None if error else _worst([gate.outcome for gate in gates]),
        error=error,
        gates=gates,
        plan_hash=plan_hash,
        code=code,
        torch=None if first is None else str(first.run.environment.get("torch")),
        device=None if first is None else first.result.device,
        data={
            str(seed): measured.summary.data
            for seed, measured in mine.items()
            if is_fixed and measured.summary.data is not None
        },
        num_attempts=sum(len(layout.attempts(folder, recipe, seed)) for seed in about.seeds),
        num_runs=len(counted[recipe]),
    )


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    """Give fail before inconclusive before pass."""
    order: tuple[Outcome, ...] = ("fail", "inconclusive", "pass")
    return min(outcomes, key=order.index)


def _name(folder: Path, about: PilotRecord) -> str:
    """Give the name that the pilot had when it ran: a copy may have another."""
    for recipe in (about.baseline, *about.candidates):
        for seed in about.seeds:
            for attempt in layout.attempts(folder, recipe, seed)[-1:]:
                try:
                    name = read_json(attempt / layout.REQUEST).get("pilot")
                except RunError:
                    continue
                if isinstance(name, str):
                    return name
    return folder.resolve().name


def _looks_of_verdict(folder: Path) -> Looks:
    """Give the looks that verdict.json carries; the first where there is none."""
    known: dict[tuple[str, str], int] = {}
    if (folder / layout.VERDICT).exists():
        for candidate in read_verdict(folder).candidates:
            known |= {(candidate.recipe, gate.gate): gate.look for gate in candidate.gates}

    def look(
        *, recipe: str, gate: str, plan_hash: str | None, code: str | None, values: str
    ) -> int:
        return known.get((recipe, gate), 1)

    return look


def read_verdict(folder: Path) -> Verdict:
    """Read a pilot's verdict.json.

    Args:
        folder: The pilot's folder.

    Raises:
        PilotError: There is none.
        RunError: It is damaged.
    """
    if not (folder / layout.VERDICT).is_file():
        what = f"{folder} has no {layout.VERDICT}" if folder.is_dir() else f"there is no {folder}"
        raise PilotError(
            what, hint="a pilot writes it when its runs are over: narrowgate pilot --resume"
        )
    return Verdict.from_json(read_json(folder / layout.VERDICT))


def evidence_of(folder: Path, about: PilotRecord) -> dict[str, str]:
    """Hash every file that a verdict rests on.

    Args:
        folder: The pilot's folder.
        about: What the pilot set out to do.

    Returns:
        SHA-256 by path below the folder: config.toml, pilot.json, and of each attempt that counts
        every file but what was printed, a page of the run, hidden files and folders.

    Raises:
        PilotError: A file cannot be read.
    """
    return {path.relative_to(folder).as_posix(): _hash(path) for path in _files(folder, about)}


def _files(folder: Path, about: PilotRecord) -> Iterator[Path]:
    """List the evidence."""
    yield folder / layout.CONFIG
    yield folder / layout.PILOT
    for recipe in (about.baseline, *about.candidates):
        for seed in about.seeds:
            for attempt in layout.attempts(folder, recipe, seed)[-1:]:
                for path in sorted(attempt.iterdir()):
                    # Neither what was printed nor the run's page, drawn later, decides anything.
                    is_aside = path.name in (layout.STDOUT, layout.STDERR, layout.REPORT)
                    if path.is_file() and not is_aside and not path.name.startswith("."):
                        yield path


def _hash(path: Path) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise PilotError(
            f"{path} cannot be read: {error.strerror}", hint="a verdict rests on it: put it back"
        ) from error


def check_evidence(folder: Path, verdict: Verdict) -> list[str]:
    """Name every file that is not what it was when a verdict was made.

    Args:
        folder: The pilot's folder.
        verdict: The verdict.

    Returns:
        A line for each file that changed, vanished or appeared; empty if all is as it was.

    Raises:
        PilotError: The folder is no pilot's.
    """
    now = evidence_of(folder, read_pilot(folder)) if (folder / layout.CONFIG).is_file() else {}
    told = []
    for name in sorted({*verdict.evidence, *now}):
        if name not in now:
            told.append(f"{name} is missing")
        elif name not in verdict.evidence:
            told.append(f"{name} is new")
        elif now[name] != verdict.evidence[name]:
            told.append(f"{name} was changed")
    return told


def recompute(folder: Path, *, keep: dict[tuple[str, int], Run] | None = None) -> Verdict:
    """Judge a pilot again and compare with its verdict.json.

    Args:
        folder: The pilot's folder.
        keep: Gets the runs that were read, for who draws them.

    Returns:
        The verdict, which is what verdict.json says.

    Raises:
        PilotError: A file of the evidence is not what it was, or the verdict comes out otherwise;
            the file or the difference is named.
        RunError: A file is damaged.
    """
    verdict = read_verdict(folder)
    if told := check_evidence(folder, verdict):
        raise PilotError(
            f"{folder} is not what its verdict rests on: {and_more(told)}",
            hint="put the files back, or run the pilot again",
        )
    again = judge(folder, keep=keep)
    if again.hash != verdict.hash:
        raise PilotError(
            f"{folder / layout.VERDICT} does not say what the runs say: "
            + _difference(verdict.to_json(), again.to_json(), "verdict"),
            hint="it was edited, or written by another version of narrowgate; narrowgate pilot "
            "--resume judges again",
        )
    return verdict


def _difference(old: object, new: object, place: str) -> str:
    """Name the first place in which two values differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            if dumps(old.get(key)) != dumps(new.get(key)):
                return _difference(old.get(key), new.get(key), f"{place}.{key}")
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            if dumps(one) != dumps(other):
                return _difference(one, other, f"{place}[{index}]")
    return f"{place} is {dumps(old)[:80]} there and {dumps(new)[:80]} now"
