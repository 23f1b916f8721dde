"""How a pilot begins and how it goes on: its folder, its record, its entry in the ledger, its lock.

The limits are copied and entered into the ledger before the first run. Whatever is wrong with the
command, the limits or the ledger is found before anything is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from narrowgate.errors import ConfigError, PilotError, nearest
from narrowgate.pilot.command import check_command, resumed_command
from narrowgate.pilot.config import PilotConfig, config_hash, load_config, read_seeds
from narrowgate.pilot.disk import disk_faults_told
from narrowgate.pilot.folder import PilotRecord, read_pilot
from narrowgate.pilot.ledger import Ledger, check_limits, ledger_of
from narrowgate.plan import parse
from narrowgate.records import layout
from narrowgate.records.files import utc_now, write_json
from narrowgate.records.masking import mask_command

__all__ = ["Pilot", "begin_pilot", "last_pilot", "locked", "resume_pilot", "write_limits"]

PILOTS = "pilots"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """A pilot that is about to run.

    Attributes:
        folder: Its folder, absolute.
        ledger: The ledger's path.
        command: The command, with its secrets.
        record: What it set out to do, as in pilot.json.
        config: The limits.
        commit: Git commit of the working directory now; None if there is none.
        uncommitted: SHA-256 of what git calls changed or untracked there now; None if nothing is.
    """

    folder: Path
    ledger: Path
    command: tuple[str, ...]
    record: PilotRecord
    config: PilotConfig
    commit: str | None
    uncommitted: str | None


def begin_pilot(
    root: Path,
    config: Path,
    command: Sequence[str],
    *,
    seeds: int | None = None,
    only: Sequence[str] = (),
    facts: tuple[str | None, str | None] = (None, None),
) -> Pilot:
    """Make a pilot's folder and enter it into the ledger.

    Args:
        root: The folder ``.narrowgate``.
        config: The narrowgate.toml.
        command: The command, with ``{seed}`` or without.
        seeds: Number of seeds; None: the configuration's.
        only: Candidates to try; none: the configuration's.
        facts: Git commit of the working directory, and hash of what is not committed.

    Returns:
        The pilot, ready to run.

    Raises:
        ConfigError: The configuration, or what narrows it, is wrong.
        PilotError: The command cannot be started, or the disk is full.
        LedgerError: The ledger is damaged.
    """
    limits = load_config(config)
    candidates = _narrowed(limits, only)
    wanted = limits.seeds if seeds is None else read_seeds(seeds, "--seeds")
    check_command(command)
    ledger = Ledger(root / layout.LEDGER)
    ledger.verify()
    folder = (root / PILOTS / layout.new_folder_name()).absolute()
    with disk_faults_told(root), _removed_if_it_fails(folder):
        folder.mkdir(parents=True)
        (folder / layout.CONFIG).write_bytes(config.read_bytes())
        record = PilotRecord(
            command=mask_command(command),
            config_hash=config_hash(folder / layout.CONFIG),
            seeds=wanted,
            baseline=limits.baseline,
            candidates=candidates,
            created=utc_now(),
            commit=facts[0],
            uncommitted=facts[1],
        )
        write_json(folder / layout.PILOT, record.to_json())
        write_limits(ledger, folder, record)
    return Pilot(
        folder=folder,
        ledger=ledger.path,
        command=tuple(command),
        record=record,
        config=limits,
        commit=facts[0],
        uncommitted=facts[1],
    )


def resume_pilot(
    root: Path,
    folder: Path | None,
    command: Sequence[str] = (),
    *,
    seeds: int | None = None,
    facts: tuple[str | None, str | None] = (None, None),
) -> Pilot:
    """Take up a pilot that was interrupted, or add seeds to one that was not sure.

    Args:
        root: The folder ``.narrowgate``.
        folder: The pilot's folder; None: the one that was begun last.
        command: The command again, if it was stored masked; else nothing.
        seeds: Number of seeds now; None: as before. What was there has to be among them.
        facts: Git commit of the working directory, and hash of what is not committed.

    Returns:
        The pilot, ready to run.

    Raises:
        PilotError: There is none, its limits were changed, the command is another, or it belongs to
            another project.
        ConfigError: There would be fewer seeds than before.
        LedgerError: The ledger is damaged.
    """
    folder = (last_pilot(root) if folder is None else folder).absolute()
    record = read_pilot(folder)
    ledger = Ledger(ledger_of(folder))
    if ledger.path.parent.resolve() != root.resolve():
        project = ledger.path.parent.parent
        raise PilotError(
            f"the pilot {folder} belongs to {project}, and this is {root.absolute().parent}",
            hint=f"its command runs and its ledger lies there: cd {shlex.quote(str(project))}",
        )
    check_limits(ledger.entries(), folder.name, record)
    path = folder / layout.CONFIG
    if not path.is_file() or config_hash(path) != record.config_hash:
        raise PilotError(
            f"{folder / layout.CONFIG} was changed after the pilot began",
            hint="put it back; other limits need a pilot of their own",
        )
    whole = resumed_command(record.command, command)
    check_command(whole)
    if seeds is not None and read_seeds(seeds, "--seeds") != record.seeds:
        record = _with_seeds(record, read_seeds(seeds, "--seeds"))
        with disk_faults_told(folder):
            write_limits(ledger, folder, record)
            write_json(folder / layout.PILOT, record.to_json())
    return Pilot(
        folder=folder,
        ledger=ledger.path,
        command=whole,
        record=record,
        config=load_config(folder / layout.CONFIG),
        commit=facts[0],
        uncommitted=facts[1],
    )


def last_pilot(root: Path) -> Path:
    """Find the pilot that was begun last, whatever the clock said then.

    Args:
        root: The folder ``.narrowgate``.

    Returns:
        Its folder.

    Raises:
        PilotError: There is none.
    """
    for entry in reversed(Ledger(root / layout.LEDGER).entries()):
        folder = root / PILOTS / entry.pilot
        if entry.kind == "pilot" and folder.is_dir():
            return folder
    raise PilotError(
        f"there is no pilot below {root}",
        hint="begin one: narrowgate pilot -- python train.py --seed {seed}",
    )


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a pilot's folder to oneself; the lock goes with the process.

    Args:
        folder: The pilot's folder.

    Raises:
        PilotError: Another process is running this pilot.
    """
    with (folder / layout.CONFIG).open("r+b") as file:  # never written, so never another file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PilotError(
                f"another process is running the pilot in {folder}",
                hint="wait until it ends, or stop it with Ctrl-C there",
            ) from None
        yield


@contextlib.contextmanager
def _removed_if_it_fails(folder: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _narrowed(limits: PilotConfig, only: Sequence[str]) -> tuple[str, ...]:
    """Choose the candidates that --only names, in the order of the configuration."""
    names = [str(parse(wish)) for wish in only]
    for name in names:
        if name not in limits.candidates:
            raise ConfigError(
                f"--only {name}: that is no candidate of the configuration; allowed: "
                + ", ".join(limits.candidates),
                hint=nearest(name, limits.candidates),
            )
    return tuple(name for name in limits.candidates if not names or name in names)


def _with_seeds(record: PilotRecord, seeds: tuple[int, ...]) -> PilotRecord:
    """Add seeds to a pilot; none may go, since that would be choosing among results."""
    lost = [seed for seed in record.seeds if seed not in seeds]
    if lost:
        raise ConfigError(
            f"--seeds {len(seeds)} would leave out seeds which this pilot began with: "
            + ", ".join(map(str, lost)),
            hint="name more seeds, or begin a new pilot",
        )
    added = tuple(seed for seed in seeds if seed not in record.seeds)
    return dataclasses.replace(record, seeds=record.seeds + added)


def write_limits(ledger: Ledger, folder: Path, record: PilotRecord) -> None:
    """Write down what is about to be tried, and by which limits.

    Args:
        ledger: The ledger.
        folder: The pilot's folder, with its config.toml.
        record: What it sets out to do.

    Raises:
        LedgerError: The ledger was changed, or cannot be written.
    """
    ledger.append(
        "pilot",
        folder.name,
        {
            "command": list(record.command),
            "config_hash": record.config_hash,
            "config": (folder / layout.CONFIG).read_text(encoding="utf-8"),
            "baseline": record.baseline,
            "candidates": list(record.candidates),
            "seeds": list(record.seeds),
        },
    )
