"""Step receipt: one step of one node in one file that anyone can check, offline and without torch.

Room: observer (pure). The file is JSON; everything signed is in it as the hexadecimal of its CBOR. It
carries the whole links in which verdicts could stand on the step, or on an earlier one whose fault would
make its audit moot; and of every later link what finality needs: the block and its certificate.

    spec -> run id;  commit <- node's keys;  links, headers <- a quorum's certificates, up to the last
    beacon <- VRF proofs;  verdicts <- auditors' keys -> ruling;  pay row -> root <- a quorum's hot keys
"""

from __future__ import annotations

import dataclasses
import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eth_abi.exceptions import EncodingError

from ledger.deployment import Deployment
from ledger.evidence import check_commit_statement, evm_address
from ledger.payout_tree import leaf, root_of_proof
from ledger.results import SET_VERSION, run_id_of
from ledger.settlement import Settlement
from ledger.statements import EpochResult, verify_certificate
from protocol import vrf
from protocol.audits import Audit
from protocol.codec import decode, digest, encode
from protocol.drand import check_signature, randomness
from protocol.draws import audit_seed, beacon_input, is_drawn
from protocol.errors import AssayError
from protocol.finality import check_certified
from protocol.history import History, NodeRecord, VerifierRecord, advance
from protocol.identity import Domain, verify
from protocol.json_text import parse_json
from protocol.messages import (
    Block,
    CertifiedManifest,
    Commit,
    Manifest,
    QuorumCertificate,
    SignedCommit,
    VoteKind,
)
from protocol.params import PPM, RunSpec, check_spec
from protocol.quorum import check_certificate
from protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from replica.chain import check_words
from replica.index import Altered
from training.data import batch_positions, batch_root

FORMAT = "assay/step-receipt/2"
RECEIPT_BYTES_MAX = 64 << 20
_FIELDS = ("format", "run_id", "round", "node", "spec", "deployment", "links", "headers", "pay")
_PAY = ("epoch", "result", "certificate", "row", "proof")
_ROW = ("index", "account", "amount")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pay:
    """A settled epoch: what a quorum signed, and the node's row of the table if it has one."""

    result: EpochResult
    certificate: bytes
    settlement: Settlement


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a receipt that holds has shown. audit: None where no verdict on the step is in the chain."""

    spec: RunSpec
    run_id: Digest
    commit: SignedCommit
    signers: int  # the fewest under any certificate
    last_round: int
    audit: Audit | None
    drawn_from_ppm: int  # the step was drawn if the node's rate was at least this
    shares: int  # of verifiers, that the draw followed from
    drand: int  # the drand round that it followed from too; 0: none
    amount: int | None  # the row's; None without a row
    epoch: int | None  # None where the epoch's pay is not in the receipt


def make_receipt(
    spec: RunSpec,
    run_id: Digest,
    deployment: Deployment,
    links: Sequence[CertifiedManifest],
    pays: Mapping[int, Pay],
    round_id: int,
    node: PeerId,
) -> str:
    """The receipt of a step, from a whole finished chain.

    Raises:
        ValueError: the chain holds no such step.
    """
    if not any(
        s.commit.node == node for link in links[round_id : round_id + 1] for s in link.manifest.commits
    ):
        raise ValueError(f"no accepted step of node {node.hex()[:8]} in round {round_id}")
    opened, closed = window(spec, round_id)
    epoch = round_id // spec.money.epoch_rounds
    body = {
        "format": FORMAT,
        "run_id": run_id.hex(),
        "round": round_id,
        "node": node.hex(),
        "spec": encode(spec).hex(),
        "deployment": json.loads(deployment.to_json()),
        "links": [encode(link).hex() for link in links[opened : closed + 1]],
        "headers": [
            [encode(link.block).hex(), encode(link.certificate).hex()] for link in links[closed + 1 :]
        ],
        "pay": _pay_json(pays[epoch], node) if epoch in pays else None,
    }
    return json.dumps(body, indent=1) + "\n"


def window(spec: RunSpec, round_id: int) -> tuple[int, int]:
    """The first and last link that the ruling on a step of this round follows from.

    An audit ends `span` rounds after its step. Of an earlier fault that ended before the round, the node
    would have been barred; so no step older than `span` rounds can still make this one's audit moot.
    """
    span = spec.closing_rounds
    return max(round_id - span, 0), round_id + span


def check_receipt(
    text: bytes, *, run_id: Digest | None = None, verifiers: Sequence[PeerId] | None = None
) -> Checked:
    """Check all that a receipt says.

    Args:
        text: The file.
        run_id: What the chain calls the run, where the caller knows it.
        verifiers: Whom the caller takes for the run's verifiers, if he knows them.

    Raises:
        Altered: the first thing that does not hold; the message begins with its part.
    """
    told = _told(text)
    spec = _spec(told)
    if run_id_of(spec).hex() != told["run_id"]:
        raise Altered("run_id: it does not follow from the spec")
    mine = run_id_of(spec)
    if run_id is not None and run_id != mine:
        raise Altered(f"run_id: {mine.hex()}, expected {run_id.hex()}")
    if verifiers is not None and sorted(verifiers) != list(spec.verifier_peers):
        raise Altered("spec: its verifiers are not the ones expected")
    deployment = _deployment(told, spec)
    round_id, node = told["round"], PeerId(_bytes(told["node"], "node", 32))
    whole = _links(told, spec, mine, round_id)
    links = whole[round_id - int(whole[0].manifest.round) :]  # from the step's on
    headers = _headers(told, spec, mine, whole[-1])
    signed = _commit(links[0], spec, mine, deployment, round_id, node)
    seed = _seed(links, spec, mine)
    audit = _audit(whole, spec, mine, signed)
    amount, epoch = _paid(told["pay"], spec, mine, deployment, round_id, node)
    certificates = [*(link.certificate for link in whole), *(certificate for _, certificate in headers)]
    return Checked(
        spec=spec,
        run_id=mine,
        commit=signed,
        signers=min(len(certificate.verifiers) for certificate in certificates),
        last_round=int(headers[-1][0].round if headers else links[-1].block.round),
        audit=audit,
        drawn_from_ppm=bisect_left(range(PPM + 1), True, key=lambda rate: is_drawn(seed, node, rate)),
        shares=len(links[1].manifest.reveals),
        drand=links[0].manifest.drand_next if links[1].manifest.drand else 0,
        amount=amount,
        epoch=epoch,
    )


# ---- parts, in the order in which they are checked


def _told(text: bytes) -> dict[str, Any]:
    if len(text) > RECEIPT_BYTES_MAX:
        raise Altered(f"receipt: {len(text)} bytes, at most {RECEIPT_BYTES_MAX} expected")
    try:
        told = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise Altered(f"receipt: not JSON ({error})") from None
    told = _keys(told, _FIELDS, "receipt")
    if told["format"] != FORMAT:
        raise Altered(f"format: not {FORMAT!r}")
    if type(told["round"]) is not int or told["round"] < 0:
        raise Altered("round: no number of a round")
    return told


def _spec(told: Mapping[str, Any]) -> RunSpec:
    body = _bytes(told["spec"], "spec")
    try:
        spec = decode(RunSpec, body)
        check_spec(spec)
    except (AssayError, ValueError) as error:
        raise Altered(f"spec: {error}") from None
    if told["round"] >= spec.rounds:
        raise Altered(f"round: {told['round']}, the run trains for {spec.rounds}")
    return spec


def _deployment(told: Mapping[str, Any], spec: RunSpec) -> Deployment:
    try:
        deployment = Deployment.from_json(json.dumps(told["deployment"]))
        deployment.domain(EpochResult).separator()
    except (AssayError, ValueError, TypeError, EncodingError) as error:
        raise Altered(f"deployment: {error}") from None
    if deployment.deployment_id != spec.deployment_id:
        raise Altered("deployment: another one than the spec's")
    return deployment


def _links(told: Mapping[str, Any], spec: RunSpec, run_id: Digest, round_id: int) -> list[CertifiedManifest]:
    bodies, domain = told["links"], Domain(spec.deployment_id, run_id)
    first, last = window(spec, round_id)
    if not isinstance(bodies, list) or len(bodies) != last - first + 1:
        raise Altered(f"links: {last - first + 1} expected, of rounds {first} to {last}")
    links: list[CertifiedManifest] = []
    for position, body in enumerate(bodies):
        name = f"link of round {first + position}"
        data = _bytes(body, name)
        try:
            link = decode(CertifiedManifest, data)
            check_certified(link, domain, spec.verifier_peers)
        except AssayError as error:
            raise Altered(f"{name}: {error}") from None
        if link.manifest.round != first + position:
            raise Altered(f"{name}: is of round {link.manifest.round}")
        if links and link.manifest.parent != digest(links[-1].manifest):
            raise Altered(f"{name}: does not extend the link before")
        if not links and first == 0 and link.manifest.parent != digest(spec):
            raise Altered(f"{name}: does not extend the spec")
        links.append(link)
    return links


def _headers(
    told: Mapping[str, Any], spec: RunSpec, run_id: Digest, before: CertifiedManifest
) -> list[tuple[Block, QuorumCertificate]]:
    bodies, domain = told["headers"], Domain(spec.deployment_id, run_id)
    count = spec.last_round - int(before.manifest.round)
    if not isinstance(bodies, list) or len(bodies) != count:
        raise Altered(f"headers: {count} expected, up to round {spec.last_round}")
    parent, headers = before.block, []
    for body in bodies:
        name = f"header of round {parent.round + 1}"
        if not isinstance(body, list) or len(body) != 2:
            raise Altered(f"{name}: expected a block and its certificate")
        data, signatures = _bytes(body[0], name), _bytes(body[1], name)
        try:
            block = decode(Block, data)
            certificate = decode(QuorumCertificate, signatures)
            check_certificate(certificate, domain, spec.verifier_peers)
        except AssayError as error:
            raise Altered(f"{name}: {error}") from None
        vote = certificate.vote
        if block.run_id != run_id or block.round != parent.round + 1 or block.parent != digest(parent):
            raise Altered(f"{name}: does not extend the block before")
        if (
            vote.kind is not VoteKind.FINALISE
            or vote.block != digest(block)
            or vote.iteration not in (block.iteration, 0)
        ):
            raise Altered(f"{name}: the certificate is not a finalisation of its block")
        headers.append((block, certificate))
        parent = block
    return headers


def _commit(
    link: CertifiedManifest,
    spec: RunSpec,
    run_id: Digest,
    deployment: Deployment,
    round_id: int,
    node: PeerId,
) -> SignedCommit:
    found = [signed for signed in link.manifest.commits if signed.commit.node == node]
    member = next((member for member in spec.nodes if member.peer == node), None)
    if member is None:
        raise Altered(f"node: {node.hex()[:8]} is no node of this run")
    if len(found) != 1:
        raise Altered(f"node: {len(found)} commits of {node.hex()[:8]} in the link, expected one")
    signed = found[0]
    commit = signed.commit
    try:
        verify(node, Domain(spec.deployment_id, run_id), commit, signed.signature)
        check_commit_statement(spec, deployment, signed, member.hot)
    except AssayError as error:
        raise Altered(f"commit: {error}") from None
    if (commit.run_id, commit.round, commit.parent) != (run_id, round_id, link.manifest.parent):
        raise Altered("commit: of another run, round or parent than its manifest")
    if commit.batch_root != batch_root(spec, batch_positions(spec, node, round_id)):
        raise Altered("commit: its batch is not the one the spec assigns")
    if commit.tokens != spec.tokens_per_step:
        raise Altered(f"commit: {commit.tokens} tokens, a step has {spec.tokens_per_step}")
    return signed


def _seed(links: Sequence[CertifiedManifest], spec: RunSpec, run_id: Digest) -> Digest:
    """The seed that decided about the step, from what the link after it reveals."""
    manifest, known = links[1].manifest, set(spec.verifier_peers)
    alpha = beacon_input(spec.deployment_id, run_id, links[0].manifest.round, manifest.parent)
    for reveal in manifest.reveals:
        if reveal.verifier not in known:
            raise Altered(f"beacon: {reveal.verifier.hex()[:8]} is not a verifier of this run")
        try:
            vrf.verify(reveal.verifier, alpha, reveal.proof)
        except AssayError as error:
            raise Altered(f"beacon: {error}") from None
    if manifest.drand:
        try:
            check_signature(spec.audit.drand, links[0].manifest.drand_next, manifest.drand)
        except AssayError as error:
            raise Altered(f"beacon: {error}") from None
    shares = [(reveal.verifier, reveal.proof) for reveal in manifest.reveals]
    return audit_seed(alpha, shares, drand=randomness(manifest.drand))


def _audit(
    links: Sequence[CertifiedManifest], spec: RunSpec, run_id: Digest, signed: SignedCommit
) -> Audit | None:
    """The audit as the verdicts in these links decide it, by the protocol's own fold.

    A fold from the middle of a chain knows no node's clean audits. It takes every step for drawn:
    that a verdict was taken shows that its step was. Without a verdict there is no audit to speak of.
    """
    commit, domain = signed.commit, Domain(spec.deployment_id, run_id)
    first = links[0].manifest
    history = History(
        spec=spec,
        run_id=run_id,
        round=RoundId(int(first.round) + 1),
        parent=NO_DIGEST,
        chain=NO_DIGEST,
        nodes={member.peer: NodeRecord() for member in spec.nodes},
        verifiers={member.peer: VerifierRecord() for member in spec.verifiers},
        audits={},
        last_commits=_commits_of(first, commit.node),
    )
    audit: Audit | None = None
    for link in links[1:]:
        manifest = _about(link.manifest, commit.node, int(first.round))
        history = replace(history, parent=manifest.parent)
        try:
            for sealed in manifest.seals:
                verify(sealed.seal.verifier, domain, sealed.seal, sealed.signature)
            for judged in manifest.verdicts:
                verify(judged.verdict.verifier, domain, judged.verdict, judged.signature)
            check_words(history, manifest)
        except AssayError as error:
            raise Altered(f"verdict in round {manifest.round}: {error}") from None
        history = advance(history, manifest, digest(link.manifest))
        history = replace(history, last_commits=_commits_of(link.manifest, commit.node))
        audit = history.audits.get((commit.round, commit.node), audit)
    return audit if audit is not None and audit.verdicts else None


def _about(manifest: Manifest, node: PeerId, after: int) -> Manifest:
    """What a manifest says about the audits of one node, of rounds after the first link's."""

    def mine(round_id: int, who: PeerId) -> bool:
        return who == node and round_id >= after

    return replace(
        manifest,
        commits=(),
        seals=tuple(s for s in manifest.seals if mine(s.seal.round, s.seal.node)),
        verdicts=tuple(s for s in manifest.verdicts if mine(s.verdict.round, s.verdict.node)),
        unsealed=tuple(one for one in manifest.unsealed if mine(one.round, one.node)),
        planted=tuple(one for one in manifest.planted if mine(one.round, one.node)),
        contradictions=tuple(pair for pair in manifest.contradictions if pair.first.commit.node == node),
        appraised=(),  # they change how often a step is drawn, and this one was
    )


def _commits_of(manifest: Manifest, node: PeerId) -> tuple[Commit, ...]:
    return tuple(signed.commit for signed in manifest.commits if signed.commit.node == node)


def _paid(
    told: Any, spec: RunSpec, run_id: Digest, deployment: Deployment, round_id: int, node: PeerId
) -> tuple[int | None, int | None]:
    """The amount of the node's row in the signed table, and the epoch."""
    if told is None:
        return None, None
    told = _keys(told, _PAY, "pay")
    epoch = round_id // spec.money.epoch_rounds
    hot = [evm_address(member.hot) for member in spec.verifiers]
    try:
        result = read_result(told["result"])
        if (told["epoch"], result.epoch, result.run_id, result.set_version) != (
            epoch,
            epoch,
            run_id,
            SET_VERSION,
        ):
            raise Altered(f"pay: not of epoch {epoch} of this run")
        verify_certificate(deployment.digest(result), _bytes(told["certificate"], "pay"), hot)
    except Altered:
        raise
    except (AssayError, ValueError, TypeError, OverflowError, EncodingError) as error:
        raise Altered(f"pay: {error}") from None
    if told["row"] is None:
        return None, epoch
    row, proof = _keys(told["row"], _ROW, "pay"), told["proof"]
    if any(type(row[name]) is not int or row[name] < 0 for name in ("index", "amount")):
        raise Altered("pay: index and amount must be whole numbers")
    account = evm_address(next(member.account for member in spec.nodes if member.peer == node))
    if row["account"] != account:
        raise Altered(f"pay: a row of {row['account']}, the node's account is {account}")
    if not isinstance(proof, list) or len(proof) > 64:
        raise Altered("pay: no Merkle proof")
    try:
        start = leaf(run_id, epoch, row["index"], account, row["amount"])
    except ValueError as error:  # an index or amount that no word holds
        raise Altered(f"pay: {error}") from None
    if root_of_proof(start, [_bytes(one, "pay", 32) for one in proof]) != result.root:
        raise Altered("pay: the row is not under the signed root")
    return row["amount"], epoch


# ---- small parts


def read_result(told: Any) -> EpochResult:
    """An epoch's result from JSON, bytes in hexadecimal.

    Raises:
        ValueError: other fields, or text that is no hexadecimal.
    """
    names = {field.name for field in dataclasses.fields(EpochResult)}
    if not isinstance(told, dict) or set(told) != names:
        raise ValueError(f"a result has the fields {', '.join(sorted(names))}")
    fields: dict[str, Any] = {k: bytes.fromhex(v) if isinstance(v, str) else v for k, v in told.items()}
    return EpochResult(**fields)


def _pay_json(pay: Pay, node: PeerId) -> dict[str, Any]:
    rows, tree = pay.settlement.rows, pay.settlement.tree()
    index = next((i for i, r in enumerate(rows) if r.role == "operator" and r.peer == node), None)
    row = None
    if index is not None:
        row = {"index": index, "account": evm_address(rows[index].account), "amount": rows[index].amount}
    return {
        "epoch": pay.settlement.epoch,
        "result": {
            name: value.hex() if isinstance(value, bytes) else value
            for name, value in dataclasses.asdict(pay.result).items()
        },
        "certificate": pay.certificate.hex(),
        "row": row,
        "proof": [one.hex() for one in tree.proof(index)] if index is not None else [],
    }


def _keys(told: Any, names: Sequence[str], part: str) -> dict[str, Any]:
    if not isinstance(told, dict) or set(told) != set(names):
        raise Altered(f"{part}: expected exactly the fields {', '.join(names)}")
    return told


def _bytes(text: Any, part: str, size: int | None = None) -> bytes:
    """Of lower-case hexadecimal, the only spelling there is."""
    try:
        found = bytes.fromhex(text)
    except (ValueError, TypeError):
        raise Altered(f"{part}: not hexadecimal") from None
    if found.hex() != text or (size is not None and len(found) != size):
        raise Altered(f"{part}: not the hexadecimal of {'its' if size is None else size} bytes")
    return found
