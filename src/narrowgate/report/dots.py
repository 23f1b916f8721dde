"""Charts in rows: a gate's values against its limit, slices against their margins.

The names stand above their rows, inside the picture, so that long recipes leave a narrow screen its
width. What lies far beyond the limit is told as an arrow at the edge with its number, since one
candidate that failed by far would else squeeze all the others into a line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from narrowgate.records import CandidateVerdict, GateVerdict, Verdict
from narrowgate.report.figure import Figure, Legend, Series, layout
from narrowgate.report.outcomes import (
    SYMBOLS,
    WORDS,
    gate_label,
    limit_text,
    range_text,
    slice_of,
    value_in_unit,
    value_text,
)
from narrowgate.report.text import plotly_text

__all__ = ["ROW_HEIGHT", "gate_figures", "row_label", "rows_axis", "slice_figures"]

ROW_HEIGHT = 54
_MARKERS = {"pass": "circle", "fail": "x", "inconclusive": "diamond"}
_SIGNS = {"pass": "●", "fail": "✖", "inconclusive": "◆"}
#: How many limits away from the baseline's value an axis ends at most.
_FARTHEST = 4.0
_MOST_SLICES = 24
_SLICE_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "star", "hexagon")
_SLICE_SIGNS = ("●", "■", "◆", "▲", "★", "⬢")


def row_label(text: str, row: float) -> dict[str, Any]:
    """Write a row's name above it.

    Args:
        text: The name, as plotly shall read it.
        row: The row, from 0.
    """
    return {
        "text": text,
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": row - 0.34,
        "yanchor": "middle",
        "showarrow": False,
        "align": "left",
        "bgcolor": "var(--page)",
        "borderpad": 0,
        "opacity": 0.85,
        "font": {"color": "var(--text)", "size": 13},
    }


def rows_axis(num_rows: int) -> dict[str, Any]:
    """Give the y axis of a chart in rows, the first row on top.

    Args:
        num_rows: Number of rows.
    """
    return {
        "range": [num_rows - 0.42, -0.66],
        "showticklabels": False,
        "showgrid": False,
        "ticks": "",
        "fixedrange": True,
    }


def _line(where: Mapping[str, Any], colour: str, **more: object) -> dict[str, Any]:
    return {"type": "line", "layer": "below", **where, "line": {"color": colour, **more}}


def _shapes(limit: float, edge: float, zero: float, num_rows: int) -> list[dict[str, Any]]:
    """Draw the limit, the side of it that is forbidden, the baseline, and lines between rows."""
    across: dict[str, Any] = {"yref": "paper", "y0": 0, "y1": 1}
    return [
        {
            **across,
            "type": "rect",
            "layer": "below",
            "x0": limit,
            "x1": edge,
            "fillcolor": "var(--forbidden)",
            "line": {"width": 0},
        },
        _line({**across, "x0": limit, "x1": limit}, "var(--fail)", width=2, dash="dash"),
        _line({**across, "x0": zero, "x1": zero}, "var(--axis)", width=1.5),
        *(
            _line({"xref": "paper", "x0": 0, "x1": 1, "y0": at, "y1": at}, "var(--grid)", width=1)
            for at in (row - 0.6 for row in range(1, num_rows))
        ),
    ]


def _mean(gate: GateVerdict, numbers: Sequence[float], colour: str) -> dict[str, Any]:
    """Draw a gate's mean and the range between its bounds."""
    x, low, high = numbers
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": [x],
        "marker": {
            "symbol": _MARKERS[gate.outcome],
            "size": 13,
            "color": colour,
            "line": {"color": "var(--page)", "width": 1},
        },
        "hovertemplate": "%{text}<extra></extra>",
    }
    if math.isfinite(low) and math.isfinite(high):
        trace["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": [high - x],
            "arrayminus": [x - low],
            "color": colour,
            "thickness": 2.5,
            "width": 6,
        }
    return trace


def _hover(gate: GateVerdict, recipe: str) -> str:
    found = range_text(gate)
    lines = [
        f"{plotly_text(recipe)}: {WORDS[gate.outcome]}",
        f"mean {value_text(gate)}" + (f", range {found}" if found else ""),
        f"limit {plotly_text(limit_text(gate))}",
    ]
    return "<br>".join(lines)


def _x_range(
    values: Sequence[float], limit: float, zero: float, least: float
) -> tuple[float, float]:
    """Choose an axis that shows the baseline, the limit and the values that lie near them."""
    reach = _FARTHEST * max(abs(limit - zero), least)
    near = [v for v in values if min(zero, limit) - reach <= v <= max(zero, limit) + reach]
    low, high = min([*near, limit, zero]), max([*near, limit, zero])
    pad = 0.08 * (high - low)
    return low - pad, high + pad


def _edge_note(text: str, is_left: bool, y: float, x: tuple[float, float]) -> dict[str, Any]:
    """Write at the edge what lies beyond it."""
    return {
        "text": f"◀ {text}" if is_left else f"{text} ▶",
        "x": x[0] if is_left else x[1],
        "xanchor": "left" if is_left else "right",
        "y": y,
        "yanchor": "middle",
        "showarrow": False,
        "font": {"size": 12},
    }


def _limit_note(text: str, limit: float, x: tuple[float, float]) -> dict[str, Any]:
    """Name the limit above its line, on the side that has room."""
    return {
        "text": text,
        "x": limit,
        "xanchor": "left" if limit < (x[0] + x[1]) / 2 else "right",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
        "font": {"color": "var(--fail)", "size": 12},
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


_AXIS_TITLES = {
    "speed.median": "← slower · times as fast as the baseline · faster →",
    "speed.p95": "← faster · times the baseline · slower →",
    "memory.peak": "← less memory · times the baseline · more →",
    "cost.total": "← cheaper · times the baseline · dearer →",
}


def _gate_figure(
    name: str, rows: Sequence[tuple[CandidateVerdict, GateVerdict]], zero: float
) -> Figure:
    first = rows[0][1]
    numbers = [v for _, g in rows for v in (*g.values, g.mean, g.lower, g.upper)]
    # A ratio's limit may lie so near to 1 that what is far from it is still worth seeing.
    x = _x_range(numbers, first.limit, zero, 0.1 if first.measure == "x baseline" else 0.0)
    traces: list[dict[str, Any]] = []
    notes = [_limit_note(f"limit {value_in_unit(first, first.limit)}", first.limit, x)]
    said: list[str] = []
    for row, (candidate, gate) in enumerate(rows):
        text = plotly_text(candidate.recipe, 40)
        notes.append(row_label(f"{SYMBOLS[gate.outcome]} {text}", row))
        shown, beyond = _seeds(gate, row, text, x)
        traces.append(shown)
        notes += [_edge_note(words, is_left, row + 0.24, x) for words, is_left in beyond]
        said.append(f"{candidate.recipe} {value_text(gate)}, {WORDS[gate.outcome]}")
        if x[0] <= gate.mean <= x[1]:
            mean = _mean(gate, (gate.mean, gate.lower, gate.upper), f"var(--{gate.outcome})")
            hover = _hover(gate, candidate.recipe)
            traces.append({**mean, "y": [row + 0.02], "text": [hover]})
        else:
            words = f"<b>mean {value_text(gate)}</b>"
            notes.append(_edge_note(words, gate.mean < x[0], row - 0.02, x))
    outcomes = [word for word in _SIGNS if any(gate.outcome == word for _, gate in rows)]
    title = _AXIS_TITLES.get(first.gate, "← better · worse than the baseline by →")
    height = ROW_HEIGHT * len(rows) + 84
    edge = x[1] if first.better == "lower" else x[0]
    return Figure(
        name=name,
        title=gate_label(first.gate),
        summary=f"Limit {limit_text(first)}. {'; '.join(said)}.",
        caption="",
        height=height,
        traces=traces,
        layout=layout(
            {"title": {"text": title}, "range": list(x), "fixedrange": True},
            rows_axis(len(rows)),
            height,
            shapes=_shapes(first.limit, edge, zero, len(rows)),
            annotations=notes,
            margin={"l": 12, "r": 14, "t": 24, "b": 8},
        ),
        legend=[
            Legend(text="one seed", colour="var(--muted)", mark="symbol", symbol="○"),
            *(
                Legend(
                    text=f"mean and range: {word}",
                    colour=f"var(--{word})",
                    mark="symbol",
                    symbol=_SIGNS[word],
                )
                for word in outcomes
            ),
            Legend(text="beyond the limit", colour="var(--forbidden)", mark="band"),
        ],
    )


def _seeds(
    gate: GateVerdict, row: int, text: str, x: tuple[float, float]
) -> tuple[dict[str, Any], list[tuple[str, bool]]]:
    """Draw a dot a seed, and put in words how many lie beyond the axis or are no number."""
    pairs = [(s, v) for s, v in zip(gate.seeds, gate.values, strict=False) if x[0] <= v <= x[1]]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [value for _, value in pairs],
        "y": [row + 0.24] * len(pairs),
        "marker": {
            "symbol": "circle-open",
            "size": 8,
            "color": "var(--muted)",
            "line": {"width": 1.5},
        },
        "text": [f"{text}<br>seed {seed}: {value_in_unit(gate, value)}" for seed, value in pairs],
        "hovertemplate": "%{text}<extra></extra>",
    }
    beyond = []
    for is_left in (True, False):
        far = [v for v in gate.values if (v < x[0] if is_left else v > x[1])]
        lost = [] if is_left else [v for v in gate.values if math.isnan(v)]
        words = []
        if far:
            least, most = min(far), max(far)
            span = value_in_unit(gate, least)
            span += "" if least == most else f" to {value_in_unit(gate, most)}"
            words.append(f"{len(far)} {'seed' if len(far) == 1 else 'seeds'} at {span}")
        if lost:
            words.append(f"{len(lost)} {'seed' if len(lost) == 1 else 'seeds'} NaN")
        if words:
            beyond.append((", ".join(words), is_left))
    return trace, beyond


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
    # The worst first; of two whose worst are alike, the one whose second worst is worse.
    order = {part: sorted(-_worst([pair]) for pair in found[part]) for part in found}
    names = sorted(found, key=order.__getitem__)[:_MOST_SLICES]
    told = {recipe for rows in found.values() for recipe, _ in rows}
    recipes = [recipe for recipe in series if recipe in told]
    x = _x_range(
        [
            _share(gate, value)
            for part in names
            for _, gate in found[part]
            for value in (gate.mean, gate.lower, gate.upper)
        ],
        1.0,
        0.0,
        0.0,
    )
    traces: list[dict[str, Any]] = []
    notes = [_limit_note("margin", 1.0, x)]
    said: list[str] = []
    for row, part in enumerate(names):
        notes.append(row_label(plotly_text(part, 40), row))
        worst = max(found[part], key=lambda pair: _worst([pair]))
        said.append(f"{part}: worst {worst[0]}, {value_text(worst[1])}, {worst[1].outcome}")
        for recipe, gate in found[part]:
            place = recipes.index(recipe)
            y = row - 0.14 + 0.56 * (place + 0.5) / len(recipes)
            colour = series[recipe].colour
            shares = [_share(gate, value) for value in (gate.mean, gate.lower, gate.upper)]
            if not x[0] <= shares[0] <= x[1]:
                note = _edge_note(value_text(gate), shares[0] < x[0], y, x)
                notes.append({**note, "font": {"size": 12, "color": colour}})
                continue
            mean = _mean(gate, shares, colour)
            mean["marker"] |= {"symbol": _SLICE_SYMBOLS[place % len(_SLICE_SYMBOLS)], "size": 10}
            if "error_x" in mean:
                mean["error_x"] |= {"thickness": 1.5, "width": 4}
            text = f"{plotly_text(part)}<br>{_hover(gate, recipe)}"
            traces.append({**mean, "y": [y], "text": [text]})
    left_out = len(found) - len(names)
    height = (34 + 14 * len(recipes)) * len(names) + 84
    caption = "Mean and range as multiples of each slice's own margin, the worst slice first."
    if left_out:
        caption += f" {left_out} slices that came out better are in the table only."
    title = "← better · worse by, in margins →"
    return Figure(
        name=name,
        title=f"Slices of {metric}",
        summary=f"Slices, the worst first. {'; '.join(said)}.",
        caption=caption,
        height=height,
        traces=traces,
        layout=layout(
            {"title": {"text": title}, "range": list(x), "fixedrange": True},
            rows_axis(len(names)),
            height,
            shapes=_shapes(1.0, x[1], 0.0, len(names)),
            annotations=notes,
            margin={"l": 12, "r": 14, "t": 24, "b": 8},
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
