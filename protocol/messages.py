"""Messages: every message that parties sign or agree on, as a dataclass declared once.

Room: protocol (pure). Encoding, digest, bounds and random test values derive
from the fields (see `codec`). A changed message is a new tag (`/2`), never a
changed `/1`. Rules: docs/protocol.md.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from assay.protocol.encoding.codec import Later, Max
from assay.protocol.market import Bid, Clearing, SeatOffer, SignedSeatOffer
from assay.protocol.openings import PROOF_HASHES_MAX, InnerBlocks, InnerOpening, Opening, Path
from assay.protocol.randomness.drand import SIGNATURE_BYTES
from assay.protocol.types import (
    NO_DIGEST,
    NO_ITERATION,
    Address,
    Digest,
    HotSignature,
    Iteration,
    PeerId,
    RoundId,
    Signature,
)
from assay.protocol.update_rule import SEGMENTS_MAX

NODES_MAX = 1024
VERIFIERS_MAX = 64
VERDICTS_MAX = 4096
LOSS_MICRO_MAX = 10**9  # the highest loss that a message may state, in millionths of a nat
SKETCH_BYTES = 512
REASON_CHARS_MAX = 300
COMMITMENT_HASHES_MAX = 10
STAKE_REPORTS_MAX = 8  # in one manifest, of each verifier in turn
JOINS_MAX = 4  # nodes that one manifest admits to a run that has begun
ADMISSIONS_MAX = 512  # of one manifest; 310 bytes each
STATEMENT_BYTES_MAX = 512  # of an encoded vote or block
CONTRADICTIONS_MAX = 4  # in one manifest; the rest goes into the next ones
EVIDENCE_BYTES_MAX = 160 * 1024  # of a processor and a few GPUs, with certificates
INLINE_UPDATE_BYTES = 128 * 1024
FIRST_HAND = 2  # verifiers to which a node sends an update that is larger than that
PIECE_BYTES_MAX = 64 * 1024  # of a pushed blob: votes find a gap between two pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One participant: its protocol key, the account it is paid to, the key contracts know."""

    TAG: ClassVar[bytes] = b"assay/member/1"
    peer: PeerId
    account: Address
    hot: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A node's commitment to one step: its update, and the momentum before and after it."""

    TAG: ClassVar[bytes] = b"assay/commit/2"
    run_id: Digest
    round: RoundId
    node: PeerId
    parent: Digest  # digest of the previous round's final manifest
    state: Digest  # BLAKE3 of the parameters used, on rounds that check it; else zero
    batch_root: Digest
    update: Digest  # blob digest of the update's bytes
    update_bytes: int
    base: int  # 1 + the round whose private state it continues; 0 = starts afresh
    momentum_before: Digest  # root of the private state: momentum or unsent error, inner optimiser
    momentum_after: Digest
    inner: Annotated[tuple[Digest, ...], Max(SEGMENTS_MAX)]  # inner state after each segment of steps
    commitment: Digest  # to the sketches of its work, docs/protocol.md section 5
    exec_class: Digest
    tokens: int
    loss_micro: int  # mean loss over the batch, nats per token, times 10^6
    seat: Annotated[int, Later()] = 0  # its node's, if draws follow from it: without replacement


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedCommit:
    """A commit with the peer's signature and the hot key's, which a contract can check."""

    TAG: ClassVar[bytes] = b"assay/signed-commit/2"
    commit: Commit
    signature: Signature
    statement: HotSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Two different commits of one node for one round: equivocation, which needs no committee."""

    TAG: ClassVar[bytes] = b"assay/contradiction/2"
    first: SignedCommit
    second: SignedCommit


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubleVote:
    """Two consensus statements of one verifier, of which an honest one signs at most one: double-signing."""

    TAG: ClassVar[bytes] = b"assay/double-vote/1"
    run_id: Digest
    verifier: PeerId
    first: Annotated[bytes, Max(STATEMENT_BYTES_MAX)]  # an encoded `Vote` or `Block`
    second: Annotated[bytes, Max(STATEMENT_BYTES_MAX)]
    first_signature: Signature
    second_signature: Signature


class Outcome(enum.IntEnum):
    """What an auditor found. Only MISMATCH and WITHHELD, confirmed by a committee, can slash."""

    MATCH = 1
    MISMATCH = 2
    WITHHELD = 3  # the node did not open its commit
    INCONCLUSIVE = 4  # could not be judged: another execution class without limits, or no recompute
    BORDERLINE = 5  # another execution class, between honest and false: the committee decides


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A verifier's finding about one step of one node; the verifier committed to its digest before."""

    TAG: ClassVar[bytes] = b"assay/verdict/3"
    run_id: Digest
    round: RoundId
    node: PeerId
    verifier: PeerId
    salt: Digest  # the verifier's secret: the commitment does not give the verdict away
    outcome: Outcome
    exec_class: Digest  # of the machine that recomputed; zero where nothing was
    recomputed: Digest  # SHA-256 of the auditor's own sketch of the work; zero where it has none
    is_biased: bool  # of a MATCH between classes: the deviations of this node are biased over its audits
    witness: Digest  # in a dispute, SHA-256 of the sketch with the dispute's pattern; else zero
    opening: Digest  # blob digest of the opening that was judged; zero where none came
    opening_bytes: int
    distance_ppb: int  # largest relative distance over opened blocks, times 10^9, capped at 10^12
    block: int  # the block that differs most


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedVerdict:
    """A verdict with its verifier's signature."""

    TAG: ClassVar[bytes] = b"assay/signed-verdict/3"
    verdict: Verdict
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCommitment:
    """A verifier's commitment to a verdict, made before any verdict of the step is revealed."""

    TAG: ClassVar[bytes] = b"assay/verdict-commitment/2"
    run_id: Digest
    round: RoundId
    node: PeerId
    verifier: PeerId
    pattern: Digest  # of the dispute round it is meant for; zero before a dispute
    verdict: Digest
    in_reference: bool  # the step was judged in the reference class; says nothing of the outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedVerdictCommitment:
    """A verdict commitment with its verifier's signature."""

    TAG: ClassVar[bytes] = b"assay/signed-verdict-commitment/2"
    commitment: VerdictCommitment
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class SketchOpening:
    """A drawn node opens its commit's commitment to a sketch. Unsigned: the commitment authenticates it."""

    TAG: ClassVar[bytes] = b"assay/sketch-opening/1"
    run_id: Digest
    round: RoundId
    node: PeerId
    salt: Digest
    sketch: Digest  # SHA-256 of the sketch of the drawn segment
    path: Annotated[tuple[Digest, ...], Max(COMMITMENT_HASHES_MAX)]


class AttendanceKind(enum.IntEnum):
    """What a node says of its presence in a run. That it joins, verifiers say: `Admission`."""

    RETURN = 1  # it is back: it opens every step of its own that is overdue
    LEAVE = 2  # it takes no further step, for good; what it did can be audited as before
    TASKS = 3  # it has drawn its known-answer tasks: a step of a later round may be shown to be one
    DATA = 4  # it binds itself to the data that only it has, and may train from the next round on


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnData:
    """What binds a node to data that only it has: the Merkle root over its windows, and their number."""

    TAG: ClassVar[bytes] = b"assay/own-data/1"
    root: Digest
    windows: int


NO_OWN_DATA = OwnData(root=NO_DIGEST, windows=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attendance:
    """A node's statement that it is back, that it leaves, or what binds its tasks or its own data."""

    TAG: ClassVar[bytes] = b"assay/attendance/1"
    run_id: Digest
    round: RoundId  # of the manifest that it expects next: no older statement can be sent again
    node: PeerId
    kind: AttendanceKind
    tasks: Annotated[Digest, Later()] = NO_DIGEST  # of TASKS: `known_answer_root` of its list; else zero
    own: Annotated[OwnData, Later()] = NO_OWN_DATA  # of DATA; else none


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedAttendance:
    """An attendance with its node's signature."""

    TAG: ClassVar[bytes] = b"assay/signed-attendance/1"
    attendance: Attendance
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A verifier's vote that a node joins the run: it asked to, and has locked a lot for this run."""

    TAG: ClassVar[bytes] = b"assay/admission/2"
    run_id: Digest
    time_s: int  # Unix seconds by the verifier's clock; it counts for `ADMISSION_S` of agreed time
    member: Member
    verifier: PeerId
    exec_class: Annotated[Digest, Later()] = NO_DIGEST  # of the track record that it showed; zero without one
    clean: Annotated[int, Later()] = 0  # audits in a row that it had passed there in this class


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedAdmission:
    """An admission with its verifier's signature."""

    TAG: ClassVar[bytes] = b"assay/signed-admission/2"
    admission: Admission
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAnswer:
    """Proof that a step was false on purpose, as its node had bound itself before: `Attendance.tasks`."""

    TAG: ClassVar[bytes] = b"assay/known-answer/1"
    run_id: Digest
    round: RoundId
    node: PeerId
    index: int
    salt: Digest
    path: Annotated[tuple[Digest, ...], Max(PROOF_HASHES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskList:
    """A node's whole list of known-answer tasks, once none can be drawn: that of `Attendance.tasks`."""

    TAG: ClassVar[bytes] = b"assay/task-list/1"
    run_id: Digest
    node: PeerId
    secret: Digest  # from which rounds and salts follow; it authenticates itself


@dataclass(frozen=True, slots=True, kw_only=True)
class BeaconShare:
    """A verifier's share of one round's beacon: a VRF proof, unique and self-authenticating."""

    TAG: ClassVar[bytes] = b"assay/beacon-share/1"
    run_id: Digest
    round: RoundId
    verifier: PeerId
    proof: Annotated[bytes, Max(80)]


class Discount(enum.IntEnum):
    """Factor that attested hardware puts on a node's adaptive audit rate, in millionths."""

    NONE = 1_000_000
    PROCESSOR = 800_000  # a processor alone, or a warning: the GPU that did the work is not attested
    PROCESSOR_AND_GPU = 400_000  # both, bound to each other, no reason against either


@dataclass(frozen=True, slots=True, kw_only=True)
class Appraisal:
    """A verifier's vote on a node's audit discount, valid for `AuditSpec.attested_rounds` rounds."""

    TAG: ClassVar[bytes] = b"assay/appraisal/1"
    run_id: Digest
    round: RoundId  # of the final manifest whose digest was the nonce
    node: PeerId
    verifier: PeerId
    discount: Discount
    evidence: Digest
    result: Digest  # of the attestation result, which the verifier stores


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedAppraisal:
    """An appraisal with its verifier's signature."""

    TAG: ClassVar[bytes] = b"assay/signed-appraisal/1"
    appraised: Appraisal
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceSubmission:
    """A node's hardware evidence for a verifier, encoded as package `attestation` defines."""

    TAG: ClassVar[bytes] = b"assay/evidence-submission/1"
    round: RoundId  # of the final manifest whose digest is the nonce
    evidence: Annotated[bytes, Max(EVIDENCE_BYTES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StakeReport:
    """A verifier's statement whether the stake behind a node, or a verifier's seat, is still complete."""

    TAG: ClassVar[bytes] = b"assay/stake-report/1"
    run_id: Digest
    round: RoundId  # of the newest final manifest at the time of the report
    node: PeerId  # or whoever holds a verifier's seat, or may
    verifier: PeerId
    is_whole: bool  # the lot is what the run or the set asks for, and a verifier's account has a hot key


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedStakeReport:
    """A stake report with its verifier's signature."""

    TAG: ClassVar[bytes] = b"assay/signed-stake-report/1"
    stake_report: StakeReport
    signature: Signature


class Closing(enum.IntEnum):
    """Whether an escrow takes results for a last `closeDelay` only, and by what."""

    NO = 0
    BY_BUYER = 1  # the buyer cancelled
    BY_DEADLINE = 2  # or the deadline came


@dataclass(frozen=True, slots=True, kw_only=True)
class FundingReport:
    """A verifier's reading of a run's escrow at a finalised block of its chain."""

    TAG: ClassVar[bytes] = b"assay/funding-report/1"
    run_id: Digest
    verifier: PeerId
    block: int  # number of the block that was read
    epochs: int  # from the first on, for which the escrow can pay every step
    closing: Closing


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedFundingReport:
    """A funding report with its verifier's signature."""

    TAG: ClassVar[bytes] = b"assay/signed-funding-report/1"
    funding_report: FundingReport
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What the model after an epoch reaches: held-out loss, and items of the run's choices answered right.

    acc_count: with the choice of the highest log-likelihood. acc_norm_count: of the highest log-likelihood by
    character. Both 0 in a run without choices.
    """

    TAG: ClassVar[bytes] = b"assay/score/1"
    loss_micro: int  # held-out loss in millionths of a nat; `LOSS_MICRO_MAX` if it is higher, or not finite
    acc_count: int
    acc_norm_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A verifier's measurement of the model after an epoch, in the reference class."""

    TAG: ClassVar[bytes] = b"assay/evaluation/2"
    run_id: Digest
    epoch: int
    verifier: PeerId
    score: Score
    salt: Annotated[Digest, Later()] = NO_DIGEST  # hides the score while only its commitment is known


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedEvaluation:
    """An evaluation with its verifier's signature."""

    TAG: ClassVar[bytes] = b"assay/signed-evaluation/2"
    evaluation: Evaluation
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCommitment:
    """A verifier binds itself to its evaluation before anybody knows another's."""

    TAG: ClassVar[bytes] = b"assay/evaluation-commitment/1"
    run_id: Digest
    epoch: int
    verifier: PeerId
    evaluation: Digest  # of the whole `Evaluation`, verifier and salt included: nobody else can open it


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedEvaluationCommitment:
    """A commitment to an evaluation with its verifier's signature."""

    TAG: ClassVar[bytes] = b"assay/signed-evaluation-commitment/1"
    commitment: EvaluationCommitment
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class InclusionList:
    """A verifier's list of the nodes whose commits for a round, and the updates, it holds."""

    TAG: ClassVar[bytes] = b"assay/inclusion-list/1"
    run_id: Digest
    round: RoundId
    parent: Digest  # digest of the final manifest that these commits extend
    verifier: PeerId
    nodes: Annotated[bytes, Max(NODES_MAX // 8)]  # bitmap over the nodes: `agreement.inclusion`


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedInclusionList:
    """An inclusion list with its verifier's signature."""

    TAG: ClassVar[bytes] = b"assay/signed-inclusion-list/1"
    inclusion_list: InclusionList
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """A verifier's seat goes to another holder, whose key signs for it from the next round on."""

    TAG: ClassVar[bytes] = b"assay/hand-over/1"
    seat: PeerId  # its name: the key of its first holder
    holder: PeerId  # a reserve that held no seat before


class SeatNoticeKind(enum.IntEnum):
    """What a verifier or a reserve says of the seats that it may hold."""

    READY = 1  # a reserve: it follows the run, and holds the parameters of a recent certified state
    RESIGN = 2  # it gives up its seat, or will take none, for good


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatNotice:
    """A statement of a verifier or a reserve about its seat."""

    TAG: ClassVar[bytes] = b"assay/seat-notice/1"
    run_id: Digest
    round: RoundId  # of the manifest that it expects next: no older statement can be sent again
    holder: PeerId  # its own key
    kind: SeatNoticeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedSeatNotice:
    """A seat notice with its holder's signature."""

    TAG: ClassVar[bytes] = b"assay/signed-seat-notice/1"
    notice: SeatNotice
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Manifest of one round: the block body that verifiers agree on."""

    TAG: ClassVar[bytes] = b"assay/manifest/14"
    run_id: Digest
    round: RoundId
    parent: Digest  # digest of the manifest before; of the run's spec in round 0
    time_s: int  # agreed time: Unix seconds by the leader's clock, never less than its parent's
    commits: Annotated[tuple[SignedCommit, ...], Max(NODES_MAX)]  # ascending by node
    inclusion_lists: Annotated[tuple[SignedInclusionList, ...], Max(VERIFIERS_MAX)]  # ascending by verifier
    beacon_shares: Annotated[tuple[BeaconShare, ...], Max(VERIFIERS_MAX)]  # for the round before, ascending
    drand: Annotated[bytes, Max(SIGNATURE_BYTES)]  # of the drand round that the manifest before named
    drand_next: int  # a future drand round, for the next manifest; 0: none
    is_partial: bool  # a due beacon share, or the named drand round, is missing: no step is drawn yet
    commitments: Annotated[
        tuple[SignedVerdictCommitment, ...], Max(VERDICTS_MAX)
    ]  # by (round, node, verifier)
    verdicts: Annotated[tuple[SignedVerdict, ...], Max(VERDICTS_MAX)]  # likewise
    sketch_openings: Annotated[tuple[SketchOpening, ...], Max(VERDICTS_MAX)]  # by (round, node)
    known_answers: Annotated[tuple[KnownAnswer, ...], Max(VERDICTS_MAX)]  # likewise
    attendance: Annotated[tuple[SignedAttendance, ...], Max(NODES_MAX)]  # ascending by node
    admissions: Annotated[
        tuple[SignedAdmission, ...], Max(ADMISSIONS_MAX)
    ]  # by (node, verifier), a quorum for each node
    contradictions: Annotated[tuple[Contradiction, ...], Max(CONTRADICTIONS_MAX)]  # ascending by node
    double_votes: Annotated[tuple[DoubleVote, ...], Max(CONTRADICTIONS_MAX)]  # ascending by verifier
    appraised: Annotated[tuple[SignedAppraisal, ...], Max(VERDICTS_MAX)]  # by (node, verifier)
    stake_reports: Annotated[tuple[SignedStakeReport, ...], Max(STAKE_REPORTS_MAX)]  # likewise
    funding_reports: Annotated[tuple[SignedFundingReport, ...], Max(VERIFIERS_MAX)]  # ascending by verifier
    evaluations: Annotated[tuple[SignedEvaluation, ...], Max(VERIFIERS_MAX)]  # by (epoch, verifier)
    disqualified: Annotated[tuple[PeerId, ...], Max(VERIFIERS_MAX)]  # verifiers at fault, ascending
    aggregate: Digest  # blob digest; zero without commits, or where the rule refuses them (n <= 2f)
    chain: Digest  # H(chain before | ids | update digests | aggregate)
    hand_over: Annotated[tuple[HandOver, ...], Max(1), Later()] = ()  # the last of its configuration: 0051
    seat_notices: Annotated[tuple[SignedSeatNotice, ...], Max(VERIFIERS_MAX), Later()] = ()  # by holder
    iteration: Annotated[Iteration, Later()] = NO_ITERATION  # of its block; 0 without reserves
    evaluation_commitments: Annotated[
        tuple[SignedEvaluationCommitment, ...], Max(VERIFIERS_MAX), Later()
    ] = ()  # by (epoch, verifier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A manifest's position in consensus: Simplex iteration, and the block it extends."""

    TAG: ClassVar[bytes] = b"assay/block/1"
    run_id: Digest
    iteration: Iteration
    round: RoundId
    parent: Digest  # digest of the previous (non-dummy) block; zero for round 0
    manifest: Digest  # zero where the leader passes its turn
    is_closing: Annotated[bool, Later()] = False  # its round and manifest are its parent's: a last one


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedBlock:
    """A block with the signature of the verifier that proposes it; by itself, a leader's pass."""

    TAG: ClassVar[bytes] = b"assay/signed-block/1"
    block: Block
    verifier: PeerId
    signature: Signature


class VoteKind(enum.IntEnum):
    """The three kinds of vote in one Simplex iteration."""

    NOTARISE = 1
    DUMMY = 2
    FINALISE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """A consensus vote in one iteration. `block` is zero for DUMMY."""

    TAG: ClassVar[bytes] = b"assay/vote/1"
    run_id: Digest
    iteration: Iteration
    kind: VoteKind
    block: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedVote:
    """A vote, its verifier and the signature."""

    TAG: ClassVar[bytes] = b"assay/signed-vote/1"
    vote: Vote
    verifier: PeerId
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumCertificate:
    """At least 2f+1 verifiers' signatures on the same vote, ascending by verifier.

    On NOTARISE or DUMMY it lets an iteration end; on FINALISE it is the
    certificate that finalises a manifest.
    """

    TAG: ClassVar[bytes] = b"assay/certificate/1"
    vote: Vote
    verifiers: Annotated[tuple[PeerId, ...], Max(VERIFIERS_MAX)]
    signatures: Annotated[tuple[Signature, ...], Max(VERIFIERS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A leader's block with its body and the proof that the parent may be extended.

    `dummies` certify every iteration between the parent's and this one as dummy;
    `parent` is the parent block's notarisation (empty for round 0, and where the
    parent is the final block with which the configuration before ended).
    """

    TAG: ClassVar[bytes] = b"assay/proposal/13"
    block: Block
    manifest: Manifest
    parent: Annotated[tuple[QuorumCertificate, ...], Max(1)]
    dummies: Annotated[tuple[QuorumCertificate, ...], Max(64)]
    proposer: PeerId
    signature: Signature  # over `block`


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedManifest:
    """A manifest with its finality certificate: anyone who knows the verifiers can check it."""

    TAG: ClassVar[bytes] = b"assay/certified/13"
    manifest: Manifest
    block: Block
    certificate: QuorumCertificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A verifier's statement that it held this commit and its update before the round closed."""

    TAG: ClassVar[bytes] = b"assay/receipt/1"
    run_id: Digest
    round: RoundId
    node: PeerId
    commit: Digest
    verifier: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedReceipt:
    """A receipt with its verifier's signature."""

    TAG: ClassVar[bytes] = b"assay/signed-receipt/1"
    receipt: Receipt
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A verifier rejects this commit. The reason can be checked again from commit and update."""

    TAG: ClassVar[bytes] = b"assay/refusal/1"
    run_id: Digest
    round: RoundId
    node: PeerId
    commit: Digest
    verifier: PeerId
    reason: Annotated[str, Max(REASON_CHARS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRefusal:
    """A refusal with its verifier's signature."""

    TAG: ClassVar[bytes] = b"assay/signed-refusal/1"
    refusal: Refusal
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A node's commit, sent to a verifier; a small update is included, a large one pushed or fetched."""

    TAG: ClassVar[bytes] = b"assay/submission/2"
    signed: SignedCommit
    update: Annotated[bytes, Max(INLINE_UPDATE_BYTES)]
    held_by: Annotated[tuple[PeerId, ...], Max(FIRST_HAND), Later()] = ()  # who has it; none: the node alone


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobPiece:
    """A piece of a blob that a peer pushes: an aggregate to a node, an update to a verifier. Not signed."""

    TAG: ClassVar[bytes] = b"assay/blob-piece/1"
    blob: Digest
    size: int  # of the whole blob, in bytes
    offset: int
    piece: Annotated[bytes, Max(PIECE_BYTES_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningNotice:
    """The blob digest under which an auditor can fetch the opening of a step."""

    TAG: ClassVar[bytes] = b"assay/opening-notice/1"
    round: RoundId
    opening: Digest
    opening_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """Request for one step of one node, or, with a zero node, for one round or epoch."""

    TAG: ClassVar[bytes] = b"assay/step-request/1"
    number: int
    node: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRequest:
    """Asks for an accused node's evidence about one operator of its step; see `assay.verifier.appeal`."""

    TAG: ClassVar[bytes] = b"assay/evidence-request/1"
    case_id: Digest
    operator: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceNotice:
    """The blob digest under which a juror can fetch that evidence."""

    TAG: ClassVar[bytes] = b"assay/evidence-notice/2"
    case_id: Digest
    operator: int
    evidence: Digest
    evidence_bytes: int
    written_ns: int  # Unix time by the node's clock; of two files about an operator the later counts


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedEvidenceNotice:
    """An evidence notice with the accused node's signature, so that others can pass the evidence on."""

    TAG: ClassVar[bytes] = b"assay/signed-evidence-notice/1"
    notice: EvidenceNotice
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashOrderRequest:
    """Asks a verifier to sign a slash order that follows from the chain, against a node or a verifier."""

    TAG: ClassVar[bytes] = b"assay/slash-order-request/1"
    round: RoundId
    node: PeerId
    verifier: PeerId  # zero for the node's own fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """Asks a verifier to make a node's state again up to this step, and to sign a slash order if it is false.

    Answered by nothing while that goes on, and then by the hot key's signature.
    """

    TAG: ClassVar[bytes] = b"assay/accusation/1"
    round: RoundId
    node: PeerId
    account: Address  # of the accuser, which committed to a report of the offence with the slash court
    salt: Digest  # of that commitment


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRange:
    """Consecutive certified manifests, as many as fit one response."""

    TAG: ClassVar[bytes] = b"assay/manifest-range/13"
    links: Annotated[tuple[CertifiedManifest, ...], Max(256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultSignature:
    """A verifier's result for an epoch, and its hot key's signature over the EIP-712 result."""

    TAG: ClassVar[bytes] = b"assay/result-signature/1"
    epoch: int
    prev_result: Digest
    root: Digest
    table_hash: Digest
    model_hash: Digest
    total: int
    signature: HotSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Asks a verifier to sign the record of the run's model."""

    TAG: ClassVar[bytes] = b"assay/model-request/1"
    parent: Digest  # record of the model that the run started from; zero without one


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSignature:
    """A verifier's model record, and its hot key's signature over the EIP-712 record."""

    TAG: ClassVar[bytes] = b"assay/model-signature/1"
    model_hash: Digest
    data_inventory_hash: Digest
    config_hash: Digest
    last_result: Digest
    signature: HotSignature


MESSAGES: dict[bytes, type[Any]] = {
    kind.TAG: kind
    for kind in (
        Commit,
        SignedCommit,
        Verdict,
        SignedVerdict,
        BeaconShare,
        Manifest,
        Block,
        Vote,
        SignedVote,
        QuorumCertificate,
        Proposal,
        CertifiedManifest,
        Path,
        Opening,
        Receipt,
        SignedReceipt,
        Submission,
        BlobPiece,
        OpeningNotice,
        StepRequest,
        EvidenceRequest,
        EvidenceNotice,
        SignedEvidenceNotice,
        InnerBlocks,
        InnerOpening,
        ManifestRange,
        ResultSignature,
        Contradiction,
        Refusal,
        SignedRefusal,
        VerdictCommitment,
        SignedVerdictCommitment,
        SketchOpening,
        KnownAnswer,
        TaskList,
        SignedAttendance,
        SignedSeatNotice,
        SignedAdmission,
        SlashOrderRequest,
        Accusation,
        Appraisal,
        SignedAppraisal,
        EvidenceSubmission,
        StakeReport,
        SignedStakeReport,
        FundingReport,
        SignedFundingReport,
        Score,
        Evaluation,
        SignedEvaluation,
        EvaluationCommitment,
        SignedEvaluationCommitment,
        InclusionList,
        SignedInclusionList,
        DoubleVote,
        SignedBlock,
        ModelRequest,
        ModelSignature,
        HandOver,
        SeatOffer,
        SignedSeatOffer,
        Bid,
        Clearing,
    )
}
