"""Nothing here names a machine: no path of somebody's disk, no host but public project sites.

The patterns are general on purpose: a list of names would itself tell what it hides.
"""

from __future__ import annotations

import re

import pytest

from shape import source

# Written in halves, so that this file passes its own test.
FOLDERS = "home|root|work|workspace|tmp|opt|mnt|data|scratch|srv|Users|Volumes|var"
PATH = re.compile(rf"(?<![\w.\-/~)\]}}>])/(?:{FOLDERS})/\w")
OPTIONS = re.compile("index" + r"-url|find" + r"-links|trusted" + r"-host", re.IGNORECASE)
URL = re.compile(r"\b(?:https?|ftp|git|ssh)" + r"://([^/\s\"'`<>)\]]+)")
ADDRESS = re.compile(r"(?<![\d.])(?:10|127|172|192)(?:\.\d{1,3}){3}(?![\d.])")
HOSTS = {
    "arxiv.org",
    "docs.pytorch.org",
    "docs.python.org",
    "doi.org",
    "github.com",
    "keepachangelog.com",
    "no-color.org",
    "semver.org",
    "www.apache.org",
    "www.opencompute.org",
}


def faults(text: str) -> list[str]:
    """What in a text names a machine."""
    found = [match[0] for pattern in (PATH, OPTIONS, ADDRESS) for match in pattern.finditer(text)]
    return found + [match[0] for match in URL.finditer(text) if match[1] not in HOSTS]


def test_no_tracked_file_names_a_machine():
    files = source.tracked()
    if not files:
        pytest.skip("not a git checkout")
    found = {}
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if wrong := faults(text):
            found[str(path.relative_to(source.ROOT))] = wrong
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "open('" + "/home" + "/someone/data.bin')",
        "cd " + "/tmp" + "/build",
        "--extra-index" + "-url x",
        "see http" + "://build.example.internal/job",
        "listen on 192" + ".168.0.7",
    ],
)
def test_the_patterns_see_a_machine(text):
    assert faults(text)


@pytest.mark.parametrize(
    "text",
    ["src/narrowgate/data/x", "https" + "://github.com/pytorch/pytorch/issues/1", "and/or/work"],
)
def test_the_patterns_leave_the_rest_alone(text):
    assert faults(text) == []
