"""Compiled templates are kept, and used only for the text that they were compiled from."""

from __future__ import annotations

import sys

import jinja2
import pytest

from narrowgate.report.code_cache import CodeCache


@pytest.fixture(autouse=True)
def writes_bytecode(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


def environment(folder, text: str, settings: bytes = b"settings"):
    return jinja2.Environment(
        loader=jinja2.DictLoader({"page": text}),
        autoescape=True,
        bytecode_cache=CodeCache(folder, settings),
    )


def rendered(folder, text: str, monkeypatch, settings: bytes = b"settings") -> tuple[int, str]:
    """Render with a fresh environment; give how often code was generated, and the page."""
    made: list[int] = []
    fresh = environment(folder, text, settings)
    generate = fresh._generate

    def counted(*args, **kwargs):
        made.append(1)
        return generate(*args, **kwargs)

    monkeypatch.setattr(fresh, "_generate", counted)
    page = fresh.get_template("page").render(name="<b>")
    return len(made), page


def test_a_template_is_compiled_once(tmp_path, monkeypatch):
    first = rendered(tmp_path / "c", "of {{ name }}", monkeypatch)
    second = rendered(tmp_path / "c", "of {{ name }}", monkeypatch)
    assert first == (1, "of &lt;b&gt;")
    assert second == (0, "of &lt;b&gt;")


def test_another_text_or_other_settings_are_compiled_anew(tmp_path, monkeypatch):
    rendered(tmp_path, "of {{ name }}", monkeypatch)
    assert rendered(tmp_path, "to {{ name }}", monkeypatch) == (1, "to &lt;b&gt;")
    assert rendered(tmp_path, "to {{ name }}", monkeypatch, b"others") == (1, "to &lt;b&gt;")


def test_what_another_jinja_or_python_compiled_is_not_used(tmp_path, monkeypatch):
    rendered(tmp_path, "of {{ name }}", monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(jinja2, "__version__", "0")
        assert rendered(tmp_path, "of {{ name }}", patch)[0] == 1
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version", "another")
        assert rendered(tmp_path, "of {{ name }}", patch)[0] == 1


@pytest.mark.parametrize("keep", [0, 10, 32, 40])
def test_a_cut_file_is_compiled_anew_and_mended(tmp_path, monkeypatch, keep):
    rendered(tmp_path, "of {{ name }}", monkeypatch)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:keep])
    assert rendered(tmp_path, "of {{ name }}", monkeypatch) == (1, "of &lt;b&gt;")
    assert rendered(tmp_path, "of {{ name }}", monkeypatch) == (0, "of &lt;b&gt;")


def test_a_place_that_cannot_be_written_costs_nothing_but_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        assert rendered(tmp_path / "file", "of {{ name }}", monkeypatch) == (1, "of &lt;b&gt;")


def test_where_python_may_write_no_code_none_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert rendered(tmp_path / "c", "of {{ name }}", monkeypatch) == (1, "of &lt;b&gt;")
    assert not (tmp_path / "c").exists()
