"""Commands on the pages exist, with the options that the pages give them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("[gc]*/*.md"))]
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LISTED = set((ROOT / "tests" / "shape" / "cli_options.txt").read_text().splitlines())
COMMANDS = {" ".join(line.split()[:2]) for line in LISTED if line.startswith("narrowgate ")}


def commands(text: str) -> list[list[str]]:
    """Every command line of ours in a page's shell blocks, up to the user's own behind `--`."""
    found = []
    for block in SHELL.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["narrowgate"]:
                found.append(words[: words.index("--")] if "--" in words else words)
    return found


def faults(words: list[str]) -> list[str]:
    """What of a command does not exist."""
    command = " ".join(words[:2])
    if command not in COMMANDS:
        return [command]
    nested = " ".join(words[:3])
    known = LISTED | {line.replace(nested, command, 1) for line in LISTED}
    flags = [word.partition("=")[0] for word in words[2:] if word.startswith("-")]
    return [flag for flag in flags if f"{command} {flag}" not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    wrong = {
        " ".join(words): found for words in commands(page.read_text()) if (found := faults(words))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "line", ["narrowgate plane m:f", "narrowgate plan m:f --recip bf16", "narrowgate --verbose"]
)
def test_a_command_that_does_not_exist_is_seen(line: str) -> None:
    (words,) = commands(f"```sh\n{line}\n```")
    assert faults(words)
