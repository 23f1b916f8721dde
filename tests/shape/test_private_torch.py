"""torch's private names live in one file, so that a new torch breaks one file."""

from __future__ import annotations

import ast

import pytest

from shape import source

HOME = "narrowgate.engine.private"
# What may be used anywhere, by the start of its name, with the reason.
ALLOWED = {
    "torch._foreach_": "documented in torch's reference, underscore or not",
    "torch._weight_norm": "an op of ATen without a public function, which the audit calls",
}


def dotted(node: ast.AST) -> str:
    """The name `a.b.c` of an expression; empty if it is something else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) and parts else ""


def private_names(nodes: ast.Module) -> list[str]:
    """Dotted names below torch with a part that starts with one underscore."""
    found = []
    for node in ast.walk(nodes):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = [dotted(node)]
        for name in names:
            parts = name.split(".")
            private = [part for part in parts if part.startswith("_") and part[:2] != "__"]
            if parts[0] == "torch" and private and not name.startswith(tuple(ALLOWED)):
                found.append(name)
    return found


MODULES = {name: path for name, path in source.modules().items() if name != HOME}


@pytest.mark.parametrize("module", MODULES)
def test_private_names_of_torch_stay_in_one_file(module):
    assert private_names(source.tree(MODULES[module])) == []


@pytest.mark.parametrize(
    "line",
    [
        "import torch._dynamo",
        "from torch._C import _dispatch_keys",
        "from torch.utils import _pytree",
        "torch._dynamo.reset()",
        "torch.ops.mkldnn._is_mkldnn_bf16_supported()",
    ],
)
def test_the_walk_sees_a_private_name(line):
    assert private_names(ast.parse(line))


def test_the_walk_leaves_public_names_alone():
    assert private_names(ast.parse("torch._foreach_mul_(a, 2.0)\nf(torch.norm(m._p).x)")) == []
