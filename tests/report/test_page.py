"""The page of a pilot: what stands on it, in which order, and that no name breaks out of it."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from narrowgate.errors import RunError
from narrowgate.records import layout
from narrowgate.records.files import write_json
from narrowgate.report import write_report
from narrowgate.report.html import plotly_script
from narrowgate.report.text import printable
from report import hostile, html, on_disk, sample


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the sample pilot with its page."""
    root = tmp_path_factory.mktemp("pilot")
    runs = sample.runs(60)
    folder = on_disk.write_pilot(root, runs)
    write_report(folder, sample.verdict(runs), runs, sample.ledger(), "3" * 64)
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return html.read(folder / layout.REPORT)


def test_the_verdicts_come_first_and_the_rest_in_order(page):
    heads = [
        "Verdicts", "Gates", "What this verdict does not say", "Quality", "Slices",
        "Speed and memory", "Stability", "Plans", "Environment", "Runs", "Decisions",
    ]  # fmt: skip
    text = page.text.split("Contents")[0]
    places = [text.rindex(f" {head} ") for head in heads]
    assert places == sorted(places)


def test_each_candidate_has_its_word_its_symbol_and_its_colour(page):
    items = [attrs.get("class") or "" for tag, attrs in page.tags if tag == "li"]
    verdicts = [words for words in items if words.startswith("verdict")]
    assert verdicts == ["verdict pass", "verdict pass", "verdict inconclusive", "verdict fail"]
    for words in (
        "✓ pass bf16 5 of 5 runs gave a result All 10 gates passed; closest to its limit:",
        "? inconclusive fp16",
        "✗ fail bf16(master=none)",
    ):
        assert words in page.text


def test_what_decided_stands_beside_the_verdict(page):
    assert "Quality: val_loss: " in page.text
    assert "more gates could not be decided." in page.text


def test_what_people_decided_stands_beside_the_verdict_and_in_a_table(page):
    assert (
        "Accepted by Ada Lovelace , 2026-12-02 09:00 UTC: within the margin everywhere" in page.text
    )
    assert "Gate quality.val_loss/email overridden by Charles Babbage" in page.text
    assert "overridden by Charles Babbage : no mail in our data" in page.text


def test_the_head_of_the_ledger_is_printed_with_what_it_is_for(page):
    assert "3" * 64 in page.text
    assert "Two copies with the same head hold the same history" in page.text


def test_a_page_without_a_ledger_says_so(tmp_path):
    runs = sample.runs(3)
    path = write_report(tmp_path, sample.verdict(runs), runs, [], None)
    assert "There is no ledger beside this folder" in html.read(path).text


def test_the_gates_stand_in_a_table_with_value_range_and_limit(page, folder):
    gate = sample.verdict(sample.runs(60)).candidates[0].gates[0]
    assert f"limit < +{gate.limit:.4f}" in page.text
    assert f"+{gate.mean:.4f}" in page.text
    assert "Quality: val_loss by slice bf16 ✓ pass 5 pass worst asyncio: " in page.text
    assert "✗ fail NaN limit < +0.0116" in page.text
    assert "bf16(master=none) ✗ fail 5 fail worst asyncio: NaN, limit < +0.0116" in page.text
    assert "owner Ada" in page.text


def test_a_slice_without_a_margin_is_shown_and_not_judged(page):
    assert "other" in page.text
    assert "candidate less baseline no margin: not judged" in page.text


def test_plans_carry_their_reasons(page):
    plan = sample.plan("bf16")
    for row in plan.params:
        assert row.reason in page.text


def test_environment_limits_command_and_attempts_are_there(page):
    assert "2.13.0+cpu" in page.text
    assert "max_skipped_share = 0.04" in page.text
    assert "narrowgate pilot -- python examples/gpt.py --seed {seed}" in page.text
    assert "runs/fp32/0/attempt-1" in page.text
    assert "25 attempts" in page.text


def test_charts_have_words_for_who_does_not_see_them(page):
    charts = [attrs for tag, attrs in page.tags if attrs.get("role") == "img"]
    assert len(charts) == len(page.figures) >= 7
    assert all(len(attrs["aria-label"]) > 40 for attrs in charts)
    assert {f"chart-{figure['name']}" for figure in page.figures} == {a["id"] for a in charts}


def test_tables_have_heads_and_captions_and_headings_are_nested(page):
    tags = [tag for tag, _ in page.tags]
    assert tags.count("caption") == tags.count("table")
    assert all(attrs.get("scope") in ("row", "col") for tag, attrs in page.tags if tag == "th")
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_ids_are_unique_and_links_lead_to_them(page):
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    links = page.attributes("href")
    assert links
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_nothing_is_loaded_from_anywhere(page):
    assert page.attributes("src") == []
    assert all(tag not in ("link", "iframe", "img", "object", "embed") for tag, _ in page.tags)
    assert all(link.startswith("#") for link in page.attributes("href"))
    (policy,) = [attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv")]
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; ")
    assert len(re.findall(r"'sha256-[\w+/]{43}='", policy)) == 2


def test_the_page_weighs_the_plotly_file_and_a_little(folder):
    assert (folder / layout.REPORT).stat().st_size < len(plotly_script()) + 400_000


def test_the_same_pilot_gives_the_same_page(folder, tmp_path):
    before = (folder / layout.REPORT).read_bytes()
    runs = sample.runs(60)
    write_report(folder, sample.verdict(runs), runs, sample.ledger(), "3" * 64)
    assert (folder / layout.REPORT).read_bytes() == before


def test_a_page_that_cannot_be_written_leaves_the_old_one(folder, tmp_path, monkeypatch):
    (tmp_path / layout.REPORT).write_text("old")
    (tmp_path / f".{layout.REPORT}.{os.getpid()}").mkdir()
    runs = sample.runs(3)
    with pytest.raises(RunError, match=r"report\.html cannot be written: .*\n\nhint: the tables"):
        write_report(tmp_path, sample.verdict(runs), runs, [], None)
    assert (tmp_path / layout.REPORT).read_text() == "old"


@pytest.fixture
def plotly_at(monkeypatch):
    """Put another plotly package in the place of the installed one."""

    def place(folder):
        plotly_script.cache_clear()
        spec = SimpleNamespace(submodule_search_locations=[str(folder)])
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)

    yield place
    plotly_script.cache_clear()


def test_a_plotly_whose_script_would_end_the_block_is_made_safe(plotly_at, tmp_path):
    (tmp_path / "package_data").mkdir()
    (tmp_path / "package_data" / "plotly.min.js").write_bytes(b'x = "</script>";\r\n')
    plotly_at(tmp_path)
    assert plotly_script() == b'x = "<\\/script>";\n'


def test_a_plotly_without_its_script_is_told(plotly_at, tmp_path):
    plotly_at(tmp_path)
    with pytest.raises(RunError, match=r"has no package_data/plotly\.min\.js\n\nhint: pip install"):
        plotly_script()


# Names ------------------------------------------------------------------------------------------


def test_no_name_becomes_a_tag_an_attribute_or_a_script(tmp_path):
    verdict, runs, entries = hostile.pilot()
    page = html.read(write_report(tmp_path, verdict, runs, entries, "1" * 64))
    assert len(page.scripts) == 3
    known = {"html", "head", "meta", "title", "style", "body", "main", "script", "header", "p",
             "h1", "h2", "h3", "code", "section", "ol", "li", "span", "bdi", "ul", "nav", "a",
             "noscript", "table", "caption", "thead", "tbody", "tr", "th", "td", "div", "br",
             "figure", "figcaption", "svg", "line", "details", "summary", "pre",
             "strong"}  # fmt: skip
    assert {tag for tag, _ in page.tags} <= known
    assert not [key for _, attrs in page.tags for key in attrs if key.startswith("on")]
    for name in hostile.NAMES:
        assert " ".join(printable(name).split()) in page.text
    assert "\u202e" not in page.text
    assert "49" not in page.text.split("Verdicts")[0]


def test_no_name_becomes_a_tag_or_a_variable_of_a_chart(tmp_path):
    verdict, runs, entries = hostile.pilot()
    page = html.read(write_report(tmp_path, verdict, runs, entries, None))

    def strings(node, key=""):
        if isinstance(node, dict):
            return [s for k, v in node.items() for s in strings(v, k)]
        if isinstance(node, list):
            return [s for v in node for s in strings(v, key)]
        return [(key, node)] if isinstance(node, str) else []

    found = strings(page.figures)
    allowed = re.compile(r"</?(?:b|br|sup|extra)>")
    assert not [s for _, s in found if "<" in allowed.sub("", s)]
    templates = {s for k, s in found if k == "hovertemplate"}
    assert not [s for s in templates if "alert" in s or "var(" in s]


# Pilots that did not come far -------------------------------------------------------------------


def bare(recipe, **changed):
    """A candidate of which nothing is known."""
    fields = {
        "outcome": None, "error": "no run gave a result", "gates": (), "plan_hash": None,
        "code": None, "torch": None, "device": None, "num_attempts": 0, "num_runs": 0,
    }  # fmt: skip
    return sample.candidate(recipe, sample.runs(3), **{**fields, **changed})


def empty(run, **changed):
    """A run that ended before its first step."""
    nothing = {"steps": sample.Steps(), "result": None, "plan": None, "plan_hash": None, "logs": (),
               "load": (), "environment": {}}  # fmt: skip
    return replace(run, **{**nothing, **changed})


def test_a_pilot_without_any_run(tmp_path):
    verdict = sample.verdict(sample.runs(3), candidates=(bare("bf16"),), evidence={})
    page = html.read(write_report(tmp_path, verdict, {}, [], None))
    assert "! not compared bf16 0 of 5 runs gave a result no run gave a result" in page.text
    assert "No gate was decided." in page.text
    assert "No run was started." in page.text
    assert page.figures == []


def test_a_pilot_without_candidates(tmp_path):
    verdict = sample.verdict(sample.runs(3), candidates=())
    page = html.read(write_report(tmp_path, verdict, sample.runs(3), [], None))
    assert "No candidate was judged." in page.text


def test_runs_that_ended_before_their_first_step(tmp_path):
    runs = {key: empty(run) for key, run in sample.runs(3).items()}
    verdict = sample.verdict(sample.runs(3), candidates=(bare("bf16", num_attempts=5),))
    page = html.read(write_report(tmp_path, verdict, runs, [], None))
    assert "No run got as far as a plan" in page.text
    assert "No run wrote down its environment." in page.text
    assert "No finite training loss was recorded" in page.text
    assert "The runs reported no slices." in page.text
    assert page.figures == []


def test_one_seed_has_no_band_and_no_range(tmp_path):
    runs = {key: run for key, run in sample.runs(60).items() if key[1] == 0}
    gate = sample.gate("quality.val_loss", [0.001], 0.01, outcome="inconclusive")
    one = bare("bf16", outcome="inconclusive", error="", gates=(gate,), num_runs=1)
    verdict = sample.verdict(sample.runs(3), candidates=(one,), seeds=(0,))
    page = html.read(write_report(tmp_path, verdict, runs, [], None))
    names = [figure["name"] for figure in page.figures]
    assert names == ["loss", "loss-difference", "quality-0", "bytes"]
    assert not [trace for figure in page.figures for trace in figure["data"] if "fill" in trace]
    assert "fp32: 1 seed" in page.text
    assert "1 seed, by limits" in page.text


def test_results_that_are_all_nan(tmp_path):
    gate = sample.gate("quality.val_loss", [float("nan")] * 5, 0.01)
    one = bare("bf16", outcome="fail", error="", gates=(gate,), num_runs=5)
    nan = {"val_loss": float("nan")}
    verdict = sample.verdict(sample.runs(3), candidates=(one,))
    runs = {
        key: replace(run, result=replace(run.result, metrics=nan, slices={"a": nan}))
        for key, run in sample.runs(3).items()
    }
    page = html.read(write_report(tmp_path, verdict, runs, [], None))
    assert "not finite in 5 of 5" in page.text
    assert "NaN, candidate less baseline" in page.text


def test_attempts_that_failed_are_listed_with_how_they_ended(tmp_path):
    verdict = sample.verdict(sample.runs(3))
    for number, ending in enumerate(
        (
            {"how": "timeout", "code": None, "seconds": 9.0},
            {"how": "ended", "code": 1, "seconds": 3.0},
        ),
        start=1,
    ):
        at = layout.attempt_folder(tmp_path, "bf16", 0, number)
        write_json(at / layout.EXIT, ending)
    layout.attempt_folder(tmp_path, "bf16", 0, 3).mkdir()
    (layout.attempt_folder(tmp_path, "bf16", 0, 3) / layout.EXIT).write_text('{"how": "ende')
    page = html.read(write_report(tmp_path, verdict, sample.runs(3), [], None))
    assert "timeout after 9 s" in page.text
    assert "ended with code 1 after" in page.text
    assert "not known: no exit.json" in page.text


def test_a_plan_that_cannot_be_read_is_told(tmp_path):
    runs = {key: replace(run, plan='{"schema": 99}') for key, run in sample.runs(3).items()}
    page = html.read(write_report(tmp_path, sample.verdict(runs), runs, [], None))
    assert "The plan cannot be read: plan of schema 99" in page.text
