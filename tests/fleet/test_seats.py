"""A seat's folder is complete or missing, has a peer key of its own, and its log is read as it is."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from assay.cli.process import read_process_file
from assay.fleet.config import STATE_BYTES_MAX, FleetConfig, holding, is_held, read_state, write_state
from assay.fleet.plan import Seat, Stage, State
from assay.fleet.seats import (
    CONFIG,
    KEYS,
    LOG,
    Reading,
    ask_to_leave,
    clear,
    last_words,
    prepare,
    read_log,
)
from assay.node.seat import LEAVE
from assay.participant.config import Config
from assay.participant.files.invitation import write_invitation
from assay.participant.files.record import OWN_RECORD, Role, read_record
from assay.participant.files.track_record import TrackRecord, read_track_records, write_track_record
from assay.participant.keys.keyring import QUICK, load_keys
from assay.participant.keys.private_files import write_private
from assay.protocol.errors import ConfigError
from assay.protocol.types import Address, Digest
from tests.a_network import NOW, a_run_file, an_invitation, keys_of
from tests.fleet.test_plan import BOUNDS

PASSWORD = "a password of nobody"
RUN = a_run_file()


def a_seat(**changes: Any) -> Seat:
    usual = Seat(
        run_id=RUN.run_id, name="tiny", buyer="0x09", number=3, stage=Stage.TAKING, since=NOW,
        why="pays best", taken_at=NOW, pay=5, is_measured=False, step_pay_micro=7, poor_since=0,
        was_seated=True, lot=100,
        deadline=NOW + 9, start_by_s=0, memory_bytes=1, disk_bytes=1, upload_bytes_s=1,
    )  # fmt: skip
    return replace(usual, **changes)


@pytest.fixture
def config(tmp_path: Path) -> FleetConfig:
    write_private(tmp_path / "password", PASSWORD.encode())
    write_invitation(tmp_path / "network.txt", an_invitation())
    base = Config(
        keys=tmp_path / "keys", password=PASSWORD, network=tmp_path / "network.txt",
        run=tmp_path / "run.assay", records=tmp_path / "records", folder=tmp_path, port=4001, ip="127.0.0.1",
        rpc_url="http://127.0.0.1:1", data=tmp_path / "data",
    )  # fmt: skip
    return FleetConfig(
        base=base, password_file=tmp_path / "password", folder=tmp_path / "runs", data=(),
        host="node.example", ports=4100, bounds=BOUNDS, look_s=1,
        node_lines=(("threads", 2), ("blob_gb", 0.5)),
    )  # fmt: skip


def prepared(config: FleetConfig, **changes: Any) -> Path:
    seat = a_seat(**changes)
    prepare(config, keys_of("nadia"), seat, RUN, config.folder / "data", QUICK, NOW)
    return config.seat_folder(seat.run_id)


def test_a_nodes_folder_is_one_that_its_process_reads(config: FleetConfig):
    folder = prepared(config)
    found, given = read_process_file(folder / CONFIG)

    assert (found.run_id, found.port, found.ip, found.threads) == (RUN.run_id, 4103, "127.0.0.1", 2)
    assert found.run.exists() and found.folder == folder and given.blob_gb == 0.5
    assert folder.stat().st_mode & 0o777 == 0o700
    assert found.records == folder / "records"  # of this run's members: elsewhere they have other ports
    record = read_record(folder / KEYS / OWN_RECORD, NOW).record
    assert (record.host, record.port, record.role) == ("node.example", 4103, Role.NODE)


def test_a_node_has_the_operators_account_and_hot_key_and_a_peer_key_of_its_own(config: FleetConfig):
    folder = prepared(config)
    own, theirs = load_keys(folder / KEYS, PASSWORD), keys_of("nadia")

    assert (own.account, own.hot) == (theirs.account, theirs.hot)
    assert bytes(own.peer) != bytes(theirs.peer)


def test_a_node_shows_what_the_operators_earlier_nodes_earned(config: FleetConfig):
    earned = TrackRecord(
        run_id=Digest(bytes(32)), account=Address(bytes(keys_of("nadia").account_address)),
        exec_class=Digest(bytes(32)), clean=40, heard_s=NOW, certificate=b"c",
    )  # fmt: skip
    write_track_record(config.base.keys, replace(earned, heard_s=NOW - 1))
    write_track_record(config.seat_folder(Digest(bytes(32))) / KEYS, earned)

    assert read_track_records(prepared(config) / KEYS) == [earned]


def test_a_folder_that_is_there_stays_as_it_is_and_half_of_one_is_made_again(config: FleetConfig):
    folder = config.seat_folder(RUN.run_id)
    (folder.with_name(f"{folder.name}.partial") / KEYS).mkdir(parents=True)
    (folder / "blobs").mkdir(parents=True)
    prepared(config)
    first = load_keys(folder / KEYS, PASSWORD)
    prepared(config)

    assert bytes(load_keys(folder / KEYS, PASSWORD).peer) == bytes(first.peer)
    assert not (folder / "blobs").exists()


def test_leaving_is_asked_for_as_the_command_does(config: FleetConfig):
    folder = prepared(config)
    ask_to_leave(config, a_seat())

    assert (folder / LEAVE).exists()


def test_what_a_seat_leaves_behind_is_its_keys_configuration_and_log(config: FleetConfig):
    folder = prepared(config)
    (folder / "blobs").mkdir()
    for name in ("store.db", LOG, "blobs/one"):
        (folder / name).touch()
    clear(config, a_seat())

    assert {one.name for one in folder.iterdir()} == {CONFIG, KEYS, LOG, f"{RUN.run_id.hex()}.assay"}
    clear(config, a_seat(was_seated=False))
    assert not folder.exists()
    clear(config, a_seat())


# ---- the log


def a_log(folder: Path, *events: dict[str, Any] | str) -> Path:
    folder.mkdir(exist_ok=True)
    lines = [one if isinstance(one, str) else json.dumps(one) for one in events]
    (folder / LOG).write_text("\n".join(lines) + "\n")
    return folder


def a_round(**changes: Any) -> dict[str, Any]:
    return {"event": "round final", "round": 7, "accepted": 6, "unpaid_steps": 1, "paid": 40, **changes}


def test_a_log_says_seat_round_pay_and_ending(tmp_path: Path):
    assert read_log(tmp_path) == Reading()
    assert read_log(a_log(tmp_path, {"event": "seat taken"})) == Reading(is_seated=True)

    found = read_log(a_log(tmp_path, a_round(round=6), a_round()))
    assert found == Reading(is_seated=True, round=7, paid=40, counted=5)
    sized = a_log(tmp_path, a_round(round=6, tokens=24, least_tokens=16), a_round())
    assert read_log(sized).size == Fraction(3, 2)  # of the last accepted step
    assert read_log(a_log(tmp_path, a_round(accepted=1, unpaid_steps=2))).counted == 0
    over = {"event": "training is over", "closed_by": "buyer"}
    assert read_log(a_log(tmp_path, a_round(), over, {"event": "x"})).closed_by == "buyer"


def test_a_node_that_ended_without_its_discharge_has_to_ask_again(tmp_path: Path):
    bound = {"event": "ended", "lot": "bound until the run is over: start this process again to ask"}
    assert read_log(a_log(tmp_path, bound)).must_ask_again
    assert not read_log(a_log(tmp_path, bound, {"event": "node is up"})).must_ask_again
    assert not read_log(a_log(tmp_path, {"event": "ended", "lot": "free from ..."})).must_ask_again


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        "[1]",
        '{"event": "round final"',
        '{"event": "round final"}',
        json.dumps(a_round(round="x")),
        json.dumps(a_round(accepted=[])),
        json.dumps(a_round(paid=float("inf"))),
        json.dumps(a_round(tokens=8, least_tokens=0)),
        "\x00",
    ],
)
def test_lines_that_are_something_else_are_left_out(tmp_path: Path, line: str):
    assert read_log(a_log(tmp_path, a_round(), line)).round == 7


def test_of_a_long_log_the_end_alone_is_read(tmp_path: Path):
    a_log(tmp_path, a_round(round=1), "x" * 2**18, a_round(round=9))

    assert read_log(tmp_path).round == 9
    assert read_log(a_log(tmp_path, a_round(round=1), "x" * (2**18 - 9), "")).round is None
    assert read_log(a_log(tmp_path, a_round(round=1), "x" * (2**18 - 100))).round == 1
    whole = (json.dumps(a_round(round=1)) + "\n").ljust(2**18, "x")
    (tmp_path / LOG).write_text(whole)
    assert read_log(tmp_path).round == 1
    (tmp_path / LOG).write_text(whole + "x")  # the first line is not whole any more
    assert read_log(tmp_path).round is None
    assert last_words(a_log(tmp_path, "first", "assay: it is broken", "")) == "assay: it is broken"
    assert last_words(a_log(tmp_path, "first", "y" * 999)) == "y" * 300


# ---- the state


def test_a_state_survives_its_file_and_a_damaged_one_is_never_begun_anew(tmp_path: Path):
    folder = tmp_path / "runs"
    state = State(seats=(a_seat(),), takes=(NOW,), avoided={"0x09": NOW + 1})
    assert read_state(folder) == State()
    write_state(folder, state)

    assert read_state(folder) == state
    text = (folder / "state.json").read_text()
    for damaged in ("", text[:-20], text.replace('"taking"', '"taken"'), text.replace('"lot"', '"lots"')):
        (folder / "state.json").write_text(damaged)
        with pytest.raises(ConfigError, match="cannot be read"):
            read_state(folder)
    for damaged in ('{"seats": 7}', '{"seats": [7]}', "[]"):
        (folder / "state.json").write_text(damaged)
        with pytest.raises(ConfigError, match="cannot be read"):
            read_state(folder)
    (folder / "state.json").write_text(text.replace(',\n   "upload_bytes_s": 1', ""))
    assert read_state(folder).seats == (a_seat(upload_bytes_s=0),)  # what was kept before it was counted
    (folder / "state.json").write_text(text.ljust(STATE_BYTES_MAX))
    assert read_state(folder) == state
    (folder / "state.json").write_text(text.ljust(STATE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match=f"more than {STATE_BYTES_MAX} bytes"):
        read_state(folder)


def test_two_supervisors_cannot_have_one_folder(tmp_path: Path):
    with holding(tmp_path / "lock", "a supervisor"):
        assert is_held(tmp_path / "lock")
        with (
            pytest.raises(ConfigError, match="a supervisor runs already"),
            holding(tmp_path / "lock", "a supervisor"),
        ):
            pass
    assert not is_held(tmp_path / "lock") and not is_held(tmp_path / "none")


def test_a_lock_is_held_as_long_as_a_child_has_it(tmp_path: Path):
    with holding(tmp_path / "lock", "x") as descriptor:
        copy = os.dup(descriptor)
    assert is_held(tmp_path / "lock")
    os.close(copy)
    assert not is_held(tmp_path / "lock")
