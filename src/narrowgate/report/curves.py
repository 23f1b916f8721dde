"""Charts over steps: loss scales, gradient norms, logged values; and what all of them share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from narrowgate.records import Run
from narrowgate.report.figure import Figure, Legend, Series, layout
from narrowgate.report.series import NUM_STRETCHES, changes, smooth, thin
from narrowgate.report.text import format_number, plotly_text

__all__ = [
    "line", "loss_scale_figure", "step_axis", "thinning_words", "value_axis", "values_figure",
]  # fmt: skip

#: Above this ratio of the highest to the lowest drawn value, an axis of positive values is
#: logarithmic: one diverging candidate would flatten all the others.
_LOG_ABOVE = 12.0
_MOST_MARKS = 400


def line(
    x: Sequence[float], y: Sequence[float], series: Series, name: str, width: float
) -> dict[str, Any]:
    """Draw a line over steps.

    Args:
        x: The steps.
        y: The values; a non-finite one is a gap.
        series: How it is drawn.
        name: What the reader sees beside the pointer, as plotly shall read it.
        width: Width in CSS pixels.
    """
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(x),
        "y": list(y),
        "name": name,
        "line": {"color": series.colour, "dash": series.dash, "width": width},
        "hovertemplate": "step %{x}: %{y:.4g}",
    }


def step_axis() -> dict[str, Any]:
    """Give the x axis of a chart over steps."""
    return {"title": {"text": "step"}, "rangemode": "nonnegative"}


def thinning_words(is_thinned: bool) -> str:
    """Say how long curves were thinned.

    Args:
        is_thinned: Whether any was.
    """
    if not is_thinned:
        return ""
    return f" In {NUM_STRETCHES} stretches of a long curve its highest and lowest points are kept."


def value_axis(values: Sequence[float], title: str) -> dict[str, Any]:
    """Choose a linear or a logarithmic axis by what is drawn on it.

    Args:
        values: All values that are drawn.
        title: What they are, as plotly shall read it.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite or min(finite) <= 0 or max(finite) / min(finite) <= _LOG_ABOVE:
        return {"title": {"text": title}}
    low, high = math.floor(math.log10(min(finite))), math.ceil(math.log10(max(finite)))
    digits = (1, 2, 5) if high - low <= 3 else (1,)
    every = 1 + (high - low) // 8
    ticks = [digit * 10.0**power for power in range(low, high + 1, every) for digit in digits]
    return {
        "title": {"text": f"{title}, log scale"},
        "type": "log",
        "tickvals": ticks,
        "ticktext": [format_number(tick, 2) for tick in ticks],
    }


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
    most_skips = 0
    scales: list[float] = []
    for recipe, style in series.items():
        own = [
            (seed, run)
            for (which, seed), run in runs.items()
            if which == recipe and (set(run.steps.loss_scale) - {1.0} or not all(run.steps.applied))
        ]
        for seed, run in own:
            lines, skips = _scale_traces(run, style, f"{plotly_text(recipe)}, seed {seed}")
            traces += lines
            most_skips = max(most_skips, skips)
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
    if most_skips:
        legend.append(Legend(text="skipped step", colour="var(--text)", mark="symbol", symbol="✖"))
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
        caption="One line a run; every change of the scale is drawn. "
        + (
            f"Of more than {_MOST_MARKS} skipped steps of a run not all are marked. "
            if most_skips > _MOST_MARKS
            else ""
        )
        + f"Steps: {'; '.join(words)}.",
        height=320,
        traces=traces,
        layout=layout(step_axis(), y_axis, 320),
        legend=legend,
    )


def _scale_traces(run: Run, style: Series, name: str) -> tuple[list[dict[str, Any]], int]:
    """Draw one run's loss scale, and a mark at each skipped step."""
    steps = run.steps
    rows = steps.main_rows
    values = [steps.loss_scale[i] for i in rows]
    logs = [math.log2(v) if v > 0 and math.isfinite(v) else math.nan for v in values]
    kept = changes(values)
    stairs = line([steps.step[rows[i]] for i in kept], [logs[i] for i in kept], style, name, 1.5)
    stairs["line"]["shape"] = "hv"
    stairs["text"] = [format_number(values[i]) for i in kept]
    stairs["hovertemplate"] = "from step %{x}: %{text}"
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
    return [stairs, marks] if shown else [stairs], len(skipped)


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
        trace = line([x[i] for i in kept], [y[i] for i in kept], style, plotly_text(column), 2.0)
        trace["mode"] = "lines" if len(kept) > 40 else "lines+markers"
        traces.append(trace)
        if len(columns) > 1:
            legend.append(Legend(text=column, colour=style.colour, mark="line"))
    if not any(math.isfinite(value) for value in drawn):
        return None
    holes = ", ".join(f"{column} {num}" for column, num in gaps.items() if num)
    caption = f"Averaged over the last {window} values." if window > 1 else ""
    caption += thinning_words(thinned) + (f" Not finite, drawn as gaps: {holes}." if holes else "")
    return Figure(
        name=name,
        title=title,
        summary=f"{title} over steps: {', '.join(columns)}.{' Gaps: ' + holes if holes else ''}",
        caption=caption.strip(),
        height=320,
        traces=traces,
        layout=layout(step_axis(), value_axis(drawn, plotly_text(title)), 320),
        legend=legend,
    )
