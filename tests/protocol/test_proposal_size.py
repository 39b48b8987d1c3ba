"""The bound on proposals is above what leaders propose, and not far above it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.network.limits import NOTIFICATION_BYTES_MAX
from assay.protocol.auditing.commitments import commitment_of, known_answer_proofs, open_commitment
from assay.protocol.encoding.codec import digest, encode
from assay.protocol.messages import (
    Block,
    CertifiedManifest,
    Contradiction,
    Proposal,
    QuorumCertificate,
    Vote,
    VoteKind,
)
from assay.protocol.proposal_size import MESSAGES_PER_MANIFEST, PROPOSAL_BYTES_MAX, proposal_bytes
from assay.protocol.types import Iteration, RoundId, Signature
from assay.testing.members import NODES, RUN_ID, VERIFIERS, a_digest
from assay.testing.messages import NODE_SALT, UNSIGNED, a_commit, a_verdict, a_verdict_commitment, sketch_of
from assay.testing.run import a_manifest, a_spec, a_start, grow
from assay.testing.signed import a_history, inclusion_lists


def the_largest(seats: int, verifiers: int, segments: int, tasks: int) -> tuple[Proposal, CertifiedManifest]:
    """A proposal with as much of everything as one that fits may have, and its link."""
    run_state = grow(a_start(), 2)
    audit = next(iter(run_state.audits.values()))
    most = {"update_bytes": 10**9, "tokens": 10**8, "loss_micro": 10**9, "base": 10**6}
    commit = a_commit(10**6, NODES[0], inner=(a_digest("inner"),) * segments, **most)
    sketches = [sketch_of(audit.round, audit.node)] * max(segments, 1)
    commit = replace(commit, commitment=commitment_of(NODE_SALT, sketches))
    signed = UNSIGNED.commit(a_spec(), commit)
    verdict = a_verdict(audit, VERIFIERS[0], opening_bytes=10**9, distance_ppb=10**12, block=10**5)
    verdict = replace(verdict, round=RoundId(10**6))
    shown = known_answer_proofs(RUN_ID, [(NODE_SALT, RoundId(10**6 + n), NODES[0]) for n in range(tasks)])
    opened = replace(open_commitment(commit, NODE_SALT, sketches, 0), round=RoundId(10**6))
    manifest = replace(
        a_manifest(run_state),
        commits=(signed,) * seats,
        commitments=(UNSIGNED.commitment(a_verdict_commitment(verdict)),) * MESSAGES_PER_MANIFEST,
        verdicts=(UNSIGNED.verdict(verdict),) * MESSAGES_PER_MANIFEST,
        sketch_openings=(opened,) * MESSAGES_PER_MANIFEST,
        known_answers=tuple(shown[:1]) * MESSAGES_PER_MANIFEST,
        contradictions=(Contradiction(first=signed, second=signed),) * 4,
        inclusion_lists=inclusion_lists(a_history(), [])[:1] * verifiers,
    )
    vote = Vote(run_id=RUN_ID, iteration=Iteration(10**6), kind=VoteKind.DUMMY, block=a_digest("block"))
    quorum = verifiers - (verifiers - 1) // 3
    certificate = QuorumCertificate(
        vote=vote, verifiers=VERIFIERS[:1] * quorum, signatures=(Signature(bytes(64)),) * quorum
    )
    block = Block(
        run_id=RUN_ID, iteration=Iteration(10**6), round=RoundId(10**6), parent=a_digest("parent"),
        manifest=digest(manifest),
    )  # fmt: skip
    proposal = Proposal(
        block=block, manifest=manifest, parent=(certificate,), dummies=(certificate,) * (verifiers - quorum),
        proposer=VERIFIERS[0], signature=Signature(bytes(64)),
    )  # fmt: skip
    return proposal, CertifiedManifest(manifest=manifest, block=block, certificate=certificate)


@pytest.mark.parametrize(
    ("seats", "verifiers", "segments", "tasks"),
    [(3, 1, 0, 0), (128, 4, 1, 0), (128, 16, 9, 0), (37, 4, 64, 0), (52, 4, 20, 1000), (19, 16, 64, 50)],
)
def test_what_a_leader_proposes_and_its_link_fit_the_bound(seats, verifiers, segments, tasks):
    sizes = {"seats": seats, "verifiers": verifiers, "segments": segments, "tasks": tasks}
    bound = proposal_bytes(**sizes)
    found = [len(encode(one)) for one in the_largest(**sizes)]

    assert bound - 60_000 < max(found) <= bound - 12_000 < bound <= PROPOSAL_BYTES_MAX, (found, bound)


def test_the_bound_is_that_of_a_notification():
    assert PROPOSAL_BYTES_MAX == NOTIFICATION_BYTES_MAX
