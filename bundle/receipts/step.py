"""Step receipt: one file that proves one step of one node, checkable offline and without torch.

Room: bundle (pure). The file is JSON; everything signed is in it as the hexadecimal of its CBOR. It carries
the whole certified manifests that may contain verdicts on the step, or on an earlier one whose fault would
supersede its audit; and of every later one the block and its certificate, which finality needs.

    spec -> run id;  commit <- node's keys;  links, headers <- a quorum's certificates, up to the last
    hand-overs, each certified by the keys of before -> by whose key a seat signed in a round
    beacon <- VRF proofs;  verdicts <- auditors' keys -> audit status;  pay: receipt_pay.py
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from assay.bundle.finished import Settled
from assay.bundle.receipts.pay import Paid, Pay, check_pay, pay_of
from assay.chain.addresses import Deployment
from assay.chain.commit_statement import check_commit_statement
from assay.ledger.settlement.results import run_id_of
from assay.participant.files.index import IntegrityError
from assay.participant.links import check_messages
from assay.protocol.agreement.configurations import number_of
from assay.protocol.agreement.finality import check_certified
from assay.protocol.agreement.quorum import check_certificate
from assay.protocol.auditing.audits import Audit
from assay.protocol.auditing.commitments import shown_root
from assay.protocol.auditing.draws import audit_seed, beacon_input, is_drawn
from assay.protocol.encoding.codec import decode, digest, encode
from assay.protocol.encoding.json_text import parse_json, plain, read_plain
from assay.protocol.errors import AssayError, MalformedMessage
from assay.protocol.identity import Domain, verify
from assay.protocol.messages import (
    Block,
    CertifiedManifest,
    Commit,
    Manifest,
    Member,
    QuorumCertificate,
    SignedCommit,
    VoteKind,
)
from assay.protocol.params import PPM, RunSpec, check_spec
from assay.protocol.randomness import vrf
from assay.protocol.randomness.drand import check_signature, randomness
from assay.protocol.rotation import UNROTATED, Rotation
from assay.protocol.run_state import NodeRecord, RunState, VerifierRecord
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from assay.training.data.batches import batch_positions, batch_root

FORMAT = "assay/step-receipt/6"
RECEIPT_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReceipt:
    """The content of the file. Messages are in CBOR."""

    format: str
    run_id: Digest
    round: int
    node: PeerId
    spec: bytes
    deployment: Deployment
    hand_overs: tuple[bytes, ...]  # every certified manifest that handed a verifier's seat over, ascending
    joined: bytes | None  # the certified manifest that admitted the node; None if the spec names it
    links: tuple[bytes, ...]
    headers: tuple[tuple[bytes, bytes], ...]  # blocks and their certificates
    pay: Pay | None  # None: its epoch is not settled


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a valid receipt proves. audit: None if no verdict on the step is in the chain."""

    spec: RunSpec
    run_id: Digest
    deployment: Deployment
    member: Member  # whose step it is
    commit: SignedCommit
    signers: int  # the fewest under any certificate
    last_round: int
    audit: Audit | None
    drawn_from_ppm: int  # the step was drawn if the node's rate was at least this
    shares: int  # of verifiers, from which the draw followed
    drand: int  # the drand round in the draw; 0: none
    paid: Paid | None  # None where the epoch's pay is not in the receipt


def make_receipt(
    spec: RunSpec,
    run_id: Digest,
    deployment: Deployment,
    links: Sequence[CertifiedManifest],
    settled: Mapping[int, Settled],
    round_id: int,
    node: PeerId,
) -> str:
    """The receipt of a step, from a whole finished chain.

    Raises:
        ValueError: the chain has no such step.
    """
    if not any(
        s.commit.node == node for link in links[round_id : round_id + 1] for s in link.manifest.commits
    ):
        raise ValueError(f"no accepted step of node {node.hex()[:8]} in round {round_id}")
    joined = next((link for link in links[:round_id] if _admitted(link.manifest, node)), None)
    opened, closed = window(spec, round_id)
    epoch = round_id // spec.money.epoch_rounds
    receipt = StepReceipt(
        format=FORMAT,
        run_id=run_id,
        round=round_id,
        node=node,
        spec=encode(spec),
        deployment=deployment,
        hand_overs=tuple(encode(link) for link in links if link.manifest.hand_over),
        joined=None if joined is None else encode(joined),
        links=tuple(encode(link) for link in links[opened : closed + 1]),
        headers=tuple((encode(link.block), encode(link.certificate)) for link in links[closed + 1 :]),
        pay=pay_of(settled[epoch], node) if epoch in settled else None,
    )
    return json.dumps(plain(receipt), indent=1) + "\n"


def window(spec: RunSpec, round_id: int) -> tuple[int, int]:
    """The first and last certified manifest from which the audit status of a step of this round follows.

    An audit ends `span` rounds after its step. An earlier fault that ended before the round would have
    banned the node; so no step older than `span` rounds can still supersede this one's audit.
    """
    span = spec.closing_rounds
    return max(round_id - span, 0), round_id + span


def check_receipt(
    text: bytes, *, run_id: Digest | None = None, verifiers: Sequence[PeerId] | None = None
) -> Checked:
    """Check every part of a receipt.

    Args:
        text: The file.
        run_id: The run's id on chain, if the caller knows it.
        verifiers: The run's verifiers, if the caller knows them.

    Raises:
        IntegrityError: the first check that fails; the message begins with its part.
    """
    receipt = _receipt(text)
    spec = _spec(receipt)
    own_run_id = run_id_of(spec)
    if own_run_id != receipt.run_id:
        raise IntegrityError("run_id: it does not follow from the spec")
    if run_id is not None and run_id != own_run_id:
        raise IntegrityError(f"run_id: {own_run_id.hex()}, expected {run_id.hex()}")
    if verifiers is not None and sorted(verifiers) != list(spec.verifier_peers):
        raise IntegrityError("spec: its verifiers are not the ones expected")
    deployment, round_id, node = receipt.deployment, receipt.round, receipt.node
    if deployment.deployment_id != spec.deployment_id:
        raise IntegrityError("deployment: another one than the spec's")
    seats = _seats(receipt.hand_overs, spec, own_run_id)
    whole = _links(receipt.links, spec, own_run_id, round_id, seats)
    links = whole[round_id - int(whole[0].manifest.round) :]  # from the step's on
    headers = _headers(receipt.headers, spec, own_run_id, whole[-1], seats)
    member = _member(receipt, spec, own_run_id, node, seats)
    signed = _commit(links[0], spec, own_run_id, deployment, round_id, member)
    seed = _seed(links, spec, own_run_id, seats)
    audit = _audit(whole, spec, own_run_id, signed, member, seats)
    paid = check_pay(receipt.pay, spec, own_run_id, deployment, round_id, member.account)
    certificates = [*(link.certificate for link in whole), *(certificate for _, certificate in headers)]
    return Checked(
        spec=spec,
        run_id=own_run_id,
        deployment=deployment,
        member=member,
        commit=signed,
        signers=min(len(certificate.verifiers) for certificate in certificates),
        last_round=int(headers[-1][0].round if headers else links[-1].block.round),
        audit=audit,
        drawn_from_ppm=0
        if links[1].manifest.is_partial
        else bisect_left(range(PPM + 1), True, key=lambda rate: is_drawn(seed, node, rate)),
        shares=len(links[1].manifest.beacon_shares),
        drand=links[0].manifest.drand_next if links[1].manifest.drand else 0,
        paid=paid,
    )


# ---- parts, in the order in which they are checked


def _receipt(text: bytes) -> StepReceipt:
    if len(text) > RECEIPT_BYTES_MAX:
        raise IntegrityError(f"receipt: {len(text)} bytes, at most {RECEIPT_BYTES_MAX} expected")
    try:
        found = parse_json(text)
        given = found.get("format") if isinstance(found, dict) else None
        if given != FORMAT:
            arrived = "none" if given is None else f"{given!r:.60}"
            raise IntegrityError(f"format: {arrived}, expected {FORMAT!r}: a file of `assay receipt make`")
        return read_plain(StepReceipt, found)
    except ValueError as error:
        raise IntegrityError(f"receipt: {error}") from None


def _spec(receipt: StepReceipt) -> RunSpec:
    try:
        spec = decode(RunSpec, receipt.spec)
        check_spec(spec)
    except (AssayError, ValueError) as error:
        raise IntegrityError(f"spec: {error}") from None
    if not 0 <= receipt.round < spec.rounds:
        raise IntegrityError(f"round: {receipt.round}, the run trains for {spec.rounds}")
    return spec


def _admitted(manifest: Manifest, node: PeerId) -> Member | None:
    """The node as this manifest admits it; None if it does not."""
    found = (signed.admission.member for signed in manifest.admissions)
    return next((member for member in found if member.peer == node), None)


def _seats(bodies: Sequence[bytes], spec: RunSpec, run_id: Digest) -> Rotation:
    """Who held the verifiers' seats, and until when: each manifest is certified by the keys of before."""
    seats = UNROTATED
    for position, body in enumerate(bodies):
        try:
            link = decode(CertifiedManifest, body)
            check_certified(
                link, Domain(spec.deployment_id, run_id), spec.verifier_peers, seats.configuration
            )
            now, given = int(link.manifest.round), link.manifest.hand_over
            if len(given) != 1 or now <= max(seats.handed, default=0):
                raise IntegrityError(f"its manifest of round {now} hands over {len(given)} seats, expected 1")
        except AssayError as error:
            raise IntegrityError(f"hand-over {position}: {error}") from None
        seats = replace(seats, configuration=seats.configuration.after(given), handed=(*seats.handed, now))
    return seats


def _member(receipt: StepReceipt, spec: RunSpec, run_id: Digest, node: PeerId, seats: Rotation) -> Member:
    """The node with its account and key: of the spec, or of the certified manifest by which it joined."""
    member = next((member for member in spec.nodes if member.peer == node), None)
    if member is None and receipt.joined is not None:
        try:
            link = decode(CertifiedManifest, receipt.joined)
            at = seats.at(int(link.manifest.round))
            check_certified(link, Domain(spec.deployment_id, run_id), spec.verifier_peers, at)
        except AssayError as error:
            raise IntegrityError(f"joined: {error}") from None
        member = _admitted(link.manifest, node)
    if member is None:
        raise IntegrityError(f"node: {node.hex()[:8]} is no node of this run")
    return member


def _links(
    bodies: Sequence[bytes], spec: RunSpec, run_id: Digest, round_id: int, seats: Rotation
) -> list[CertifiedManifest]:
    domain = Domain(spec.deployment_id, run_id)
    first, last = window(spec, round_id)
    if len(bodies) != last - first + 1:
        raise IntegrityError(f"links: {last - first + 1} expected, of rounds {first} to {last}")
    links: list[CertifiedManifest] = []
    for position, body in enumerate(bodies):
        name = f"link of round {first + position}"
        try:
            link = decode(CertifiedManifest, body)
            check_certified(link, domain, spec.verifier_peers, seats.at(first + position))
        except AssayError as error:
            raise IntegrityError(f"{name}: {error}") from None
        if link.manifest.round != first + position:
            raise IntegrityError(f"{name}: is of round {link.manifest.round}")
        if links and link.manifest.parent != digest(links[-1].manifest):
            raise IntegrityError(f"{name}: does not extend the link before")
        if not links and first == 0 and link.manifest.parent != digest(spec):
            raise IntegrityError(f"{name}: does not extend the spec")
        links.append(link)
    return links


def _headers(
    bodies: Sequence[tuple[bytes, bytes]],
    spec: RunSpec,
    run_id: Digest,
    before: CertifiedManifest,
    seats: Rotation,
) -> list[tuple[Block, QuorumCertificate]]:
    domain = Domain(spec.deployment_id, run_id)
    last = spec.ordered.last_round  # of a run that closed early, some round before
    most = last - int(before.manifest.round)
    if len(bodies) > most:
        raise IntegrityError(f"headers: at most {most} expected, up to round {last}")
    parent, headers = before.block, []
    for data, signatures in bodies:
        name, at = f"header of round {parent.round + 1}", seats.at(int(parent.round) + 1)
        try:
            block = decode(Block, data)
            certificate = decode(QuorumCertificate, signatures)
            check_certificate(certificate, domain, spec.verifier_peers, at)
        except AssayError as error:
            raise IntegrityError(f"{name}: {error}") from None
        vote = certificate.vote
        if block.run_id != run_id or block.round != parent.round + 1 or block.parent != digest(parent):
            raise IntegrityError(f"{name}: does not extend the block before")
        if (
            vote.kind is not VoteKind.FINALISE
            or number_of(block.iteration) != at.number
            or vote.block != digest(block)
            or vote.iteration not in (block.iteration, 0)
        ):
            raise IntegrityError(f"{name}: the certificate is not a finalisation of its block")
        headers.append((block, certificate))
        parent = block
    return headers


def _commit(
    link: CertifiedManifest,
    spec: RunSpec,
    run_id: Digest,
    deployment: Deployment,
    round_id: int,
    member: Member,
) -> SignedCommit:
    node = member.peer
    found = [signed for signed in link.manifest.commits if signed.commit.node == node]
    if len(found) != 1:
        raise IntegrityError(f"node: {len(found)} commits of {node.hex()[:8]} in the link, expected one")
    signed = found[0]
    commit = signed.commit
    try:
        verify(node, Domain(spec.deployment_id, run_id), commit, signed.signature)
        check_commit_statement(spec, deployment, signed, member.hot)
    except AssayError as error:
        raise IntegrityError(f"commit: {error}") from None
    if (commit.run_id, commit.round, commit.parent) != (run_id, round_id, link.manifest.parent):
        raise IntegrityError("commit: of another run, round or parent than its manifest")
    if spec.brings_data(node):
        raise IntegrityError("commit: its batch is of data that only its node has, which no receipt shows")
    try:
        positions = batch_positions(spec, node, round_id, commit.tokens, seat=commit.seat)
    except ValueError as fault:
        raise IntegrityError(f"commit: {fault}") from None
    if commit.batch_root != batch_root(spec, positions):
        raise IntegrityError("commit: its batch is not the one the spec assigns")
    return signed


def _seed(links: Sequence[CertifiedManifest], spec: RunSpec, run_id: Digest, seats: Rotation) -> Digest:
    """The seed that drew the step, from what the next manifest reveals."""
    manifest, known = links[1].manifest, set(spec.verifier_peers)
    alpha, key = (
        beacon_input(spec.deployment_id, run_id, links[0].manifest.round, manifest.parent),
        seats.at(int(manifest.round)).key,
    )
    for beacon_share in manifest.beacon_shares:
        if beacon_share.verifier not in known:
            raise IntegrityError(f"beacon: {beacon_share.verifier.hex()[:8]} is not a verifier of this run")
        try:
            vrf.verify(key(beacon_share.verifier), alpha, beacon_share.proof)
        except AssayError as error:
            raise IntegrityError(f"beacon: {error}") from None
    if manifest.drand:
        try:
            check_signature(spec.audit.drand, links[0].manifest.drand_next, manifest.drand)
        except AssayError as error:
            raise IntegrityError(f"beacon: {error}") from None
    shares = [(beacon_share.verifier, beacon_share.proof) for beacon_share in manifest.beacon_shares]
    return audit_seed(alpha, shares, drand=randomness(manifest.drand))


def _audit(
    links: Sequence[CertifiedManifest],
    spec: RunSpec,
    run_id: Digest,
    signed: SignedCommit,
    member: Member,
    seats: Rotation,
) -> Audit | None:
    """The audit as the verdicts in these manifests decide it, by the protocol's own fold.

    A fold from the middle of a chain lacks the nodes' counts of passed audits. It treats every step as
    drawn: an accepted verdict shows that its step was. Without a verdict there is no audit to report. The
    node may have announced its known-answer tasks before these manifests: then the list is the one that its
    first task shown here is on, for a quorum certified that manifest.
    """
    commit, domain = signed.commit, Domain(spec.deployment_id, run_id)
    first = links[0].manifest
    shown = (one for link in links for one in link.manifest.known_answers if one.node == commit.node)
    try:
        tasks = next((shown_root(one, spec.audit.known_answer_count) for one in shown), NO_DIGEST)
    except MalformedMessage as error:
        raise IntegrityError(f"known-answer task of {commit.node.hex()[:8]}: {error}") from None
    run_state = RunState(
        spec=spec,
        run_id=run_id,
        round=RoundId(int(first.round) + 1),
        parent=NO_DIGEST,
        chain=NO_DIGEST,
        nodes={member.peer: NodeRecord(member=member, tasks=tasks)},
        verifiers={peer: VerifierRecord() for peer in spec.seat_peers},
        audits={},
        training_rounds=spec.rounds,
        last_commits=_commits_of(first, commit.node),
    )
    audit: Audit | None = None
    for link in links[1:]:
        manifest = _about(link.manifest, commit.node, int(first.round))
        at = int(manifest.round)
        held = replace(seats, configuration=seats.at(at), handed=seats.handed[: seats.at(at).number])
        run_state, key = replace(run_state, parent=manifest.parent, rotation=held), held.configuration.key
        try:
            for committed in manifest.commitments:
                verify(key(committed.commitment.verifier), domain, committed.commitment, committed.signature)
            for judged in manifest.verdicts:
                verify(key(judged.verdict.verifier), domain, judged.verdict, judged.signature)
            check_messages(run_state, manifest)
        except AssayError as error:
            raise IntegrityError(f"verdict in round {manifest.round}: {error}") from None
        run_state = advance(run_state, manifest, digest(link.manifest))
        run_state = replace(run_state, last_commits=_commits_of(link.manifest, commit.node))
        audit = run_state.audits.get((commit.round, commit.node), audit)
    return audit if audit is not None and audit.verdicts else None


def _about(manifest: Manifest, node: PeerId, after: int) -> Manifest:
    """A manifest's messages about the audits of one node, of rounds after the first manifest's."""

    def is_about(round_id: int, peer: PeerId) -> bool:
        return peer == node and round_id >= after

    return replace(
        manifest,
        commits=(),
        commitments=tuple(s for s in manifest.commitments if is_about(s.commitment.round, s.commitment.node)),
        verdicts=tuple(s for s in manifest.verdicts if is_about(s.verdict.round, s.verdict.node)),
        sketch_openings=tuple(one for one in manifest.sketch_openings if is_about(one.round, one.node)),
        known_answers=tuple(one for one in manifest.known_answers if is_about(one.round, one.node)),
        attendance=tuple(one for one in manifest.attendance if one.attendance.node == node),
        admissions=(),
        contradictions=tuple(pair for pair in manifest.contradictions if pair.first.commit.node == node),
        appraised=(),  # they change how often a step is drawn, and this one was
        stake_reports=(),
        funding_reports=(),
        evaluations=(),
        hand_over=(),
        seat_notices=(),
        evaluation_commitments=(),
    )


def _commits_of(manifest: Manifest, node: PeerId) -> tuple[Commit, ...]:
    return tuple(signed.commit for signed in manifest.commits if signed.commit.node == node)
