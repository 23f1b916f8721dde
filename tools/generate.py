"""Write docs/reference from the code, or check that it is what the code says.

python tools/generate.py --mode write
python tools/generate.py --mode check

Whatever can be derived is derived: tables from the format records, recipe keys and op registry,
names and signatures from the public names, options from the commands.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
import typer
from docstrings import markdown

import narrowgate as ng
from narrowgate import errors, formats, ops, plan
from narrowgate.cli.app import app
from narrowgate.policies import loss_scale

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
WRITE = "python tools/generate.py --mode write"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a Markdown table.

    Args:
        head: The heads of the columns.
        rows: The cells, as they shall be printed.

    Returns:
        The table.
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", r"\|") for cell in line) + " |" for line in lines
    )


def signature(name: str, value: Callable[..., object]) -> str:
    """Write how a function or a class is called.

    Args:
        name: The name under which the reader knows it.
        value: The function or class.

    Returns:
        The call with its annotations, one argument a line where it is long.
    """
    found = inspect.signature(value)
    arguments = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    found = found.replace(parameters=arguments)
    if inspect.isclass(value):
        found = found.replace(return_annotation=inspect.Signature.empty)
    short = f"{name}{found}"
    if len(short) <= 90:
        return unquoted(short)
    lines, seen_star = [], False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not seen_star:
            lines.append("*")
        seen_star |= parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        lines.append(str(parameter))
    result = found.return_annotation
    arrow = "" if result is inspect.Signature.empty else f" -> {inspect.formatannotation(result)}"
    body = "".join(f"    {line},\n" for line in lines)
    return unquoted(f"{name}(\n{body}){arrow}")


def unquoted(call: str) -> str:
    """Write annotations without the quotes that `from __future__ import annotations` gives them."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", call)


def described(name: str, value: object) -> str:
    """Write one public name: how it is called, its docstring, the methods of its own.

    Args:
        name: The name under which the reader knows it.
        value: What it is.

    Returns:
        A section.
    """
    lines = [f"## {name}"]
    if callable(value) and not issubclass_of(value, Exception):
        lines.append(f"```python\n{signature(name, value)}\n```")
    lines.append(markdown(value))
    if inspect.isclass(value) and not issubclass_of(value, Exception):
        for method, member in vars(value).items():
            if method.startswith("_") or not (inspect.getdoc(member) or ""):
                continue
            if isinstance(member, property):
                lines += [f"### {name}.{method}", markdown(member)]
            elif isinstance(member, classmethod | staticmethod) or inspect.isfunction(member):
                call = signature(f"{name}.{method}", getattr(value, method))
                lines += [f"### {name}.{method}", f"```python\n{call}\n```", markdown(member)]
    return "\n\n".join(lines)


def issubclass_of(value: object, parent: type) -> bool:
    """Tell whether something is a class below another."""
    return inspect.isclass(value) and issubclass(value, parent)


def api() -> str:
    """Write the page of public names."""
    names = [name for name in ng.__all__ if not name.startswith("__")]
    public = [(name, getattr(ng, name)) for name in names]
    sections = [
        described(name, value) for name, value in public if not issubclass_of(value, Exception)
    ]
    return "\n\n".join(
        [
            "# Public names",
            "`import narrowgate as ng`; torch is imported when a name needs it.",
            "The errors have [a page of their own](errors.md).",
            *sections,
        ]
    )


def recipes() -> str:
    """Write the page of recipes: bases, keys, aliases, presets of the loss-scale machine."""
    presets = [
        (f"`{name}`", *(number(cell) if isinstance(cell, float) else cell for cell in values))
        for name, config in loss_scale.PRESETS.items()
        for values in [dataclasses.astuple(config)]
    ]
    columns = [field.name for field in dataclasses.fields(loss_scale.LossScaleConfig)]
    return "\n\n".join(
        [
            "# Recipes",
            markdown(sys.modules["narrowgate.plan.recipe"]),
            "## Bases",
            table(
                ["base", "compute", "master", "what it is"],
                [(f"`{name}`", *row) for name, row in plan.BASES.items()],
            ),
            "## Keys",
            table(["key", "takes"], [(f"`{key}`", text) for key, text in plan.KEYS.items()]),
            "## Aliases",
            "Apex's levels, as the recipe that does what Apex's documentation says of each.",
            table(["alias", "recipe"], [(f"`{a}`", f"`{r}`") for a, r in plan.ALIASES.items()]),
            "## Presets of the loss scale",
            markdown(loss_scale.LossScaleConfig),
            table(["preset", *columns], presets),
            "## What goes to 16 bits",
            "These parameters, by kind of module; all others stay FP32, and the plan says why.",
            table(
                ["kind", "parameters"],
                [(kind, ", ".join(f"`{n}`" for n in ns)) for kind, ns in plan.NARROWED.items()],
            ),
        ]
    )


def number(value: float) -> str:
    """Write a float so that it reads back as the same one, a long power of two as a power."""
    short = f"{value:g}"
    return short if float(short) == value else power(value)


def error_page() -> str:
    """Write the page of errors."""
    found = [getattr(errors, name) for name in errors.__all__ if name != "nearest"]
    sections = [f"## {kind.__name__}\n\n{markdown(kind)}" for kind in found]
    return "\n\n".join(["# Errors", markdown(errors), *sections])


def cli() -> str:
    """Write the page of commands."""
    root = typer.main.get_command(app)
    sections = [
        "# Commands",
        "Data goes to stdout, messages to stderr.",
        "Exit codes: 0 done, 1 internal error, 2 usage or configuration, 130 Ctrl-C.",
        "The command needs an extra: `pip install 'narrowgate[pilot]'`.",
    ]
    commands = [("narrowgate", root), *((f"narrowgate {n}", c) for n, c in root.commands.items())]
    for name, command in commands:
        rows = []
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                rows.append((f"`{parameter.metavar}`", parameter.help))
            else:
                rows.append((", ".join(f"`{flag}`" for flag in parameter.opts), parameter.help))
        sections += [f"## {name}", inspect.cleandoc(command.help or ""), table(["", ""], rows)]
    return "\n\n".join(sections)


def format_page() -> str:
    """Write the page of number formats, every limit derived from the record."""
    limits = [
        (
            f"`{name}`",
            f"{spec.bits}"
            if spec.bits == spec.storage_bits
            else f"{spec.bits} of {spec.storage_bits}",
            f"{int(spec.signed)}-{spec.exponent_bits}-{spec.mantissa_bits}",
            spec.bias,
            f"{spec.max_finite:.9g}",
            power(spec.min_normal),
            power(spec.min_subnormal),
            power(spec.eps),
            f"`{spec.inf_code:#x}`" if spec.inf_code is not None else "none",
            f"{spec.nan_count}, `{spec.nan_code:#x}`" if spec.nan_code is not None else "none",
        )
        for name, spec in formats.FORMATS.items()
    ]
    head = [
        "format",
        "bits",
        "sign-exponent-mantissa",
        "bias",
        "largest",
        "smallest normal",
        "smallest",
        "eps",
        "Inf",
        "NaN codes, ours",
    ]
    exported = [getattr(formats, name) for name in formats.__all__]
    public = [value for value in exported if inspect.isfunction(value) or inspect.isclass(value)]
    return "\n\n".join(
        [
            "# Number formats",
            markdown(sys.modules["narrowgate.formats.spec"]),
            "## All formats",
            table(head, limits),
            "Other spellings that `narrowgate.formats.get` takes: "
            + ", ".join(f"`{alias}` for `{name}`" for alias, name in formats.ALIASES.items())
            + ".",
            *(described(f"formats.{value.__name__}", value) for value in public),
        ]
    )


def power(value: float) -> str:
    """Write a power of two as one."""
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 else repr(value)


def op_page() -> str:
    """Write the page of ops."""
    sections = []
    for name in sorted({record.op for record in ops.status()}):
        overload = getattr(torch.ops.narrowgate, name).default
        schema = f"```text\n{overload._schema}\n```"
        sections += [
            described(name, getattr(ops, name)),
            "The schema it is registered with:",
            schema,
        ]
    return "\n\n".join(
        [
            "# Ops",
            markdown(ops),
            "`narrowgate doctor` shows which version of each serves on this machine.",
            *sections,
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "api.md": api,
    "recipes.md": recipes,
    "formats.md": format_page,
    "ops.md": op_page,
    "errors.md": error_page,
    "cli.md": cli,
}


def main() -> int:
    """Write or check all pages.

    Returns:
        0; with ``check``, 1 if a page is not what the code says.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=["write", "check"], required=True)
    mode = parser.parse_args().mode
    stale = []
    for name, page in PAGES.items():
        text = f"<!-- Written by tools/generate.py. -->\n\n{page()}\n"
        path = REFERENCE / name
        if mode == "write":
            REFERENCE.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path.relative_to(REFERENCE.parents[1])))
    if stale:
        print(f"error: stale: {', '.join(stale)}\n\nhint: {WRITE}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
