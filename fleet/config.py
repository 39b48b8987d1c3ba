"""Config: how an operator's machine takes runs by itself, and the folder in which it keeps what it takes.

Room: fleet (edge: files of one folder). Read from `[operator]` of the participant's file by package `cli`.

    FOLDER/state.json       seats, takings, whom to avoid: written before anything is done
    FOLDER/lock             held by the supervisor that runs
    FOLDER/speed            what this machine's speed was measured to be
    FOLDER/<run's id>/      a node's folder: keys, configuration, run file, store, node.log
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.fleet.plan import Bounds, State
from assay.participant.checks import free_memory
from assay.participant.config import Config
from assay.participant.keys.private_files import make_private_folder, replace_private
from assay.protocol.encoding.json_text import parse_json, plain, read_plain
from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest

STATE, LOCK = "state.json", "lock"
STATE_BYTES_MAX = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """One operator's configuration."""

    base: Config  # keys, network, endpoint, device and threads, which its nodes share
    password_file: Path
    folder: Path
    data: tuple[Path, ...]  # folders of data sets, or data sets
    host: str  # at which others reach the nodes
    ports: int  # the first of `bounds.runs_most`
    bounds: Bounds
    look_s: int  # between two looks at the chain
    offers: bool = False  # whether it keeps an offer of its free seats on chain
    node_lines: tuple[tuple[str, Any], ...] = ()  # further keys of each node's configuration

    def seat_folder(self, run_id: Digest) -> Path:
        """The folder of the node that takes part in this run."""
        return self.folder / run_id.hex()


def default_bytes(folder: Path) -> tuple[int, int]:
    """Memory and disk for all runs, where their operator names none: what is free, and what they have."""
    here = next(one for one in (folder.resolve(), *folder.resolve().parents) if one.exists())
    used = sum(os.lstat(one).st_size for one in folder.rglob("*"))
    return free_memory(), shutil.disk_usage(here).free + used


@contextmanager
def holding(file: Path, who: str) -> Iterator[int]:
    """Hold a file's lock; yields its descriptor. It is let go of with the last copy of the descriptor.

    Raises:
        ConfigError: somebody else holds it; who: in words.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{who} runs already: {file} is locked") from None
        yield descriptor
    finally:
        os.close(descriptor)


def is_held(file: Path) -> bool:
    """Whether somebody holds a file's lock now."""
    if not file.exists():
        return False
    try:
        with holding(file, "it"):
            return False
    except ConfigError:
        return True


def read_state(folder: Path) -> State:
    """What the supervisor kept; the empty state where it has not run yet.

    Raises:
        ConfigError: it cannot be read. It is never begun anew by itself: lots would be forgotten.
    """
    file = folder / STATE
    try:
        if file.stat().st_size > STATE_BYTES_MAX:
            raise ConfigError(f"{file}: more than {STATE_BYTES_MAX} bytes")
        found = parse_json(file.read_bytes())
        for seat in found.get("seats", ()) if isinstance(found, dict) else ():
            seat.setdefault("upload_bytes_s", 0)  # kept before it was counted; its node may owe openings
        return read_plain(State, found)
    except FileNotFoundError:
        return State()
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"{file}: cannot be read ({error})") from None


def write_state(folder: Path, state: State) -> None:
    """Keep a state, durably.

    Raises:
        ConfigError: the disk refused.
    """
    make_private_folder(folder)
    replace_private(folder / STATE, (json.dumps(plain(state), indent=1) + "\n").encode())
