"""A training script without torch, for tests of what runs it: fast, and a function of its inputs.

    fake.write(tmp_path, {"bf16@1": "crash", "fp16": "nan"})

makes train.py, narrowgate.toml and a table of what the script does, by recipe and seed. What it
measures depends on the recipe and the seed alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

COMMAND = (sys.executable, "-S", "train.py", "--seed", "{seed}")  # -S: quicker

CONFIG = """\
[pilot]
candidates = ["bf16", "fp16"]
seeds = 3
timeout_s = 60

[quality.val_loss]
better = "lower"
margin = 0.5

[quality.val_loss.slices.json]
margin = 0.5

[stability]
max_skipped_share = 0.1
"""

SCRIPT = """
import json, os, pathlib, random, signal, sys, time

run = pathlib.Path(os.environ["NARROWGATE_RUN"])
asked = json.loads((run / "request.json").read_text())
recipe, seed = asked["recipe"], asked["seed"]
table = json.loads(pathlib.Path("behave.json").read_text())
does = table.get(f"{recipe}@{seed}", table.get(recipe, table.get("*", "")))
print("training", recipe, seed, sys.argv[1:])

def leave(name, value):
    beside = run / f".{name}"
    beside.write_text(json.dumps({"schema": 1, **value}))
    beside.replace(run / name)

def stay(name):
    leave(name + ".json", {"pid": os.getpid()})
    time.sleep(600)

if does == "crash":
    print("\\x1b[31mTraceback\\x1b[0m: it broke here", file=sys.stderr)
    sys.exit(3)
if does == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if does == "silent":
    os.close(1), os.close(2)
    sys.exit(0)
if does == "hang":
    stay("hanging")
if does in ("polite", "stubborn"):
    def interrupted(number, frame):
        leave("interrupted.json", {"signal": number})
        if does == "polite":
            sys.exit(7)
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stay("hanging")
if does in ("child", "daemon"):
    code = (
        "import os, pathlib, time, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "pathlib.Path(os.environ['NARROWGATE_RUN'], 'left.json')"
        ".write_text(str(os.getpid())); time.sleep(600)"
    )
    import subprocess
    subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=does == "daemon")
    while not (run / "left.json").exists() or not (run / "left.json").read_text():
        time.sleep(0.005)

draw = random.Random(0 if does == "deaf" else seed)
leave("environment.json", {"torch": "2.13.0", "device": "cpu", "python": "3.11", "cores": 2})
if does != "no-plan":
    plan = json.dumps({"recipe": recipe})
    leave("plan.json", {"hash": "hash of " + recipe, "plans": [plan]})
worse = {"fp32": 0.0, "bf16": 0.001, "fp16": 2.0}.get(recipe, 0.0)
with (run / "events.jsonl").open("a") as events:
    for step in range(1, 11):
        loss, data = 3.0 / step + draw.random() + worse, draw.getrandbits(40)
        if does == "other-data" and step >= 4:
            data += 1
        line = {"kind": "step", "t": step * 0.01, "step": step, "optimizer": 0, "loss": loss,
                "applied": True, "reason": "", "loss_scale": 1.0, "grad_norm": loss,
                "culprit": None, "data": data, "floats": None}
        events.write(json.dumps(line) + "\\n")
        events.flush()
    if does == "torn":
        events.write('{"kind": "step", "t": 0.2, "st')
val = 2.0 + 0.05 * draw.random() + worse
metrics, slices = {"val_loss": val}, {"json": {"val_loss": val + 0.1}}
if does == "nan":
    metrics = {"val_loss": "nan"}
if does == "other-metric":
    metrics = {"valid_loss": val}
if does == "no-slice":
    slices = {}
if does == "garbage":
    (run / "result.json").write_text("{")
elif does != "no-result":
    leave("result.json", {
        "metrics": metrics, "slices": slices, "seconds": 1.0, "device": "cpu",
        "peak_bytes": 1000, "base_bytes": 0, "kinds": {}, "files": {}, "took_effect": True})
if does == "tidy":
    import shutil
    shutil.rmtree(run)
if does == "hang-after-result":
    stay("hanging")
if does == "crash-after-result":
    sys.exit(4)
"""


def write(folder: Path, behave: dict[str, str] | None = None, config: str = CONFIG) -> Path:
    """Lay out a project: the script, the limits, and what the script does; give its .narrowgate."""
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "narrowgate.toml").write_text(config, encoding="utf-8")
    (folder / "behave.json").write_text(json.dumps(behave or {}), encoding="utf-8")
    return folder / ".narrowgate"


def wait_for(found: Callable[[], object], what: str) -> object:
    """Wait until something is there; a minute without it is an error, not a measurement."""
    begun = time.monotonic()
    while time.monotonic() - begun < 60:
        if value := found():
            return value
        time.sleep(0.005)
    raise AssertionError(f"{what} did not come")


def is_alive(number: int) -> bool:
    """Whether a process runs; one that is dead and not yet reaped does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def living(folder: Path) -> list[int]:
    """The processes of the runs below a folder."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            environment = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if f"NARROWGATE_RUN={folder}/".encode() in environment:
            found.append(int(name))
    return found
