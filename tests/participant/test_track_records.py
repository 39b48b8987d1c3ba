"""Track records: a node that ends gets what a quorum of its verifiers signs, and keeps the best."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from assay.chain.statements import sign_digest, verify_certificate
from assay.network.host import Host
from assay.participant.config import Participant
from assay.participant.files.track_record import (
    SUFFIX,
    VALID_S,
    TrackRecord,
    best_track_record,
    read_track_records,
    write_track_record,
)
from assay.participant.wallet import track_records
from assay.participant.wallet.judges import named_judges
from assay.participant.wallet.track_records import RETRY_S, TRIES_S, keep_track_record, track_record_of
from assay.protocol.errors import Unavailable
from assay.protocol.run_state import RunState
from assay.protocol.types import PeerId
from assay.testing.members import RUN_ID, a_deployment, a_digest, a_hot_key, name_of, peer
from assay.testing.signed import NODES, VERIFIERS, a_history, a_member, a_spec

SPEC = a_spec()
ACCOUNT = a_member(NODES[0]).account


def an_end(**changes: Any) -> RunState:
    """A run that is over, in which NODES[0] passed three audits in a row."""
    run_state = a_history()
    node, facts = peer(NODES[0]), {"accepted": 6, "clean": 3, "exec_class": a_digest("class"), "heard_s": 99}
    record = replace(run_state.nodes[node], **{**facts, **changes})
    return replace(run_state, training_rounds=0, nodes={**run_state.nodes, node: record})


def keep(
    monkeypatch: pytest.MonkeyPatch, folder: Path, run_state: RunState, signing: list[dict[str, str]]
) -> int:
    """Ask; at each try the verifiers sign with the keys of these names. How many tries it took."""
    tries = 0
    said = track_record_of(RUN_ID, run_state.nodes[peer(NODES[0])]).statement(SPEC.deployment_id)

    class Signing:
        async def request(self, peer: PeerId, method: str, body: bytes, *, timeout_s: float) -> bytes:
            assert (method, body) == ("sign-track-record", ME.me)
            await trio.lowlevel.checkpoint()
            keys = signing[tries - 1] if tries <= len(signing) else {}
            if name_of(peer) not in keys:
                raise Unavailable("not all of its steps are settled")
            return sign_digest(a_deployment().digest(said), a_hot_key(keys[name_of(peer)]))

    def open_chain(_me: Any) -> None:
        nonlocal tries
        tries += 1

    monkeypatch.setattr(track_records, "open_chain", open_chain)
    monkeypatch.setattr(track_records, "read_judges", lambda *_: named_judges(SPEC, 1))
    ME = SimpleNamespace(
        me=peer(NODES[0]), run_id=RUN_ID, spec=SPEC, deployment=a_deployment(),
        config=SimpleNamespace(keys=folder),
    )  # fmt: skip
    clock = trio.testing.MockClock(autojump_threshold=0.05)
    trio.run(keep_track_record, cast(Participant, ME), cast(Host, Signing()), run_state, clock=clock)
    return tries


def test_a_node_keeps_what_a_quorum_of_its_verifiers_signs_once_they_do(monkeypatch, tmp_path):
    three = {name: name for name in VERIFIERS[1:]}
    two = {**dict(list(three.items())[:2]), VERIFIERS[0]: "mallory"}

    assert keep(monkeypatch, tmp_path, an_end(), [{}, two, three]) == 3
    (found,) = read_track_records(tmp_path)
    assert (found.account, found.clean, found.exec_class, found.heard_s) == (
        ACCOUNT, 3, a_digest("class"), 99,
    )  # fmt: skip
    hot_keys = ["0x" + member.hot.hex() for member in SPEC.verifiers]
    message = a_deployment().digest(found.statement(SPEC.deployment_id))
    verify_certificate(message, found.certificate, hot_keys)


def test_a_node_that_gets_none_ends_without_it_and_one_at_fault_does_not_ask(monkeypatch, tmp_path):
    assert keep(monkeypatch, tmp_path, an_end(), []) == TRIES_S / RETRY_S
    assert keep(monkeypatch, tmp_path, an_end(fault_round=1), []) == 0
    assert read_track_records(tmp_path) == []


def a_record(**changes: Any) -> TrackRecord:
    usual = TrackRecord(
        run_id=RUN_ID,
        account=ACCOUNT,
        exec_class=a_digest("class"),
        clean=40,
        heard_s=1_000,
        certificate=b"c",
    )
    return replace(usual, **changes)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"clean": 40}, [1]),
        ({"clean": 39}, [0]),
        ({"clean": 39, "heard_s": 1_001 + VALID_S}, [1]),
        ({"clean": 39, "exec_class": a_digest("another")}, [0, 1]),
        ({"clean": 39, "account": a_member(NODES[1]).account}, [0, 1]),
    ],
)
def test_less_of_the_same_class_does_not_take_the_place_of_more(tmp_path, change, kept):
    both = a_record(), a_record(**{"heard_s": 2_000, **change})
    for one in both:
        write_track_record(tmp_path, one)

    assert sorted(read_track_records(tmp_path), key=both.index) == [both[place] for place in kept]


def test_the_best_of_the_class_of_the_last_step_is_shown_and_a_damaged_file_counts_as_none(tmp_path):
    folders = [tmp_path / name for name in ("one", "two", "damaged", "none", "foreign")]
    write_track_record(folders[0], a_record())
    write_track_record(folders[1], a_record(heard_s=2_000, clean=1))
    folders[2].mkdir()
    (folders[2] / f"own{SUFFIX}").write_text("damaged")
    write_track_record(folders[4], a_record(heard_s=3_000, account=a_member(NODES[1]).account))

    assert best_track_record(folders, ACCOUNT) == a_record()
    assert best_track_record(folders[2:], ACCOUNT) is None
    write_track_record(folders[2], a_record(heard_s=1_001 + VALID_S, clean=2))
    assert best_track_record(folders, ACCOUNT) == a_record(heard_s=1_001 + VALID_S, clean=2)
    other = a_record(heard_s=2_000 + VALID_S, clean=3, exec_class=a_digest("another"))
    write_track_record(folders[2], other)
    assert best_track_record(folders, ACCOUNT) == other
