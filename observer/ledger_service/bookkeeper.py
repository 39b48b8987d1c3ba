"""Bookkeeper: records certified manifests and chain events in the books, and reports them.

Room: observer (edge: store, chain and status file; blocking, callers run it in a thread). It records what the
store's cursors name next, so a repeated call changes nothing. The chain may reorganise: each poll checks that
the last block of the poll before still has its hash; if not, it goes back to the newest earlier poll whose
block has, reads on from there, and the store reverses what is no longer on chain. The first poll reads from
the deployment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from assay.chain.commit_statement import evm_address
from assay.chain.events import Claimed, Refunded, ResultFinalized, ResultProposed, Slashed, SlashReversed
from assay.chain.providers import Head, Providers
from assay.chain.reader import ChainReader
from assay.ledger.accounts import Kind, budget
from assay.ledger.journal.round_facts import RoundFacts, round_facts
from assay.ledger.journal.store import BookStore
from assay.ledger.queries import report
from assay.ledger.queries.reconcile import reconcile, trial_balance
from assay.ledger.settlement.ending import ending_of
from assay.ledger.settlement.payouts import Settlement
from assay.observer.ledger_service.status import EpochReport, RefundReport, SlashReport, StatusFile
from assay.protocol.errors import Unavailable
from assay.protocol.messages import CertifiedManifest
from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState, start
from assay.protocol.state_transition import advance
from assay.protocol.types import Digest

LOOKS_KEPT = 256  # 40 bytes each; after a deeper reorganisation the chain is read from the deployment


class Recorder:
    """Grows the books of one run. One thread at a time."""

    def __init__(self, spec: RunSpec, run_id: Digest, books: BookStore) -> None:
        self.books, self._spec, self._run_id = books, spec, run_id
        self._run_state: RunState = start(spec, run_id)
        self._looks: list[Head] = []  # last blocks of earlier polls, oldest first

    @property
    def next_round(self) -> int:
        """The round that `book_rounds` expects next; 0 after a restart."""
        return int(self._run_state.round)

    def book_rounds(self, links: Sequence[CertifiedManifest], settlements: Mapping[int, Settlement]) -> None:
        """Fold in the next certified manifests of the checked chain and record what is new.

        Args:
            links: Consecutive, from `next_round` on.
            settlements: Of the epochs they complete, by epoch.
        """
        run_state = self._run_state
        facts: list[RoundFacts] = []
        for certified in links:
            before, run_state = run_state, advance(run_state, certified.manifest)
            facts.append(round_facts(before, certified, run_state, settlements))
        self.books.add_rounds(facts)
        self._run_state = run_state

    def book_blocks(self, chain: Providers, settlements: Mapping[int, Settlement]) -> bool:
        """Read the newest blocks; returns whether the books changed.

        Raises:
            BooksError: the answer is incomplete; nothing was written, and the next poll starts from the
                deployment.
            Unavailable: no answer, endpoints that disagree, or a reorganisation while reading; likewise.
        """
        looks, self._looks = self._looks, []  # whatever fails below, the next poll is a first one
        head = chain.head()
        while looks and chain.block_hash(looks[-1].number) != looks[-1].hash:
            looks.pop()
        if looks and looks[-1].number > head.number:  # an endpoint that lags; what was read stays valid
            self._looks = looks
            return False
        at = min(looks[-1].number + 1, self.books.next_block) if looks else self.books.first_block
        events = chain.events(at, head.number)
        if chain.block_hash(head.number) != head.hash:
            raise Unavailable(f"block {head.number} was reorganised while its events were read")
        taken = self.books.take_blocks(events, at, head.number, settlements)
        self._looks = [*(one for one in looks if one.number < head.number), head][-LOOKS_KEPT:]
        return bool(taken.seen or taken.orphaned)


class Bookkeeper(Recorder):
    """Grows the books of one run, and writes a status line for each new fact."""

    def __init__(self, spec: RunSpec, run_id: Digest, books: BookStore, status: StatusFile) -> None:
        super().__init__(spec, run_id, books)
        self._status, self._told_rounds = status, 0

    def _names(self) -> dict[str, str]:
        """The peer of each account that takes part."""
        nodes = [record.member for record in self._run_state.nodes.values()]
        return {evm_address(m.account): m.peer.hex() for m in (*nodes, *self._spec.judges)}

    def tell_rounds(self) -> None:
        """Report every recorded round that has no status line yet, and that the run closed early."""
        ending = ending_of(self._run_state)
        if ending.closed_by is not None:
            self._status.write_once("closed", "", **asdict(ending))
        for round_id in range(self._told_rounds, self.books.next_round):
            if not self._status.has("round", str(round_id)):
                figures = report.round_figures(self.books, self._run_state, round_id)
                self._status.write_once("round", str(round_id), **asdict(figures))
            self._told_rounds = round_id + 1

    def tell_events(self) -> None:
        """Report every recorded slash, epoch event, claim and refund that has no status line yet."""
        kinds = (Slashed, SlashReversed, ResultProposed, ResultFinalized, Claimed, Refunded)
        for event in self.books.events(*kinds):
            match event:
                case Slashed():
                    slash = SlashReport(
                        node=self._names().get(event.account, event.account),
                        amount=event.amount,
                        burnt=event.burnt,
                        buyer=event.buyer_amount,
                        challenger=event.challenger_amount,
                    )
                    self._status.write_once("slashed", event.offence_id.hex(), **asdict(slash))
                case SlashReversed():
                    self._status.write_once(
                        "slash-reversed",
                        event.offence_id.hex(),
                        node=self._names().get(event.account, event.account),
                        amount=event.amount,
                    )
                case ResultProposed(run_id=self._run_id):
                    self._report_phase(event, "proposed")
                case ResultFinalized(run_id=self._run_id):
                    self._report_phase(event, "final")
                case Claimed(run_id=self._run_id):
                    self._status.write_once(
                        "claimed",
                        f"{event.epoch}/{event.index}",
                        account=event.account,
                        peer=self._names().get(event.account, ""),
                        epoch=event.epoch,
                        amount=event.amount,
                    )
                case Refunded(run_id=self._run_id):
                    refund = RefundReport(amount=event.amount)
                    self._status.write_once("refunded", event.tx_hash.hex(), **asdict(refund))

    def settled(self, chain: ChainReader, settlements: Mapping[int, Settlement]) -> report.SettledFigures:
        """The summary of a run whose money has all been paid out."""
        differences = reconcile(self.books, chain, settlements)
        return report.settled_figures(self.books, self._run_state, differences, trial_balance(self.books))

    def _report_phase(self, event: ResultProposed | ResultFinalized, phase: str) -> None:
        found = EpochReport(epoch=event.epoch, phase=phase, total=event.total)
        self._status.write_once("epoch", f"{event.epoch}/{phase}", **asdict(found))

    # ---- is there anything left to do?

    def is_paid_out(self) -> bool:
        """Whether every epoch is final, every row claimed or swept, and the rest refunded."""
        events = self.books.events(ResultFinalized)
        final = {event.epoch for event in events if event.run_id == self._run_id}
        if final != set(range(self._run_state.calendar.epochs)):
            return False
        left = self.books.balances()
        return budget(self._run_id) not in left and not any(one.kind is Kind.PAYABLE for one in left)

    def open_offences(self) -> frozenset[bytes]:
        """Ids of the slashes that the manifests decided and that are not closed in court."""
        return report.open_offences(self.books)
