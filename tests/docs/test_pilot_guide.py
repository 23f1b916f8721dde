"""The guide's own script and limits run as a pilot, in an empty folder, as the guide says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from narrowgate.records import Verdict, layout
from narrowgate.records.files import read_json

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "pilot.md"


def block(language: str) -> str:
    """The page's first block in a language."""
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


def test_the_guides_script_comes_to_a_verdict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(block("python"))
    (tmp_path / "narrowgate.toml").write_text(block("toml"))
    command = ["pilot", "--only", "bf16", "--seeds", "3", "--", sys.executable, "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "narrowgate.cli", *command],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "NARROWGATE_RUN"},
        capture_output=True,
        text=True,
        check=False,
    )
    # what three seeds say is not the guide's promise; that they say something is
    assert done.returncode in (0, 3, 4), done.stdout + done.stderr
    (folder,) = (tmp_path / ".narrowgate" / "pilots").iterdir()
    verdict = Verdict.from_json(read_json(folder / layout.VERDICT))
    (candidate,) = verdict.candidates
    assert (candidate.recipe, candidate.num_runs, candidate.error) == ("bf16", 3, "")
    gates = {gate.gate for gate in candidate.gates}
    slices = {f"quality.val_loss/class {number}" for number in range(4)}
    assert gates == {"quality.val_loss", "stability.finite"} | slices
    assert (folder / layout.REPORT).is_file()
    assert str(layout.REPORT) in done.stdout + done.stderr
