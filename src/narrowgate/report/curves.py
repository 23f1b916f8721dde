"""Charts over steps: losses, loss scales, gradient norms, logged values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from narrowgate.records import Run
from narrowgate.report.figure import Figure, Legend, Series, layout
from narrowgate.report.series import (
    NUM_STRETCHES,
    Break,
    Spread,
    changes,
    first_break,
    loss_curve,
    smooth,
    spread,
    thin,
    window_of,
)
from narrowgate.report.text import format_number, plotly_text

__all__ = ["loss_figure", "loss_scale_figure", "values_figure"]

#: Above this ratio of the highest to the lowest drawn value, an axis of positive values is
#: logarithmic: one diverging candidate would flatten all the others.
_LOG_ABOVE = 12.0
_MOST_MARKS = 400
#: Runs outside a pilot have no recipe in their request.
OWN_RECIPE = "the script's own recipe"


def _smoothed(run: Run, window: int) -> dict[int, float]:
    curve = loss_curve(run)
    return dict(zip(curve, smooth(list(curve.values()), window), strict=True))


def _line(
    x: Sequence[float], y: Sequence[float], series: Series, name: str, width: float
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(x),
        "y": list(y),
        "name": name,
        "line": {"color": series.colour, "dash": series.dash, "width": width},
        "hovertemplate": "step %{x}: %{y:.4g}",
    }


def _band(found: Spread, kept: Sequence[int], series: Series) -> list[dict[str, Any]]:
    edge = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    kept = [i for i in kept if math.isfinite(found.low[i])]
    x = [found.steps[i] for i in kept]
    return [
        {**edge, "x": x, "y": [found.low[i] for i in kept]},
        {
            **edge,
            "x": x,
            "y": [found.high[i] for i in kept],
            "fill": "tonexty",
            "fillcolor": "var(--band)",
            "name": series.recipe,
        },
    ]


def _thinning(is_thinned: bool) -> str:
    if not is_thinned:
        return ""
    return (
        f" Of long curves each of {NUM_STRETCHES} stretches keeps its highest and its lowest point."
    )


def _value_axis(values: Sequence[float], title: str) -> dict[str, Any]:
    """Choose a linear or a logarithmic axis by what is drawn on it."""
    finite = [value for value in values if math.isfinite(value)]
    if finite and min(finite) > 0 and max(finite) / min(finite) > _LOG_ABOVE:
        return {"title": {"text": f"{title}, log scale"}, "type": "log"}
    return {"title": {"text": title}}


def _break_marks(
    breaks: Sequence[tuple[Series, int | None, Break]], drawn: Sequence[float]
) -> list[dict[str, Any]]:
    """Mark where runs stopped being finite, at the height of the last finite loss."""
    marks = []
    finite = [value for value in drawn if math.isfinite(value)]
    for series, seed, where in breaks:
        height = where.before if math.isfinite(where.before) else max(finite, default=0.0)
        text = f"{plotly_text(series.recipe)}, seed {seed}: loss {format_number(where.value)}"
        marks.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [where.step],
                "y": [height],
                "marker": {"symbol": "x", "size": 11, "color": series.colour},
                "text": [f"{text} from step {where.step}"],
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    return marks


def _break_words(breaks: Sequence[tuple[Series, int | None, Break]]) -> str:
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
    return f" Non-finite losses: {'; '.join(said)}."


def loss_figure(
    runs: Mapping[tuple[str, int], Run], series: Mapping[str, Series], baseline: str | None
) -> Figure | None:
    """Draw the losses of all runs: the median over seeds, and the baseline's spread.

    Args:
        runs: The runs by recipe and seed.
        series: How each recipe is drawn.
        baseline: The baseline's recipe.

    Returns:
        The chart; None if no run recorded a finite loss.
    """
    window = window_of(max((len(loss_curve(run)) for run in runs.values()), default=0))
    traces: list[dict[str, Any]] = []
    breaks: list[tuple[Series, int | None, Break]] = []
    legend: list[Legend] = []
    lasts: list[str] = []
    drawn: list[float] = []
    thinned = False
    for recipe, style in series.items():
        own = [(seed, run) for (which, seed), run in runs.items() if which == recipe]
        breaks += [
            (style, seed, found) for seed, run in own if (found := first_break(loss_curve(run)))
        ]
        curves = [curve for _, run in own if (curve := _smoothed(run, window))]
        if not curves:
            continue
        found = spread(curves)
        kept = thin(len(found.steps), found.low, found.median, found.high)
        thinned = thinned or len(kept) < len(found.steps)
        if recipe == baseline and len(curves) > 1:
            traces += _band(found, kept, style)
            words = f"{recipe}: lowest to highest of {len(curves)} seeds"
            legend.append(Legend(text=words, colour="var(--band)", mark="band"))
        x, y = [found.steps[i] for i in kept], [found.median[i] for i in kept]
        width = 3.0 if recipe == baseline else 2.0
        traces.append(_line(x, y, style, plotly_text(recipe), width))
        num = f"median of {len(curves)} seeds" if len(curves) > 1 else "1 seed"
        legend.append(
            Legend(
                text=f"{recipe}: {num}",
                colour=style.colour,
                mark="line",
                dash_array=style.dash_array,
            )
        )
        drawn += y
        if recipe == baseline:
            drawn += [bound[i] for i in kept for bound in (found.low, found.high)]
        ends = [value for value in found.median if math.isfinite(value)]
        lasts.append(f"{recipe} {format_number(ends[-1])}")
    if not traces:
        return None
    traces += _break_marks(breaks, drawn)
    if breaks:
        legend.append(
            Legend(
                text="first non-finite loss of a run",
                colour="var(--text)",
                mark="symbol",
                symbol="✖",
            )
        )
    over = "" if window == 1 else f" averaged over the last {window} steps"
    if max(len(run.steps) - len(loss_curve(run)) for run in runs.values() if loss_curve(run)):
        over += ", of the first optimizer"
    caption = f"Training loss of each run{over}; of these curves the median over seeds is drawn."
    x_axis = {"title": {"text": "step"}}
    return Figure(
        name="loss",
        title="Training loss",
        summary=f"Training loss over steps. At the end: {', '.join(lasts)}.{_break_words(breaks)}",
        caption=caption + _thinning(thinned) + _break_words(breaks),
        height=400,
        traces=traces,
        layout=layout(x_axis, _value_axis(drawn, "training loss"), 400),
        legend=legend,
    )


def loss_scale_figure(
    runs: Mapping[tuple[str, int], Run], series: Mapping[str, Series]
) -> Figure | None:
    """Draw the loss scales of all runs that have one, with the steps that were skipped.

    Args:
        runs: The runs by recipe and seed.
        series: How each recipe is drawn.

    Returns:
        The chart; None if every loss scale was 1 throughout and no step was skipped.
    """
    traces: list[dict[str, Any]] = []
    legend: list[Legend] = []
    words: list[str] = []
    num_marks = 0
    scales: list[float] = []
    for recipe, style in series.items():
        own = [
            (seed, run)
            for (which, seed), run in runs.items()
            if which == recipe
            and (set(run.steps.loss_scale) - {1.0} or not all(run.steps.applied))
        ]
        for seed, run in own:
            lines, skips = _scale_traces(run, style, f"{plotly_text(recipe)}, seed {seed}")
            traces += lines
            num_marks += skips
            scales += [v for v in run.steps.loss_scale if v > 0 and math.isfinite(v)]
        if own:
            num = f"{len(own)} {'seed' if len(own) == 1 else 'seeds'}"
            legend.append(
                Legend(
                    text=f"{recipe}: {num}",
                    colour=style.colour,
                    mark="line",
                    dash_array=style.dash_array,
                )
            )
            skipped = sum(not applied for _, run in own for applied in run.steps.applied)
            words.append(f"{recipe}: {skipped} of {sum(len(r.steps) for _, r in own)} skipped")
    if not traces or not scales:
        return None
    if num_marks:
        legend.append(
            Legend(text="skipped step", colour="var(--text)", mark="symbol", symbol="✖")
        )
    low, high = math.floor(math.log2(min(scales))), math.ceil(math.log2(max(scales)))
    every = max(1, (high - low) // 8)
    ticks = list(range(low, high + 1, every))
    y_axis = {
        "title": {"text": "loss scale, log scale"},
        "tickvals": ticks,
        "ticktext": [f"2<sup>{tick}</sup>" for tick in ticks],
        "range": [low - 0.5, high + 0.5],
    }
    return Figure(
        name="loss-scale",
        title="Loss scale and skipped steps",
        summary=f"Loss scale over steps, one line a run. Steps: {'; '.join(words)}.",
        caption=f"One line a run; every change of the scale is drawn. Steps: {'; '.join(words)}.",
        height=320,
        traces=traces,
        layout=layout({"title": {"text": "step"}}, y_axis, 320),
        legend=legend,
    )


def _scale_traces(run: Run, style: Series, name: str) -> tuple[list[dict[str, Any]], int]:
    """Draw one run's loss scale, and a mark at each skipped step."""
    steps = run.steps
    rows = [i for i, which in enumerate(steps.optimizer) if which == 0]
    values = [steps.loss_scale[i] for i in rows]
    logs = [math.log2(v) if v > 0 and math.isfinite(v) else math.nan for v in values]
    kept = changes(values)
    line = _line([steps.step[rows[i]] for i in kept], [logs[i] for i in kept], style, name, 1.5)
    line["line"]["shape"] = "hv"
    line["text"] = [format_number(values[i]) for i in kept]
    line["hovertemplate"] = "from step %{x}: %{text}"
    skipped = [place for place, i in enumerate(rows) if not steps.applied[i]]
    shown = skipped[:: max(1, math.ceil(len(skipped) / _MOST_MARKS))]
    marks = {
        "type": "scatter",
        "mode": "markers",
        "x": [steps.step[rows[place]] for place in shown],
        "y": [logs[place] for place in shown],
        "name": name,
        "text": [plotly_text(steps.reason[rows[place]], 80) for place in shown],
        "marker": {"symbol": "x", "size": 8, "color": style.colour},
        "hovertemplate": "step %{x} skipped: %{text}",
    }
    return [line, marks] if shown else [line], len(shown)


def values_figure(
    name: str, title: str, columns: Mapping[str, Mapping[float, float]], window: int = 1
) -> Figure | None:
    """Draw some values of one run over its steps.

    Args:
        name: The chart's place in the page.
        title: What the values are.
        columns: Value by step, by name; each name is one line.
        window: Over how many values each is averaged.

    Returns:
        The chart; None if no value is finite.
    """
    traces: list[dict[str, Any]] = []
    legend: list[Legend] = []
    drawn: list[float] = []
    thinned = False
    gaps: Counter[str] = Counter()
    for place, (column, curve) in enumerate(columns.items()):
        style = Series(
            recipe=column,
            colour=f"var(--series-{place % 6 + 1})",
            dash="solid",
            dash_array="",
        )
        x = list(curve)
        y = smooth(list(curve.values()), window)
        gaps[column] = sum(not math.isfinite(value) for value in y)
        kept = thin(len(x), y)
        thinned = thinned or len(kept) < len(x)
        drawn += [y[i] for i in kept]
        line = _line(
            [x[i] for i in kept], [y[i] for i in kept], style, plotly_text(column), 2.0
        )
        line["mode"] = "lines" if len(kept) > 40 else "lines+markers"
        traces.append(line)
        if len(columns) > 1:
            legend.append(Legend(text=column, colour=style.colour, mark="line"))
    if not any(math.isfinite(value) for value in drawn):
        return None
    holes = ", ".join(f"{column} {num}" for column, num in gaps.items() if num)
    caption = f"Averaged over the last {window} values." if window > 1 else ""
    caption += _thinning(thinned) + (f" Not finite, drawn as gaps: {holes}." if holes else "")
    return Figure(
        name=name,
        title=title,
        summary=f"{title} over steps: {', '.join(columns)}.{' Gaps: ' + holes if holes else ''}",
        caption=caption.strip(),
        height=320,
        traces=traces,
        layout=layout({"title": {"text": "step"}}, _value_axis(drawn, title), 320),
        legend=legend,
    )
