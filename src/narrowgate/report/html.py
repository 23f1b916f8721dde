"""From a template to a page: escaping, the two scripts, and the policy which allows only them."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import narrowgate
from narrowgate.errors import RunError
from narrowgate.records.files import replacing
from narrowgate.report.figure import Figure
from narrowgate.report.text import (
    format_bytes,
    format_number,
    format_seconds,
    format_share,
    printable,
    script_json,
)

if TYPE_CHECKING:
    import jinja2

__all__ = ["plotly_script", "render", "write_page"]

#: Where plotly's 5 MB go after the rendering, which would copy them again and again. No string
#: holds it: `printable` escapes it, and so does JSON.
_PLACE = "\x00"
_TEMPLATES = Path(__file__).parent / "templates"


@functools.cache
def plotly_script() -> bytes:
    """Read plotly.js out of the installed plotly package, which is not imported for that.

    Returns:
        The script in UTF-8, with nothing in it that would end a script block.

    Raises:
        RunError: The package has no such file.
    """
    spec = importlib.util.find_spec("plotly")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    paths = [Path(folder) / "package_data" / "plotly.min.js" for folder in folders]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise RunError(
            "the installed plotly has no package_data/plotly.min.js",
            hint="pip install 'narrowgate[pilot]'",
        )
    return _script(found)


def _script(path: Path) -> bytes:
    # A browser turns \r\n into \n before it takes the hash.
    return path.read_bytes().replace(b"\r\n", b"\n").replace(b"</script", b"<\\/script")


def _hash(script: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"


def _moment(time: str) -> str:
    """Write a UTC time to the minute."""
    return f"{time[:10]} {time[11:16]} UTC" if "T" in time[:11] else time


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2
    from markupsafe import Markup

    from narrowgate.report.code_cache import CodeCache

    def finalize(value: object) -> object:
        # What is Markup was escaped, or is ours; every other string shows what cannot be seen.
        is_theirs = isinstance(value, str) and not isinstance(value, Markup)
        return printable(str(value)) if is_theirs else value

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        bytecode_cache=CodeCache(_TEMPLATES / "__pycache__", Path(__file__).read_bytes()),
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": format_bytes,
        "moment": _moment,
        "number": format_number,
        "seconds": format_seconds,
        "share": format_share,
    }
    return environment


def render(template: str, figures: Sequence[Figure], **context: object) -> bytes:
    """Render a page.

    Args:
        template: Name of the template.
        figures: All charts of the page.
        context: What the template uses.

    Returns:
        The page in UTF-8. The scripts and the style sheet are in it.
    """
    from markupsafe import Markup

    plotly = plotly_script() if figures else b""
    script = _script(_TEMPLATES / "page.js")
    style = (_TEMPLATES / "page.css").read_text(encoding="utf-8")
    # The scripts, the style sheet and the JSON are ours or made safe; all else is escaped.
    text = (
        _environment()
        .get_template(template)
        .render(
            plotly=Markup(_PLACE) if figures else "",
            script=Markup(script.decode()),
            style=Markup(style),
            figures_json=Markup(script_json([figure.to_json() for figure in figures])),
            script_hashes=Markup(" ".join(_hash(code) for code in (plotly, script) if code)),
            version=narrowgate.__version__,
            **context,
        )
    )
    before, place, after = text.partition(_PLACE)
    return before.encode() + (plotly if place else b"") + after.encode()


def write_page(path: Path, page: bytes) -> Path:
    """Write a page beside its place and rename it there.

    Args:
        path: Where it belongs.
        page: The page.

    Returns:
        The path.

    Raises:
        RunError: The folder cannot be written; what was there before stays.
    """
    hint = "the tables need no file; copy the folder to where you may write for the page"
    with replacing(path, hint) as beside:
        beside.write_bytes(page)
    return path
