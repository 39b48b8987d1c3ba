"""Seats: the folder of a node that takes part in one run, and what its log says.

Room: fleet (edge: files of one folder). Each run has a peer key of its own, so that a node at another port is
no second place of the same peer; account and hot key are the operator's. The folder is made beside its place
and then moved there, so it is complete or missing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from nacl.signing import SigningKey

from assay.fleet.config import FleetConfig
from assay.fleet.plan import Seat
from assay.node.seat import LEAVE
from assay.participant.files.armour import write_text
from assay.participant.files.record import Role, renew_own
from assay.participant.files.run_file import RunFile, write_run_file
from assay.participant.files.track_record import best_track_record, write_track_record
from assay.participant.keys.keyring import Keys, Work, write_keys
from assay.participant.wallet.discharge import NOT_DISCHARGED
from assay.protocol.encoding.json_text import parse_json

CONFIG, LOG, KEYS, RUNNING = "config.toml", "node.log", "keys", "running"
KEPT = (CONFIG, LOG, KEYS)  # of a seat that is over; its run file too
TAIL_BYTES = 1 << 18  # of a log that are read
LOG_BYTES_MAX = 1 << 26  # at a process's start an older one is put aside


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the log of a node says; zero or None where it says nothing."""

    round: int | None = None  # the newest final one that it reported
    paid: int = 0  # token units, of settled epochs
    counted: int = 0  # steps that were accepted and not found unpaid since
    size: Fraction = Fraction(1)  # of its last accepted step, in smallest ones
    is_seated: bool = False  # it has or had a seat
    closed_by: str | None = None  # who ended the run early
    must_ask_again: bool = False  # for its discharge: it ended without one


def prepare(
    config: FleetConfig, keys: Keys, seat: Seat, run: RunFile, data: Path, work: Work, now_s: int
) -> None:
    """Make a seat's folder, unless it is there.

    Args:
        config: The operator's.
        keys: The operator's.
        seat: Of this run.
        run: The run's file.
        data: The folder of its data.
        work: What it costs to try a password of the written keys.
        now_s: Unix time.

    Raises:
        ConfigError: files cannot be written.
    """
    folder = config.seat_folder(seat.run_id)
    if (folder / CONFIG).exists():
        return
    partial = folder.with_name(f"{folder.name}.partial")
    for leftover in (partial, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(mode=0o700, parents=True)
    own = replace(keys, peer=SigningKey.generate())
    write_keys(partial / KEYS, own, config.base.password, work)
    signed = renew_own(partial / KEYS, own, Role.NODE, config.host, config.ports + seat.number, now_s)
    folders = [config.base.keys, *config.folder.glob(f"*/{KEYS}")]
    shown = best_track_record(folders, signed.record.account)
    if shown is not None:
        write_track_record(partial / KEYS, shown)
    write_run_file(partial / f"{seat.run_id.hex()}.assay", run)
    lines = dict(_node_lines(config, seat, data))
    write_text(partial / CONFIG, "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items()))
    os.replace(partial, folder)


def _node_lines(config: FleetConfig, seat: Seat, data: Path) -> Iterator[tuple[str, Any]]:
    """A node's configuration, key by key; package `cli` has its keys."""
    base = config.base
    yield "keys", KEYS
    yield "password_file", str(config.password_file.resolve())
    yield "network", str(base.network.resolve())
    yield "run", seat.run_id.hex()
    yield "data", str(data.resolve())
    yield "ip", base.ip
    yield "port", config.ports + seat.number
    yield "rpc_url", base.rpc_url
    yield from config.node_lines


def ask_to_leave(config: FleetConfig, seat: Seat) -> None:
    """Have a seat's process give the seat up; it ends when nothing of it can be drawn any more."""
    (config.seat_folder(seat.run_id) / LEAVE).touch()


def clear(config: FleetConfig, seat: Seat) -> None:
    """Delete what the process of a seat that is over kept, but for its keys, configuration and log.

    Of a run in which it never had a seat nothing is kept: it may be taken again, at another port.
    """
    folder = config.seat_folder(seat.run_id)
    if not seat.was_seated:
        shutil.rmtree(folder, ignore_errors=True)
    for one in folder.iterdir() if folder.is_dir() else ():
        if one.name in KEPT or one.suffix == ".assay":
            continue
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one, ignore_errors=True)
        else:
            one.unlink(missing_ok=True)


def read_log(folder: Path) -> Reading:
    """What the end of a node's log says; lines that are no objects are left out."""
    found = Reading()
    for line in _tail(folder / LOG):
        try:
            event = parse_json(line)
            if isinstance(event, dict):
                found = _with_event(found, event)
        except (ValueError, TypeError, KeyError, ArithmeticError):
            continue
    return found


def _with_event(found: Reading, event: dict[str, Any]) -> Reading:
    name = str(event.get("event"))
    found = replace(found, must_ask_again=str(event.get("lot")).startswith(NOT_DISCHARGED))
    if name == "seat taken":
        found = replace(found, is_seated=True)
    if name == "round final":
        counted = max(int(event["accepted"]) - int(event["unpaid_steps"]), 0)
        found = replace(found, round=int(event["round"]), paid=int(event["paid"]), counted=counted)
        found = replace(found, is_seated=True)  # it is one of the nodes of that round
        if "tokens" in event:
            found = replace(found, size=Fraction(int(event["tokens"]), int(event["least_tokens"])))
    if isinstance(event.get("closed_by"), str):
        found = replace(found, closed_by=event["closed_by"])
    return found


def last_words(folder: Path) -> str:
    """The last line of a node's log, of which an error is the whole."""
    lines = [one for one in _tail(folder / LOG) if one.strip()]
    return lines[-1].strip()[:300] if lines else "no output"


def _tail(path: Path) -> list[str]:
    """The last lines of a file; empty if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - TAIL_BYTES, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return lines[1:] if size > TAIL_BYTES else lines
