"""Replay: the buyer's parameters follow from the aggregates, and whoever used others is named."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio

from assay.network.blob_store import DiskBlobs
from assay.observer.buyer import parameters as replay
from assay.observer.buyer.parameters import Replay
from assay.observer.ledger_service.status import Mismatch
from assay.participant.config import Participant
from assay.participant.store import Store
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.errors import Unavailable
from assay.protocol.messages import CertifiedManifest
from assay.protocol.state_transition import advance
from assay.protocol.types import Digest
from assay.testing.members import a_digest, peer
from assay.testing.signed import NODES, a_certified, a_history, a_manifest, a_spec
from assay.training.codec.wire import encode_aggregate
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.optimiser.outer import apply, public_digest, start_public
from assay.training.optimiser.public_state import state_digest
from tests.training.places import placed

SPEC = a_spec(state_every=2)
STRANGER = peer("an archive")
HOST = SimpleNamespace(connected=lambda: frozenset({STRANGER}))
LAYOUT = layout_of(SPEC.model)


def an_aggregate(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    at = np.sort(rng.choice(LAYOUT.blocks * 4096, 500, replace=False)).astype(np.int64)
    values = rng.choice([-16384, 8192, 16384], 500)
    return encode_aggregate(placed(LAYOUT.blocks, at // 4096, at % 4096, values), LAYOUT.blocks)


AGGREGATES = [an_aggregate(round_id) for round_id in range(SPEC.rounds)]
BLOBS = {blob_digest(body): body for body in AGGREGATES}


@cache
def states() -> list[Digest]:
    """The digest of the parameters before each round, computed without Replay."""
    public = start_public(SPEC, initial_parameters(SPEC.seed, LAYOUT.names, LAYOUT.shapes))
    found = [public_digest(public)]
    for round_id, aggregate in enumerate(AGGREGATES):
        public = apply(SPEC, LAYOUT, public, round_id, aggregate)
        found.append(public_digest(public))
    return found


def links(liar: str = "", lies_in: int = -1) -> list[CertifiedManifest]:
    """A whole run; commits name the true parameters where they must, but for the liar's."""
    run_state, made = a_history(state_every=2), []
    while not run_state.is_complete:
        at = int(run_state.round)
        names = NODES if run_state.is_training else []
        aggregate = blob_digest(AGGREGATES[at]) if run_state.is_training else None
        manifest = a_manifest(run_state, names, aggregate=aggregate)
        commits = []
        for signed in manifest.commits:
            is_lie = at == lies_in and signed.commit.node == peer(liar)
            state = a_digest("elsewhere") if is_lie else states()[at]
            if at % 2 == 0:
                signed = replace(signed, commit=replace(signed.commit, state=state))
            commits.append(signed)
        made.append(a_certified(replace(manifest, commits=tuple(commits))))
        run_state = advance(run_state, manifest)
    return made


class Blobs:
    """Holds everything but what is `away`."""

    def __init__(self) -> None:
        self.away: set[Digest] = set()
        self.put_back: list[bytes] = []

    def size(self, name: Digest) -> int | None:
        return None if name in self.away else 1

    def load(self, name: Digest) -> bytes:
        return BLOBS[name]

    def put(self, body: bytes) -> Digest:
        self.put_back.append(body)
        self.away.discard(blob_digest(body))
        return blob_digest(body)


def a_buyer(folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    return SimpleNamespace(
        spec=SPEC,
        config=SimpleNamespace(folder=folder),
        base=None,
        store=Store(folder / "store.db"),
        blobs=Blobs(),
    )


def step(one: Replay, certified: CertifiedManifest) -> Digest:
    return trio.run(one.step, cast(Any, HOST), certified)


def test_the_buyer_ends_with_the_parameters_that_the_aggregates_make(tmp_path: Path):
    one = Replay(cast(Participant, a_buyer(tmp_path)))

    made = [step(one, certified) for certified in links()]

    assert made[: SPEC.rounds] == states()[1:]
    assert set(made[SPEC.rounds :]) == {states()[-1]}  # after training nothing moves
    assert state_digest(one.theta) == states()[-1]
    assert one.compared() == (3, ())


@pytest.mark.parametrize(("lies_in", "found"), [(2, 1), (3, 0)])
def test_a_node_that_used_other_parameters_is_named_on_rounds_that_check(
    tmp_path: Path, lies_in: int, found: int
):
    one = Replay(cast(Participant, a_buyer(tmp_path)))

    for certified in links("mallory", lies_in):
        step(one, certified)

    elsewhere = a_digest("elsewhere").hex()
    expected = Mismatch(round=2, who=peer("mallory").hex(), claimed=elsewhere, ours=states()[2].hex())
    assert one.compared() == (3, (expected,) * found)


@pytest.mark.parametrize("end", [0, 1, 3, 7])
def test_a_restart_forgets_no_finding_and_changes_no_bit(
    tmp_path: Path, end: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replay, "CHECKPOINT_ROUNDS", 2)
    story = links("mallory", 2)
    me = cast(Participant, a_buyer(tmp_path))
    first = Replay(me)
    for certified in story[:end]:
        step(first, certified)

    second = Replay(me)
    assert second.round <= end
    for certified in story[second.round :]:
        step(second, certified)

    assert state_digest(second.theta) == states()[-1]
    assert len(second.compared()[1]) == 1
    assert [second.state(round_id) for round_id in range(SPEC.rounds + 1)] == states()


@pytest.mark.parametrize("what", ["damaged", "unreadable", "lost", "older"])
def test_a_checkpoint_whose_digest_the_store_has_not_is_no_start(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replay, "CHECKPOINT_ROUNDS", 2)
    story, me = links(), a_buyer(tmp_path)
    first = Replay(cast(Participant, me))
    for certified in story[:5]:
        step(first, certified)
    assert Replay(cast(Participant, me)).round == 2

    for path in (tmp_path / "parameters").glob("public-*") if what in ("damaged", "unreadable") else ():
        body = bytearray(path.read_bytes())
        body[-1 if what == "damaged" else 0] ^= 1
        path.write_bytes(body)
    if what in ("lost", "older"):
        me.store.drop_values("state/", {"state/0", "state/1"} if what == "older" else set())
    second = Replay(cast(Participant, me))
    assert second.round == 0
    for certified in story:
        step(second, certified)

    assert state_digest(second.theta) == states()[-1]
    assert [second.state(round_id) for round_id in range(SPEC.rounds + 1)] == states()


def test_a_blob_that_is_away_changes_nothing_and_comes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    me = a_buyer(tmp_path)
    me.blobs.away.add(blob_digest(AGGREGATES[0]))
    answers = iter([Unavailable("nobody has it")])

    async def fetch(_host: Any, name: Digest, holders: Any, _deadline_s: float, *, last: Any) -> bytes:
        assert tuple(holders) == (*SPEC.verifier_peers, STRANGER) and last == {STRANGER}
        for error in answers:
            raise error
        return BLOBS[name]

    monkeypatch.setattr(replay, "fetch_blob", fetch)
    one = Replay(me)

    with pytest.raises(Unavailable):
        step(one, links()[0])
    assert (one.round, one.compared()) == (0, (0, ()))

    assert step(one, links()[0]) == states()[1]
    assert me.blobs.put_back == [AGGREGATES[0]]


@pytest.mark.parametrize("how", ["rotten", "cut", "gone", "whole"])
def test_what_the_disk_damaged_of_rounds_long_past_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    me = a_buyer(tmp_path)
    me.blobs = DiskBlobs(tmp_path / "blobs", bytes_max=1 << 30)
    asked = list[Digest]()

    async def fetch(_host: Any, name: Digest, *_more: Any, **_options: Any) -> bytes:
        asked.append(name)
        return BLOBS[name]

    monkeypatch.setattr(replay, "fetch_blob", fetch)
    one = Replay(me)
    story = [
        replace(certified, manifest=replace(certified.manifest, commits=())) for certified in links()[:3]
    ]
    for certified in story:
        me.store.add_link(certified)
        step(one, certified)
    asked.clear()

    lost = story[1].manifest.aggregate
    path = me.blobs.path(lost)
    if how == "rotten":
        path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif how == "gone":
        path.unlink()
    trio.run(one.mend, cast(Any, HOST))
    assert asked == ([] if how == "whole" else [lost])
    assert blob_digest(me.blobs.load(lost)) == lost
