"""The pages in a real browser: charts drawn, nothing fetched, nothing in the console, no overflow.

Skipped where there is no chromium on the PATH.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from narrowgate.report import write_report, write_run_page
from report import hostile, sample

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH: pages not tried")

# --pass of the style sheet, in either scheme.
LIGHT_PASS, DARK_PASS = "rgb(11, 110, 79)", "rgb(63, 199, 150)"
WRAPPER = """<!DOCTYPE html><body>
<iframe id="narrow" src="report.html" style="width: 400px; height: 600px"></iframe>
<iframe id="wide" src="report.html" style="width: 1280px; height: 600px"></iframe>
<ul id="found"></ul>
<script>
addEventListener("load", () => setTimeout(() => {
  for (const name of ["narrow", "wide"]) {
    const page = document.getElementById(name).contentDocument;
    const root = page.documentElement;
    const box = (chart) => chart.getBoundingClientRect().width;
    const svg = (chart) => chart.querySelector("svg.main-svg").getBoundingClientRect().width;
    const charts = [...page.querySelectorAll(".chart")];
    const wrong = charts.filter((chart) => Math.abs(box(chart) - svg(chart)) > 1).length;
    const top = (cell, name) => cell.querySelector(name).getBoundingClientRect().top;
    const split = [...page.querySelectorAll(".matrix td:has(.badge)")].filter(
      (cell) => name === "narrow" ? Math.abs(top(cell, ".of") - top(cell, ".badge")) > 6
        : cell.querySelector(".of").checkVisibility()).length;
    const wide = root.scrollWidth - root.clientWidth;
    const said = document.createElement("li");
    said.textContent = `${name} ${wide} ${charts.length} ${wrong} ${split}`;
    document.getElementById("found").append(said);
  }
}, 500));
</script>
"""


def browse(path: Path, *options: str) -> str:
    """Open a page and give the document after its scripts ran; fails if the console said anything.

    The profile is a new one. A request that the page's policy forbids is an error in the console.
    """
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
        "--virtual-time-budget=5000", f"--user-data-dir={path.parent / 'profile'}", *options,
        "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    return done.stdout


def charts_of(dom: str) -> list[str]:
    """What stands in each chart's place."""
    return re.split(r'<div class="chart[^"]*" id="chart-', dom)[1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    runs = sample.runs(60)
    write_report(folder, sample.verdict(runs), runs, sample.ledger(), "3" * 64)
    return folder


def test_every_chart_of_a_pilot_is_drawn_and_the_console_is_silent(folder):
    charts = charts_of(browse(folder / "report.html", "--window-size=1280,900"))
    assert len(charts) == 8
    for chart in charts:
        assert 'class="main-svg"' in chart
        assert re.search(r'class="(?:point|js-line)"', chart)
    assert any(LIGHT_PASS in chart for chart in charts)
    assert not any(DARK_PASS in chart for chart in charts)


def test_neither_width_overflows_and_charts_are_as_wide_as_their_place(folder):
    """Where cells are stacked, they name their candidate on the line of the outcome; else not."""
    (folder / "wrapper.html").write_text(WRAPPER)
    dom = browse(
        folder / "wrapper.html", "--allow-file-access-from-files", "--window-size=1400,1400"
    )
    assert re.findall(r"<li>(\w+) (\d+) (\d+) (\d+) (\d+)</li>", dom) == [
        ("narrow", "0", "8", "0", "0"),
        ("wide", "0", "8", "0", "0"),
    ]


def test_dark_colours_reach_the_charts(folder):
    dark = charts_of(browse(folder / "report.html", "--blink-settings=preferredColorScheme=0"))
    assert any(DARK_PASS in chart for chart in dark)
    assert not any(LIGHT_PASS in chart for chart in dark)


def test_hostile_names_do_nothing_in_a_browser(tmp_path):
    verdict, runs, entries = hostile.pilot()
    dom = browse(write_report(tmp_path, verdict, runs, entries, None))
    charts = charts_of(dom)
    assert len(charts) == len(re.findall('class="chart-box"', dom)) > 10
    assert all('class="main-svg"' in chart for chart in charts)
    assert re.search(r"<text[^>]*>var\(--fail\)</text>", dom)
    assert "<img" not in dom
    assert "<b>bold" not in dom
    assert "49" not in re.search("<title>.*?</title>", dom, re.DOTALL)[0]


def test_a_runs_page_is_drawn(tmp_path):
    dom = browse(write_run_page(sample.run("fp16", 1, 60, folder=tmp_path)))
    charts = charts_of(dom)
    assert len(charts) == 4
    assert all('class="main-svg"' in chart for chart in charts)
