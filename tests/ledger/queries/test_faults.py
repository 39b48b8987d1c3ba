"""Faults in the books: what the fold proves of verifiers and nodes, kept with the round that proves it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from assay.bundle.books import find_books, opened
from assay.cli.ledger.faults import fault_lines
from assay.ledger.journal.database import Place
from assay.ledger.journal.round_facts import RoundFacts, round_facts
from assay.ledger.journal.store import BookStore
from assay.ledger.queries.faults import read_faults
from assay.ledger.queries.report import open_offences
from assay.protocol.auditing.audits import FaultKind
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import CertifiedManifest, Contradiction, Outcome, SignedCommit
from assay.protocol.params import PPM
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import HotSignature, Signature
from assay.testing.members import RUN_ID, a_digest, name_of, peer
from assay.testing.signed import NODES, VERIFIERS, a_certified, a_commit, a_history, a_manifest
from assay.testing.specs import an_audit_spec
from assay.verifier.round.commits import contradiction
from tests.ledger.a_database import attempt
from tests.ledger.a_run import EventStream

CHEAT = (1, peer("mallory"))
OTHER = next(name for name in NODES if name != "mallory")


def a_pair(run_state: RunState) -> Contradiction:
    """Two commits of a node for round 0."""

    def signed(state: str) -> SignedCommit:
        commit = replace(a_commit(OTHER, a_history()), update=a_digest(state))
        return SignedCommit(commit=commit, signature=Signature(bytes(64)), statement=HotSignature(bytes(65)))

    return contradiction(signed("a"), signed("b"))


Life = list[tuple[RunState, CertifiedManifest, RunState]]


def a_life(friend: str) -> Life:
    """A verifier passes the step of a cheat; another node contradicts itself in the manifest of round 2."""
    # Every audit has two auditors, so the friend is contradicted if it is one of them.
    rules = an_audit_spec(probation=2, blocks=8, replication_ppm=PPM)
    run_state, found = a_history(audit=rules), []
    while not run_state.is_complete:
        votes = {CHEAT: {v: Outcome.MATCH if v == friend else Outcome.MISMATCH for v in VERIFIERS}}
        names = [name for name in NODES if peer(name) in run_state.active]
        manifest = a_manifest(run_state, names, votes)
        if run_state.round == 2:
            manifest = replace(manifest, contradictions=(a_pair(run_state),))
        certified = a_certified(manifest)
        after = advance(run_state, certified.manifest)
        found.append((run_state, certified, after))
        run_state = after
    return found


def with_a_fault() -> tuple[str, Life]:
    """The life in which the friend is an auditor of the step: who is, the beacon draws."""
    return next((v, life) for v in VERIFIERS if (life := a_life(v)) and faults_in(life))


def faults_in(life: Life) -> dict[bytes, tuple[str, FaultKind]]:
    """As the fold has them, without our facts."""
    return {
        bytes(fault.offence_id): (name_of(fault.verdict.verifier), fault.failing)
        for _, _, after in life
        for audit in after.audits.values()
        for fault in audit.faults
    }


FRIEND, LIFE = with_a_fault()
FACTS = [round_facts(before, certified, after, {}) for before, certified, after in LIFE]
END = LIFE[-1][2]


@pytest.fixture
def store(place: Place) -> Iterator[BookStore]:
    books = BookStore(place, RUN_ID)
    yield books
    books.close()


def test_the_stream_has_a_fault_and_a_contradiction():
    assert list(faults_in(LIFE).values()) == [(FRIEND, FaultKind.PASSED)]
    assert END.nodes[peer(OTHER)].has_contradicted


def test_every_fault_is_on_record_with_the_round_that_proved_it(store: BookStore):
    store.add_rounds(FACTS)

    with store.reading() as db:
        found = read_faults(db)
    (fault,), (pair,) = found.verifiers, found.nodes
    (audit, told), in_round = next((f.faults[0], f.round) for f in FACTS if f.faults)
    assert (fault.verifier, fault.failing, fault.slashed) == (peer(FRIEND), "passed", None)
    assert (fault.round, fault.node, fault.in_round) == (*CHEAT, in_round)
    assert (fault.offence_id, fault.verdict) == (told.offence_id, digest(told.verdict))
    assert audit.closed_round <= in_round
    assert (pair.node, pair.round, pair.in_round) == (peer(OTHER), 0, 2)
    shown = a_pair(LIFE[2][0])
    assert (pair.first, pair.second) == (digest(shown.first.commit), digest(shown.second.commit))


def test_a_verifier_may_judge_a_step_again_in_a_dispute(store: BookStore):
    """A MATCH from before a dispute no longer counts, so the chain carries a second verdict."""
    verdict = next(verdict for facts in FACTS for verdict in facts.verdicts)
    twice = [replace(facts, verdicts=(verdict,)) for facts in FACTS[:2]]

    store.add_rounds(twice)
    store.add_rounds(twice)

    with store.reading() as db:
        rows = db.execute(sa.text("SELECT verifier, in_round FROM verdict ORDER BY in_round")).all()
    assert [tuple(row) for row in rows] == [(verdict.verifier, 0), (verdict.verifier, 1)]


@pytest.mark.parametrize("size", [1, 2, 5, 99])
def test_portions_and_repetitions_keep_each_once(store: BookStore, size: int):
    for start in range(0, len(FACTS), size):
        store.add_rounds(FACTS[: start + size])
        store.add_rounds(FACTS[start : start + size])

    with store.reading() as db:
        found = read_faults(db)
    assert {bytes(one.offence_id) for one in found.verifiers} == set(faults_in(LIFE))
    assert len(found.nodes) == 1


def test_a_fault_is_in_the_transaction_of_its_round(store: BookStore):
    proving = next(f.round for f in FACTS if f.faults)
    store.add_rounds(FACTS[:proving])

    def refuse(_db: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT INTO fault"):
            raise InterruptedError

    sa.event.listen(store.engine, "before_cursor_execute", refuse)
    with pytest.raises(InterruptedError):
        store.add_rounds(FACTS)
    sa.event.remove(store.engine, "before_cursor_execute", refuse)

    assert store.next_round == proving
    store.add_rounds(FACTS)
    with store.reading() as db:
        assert len(read_faults(db).verifiers) == 1


def test_a_round_that_is_left_out_is_our_own_mistake(store: BookStore):
    store.add_rounds(FACTS[:3])
    with pytest.raises(ValueError, match="round 4 arrived, 3 expected"):
        store.add_rounds(FACTS[4:])


def test_a_fault_is_an_open_case_until_the_court_closes_it(store: BookStore):
    store.add_rounds(FACTS)
    (offence,) = faults_in(LIFE)

    assert offence in open_offences(store)


@pytest.mark.parametrize(
    "statement",
    ["UPDATE fault SET failing = 'accused'", "DELETE FROM fault", "DELETE FROM contradiction",
     "UPDATE contradiction SET in_round = 0"],
)  # fmt: skip
def test_the_database_refuses_to_change_them(store: BookStore, place: Place, statement: str):
    store.add_rounds(FACTS)
    with pytest.raises(sa.exc.IntegrityError, match="append-only"):
        attempt(place, statement)


def listed_faults(books: Path, verifier: str) -> list[str]:
    with opened(find_books(books)) as db:
        return list(fault_lines(read_faults(db, verifier), verifier))


def test_the_command_lists_them_with_their_slash(tmp_path: Path):
    store = BookStore(tmp_path / "ledger.db", RUN_ID)
    store.add_rounds(FACTS)
    listed = "\n".join(listed_faults(tmp_path / "ledger.db", ""))
    (offence,) = faults_in(LIFE)
    assert f"verifier {peer(FRIEND).hex()}: passed a false step, round 1 of node" in listed
    assert f"offence {offence.hex()}" in listed and "not slashed yet" in listed
    assert f"node {peer(OTHER).hex()}: two commits for round 0" in listed
    assert listed.endswith("1 faults of verifiers, 1 contradictions of nodes")
    assert listed_faults(tmp_path / "ledger.db", peer(next(v for v in VERIFIERS if v != FRIEND)).hex()) == [
        "0 faults of verifiers"
    ]
    assert len(listed_faults(tmp_path / "ledger.db", peer(FRIEND).hex()[:12])) == 3

    stream = EventStream()
    stream.opened()
    stream.staked("node-0", 1_000_000)
    stream.slashed("node-0", 100_000)
    stream.events = [replace(e, offence_id=offence) if hasattr(e, "offence_id") else e for e in stream.events]
    store.take_blocks(stream.events, 0, stream.height, {})
    assert "slashed 0.1" in "\n".join(listed_faults(tmp_path / "ledger.db", ""))
    store.close()


def test_facts_hold_each_fault_once():
    assert [type(one) for one in FACTS] == [RoundFacts] * len(FACTS)
    assert sum(len(one.faults) for one in FACTS) == len(faults_in(LIFE))
