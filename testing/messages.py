"""Messages: what honest members of a small run send, and how it is signed.

Room: testing (pure). Every maker fills in what its caller is not about; `changes` replace fields.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from assay.chain.addresses import Deployment
from assay.chain.commit_statement import sign_commit
from assay.protocol.agreement.configurations import FIRST, Configuration
from assay.protocol.agreement.inclusion import nodes_bitmap
from assay.protocol.auditing.audits import RECOMPUTED, REFERENCE, Audit
from assay.protocol.auditing.commitments import commitment_of, open_commitment
from assay.protocol.encoding.codec import Message, digest
from assay.protocol.identity import Domain, sign
from assay.protocol.messages import (
    Closing,
    Commit,
    Evaluation,
    EvaluationCommitment,
    FundingReport,
    InclusionList,
    Outcome,
    SignedCommit,
    SignedEvaluation,
    SignedEvaluationCommitment,
    SignedFundingReport,
    SignedInclusionList,
    SignedVerdict,
    SignedVerdictCommitment,
    SketchOpening,
    Verdict,
    VerdictCommitment,
)
from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST, Digest, HotSignature, PeerId, RoundId, Signature
from assay.testing.members import DOMAIN, RUN_ID, a_deployment, a_digest, a_hot_key, a_peer_key, name_of

NODE_SALT = a_digest("node salt")  # with which nodes commit to their sketches


def sketch_of(round_id: int, node: PeerId) -> Digest:
    """The sketch of an honest step, which everybody recomputes."""
    return a_digest("sketch", int(round_id), node)


def a_commit(round_id: int, node: PeerId, /, **changes: Any) -> Commit:
    """A node's first commit, in this round."""
    commit = Commit(
        run_id=RUN_ID,
        round=RoundId(round_id),
        node=node,
        parent=NO_DIGEST,
        state=a_digest("state", int(round_id)),
        batch_root=a_digest("batch", int(round_id), node),
        update=a_digest("update", int(round_id), node),
        update_bytes=10,
        base=0,
        momentum_before=a_digest("before", int(round_id), node),
        momentum_after=a_digest("after", int(round_id), node),
        inner=(),
        commitment=commitment_of(NODE_SALT, [sketch_of(round_id, node)]),
        exec_class=a_digest("class"),
        tokens=16,
        loss_micro=5_000_000,
    )
    return replace(commit, **changes)


def next_commit(run_state: RunState, node: PeerId, /, **changes: Any) -> Commit:
    """A node's commit in the next round of a run."""
    facts = {
        "run_id": run_state.run_id,
        "parent": run_state.parent,
        "base": run_state.nodes[node].base,
        "tokens": run_state.spec.tokens_per_step,
    }
    return a_commit(run_state.round, node, **{**facts, **changes})


def a_sketch_opening(audit: Audit) -> SketchOpening:
    """The opening of what `a_commit` commits to."""
    sketch = sketch_of(audit.round, audit.node)
    return open_commitment(audit.commit, NODE_SALT, [sketch], audit.segment)


def a_verdict(audit: Audit, verifier: PeerId, /, outcome: Outcome = Outcome.MATCH, **changes: Any) -> Verdict:
    """A verdict that is true in every field not given; the same on every call within one dispute round."""
    has_worked = outcome in RECOMPUTED
    in_dispute = has_worked and audit.pattern != NO_DIGEST
    verdict = Verdict(
        run_id=audit.commit.run_id, round=audit.round, node=audit.node, verifier=verifier,
        salt=a_digest("salt", audit.pattern, verifier, int(audit.round), audit.node), outcome=outcome,
        exec_class=audit.commit.exec_class if has_worked else NO_DIGEST,
        recomputed=sketch_of(audit.round, audit.node) if has_worked else NO_DIGEST,
        witness=a_digest("witness", audit.pattern) if in_dispute else NO_DIGEST,
        opening=NO_DIGEST, opening_bytes=0, is_biased=False, distance_ppb=0, block=0,
    )  # fmt: skip
    return replace(verdict, **changes)


def a_verdict_commitment(
    verdict: Verdict, /, pattern: Digest = NO_DIGEST, **changes: Any
) -> VerdictCommitment:
    """The commitment to a verdict."""
    commitment = VerdictCommitment(
        run_id=verdict.run_id, round=verdict.round, node=verdict.node, verifier=verdict.verifier,
        pattern=pattern, verdict=digest(verdict), in_reference=verdict.exec_class == REFERENCE,
    )  # fmt: skip
    return replace(commitment, **changes)


def an_evaluation_commitment(found: Evaluation, /, **changes: Any) -> EvaluationCommitment:
    """The commitment to an evaluation."""
    commitment = EvaluationCommitment(
        run_id=found.run_id, epoch=found.epoch, verifier=found.verifier, evaluation=digest(found)
    )
    return replace(commitment, **changes)


def a_funding_report(verifier: PeerId, /, **changes: Any) -> FundingReport:
    """A report that any number of epochs is paid for."""
    report = FundingReport(run_id=RUN_ID, verifier=verifier, block=1, epochs=1000, closing=Closing.NO)
    return replace(report, **changes)


def an_inclusion_list(
    run_state: RunState, verifier: PeerId, held: Collection[PeerId], /, **changes: Any
) -> InclusionList:
    """A verifier's list of these nodes' commits for the next manifest."""
    bitmap = nodes_bitmap(tuple(run_state.nodes), held)
    found = InclusionList(
        run_id=run_state.run_id,
        round=run_state.round,
        parent=run_state.parent,
        verifier=verifier,
        nodes=bitmap,
    )
    return replace(found, **changes)


class Unsigned:
    """Signatures of zeros: for the state transition, which checks none."""

    def signature(self, _member: PeerId, _message: Message) -> Signature:
        """A member's signature under a message."""
        return Signature(bytes(64))

    def statement(self, _spec: RunSpec, _commit: Commit) -> HotSignature:
        """The node's signature under its commit's statement to the contracts."""
        return HotSignature(bytes(65))

    def commit(self, spec: RunSpec, commit: Commit) -> SignedCommit:
        """A commit with both signatures."""
        return SignedCommit(
            commit=commit,
            signature=self.signature(commit.node, commit),
            statement=self.statement(spec, commit),
        )

    def verdict(self, verdict: Verdict) -> SignedVerdict:
        """A signed verdict."""
        return SignedVerdict(verdict=verdict, signature=self.signature(verdict.verifier, verdict))

    def commitment(self, commitment: VerdictCommitment) -> SignedVerdictCommitment:
        """A signed commitment to a verdict."""
        signature = self.signature(commitment.verifier, commitment)
        return SignedVerdictCommitment(commitment=commitment, signature=signature)

    def funding_report(self, report: FundingReport) -> SignedFundingReport:
        """A signed funding report."""
        return SignedFundingReport(funding_report=report, signature=self.signature(report.verifier, report))

    def evaluation(self, found: Evaluation) -> SignedEvaluation:
        """A signed evaluation."""
        return SignedEvaluation(evaluation=found, signature=self.signature(found.verifier, found))

    def evaluation_commitment(self, commitment: EvaluationCommitment) -> SignedEvaluationCommitment:
        """A signed commitment to an evaluation."""
        signature = self.signature(commitment.verifier, commitment)
        return SignedEvaluationCommitment(commitment=commitment, signature=signature)

    def inclusion_list(self, found: InclusionList) -> SignedInclusionList:
        """A signed inclusion list."""
        return SignedInclusionList(inclusion_list=found, signature=self.signature(found.verifier, found))


@dataclass(frozen=True)
class Signed(Unsigned):
    """The signatures of the members' own keys, for one run and its contracts."""

    domain: Domain = DOMAIN
    deployment: Deployment = field(default_factory=a_deployment)
    configuration: Configuration = FIRST

    def signature(self, member: PeerId, message: Message) -> Signature:
        """A member's signature under a message; for a verifier's seat that of its holder."""
        return sign(a_peer_key(name_of(self.configuration.key(member))), self.domain, message)

    def statement(self, spec: RunSpec, commit: Commit) -> HotSignature:
        """The node's signature under its commit's statement to the contracts."""
        return sign_commit(spec, self.deployment, commit, a_hot_key(name_of(commit.node)))


UNSIGNED, SIGNED = Unsigned(), Signed()
