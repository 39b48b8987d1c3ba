"""Step receipt: what holds is shown from the file alone; a change anywhere in it is refused with words."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from eth_utils.crypto import keccak

import tests.a_drand as a_drand
from assay.bundle.finished import Settled
from assay.bundle.receipts.pay import PaidRow, check_pay, pay_of
from assay.bundle.receipts.step import Checked, check_receipt, make_receipt, window
from assay.chain.commit_statement import evm_address, sign_commit
from assay.chain.statements import EpochResult, certificate, sign
from assay.cli.audit.receipt import checked_lines
from assay.ledger.settlement.payouts import settle
from assay.ledger.settlement.results import epoch_result, result_digest, run_id_of
from assay.participant.files.index import IntegrityError
from assay.participant.links import check_place
from assay.protocol.agreement.configurations import FIRST
from assay.protocol.agreement.quorum import quorum
from assay.protocol.auditing.audits import AuditStatus, may_show_known_answer
from assay.protocol.auditing.commitments import known_answer_proofs, known_answer_root
from assay.protocol.auditing.draws import is_drawn
from assay.protocol.encoding.codec import Message, decode, digest, encode
from assay.protocol.encoding.json_text import plain
from assay.protocol.identity import Domain
from assay.protocol.messages import (
    AttendanceKind,
    Block,
    CertifiedManifest,
    Commit,
    Outcome,
    QuorumCertificate,
    SeatNotice,
    SeatNoticeKind,
    SignedAttendance,
    SignedSeatNotice,
    Verdict,
)
from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState, start
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest, HotSignature, PeerId, RoundId, Signature
from assay.testing import messages, run, signed
from assay.testing.members import a_deployment, a_digest, a_hot_key, name_of, peer
from assay.testing.messages import Signed
from assay.testing.signed import NODES, VERIFIERS, a_spec, by_peer
from assay.testing.specs import a_rule
from tests.a_drand import a_network, a_signature
from tests.chain.a_block import a_final_result
from tests.simulation.world import World

pytestmark = pytest.mark.slow

SPEC, DEPLOYMENT = a_spec(audit=replace(a_spec().audit, drand=a_network())), a_deployment()
RUN = run_id_of(SPEC)
SIGNER = Signed(Domain(SPEC.deployment_id, RUN))
Edit = Callable[[dict[str, Any]], None]


def a_whole_chain(
    accuse: str = "",
    signer: Signed = SIGNER,
    spec: RunSpec = SPEC,
    notices: Mapping[int, tuple[tuple[str, SeatNoticeKind], ...]] = MappingProxyType({}),
    task: int = -1,
) -> tuple[list[CertifiedManifest], dict[int, Settled]]:
    """A finished chain and its settlements; every verifier accuses every step of the node named.

    task: A round of nora's known-answer task, which is found false.
    """
    run_id = run_id_of(spec)
    run_state, links, pays, previous = start(spec, run_id), [], {}, NO_DIGEST
    for round_id in range(spec.ordered.last_round + 1):
        signer = replace(signer, configuration=run_state.rotation.configuration)
        said = [
            SeatNotice(run_id=run_id, round=RoundId(round_id), holder=peer(name), kind=kind)
            for name, kind in notices.get(round_id, ())
        ]
        votes = {
            step: dict.fromkeys(
                VERIFIERS,
                Outcome.MISMATCH
                if (accuse and step[1] == peer(accuse)) or step == (task, peer("nora"))
                else Outcome.MATCH,
            )
            for step in run_state.audits
        }
        nodes = [name for name in NODES if peer(name) in run_state.active]
        drand = a_signature(run_state.drand_next) if run_state.drand_next else b""
        manifest = signed.a_manifest(
            run_state,
            nodes,
            votes,
            signer=signer,
            drand=drand,
            drand_next=round_id + 7,
            **task_messages(run_state, task, signer),
            seat_notices=tuple(
                SignedSeatNotice(notice=one, signature=signer.signature(one.holder, one)) for one in said
            ),
        )
        if spec.reserves:
            check_place(run_state, manifest)
        parent = digest(links[-1].block) if links else NO_DIGEST
        links.append(signed.a_certified(manifest, parent, signer=signer))
        run_state = advance(run_state, manifest)
        for epoch in range(spec.epochs):
            if spec.ordered.settled_at(epoch) == round_id:
                table = settle(run_state, epoch)
                result = epoch_result(spec, table, a_digest("model"), previous, 1)
                previous = result_digest(DEPLOYMENT, result)
                pays[epoch] = Settled(
                    digest=previous,
                    result=result,
                    certificate=a_certificate(result, names_of(spec)),
                    settlement=table,
                    anchor=a_final_result(DEPLOYMENT, result),
                )
    return links, pays


def task_messages(run_state: RunState, task: int, signer: Signed) -> dict[str, Any]:
    """Nora's announcement in round 0, and what shows that her step of this round was a task."""
    tasks = [(a_digest("salt"), RoundId(task), peer("nora"))]
    audit = run_state.audits.get(tasks[0][1:])
    if task >= 0 and not run_state.round:
        root = known_answer_root(tasks)
        said = run.an_attendance(run_state, peer("nora"), AttendanceKind.TASKS, root).attendance
        signature = signer.signature(peer("nora"), said)
        return {"attendance": (SignedAttendance(attendance=said, signature=signature),)}
    if audit is not None and may_show_known_answer(run_state.spec.audit, audit, int(run_state.round)):
        return {"known_answers": (known_answer_proofs(run_state.run_id, tasks)[0],)}
    return {}


def names_of(spec: RunSpec) -> list[str]:
    """A quorum of those whose accounts sign a run's results."""
    return [name_of(one.peer) for one in spec.judges][: quorum(len(spec.judges))]


def a_certificate(result: EpochResult, names: list[str] = VERIFIERS[:3]) -> bytes:
    domain = DEPLOYMENT.domain(EpochResult)
    return certificate(DEPLOYMENT.digest(result), [sign(result, domain, a_hot_key(name)) for name in names])


@pytest.fixture(scope="module")
def chain() -> tuple[list[CertifiedManifest], dict[int, Settled]]:
    return a_whole_chain()


@pytest.fixture(scope="module")
def text(chain: tuple[list[CertifiedManifest], dict[int, Settled]]) -> str:
    return make_receipt(SPEC, RUN, DEPLOYMENT, *chain, 1, peer("nora"))


def edited(text: str, edit: Edit) -> bytes:
    told = copy.deepcopy(json.loads(text))
    edit(told)
    return json.dumps(told).encode()


def checked(text: str) -> Checked:
    return check_receipt(text.encode())


def test_a_receipt_shows_step_quorum_ruling_and_pay_from_the_file_alone(text, chain):
    found = check_receipt(text.encode(), run_id=RUN, verifiers=list(SPEC.verifier_peers))

    commit = found.commit.commit
    assert (commit.node, commit.round, found.run_id) == (peer("nora"), 1, RUN)
    assert (found.signers, found.last_round) == (3, SPEC.ordered.last_round)
    assert found.audit is not None
    assert found.audit.ruling is AuditStatus.PASSED
    table = chain[1][0].settlement
    assert found.paid is not None
    assert found.paid.amount == next(r.amount for r in table.rows if r.peer == peer("nora"))
    block = found.paid.anchor
    assert block is not None and (block.number, block.time_s) == (7, 0x65)
    assert block.hash == keccak(a_final_result(DEPLOYMENT, chain[1][0].result).header)


def test_every_step_of_the_run_has_a_receipt_with_the_ruling_of_the_whole_fold():
    links, pays = a_whole_chain(accuse="mallory")
    run_state, rulings = start(SPEC, RUN), {}
    for link in links:
        run_state = advance(run_state, link.manifest)
        rulings |= {step: (a.ruling if a.verdicts else None) for step, a in run_state.audits.items()}
    seen = set()
    for link in links:
        for one in link.manifest.commits:
            step = (one.commit.round, one.commit.node)
            found = checked(make_receipt(SPEC, RUN, DEPLOYMENT, links, pays, int(step[0]), step[1]))
            ruling = found.audit.ruling if found.audit else None
            assert ruling == rulings.get(step)
            seen.add(ruling)
    assert {AuditStatus.PASSED, AuditStatus.CONFIRMED, AuditStatus.SUPERSEDED} <= seen
    bad = checked(make_receipt(SPEC, RUN, DEPLOYMENT, links, pays, 0, peer("mallory")))
    assert bad.paid is not None
    assert (bad.paid.amount, bad.paid.epoch) == (None, 0)  # the table was signed, and has no row of it


def test_a_step_that_was_drawn_without_replacement_has_a_receipt():
    spec = replace(SPEC, data=replace(SPEC.data, replaces=False))
    run_id, node = run_id_of(spec), max(SPEC.nodes, key=lambda member: member.peer).peer
    chain = a_whole_chain(signer=Signed(Domain(spec.deployment_id, run_id)), spec=spec)

    found = checked(make_receipt(spec, run_id, DEPLOYMENT, *chain, 1, node))

    assert found.commit.commit.seat == len(SPEC.nodes) - 1


def test_a_receipt_whose_row_was_dropped_does_not_say_that_its_node_has_none(text):
    found = check_receipt(edited(text, lambda told: told["pay"].update(row=None, proof=[])))

    (line,) = (line for line in checked_lines(found, is_run_known=False) if line.startswith("pay "))
    assert "in this receipt: that does not prove" in line


def test_the_fee_is_not_the_pay_of_a_node_that_joined_with_the_account_it_goes_to(chain):
    table, treasury = chain[1][0].settlement, SPEC.money.treasury
    index = next(at for at, row in enumerate(table.rows) if row.role == "fee")
    row = PaidRow(index=index, account=evm_address(treasury), amount=table.rows[index].amount)
    pay = replace(pay_of(chain[1][0], peer("nora")), row=row, proof=table.tree().proof(index))

    with pytest.raises(IntegrityError, match=r"^pay: a row of .*, which receives the fee"):
        check_pay(pay, SPEC, RUN, DEPLOYMENT, 1, treasury)


def test_a_receipt_says_from_which_rate_on_the_step_was_drawn(chain):
    links, pays = chain
    run_state = start(SPEC, RUN)
    for link in links[:3]:
        run_state = advance(run_state, link.manifest)
    seed = next(audit.seed for audit in run_state.audits.values() if audit.round == 1)

    found = checked(make_receipt(SPEC, RUN, DEPLOYMENT, links, pays, 1, peer("nora")))

    assert is_drawn(seed, peer("nora"), found.drawn_from_ppm)
    assert not is_drawn(seed, peer("nora"), found.drawn_from_ppm - 1)
    assert (found.shares, found.drand) == (len(VERIFIERS), 8)


def test_a_receipt_without_a_settled_epoch_says_nothing_about_pay(chain):
    found = checked(make_receipt(SPEC, RUN, DEPLOYMENT, chain[0], {}, 1, peer("nora")))
    assert found.paid is None


def test_a_receipt_made_as_soon_as_the_audit_is_over_ends_with_its_last_link(chain):
    last = window(SPEC, 1)[1]

    found = checked(make_receipt(SPEC, RUN, DEPLOYMENT, chain[0][: last + 1], {}, 1, peer("nora")))

    assert found.last_round == last


TESTED = replace(SPEC, rounds=20, audit=replace(SPEC.audit, known_answer_count=1))


@pytest.mark.parametrize("round_id", [2, 3])
def test_a_receipt_of_a_known_answer_task_needs_no_manifest_from_before_the_step(round_id):
    """Which announced the list that it is on: a quorum certified the manifest that shows it."""
    signer = Signed(Domain(TESTED.deployment_id, run_id_of(TESTED)))
    links, pays = a_whole_chain("", signer, TESTED, task=3)

    found = checked(make_receipt(TESTED, run_id_of(TESTED), DEPLOYMENT, links, pays, round_id, peer("nora")))

    assert found.audit is not None
    ruling = AuditStatus.KNOWN_ANSWER if round_id == 3 else AuditStatus.PASSED
    assert (found.audit.ruling, found.audit.is_known_answer) == (ruling, round_id == 3)


def test_a_receipt_with_a_task_that_is_on_no_list_of_the_ordered_length_is_refused(monkeypatch):
    longer = replace(known_answer_proofs(RUN, [(a_digest("salt"), RoundId(3), peer("nora"))])[0], path=(RUN,))
    signer = Signed(Domain(TESTED.deployment_id, run_id_of(TESTED)))
    monkeypatch.setitem(
        globals(), "known_answer_proofs", lambda *_: [replace(longer, run_id=signer.domain.run_id)]
    )
    links, pays = a_whole_chain("", signer, TESTED, task=3)

    with pytest.raises(IntegrityError, match=r"known-answer task of .*: proof of leaf 0 has 1 hashes"):
        checked(make_receipt(TESTED, run_id_of(TESTED), DEPLOYMENT, links, pays, 3, peer("nora")))


def test_there_is_no_receipt_of_a_step_that_was_not_accepted(chain):
    links, pays = chain
    with pytest.raises(ValueError, match="no accepted step"):
        make_receipt(SPEC, RUN, DEPLOYMENT, links, pays, 6, peer("nora"))
    with pytest.raises(ValueError, match="no accepted step"):
        make_receipt(SPEC, RUN, DEPLOYMENT, links, pays, 1, peer("nobody"))  # in a round of others' steps
    others = tuple(one for one in links[1].manifest.commits if one.commit.node != peer("nora"))
    without = replace(links[1], manifest=replace(links[1].manifest, commits=others))
    with pytest.raises(ValueError, match="no accepted step"):
        make_receipt(SPEC, RUN, DEPLOYMENT, [links[0], without, *links[2:]], pays, 1, peer("nora"))


def test_there_is_no_receipt_of_a_step_on_data_that_only_its_node_has(text, monkeypatch):
    """Nothing in it shows the batch."""
    monkeypatch.setattr(RunSpec, "brings_data", lambda _spec, node: node == peer("nora"))
    with pytest.raises(IntegrityError, match="which no receipt shows"):
        checked(text)


def flip(hexadecimal: str, at: int = -1) -> str:
    body = bytearray(bytes.fromhex(hexadecimal))
    body[at] ^= 1
    return bytes(body).hex()


def relink(told: dict[str, Any], position: int, **changes: Any) -> None:
    link = decode(CertifiedManifest, bytes.fromhex(told["links"][position]))
    told["links"][position] = encode(replace(link, **changes)).hex()


def too_few(told: dict[str, Any]) -> None:
    whole = decode(CertifiedManifest, bytes.fromhex(told["links"][1])).certificate
    few = replace(whole, verifiers=whole.verifiers[:2], signatures=whole.signatures[:2])
    relink(told, 1, certificate=few)


def other_manifest(told: dict[str, Any]) -> None:
    manifest = decode(CertifiedManifest, bytes.fromhex(told["links"][1])).manifest
    relink(told, 1, manifest=replace(manifest, aggregate=Digest(bytes(32))))


def other_block(told: dict[str, Any]) -> None:
    block = decode(Block, bytes.fromhex(told["headers"][0][0]))
    told["headers"][0][0] = encode(replace(block, manifest=Digest(bytes(32)))).hex()


def short_header(told: dict[str, Any]) -> None:
    whole = decode(QuorumCertificate, bytes.fromhex(told["headers"][-1][1]))
    few = replace(whole, verifiers=whole.verifiers[:2], signatures=whole.signatures[:2])
    told["headers"][-1][1] = encode(few).hex()


def flip_link(told: dict[str, Any]) -> None:
    told["links"][1] = flip(told["links"][1])


def flip_header(told: dict[str, Any]) -> None:
    told["headers"][0][1] = flip(told["headers"][0][1])


def flip_proof(told: dict[str, Any]) -> None:
    told["pay"]["proof"][0] = flip(told["pay"]["proof"][0])


def repeat_header(told: dict[str, Any]) -> None:
    told["headers"][1] = told["headers"][0]


def few_hot_keys(told: dict[str, Any]) -> None:
    told["pay"]["certificate"] = told["pay"]["certificate"][: 2 * 65 * 2]


def other_result() -> EpochResult:
    """Of epoch 0, with another total."""
    zero = Digest(bytes(32))
    return EpochResult(
        deployment_id=SPEC.deployment_id, run_id=RUN, epoch=0, set_version=1, prev_result=zero, root=zero,
        table_hash=zero, model_hash=zero, total=1,
    )  # fmt: skip


EDITS: dict[str, tuple[Edit, str]] = {
    "another format": (lambda t: t.update(format="assay/step-receipt/3"), "^format: "),
    "another file": (lambda t: t.clear(), "^format: none, expected .*: a file of `assay receipt make`"),
    "a field more": (lambda t: t.update(more=1), "^receipt: 'more': unknown"),
    "a field less": (lambda t: t.pop("headers"), "^receipt: headers: missing"),
    "another run id": (lambda t: t.update(run_id="00" * 32), "^run_id: it does not follow"),
    "another round": (lambda t: t.update(round=2), "^links?"),
    "a round that is none": (lambda t: t.update(round=-1), "^round: "),
    "a round that is true": (lambda t: t.update(round=True), "^receipt: round: True, expected a whole"),
    "a round after training": (lambda t: t.update(round=6), "^round: 6, the run trains for 6"),
    "a node unknown": (lambda t: t.update(node="ab" * 32), "^node: abababab is no node"),
    "a node in capitals": (lambda t: t.update(node=t["node"].upper()), "^receipt: node: .* lower-case"),
    "another spec": (lambda t: t.update(spec=flip(t["spec"])), "^(spec|run_id): "),
    "a spec of steps without end": (
        lambda t: t.update(
            spec=encode(
                replace(SPEC, rule=a_rule(sequences=1 << 40), data=replace(SPEC.data, tokens=1 << 60))
            ).hex()
        ),
        "^spec: a step takes 1099511627776 windows, at most 65536",
    ),
    "a spec with a tail": (lambda t: t.update(spec=t["spec"] + "00"), "^spec: "),
    "another chain": (lambda t: t["deployment"].update(chain_id=1), "^commit: .*statement"),
    "another deployment": (
        lambda t: t["deployment"].update(deployment_id="00" * 32),
        "^deployment: another one",
    ),
    "a court elsewhere": (
        lambda t: t["deployment"].update(slash_court=t["deployment"]["token"]),
        "^commit: .*hot key|^commit: .*statement",
    ),
    "an address that is none": (
        lambda t: t["deployment"].update(epoch_settlement=5), "^receipt: deployment.epoch_settlement: 5"
    ),
    "an address of no bytes": (lambda t: t["deployment"].update(token="0x"), "^receipt: deployment.token"),
    "a court of no bytes": (lambda t: t["deployment"].update(slash_court="0x"), "^receipt: deployment.sl"),
    "a chain below 0": (lambda t: t["deployment"].update(chain_id=-1), "^receipt: deployment.chain_id"),
    "a model of one byte": (lambda t: t["pay"]["result"].update(model_hash="00"), "^pay: "),
    "a set below 0": (lambda t: t["pay"]["result"].update(set_version=-1), "^pay: "),
    "a row below 0": (lambda t: t["pay"]["row"].update(index=-1), "^pay: "),
    "a sibling of one byte": (lambda t: t["pay"]["proof"].__setitem__(0, "00"), "^pay: proof: "),
    "a proof of 65 siblings": (
        lambda t: t["pay"]["proof"].extend(["00" * 32] * (65 - len(t["pay"]["proof"]))), "^pay: proof: "
    ),
    "a header of one part": (lambda t: t["headers"][0].pop(), r"^receipt: headers\[0\]: 1 items, expected 2"),
    "a link less": (lambda t: t["links"].pop(), "^links: 9 expected"),
    "links swapped": (lambda t: t["links"].insert(3, t["links"].pop(2)), "^link of round 2: is of round 3"),
    "a link twice": (lambda t: t["links"].__setitem__(4, t["links"][3]), "^link of round 4: is of round 3"),
    "a signature of a link": (flip_link, "^link of round 1: .*signature"),
    "too few signers": (too_few, "^link of round 1: certificate: 2 signatures, expected 3"),
    "another manifest": (other_manifest, "^link of round 1: .*another manifest"),
    "a link that is text": (lambda t: t["links"].__setitem__(1, "no"), r"^receipt: links\[1\]: 'no'"),
    "a header less": (lambda t: t["headers"].pop(0), "^header of round 9: does not extend"),
    "a header more": (lambda t: t["headers"].append(t["headers"][-1]), "^headers: at most"),
    "another block": (other_block, "^header of round 9: the certificate is not a finalisation"),
    "a header signature": (flip_header, "^header of round 9: .*signature"),
    "too few under a header": (short_header, "^header of round 12: certificate: 2 signatures"),
    "a header twice": (repeat_header, "^header of round 10: does not extend"),
    "more pay": (lambda t: t["pay"]["row"].update(amount=10**9), "^pay: the row is not"),
    "another row": (lambda t: t["pay"]["row"].update(index=9), "^pay: the row is not"),
    "a row past every table": (lambda t: t["pay"]["row"].update(index=1 << 300), "^pay: "),
    "another account": (lambda t: t["pay"]["row"].update(account="0x" + "11" * 20), "^pay: a row of 0x11"),
    "another proof": (flip_proof, "^pay: the row is not"),
    "another root": (lambda t: t["pay"]["result"].update(root="00" * 32), "^pay: .*signer"),
    "another epoch": (lambda t: t["pay"].update(epoch=1), "^pay: not of epoch 0"),
    "another total": (lambda t: t["pay"]["result"].update(total=1), "^pay: .*signer"),
    "a total that is no number": (
        lambda t: t["pay"]["result"].update(total=1.5), "^receipt: pay.result.total: 1.5"
    ),
    "an anchor in another block": (lambda t: t["pay"]["anchor"].update(header="c0"), "^pay: .*fields"),
    "an anchor of another event": (
        lambda t: t["pay"].update(anchor=plain(a_final_result(DEPLOYMENT, other_result()))),
        "^pay: anchor: ",
    ),
    "an anchor that is none": (lambda t: t["pay"].update(anchor=5), "^receipt: pay.anchor: 5, expected"),
    "too few hot keys": (few_hot_keys, "^pay: 2 signatures; 3 of 4"),
    "an amount that is none": (lambda t: t["pay"]["row"].update(amount=True), "^receipt: pay.row.amount: T"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_a_change_of_any_part_is_refused_and_the_part_is_named(text, name):
    edit, words = EDITS[name]
    with pytest.raises(IntegrityError, match=words):
        check_receipt(edited(text, edit))


def test_no_single_byte_of_any_signed_part_can_be_changed(text):
    told = json.loads(text)
    for part in ("spec", "links", "headers"):
        bodies = told[part] if part != "spec" else [told[part]]
        for position in (0, len(bodies) - 1):
            body = bodies[position] if part != "headers" else bodies[position][0]
            for at in range(0, len(body) // 2, max(len(body) // 2 // 12, 1)):
                changed = copy.deepcopy(told)
                if part == "spec":
                    changed["spec"] = flip(body, at)
                elif part == "links":
                    changed["links"][position] = flip(body, at)
                else:
                    changed["headers"][position][0] = flip(body, at)
                with pytest.raises(IntegrityError):
                    check_receipt(json.dumps(changed).encode())


FORGED = {
    "commit": r"^commit: ",
    "hot": r"^commit: .*hot key",
    "batch_root": r"^commit: its batch",
    "tokens": r"^commit: 1 tokens, expected",
    "parent": r"^commit: of another run, round or parent",
    "reveal": r"^beacon: ",
    "drand": r"^beacon: drand round 8: .* is not its signature",
    "verdict": r"^verdict in round",
    "turn": r"^verdict in round .* may not commit to a verdict",
    "link": r"^link of round 2: does not extend the link before",
    "first link": r"^link of round 0: does not extend the spec",
}


@dataclass(frozen=True)
class Forger(Signed):
    """Signs as everybody, one kind of message wrongly."""

    part: str = ""

    def signature(self, member: PeerId, message: Message) -> Signature:
        if self.part == "verdict" and isinstance(message, Verdict):
            return Signature(bytes(64))
        is_other = self.part == "commit" and isinstance(message, Commit) and member == peer("nora")
        return super().signature(peer("nils") if is_other else member, message)

    def statement(self, spec: RunSpec, commit: Commit) -> HotSignature:
        if self.part == "hot" and commit.node == peer("nora"):
            return sign_commit(spec, self.deployment, commit, a_hot_key("nils"))
        return super().statement(spec, commit)


@pytest.mark.parametrize("part", FORGED)
def test_what_even_a_quorum_signed_is_checked_again(part, monkeypatch):
    """A quorum that signs a manifest with a forged part in it cannot make a receipt of it."""
    commit, reveal, verdict = signed.a_commit, signed.a_reveal, messages.a_verdict
    wrong = {"batch_root": Digest(bytes(32)), "tokens": 1, "parent": Digest(bytes(32))}
    if part in wrong:
        forged = {part: wrong[part]}
        monkeypatch.setattr(signed, "a_commit", lambda name, h, **c: commit(name, h, **{**c, **forged}))
    elif part == "reveal":
        monkeypatch.setattr(
            signed, "a_reveal", lambda _, h, verifier: replace(reveal("vera", h), verifier=verifier)
        )
    elif part == "drand":
        monkeypatch.setitem(globals(), "a_signature", lambda number: a_drand.a_signature(number + 1))
    elif part == "turn":  # whoever is asked first, the one after him answers
        names = map(peer, VERIFIERS)
        after = dict(zip(names, map(peer, VERIFIERS[1:] + VERIFIERS[:1]), strict=True))
        monkeypatch.setattr(run, "a_verdict", lambda audit, one, *a, **k: verdict(audit, after[one], *a, **k))
    links, pays = a_whole_chain(signer=Forger(SIGNER.domain, part=part))
    for at in {"link": [2], "first link": [0]}.get(part, []):
        torn = replace(links[at].manifest, parent=Digest(bytes(32)))
        links[at] = signed.a_certified(torn, links[at].block.parent, signer=SIGNER)

    with pytest.raises(IntegrityError, match=FORGED[part]):
        checked(make_receipt(SPEC, RUN, DEPLOYMENT, links, pays, 1, peer("nora")))


# ---- a seat that changed hands


RESERVES = by_peer(["rosa", "ruth"])
ROTATING = replace(SPEC, seed=1, rounds=15, reserves=tuple(signed.a_member(name) for name in RESERVES))
OUT = VERIFIERS[1]  # it resigns in round 4


@cache
def a_rotated_chain() -> tuple[list[CertifiedManifest], dict[int, Settled]]:
    """A finished chain in whose middle a seat went to a reserve, and its settlements."""
    ready = tuple((name, SeatNoticeKind.READY) for name in RESERVES)
    notices = {0: ready, 4: ((OUT, SeatNoticeKind.RESIGN),)}
    signer = Signed(Domain(ROTATING.deployment_id, run_id_of(ROTATING)))
    return a_whole_chain("", signer, ROTATING, notices)


@pytest.fixture(scope="module")
def rotated() -> tuple[list[CertifiedManifest], dict[int, Settled]]:
    return a_rotated_chain()


def a_rotated_receipt(rotated: tuple[list[CertifiedManifest], dict[int, Settled]], round_id: int) -> str:
    return make_receipt(ROTATING, run_id_of(ROTATING), DEPLOYMENT, *rotated, round_id, peer("nora"))


def test_every_step_before_and_after_a_hand_over_has_a_receipt_that_verifies(rotated):
    links, _ = rotated
    (handed,) = (int(link.manifest.round) for link in links if link.manifest.hand_over)
    rounds, judged = range(ROTATING.rounds), [0, 0]
    assert rounds[0] < handed < rounds[-1], "it is in the middle of the training"
    for round_id in rounds:
        found = checked(a_rotated_receipt(rotated, round_id))
        assert found.audit is None or found.audit.ruling is AuditStatus.PASSED
        judged[round_id > handed] += found.audit is not None
        assert (found.signers, found.last_round) == (3, len(links) - 1)
    assert min(judged) > 0


def other_seat(told: dict[str, Any]) -> None:
    link = decode(CertifiedManifest, bytes.fromhex(told["hand_overs"][0]))
    (given,) = link.manifest.hand_over
    changed = replace(link.manifest, hand_over=(replace(given, seat=peer(VERIFIERS[2])),))
    told["hand_overs"][0] = encode(replace(link, manifest=changed)).hex()


def by_the_holders_after_it(told: dict[str, Any]) -> None:
    """What a quorum of the keys of before made final, the keys of after cannot certify."""
    link = decode(CertifiedManifest, bytes.fromhex(told["hand_overs"][0]))
    signer = Signed(
        Domain(ROTATING.deployment_id, run_id_of(ROTATING)),
        configuration=FIRST.after(link.manifest.hand_over),
    )
    told["hand_overs"][0] = encode(signed.a_certified(link.manifest, link.block.parent, signer=signer)).hex()


ROTATION_EDITS: dict[str, tuple[Edit, str]] = {
    "left out": (
        lambda t: t["hand_overs"].clear(),
        "^(link|header) of round .* (configuration 1|finalisation|signature)",
    ),
    "twice": (lambda t: t["hand_overs"].append(t["hand_overs"][0]), "^hand-over 1: .*configuration 0"),
    "a manifest without one": (
        lambda t: t["hand_overs"].insert(0, encode(a_rotated_chain()[0][0]).hex()),
        "^hand-over 0: .*round 0 hands over 0 seats",
    ),
    "another seat": (other_seat, "^hand-over 0: .*the block is about another manifest"),
    "certified by its successors": (by_the_holders_after_it, "^hand-over 0: .*signature"),
    "no message": (lambda t: t["hand_overs"].append("00"), "^hand-over 1: "),
}  # fmt: skip


@pytest.mark.parametrize("name", ROTATION_EDITS)
@pytest.mark.parametrize("round_id", [0, ROTATING.rounds - 1])
def test_a_hand_over_that_the_holders_before_it_did_not_certify_is_refused(rotated, name, round_id):
    edit, words = ROTATION_EDITS[name]
    with pytest.raises(IntegrityError, match=words):
        check_receipt(edited(a_rotated_receipt(rotated, round_id), edit))


def test_a_whole_receipt_of_another_run_or_of_other_verifiers_is_refused(text):
    with pytest.raises(IntegrityError, match=r"^run_id: .* expected"):
        check_receipt(text.encode(), run_id=Digest(bytes(32)))
    with pytest.raises(IntegrityError, match=r"^spec: its verifiers"):
        check_receipt(text.encode(), verifiers=[PeerId(bytes(32)), *SPEC.verifier_peers[1:]])


def test_what_is_no_receipt_at_all_is_refused(text):
    for body in (b"", b"\xff", b"[]", b"null", b"[" * 100_000, b'{"format": 1}'):
        with pytest.raises(IntegrityError):
            check_receipt(body)


@pytest.mark.slow
def test_nothing_that_checks_a_receipt_needs_torch(text, tmp_path: Path):
    path = tmp_path / "receipt.json"
    path.write_text(text)
    code = (
        "import sys; from assay.cli.main import run; sys.argv = ['assay', 'receipt', 'verify', sys.argv[1]]\n"
        "try: run()\nexcept SystemExit as end: assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "PASSED" in done.stdout


def test_each_final_block_names_the_final_block_before_even_through_storms():
    """What headers rest on: a manifest is final in one block only, and the next round's block extends it."""
    skipped = 0
    for seed in range(5):
        world = World(seed=seed)
        world.run()
        for one in world.honest.values():
            for before, after in pairwise(one.chain):
                assert after.block.parent == digest(before.block), f"World(seed={seed})"
                skipped += after.block.iteration != before.block.iteration + 1
    assert skipped > 0  # iterations that ended without a block lie between some of them
