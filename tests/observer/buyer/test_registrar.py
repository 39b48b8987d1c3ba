"""Registrar: the record is ours, a quorum's signatures are on it, and one liar spoils nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from assay.bundle.registry.log_point import read_point
from assay.chain.client import Chain
from assay.chain.commit_statement import evm_address
from assay.chain.events import ModelRegistered
from assay.chain.statements import ModelRecord, sign_digest, verify_certificate
from assay.ledger.log.cosignature import cosign
from assay.ledger.log.note import BadNoteError, Checkpoint, origin_of, read_line, sign_checkpoint, with_lines
from assay.network.host import Host
from assay.observer.buyer.registrar import parent_on_chain, register_model, witnessed_point
from assay.participant.config import Participant
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import Unavailable
from assay.protocol.messages import ModelSignature
from assay.protocol.types import Digest, HotSignature, PeerId
from assay.testing.members import RUN_ID, a_deployment, a_digest, a_hot_key, a_peer_key, name_of, peer
from assay.testing.signed import VERIFIERS, a_member, a_spec
from tests.bundle.test_write import finished

RUN = finished()
LAST = RUN.settled[RUN.spec.epochs - 1]
INVENTORY = Digest(a_digest("inventory"))
LEDGER_SERVICE = a_peer_key("ledger_service")
LEDGER_PEER = PeerId(bytes(LEDGER_SERVICE.verify_key))


@dataclass
class Me:
    """What of a buyer is asked for."""

    facts: dict[str, bytes] = field(default_factory=dict)
    spec: Any = field(default_factory=a_spec)
    deployment: Any = field(default_factory=a_deployment)
    run_id: Digest = RUN_ID
    ledger_service: PeerId = LEDGER_PEER

    @property
    def store(self) -> Any:
        return SimpleNamespace(value=self.facts.get, set_value=self.facts.__setitem__)


class OnChain:
    """A contract that takes a record once, and may die before it answers."""

    def __init__(self) -> None:
        self.records: list[tuple[ModelRecord, bytes]] = []
        self.is_away = False

    def register_model(self, record: ModelRecord, cert: bytes) -> bytes:
        if self.is_away:
            raise Unavailable("the chain is away")
        self.records.append((record, cert))
        return a_deployment().digest(record)


def signature_of(name: str, record: ModelRecord, **changes: Any) -> bytes:
    key = changes.pop("key", name)
    answer = ModelSignature(
        model_hash=Digest(record.model_hash),
        data_inventory_hash=Digest(record.data_inventory_hash),
        config_hash=Digest(record.config_hash),
        last_result=Digest(record.last_result),
        signature=HotSignature(sign_digest(a_deployment().digest(record), a_hot_key(key))),
    )
    return encode(replace(answer, **changes))


class Verifiers:
    """A host whose peers answer as told; whoever is not told is away."""

    def __init__(self, **answers: bytes) -> None:
        self.answers, self.asked = answers, 0

    async def request(self, peer: PeerId, method: str, body: bytes, *, timeout_s: float) -> bytes:
        self.asked += 1
        if name_of(peer) not in self.answers:
            raise Unavailable("away")
        return self.answers[name_of(peer)]


def ours() -> ModelRecord:
    from assay.ledger.settlement.results import model_record

    return model_record(
        RUN.spec, RUN.spec.ordered, LAST.result, Digest(LAST.digest), INVENTORY, Digest(bytes(32))
    )


def register(me: Me, host: Verifiers, chain: OnChain) -> Any:
    parts = (cast(Participant, me), cast(Host, host), cast(Chain, chain))
    return trio.run(register_model, *parts, RUN.spec.ordered, LAST, INVENTORY)


def test_a_quorum_signs_our_record_and_the_contract_gets_it():
    host = Verifiers(**{name: signature_of(name, ours()) for name in VERIFIERS[:3]})
    chain = OnChain()

    found = register(Me(), host, chain)

    assert [record for record, _ in chain.records] == [ours()]
    assert found.record_id == a_deployment().digest(ours())
    hot_keys = [evm_address(a_member(name).hot) for name in VERIFIERS]
    verify_certificate(found.record_id, found.certificate, hot_keys)


def test_a_buyer_that_died_sends_what_it_had_collected_and_asks_nobody_again():
    me, chain = Me(), OnChain()
    host = Verifiers(**{name: signature_of(name, ours()) for name in VERIFIERS})
    chain.is_away = True
    with pytest.raises(Unavailable):
        register(me, host, chain)
    chain.is_away = False

    first, second = (register(me, Verifiers(), chain) for _ in range(2))

    assert first == second
    assert chain.records[0] == chain.records[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"model_hash": a_digest("other")},
        {"data_inventory_hash": a_digest("other")},
        {"config_hash": a_digest("other")},
        {"last_result": a_digest("other")},
        {"key": VERIFIERS[0]},
        {"signature": HotSignature(bytes(65))},
    ],
)
def test_a_signature_on_another_record_or_by_another_key_is_no_part_of_a_quorum(changes: dict[str, Any]):
    good = {name: signature_of(name, ours()) for name in VERIFIERS[:2]}
    bad = {VERIFIERS[2]: signature_of(VERIFIERS[2], ours(), **changes)}
    chain = OnChain()

    with pytest.raises(Unavailable, match="2 signatures on the model's record, expected 3"):
        register(Me(), Verifiers(**good, **bad), chain)
    assert chain.records == []


def a_registered(name: str, model: str) -> ModelRegistered:
    facts: dict[str, Any] = {field.name: 0 for field in fields(ModelRegistered)}
    return ModelRegistered(**{**facts, "record_id": a_digest(name), "model_hash": a_digest(model)})


def test_the_parent_is_the_oldest_record_of_the_model_that_the_run_started_from():
    events = [a_registered("x", "another"), a_registered("old", "base"), a_registered("new", "base")]
    chain = cast(Chain, SimpleNamespace(events=lambda _block: events))
    drawn, other = a_spec(), replace(a_spec(), model=replace(a_spec().model, base=a_digest("unknown")))
    ours = replace(drawn, model=replace(drawn.model, base=a_digest("base")))

    parents = [parent_on_chain(chain, cast(Participant, Me(spec=spec))) for spec in (ours, other, drawn)]

    assert parents == [a_digest("old"), bytes(32), bytes(32)]


# ---- the books


def a_note(size: int, *names: str, root: str = "root") -> bytes:
    checkpoint = Checkpoint(origin=origin_of(RUN_ID), size=size, root=a_digest(root))
    lines = [cosign(checkpoint, a_peer_key(name), 1_700_000_000) for name in names]
    return with_lines(sign_checkpoint(checkpoint, LEDGER_SERVICE), lines).encode()


def witnessed(**answers: bytes) -> Any:
    return trio.run(witnessed_point, cast(Participant, Me()), cast(Host, Verifiers(**answers)))


def test_the_largest_checkpoint_that_a_quorum_cosigned_is_packed_with_their_lines():
    old = {name: a_note(5, name) for name in VERIFIERS[:3]}

    found = witnessed(**old, **{VERIFIERS[3]: a_note(9, VERIFIERS[3])})

    assert (found.size, found.root) == (5, a_digest("root"))
    assert found.cosigners == tuple(sorted(peer(name) for name in VERIFIERS[:3]))
    assert read_point(found.note, RUN_ID, found.ledger_service, a_spec().verifier_peers) == found


def test_a_verifier_that_also_holds_the_lines_of_others_counts_with_its_own():
    answers = {name: a_note(5, *VERIFIERS[: index + 1]) for index, name in enumerate(VERIFIERS)}

    assert witnessed(**answers).cosigners == tuple(sorted(peer(name) for name in VERIFIERS))


def test_a_line_that_only_bears_a_verifiers_name_spoils_nothing():
    answers = {name: a_note(5, name) for name in VERIFIERS[:3]}
    text = a_note(5).decode()
    other = read_line(a_note(6, VERIFIERS[3]).decode().splitlines()[-1])

    found = witnessed(**answers, **{VERIFIERS[3]: with_lines(text, [other]).encode()})

    assert len(found.cosigners) == 3


def test_a_verifier_that_answers_with_another_ones_line_spoils_nothing():
    answers = {name: a_note(5, name) for name in VERIFIERS[:3]}
    forged = a_note(5, VERIFIERS[0]).replace(b"assay/witness/" + peer(VERIFIERS[0]).hex().encode(), b"x", 1)

    for lie in (a_note(5, VERIFIERS[0]), forged, b"\xff", b"", a_note(5)):
        found = witnessed(**answers, **{VERIFIERS[3]: lie})
        assert len(found.cosigners) == 3


def test_fewer_than_a_quorum_make_no_checkpoint():
    assert witnessed(**{name: a_note(5, name) for name in VERIFIERS[:2]}) is None
    split = {name: a_note(5, name, root=f"root {index // 2}") for index, name in enumerate(VERIFIERS)}
    assert witnessed(**split) is None
    ledger_service = PeerId(bytes(LEDGER_SERVICE.verify_key))
    with pytest.raises(BadNoteError, match="2 cosignatures, 3 expected"):
        read_point(a_note(5, *VERIFIERS[:2]).decode(), RUN_ID, ledger_service, a_spec().verifier_peers)
