"""What a chart is before plotly.js draws it: plain JSON in the colours of the page's style sheet.

A colour is written ``var(--name)``; the page's script puts the colour of the current scheme, dark
or light, in its place under keys that end in ``color``, and nowhere else. So charts follow the
scheme, and a user's string that looks like a variable stays a string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DASHES", "Figure", "Legend", "Series", "layout", "series_of"]

_NUM_COLOURS = 6
#: Line styles by series, so that lines are told apart without their colour.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_DASH_ARRAYS = ("", "7 4", "2 3", "7 3 2 3", "11 4", "11 3 2 3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """How one recipe is drawn, the same in every chart of a page.

    Attributes:
        recipe: The recipe.
        colour: Its colour, as a variable of the style sheet.
        dash: Its line style, as plotly names it.
        dash_array: The same for the legend's SVG.
    """

    recipe: str
    colour: str
    dash: str
    dash_array: str


def series_of(baseline: str | None, candidates: Sequence[str]) -> dict[str, Series]:
    """Choose how recipes are drawn.

    Args:
        baseline: The baseline, in the text's colour; None if there is none.
        candidates: The others. After six the colours come again, with another line style.
    """
    found = {}
    if baseline is not None:
        found[baseline] = Series(
            recipe=baseline, colour="var(--text)", dash="solid", dash_array=_DASH_ARRAYS[0]
        )
    for place, recipe in enumerate(candidates):
        style = (place + place // _NUM_COLOURS) % len(DASHES)
        found[recipe] = Series(
            recipe=recipe,
            colour=f"var(--series-{place % _NUM_COLOURS + 1})",
            dash=DASHES[style],
            dash_array=_DASH_ARRAYS[style],
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Legend:
    """One entry of the legend under a chart's title.

    Attributes:
        text: What it says.
        colour: Colour of its mark.
        mark: ``line``, ``band``, ``symbol``.
        dash_array: Line style of a line.
        symbol: The character that stands for the marker.
    """

    text: str
    colour: str
    mark: str
    dash_array: str = ""
    symbol: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One chart.

    Attributes:
        name: Its place in the page: letters, digits, dashes.
        title: What stands above it.
        summary: What it shows, for readers who do not see it.
        caption: How it was drawn: smoothing, thinning, what is left out.
        height: Height in CSS pixels.
        legend: The legend.
        traces: plotly's ``data``.
        layout: plotly's ``layout``.
    """

    name: str
    title: str
    summary: str
    caption: str
    height: int
    traces: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    legend: Sequence[Legend] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Give what the page's script needs."""
        return {"name": self.name, "data": list(self.traces), "layout": dict(self.layout)}


_TITLE = {"font": {"size": 13}, "standoff": 8}
_AXIS = {
    "gridcolor": "var(--grid)",
    "linecolor": "var(--axis)",
    "tickcolor": "var(--axis)",
    "zeroline": False,
    # Not 20µ and 3B, which plotly writes by default.
    "exponentformat": "power",
    "automargin": True,
}


def layout(
    x: Mapping[str, Any], y: Mapping[str, Any], height: int, **more: object
) -> dict[str, Any]:
    """Give a chart's layout: no background of its own, room for touch scrolling.

    Args:
        x: What the x axis adds.
        y: What the y axis adds.
        height: Height in CSS pixels.
        more: What the layout adds.
    """
    return {
        "height": height,
        "margin": {"l": 12, "r": 14, "t": 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "var(--text)", "size": 13, "family": "system-ui, sans-serif"},
        "hoverlabel": {
            "bgcolor": "var(--panel)",
            "bordercolor": "var(--axis)",
            "font": {"color": "var(--text)"},
            "namelength": -1,
        },
        "showlegend": False,
        "xaxis": {**_AXIS, **x, "title": {**_TITLE, **x.get("title", {})}},
        "yaxis": {**_AXIS, **y, "title": {**_TITLE, **y.get("title", {})}},
        **more,
    }
