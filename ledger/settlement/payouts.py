"""Payouts: an epoch's payout table in token units, as a function of the finalised chain alone.

Room: ledger (pure). Anyone with the manifests computes the same table, and so the
same root; verifiers sign only what they computed. Integers throughout; what a
division leaves over goes by largest remainder, ties to the smaller peer.

    gross     = price * tokens of paid steps, less a share if the model missed the epoch's milestone
    operators = their share, by tokens; verifiers = theirs, by work seen in the chain
    fee       = the rest, to the treasury
Unpaid steps are not charged: they stay in the buyer's escrow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

import cbor2

from assay.chain.commit_statement import evm_address
from assay.chain.proofs.payout_tree import Payout, PayoutTree, payout_tree
from assay.protocol.auditing.audits import ADVERSE, Audit, AuditStatus
from assay.protocol.messages import Outcome, Score, Verdict
from assay.protocol.params import PPM, RunSpec
from assay.protocol.run_state import RunState, StepId
from assay.protocol.types import Digest, PeerId, RoundId

WATERFALL_VERSION = 3
VERDICT_WEIGHT = 10  # of a verdict that the audit's status does not contradict
REVEAL_WEIGHT = 1  # of one round's beacon share
STEP_PASSES = 3  # of a recomputed step, in forward passes: one forward, and one back, which is two


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the payout table."""

    role: str  # "operator", "verifier" or "fee"
    peer: PeerId  # zero for the fee
    account: bytes  # 20 bytes
    amount: int  # token units, above 0


class UnpaidReason(str, Enum):
    """Why an accepted step earned nothing: a stable code for books and files. `text` is for people."""

    CONTRADICTION = "contradiction"
    EARLIER_FAULT = "earlier-fault"
    FAULT = "fault"
    KNOWN_ANSWER = "known-answer"
    ACCUSED = "accused"
    BIASED = "biased"
    LATE = "late"
    UNJUDGED = "unjudged"
    ROUNDED = "rounded"
    UNSETTLED = "unsettled"
    MILESTONE = "milestone"  # of a share of an epoch's price, not of a step

    @property
    def text(self) -> str:
        """The reason as a sentence about the step."""
        return _REASONS[self]


_REASONS = {
    UnpaidReason.CONTRADICTION: "its node signed two commits for one round",
    UnpaidReason.EARLIER_FAULT: "a fault of its node had been confirmed before",
    UnpaidReason.FAULT: "a fault of its node was confirmed in this epoch",
    UnpaidReason.KNOWN_ANSWER: "it was a known-answer task",
    UnpaidReason.ACCUSED: "it was accused, and the accusation was not dismissed",
    UnpaidReason.BIASED: "its node's audits deviated in one direction, and it was on probation for that",
    UnpaidReason.LATE: "its opening did not come in time",
    UnpaidReason.UNJUDGED: "no auditor could judge it",
    UnpaidReason.ROUNDED: "its share rounds to nothing",
    UnpaidReason.UNSETTLED: "its epoch is not settled",
    UnpaidReason.MILESTONE: "the model missed the epoch's milestone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpaid:
    """An accepted step that earned nothing, and the reason."""

    round: int
    node: PeerId
    reason: UnpaidReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """One epoch's payout table with its inputs."""

    run_id: Digest
    epoch: int
    rows: tuple[Row, ...]
    unpaid: tuple[Unpaid, ...]
    tokens_paid: int
    table_hash: Digest
    score: Score | None = None  # that verifiers agreed on, for the epoch's milestone

    @property
    def total(self) -> int:
        """Token units that leave the escrow."""
        return sum(row.amount for row in self.rows)

    def paid(self, role: str) -> int:
        """Sum of one role's rows."""
        return sum(row.amount for row in self.rows if row.role == role)

    def tree(self) -> PayoutTree:
        """The Merkle tree whose root goes on chain; leaf i is row i."""
        payouts = [Payout(account=evm_address(row.account), amount=row.amount) for row in self.rows]
        return payout_tree(self.run_id, self.epoch, payouts)

    def rows_of(self, account: bytes) -> tuple[int, ...]:
        """Indices of the rows that pay this account."""
        return tuple(i for i, row in enumerate(self.rows) if row.account == account)


def settle(run_state: RunState, epoch: int) -> Settlement:
    """The payout table of an epoch that is final for settlement.

    Args:
        run_state: After the manifest of round `calendar.settled_at(epoch)`, or one more.
        epoch: From 0.

    Raises:
        ValueError: the epoch is not final yet, or so old that the state no longer holds it.
    """
    ripe = run_state.calendar.settled_at(epoch)
    if not ripe < int(run_state.round) <= ripe + 2:
        raise ValueError(
            f"epoch {epoch} settles after round {ripe}, this run state is before round {run_state.round}"
        )
    return draft(run_state, epoch)


def draft(run_state: RunState, epoch: int) -> Settlement:
    """The payout table that an epoch would have if nothing were added to this state.

    Args:
        run_state: Which still holds the epoch's steps and audits.
        epoch: From 0; `settle` gives the table that counts.
    """
    spec = run_state.spec
    audits = {step: a for step, a in run_state.audits.items() if run_state.epoch_of(step[0]) == epoch}
    steps = {step: t for step, t in sorted(run_state.steps.items()) if run_state.epoch_of(step[0]) == epoch}
    guilty = {a.node for a in audits.values() if a.ruling is AuditStatus.CONFIRMED and a.due_s < 0}
    paid: dict[PeerId, int] = {}
    unpaid = []
    for (round_id, node), tokens in steps.items():
        reason = _unpaid_reason(run_state, int(round_id), node, audits.get((round_id, node)), guilty)
        if reason is None:
            paid[node] = paid.get(node, 0) + tokens
        else:
            unpaid.append(Unpaid(round=int(round_id), node=node, reason=reason))
    tokens_paid = sum(paid.values())
    gross = gross_of(spec, tokens_paid, falls_short=run_state.falls_short(epoch))
    to_operators = _share(gross * spec.money.operators_ppm // PPM, paid)
    to_verifiers = _share(
        gross * spec.money.verifiers_ppm // PPM, _verifier_weights(run_state, epoch, audits)
    )
    accounts = {peer: record.member.account for peer, record in run_state.nodes.items()}
    rows = [
        *_rows("operator", accounts, to_operators),
        *_rows("verifier", {m.peer: m.account for m in spec.judges}, to_verifiers),
    ]
    fee = gross - sum(row.amount for row in rows)
    if fee:
        rows.append(Row(role="fee", peer=PeerId(bytes(32)), account=spec.money.treasury, amount=fee))
    return Settlement(
        run_id=run_state.run_id,
        epoch=epoch,
        rows=tuple(rows),
        unpaid=tuple(unpaid),
        tokens_paid=tokens_paid,
        table_hash=table_hash(spec, run_state.run_id, epoch, tuple(rows)),
        score=run_state.score(epoch),
    )


def gross_of(spec: RunSpec, tokens: int, *, falls_short: bool) -> int:
    """The price of these tokens in token units, less the share of an epoch that missed its milestone."""
    gross = tokens * spec.money.price_per_mtoken // 10**6
    return gross - gross * spec.money.accept.share_ppm // PPM if falls_short else gross


def _unpaid_reason(
    run_state: RunState, round_id: int, node: PeerId, audit: Audit | None, guilty: Collection[PeerId]
) -> UnpaidReason | None:
    record = run_state.nodes[node]
    if record.banned and record.fault_round <= round_id:
        return UnpaidReason.CONTRADICTION if record.has_contradicted else UnpaidReason.EARLIER_FAULT
    if node in guilty:
        return UnpaidReason.FAULT
    reason = None if audit is None else why_unpaid(audit)
    is_suspect = (RoundId(round_id), node) in run_state.suspect_steps
    return UnpaidReason.BIASED if reason is None and is_suspect else reason


def why_unpaid(audit: Audit) -> UnpaidReason | None:
    """Why a step with this audit earns nothing; None if it is paid, unless its node is at fault."""
    if audit.is_known_answer and audit.ruling is not AuditStatus.DISMISSED:
        return UnpaidReason.KNOWN_ANSWER
    if audit.due_s >= 0:
        return UnpaidReason.LATE
    is_disputed = audit.dispute_opened_round >= 0
    if audit.is_unjudged:
        is_unjudged = all(verdict.outcome is Outcome.INCONCLUSIVE for verdict in audit.verdicts)
        return UnpaidReason.UNJUDGED if is_unjudged or not is_disputed else UnpaidReason.ACCUSED
    if audit.ruling is AuditStatus.SUPERSEDED and is_disputed:
        return UnpaidReason.ACCUSED
    return None


def table_hash(spec: RunSpec, run_id: Digest, epoch: int, rows: tuple[Row, ...]) -> Digest:
    """SHA-256 of the whole table in a canonical form: its content address."""
    plain = [
        "assay/payouts/1", WATERFALL_VERSION, spec.deployment_id, run_id, epoch,
        [[row.role, row.peer, row.account, row.amount] for row in rows],
    ]  # fmt: skip
    return Digest(hashlib.sha256(cbor2.dumps(plain, canonical=True)).digest())


def _verifier_weights(run_state: RunState, epoch: int, audits: Mapping[StepId, Audit]) -> dict[PeerId, int]:
    weights: dict[PeerId, int] = {}

    def add(holder: PeerId, weight: int) -> None:
        fault_round = run_state.verifiers[holder].fault_round
        if weight and not 0 <= fault_round <= last:  # a verifier at fault earns nothing from that epoch on
            weights[holder] = weights.get(holder, 0) + weight

    last = (epoch + 1) * run_state.spec.money.epoch_rounds - 1
    for audit in audits.values():
        for verdict in (*audit.withheld, *audit.verdicts):
            add(run_state.author(audit, verdict), _verdict_weight(audit, verdict))
    for round_id, verifiers in run_state.beacon_shares.items():
        if run_state.epoch_of(round_id) == epoch:
            for holder in verifiers:
                add(holder, REVEAL_WEIGHT)
    agreed = run_state.score(epoch)
    for (at, _), record in run_state.evaluations.items():
        if at == epoch and agreed is not None and record.score == agreed:
            add(record.holder, evaluation_weight(run_state.spec))
    return weights


def evaluation_weight(spec: RunSpec) -> int:
    """The weight of an evaluation that states the agreed score: that of verdicts which cost as much.

    It is a forward pass of each held-out sequence, and of each item counted as one; a verdict recomputes a
    segment, or the only gradient.
    """
    accept, local = spec.money.accept, spec.rule.local
    passes = accept.sequences + spec.choices.items
    verdict_passes = STEP_PASSES * (local.segment or local.steps) * local.sequences
    return -(-VERDICT_WEIGHT * passes // verdict_passes)


def _verdict_weight(audit: Audit, verdict: Verdict) -> int:
    if verdict.outcome is Outcome.MATCH:
        return 0 if audit.ruling in (AuditStatus.CONFIRMED, AuditStatus.KNOWN_ANSWER) else VERDICT_WEIGHT
    if verdict.outcome not in ADVERSE or audit.ruling is AuditStatus.DISMISSED:
        return 0
    if audit.ruling is AuditStatus.LATE and verdict.outcome is Outcome.MISMATCH:
        return 0
    return VERDICT_WEIGHT


def _share(amount: int, weights: Mapping[PeerId, int]) -> dict[PeerId, int]:
    """Split by weight, largest remainder first, ties to the smaller peer; nothing if all weights are 0."""
    whole = sum(weights.values())
    if not whole:
        return {}
    shares = {peer: amount * weight // whole for peer, weight in weights.items()}
    by_remainder = sorted(weights, key=lambda peer: (-(amount * weights[peer] % whole), peer))
    for peer in by_remainder[: amount - sum(shares.values())]:
        shares[peer] += 1
    return shares


def _rows(role: str, accounts: Mapping[PeerId, bytes], shares: Mapping[PeerId, int]) -> list[Row]:
    return [
        Row(role=role, peer=peer, account=accounts[peer], amount=amount)
        for peer, amount in sorted(shares.items())
        if amount
    ]
