"""Settler: does what a run's contracts need next, as anybody may.

Room: participant (edge: host and chain, in threads). What to do is decided by `ledger/settlement/duties.py`
from what the contracts hold; nothing is remembered but since when, so the process may be killed, run several
times at once, or meet a local chain that was rolled back.

The ledger service runs one without patience. Verifiers and watchtowers run one each and step in when what
everybody can do has not been done for a while; they challenge, judge and vote at once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import trio

from assay.chain.commit_statement import evm_address
from assay.chain.events import SETTLED_BLOCKS
from assay.chain.proposals import CertifiedResult, double_results
from assay.chain.state import AppealPhase, CaseState, DefencePhase, EpochPhase, EpochState, EscrowState
from assay.chain.statements import OPERATOR, VERIFIER, EpochResult, SlashOrder, Statement, term_of
from assay.ledger.settlement import duties
from assay.ledger.settlement.duties import (
    AppealView,
    CaseView,
    DefenceView,
    Effect,
    EpochView,
    Look,
    Watch,
)
from assay.ledger.settlement.results import epoch_result, result_digest
from assay.network.host import Handler, Host
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.wallet.cases import REASON, accused_order, implied_orders, is_implied
from assay.participant.wallet.certificates import certified_result, certified_veto
from assay.participant.wallet.claims import open_chain
from assay.participant.wallet.judges import read_judges, read_present_keys
from assay.protocol.errors import AssayError, Unavailable
from assay.protocol.types import Digest
from assay.training.reference.narrowing import first_wrong

if TYPE_CHECKING:
    from assay.chain.client import Chain, ChainReader

log = logging.getLogger(__name__)
POLL_S, PATIENT_POLL_S = 1.0, 3.0
TAKEOVER_S = 60.0  # for which a watchtower leaves the ordinary moves to the ledger service
LOTS_S = 300.0  # for which the members are not asked about again, once no lot of theirs can be released
FINAL_LOOKS = 64  # for which a final epoch is not read again: a chain may go back
CLAIM_FOR_OTHERS_S = 30.0  # a payee that has not claimed this long after the last result is paid by us
OwnResult = Callable[[int], Awaitable[EpochResult]]


class Defender(Protocol):
    """What a verifier knows of the steps that appeals are about."""

    async def positions(self, case_id: bytes) -> Sequence[bytes] | None:
        """The positions of the step's trace, from public sources; None if it is not ours to defend."""

    def statement(self, case_id: bytes) -> tuple[Statement, bytes] | None:
        """The accused's statement about the step, and its signature; None if we have none."""


class Juror(Protocol):
    """What a juror knows of the operators that appeals end at."""

    async def is_right(self, view: AppealView, defence: DefenceView) -> bool | None:
        """Whether the operator that is left is right; None if the accused showed no evidence.

        Raises:
            AssayError: we cannot tell, whatever the accused shows.
        """

    def heed(self, appeals: Sequence[AppealView]) -> None:
        """Hear of the appeals that are open, whoever sits on their juries."""


class Settler:
    """Carries out the duties of one participant in one run."""

    def __init__(
        self,
        me: Participant,
        follower: Follower,
        check: Callable[[], None] = lambda: None,
        *,
        patience_s: float = 0.0,
        own_result: OwnResult | None = None,
        handlers: Mapping[str, Handler] | None = None,
        pays_others: bool = False,
        defender: Defender | None = None,
        juror: Juror | None = None,
    ) -> None:
        """Does nothing before `run`.

        Args:
            me: The participant; its account pays gas and bonds.
            follower: Its chain of manifests.
            check: Called in a thread before each step; while it raises, nothing is done.
            patience_s: For which others are expected to do what anybody may do.
            own_result: The result that this participant computes for an epoch, parameters included. Without
                it a posted result is judged by its payout table, and its model is believed.
            handlers: A verifier's own, which sign as others' do.
            pays_others: Whether to claim for payees that stay away.
            defender: With it, orders that we signed are defended against appeals.
            juror: With it, we vote on the operators that appeals end at, where we are drawn.
        """
        self._me, self._follower, self._check = me, follower, check
        self._own_result, self._pays_others = own_result, pays_others
        self._handlers, self._defender, self._juror = handlers or {}, defender, juror
        self._watch = Watch(patience_s=patience_s)
        self._case_ids: list[bytes] = []
        self._untold: set[bytes] = set()  # cases of which we cannot tell whether they are implied
        self._unpaid: set[int] = set()  # epochs of which a row could not be paid
        self._proposals: list[CertifiedResult] = []
        self._next_block = me.deployment.block
        self._opinions: dict[bytes, bool] = {}  # by the digest of a posted result
        self._signed: set[bytes] = set()  # appealed cases whose order we signed
        self._set_version: int | None = None  # of the verifier set that the run was opened with
        self._escrow_epochs = 0  # for which its escrow takes results
        self._last_posted = -1  # the last epoch for which a result was ever seen
        self._final: dict[int, EpochState] = {}  # epochs that are final, as read lately
        self._lots_at = 0.0  # when to look for lots that can be released
        self._looks = 0  # each reads one in so many of these again
        self._host: Host

    async def run(self, host: Host) -> None:
        """Settle for as long as the caller's scope lasts; ends only by cancellation."""
        self._host = host
        all_final_at: float | None = None
        chain: Chain | None = None
        while True:
            try:
                if chain is None:
                    chain = await trio.to_thread.run_sync(open_chain, self._me)
                look, _ = await self.turn(chain)
                if not (self._is_complete(look) and duties.is_settled(look)):
                    all_final_at = None
                elif all_final_at is None:
                    all_final_at = trio.current_time()
                elif self._pays_others and trio.current_time() > all_final_at + CLAIM_FOR_OTHERS_S:
                    all_final_at = trio.current_time()  # a refusal is not asked for again at every look
                    await self._claim_for_others(chain, look)
            except AssayError as error:
                log.warning("settling retried", extra={"reason": str(error)})
            await trio.sleep(POLL_S if not self._watch.patience_s else PATIENT_POLL_S)

    async def turn(self, chain: Chain) -> tuple[Look, tuple[Effect, ...]]:
        """Look once and do what is due; returns what was seen, and what was done.

        Raises:
            AssayError: the contracts cannot be read now.
        """
        await trio.to_thread.run_sync(self._check)
        look = self._me.readings.look = await self._look(chain)
        self._watch, effects = duties.step(self._watch, look)
        if any(map(duties.is_premature, effects)):
            nodes = (peer for peer, node in self._follower.run_state.nodes.items() if node.is_seated)
            members = (*self._me.spec.seat_peers, *nodes)
            if not await self._follower.is_newest(self._host, members):
                log.warning("results not judged", extra={"reason": "our manifests may be behind"})
                effects = tuple(one for one in effects if not duties.is_premature(one))
        done = []
        for effect in effects:
            try:
                await self._perform(chain, effect, look)
                done.append(effect)
            except AssayError as error:
                log.warning("not done yet", extra={"what": str(effect), "reason": str(error)})
        return look, tuple(done)

    # ---- looking

    async def _look(self, chain: Chain) -> Look:
        epochs: list[EpochView] = []
        if self._set_version is None:
            run = await trio.to_thread.run_sync(chain.run, self._me.run_id)
            self._set_version = None if run is None else run.set_version
            self._escrow_epochs = 0 if run is None else run.epochs
        self._looks += 1
        # A quorum may post results also of epochs that a run which closed early never had.
        for epoch in range(max(self._follower.run_state.calendar.epochs, self._escrow_epochs)):
            state = self._final.pop(epoch, None)
            if state is None or (epoch + self._looks) % FINAL_LOOKS == 0:
                state = await trio.to_thread.run_sync(chain.epoch_state, self._me.run_id, epoch)
            if state.phase >= EpochPhase.FINAL:
                self._final[epoch] = state
            is_ripe = epoch in self._follower.settlements
            if state.phase is not EpochPhase.NONE:
                self._last_posted = max(self._last_posted, epoch)
            if not is_ripe and epoch > self._last_posted:
                break  # below it orphans may be left of a result that fell
            is_right = await self._opinion(epoch, state)
            epochs.append(EpochView(epoch=epoch, state=state, is_ripe=is_ripe, is_right=is_right))
        look = await trio.to_thread.run_sync(self._read, chain, tuple(epochs))
        if self._juror is not None:
            self._juror.heed(look.appeals)
        return replace(look, appeals=tuple([await self._with_opinions(view, look) for view in look.appeals]))

    def _read(self, chain: ChainReader, epochs: tuple[EpochView, ...]) -> Look:
        block = chain.block_number()
        opened = chain.cases_of(self._me.run_id, self._next_block, block)
        proposals = chain.proposals_of(self._me.run_id, self._next_block, block)
        self._case_ids = list(dict.fromkeys([*self._case_ids, *(event.case_id for event in opened)]))
        self._proposals = list(dict.fromkeys([*self._proposals, *proposals]))
        self._last_posted = max([self._last_posted, *(one.result.epoch for one in self._proposals)])
        self._next_block = max(block + 1 - SETTLED_BLOCKS, self._me.deployment.block)
        implied = implied_orders(self._me, self._follower) if self._case_ids else {}
        cases = []
        for case_id in self._case_ids:
            case = chain.case(case_id)
            order = implied.get(case_id) or self._accused_order(case_id, case)
            cases.append(CaseView(case_id=case_id, state=case, is_implied=is_implied(case, order)))
        self._case_ids = [view.case_id for view in cases if not view.state.phase.is_over]
        at_s = trio.from_thread.run_sync(trio.current_time)
        appeals, escrow, now = self._read_appeals(chain), chain.run(self._me.run_id), chain.timestamp()
        draw_delay, vote_window_s = chain.appeal_windows() if appeals else (0, 0)
        return Look(
            at_s=at_s,
            now=now,
            block=block,
            me=chain.address,
            challenge_window_s=chain.challenge_window(),
            resolve_window_s=chain.resolve_window(),
            escrow=escrow,
            epochs=epochs,
            cases=tuple(cases),
            appeals=appeals,
            draw_delay=draw_delay,
            vote_window_s=vote_window_s,
            doubles=tuple(
                found
                for found in double_results(self._me.deployment, self._proposals, chain.account_of)
                if not chain.is_banned(chain.account_of(found.signer))  # once, whatever else it signed
            ),
            bonds_owed=chain.bonds_owed(chain.address),
            rewards_owed=chain.rewards_of(chain.address),
            share_owed=0 if escrow is None else chain.rewards_of(escrow.buyer),
            entries_lacking=chain.entries_lacking(chain.address),
            free_lots=self._free_lots(chain, escrow, now, at_s),
        )

    def _accused_order(self, case_id: bytes, case: CaseState) -> SlashOrder | None:
        """`accused_order`; None where it cannot be told, so that one case keeps us from no other."""
        try:
            return accused_order(self._me, self._follower, case_id, case)
        except Exception:  # who signs an order chooses its bytes, and could end all settlers of the run
            if case_id not in self._untold:  # once, not at every look
                self._untold.add(case_id)
                log.exception("a case counts as not implied", extra={"case": case_id.hex()[:8]})
            return None

    def _read_appeals(self, chain: ChainReader) -> tuple[AppealView, ...]:
        """The appeals of cases that are not over, with every defence that has begun."""
        found = []
        for case_id in self._case_ids:
            state = chain.appeal(case_id)
            if state.phase is AppealPhase.NONE:
                continue
            defences = []
            for seat, account in enumerate(chain.verifier_set(state.version)):
                if state.signers >> seat & 1:
                    defence, jury = chain.defence(case_id, account)
                    if defence.phase is not DefencePhase.NONE:
                        defences.append(DefenceView(defender=account, state=defence, jury=jury))
                    self._signed |= {case_id} if account == chain.address else set()
            found.append(AppealView(case_id=case_id, state=state, defences=tuple(defences)))
        return tuple(found)

    async def _with_opinions(self, view: AppealView, look: Look) -> AppealView:
        """The same, with what we know of the step."""
        if view.state.phase is not AppealPhase.OPEN:
            return view
        defences, may_judge = [], self._juror is not None
        for one in view.defences:
            is_right = None
            if self._juror and one.state.phase is DefencePhase.JURY and look.me in one.jury.seats:
                try:
                    is_right = await self._juror.is_right(view, one)
                except AssayError:  # it has said why; the accused's silence is not to blame
                    may_judge = False
            defences.append(replace(one, is_right=is_right))
        may_defend = (
            self._defender is not None
            and view.case_id in self._signed
            and self._defender.statement(view.case_id) is not None
            and await self._defender.positions(view.case_id) is not None
        )
        return replace(view, defences=tuple(defences), may_defend=may_defend, may_judge=may_judge)

    def _free_lots(
        self, chain: ChainReader, escrow: EscrowState | None, now: int, at_s: float
    ) -> tuple[duties.Release, ...]:
        """The lots of this run's members that can be released now, once the run is long enough over."""
        if escrow is None or escrow.pending or at_s < self._lots_at:
            return ()
        if now < escrow.closes_at + chain.evidence_window():
            return ()
        spec, term = self._me.spec, term_of(chain.set_version_of(self._me.run_id))
        nodes = self._follower.run_state.nodes.values()
        seats = [(one.member.account, OPERATOR, bytes(self._me.run_id)) for one in nodes]
        seats += [(member.account, VERIFIER, term) for member in spec.judges]
        wanted = [duties.Release(account=evm_address(a), role=r, commitment=c) for a, r, c in seats]
        found = tuple(one for one in wanted if chain.can_release(one.account, one.role, one.commitment))
        self._lots_at = 0.0 if found else at_s + LOTS_S
        return found

    async def _opinion(self, epoch: int, state: EpochState) -> bool | None:
        """Whether the posted result is what we compute; None if there is none, or we cannot say yet.

        Of an epoch after the run's last one any result is wrong.
        """
        version = self._set_version
        if state.phase is not EpochPhase.NONE and epoch >= self._follower.run_state.calendar.epochs:
            return False
        if state.phase is EpochPhase.NONE or epoch not in self._follower.settlements or version is None:
            return None
        if state.digest not in self._opinions:
            if self._own_result is None:
                settlement, previous = self._follower.settlements[epoch], Digest(state.prev_result)
                model = Digest(state.model_hash)
                ours = epoch_result(self._me.spec, settlement, model, previous, version)
            else:
                try:
                    ours = await self._own_result(epoch)
                except AssayError as error:
                    log.info("no opinion yet", extra={"epoch": epoch, "reason": str(error)})
                    return None
            self._opinions[state.digest] = result_digest(self._me.deployment, ours) == state.digest
        return self._opinions[state.digest]

    def _is_complete(self, look: Look) -> bool:
        return len(look.epochs) >= self._follower.run_state.calendar.epochs

    # ---- doing

    async def _perform(self, chain: Chain, effect: Effect, look: Look) -> None:
        run_id = self._me.run_id
        run_sync = trio.to_thread.run_sync
        match effect:
            case duties.Propose(epoch=epoch):
                previous = Digest(look.epochs[epoch - 1].state.digest if epoch else bytes(32))
                judges = await run_sync(read_judges, chain, self._me.spec, run_id)
                certified = await certified_result(
                    self._me, self._host, judges, self._follower.settlements[epoch], previous, self._handlers
                )
                await run_sync(chain.propose, certified.result, certified.certificate)
            case duties.Challenge(epoch=epoch):
                await run_sync(chain.challenge, run_id, epoch, REASON)
            case duties.DrawJury(epoch=epoch):
                await run_sync(chain.draw_jury, run_id, epoch)
            case duties.Vote(epoch=epoch, digest=digest, is_right=is_right):
                await run_sync(chain.vote, run_id, epoch, digest, is_right)
            case duties.TimeOut(epoch=epoch):
                await run_sync(chain.timeout_challenge, run_id, epoch)
            case duties.ClearOrphan(epoch=epoch):
                await run_sync(chain.clear_orphan, run_id, epoch)
            case duties.Finalize(epoch=epoch):
                await run_sync(chain.finalize, run_id, epoch)
            case duties.Sweep(epoch=epoch):
                await run_sync(chain.sweep_unclaimed, run_id, epoch)
                self._final.pop(epoch, None)
            case duties.Refund():
                await run_sync(chain.refund, run_id)
            case duties.Release(account=account, role=role, commitment=commitment):
                await run_sync(chain.release_lot, account, role, commitment)
            case duties.Enlist():
                await run_sync(chain.enlist)
            case duties.CollectBond():
                await run_sync(chain.collect_bond)
            case duties.CollectReward():
                await run_sync(chain.collect)
            case duties.CollectShare():
                assert look.escrow is not None  # else nobody is its buyer
                await run_sync(chain.collect, look.escrow.buyer)
            case duties.ReportDouble(evidence=found):
                pair = (found.first, found.first_signature, found.second, found.second_signature)
                await run_sync(chain.report_equivocation, *pair)
            case duties.Veto(case_id=case_id):
                present = await run_sync(read_present_keys, chain)
                cert = await certified_veto(self._me, self._host, present, case_id, REASON, self._handlers)
                await run_sync(chain.veto_case, case_id, REASON, cert)
            case duties.Execute(case_id=case_id):
                await run_sync(chain.execute_case, case_id)
            case duties.PayOut(case_id=case_id):
                await run_sync(chain.pay_out_case, case_id)
            case duties.Expire(case_id=case_id):
                await run_sync(chain.expire_case, case_id)
            case duties.Defend(case_id=case_id) | duties.Choose(case_id=case_id):
                await self._doubt(chain, case_id, look, is_first=isinstance(effect, duties.Defend))
            case duties.DrawAppealJury(case_id=case_id, defender=defender):
                await run_sync(chain.draw_appeal_jury, case_id, defender)
            case duties.VoteOnDefence(case_id=case_id, defender=defender, end=end, is_right=is_right):
                await run_sync(chain.vote_on_defence, case_id, defender, end, is_right)
            case duties.LapseDefence(case_id=case_id, defender=defender):
                await run_sync(chain.lapse_defence, case_id, defender)
            case duties.ConcludeAppeal(case_id=case_id):
                await run_sync(chain.conclude_appeal, case_id)
        log.info("contract served", extra={"did": str(effect)})

    async def _doubt(self, chain: Chain, case_id: bytes, look: Look, *, is_first: bool) -> None:
        """Name the first wrong part of an appeal's claim, or of the accused's last cut."""
        assert self._defender is not None  # else nothing may be defended
        known, shown = await self._defender.positions(case_id), self._defender.statement(case_id)
        assert known is not None and shown is not None
        view = next(one for one in look.appeals if one.case_id == case_id)
        since, run_sync = self._me.deployment.block, trio.to_thread.run_sync
        if is_first:
            told = await run_sync(chain.appeal_positions, case_id, since)
            part = first_wrong(known, 0, view.state.operators, told)
            await run_sync(chain.defend_order, case_id, part, told, *shown)
            return
        (mine,) = [one.state for one in view.defences if one.defender == look.me]
        told = await run_sync(chain.cut_positions, case_id, look.me, since)
        await run_sync(chain.choose_part, case_id, first_wrong(known, mine.first, mine.last, told), told)

    async def _claim_for_others(self, chain: Chain, look: Look) -> None:
        for view in look.epochs:
            if view.state.phase is EpochPhase.FINAL and view.epoch in self._follower.settlements:
                tree = self._follower.settlements[view.epoch].tree()
                try:
                    await trio.to_thread.run_sync(chain.claim_all, self._me.run_id, view.epoch, tree)
                except Unavailable:
                    raise
                except AssayError as error:  # such as a payee that the coin refuses: all others are paid
                    if view.epoch not in self._unpaid:  # said once, not at every try
                        self._unpaid.add(view.epoch)
                        log.warning("a payee is not paid", extra={"epoch": view.epoch, "reason": str(error)})
