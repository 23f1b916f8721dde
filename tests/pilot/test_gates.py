"""Each kind of gate: what it decides, and the sentence that says why."""

from __future__ import annotations

import math

import pytest

from narrowgate.pilot import config as limits
from narrowgate.pilot.gates import gates_of
from pilot import made

NAN, INF = math.nan, math.inf
NUM = 5


def quality(name="val_loss", *, better="lower", margin=0.01, relative=False, owner=None, **slices):
    return limits.QualityLimit(
        name=name, better=better, margin=margin, relative=relative, owner=owner, slices=slices
    )


def gates(trial, *qualities, slices=None, speed=None, memory=None, stability=None, cost=None):
    """All gates, by name."""
    config = limits.PilotConfig(
        baseline="fp32",
        candidates=("bf16",),
        seeds=trial.seeds,
        timeout_s=1.0,
        data_order="same",
        quality=qualities or (quality(),),
        speed=speed,
        memory=memory,
        stability=stability,
        cost=cost,
    )
    slices = {q.name: (slices or {}).get(q.name, ()) for q in config.quality}
    found = gates_of(trial, config, slices)
    assert len({gate.gate for gate in found}) == len(found)
    return {gate.gate: gate for gate in found}


def losses(baseline, candidate, *, looks=lambda **_: 1, seeds=None):
    """A trial over one metric."""
    return made.trial(
        [made.measured("fp32", seed, {"val_loss": v}) for seed, v in enumerate(baseline)],
        [made.measured("bf16", seed, {"val_loss": v}) for seed, v in enumerate(candidate)],
        looks=looks,
        seeds=seeds,
    )


def val_loss(baseline, candidate, limit=None, **options):
    return gates(losses(baseline, candidate, **options), limit or quality())["quality.val_loss"]


BASE = [2.0, 2.25 + 2**-10, 2.5, 2.75 - 2**-10, 3.0]  # exact, in steps far below any margin


def plus(differences, baseline=BASE):
    return [value + difference for value, difference in zip(baseline, differences, strict=True)]


def test_a_pass_says_its_numbers():
    gate = val_loss(BASE, plus([0.0, 0.001, 0.002, 0.003, -0.001]))
    assert (gate.outcome, gate.look, gate.alpha) == ("pass", 1, 0.025)
    assert gate.reason == (
        "worse by 0.001 on average over 5 seeds (sd 0.001581); the upper bound 0.002963 "
        "(97.5 % confidence) is below the margin 0.01"
    )
    assert gate.seeds == (0, 1, 2, 3, 4)
    assert gate.values == pytest.approx([0.0, 0.001, 0.002, 0.003, -0.001])
    assert (gate.measure, gate.better, gate.limit) == ("worse by", "lower", 0.01)
    assert gate.lower < gate.mean < gate.upper < gate.limit
    assert gate.num_seeds_needed is None


def test_a_fail_says_its_numbers():
    gate = val_loss(BASE, plus([0.02, 0.021, 0.022, 0.023, 0.019]))
    assert gate.outcome == "fail"
    assert gate.reason == (
        "worse by 0.021 on average over 5 seeds (sd 0.001581); the lower bound 0.01904 "
        "(97.5 % confidence) is above the margin 0.01"
    )


def test_inconclusive_says_how_many_seeds_it_takes():
    drawn = [1 / 64, -1 / 64, 0.0, 1 / 128, -1 / 128]
    gate = val_loss(BASE, plus(drawn), quality(margin=1 / 128), looks=lambda **_: 2)
    assert (gate.outcome, gate.look, gate.alpha) == ("inconclusive", 2, 0.0125)
    # By scipy: sd, t(0.9875, 4) sd / sqrt(5), and the power at the third look's 0.00625.
    assert gate.reason == (
        "no difference on average over 5 seeds (sd 0.01235); the margin 0.007812 lies within the "
        "bounds -0.01931 and 0.01931 (98.75 % confidence); about 32 seeds in all are likely to "
        "answer"
    )
    assert gate.num_seeds_needed == 32


def test_a_hopeless_case_is_said_to_be_one():
    gate = val_loss(BASE, plus([2.0, -2.0, 1.0, -1.0, 0.0]))
    assert gate.num_seeds_needed is None
    assert gate.reason.endswith("; not even 1,000 seeds are likely to answer")


def test_equal_metrics_pass_and_say_that_nothing_varied():
    gate = val_loss(BASE, BASE)
    assert gate.outcome == "pass"
    assert gate.reason == "no difference with each of 5 seeds (sd 0): 0 is below the margin 0.01"
    assert gate.values == (0.0,) * 5
    assert math.copysign(1.0, gate.mean) == 1.0


@pytest.mark.parametrize(
    ("by", "outcome", "word"),
    [(0.125, "pass", "below"), (0.25, "inconclusive", "exactly"), (0.5, "fail", "above")],
)
def test_without_spread_the_mean_decides(by, outcome, word):
    gate = val_loss(BASE, plus([by] * NUM), quality(margin=0.25))
    assert gate.outcome == outcome
    assert f" is {word} the margin 0.25" in gate.reason
    assert gate.num_seeds_needed is None


def test_higher_is_better_turns_the_sign():
    low, high = [0.5, 0.501, 0.5], [0.75, 0.751, 0.75]
    better = val_loss(low, high, quality(better="higher"))
    worse = val_loss(high, low, quality(better="higher"))
    assert (better.outcome, better.values) == ("pass", (-0.25,) * 3)
    assert (worse.outcome, worse.values) == ("fail", (0.25,) * 3)
    assert better.reason.startswith("better by 0.25 with each")
    assert worse.reason.startswith("worse by 0.25 with each")


def test_minus_zero_is_no_difference():
    gate = val_loss([-0.0, 0.0, -0.0], [0.0, -0.0, -0.0], quality(better="higher"))
    assert [math.copysign(1.0, value) for value in gate.values] == [1.0] * 3
    assert gate.reason.startswith("no difference")


def test_a_relative_margin_is_a_share_of_the_baselines_mean():
    limit = quality(margin=0.01, relative=True)
    seen = [-2.0, -4.0009765625, -5.9990234375]
    gate = val_loss(seen, seen, limit)
    assert gate.limit == pytest.approx(0.04)
    assert gate.reason.endswith("the margin 0.04 (1 % of the baseline's 4)")
    huge = val_loss([1.7e308] * 3, [1.7e308] * 3, limit)
    assert (huge.outcome, huge.limit) == ("pass", pytest.approx(1.7e306))


def test_a_share_of_zero_is_no_margin():
    gate = val_loss([0.0, -0.0, 0.0], [0.0, 0.0, 0.0], quality(margin=0.05, relative=True))
    assert (gate.outcome, gate.limit) == ("inconclusive", 0.0)
    assert gate.reason == (
        "the margin is 5 % of the baseline's mean, and that is 0: give an absolute margin "
        "(relative = false) in a new pilot; no difference on average"
    )


def test_a_candidate_that_is_not_finite_fails():
    for value in (NAN, INF, -INF):
        gate = val_loss([1.0] * 4, [1.0, value, 1.0, value])
        assert gate.outcome == "fail"
        assert gate.reason == "the candidate's val_loss is not finite with seeds 1, 3"
        assert math.isnan(gate.alpha)
        assert math.isnan(gate.upper)


def test_a_baseline_that_is_not_finite_answers_nothing():
    gate = val_loss([1.0, NAN, 1.0], [1.0, NAN, 1.0])
    assert gate.outcome == "inconclusive"
    assert gate.reason == "the baseline's own val_loss is not finite with seed 1"
    # That the baseline broke, too, with one seed does not excuse the other.
    assert val_loss([1.0, NAN, 1.0], [NAN, NAN, 1.0]).outcome == "fail"


def test_differences_beyond_fp64_answer_nothing():
    gate = val_loss([-1.7e308] * 3, [1.7e308] * 3)
    assert gate.outcome == "inconclusive"
    assert "beyond the largest FP64 number" in gate.reason


def test_a_missing_pair_holds_back_a_pass_and_not_a_fail():
    good = val_loss([1.0] * 4, [1.0] * 3, seeds=range(5))
    bad = val_loss([1.0] * 4, [9.0] * 3, seeds=range(5))
    assert (good.outcome, bad.outcome) == ("inconclusive", "fail")
    assert good.reason.endswith("; without a pair for seeds 3, 4 it cannot pass")
    assert good.seeds == (0, 1, 2)


@pytest.mark.parametrize(
    ("num", "reason"),
    [
        (0, "no seed has a pair of results; at least 3 are needed"),
        (1, "worse by 1 with seed 0; at least 3 pairs are needed"),
        (2, "worse by 1 with seeds 0, 1; at least 3 pairs are needed"),
    ],
)
def test_too_few_seeds_answer_nothing(num, reason):
    gate = val_loss([1.0] * num, [2.0] * num)
    assert (gate.outcome, gate.reason, gate.num_seeds_needed) == ("inconclusive", reason, 3)
    assert math.isnan(gate.alpha)


def test_more_seeds_do_not_help_where_runs_are_missing():
    gate = val_loss([1.0] * 5, [2.0], seeds=range(5))
    assert gate.num_seeds_needed is None
    assert gate.reason.endswith("; without a pair for seeds 1, 2, 3, 4 it cannot pass")


def test_a_hundred_seeds_are_named_in_a_line():
    gate = val_loss([1.0] * 100, [2.0], seeds=range(100))
    assert "seeds 1, 2, 3, 4, 5, 6 and 93 more" in gate.reason


def test_bounds_are_told_with_digits_enough_to_differ():
    gate = val_loss([0.0] * 3, [0.00999999] * 3)
    assert "0.00999999 is below the margin 0.01" in gate.reason


NAMES = ["a/b", "json.lines", '"quoted" <b>', "損失", "[bold]x[/bold]", "quality.a"]


def test_every_judged_slice_is_a_gate_of_its_own():
    def run(recipe, seed, by):
        slices = {name: {"val_loss": by * (name == "a/b")} for name in NAMES}
        return made.measured(recipe, seed, {"val_loss": 0.0}, {**slices, "free": {"val_loss": 9.0}})

    trial = made.trial([run("fp32", s, 0) for s in range(3)], [run("bf16", s, 1) for s in range(3)])
    limit = quality(owner="Ada", **{"*": 0.5, "a/b": 0.25})
    found = gates(trial, limit, slices={"val_loss": NAMES})
    assert list(found) == [
        "quality.val_loss",
        *(f"quality.val_loss/{name}" for name in NAMES),
        "stability.finite",
    ]
    bad = found["quality.val_loss/a/b"]
    assert (bad.outcome, bad.limit, bad.owner) == ("fail", 0.25, "Ada")
    assert found["quality.val_loss/損失"].limit == 0.5
    assert [g.gate for g in found.values() if g.outcome == "fail"] == ["quality.val_loss/a/b"]


def measures(candidate, baseline=(0.02,) * NUM, *, name="median_step_s", **of_all):
    """A trial over one number of the summary."""

    def runs(recipe, values):
        return [
            made.measured(recipe, seed, {"val_loss": 0.0}, **{name: value, **of_all})
            for seed, value in enumerate(values)
        ]

    return made.trial(runs("fp32", baseline), runs("bf16", candidate))


SPEED = limits.SpeedLimit(min_ratio=1.5, max_p95_ratio=1.25, owner="Ada")


def test_speed_is_the_baselines_time_over_the_candidates():
    gate = gates(measures([0.01] * NUM), speed=SPEED)["speed.median"]
    assert (gate.outcome, gate.measure, gate.better) == ("pass", "x baseline", "higher")
    assert (gate.values, gate.mean, gate.sd, gate.owner) == ((2.0,) * 5, 2.0, 0.0, "Ada")
    assert gate.reason == (
        "2 x the baseline's speed (median step 10 ms against 20 ms) with each of 5 seeds (sd 0): "
        "2 is above the limit 1.5"
    )


def test_ratios_are_averaged_and_bounded_by_their_logarithms():
    gate = gates(measures([0.005, 0.01, 0.02]), speed=SPEED)["speed.median"]
    assert gate.mean == pytest.approx(2.0)  # 4, 2 and 1
    assert gate.sd == pytest.approx(math.log(2.0))
    half = 4.302652729749464 * math.log(2.0) / math.sqrt(3.0)
    assert gate.lower == pytest.approx(2.0 * math.exp(-half))
    assert gate.upper == pytest.approx(2.0 * math.exp(half))
    assert gate.outcome == "inconclusive"
    assert gate.num_seeds_needed is not None
    assert f"about {gate.num_seeds_needed} seeds" in gate.reason


def test_a_slow_candidate_fails():
    gate = gates(measures([0.019, 0.02, 0.021, 0.02, 0.0195]), speed=SPEED)["speed.median"]
    assert gate.outcome == "fail"
    assert "; the upper bound 1.05" in gate.reason
    assert " is below the limit 1.5" in gate.reason


def test_slow_steps_are_the_candidates_over_the_baselines():
    for factor, outcome in [(1.0, "pass"), (1.25, "inconclusive"), (2.0, "fail")]:
        trial = measures([0.02 * factor] * NUM, name="p95_step_s")
        gate = gates(trial, speed=SPEED)["speed.p95"]
        assert (gate.outcome, gate.better, gate.mean) == (outcome, "lower", factor)


def test_memory_is_the_candidates_peak_over_the_baselines():
    limit = limits.MemoryLimit(max_ratio=0.75, owner=None)
    trial = measures([5e8] * 3, [1e9] * 3, name="peak_bytes", waited_share=0.5)
    gate = gates(trial, memory=limit)["memory.peak"]  # a busy machine does not touch it
    assert (gate.outcome, gate.mean) == ("pass", 0.5)
    assert gate.reason.startswith("0.5 x the baseline's peak memory (500 MB against 1000 MB)")
    worse = gates(measures([1e9] * 3, [1e9] * 3, name="peak_bytes"), memory=limit)
    assert worse["memory.peak"].outcome == "fail"


def test_cost_is_whole_time_and_says_money():
    trial = measures([1800.0] * 3, [3600.0] * 3, name="seconds")
    paid = limits.CostLimit(max_ratio=1.0, price_per_hour=2.5, owner=None)
    gate = gates(trial, cost=paid)["cost.total"]
    assert (gate.outcome, gate.mean) == ("pass", 0.5)
    assert "(0.5 h a run against 1 h; at 2.5 an hour 1.25 against 2.5)" in gate.reason
    free = limits.CostLimit(max_ratio=1.0, price_per_hour=None, owner=None)
    assert "(0.5 h a run against 1 h)" in gates(trial, cost=free)["cost.total"].reason


@pytest.mark.parametrize("value", [NAN, 0.0, -1.0, INF, 1e-320])
def test_a_ratio_that_is_none_answers_nothing(value):
    gate = gates(measures([0.01, value, 0.01], [1e300] * 3), speed=SPEED)["speed.median"]
    assert gate.outcome == "inconclusive"
    assert gate.reason == "not known with seed 1: step times (too few steps)"
    assert math.isnan(gate.mean)


BUSY = {
    "waiting": ({"waited_share": 0.11}, "waited for a core 11% of the time"),
    "few cores": ({"waited_share": NAN, "cores": 0.69}, "had 0.69 cores where another run had 1"),
}


@pytest.mark.parametrize("name", BUSY)
@pytest.mark.parametrize("who", ["fp32", "bf16"])
def test_a_busy_machine_makes_speed_and_cost_inconclusive(who, name):
    def run(recipe, seed):
        faster = {"median_step_s": 0.01, "seconds": 1.0} if recipe == "bf16" else {}
        busy = BUSY[name][0] if (recipe, seed) == (who, 2) else {}
        return made.measured(recipe, seed, {"val_loss": 0.0}, **{**faster, **busy})

    trial = made.trial([run("fp32", s) for s in range(3)], [run("bf16", s) for s in range(3)])
    found = gates(
        trial,
        speed=limits.SpeedLimit(min_ratio=0.5, max_p95_ratio=2.0, owner=None),
        cost=limits.CostLimit(max_ratio=1.0, price_per_hour=None, owner=None),
        memory=limits.MemoryLimit(max_ratio=2.0, owner=None),
    )
    assert found["memory.peak"].outcome == "pass"
    for gate in ("speed.median", "speed.p95", "cost.total"):
        assert found[gate].outcome == "inconclusive"
        assert f"the machine was busy with something else ({who}, seed 2: {BUSY[name][1]})" in (
            found[gate].reason
        )
        assert math.isnan(found[gate].alpha)


@pytest.mark.parametrize("calm", [{"waited_share": 0.10}, {"waited_share": NAN, "cores": 0.71}])
def test_a_calm_machine_is_not_called_busy(calm):
    runs = [made.measured("fp32", seed, {}, **calm) for seed in range(2)]
    others = [made.measured("bf16", seed, {}) for seed in range(2)]
    runs.append(made.measured("fp32", 2, {}, waited_share=calm["waited_share"]))
    others.append(made.measured("bf16", 2, {}, cores=0.1))  # waited for nothing: it idles
    assert made.trial(runs, others).busy == ()


def test_a_result_that_is_not_finite_is_unstable_even_if_it_is_not_judged():
    runs = [made.measured("bf16", seed, {"val_loss": 0.0}) for seed in range(3)]
    runs.append(made.measured("bf16", 3, {"val_loss": 0.0}, {"a": {"acc": INF}}))
    baseline = [made.measured("fp32", seed, {"val_loss": 0.0}) for seed in range(4)]
    gate = gates(made.trial(baseline, runs))["stability.finite"]
    assert (gate.outcome, gate.mean, gate.limit, gate.measure) == ("fail", 0.25, 0.0, "share")
    assert gate.values == (0.0, 0.0, 0.0, 1.0)
    assert gate.reason == "results that are not finite: seed 3: acc/a is inf"
    assert math.isnan(gate.lower)


def test_a_metric_that_is_coarser_than_its_margin_does_not_pass_by_standing_still():
    seen = [18 / 20, 19 / 20, 18 / 20, 16 / 20, 18 / 20]  # a sample is worth 0.05
    gate = val_loss(seen, seen, quality(margin=0.01))
    assert (gate.outcome, gate.mean, gate.sd) == ("inconclusive", 0.0, 0.0)
    assert (
        "val_loss moves in steps of 0.05, and the margin is 0.01: validate on more" in gate.reason
    )
    assert val_loss(seen, seen, quality(margin=0.1)).outcome == "pass"
    worse = [value + 0.2 for value in seen]
    assert val_loss(seen, worse, quality(margin=0.01)).outcome == "fail"


def test_a_loss_whose_seeds_lie_far_apart_is_not_coarse():
    seen = [2.31, 2.4517, 2.2903, 2.38, 2.617]
    assert val_loss(seen, seen, quality(margin=0.001)).outcome == "pass"


def test_what_is_not_finite_in_the_baseline_either_is_no_fault_of_a_candidate():
    parts = {"empty": {"val_loss": NAN}, "a": {"val_loss": 1.0}}
    baseline = [made.measured("fp32", seed, {"val_loss": 0.0}, parts) for seed in range(3)]
    runs = [made.measured("bf16", seed, {"val_loss": 0.0}, parts) for seed in range(3)]
    gate = gates(made.trial(baseline, runs))["stability.finite"]
    assert (gate.outcome, gate.values) == ("pass", (0.0, 0.0, 0.0))
    assert gate.reason.endswith("but for what is not in the baseline's either")
    bad = made.measured("bf16", 1, {"val_loss": 0.0}, {**parts, "a": {"val_loss": INF}})
    gate = gates(made.trial(baseline, [runs[0], bad, runs[2]]))["stability.finite"]
    assert (gate.outcome, gate.values) == ("fail", (0.0, 1.0, 0.0))
    assert gate.reason == "results that are not finite: seed 1: val_loss/a is inf"


def test_stability_cannot_pass_without_all_of_the_candidates_runs():
    gate = gates(losses([1.0] * 3, [1.0] * 2))["stability.finite"]
    assert gate.outcome == "inconclusive"
    assert gate.reason == "all results of 2 runs are finite; seed 2 gave no result"
    # A baseline run that is missing is no matter of the candidate's stability.
    assert gates(losses([1.0] * 2, [1.0] * 3, seeds=range(3)))["stability.finite"].outcome == "pass"


@pytest.mark.parametrize(
    ("skips", "outcome", "share"),
    [((0, 0), "pass", 0.0), ((2, 2), "pass", 0.05), ((3, 2), "fail", 0.0625)],
)
def test_skipped_steps_are_pooled_over_the_runs(skips, outcome, share):
    limit = limits.StabilityLimit(max_skipped_share=0.05, owner="Ada")
    runs = [made.measured("bf16", s, {"val_loss": 0.0}, num_skipped=n) for s, n in enumerate(skips)]
    baseline = [made.measured("fp32", seed, {"val_loss": 0.0}) for seed in range(2)]
    found = gates(made.trial(baseline, runs), stability=limit)
    gate = found["stability.skipped"]
    assert (gate.outcome, gate.mean, gate.owner) == (outcome, share, "Ada")
    assert gate.reason.startswith(f"{sum(skips)} of 80 steps were skipped ({share:.4g})")
    assert found["stability.finite"].owner == "Ada"


def test_runs_without_steps_have_no_share_of_skips():
    limit = limits.StabilityLimit(max_skipped_share=0.05, owner=None)
    trial = measures([0] * 3, [0] * 3, name="num_steps")
    gate = gates(trial, stability=limit)["stability.skipped"]
    assert (gate.outcome, gate.reason) == ("inconclusive", "no run recorded a step")
