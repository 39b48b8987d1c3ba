"""Epoch pages: one settled epoch with its payout table, and one row of it with its Merkle proof.

Room: explorer (pure).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from assay.bundle.finished import Settled
from assay.bundle.milestone import milestone_text
from assay.chain.commit_statement import evm_address
from assay.chain.proofs.event_proof import read_event
from assay.chain.statements import SIGNATURE_BYTES, EpochResult
from assay.explorer.explored import Explored
from assay.explorer.pages.paging import Head, NoSuchPage, Paging, cut, head_of
from assay.protocol.agreement.quorum import quorum
from assay.protocol.types import PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class PayoutLine:
    """One row of the payout table. peer: zero for the fee."""

    index: int
    role: str
    peer: PeerId
    account: str
    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPage:
    """One settled epoch: what a quorum of hot keys signed, and its table, one page of it."""

    TEMPLATE: ClassVar[str] = "epoch.html"
    head: Head
    epoch: int
    epochs: int
    first_round: int
    last_round: int
    settled_round: int  # whose manifest makes the table final
    tokens_paid: int
    result: EpochResult
    digest: bytes
    signatures: int
    quorum: int
    verifiers: int
    final_block: int | None  # of the chain, if its finality is proved there
    unpaid: Mapping[str, int]  # accepted steps that earned nothing, by reason
    milestone: str  # what was asked of the model, and what verifiers measured; empty if nothing was
    rows: Sequence[PayoutLine]
    paging: Paging


@dataclass(frozen=True, slots=True, kw_only=True)
class PayoutPage:
    """One row of a payout table, and the hashes that lead from it to the signed root."""

    TEMPLATE: ClassVar[str] = "payout.html"
    head: Head
    epoch: int
    row: PayoutLine
    proof: Sequence[bytes]
    result: EpochResult
    digest: bytes
    certificate: bytes
    quorum: int
    verifiers: int


def epoch_page(run: Explored, epoch: int, page: int) -> EpochPage:
    """The page of an epoch. Raises NoSuchPage."""
    one, calendar = settled_of(run, epoch), run.delivered.calendar
    lines, paging = cut(payout_lines(one), page)
    verifiers = len(run.delivered.spec.judges)
    return EpochPage(
        head=head_of(run),
        epoch=epoch,
        epochs=len(run.delivered.settled),
        first_round=epoch * calendar.epoch_rounds,
        last_round=calendar.epoch_end(epoch) - 1,
        settled_round=calendar.settled_at(epoch),
        tokens_paid=one.settlement.tokens_paid,
        result=one.result,
        digest=one.digest,
        signatures=len(one.certificate) // SIGNATURE_BYTES,
        quorum=quorum(verifiers),
        verifiers=verifiers,
        final_block=None if one.anchor is None else read_event(one.anchor).block.number,
        unpaid=Counter(step.reason.text for step in one.settlement.unpaid),
        milestone=milestone_text(run.delivered, epoch),
        rows=lines,
        paging=paging,
    )


def payout_page(run: Explored, epoch: int, index: int) -> PayoutPage:
    """The page of one row. Raises NoSuchPage."""
    one = settled_of(run, epoch)
    if not 0 <= index < len(one.settlement.rows):
        raise NoSuchPage(f"row {index}; epoch {epoch} has {len(one.settlement.rows)}")
    verifiers = len(run.delivered.spec.judges)
    return PayoutPage(
        head=head_of(run),
        epoch=epoch,
        row=payout_lines(one)[index],
        proof=one.settlement.tree().proof(index),
        result=one.result,
        digest=one.digest,
        certificate=one.certificate,
        quorum=quorum(verifiers),
        verifiers=verifiers,
    )


def payout_lines(settled: Settled) -> list[PayoutLine]:
    """The rows of an epoch's table."""
    return [
        PayoutLine(
            index=index, role=row.role, peer=row.peer, account=evm_address(row.account), amount=row.amount
        )
        for index, row in enumerate(settled.settlement.rows)
    ]


def settled_of(run: Explored, epoch: int) -> Settled:
    """One settled epoch. Raises NoSuchPage."""
    found = run.delivered.settled.get(epoch)
    if found is None:
        raise NoSuchPage(f"epoch {epoch}; the run has {len(run.delivered.settled)}")
    return found
