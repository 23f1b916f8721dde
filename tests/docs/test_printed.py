"""What a page says that its code prints is what its code prints.

A Python block that prints is followed by a ``text`` block with its output; ``...`` in it stands for
anything, where a number depends on the machine. A block without one must print nothing.
"""

from __future__ import annotations

import contextlib
import doctest
import gc
import io
import logging
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [  # guides and concepts; some show no Python
    page
    for page in [ROOT / "README.md", *sorted(DOCS.glob("[gc]*/*.md"))]
    if "```python" in page.read_text(encoding="utf-8")
]
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```$(?:\n\n```text\n(?P<output>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)


@pytest.fixture(autouse=True)
def process_left_alone(tmp_path, monkeypatch):
    """Run in an empty folder; give back torch's generator and CPU kernels after."""
    import torch

    from narrowgate.engine import cpu

    gc.collect()  # prepared models of other tests would keep the CPU kernels in place
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("narrowgate"), "disabled", True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    if cpu.installed():
        cpu.uninstall()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_prints_what_it_says(page):
    text = page.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert blocks, f"{page.name} shows no Python"
    names = {"__name__": page.stem}
    for block in blocks:
        line = text.count("\n", 0, block.start("code"))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # Empty lines in front: a traceback names the line of the page.
            exec(compile("\n" * line + block["code"], str(page), "exec"), names)
        got, want = printed.getvalue(), block["output"] or ""
        same = doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)
        assert same, f"{page.name}, line {line}, prints\n{got}\nand says\n{want}"
