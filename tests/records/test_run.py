from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from narrowgate.errors import RunError
from narrowgate.records import (
    CandidateVerdict,
    Ending,
    GateVerdict,
    Load,
    Request,
    Result,
    Run,
    Steps,
    Verdict,
    layout,
    load_run,
    step_times,
    summarise,
)
from narrowgate.records.files import dumps, read_json, write_json
from narrowgate.records.summary import num_warmup_steps, percentile
from records import asked

RESULT = Result(
    metrics={"val_loss": 2.5, "gap": math.nan},
    slices={"json": {"val_loss": math.inf}},
    seconds=1.5,
    device="cpu",
    peak_bytes=10,
    base_bytes=20,
    kinds={"parameters": 4},
    files={"train.py": "ab"},
)


def line(t: float, optimizer: int = 0, **changes: object) -> dict[str, object]:
    plain = {
        "kind": "step", "t": t, "step": 1, "optimizer": optimizer, "loss": 1.0, "applied": True,
        "reason": "", "loss_scale": 1.0, "grad_norm": 1.0, "culprit": None, "data": 3,
        "floats": None,
    }  # fmt: skip
    return {**plain, **changes}


def events(folder: Path, *lines: object) -> Path:
    (folder / layout.EVENTS).write_text("".join(f"{dumps(one)}\n" for one in lines))
    return folder


def run_of(steps: Steps, **changes: object) -> Run:
    empty = Run(
        folder=Path(), request=asked.request(), environment={}, plan_hash=None, plan=None,
        steps=steps, logs=(), load=(), result=None, ending=None, faults=(),
    )  # fmt: skip
    return replace(empty, **changes)


def steps_at(*times: float, **columns: tuple[object, ...]) -> Steps:
    count = len(times)
    plain = {
        "step": tuple(range(1, count + 1)), "optimizer": (0,) * count, "loss": (1.0,) * count,
        "applied": (True,) * count, "reason": ("",) * count, "loss_scale": (1.0,) * count,
        "grad_norm": (1.0,) * count, "culprit": (None,) * count, "data": (3,) * count,
        "floats": (None,) * count,
    }  # fmt: skip
    return Steps(t=times, **{**plain, **columns})


def test_a_run_without_anything_but_its_request_is_a_run(tmp_path: Path) -> None:
    run = load_run(asked.folder(tmp_path / "a"))
    assert run.request == asked.request()
    assert (len(run.steps), run.result, run.plan_hash, run.is_complete) == (0, None, None, False)
    summary = summarise(run)
    assert math.isnan(summary.median_step_s)
    assert summary.data is None


def test_no_folder_and_no_request_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no folder"):
        load_run(tmp_path / "none")
    with pytest.raises(RunError, match=r"request\.json cannot be read"):
        load_run(tmp_path)


def test_a_request_comes_back(tmp_path: Path) -> None:
    assert Request.from_json(read_json(asked.folder(tmp_path) / layout.REQUEST)) == asked.request()
    with pytest.raises(RunError, match="no request: 'seed'"):
        Request.from_json({"recipe": "bf16"})


def test_a_result_comes_back(tmp_path: Path) -> None:
    write_json(tmp_path / "r.json", RESULT.to_json())
    assert repr(Result.from_json(read_json(tmp_path / "r.json"))) == repr(RESULT)
    for wrong in ({"metrics": {}}, {**RESULT.to_json(), "metrics": {"a": "x"}}):
        with pytest.raises(RunError):
            Result.from_json(wrong)


def test_code_is_a_hash_over_paths_and_hashes() -> None:
    text = json.dumps([["a.py", "1"], ["b.py", "2"]])
    found = replace(RESULT, files={"b.py": "2", "a.py": "1"})
    assert found.code == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("how", "code", "complete"),
    [("ended", 0, True), ("ended", 1, False), ("timeout", 0, False), ("interrupted", None, False)],
)
def test_only_a_result_of_a_process_that_ended_well_counts(
    tmp_path: Path, how: str, code: int | None, complete: bool
) -> None:
    folder = asked.folder(tmp_path / "a")
    write_json(folder / layout.RESULT, RESULT.to_json())
    assert load_run(folder).is_complete  # outside of a pilot nobody saw it end
    write_json(folder / layout.EXIT, Ending(how=how, code=code, seconds=3.0).to_json())
    assert load_run(folder).is_complete is complete


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (layout.PLAN, {"hash": "x"}),
        (layout.PLAN, {"hash": "x", "plans": []}),
        (layout.PLAN, {"hash": "x", "plans": 3}),
        (layout.EXIT, {"how": "ended", "code": 0}),
        (layout.EXIT, {"how": "ended", "code": 0, "seconds": "x"}),
        (layout.RESULT, {"metrics": {}}),
    ],
)
def test_a_file_that_lacks_something_is_refused(
    tmp_path: Path, name: str, value: dict[str, object]
) -> None:
    folder = asked.folder(tmp_path / "a")
    write_json(folder / name, value)
    with pytest.raises(RunError):
        load_run(folder)


def test_odd_lines_are_left_out_and_said(tmp_path: Path) -> None:
    folder = events(
        asked.folder(tmp_path / "a"),
        line(0.1),
        {"kind": "step", "t": 0.2},
        line(0.3, loss=None),
        {"kind": "log", "t": 0.4, "step": None, "values": {"a": "x"}},
        {"kind": "something new", "t": 0.5},
        {"t": 0.6},
        line(0.7, loss="nan"),
    )
    run = load_run(folder)
    assert run.steps.t == (0.1, 0.3, 0.7)
    assert [math.isnan(loss) for loss in run.steps.loss] == [False, True, True]
    assert [fault.partition(" line")[0] for fault in run.faults] == ["events.jsonl: a"] * 3


def test_optimizers_are_numbered_from_the_first_that_stepped(tmp_path: Path) -> None:
    folder = events(asked.folder(tmp_path / "a"), line(0.1, 3), line(0.2, 4), line(0.3, 3))
    assert load_run(folder).steps.optimizer == (0, 1, 0)


def test_the_last_attempt_counts_also_the_tenth(tmp_path: Path) -> None:
    assert layout.attempts(tmp_path, "bf16", 3) == []
    for number in (1, 2, 10):
        folder = layout.attempt_folder(tmp_path, "bf16", 3, number)
        write_json(folder / layout.REQUEST, replace(asked.request(), attempt=number).to_json())
    last = load_run(layout.attempts(tmp_path, "bf16", 3)[-1])
    assert last.request.attempt == 10


@pytest.mark.parametrize(
    "recipe", ["bf16", "bf16-mixed", "fp16(loss_scale=1024); a.*: fp32", "/.."]
)
def test_recipes_have_folders_of_their_own(recipe: str) -> None:
    name = layout.slug(recipe)
    assert name.strip("-.")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-")
    assert layout.slug(recipe + " ") != name


def test_names_of_folders_sort_by_time_and_differ() -> None:
    names = [layout.new_folder_name() for _ in range(20)]
    assert len(set(names)) == 20
    assert sorted({name[:15] for name in names}) == list(dict.fromkeys(n[:15] for n in names))


@pytest.mark.parametrize(
    ("steps", "warmup"), [(0, 1), (1, 1), (9, 1), (10, 2), (50, 6), (100, 10), (10**6, 10)]
)
def test_warm_up_is_a_tenth_at_most_ten(steps: int, warmup: int) -> None:
    assert num_warmup_steps(steps) == warmup


def test_times_are_between_steps_of_the_first_optimizer_without_warm_up() -> None:
    times = [0.0, 9.0, 9.1, 9.2, 9.4, 9.5]
    steps = steps_at(*times, optimizer=(0, 0, 1, 0, 1, 0))
    # of 0, 9, 9.2, 9.5 the first is warm-up, and with it the long way to the second
    assert step_times(run_of(steps)) == pytest.approx((0.2, 0.3))
    summary = summarise(run_of(steps))
    assert (summary.median_step_s, summary.num_steps) == (pytest.approx(0.25), 6)


def test_the_optimizer_with_the_most_steps_is_timed() -> None:
    # a first phase, or a part that is updated now and then, is not the training
    steps = steps_at(0.0, 0.1, 1.0, 2.0, 3.0, optimizer=(0, 0, 1, 1, 1))
    assert steps.main == 1
    assert step_times(run_of(steps)) == (1.0,)
    assert steps_at(0.0, 1.0, optimizer=(1, 0)).main == 0
    assert Steps().main == 0


@pytest.mark.parametrize("count", [1, 2, 3, 19, 20, 21])
def test_a_percentile_is_numpys(count: int) -> None:
    values = tuple(np.random.default_rng(count).normal(size=count).tolist())
    for share in (0.0, 0.05, 0.5, 0.95, 1.0):
        # Both are one product and one sum of the same numbers; their order may differ.
        assert percentile(values, share) == pytest.approx(np.quantile(values, share), rel=4e-16)


def test_a_summary_counts_skips_and_waiting() -> None:
    steps = steps_at(0.0, 1.0, 2.0, applied=(True, False, False))
    load = (
        Load(t=0.5, cpu_s=1.0, waited_s=0.5),
        Load(t=1.0, cpu_s=9.0, waited_s=9.0),
        Load(t=2.5, cpu_s=4.0, waited_s=1.5),
    )
    run = run_of(steps, load=load, result=RESULT)
    summary = summarise(run)
    assert (summary.num_skipped, summary.peak_bytes, summary.seconds) == (2, 10.0, 1.5)
    assert summary.waited_share == 1.0 / (1.0 + 3.0)
    assert summary.cores == 3.0 / 2.0
    slept = replace(run, load=(load[0], replace(load[-1], cpu_s=1.25, t=10.5)))
    assert summarise(slept).waited_share == 1.0 / 10.0  # of wall time, most of which it slept
    ended = replace(run, ending=Ending(how="ended", code=0, seconds=4.0))
    assert summarise(ended).seconds == 4.0
    unknown = tuple(replace(one, waited_s=math.nan) for one in load)
    assert math.isnan(summarise(replace(run, load=unknown)).waited_share)


def test_curves_and_data_are_equal_only_bit_for_bit() -> None:
    one = run_of(steps_at(0.0, 1.0), result=RESULT)
    assert summarise(one).curve == summarise(run_of(steps_at(0.0, 7.0), result=RESULT)).curve
    near = run_of(steps_at(0.0, 1.0, loss=(1.0, 1.0 + 2**-52)), result=RESULT)
    assert summarise(one).curve != summarise(near).curve
    other = replace(RESULT, metrics={"val_loss": 2.5000000000000004, "gap": math.nan})
    assert summarise(one).curve != summarise(replace(one, result=other)).curve
    assert summarise(one).data == summarise(near).data
    assert summarise(one).data != summarise(run_of(steps_at(0.0, 1.0, data=(3, 4)))).data
    assert summarise(run_of(steps_at(0.0, 1.0, data=(None, None)))).data is None


GATE = GateVerdict(
    gate="quality.val_loss", outcome="pass", reason="r", owner=None, measure="worse by",
    better="lower", limit=0.01, seeds=(0, 1), values=(0.1, math.inf), mean=math.nan, sd=0.1,
    lower=-math.inf, upper=math.inf, look=1, alpha=0.025, num_seeds_needed=None,
)  # fmt: skip


def verdict_of(*outcomes: str | None) -> Verdict:
    candidates = tuple(
        CandidateVerdict(
            recipe=f"r{number}", outcome=outcome, error="" if outcome else "e", gates=(GATE,),
            plan_hash="p", code=None, torch="2", device="cpu", data={"0": "d"}, num_attempts=1,
            num_runs=1,
        )
        for number, outcome in enumerate(outcomes)
    )  # fmt: skip
    return Verdict(
        pilot="p", baseline="fp32", command=("python", "t.py"), config_hash="c", seeds=(0, 1),
        candidates=candidates, notes=("n",), evidence={"b": "2", "a": "1"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outcomes", "outcome"),
    [
        (("pass",), "pass"),
        (("pass", "inconclusive"), "inconclusive"),
        (("inconclusive", "fail", "pass"), "fail"),
        (("fail", None), None),
    ],
)
def test_the_worst_candidate_decides(outcomes: tuple[str | None, ...], outcome: str | None) -> None:
    assert verdict_of(*outcomes).outcome == outcome


def test_a_verdict_comes_back_from_its_file_with_its_hash(tmp_path: Path) -> None:
    verdict = verdict_of("pass", None)
    write_json(tmp_path / "v.json", verdict.to_json())
    back = Verdict.from_json(read_json(tmp_path / "v.json"))
    assert repr(back) == repr(verdict)
    assert (back.hash, back.evidence_hash) == (verdict.hash, verdict.evidence_hash)
    with pytest.raises(RunError, match="no verdict"):
        Verdict.from_json({"pilot": "p"})


def test_the_evidence_hash_is_of_sorted_pairs_of_path_and_hash() -> None:
    text = json.dumps([["a", "1"], ["b", "2"]])
    assert verdict_of().evidence_hash == hashlib.sha256(text.encode()).hexdigest()
