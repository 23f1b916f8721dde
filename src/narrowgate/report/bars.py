"""The chart of bytes by kind."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from narrowgate.records import Run
from narrowgate.report.dots import ROW_HEIGHT, row_label, rows_axis
from narrowgate.report.figure import Figure, Legend, Series, layout
from narrowgate.report.text import bytes_unit, format_bytes, plotly_text

__all__ = ["bytes_figure"]

#: Kinds of bytes in the order in which they are stacked; others come after them.
_KINDS = ("parameters", "remainders", "gradients", "states", "buffers")
_PATTERNS = ("", "/", "", "\\", "", ".")


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
            names = [*_KINDS, *sorted({name for of in kinds for name in of} - set(_KINDS))]
            sizes[recipe] = {
                name: statistics.median(of.get(name, 0) for of in kinds) for name in names
            }
    told = dict.fromkeys(name for of in sizes.values() for name in of if of[name])
    names = sorted(told, key=lambda name: (*_KINDS, name).index(name))
    if not names:
        return None
    totals = {recipe: sum(of.values()) for recipe, of in sizes.items()}
    unit, size = bytes_unit(max(totals.values()))
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
                "pattern": {"shape": _PATTERNS[place % 6], "fillmode": "replace", "solidity": 0.5},
                "line": {"color": "var(--page)", "width": 1},
            },
            "hovertemplate": f"%{{x:.3g}} {unit}",
        }
        for place, name in enumerate(names)
    ]
    height = ROW_HEIGHT * len(sizes) + 64
    said = ", ".join(f"{recipe} {format_bytes(total)}" for recipe, total in totals.items())
    return Figure(
        name="bytes",
        title="Memory: bytes held from step to step, by kind",
        summary=f"Stacked bars of bytes by kind. In all: {said}.",
        caption="Median over seeds. What a step needs for a moment, above all activations, comes "
        "on top; the peak in the table has it in.",
        height=height,
        traces=traces,
        layout=layout(
            {"title": {"text": unit}, "rangemode": "tozero", "fixedrange": True},
            rows_axis(len(sizes)),
            height,
            barmode="stack",
            annotations=[
                row_label(f"{plotly_text(recipe, 32)}: {format_bytes(total)}", row)
                for row, (recipe, total) in enumerate(totals.items())
            ],
        ),
        legend=[
            Legend(text=name, colour=f"var(--series-{place % 6 + 1})", mark="symbol", symbol="■")
            for place, name in enumerate(names)
        ],
    )
