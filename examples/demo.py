"""Pilot the two examples: a GPT on source text, a ResNet on handwritten digits.

    make demo

Each trains in FP32 and in every recipe of its configuration with five seeds, one run after the
other, and each recipe is judged by limits that were written down before. It takes about six minutes
on two cores. It ends with 0 if every run ended with a result and both pages were written, whatever
the verdicts; Ctrl-C ends it with 130, loses nothing, and says how to go on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from narrowgate.records import layout
from narrowgate.records.files import read_json
from narrowgate.records.verdict import CandidateVerdict, Verdict

FOLDER = Path(__file__).parent
EXAMPLES = {
    "gpt": "A GPT on the source text of Python's library",
    "resnet": "A ResNet on scikit-learn's digits",
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def passed_on(children: list[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Send each signal on to the children, and list it; a pilot ends in good order by itself."""
    seen: list[int] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        for child in children:
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def pilot(name: str) -> tuple[int, Path | None]:
    """Run the pilot of one example; give its exit code and the folder that it made."""
    example = os.path.relpath(FOLDER / name)
    words = [sys.executable, "-m", "narrowgate.cli", "pilot", "--config", f"{example}.toml"]
    words += ["--", sys.executable, f"{example}.py", "--seed", "{seed}"]
    pilots = Path(layout.ROOT, "pilots")
    old = set(pilots.glob("*"))
    children: list[subprocess.Popen[bytes]] = []
    with passed_on(children) as seen:
        # A session of its own: Ctrl-C at the terminal reaches it once, through us.
        children.append(subprocess.Popen(words, start_new_session=True))
        code = children[0].wait()
    new = sorted(set(pilots.glob("*")) - old)
    return (130 if seen else code), (new[-1] if new else None)


def missing(folder: Path, verdict: Verdict) -> list[str]:
    """List the runs without a result."""
    found = []
    for recipe in (verdict.baseline, *(candidate.recipe for candidate in verdict.candidates)):
        for seed in verdict.seeds:
            tried = layout.attempts(folder, recipe, seed)
            if not tried or not (tried[-1] / layout.RESULT).is_file():
                found.append(f"{recipe}, seed {seed}")
    return found


def line(candidate: CandidateVerdict) -> str:
    """Sum a candidate up: its outcome, how much worse its metric is, which gates decided."""
    if candidate.outcome is None:
        return f"  {candidate.recipe:<17} not compared: {candidate.error}"
    metric = candidate.gates[0]
    words = f"{metric.gate.partition('.')[2]} {metric.mean:+.4f}, margin {metric.limit:.4f}"
    if candidate.outcome != "pass":
        decisive = [gate.gate for gate in candidate.gates if gate.outcome == candidate.outcome]
        words += f"; {decisive[0]}" + (f" and {len(decisive) - 1} more" if decisive[1:] else "")
    return f"  {candidate.recipe:<17} {candidate.outcome:<12} {words}"


def main() -> int:
    """Run the pilots; 0 if all of them came to their end."""
    code, summary = 0, []
    for name, title in EXAMPLES.items():
        print(f"\n== {title}", flush=True)
        ended, folder = pilot(name)
        if ended == 130:
            return 130
        if folder is None or not (folder / layout.VERDICT).is_file():
            summary.append(f"{title}: no verdict; `narrowgate pilot` ended with {ended}")
            code = 1
            continue
        verdict = Verdict.from_json(read_json(folder / layout.VERDICT))
        summary.append(f"{title}, against {verdict.baseline}, {len(verdict.seeds)} seeds:")
        summary += [line(candidate) for candidate in verdict.candidates]
        summary += [f"  without a result: {run}" for run in missing(folder, verdict)]
        is_drawn = (folder / layout.REPORT).is_file()
        summary.append(f"  report: {folder / layout.REPORT if is_drawn else 'not written'}")
        if missing(folder, verdict) or not is_drawn:
            code = 1
    print("\n== Verdicts: how much worse than the baseline on average, and the gates that decided")
    print("\n".join(summary))
    return code


if __name__ == "__main__":
    sys.exit(main())
