"""A pilot as it might come out, in memory: what the pages are drawn from in tests, and by hand.

fp32 against bf16 and bf16-mixed (pass), fp16 (inconclusive: its loss scale came down from too high,
and one slice is open), bf16(master=none) (fails, one run diverges); five seeds; slices of which one
has no margin. The numbers are drawn from seeds and mean nothing.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from pathlib import Path

from scipy.stats import t as student

from narrowgate.plan import ModelInfo, Plan, parse, resolve
from narrowgate.plan.model import ModuleInfo, Owner, ParamInfo
from narrowgate.records import (
    CandidateVerdict,
    Ending,
    GateVerdict,
    LedgerEntry,
    Load,
    LogLine,
    Request,
    Result,
    Run,
    Steps,
    Verdict,
)

PILOT = "20261201T180322-1f2e3d4c"
COMMAND = ("python", "examples/gpt.py", "--seed", "{seed}")
SEEDS = (0, 1, 2, 3, 4)
BASELINE = "fp32"
CANDIDATES = ("bf16", "bf16-mixed", "fp16", "bf16(master=none)")
SLICES = ("asyncio", "email", "json", "multiprocessing", "unittest")
WORSE = {"bf16": 0.001, "bf16-mixed": -0.0005, "fp16": 0.006, "bf16(master=none)": 0.31}
TIMES = {"fp32": 1.0, "bf16": 0.93, "bf16-mixed": 0.97, "fp16": 0.95, "bf16(master=none)": 0.88}
PARAMETERS = 4 * 3_200_000
MODEL_FACTS = {
    "python": "3.11.7", "torch": "2.13.0+cpu", "narrowgate": "0.3.0", "system": "Linux 6.1",
    "machine": "x86_64", "cores": 2, "threads": 2, "device": "cpu", "cuda": None, "tf32": False,
}  # fmt: skip


def model() -> ModelInfo:
    """A little GPT, as the plan sees it."""
    modules = [ModuleInfo(fqn="", kind="Other", class_name="GPT", parametrized=False)]
    params = []

    def add_plain(fqn):
        modules.append(ModuleInfo(fqn=fqn, kind="Other", class_name="Block", parametrized=False))

    def add(fqn, kind, shape):
        modules.append(ModuleInfo(fqn=fqn, kind=kind, class_name=kind, parametrized=False))
        params.append(
            ParamInfo(
                fqn=f"{fqn}.weight",
                shape=shape,
                dtype="fp32",
                trainable=True,
                optimized=True,
                owners=(Owner(module=fqn, name="weight"),),
            )
        )  # fmt: skip

    add("tokens", "Embedding", (256, 256))
    add_plain("blocks")
    for block in range(4):
        add_plain(f"blocks.{block}")
        add(f"blocks.{block}.norm", "LayerNorm", (256,))
        add(f"blocks.{block}.attention", "Linear", (768, 256))
        add(f"blocks.{block}.up", "Linear", (1024, 256))
        add(f"blocks.{block}.down", "Linear", (256, 1024))
    add("head", "Linear", (256, 256))
    return ModelInfo(device="cpu", modules=tuple(modules), params=tuple(params))


@functools.cache
def plan(recipe: str) -> Plan:
    """The plan of a recipe for the model."""
    return resolve(model(), parse(recipe))


def steps_of(recipe: str, seed: int, num_steps: int) -> Steps:
    """Steps whose loss falls, with a loss scale where the recipe has one."""
    draw = random.Random(f"{seed}")
    own = random.Random(f"{recipe} {seed}")
    scale, clean = (65536.0, 0) if recipe.startswith("fp16") else (1.0, 0)
    rows, t = [], 0.0
    for step in range(1, num_steps + 1):
        loss = 2.3 + 3.2 * math.exp(-step / (num_steps / 6)) + draw.gauss(0, 0.05)
        loss += own.gauss(0, 0.006)
        if recipe == "bf16(master=none)":
            loss += 0.4 * min(1.0, 3 * step / num_steps)
            if seed == 3 and step > 0.8 * num_steps:
                loss = math.nan
        applied = not (recipe == "fp16" and (step < 6 or own.random() < 0.01))
        rows.append(
            (t, step, 0, loss, applied, "" if applied else "non-finite gradients", scale,
             draw.uniform(0.4, 1.2), None if applied else "blocks.3.down.weight",
             step + 7 * seed, None)
        )  # fmt: skip
        t += 0.05 * TIMES[recipe] * own.uniform(0.97, 1.04) * (3 if step % 41 == 0 else 1)
        if recipe.startswith("fp16"):
            clean = clean + 1 if applied else 0
            scale = scale * 2 if clean and clean % 100 == 0 else scale
            scale = scale if applied else scale / 2
    return Steps(**dict(zip(Steps.__slots__, zip(*rows, strict=True), strict=True)))


def run(recipe: str, seed: int, num_steps: int = 200, **changed) -> Run:
    """One run, with some of its fields changed."""
    own, base = random.Random(f"result {recipe} {seed}"), random.Random(f"result {seed}")
    worse = WORSE.get(recipe, 0.0)
    loss = 2.31 + base.gauss(0, 0.012) + worse + own.gauss(0, 0.0012 + worse / 4)
    if recipe == "bf16(master=none)" and seed == 3:
        loss = math.nan
    half = recipe in ("bf16", "fp16")
    steps = steps_of(recipe, seed, num_steps)
    fields = {
        "folder": Path("runs") / recipe / str(seed) / "attempt-1",
        "request": Request(
            recipe=recipe, seed=seed, attempt=1, pilot=PILOT,
            command=tuple(word.replace("{seed}", str(seed)) for word in COMMAND),
            commit="a1b2c3d4" * 5, uncommitted=None, created="2026-12-01T18:03:22.000000Z",
        ),
        "environment": MODEL_FACTS,
        "plan_hash": plan(recipe).hash,
        "plan": plan(recipe).to_json(),
        "steps": steps,
        "logs": tuple(
            LogLine(t=t, step=float(step), values={"lr": 3e-4 * step / num_steps})
            for t, step in zip(steps.t, steps.step, strict=True) if step % 10 == 0
        ),
        "load": (Load(t=0.0, cpu_s=0.0, waited_s=0.0), Load(t=10.0, cpu_s=18.0, waited_s=0.4)),
        "result": Result(
            metrics={"val_loss": loss},
            slices={
                name: {"val_loss": loss + 0.1 * place + own.gauss(0, 0.002)}
                for place, name in enumerate((*SLICES, "other"))
            },
            seconds=steps.t[-1] + 3.0 if steps.t else 3.0,
            device="cpu",
            peak_bytes=int(210e6 * (0.86 if half else 1.0) * own.uniform(0.99, 1.01)),
            base_bytes=310_000_000,
            kinds={
                "parameters": PARAMETERS // 2 if half or "none" in recipe else PARAMETERS,
                "remainders": PARAMETERS // 2 if half else 0,
                "gradients": PARAMETERS // 2 if half or "none" in recipe else PARAMETERS,
                "states": 2 * PARAMETERS,
                "buffers": 16_384,
            },
            files={"train.py": "c0de" * 16},
        ),
        "ending": Ending(how="ended", code=0, seconds=steps.t[-1] + 5.0 if steps.t else 5.0),
        "faults": (),
    }  # fmt: skip
    return Run(**{**fields, **changed})


def runs(num_steps: int = 200) -> dict[tuple[str, int], Run]:
    """All runs of the pilot."""
    recipes = (BASELINE, *CANDIDATES)
    return {(r, seed): run(r, seed, num_steps) for r in recipes for seed in SEEDS}


def gate(name: str, values, limit: float, *, measure="worse by", better="lower", **changed):
    """A gate decided by the rule of the pilot, and a reason with its numbers."""
    values = tuple(values)
    logs = [math.log(v) for v in values] if measure == "x baseline" else list(values)
    mean, lower, upper, sd = math.nan, math.nan, math.nan, math.nan
    if values and all(math.isfinite(value) for value in values):
        mean = statistics.fmean(logs)
    if measure != "share" and len(values) > 2 and math.isfinite(mean):
        sd = statistics.stdev(logs)
        half = student.ppf(1 - 0.025, len(values) - 1) * sd / math.sqrt(len(values))
        lower, upper = mean - half, mean + half
    if measure == "x baseline":
        mean, lower, upper = (math.exp(value) for value in (mean, lower, upper))
    sign = 1 if better == "lower" else -1
    bad, good = (upper, lower) if better == "lower" else (lower, upper)
    if math.isnan(mean):
        outcome = "fail"
    elif measure == "share":
        outcome = "pass" if mean <= limit else "fail"
    else:
        passed, failed = sign * bad < sign * limit, sign * good > sign * limit
        outcome = "pass" if passed else "fail" if failed else "inconclusive"
    fields = {
        "gate": name, "outcome": outcome, "owner": None, "measure": measure, "better": better,
        "limit": limit, "seeds": SEEDS[: len(values)], "values": values, "mean": mean, "sd": sd,
        "lower": lower, "upper": upper, "look": 1,
        "alpha": math.nan if measure == "share" else 0.025,
        "num_seeds_needed": 9 if outcome == "inconclusive" else None,
        "reason": f"{mean:.4g} on average, {lower:.4g} to {upper:.4g} against {limit:.4g}",
    }  # fmt: skip
    return GateVerdict(**{**fields, **changed})


def candidate(recipe: str, found, **changed) -> CandidateVerdict:
    """One candidate with its gates."""

    def worse(part=None):
        def value(which, seed):
            result = found[which, seed].result
            return result.slices[part]["val_loss"] if part else result.metrics["val_loss"]

        return [value(recipe, seed) - value(BASELINE, seed) for seed in SEEDS]

    def ratio(of):
        return [of(found[recipe, seed]) / of(found[BASELINE, seed]) for seed in SEEDS]

    def time_of(one):
        return one.steps.t[-1] / len(one.steps)

    numbers = [found[recipe, seed].result.metrics["val_loss"] for seed in SEEDS]
    bad = sum(not math.isfinite(value) for value in numbers) / len(SEEDS)
    steps = [applied for seed in SEEDS for applied in found[recipe, seed].steps.applied]
    ratios = {"measure": "x baseline"}
    gates = (
        gate("quality.val_loss", worse(), 0.0116, owner="Ada"),
        *(gate(f"quality.val_loss/{name}", worse(name), 0.0116) for name in SLICES),
        gate("speed.median", [1 / r for r in ratio(time_of)], 0.98, better="higher", **ratios),
        gate("memory.peak", ratio(lambda one: one.result.peak_bytes), 1.02, **ratios),
        gate("stability.finite", [bad], 0.0, measure="share"),
        gate("stability.skipped", [1 - sum(steps) / len(steps)], 0.2, measure="share"),
    )
    outcomes = {one.outcome for one in gates}
    outcome = next(word for word in ("fail", "inconclusive", "pass") if word in outcomes)
    fields = {
        "recipe": recipe, "outcome": outcome, "error": "", "gates": gates, "plan_hash": "p" * 64,
        "code": "c" * 64, "torch": "2.13.0+cpu", "device": "cpu", "data": {}, "num_attempts": 5,
        "num_runs": 5,
    }  # fmt: skip
    return CandidateVerdict(**{**fields, **changed})


def verdict(found=None, **changed) -> Verdict:
    """The verdict over the runs."""
    found = found or runs()
    fields = {
        "pilot": PILOT, "baseline": BASELINE, "command": COMMAND, "config_hash": "f" * 64,
        "seeds": SEEDS, "candidates": tuple(candidate(r, found) for r in CANDIDATES), "notes": (),
        "evidence": {"runs/fp32/0/attempt-1/events.jsonl": "e" * 64},
    }  # fmt: skip
    return Verdict(**{**fields, **changed})


def entry(number: int, kind: str, **body) -> LedgerEntry:
    """One entry of the ledger."""
    return LedgerEntry(
        number=number, time=f"2026-12-0{number}T09:00:00.000000Z", kind=kind, pilot=PILOT,
        body=body, previous="0" * 64, hash=f"{number}" * 64,
    )  # fmt: skip


def ledger() -> list[LedgerEntry]:
    """A ledger in which bf16 was accepted, and a gate of fp16 overridden."""
    return [
        entry(1, "pilot"),
        entry(2, "accept", recipe="bf16", by="Ada Lovelace", reason="within the margin everywhere"),
        entry(3, "override", recipe="fp16", gate="quality.val_loss/email", by="Charles Babbage",
              reason="no mail in our data"),
    ]  # fmt: skip
