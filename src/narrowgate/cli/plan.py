"""``narrowgate plan``: what a recipe would do to a model, in bytes and with reasons, without a run.

The model is built and described by ``narrowgate.engine.describe`` in a subprocess; the plan is
resolved here, without torch.
"""

from __future__ import annotations

import json

import typer

from narrowgate.cli.console import ask_engine, print_json, print_lines
from narrowgate.plan import ModelInfo, diff, parse, resolve

__all__ = ["plan"]


def plan(
    factory: str = typer.Argument(
        metavar="MODULE:FACTORY", help="A function without arguments which returns the model."
    ),
    recipe: str = typer.Option("bf16", "--recipe", "-r", help="The recipe to resolve."),
    against: str = typer.Option(
        "", "--diff", metavar="RECIPE", help="Show what changes if this recipe takes its place."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show what a recipe stores and computes, for one model."""
    wish, other = parse(recipe), parse(against) if against else None
    model = ModelInfo.from_json(json.dumps(ask_engine("describe", factory)))
    old = resolve(model, wish)
    if other is None:
        print_lines(old.to_json() if as_json else old.render())
        return
    new = resolve(model, other)
    lines = diff(old, new)
    if as_json:
        print_json({"schema": 1, "old": old.hash, "new": new.hash, "differences": lines})
    else:
        print_lines(*(lines or ["no difference"]))
