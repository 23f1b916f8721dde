"""Charts in rows: a gate's values against its limit, slices against their margins, bytes by kind.

The names stand above their rows, inside the picture, so that long recipes leave a narrow screen its
width. What lies far beyond the limit is drawn as an arrow at the edge with its number, since one
candidate that failed by far would else squeeze all the others into a line.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from narrowgate.records import CandidateVerdict, GateVerdict, Run, Verdict
from narrowgate.report.figure import Figure, Legend, Series, layout
from narrowgate.report.outcomes import (
    SYMBOLS,
    WORDS,
    gate_label,
    limit_text,
    range_text,
    slice_of,
    value_text,
)
from narrowgate.report.text import bytes_unit, format_bytes, format_number, plotly_text

__all__ = ["KINDS", "bytes_figure", "gate_figures", "slice_figures"]

_MARKERS = {"pass": "circle", "fail": "x", "inconclusive": "diamond"}
_ROW_HEIGHT = 52
#: How many limits away from zero an axis ends.
_FARTHEST = 4.0
_MOST_SLICES = 24
_SLICE_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "star", "hexagon")
_SLICE_SIGNS = ("●", "■", "◆", "▲", "★", "⬢")

#: Kinds of bytes in the order in which they are stacked.
KINDS = ("parameters", "remainders", "gradients", "states", "buffers")


def _label(text: str, row: float) -> dict[str, Any]:
    return {
        "text": text,
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": row - 0.34,
        "yref": "y",
        "yanchor": "middle",
        "showarrow": False,
        "align": "left",
        "font": {"color": "var(--text)", "size": 13},
    }


def _rows_axis(num_rows: int) -> dict[str, Any]:
    return {
        "range": [num_rows - 0.42, -0.66],
        "showticklabels": False,
        "showgrid": False,
        "ticks": "",
        "fixedrange": True,
    }


def _separators(num_rows: int) -> list[dict[str, Any]]:
    return [
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": row - 0.6,
            "y1": row - 0.6,
            "line": {"color": "var(--grid)", "width": 1},
        }
        for row in range(1, num_rows)
    ]


def _limit(value: float, edge: float) -> list[dict[str, Any]]:
    """Draw a limit, and the side of it that is forbidden shaded."""
    whole: dict[str, Any] = {"yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    return [
        {
            **whole,
            "type": "rect",
            "x0": value,
            "x1": edge,
            "fillcolor": "var(--forbidden)",
            "line": {"width": 0},
        },
        {
            **whole,
            "type": "line",
            "x0": value,
            "x1": value,
            "line": {"color": "var(--fail)", "width": 2, "dash": "dash"},
        },
    ]


def _zero(value: float) -> dict[str, Any]:
    return {
        "type": "line",
        "yref": "paper",
        "x0": value,
        "x1": value,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {"color": "var(--axis)", "width": 1},
    }


def _mean(gate: GateVerdict, x: float, low: float, high: float) -> dict[str, Any]:
    """Draw a gate's mean and the range between its bounds."""
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": [x],
        "marker": {
            "symbol": _MARKERS[gate.outcome],
            "size": 13,
            "color": f"var(--{gate.outcome})",
            "line": {"color": "var(--panel)", "width": 1},
        },
    }
    if math.isfinite(low) and math.isfinite(high):
        trace["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": [high - x],
            "arrayminus": [x - low],
            "color": f"var(--{gate.outcome})",
            "thickness": 2.5,
            "width": 6,
        }
    return trace


def _hover(gate: GateVerdict, recipe: str) -> str:
    found = range_text(gate)
    lines = [
        f"{plotly_text(recipe)}: {WORDS[gate.outcome]}",
        f"mean {value_text(gate)}" + (f", range {found}" if found else ""),
        f"limit {limit_text(gate)}",
    ]
    return "<br>".join(lines)


def _x_range(values: Sequence[float], limit: float, zero: float) -> tuple[float, float]:
    """Choose an axis that shows the baseline, the limit and what lies near them."""
    reach = abs(limit - zero) or 1e-9
    finite = [value for value in values if math.isfinite(value)]
    low = max(min([*finite, limit, zero]), min(zero, limit) - _FARTHEST * reach)
    high = min(max([*finite, limit, zero]), max(zero, limit) + _FARTHEST * reach)
    pad = 0.06 * (high - low)
    return low - pad, high + pad


def _beyond(gate: GateVerdict, row: float, low: float, high: float) -> dict[str, Any] | None:
    """Draw an arrow with the number where a mean lies beyond the axis, or is no number."""
    if low <= gate.mean <= high:
        return None
    is_left = gate.mean < low
    return {
        "text": f"{value_text(gate)} {'◀' if is_left else '▶'}",
        "x": low if is_left else high,
        "xanchor": "left" if is_left else "right",
        "y": row,
        "yanchor": "middle",
        "showarrow": False,
        "font": {"color": f"var(--{gate.outcome})", "size": 13},
    }


def gate_figures(
    verdict: Verdict, prefixes: tuple[str, ...], kind: str, zero: float
) -> list[Figure]:
    """Draw each gate of some kind: one row a candidate, a dot a seed, mean, range and limit.

    Args:
        verdict: The verdict.
        prefixes: How the gates' names begin. Gates of slices are left out.
        kind: What the charts' names begin with.
        zero: The value of a candidate that equals the baseline.

    Returns:
        One chart for each gate of which some candidate has a value.
    """
    names: dict[str, list[tuple[CandidateVerdict, GateVerdict]]] = {}
    for candidate in verdict.candidates:
        for gate in candidate.gates:
            if gate.gate.startswith(prefixes) and slice_of(gate) is None and gate.values:
                names.setdefault(gate.gate, []).append((candidate, gate))
    return [
        _gate_figure(f"{kind}-{place}", rows, zero) for place, rows in enumerate(names.values())
    ]


def _gate_figure(
    name: str, rows: Sequence[tuple[CandidateVerdict, GateVerdict]], zero: float
) -> Figure:
    first = rows[0][1]
    values = [
        value
        for _, gate in rows
        for value in (*gate.values, gate.mean, gate.lower, gate.upper)
    ]
    low, high = _x_range(values, first.limit, zero)
    traces: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    said: list[str] = []
    for row, (candidate, gate) in enumerate(rows):
        text = plotly_text(candidate.recipe, 40)
        labels.append(_label(f"{SYMBOLS[gate.outcome]} {text}", row))
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": list(gate.values),
                "y": [row + 0.22] * len(gate.values),
                "marker": {
                    "symbol": "circle-open",
                    "size": 8,
                    "color": "var(--muted)",
                    "line": {"width": 1.5},
                },
                "text": [f"seed {seed}: {format_number(value)}" for seed, value in
                         zip(gate.seeds, gate.values, strict=False)],
                "hovertemplate": f"{text}<br>%{{text}}<extra></extra>".replace("%{t", "%{t"),
            }
        )
        said.append(f"{candidate.recipe} {value_text(gate)}, {WORDS[gate.outcome]}")
        if arrow := _beyond(gate, row + 0.02, low, high):
            labels.append(arrow)
            continue
        mean = _mean(gate, gate.mean, gate.lower, gate.upper)
        hover = {"text": [_hover(gate, candidate.recipe)], "hovertemplate": "%{text}<extra></extra>"}
        traces.append({**mean, "y": [row + 0.02], **hover})
    edge = high if first.better == "lower" else low
    height = _ROW_HEIGHT * len(rows) + 64
    titles = {
        "worse by": "← better · worse than the baseline by →",
        "share": "share",
        "x baseline": "← less · times the baseline · more →",
    }
    title = titles[first.measure]
    if first.gate == "speed.median":
        title = "← slower · times as fast as the baseline · faster →"
    if first.gate in ("speed.p95",):
        title = "← faster · times the baseline's time · slower →"
    return Figure(
        name=name,
        title=gate_label(first.gate),
        summary=f"Limit {limit_text(first)}. {'; '.join(said)}.",
        caption="",
        height=height,
        traces=traces,
        layout=layout(
            {"title": {"text": title}, "range": [low, high], "fixedrange": True},
            _rows_axis(len(rows)),
            height,
            shapes=[*_limit(first.limit, edge), _zero(zero), *_separators(len(rows))],
            annotations=labels,
        ),
    )


def slice_figures(verdict: Verdict, series: Mapping[str, Series]) -> list[Figure]:
    """Draw the slices of each metric against their margins.

    Args:
        verdict: The verdict.
        series: How each recipe is drawn.

    Returns:
        One chart for each metric with judged slices.
    """
    metrics: dict[str, dict[str, list[tuple[str, GateVerdict]]]] = {}
    for candidate in verdict.candidates:
        for gate in candidate.gates:
            if (parts := slice_of(gate)) and gate.values:
                rows = metrics.setdefault(parts[0], {})
                rows.setdefault(parts[1], []).append((candidate.recipe, gate))
    return [
        _slice_figure(f"slices-{place}", metric, rows, series)
        for place, (metric, rows) in enumerate(metrics.items())
    ]


def _share(gate: GateVerdict, value: float) -> float:
    """Say a difference as a multiple of its margin, so that slices share one axis."""
    return value / gate.limit if gate.limit > 0 else math.nan


def _worst(rows: Sequence[tuple[str, GateVerdict]]) -> float:
    found = [_share(g, g.mean if math.isnan(g.upper) else g.upper) for _, g in rows]
    return max((math.inf if math.isnan(value) else value for value in found), default=0.0)


def _slice_figure(
    name: str,
    metric: str,
    found: Mapping[str, Sequence[tuple[str, GateVerdict]]],
    series: Mapping[str, Series],
) -> Figure:
    names = sorted(found, key=lambda part: -_worst(found[part]))[:_MOST_SLICES]
    recipes = [r for r in series if any(r == recipe for rows in found.values() for recipe, _ in rows)]
    values = [
        _share(gate, value)
        for part in names
        for _, gate in found[part]
        for value in (gate.mean, gate.lower, gate.upper)
    ]
    low, high = _x_range(values, 1.0, 0.0)
    traces: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    said: list[str] = []
    for row, part in enumerate(names):
        labels.append(_label(plotly_text(part, 40), row))
        worst = max(found[part], key=lambda pair: _worst([pair]))
        said.append(f"{part}: worst {worst[0]}, {value_text(worst[1])}, {worst[1].outcome}")
        for recipe, gate in found[part]:
            place = recipes.index(recipe)
            y = row - 0.12 + 0.62 * (place + 0.5) / len(recipes)
            mean = _mean(gate, *(_share(gate, v) for v in (gate.mean, gate.lower, gate.upper)))
            mean["marker"] = {
                "symbol": _SLICE_SYMBOLS[place % len(_SLICE_SYMBOLS)],
                "size": 9,
                "color": series[recipe].colour,
            }
            if "error_x" in mean:
                mean["error_x"] |= {"color": series[recipe].colour, "thickness": 1.5, "width": 3}
            if not low <= mean["x"][0] <= high:
                mean["x"], mean["error_x"] = [high if mean["x"][0] > high else low], {}
                mean["marker"]["symbol"] = "triangle-right"
            text = f"{plotly_text(part)}<br>{_hover(gate, recipe)}"
            traces.append(
                {**mean, "y": [y], "text": [text], "hovertemplate": "%{text}<extra></extra>"}
            )
    left_out = len(found) - len(names)
    row_height = 34 + 13 * len(recipes)
    height = row_height * len(names) + 64
    caption = "Mean and range as multiples of each slice's own margin, the worst slice first."
    if left_out:
        caption += f" {left_out} slices that came out better are in the table only."
    return Figure(
        name=name,
        title=f"Slices of {metric}",
        summary=f"Slices, the worst first. {'; '.join(said)}.",
        caption=caption,
        height=height,
        traces=traces,
        layout=layout(
            {
                "title": {"text": "← better · worse by, as a multiple of the margin →"},
                "range": [low, high],
                "fixedrange": True,
            },
            _rows_axis(len(names)),
            height,
            shapes=[*_limit(1.0, high), _zero(0.0), *_separators(len(names))],
            annotations=labels,
        ),
        legend=[
            Legend(
                text=recipe,
                colour=series[recipe].colour,
                mark="symbol",
                symbol=_SLICE_SIGNS[place % len(_SLICE_SIGNS)],
            )
            for place, recipe in enumerate(recipes)
        ],
    )


def bytes_figure(
    runs: Mapping[tuple[str, int], Run], series: Mapping[str, Series]
) -> Figure | None:
    """Draw the bytes that are held from step to step, by kind, one bar a recipe.

    Args:
        runs: The runs by recipe and seed.
        series: The recipes in their order.

    Returns:
        The chart; None if no run told its bytes.
    """
    sizes: dict[str, dict[str, float]] = {}
    for recipe in series:
        results = [run.result for (which, _), run in runs.items() if which == recipe]
        kinds = [result.kinds for result in results if result is not None and result.kinds]
        if kinds:
            names = [*KINDS, *sorted({name for of in kinds for name in of} - set(KINDS))]
            sizes[recipe] = {
                name: statistics.median(of.get(name, 0) for of in kinds) for name in names
            }
    names = [
        name
        for name in dict.fromkeys(name for of in sizes.values() for name in of)
        if any(of.get(name) for of in sizes.values())
    ]
    if not names:
        return None
    unit, size = bytes_unit(max(sum(of.values()) for of in sizes.values()))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": plotly_text(name),
            "x": [of.get(name, 0) / size for of in sizes.values()],
            "y": [row + 0.1 for row in range(len(sizes))],
            "width": 0.42,
            "marker": {
                "color": f"var(--series-{place % 6 + 1})",
                "pattern": {"shape": ("", "/", "", "\\", "", ".")[place % 6], "fillmode": "replace"},
                "line": {"color": "var(--panel)", "width": 1},
            },
            "hovertemplate": f"%{{x:.3g}} {unit}",
        }
        for place, name in enumerate(names)
    ]
    totals = {recipe: sum(of.values()) for recipe, of in sizes.items()}
    labels = [
        _label(f"{plotly_text(recipe, 32)}: {format_bytes(total)}", row)
        for row, (recipe, total) in enumerate(totals.items())
    ]
    height = _ROW_HEIGHT * len(sizes) + 64
    said = ", ".join(f"{recipe} {format_bytes(total)}" for recipe, total in totals.items())
    return Figure(
        name="bytes",
        title="Bytes held from step to step, by kind",
        summary=f"Stacked bars of bytes by kind. In all: {said}.",
        caption="Median over seeds. What a step needs for a moment, above all activations, comes on "
        "top of this; the peak in the table has it in.",
        height=height,
        traces=traces,
        layout=layout(
            {"title": {"text": unit}, "rangemode": "tozero", "fixedrange": True},
            _rows_axis(len(sizes)),
            height,
            barmode="stack",
            annotations=labels,
        ),
        legend=[
            Legend(
                text=name, colour=f"var(--series-{place % 6 + 1})", mark="symbol", symbol="■"
            )
            for place, name in enumerate(names)
        ],
    )
