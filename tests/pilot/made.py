"""Pilot folders as if a pilot had run: what tests of judging, resuming and drawing are fed with.

    folder = made.pilot(tmp_path, candidates=("bf16",), seeds=range(5))
    made.run(folder, "fp32", 0, metrics={"val_loss": 2.31})

`pilot` writes config.toml and pilot.json; `run` one attempt, whole or broken off. `compared` fills
a pilot with runs whose differences are given. Every file is written through the records' own
`to_json`, so a test reads what a real run leaves. `measured` and `trial` make the same in memory,
for tests of thousands of pilots.
"""

from __future__ import annotations

import functools
import hashlib
import random
from dataclasses import replace
from pathlib import Path

from narrowgate.pilot.config import MINIMAL, config_hash
from narrowgate.pilot.folder import PilotRecord
from narrowgate.pilot.trial import Measured, Trial, busy_runs, pair_up
from narrowgate.plan import Plan
from narrowgate.records import (
    CandidateVerdict,
    Ending,
    GateVerdict,
    Request,
    Result,
    Run,
    Steps,
    Summary,
    Verdict,
    layout,
)
from narrowgate.records.files import SCHEMA, dumps

NAME = "20261201T180322-1f2e3d4c"
COMMAND = ("python", "train.py", "--seed", "{seed}")
FILE = "c0de" * 16  # hash of the one file that the runs loaded


def code_of(file: str = FILE) -> str:
    """The hash of code that consists of train.py alone."""
    return hashlib.sha256(dumps([["train.py", file]]).encode()).hexdigest()


CODE = code_of()
ENVIRONMENT = {
    "python": "3.11.7",
    "torch": "2.13.0+cpu",
    "narrowgate": "0.3.0",
    "system": "Linux 6.1",
    "machine": "x86_64",
    "processor": "some processor",
    "cores": 2,
    "threads": 2,
    "device": "cpu",
    "device_name": "some processor",
    "cuda": None,
    "tf32": False,
    "deterministic": False,
}


def pilot(
    root: Path,
    *,
    config: str = MINIMAL,
    baseline: str = "fp32",
    candidates=("bf16",),
    seeds=range(5),
    command=COMMAND,
    name: str = NAME,
) -> Path:
    """Make ``root/.narrowgate/pilots/NAME`` with config.toml and pilot.json."""
    folder = root / layout.ROOT / "pilots" / name
    folder.mkdir(parents=True)
    (folder / layout.CONFIG).write_text(config, encoding="utf-8")
    about = PilotRecord(
        command=tuple(command),
        config_hash=config_hash(folder / layout.CONFIG),
        seeds=tuple(seeds),
        baseline=baseline,
        candidates=tuple(candidates),
        created="2026-12-01T18:03:22.000000Z",
        commit="a" * 40,
        uncommitted=None,
    )
    _write(folder / layout.PILOT, about.to_json())
    return folder


def plan_of(recipe: str, device: str = "cpu") -> Plan:
    """The plan that `run` writes for a recipe."""
    return Plan(recipe=recipe, device=device, params=(), modules=(), notes=())


def run(
    folder: Path,
    recipe: str,
    seed: int,
    *,
    metrics,
    slices=None,
    attempt: int = 1,
    losses=None,
    num_steps: int = 40,
    num_skipped: int = 0,
    step_s: float = 0.01,
    seconds: float = 2.0,
    peak_bytes: int = 1_000_000,
    waited: float = 0.0,
    cores: float = 1.0,
    data=None,
    floats=None,
    with_data: bool = True,
    plan_hash: str | None = None,
    with_plan: bool = True,
    device: str = "cpu",
    torch: str = "2.13.0+cpu",
    file: str = FILE,
    how: str = "ended",
    exit_code: int | None = 0,
    environment=None,
) -> Path:
    """Write one attempt and give its folder.

    ``metrics=None`` is a run that never called ng.result. ``num_skipped`` first steps are skipped.
    ``losses`` and ``data`` default to numbers drawn from the seed, ``data`` alike for all recipes;
    ``waited`` is the share of time in which threads waited for a core, NaN where the system does
    not say, and ``cores`` how many were kept busy.
    """
    at = layout.attempt_folder(folder, recipe, seed, attempt)
    request = Request(
        recipe=recipe,
        seed=seed,
        attempt=attempt,
        pilot=folder.name,
        command=tuple(word.replace("{seed}", str(seed)) for word in COMMAND),
        commit="a" * 40,
        uncommitted=None,
        created="2026-12-01T18:03:22.000000Z",
    )
    _write(at / layout.REQUEST, request.to_json())
    facts = {**ENVIRONMENT, "device": device, "torch": torch, **(environment or {})}
    _write(at / layout.ENVIRONMENT, facts)
    if with_plan:
        plan = plan_of(recipe, device)
        text = {"hash": plan_hash or plan.hash, "plans": [plan.to_json()]}
        _write(at / layout.PLAN, text)
    draw = random.Random(f"{recipe} {seed}")
    losses = losses or [2.0 + draw.random() for _ in range(num_steps)]
    data_draw = random.Random(seed)
    data = data or [data_draw.getrandbits(52) for _ in losses]
    lines = [_load(0.0, waited, cores)]
    for step, (loss, given) in enumerate(zip(losses, data, strict=True)):
        applied = step >= num_skipped
        lines.append(
            {
                "kind": "step",
                "t": step_s * step,
                "step": step,
                "optimizer": 0,
                "loss": loss,
                "applied": applied,
                "reason": "" if applied else "non-finite gradients",
                "loss_scale": 1.0,
                "grad_norm": 1.0 + loss,
                "culprit": None if applied else "head.weight",
                "data": given if with_data else None,
                "floats": None if floats is None else floats[step],
            }
        )
    lines.append(_load(max(1.0, step_s * len(losses)), waited, cores))
    text = "".join(dumps(line) + "\n" for line in lines)
    (at / layout.EVENTS).write_text(text, encoding="utf-8")
    if metrics is not None:
        result = Result(
            metrics=dict(metrics),
            slices=slices or {},
            seconds=seconds,
            device=device,
            peak_bytes=peak_bytes,
            base_bytes=50_000_000,
            kinds={"parameters": 400_000, "gradients": 400_000, "states": 800_000},
            files={"train.py": file},
        )
        _write(at / layout.RESULT, result.to_json())
    for name in (layout.STDOUT, layout.STDERR):
        (at / name).write_text(f"{recipe} {seed}\n", encoding="utf-8")
    ending = Ending(how=how, code=exit_code, seconds=seconds)
    _write(at / layout.EXIT, ending.to_json())
    return at


def _write(path: Path, value) -> None:
    """Write a JSON object as `write_json` does, but without waiting for the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumps({"schema": SCHEMA, **value}), encoding="utf-8")


def _load(t: float, waited: float, cores: float):
    """One line on how busy the processor was: ``cores`` of CPU time a second."""
    cpu_s = cores * t
    return {"kind": "load", "t": t, "cpu_s": cpu_s, "waited_s": cpu_s * waited / (1.0 - waited)}


def compared(
    root: Path,
    differences,
    *,
    metric: str = "val_loss",
    baseline=None,
    recipe: str = "bf16",
    candidate_of=None,
    **options,
) -> Path:
    """Make a pilot with one candidate whose metric is the baseline's plus the differences.

    ``options`` go to `pilot`; ``candidate_of`` holds what `run` is given for the candidate only.
    """
    differences = list(differences)
    options.setdefault("seeds", range(len(differences)))
    folder = pilot(root, candidates=(recipe,), **options)
    baseline = baseline or [2.0 + 0.01 * place for place in range(len(differences))]
    for seed, value, difference in zip(options["seeds"], baseline, differences, strict=True):
        run(folder, "fp32", seed, metrics={metric: value})
        run(folder, recipe, seed, metrics={metric: value + difference}, **(candidate_of or {}))
    return folder


def runs(folder: Path, recipe: str, seeds=range(5), *, add=0.0, slices=None, **options) -> None:
    """Write runs whose val_loss depends on the seed alone, but for what is added."""
    for seed in seeds:
        value = 2.0 + seed / 8 + seed**2 / 1024 + add  # in steps far below any margin
        parts = {name: {"val_loss": value} for name in slices or ()}
        run(folder, recipe, seed, metrics={"val_loss": value}, slices=parts, **options)


def equal_pilot(root: Path) -> Path:
    """Make a pilot of five seeds whose candidate is equal to the baseline."""
    folder = pilot(root)
    runs(folder, "fp32")
    runs(folder, "bf16")
    return folder


def only(verdict: Verdict) -> CandidateVerdict:
    """The one candidate of a verdict."""
    (candidate,) = verdict.candidates
    return candidate


def gate(verdict: Verdict, name: str = "quality.val_loss") -> GateVerdict:
    """One gate of the one candidate."""
    return {found.gate: found for found in only(verdict).gates}[name]


def measured(recipe: str, seed: int, metrics, slices=None, **of_summary) -> Measured:
    """A run that gave a result, in memory: for gates, which look at results and summaries."""
    result = Result(
        metrics=metrics,
        slices=slices or {},
        seconds=2.0,
        device="cpu",
        peak_bytes=1_000_000,
        base_bytes=0,
        kinds={},
        files={"train.py": FILE},
    )
    return Measured(
        seed=seed,
        run=_run_of(recipe, seed),
        result=result,
        summary=replace(_SUMMARY, **of_summary) if of_summary else _SUMMARY,
    )


@functools.cache
def _run_of(recipe: str, seed: int) -> Run:
    return replace(_RUN, request=replace(_RUN.request, recipe=recipe, seed=seed))


def trial(baseline, candidate, *, seeds=None, looks=lambda **_: 1, recipe: str = "bf16") -> Trial:
    """What gates are decided on, from runs by `measured`."""
    theirs = {run.seed: run for run in baseline}
    mine = {run.seed: run for run in candidate}
    seeds = tuple(theirs) if seeds is None else tuple(seeds)
    pairs, unpaired = pair_up(seeds, theirs, mine)
    return Trial(
        recipe=recipe,
        seeds=seeds,
        pairs=pairs,
        unpaired=unpaired,
        runs=tuple(candidate),
        busy=busy_runs(pairs),
        plan_hash="p" * 64,
        code=CODE,
        looks=looks,
    )


_RUN = Run(
    folder=Path("attempt-1"),
    request=Request(
        recipe="fp32",
        seed=0,
        attempt=1,
        pilot=NAME,
        command=COMMAND,
        commit=None,
        uncommitted=None,
        created="2026-12-01T18:03:22.000000Z",
    ),
    environment=ENVIRONMENT,
    plan_hash="p" * 64,
    plan=plan_of("fp32").to_json(),
    steps=Steps(),
    logs=(),
    load=(),
    result=None,
    ending=Ending(how="ended", code=0, seconds=2.0),
    faults=(),
)
_SUMMARY = Summary(
    num_steps=40,
    num_skipped=0,
    median_step_s=0.01,
    p95_step_s=0.012,
    seconds=2.0,
    peak_bytes=1e6,
    waited_share=0.0,
    cores=1.0,
    data=None,
    curve="c" * 64,
)
