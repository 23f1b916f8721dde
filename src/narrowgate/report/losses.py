"""Charts of the training loss: the curves themselves, and how far candidates are from the baseline.

The first chart shows whether training went the same way; early on it is so steep that recipes
cannot be told apart in it. The second one takes the baseline's curve of the same seed away, and
shows beside it how far the baseline's own seeds lie apart.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from narrowgate.records import Run
from narrowgate.report.curves import line, step_axis, thinning_words, value_axis
from narrowgate.report.figure import Figure, Legend, Series, layout
from narrowgate.report.series import (
    Break,
    Spread,
    first_break,
    loss_curve,
    smooth,
    spread,
    thin,
    window_of,
)
from narrowgate.report.text import format_number, plotly_text

__all__ = ["loss_figures"]

#: Of how many of the baseline's own spreads the chart of differences shows at most.
_MOST_SPREADS = 2.5
_HEIGHT = 380

Curves = Mapping[str, Mapping[int, Mapping[int, float]]]


def loss_figures(
    runs: Mapping[tuple[str, int], Run], series: Mapping[str, Series], baseline: str
) -> list[Figure]:
    """Draw the losses of all runs: the median over seeds, and the baseline's spread.

    Args:
        runs: The runs by recipe and seed.
        series: How each recipe is drawn.
        baseline: The baseline's recipe.

    Returns:
        The curves and the differences; less where there is nothing to draw.
    """
    drawn = {key: run for key, run in runs.items() if key[0] in series}
    raw = {key: curve for key, run in drawn.items() if (curve := loss_curve(run))}
    if not raw:
        return []
    window = window_of(max(len(curve) for curve in raw.values()))
    curves: dict[str, dict[int, dict[int, float]]] = {recipe: {} for recipe in series}
    for (recipe, seed), curve in raw.items():
        means = smooth(list(curve.values()), window)
        curves[recipe][seed] = dict(zip(curve, means, strict=True))
    how = f"averaged over the last {window} steps" if window > 1 else "as recorded"
    if any(set(run.steps.optimizer) - {run.steps.main} for run in drawn.values()):
        how += ", of the optimizer with the most steps"
    found = {recipe: spread(list(of.values())) for recipe, of in curves.items() if of}
    breaks = [
        (series[recipe], seed, where)
        for (recipe, seed), curve in raw.items()
        if (where := first_break(curve))
    ]
    figures = [_losses(found, curves, series, baseline, breaks, how)]
    if differences := _differences(found, curves, series, baseline, how):
        figures.append(differences)
    return figures


def _band(
    steps: Sequence[int], low: Sequence[float], high: Sequence[float], kept: Sequence[int]
) -> list[dict[str, Any]]:
    edge: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
    }
    kept = [i for i in kept if math.isfinite(low[i])]
    x = [steps[i] for i in kept]
    fill = {"fill": "tonexty", "fillcolor": "var(--band)"}
    return [
        {**edge, "x": x, "y": [low[i] for i in kept]},
        {**edge, "x": x, "y": [high[i] for i in kept], **fill},
    ]


def _legend(recipe: str, num: int, series: Series) -> Legend:
    words = f"{recipe}: median of {num} seeds" if num > 1 else f"{recipe}: 1 seed"
    return Legend(text=words, colour=series.colour, mark="line", dash_array=series.dash_array)


def _losses(
    found: Mapping[str, Spread],
    curves: Curves,
    series: Mapping[str, Series],
    baseline: str,
    breaks: Sequence[tuple[Series, int, Break]],
    how: str,
) -> Figure:
    traces: list[dict[str, Any]] = []
    legend: list[Legend] = []
    drawn: list[float] = []
    lasts: list[str] = []
    thinned = False
    for recipe, of in found.items():
        kept = thin(len(of.steps), of.low, of.median, of.high)
        thinned = thinned or len(kept) < len(of.steps)
        num = len(curves[recipe])
        if recipe == baseline and num > 1:
            traces += _band(of.steps, of.low, of.high, kept)
            drawn += [bound[i] for i in kept for bound in (of.low, of.high)]
            words = f"{recipe}: lowest to highest of {num} seeds"
            legend.append(Legend(text=words, colour="var(--band)", mark="band"))
        x, y = [of.steps[i] for i in kept], [of.median[i] for i in kept]
        width = 3.0 if recipe == baseline else 2.0
        traces.append(line(x, y, series[recipe], plotly_text(recipe), width))
        legend.append(_legend(recipe, num, series[recipe]))
        drawn += y
        ends = [value for value in of.median if math.isfinite(value)]
        lasts.append(f"{recipe} {format_number(ends[-1])}")
    traces += _break_marks(breaks, drawn)
    if breaks:
        mark = {"colour": "var(--text)", "mark": "symbol", "symbol": "✖"}
        legend.append(Legend(text="first loss of a run that is not finite", **mark))
    said = _break_words(breaks)
    caption = f"The loss of each run, {how}; of these curves the median over seeds is drawn."
    return Figure(
        name="loss",
        title="Training loss",
        summary=f"Training loss over steps. At the end: {', '.join(lasts)}.{said}",
        caption=caption + thinning_words(thinned) + said,
        height=_HEIGHT,
        traces=traces,
        layout=layout(step_axis(), value_axis(drawn, "training loss"), _HEIGHT),
        legend=legend,
    )


def _break_marks(
    breaks: Sequence[tuple[Series, int, Break]], drawn: Sequence[float]
) -> list[dict[str, Any]]:
    """Mark where runs stopped being finite, at the height of the last finite loss."""
    marks = []
    finite = [value for value in drawn if math.isfinite(value)]
    for series, seed, where in breaks:
        height = where.before if math.isfinite(where.before) else max(finite)
        text = f"{plotly_text(series.recipe)}, seed {seed}: loss {format_number(where.value)}"
        marks.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [where.step],
                "y": [height],
                "marker": {"symbol": "x", "size": 11, "color": series.colour},
                "text": [f"{text} at step {where.step}, {where.num} such steps in all"],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    return marks


def _break_words(breaks: Sequence[tuple[Series, int, Break]]) -> str:
    if not breaks:
        return ""
    first: dict[str, list[Break]] = {}
    for series, _, where in breaks:
        first.setdefault(series.recipe, []).append(where)
    said = [
        f"{recipe} in {len(found)} {'run' if len(found) == 1 else 'runs'}, first at step "
        f"{min(where.step for where in found)}"
        for recipe, found in first.items()
    ]
    return f" Not finite: {'; '.join(said)}; where a run is not finite the median leaves it out."


def _differences(
    found: Mapping[str, Spread],
    curves: Curves,
    series: Mapping[str, Series],
    baseline: str,
    how: str,
) -> Figure | None:
    base = found.get(baseline)
    if base is None:
        return None
    traces: list[dict[str, Any]] = []
    legend: list[Legend] = []
    thinned = False
    low = [a - b for a, b in zip(base.low, base.median, strict=True)]
    high = [a - b for a, b in zip(base.high, base.median, strict=True)]
    own = [abs(value) for value in (*low, *high) if math.isfinite(value)]
    if len(curves[baseline]) > 1:
        traces += _band(base.steps, low, high, thin(len(base.steps), low, high))
        words = f"{baseline}: its own seeds, less their median"
        legend.append(Legend(text=words, colour="var(--band)", mark="band"))
    drawn: list[float] = []
    ends: list[str] = []
    for recipe, of in curves.items():
        pairs = [
            {step: value - curves[baseline][seed].get(step, math.nan) for step, value in c.items()}
            for seed, c in of.items()
            if seed in curves[baseline]
        ]
        if recipe == baseline or not pairs:
            continue
        middle = spread(pairs)
        kept = thin(len(middle.steps), middle.median)
        thinned = thinned or len(kept) < len(middle.steps)
        y = [middle.median[i] for i in kept]
        drawn += y
        x = [middle.steps[i] for i in kept]
        traces.append(line(x, y, series[recipe], plotly_text(recipe), 2.0))
        legend.append(_legend(recipe, len(pairs), series[recipe]))
        finite = [value for value in middle.median if math.isfinite(value)]
        ends.append(f"{recipe} {format_number(finite[-1], 2)}" if finite else f"{recipe} NaN")
    finite = [value for value in drawn if math.isfinite(value)]
    if not finite:
        return None
    y_axis: dict[str, Any] = {"title": {"text": "loss less the baseline's"}}
    clipped = ""
    if own and (most := _MOST_SPREADS * statistics.quantiles([*own, 0.0], n=20)[-1]) > 0:
        ends_of = (max(min(finite), -most), min(max(finite), most))
        if ends_of != (min(finite), max(finite)):
            room = 0.1 * (max(ends_of[1], 0.0) - min(ends_of[0], 0.0))
            y_axis["range"] = [min(ends_of[0], -max(own)) - room, max(ends_of[1], max(own)) + room]
            clipped = " A line that leaves the picture is whole in the chart above."
    zero = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 0, "y1": 0, "layer": "below"}
    caption = (
        f"The candidate's loss less the baseline's at the same seed, {how}; the median over seeds "
        "is drawn. Above zero is worse. No gate looks at this chart."
    )
    return Figure(
        name="loss-difference",
        title="Training loss, candidate less baseline",
        summary=f"Difference of the training losses over steps. At the end: {', '.join(ends)}.",
        caption=caption + thinning_words(thinned) + clipped,
        height=_HEIGHT - 60,
        traces=traces,
        layout=layout(
            step_axis(),
            y_axis,
            _HEIGHT - 60,
            shapes=[{**zero, "line": {"color": "var(--text)", "width": 1.5}}],
        ),
        legend=legend,
    )
