"""Google-style docstrings as Markdown: what ``tools/generate.py`` writes under each name."""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(
    r"^(Args|Attributes|Returns|Yields|Raises|Shapes|Units|Numerics|Source|Sources|Example|Examples):"
    r"\s*$"
)
_ITEM = re.compile(r"^(\*{0,2}[\w.]+(?:\s*\([^)]*\))?):\s+(.*)$")


def markdown(value: object) -> str:
    """Write the docstring of an object as Markdown.

    Args:
        value: Anything with a docstring of its own.

    Returns:
        Paragraphs as they stand, sections with a bold head, their items as a list, examples in a
        fence.

    Raises:
        ValueError: The object has no docstring.
    """
    text = inspect.getdoc(value)
    if not text:
        raise ValueError(f"{value!r} has no docstring")
    parts, section, block = [], "", []
    for line in [*text.splitlines(), "End:"]:
        head = _SECTION.match(line)
        if head is None and line != "End:":
            block.append(line)
            continue
        parts.append(_section(section, inspect.cleandoc("\n".join(["", *block]))))
        section, block = (head[1] if head else ""), []
    return "\n\n".join(part for part in parts if part)


def _section(head: str, body: str) -> str:
    """Write one section."""
    if not body or not head:
        return _plain(body)
    if head.startswith("Example"):
        return f"**{head}**\n\n```pycon\n{body}\n```"
    if head in ("Args", "Attributes", "Raises"):
        return f"**{head}**\n\n{_items(body)}"
    return f"**{head}**\n\n{_plain(body)}"


def _items(body: str) -> str:
    """Write ``name: text`` lines, with what is indented below them, as a list."""
    items: list[str] = []
    for line in body.splitlines():
        match = None if line.startswith(" ") else _ITEM.match(line)
        if match:
            items.append(f"- `{match[1]}`: {_code(match[2])}")
        elif line.strip() and items:
            items[-1] += " " + _code(line.strip())
        elif line.strip():
            items.append(f"- {_code(line.strip())}")
    return "\n".join(items)


def _plain(body: str) -> str:
    """Keep paragraphs; an indented or doctest block goes into a fence."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", body):
        lines = paragraph.splitlines()
        if lines and lines[0].startswith(">>>"):
            paragraphs.append(f"```pycon\n{paragraph}\n```")
        elif lines and all(line.startswith("    ") for line in lines):
            paragraphs.append(f"```text\n{inspect.cleandoc(paragraph)}\n```")
        else:
            paragraphs.append(_code(paragraph))
    return "\n\n".join(paragraphs)


def _code(text: str) -> str:
    """Turn double back-quotes into Markdown's single ones."""
    return text.replace("``", "`")
