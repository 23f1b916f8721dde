"""The charts as plotly gets them: what is drawn where."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from narrowgate.report.bars import bytes_figure
from narrowgate.report.curves import loss_scale_figure, values_figure
from narrowgate.report.dots import gate_figures, slice_figures
from narrowgate.report.figure import series_of
from narrowgate.report.losses import loss_figures
from report import sample

SERIES = series_of(sample.BASELINE, sample.CANDIDATES)


@pytest.fixture(scope="module")
def runs():
    return sample.runs(60)


def one(*gates, recipe="bf16"):
    """A verdict with one candidate that has these gates."""
    found = replace(sample.candidate("bf16", sample.runs(3)), recipe=recipe, gates=gates)
    return sample.verdict(candidates=(found,))


def texts(figure):
    return [note["text"] for note in figure.layout["annotations"]]


def colours(node, key=""):
    if isinstance(node, dict):
        return [c for k, v in node.items() for c in colours(v, k)]
    if isinstance(node, list):
        return [c for v in node for c in colours(v, key)]
    return [node] if key.endswith("color") and isinstance(node, str) else []


def test_the_margin_the_mean_and_the_range_stand_where_the_gate_has_them():
    gate = sample.gate("quality.val_loss", [0.001, 0.002, 0.004], 0.01)
    (figure,) = gate_figures(one(gate), ("quality.",), "quality", 0.0)
    seeds, mean = figure.traces
    assert seeds["x"] == [0.001, 0.002, 0.004]
    assert mean["x"] == [gate.mean]
    assert mean["x"][0] + mean["error_x"]["array"][0] == pytest.approx(gate.upper, rel=1e-12)
    assert mean["x"][0] - mean["error_x"]["arrayminus"][0] == pytest.approx(gate.lower, rel=1e-12)
    forbidden, limit = figure.layout["shapes"][:2]
    assert (limit["x0"], limit["x1"]) == (0.01, 0.01)
    assert (forbidden["x0"], forbidden["x1"]) == (0.01, figure.layout["xaxis"]["range"][1])
    assert "limit +0.0100" in texts(figure)
    assert "✓ bf16" in texts(figure)


def test_of_a_gate_whose_values_shall_be_high_the_low_side_is_forbidden():
    gate = sample.gate("speed.median", [1.3, 1.31, 1.4], 1.2, measure="x baseline", better="higher")
    (figure,) = gate_figures(one(gate), ("speed.",), "ratio", 1.0)
    mean = figure.traces[1]
    # Bounds of a ratio are not as far apart to one side as to the other.
    assert gate.upper - gate.mean > 1.01 * (gate.mean - gate.lower)
    assert mean["x"][0] + mean["error_x"]["array"][0] == pytest.approx(gate.upper, rel=1e-12)
    assert mean["x"][0] - mean["error_x"]["arrayminus"][0] == pytest.approx(gate.lower, rel=1e-12)
    forbidden = figure.layout["shapes"][0]
    assert (forbidden["x0"], forbidden["x1"]) == (1.2, figure.layout["xaxis"]["range"][0])


def test_what_lies_far_beyond_the_limit_is_told_at_the_edge_and_squeezes_nothing():
    near = sample.gate("quality.val_loss", [0.001, 0.002, 0.003], 0.01)
    far = sample.gate("quality.val_loss", [5.0, math.nan, 7.0], 0.01)
    verdict = one(near)
    other = replace(verdict.candidates[0], recipe="fp16", gates=(far,))
    both = replace(verdict, candidates=(*verdict.candidates, other))
    (figure,) = gate_figures(both, ("quality.",), "quality", 0.0)
    assert figure.layout["xaxis"]["range"][1] < 0.05
    assert "<b>mean NaN</b> ▶" in texts(figure)
    assert "2 seeds at +5.0000 to +7.0000, 1 seed NaN ▶" in texts(figure)


def test_a_gate_without_a_value_has_no_chart():
    assert gate_figures(one(sample.gate("quality.a", [], 1.0)), ("quality.",), "q", 0.0) == []


def test_slices_stand_in_the_order_of_how_bad_they_are_each_by_its_own_margin():
    gates = (
        sample.gate("quality.loss/fine", [0.1, 0.11, 0.12], 1.0),
        sample.gate("quality.loss/bad", [0.05, 0.06, 0.07], 0.05),
    )
    (figure,) = slice_figures(one(*gates), SERIES)
    names = [text for text in texts(figure) if text in ("fine", "bad")]
    assert names == ["bad", "fine"]
    assert [round(trace["x"][0], 3) for trace in figure.traces] == [1.2, 0.11]


def test_of_many_slices_the_worst_are_drawn_and_the_rest_is_counted():
    gates = [sample.gate(f"quality.loss/s{i}", [i, i, i], 100.0) for i in range(40)]
    (figure,) = slice_figures(one(*gates), SERIES)
    assert "s39" in texts(figure)
    assert "s0" not in texts(figure)
    assert "16 slices that came out better are in the table only" in figure.caption


def test_the_loss_has_the_baselines_spread_and_a_line_a_recipe(runs):
    losses, differences = loss_figures(runs, SERIES, sample.BASELINE)
    band_low, band_high, *lines = losses.traces
    assert band_high["fill"] == "tonexty"
    assert all(a <= b for a, b in zip(band_low["y"], band_high["y"], strict=True))
    assert [line["name"] for line in lines[:5]] == [sample.BASELINE, *sample.CANDIDATES]
    assert [line["name"] for line in differences.traces if "name" in line] == list(
        sample.CANDIDATES
    )
    assert "No gate looks at this chart" in differences.caption
    low, high = differences.traces[:2]
    assert min(low["y"]) < 0 < max(high["y"])
    assert all(a <= 0 <= b for a, b in zip(low["y"], high["y"], strict=True))


def test_a_run_that_stops_being_finite_is_marked_where_it_does(runs):
    losses, _ = loss_figures(runs, SERIES, sample.BASELINE)
    (mark,) = [t for t in losses.traces if t["mode"] == "markers"]
    assert mark["x"] == [49]
    assert mark["text"] == ["bf16(master=none), seed 3: loss NaN at step 49, 12 such steps in all"]
    assert "bf16(master=none) in 1 run, first at step 49" in losses.caption
    assert "bf16(master=none) in 1 run" in losses.summary


def test_a_loss_that_explodes_makes_the_axis_logarithmic(runs):
    steps = sample.steps_of("fp16", 0, 60)
    wild = replace(steps, loss=tuple(3.0**i for i in range(60)))
    changed = {**runs, **{("fp16", s): sample.run("fp16", s, 60, steps=wild) for s in sample.SEEDS}}
    losses, differences = loss_figures(changed, SERIES, sample.BASELINE)
    assert losses.layout["yaxis"]["type"] == "log"
    assert losses.layout["yaxis"]["ticktext"][:2] == ["1", "10,000"]
    assert "log scale" in losses.layout["yaxis"]["title"]["text"]
    assert "A line that leaves the picture is whole in the chart above" in differences.caption


def test_without_any_loss_there_is_no_chart(runs):
    steps = replace(sample.steps_of("fp32", 0, 5), loss=(math.nan,) * 5)
    mute = {key: replace(run, steps=steps) for key, run in runs.items()}
    assert loss_figures(mute, SERIES, sample.BASELINE) == []
    assert loss_figures({}, SERIES, sample.BASELINE) == []


def test_every_change_of_the_loss_scale_is_drawn_and_every_skip_is_marked(runs):
    figure = loss_scale_figure(runs, SERIES)
    first = runs["fp16", 0].steps
    stairs = figure.traces[0]
    assert stairs["line"]["shape"] == "hv"
    assert stairs["y"][:3] == [16.0, 15.0, 14.0]
    marks = figure.traces[1]
    assert marks["x"] == [s for s, ok in zip(first.step, first.applied, strict=True) if not ok]
    assert "fp16: " in figure.caption
    assert "fp32" not in figure.summary


def test_recipes_that_scale_nothing_have_no_chart_of_it(runs):
    assert loss_scale_figure({("fp32", 0): runs["fp32", 0]}, SERIES) is None


def test_bytes_are_stacked_in_the_order_of_kinds(runs):
    figure = bytes_figure(runs, SERIES)
    names = [trace["name"] for trace in figure.traces]
    assert names == ["parameters", "remainders", "gradients", "states", "buffers"]
    assert figure.traces[0]["x"] == pytest.approx([12.8, 6.4, 12.8, 6.4, 6.4])
    assert bytes_figure({}, SERIES) is None


def test_logged_values_with_gaps_say_so():
    figure = values_figure("x", "Logged: lr", {"lr": {1.0: 1.0, 2.0: math.nan, 3.0: 2.0}})
    assert math.isnan(figure.traces[0]["y"][1])
    assert "drawn as gaps: lr 1" in figure.caption
    assert values_figure("x", "Logged: lr", {"lr": {1.0: math.nan}}) is None


def test_a_log_axis_names_its_ticks_in_full():
    figure = values_figure("x", "Logged: lr", {"lr": {1.0: 1e-5, 2.0: 3e-4}})
    wanted = ["1.0e-05", "2.0e-05", "5.0e-05", "0.00010", "0.00020", "0.00050", "0.0010"]
    assert figure.layout["yaxis"]["ticktext"][:7] == wanted


def test_a_logged_name_is_no_markup_in_the_title_of_its_axis():
    figure = values_figure("x", "Logged: <b>lr</b>", {"<b>lr</b>": {1.0: 1.0}})
    assert figure.layout["yaxis"]["title"]["text"] == "Logged: &lt;b&gt;lr&lt;/b&gt;"


def test_a_long_curve_is_thinned_and_says_so():
    curve = {float(i): float(i % 7) for i in range(10_000)}
    figure = values_figure("x", "Logged: lr", {"lr": curve})
    assert len(figure.traces[0]["x"]) < 1000
    assert "In 200 stretches of a long curve" in figure.caption


def test_all_colours_are_of_the_style_sheet(runs):
    verdict = sample.verdict()
    figures = [
        *loss_figures(runs, SERIES, sample.BASELINE),
        *gate_figures(verdict, ("quality.",), "quality", 0.0),
        *slice_figures(verdict, SERIES),
        bytes_figure(runs, SERIES),
        loss_scale_figure(runs, SERIES),
    ]
    found = {c for figure in figures for c in colours(figure.to_json())}
    assert {c for c in found if not c.startswith("var(--")} == {"rgba(0,0,0,0)"}


def test_recipes_after_the_sixth_differ_by_their_dash():
    many = series_of("fp32", [str(i) for i in range(12)])
    styles = {(style.colour, style.dash) for style in many.values()}
    assert len(styles) == 13
