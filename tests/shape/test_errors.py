"""Every class of errors.py is raised somewhere and explained to the reader."""

from __future__ import annotations

import ast
import inspect

import pytest

from narrowgate import errors
from shape import source

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and value.__module__ == errors.__name__
}


def raised() -> set[str]:
    """Names of classes called in a raise, or built to be raised later."""
    found = set()
    for module, path in source.modules().items():
        if module == "narrowgate.errors":
            continue
        for node in ast.walk(source.tree(path)):
            if isinstance(node, ast.Call):
                call = node.func
                found.add(call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", ""))
    return found


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_is_raised_somewhere(name):
    assert name in raised()


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_is_exported_and_explained(name):
    assert name in errors.__all__
    assert name in (errors.__doc__ or "")
    assert inspect.getdoc(CLASSES[name])
    page = (source.ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    assert f"## {name}" in page


def test_a_hint_is_printed_after_a_blank_line():
    error = errors.RecipeError("there is no recipe 'x'", hint="use 'bf16'")
    assert str(error) == "there is no recipe 'x'\n\nhint: use 'bf16'"
    assert str(errors.RecipeError("plain")) == "plain"
