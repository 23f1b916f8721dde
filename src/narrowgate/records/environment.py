"""Facts about code and machine that a run is kept with: named ones, and never the environment.

Environment variables hold secrets, so none is recorded; what matters of them (threads, devices) is
recorded as the fact that it led to.
"""

from __future__ import annotations

import hashlib
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

from narrowgate import __version__

__all__ = [
    "code_files",
    "git_facts",
    "machine_facts",
    "memory_bytes",
    "processor_name",
    "reset_peak",
]

#: Untracked files larger than this count by name and size alone, in bytes.
_LARGE = 2**20
_FOREIGN = {"site-packages", "dist-packages"}


def git_facts(folder: Path) -> tuple[str | None, str | None]:
    """Say which code lies in a folder, as git sees it.

    Args:
        folder: A folder in a checkout.

    Returns:
        The commit, and a SHA-256 over what is changed or untracked (below ``.narrowgate``
        excepted); None for each that there is not.
    """
    head = _git(folder, "rev-parse", "HEAD")
    if head is None:
        return None, None
    here = ["--", ".", ":(exclude).narrowgate"]
    changed = _git(folder, "diff", "HEAD", "--binary", *here) or b""
    listed = _git(folder, "ls-files", "--others", "--exclude-standard", "-z", *here) or b""
    untracked = sorted(name for name in listed.split(b"\0") if name)
    if not changed and not untracked:
        return head.decode().strip(), None
    digest = hashlib.sha256(changed)
    for name in untracked:
        path = folder / os.fsdecode(name)
        try:
            size = path.stat().st_size
            content = path.read_bytes() if size <= _LARGE else b""
        except OSError:  # gone or unreadable since it was listed
            continue
        digest.update(b"%s\0%d\0" % (name, size))
        digest.update(content)
    return head.decode().strip(), digest.hexdigest()


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Ask git; None where it has no answer: no git, no checkout, no commit yet."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def code_files(folder: Path) -> dict[str, str]:
    """Hash each Python file below a folder which this process has loaded.

    Installed packages are left out, and narrowgate's own files; their versions are facts of their
    own.

    Args:
        folder: The project's folder.

    Returns:
        SHA-256 by path below the folder, sorted by path.
    """
    root, own = folder.resolve(), Path(__file__).resolve().parents[1]
    found: dict[str, Path] = {}
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not isinstance(name, str) or not name.endswith(".py"):
            continue
        path = Path(name).resolve()
        is_foreign = path.is_relative_to(own) or _FOREIGN.intersection(path.parts)
        if path.is_relative_to(root) and not is_foreign:
            found[path.relative_to(root).as_posix()] = path
    hashes = {}
    for place in sorted(found):
        try:
            content = found[place].read_bytes()
        except OSError:  # deleted since it was loaded
            content = b""
        hashes[place] = hashlib.sha256(content).hexdigest()
    return hashes


def machine_facts() -> dict[str, str | int]:
    """Name the machine's facts that need no torch.

    Returns:
        ``python``, ``narrowgate``, ``system``, ``machine``, ``processor``, ``cores``.
    """
    return {
        "python": platform.python_version(),
        "narrowgate": __version__,
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
    }


def processor_name() -> str:
    """Name the processor as Linux does; where that says nothing, its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.machine()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def memory_bytes() -> tuple[int, int]:
    """Give this process's resident size, now and at its peak.

    Returns:
        Bytes now and the most so far, as Linux counts them since the program was started.
    """
    try:
        text = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return peak, peak
    kib = dict(line.split(":", 1) for line in text.splitlines() if line.startswith("Vm"))
    now, peak = (int(kib[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, peak


def reset_peak() -> bool:
    """Let this process's peak begin anew; say whether the system lets it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True
