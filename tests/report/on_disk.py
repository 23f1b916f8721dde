"""The sample pilot as files, as a pilot leaves them: for the command, and to look at the page."""

from __future__ import annotations

import json
from pathlib import Path

from narrowgate.pilot.config import config_hash
from narrowgate.pilot.folder import PilotRecord
from narrowgate.pilot.judge import judge
from narrowgate.records import Run, layout
from narrowgate.records.files import dumps, write_json
from report import sample

CONFIG = """
[pilot]
baseline = "fp32"
candidates = ["bf16", "bf16-mixed", "fp16", "bf16(master=none)"]
seeds = 5

[quality.val_loss]
better = "lower"
margin = 0.005
relative = true
owner = "Ada"

[quality.val_loss.slices.asyncio]
margin = 0.01

[quality.val_loss.slices.email]
margin = 0.01

[quality.val_loss.slices.json]
margin = 0.01

[speed]
min_ratio = 0.98
max_p95_ratio = 1.05

[memory]
max_ratio = 1.02

[stability]
max_skipped_share = 0.04
"""


def write_run_into(folder: Path, run: Run) -> None:
    """Write one run's files into its folder."""
    write_json(folder / layout.REQUEST, run.request.to_json())
    write_json(folder / layout.ENVIRONMENT, run.environment)
    if run.plan is not None:
        write_json(folder / layout.PLAN, {"hash": run.plan_hash, "plans": [run.plan]})
    columns = {name: getattr(run.steps, name) for name in run.steps.__slots__}
    lines = [{"kind": "load", "t": o.t, "cpu_s": o.cpu_s, "waited_s": o.waited_s} for o in run.load]
    lines += [
        {"kind": "step", **dict(zip(columns, row, strict=True))}
        for row in zip(*columns.values(), strict=True)
    ]
    lines += [{"kind": "log", "t": o.t, "step": o.step, "values": o.values} for o in run.logs]
    (folder / layout.EVENTS).write_text("".join(dumps(line) + "\n" for line in lines))
    if run.result is not None:
        write_json(folder / layout.RESULT, run.result.to_json())
    if run.ending is not None:
        write_json(folder / layout.EXIT, run.ending.to_json())


def write_pilot(root: Path, runs=None, config: str = CONFIG, seeds=sample.SEEDS) -> Path:
    """Write the whole pilot below ``root/.narrowgate``, with its verdict and a ledger."""
    runs = sample.runs() if runs is None else runs
    folder = root / layout.ROOT / "pilots" / sample.PILOT
    folder.mkdir(parents=True)
    (folder / layout.CONFIG).write_text(config)
    about = PilotRecord(
        command=sample.COMMAND,
        config_hash=config_hash(folder / layout.CONFIG),
        seeds=tuple(seeds),
        baseline=sample.BASELINE,
        candidates=sample.CANDIDATES,
        created="2026-12-01T18:03:22.000000Z",
        commit="a1b2c3d4" * 5,
        uncommitted=None,
    )
    write_json(folder / layout.PILOT, about.to_json())
    for (recipe, seed), run in runs.items():
        write_run_into(layout.attempt_folder(folder, recipe, seed, 1), run)
    write_json(folder / layout.VERDICT, judge(folder).to_json())
    assert json.loads((folder / layout.VERDICT).read_text())["pilot"] == sample.PILOT
    return folder
