"""Ledger service: follows both chains, keeps a run's books, and settles every epoch.

Room: observer (edge). One trio process; store and chain are read in threads. All its state is in the two
chains and its own files, so it may be killed at any instant and started again. Of several services on one
database, one works and the others stand by (ledger/journal/lease.py).

    manifests --> books <-- chain events        status: one line per recorded event
    complete epoch --> quorum's signatures --> proposed --> final --> fee claimed
    final epoch --> signed checkpoint of the books' Merkle log --> cosigned by the verifiers, anchored

Nothing is signed before a quorum of verifiers has returned what it cosigned last, and nothing is recorded
while the books are behind the anchor on chain: a service whose books were rolled back stops (witnesses.py,
anchor.py).
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

import trio

from assay.chain.client import Chain
from assay.chain.providers import Providers
from assay.ledger.journal.lease import Lease, LeaseLost, begin_term
from assay.ledger.journal.store import BookStore
from assay.ledger.log.signer import CheckpointSigner, LedgerRolledBack
from assay.observer.ledger_service.anchor import anchor_newest, compare_with_anchor
from assay.observer.ledger_service.bookkeeper import Bookkeeper
from assay.observer.ledger_service.status import StatusFile
from assay.observer.ledger_service.witnesses import Witnesses
from assay.participant.config import Config, Participant, open_participant
from assay.participant.follower import Follower
from assay.participant.keys.keyring import load_keys
from assay.participant.run import participate
from assay.participant.wallet.cases import implied_orders
from assay.participant.wallet.claims import claim_everything, open_chain
from assay.participant.wallet.finality import until_final
from assay.participant.wallet.settler import Settler
from assay.protocol.errors import AssayError, Unavailable

log = logging.getLogger(__name__)
POLL_S = 1.0
LINKS_PER_STEP = 64
CASES_S_MAX = 120.0  # wait of a paid-out run for open court cases
WITNESSES_S_MAX = 60.0  # wait at the end of a run for unreachable verifiers
CHECKS_MAX = 5  # the books may be a block behind the chain they are compared with


async def run_ledger_service(config: Config, status_path: Path) -> None:
    """Keep a run's books until everything is settled and reported.

    Args:
        config: A participant that is neither node nor verifier; its account pays the gas.
        status_path: Where lines are appended; see observer/ledger_service/status.py.

    Raises:
        ConfigError: the operator can fix it.
    """
    load_keys(config.keys, config.password).check_unattended("a ledger service")
    lease = Lease(books_of(config))
    try:
        await _wait_for(lease)
        await LedgerService(open_participant(config), status_path).run()
    finally:
        lease.give_up()


def books_of(config: Config) -> Path | str:
    """Location of a ledger service's books."""
    return config.books or config.folder / "ledger.db"


async def _wait_for(lease: Lease) -> None:
    """Return once this process holds the lease: at once, or when its holder ends in any way."""
    has_reported = False
    while True:
        try:
            if await trio.to_thread.run_sync(lease.try_take):
                return
            if not has_reported:
                log.info("another ledger service holds the lease; standing by")
                has_reported = True
        except Unavailable as error:
            log.warning("books unavailable", extra={"reason": str(error)})
        await trio.sleep(POLL_S)


class LedgerService:
    """The ledger service's parts and tasks."""

    def __init__(self, me: Participant, status_path: Path) -> None:
        self.me = me
        self.follower = Follower(me.spec, me.run_id, me.store)
        self.status = StatusFile(status_path)
        books = BookStore(books_of(me.config), me.run_id, first_block=me.deployment.block)
        begin_term(books)
        self.checkpoint_signer = CheckpointSigner(
            books, me.keys.peer, me.config.folder / "checkpoints", me.spec.seat_peers
        )
        self.witnesses = Witnesses(me, self.checkpoint_signer)
        self.bookkeeper = Bookkeeper(me.spec, me.run_id, books, self.status)
        urls, one_suffices = (me.config.rpc_url, *me.config.rpc_urls), me.config.one_rpc_suffices
        self.providers = Providers(urls, me.deployment, one_suffices=one_suffices)
        settlers = Providers(urls, me.deployment, one_suffices=one_suffices)  # used by another thread
        self.settler = Settler(me, self.follower, settlers.check, pays_others=True)
        self._has_reported = False

    async def run(self) -> None:
        """Serve until the run is settled."""
        async with participate(self.me, self.follower) as (host, nursery):
            nursery.start_soon(self.settler.run, host)
            nursery.start_soon(claim_everything, self.me, self.follower)
            nursery.start_soon(self.witnesses.run, host)
            self.status.write("up")
            log.info("ledger service is up", extra={"peer": self.me.me.hex()[:8]})
            await self._keep_books()
        self.bookkeeper.books.close()

    # ---- the books

    async def _keep_books(self) -> None:
        """Record and report until the summary is written."""
        chain: Chain | None = None
        paid_out_at: float | None = None
        while True:
            try:
                await self._book_rounds()
                if chain is None:
                    chain = await trio.to_thread.run_sync(open_chain, self.me)
                await trio.to_thread.run_sync(self._look, chain)
                if not await trio.to_thread.run_sync(self.bookkeeper.is_paid_out):
                    paid_out_at = None
                elif paid_out_at is None:
                    paid_out_at = trio.current_time()
                elif await self._is_over(chain, paid_out_at):
                    await until_final(chain)
                    await trio.to_thread.run_sync(self._look, chain)
                    if await trio.to_thread.run_sync(self.bookkeeper.is_paid_out):
                        await self._report(chain)
                        return
            except (LedgerRolledBack, LeaseLost):
                raise
            except AssayError as error:
                log.warning("books retried", extra={"reason": str(error)})
            await trio.sleep(POLL_S)

    async def _book_rounds(self) -> None:
        """Record everything the follower has; after a start, everything is folded again."""
        while self.bookkeeper.next_round < int(self.follower.run_state.round):
            links = list(self.me.store.links(self.bookkeeper.next_round, LINKS_PER_STEP))
            settlements = dict(self.follower.settlements)
            await trio.to_thread.run_sync(self.bookkeeper.book_rounds, links, settlements)
        await trio.to_thread.run_sync(self.bookkeeper.tell_rounds)

    def _look(self, chain: Chain) -> None:
        compare_with_anchor(chain, self.checkpoint_signer, self.me.run_id)
        is_new = self.bookkeeper.book_blocks(self.providers, dict(self.follower.settlements))
        if is_new or not self._has_reported:  # report now if we were killed between recording and reporting
            self.bookkeeper.tell_events()
            self._has_reported = True
        if self.witnesses.is_compared:
            self.checkpoint_signer.sign_due()
        anchor_newest(chain, self.checkpoint_signer, self.me.run_id)

    async def _is_over(self, chain: Chain, paid_out_at: float) -> bool:
        if trio.current_time() > paid_out_at + CASES_S_MAX:
            return True
        is_owed = not self.follower.run_state.is_complete  # an opening, so perhaps stake
        return not is_owed and not await trio.to_thread.run_sync(self._awaits_cases, chain)

    def _awaits_cases(self, chain: Chain) -> bool:
        """Whether a slash is open in court, or can still be opened there."""
        orders = implied_orders(self.me, self.follower)
        offences = self.bookkeeper.open_offences()
        return any(one not in orders or not chain.is_beyond_cap(orders[one]) for one in offences)

    async def _report(self, chain: Chain) -> None:
        """Write the summary; differences are reported only if they persist."""
        checks_left = CHECKS_MAX
        while True:
            await trio.to_thread.run_sync(self._look, chain)
            settled = await trio.to_thread.run_sync(
                self.bookkeeper.settled, chain, dict(self.follower.settlements)
            )
            checks_left -= 1
            if settled.chain_matches_books or not checks_left:
                break
            await trio.sleep(POLL_S)
        if not await self.witnesses.compared(WITNESSES_S_MAX):
            log.warning("signing the last checkpoint without a quorum of cosignatures on earlier ones")
        await trio.to_thread.run_sync(self.checkpoint_signer.sign_last)
        await trio.to_thread.run_sync(anchor_newest, chain, self.checkpoint_signer, self.me.run_id)
        if not await self.witnesses.cosigned(WITNESSES_S_MAX):
            log.warning("the last checkpoint has no quorum of cosignatures")
        self.status.write_once("settled", "", **asdict(settled))
        log.info("run is settled", extra={"matches": settled.chain_matches_books})
