"""Strings for people: what a user named, and numbers.

Names of metrics, slices, parameters and commands come from a user's script and are never trusted. A
character that would not be seen, or that turns the text around it (controls, bidirectional
overrides, lone surrogates), is shown as its escape, so that two names which look the same are the
same. What HTML, plotly or rich would read as markup is escaped where the text enters it, not here.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

__all__ = [
    "DASH",
    "bytes_unit",
    "fixed",
    "format_bytes",
    "format_number",
    "format_seconds",
    "format_share",
    "plotly_text",
    "printable",
    "script_json",
    "shorten",
    "signed",
]

#: Between a number and its unit, so that a line does not end there.
_SPACE = "\N{NO-BREAK SPACE}"
#: What stands where there is nothing to say.
DASH = "\N{EN DASH}"

# C0 and C1 controls but newline and tab, marks and overrides of direction, line and paragraph
# separators, zero-width space and byte order mark, lone surrogates. The zero-width joiner stays:
# emoji and some scripts are written with it.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Show what could not be seen as its escape.

    Args:
        text: Any string.

    Returns:
        The string, encodable as UTF-8, with newlines and tabs as they are.

    Example:
        >>> printable("val\u202eloss")
        'val\\u202eloss'
    """
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def shorten(text: str, most: int) -> str:
    """Cut a text in the middle, so that a chart has room.

    Args:
        text: The text.
        most: The most characters to keep.

    Returns:
        The text, or its two ends around ``…``.
    """
    if len(text) <= most:
        return text
    head = (most - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def plotly_text(text: str, most: int = 48) -> str:
    """Write a user's string where plotly would read tags and entities.

    Args:
        text: The string.
        most: The most characters to show.

    Returns:
        One line in which plotly finds no tag. plotly turns the entities back when it draws.
    """
    line = shorten(" ".join(printable(text).split()), most)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _finite(value: Any) -> Any:
    """Put None in the place of non-finite numbers: JSON and plotly know a gap, and no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value


def script_json(value: object) -> str:
    """Write JSON that may stand between ``<script>`` and ``</script>``.

    Args:
        value: Numbers, strings, None, dicts and lists.

    Returns:
        ASCII in which no tag, comment, entity or line separator can begin or end anything.
    """
    text = json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def format_number(value: float, digits: int = 4) -> str:
    """Write a number with its significant digits.

    Args:
        value: Any number.
        digits: Significant digits.

    Returns:
        ``2.413``, ``65,536``, ``1.2e-07``, ``NaN``, ``∞``. Minus is the true minus sign.
    """
    if math.isnan(value):
        return "NaN"
    if value < 0:
        return f"−{format_number(-value, digits)}"
    if math.isinf(value):
        return "∞"
    if value == int(value) and value < 1e7:
        return f"{int(value):,}"
    if 1e-4 <= value < 1e7:
        decimals = max(0, digits - 1 - math.floor(math.log10(value)))
        return f"{value:,.{decimals}f}"
    return f"{value:.{digits - 1}e}"


def fixed(value: float, decimals: int) -> str:
    """Write a number with so many decimals, so that numbers beside each other line up.

    Args:
        value: Any number.
        decimals: How many.

    Returns:
        ``−0.0012``; ``4.1e+08`` where that would be long, ``4e−05`` where it would be nothing.
    """
    if not math.isfinite(value) or abs(value) >= 1e6:
        return format_number(value, 3)
    is_lost = value != 0 and abs(value) < 0.5 * 10.0**-decimals
    return (f"{value:.0e}" if is_lost else f"{value:,.{decimals}f}").replace("-", "−")


def signed(value: float, digits: int = 3) -> str:
    """Write a number with its sign, as for a difference.

    Args:
        value: Any number.
        digits: Significant digits.

    Returns:
        ``+0.0123``, ``−0.0123``, ``0``.
    """
    return ("+" if value > 0 else "") + format_number(value, digits)


def format_share(value: float) -> str:
    """Write a share in percent.

    Args:
        value: 0 to 1.

    Returns:
        ``1.25 %``.
    """
    text = format_number(100 * value, 3)
    return f"{text.rstrip('0').rstrip('.') if '.' in text and 'e' not in text else text}{_SPACE}%"


_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1))


def bytes_unit(largest: float) -> tuple[str, int]:
    """Choose a unit for some sizes.

    Args:
        largest: The largest of them, in bytes.

    Returns:
        The unit's name and its bytes.
    """
    return next((unit for unit in _UNITS if largest >= unit[1]), _UNITS[-1])


def format_bytes(value: float) -> str:
    """Write a size in the unit that fits it.

    Args:
        value: Bytes.

    Returns:
        ``1.5 MB``.
    """
    if not math.isfinite(value):
        return format_number(value)
    name, size = bytes_unit(abs(value))
    return f"{format_number(value / size, 3)}{_SPACE}{name}"


_TIMES = ((7200, 3600, "h"), (120, 60, "min"), (1, 1, "s"), (1e-3, 1e-3, "ms"), (0, 1e-6, "µs"))


def format_seconds(value: float) -> str:
    """Write a time in the unit that fits it.

    Args:
        value: Seconds; NaN where nobody saw when it ended.

    Returns:
        ``1.5 ms``, ``42 s``, ``7.5 min``, ``2 h``; ``an unknown time``.
    """
    if math.isnan(value):
        return "an unknown time"
    if not math.isfinite(value) or value == 0:
        return f"{format_number(value)}{_SPACE}s"
    size, name = next((size, name) for least, size, name in _TIMES if abs(value) >= least)
    return f"{format_number(value / size, 3)}{_SPACE}{name}"
