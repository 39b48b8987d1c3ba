"""Buyer service: follows a run, recomputes its model, refunds the unspent escrow, and writes the bundle.

Room: observer (edge). One trio process; arithmetic, chain and files in threads. It needs of the data only the
manifest: parameters follow from the certified aggregates. Where it has all of them, it measures the held-out
loss, and needs torch for this alone.

    replay every round --> all epochs final --> close --> collect, refund --> register model --> bundle
Every stage reads its progress from the chain or from its own files, so the process may be killed at any
instant and started again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

import trio

from assay.bundle.finished import Anchored, Finished, HeldOut, Registered, Settled
from assay.bundle.held_out import held_out_loss
from assay.bundle.inputs import RunInputs, read_inputs
from assay.bundle.read import opening_name
from assay.bundle.release import release_of
from assay.bundle.write import write_bundle
from assay.chain.client import Chain, EpochPhase
from assay.chain.commit_statement import evm_address
from assay.chain.events import LogAnchored, ResultFinalized, RewardCollected
from assay.chain.proofs.event_proof import EventProof
from assay.chain.proofs.result_anchor import check_result_anchor
from assay.chain.proposals import CertifiedResult
from assay.chain.statements import Address, BadSignatureError, SlashOrder, verify_certificate
from assay.ledger.settlement.ending import ending_of
from assay.ledger.settlement.results import epoch_result
from assay.network.host import Host
from assay.observer.buyer.parameters import Replay
from assay.observer.buyer.registrar import register_model, witnessed_point
from assay.observer.ledger_service.status import AgreementReport, Mismatch, RefundDue, StatusFile
from assay.participant.config import Config, Participant, open_participant, read_run
from assay.participant.files.index import write_index
from assay.participant.files.shown_list import keep_list, kept_lists, kept_secret
from assay.participant.follower import Follower
from assay.participant.keys.keyring import key_of, release_key
from assay.participant.opening_keeper import OpeningKeeper, keep_openings
from assay.participant.run import participate
from assay.participant.task_lists import find_list
from assay.participant.wallet.cases import implied_orders
from assay.participant.wallet.certificates import certified_result
from assay.participant.wallet.claims import open_chain
from assay.participant.wallet.finality import until_final
from assay.participant.wallet.judges import named_judges
from assay.protocol.calendar import Calendar
from assay.protocol.errors import AssayError, Unavailable
from assay.protocol.messages import TaskList
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.data.inventory import inventory
from assay.training.data.shards import shard_path
from assay.training.optimiser.public_state import durably
from assay.verifier.audit.messages import longest_opening

log = logging.getLogger(__name__)
T = TypeVar("T")
POLL_S = 1.0
MEND_S = 3600.0  # between two readings of all blobs
MEND_AGAIN_S = 30.0  # before all are read again, for a bundle that waits for what nobody serves now
CASES_S_MAX = 120.0  # wait for slash rewards
CERTIFY_S_MAX = 120.0  # wait for signatures that nobody posted
PROOF_S_MAX = 30.0  # wait for the proof that a result is final
CHECKED_BYTES_MAX = 1 << 35  # of data, hashed before the held-out loss is measured: a minute or two
REGISTER_S_MAX = 120.0  # wait for the model's record


def sign_delivered(config: Config, folder: Path) -> None:
    """Sign the index of a delivered run's folder as its buyer, for `assay run verify`.

    Raises:
        ConfigError: the keys cannot be opened, or have not the one that signs for the run's buyer.
    """
    spec = read_run(config)[0].spec
    write_index(folder, key_of(config.keys, config.password, spec.signer))


async def run_buyer(config: Config, status_path: Path, bundle: Path) -> None:
    """Follow a run to its end and write its bundle.

    Args:
        config: A participant whose account is the run's buyer. If it signs by files, the hot key sends what
            anybody may send, as far as it has gas; without, that waits for a watchtower or its owner.
        status_path: Where lines are appended; see observer/ledger_service/status.py. A round's `state` is our
            digest of the parameters after it.
        bundle: The folder to make; see bundle/write.py.

    Raises:
        ConfigError: the operator can fix it.
    """
    me = open_participant(config, is_archive=True)
    await Buyer(me, status_path, bundle).run()


class Buyer:
    """The buyer's parts and tasks."""

    def __init__(self, me: Participant, status_path: Path, bundle: Path) -> None:
        self.me, self.bundle = me, bundle
        self.follower = Follower(me.spec, me.run_id, me.store)
        self.status = StatusFile(status_path)
        self.replay = Replay(me)
        self.keeper = OpeningKeeper(
            me.store,
            me.blobs,
            bytes_max=lambda: me.config.opening_bytes,
            opening_bytes_max=longest_opening(me.spec),
        )
        self._host: Host

    async def run(self) -> None:
        """Serve until the bundle is written."""
        async with participate(self.me, self.follower) as (host, nursery):
            self._host = host
            nursery.start_soon(self._keep_openings)
            nursery.start_soon(self._mend)
            self.status.write("up")
            log.info("buyer is up", extra={"peer": self.me.me.hex()[:8]})
            await self._replay_all()
            chain = await _patiently(self._open_chain)
            settled = await _patiently(lambda: self._settled(chain))
            self._report_agreement(settled)
            await self._certify(chain, settled)
            await _patiently(lambda: self._take_back(chain))
            await self._show_final(chain, settled)
            inputs = await trio.to_thread.run_sync(
                read_inputs, self.me.spec, self.me.config.data, self.me.base
            )
            registered = await self._register(chain, settled, inputs)
            anchor = await _patiently(lambda: self._anchored(chain))
            await self._pack(settled, inputs, registered, anchor)

    async def _keep_openings(self) -> None:
        await keep_openings(self.keeper, self._host, self.follower, me=self.me.me, keeps_all=True)

    async def _mend(self) -> None:
        """Look now and then, while others still have them, whether all blobs are whole."""
        while True:
            await trio.sleep(MEND_S)
            await self._is_whole()

    async def _is_whole(self) -> bool:
        """Whether all blobs are whole now, of which others were asked for what is not."""
        try:
            await self.replay.mend(self._host)
        except (Unavailable, OSError) as error:
            log.warning("copy of the run not whole", extra={"reason": str(error)})
            return False
        return True

    @property
    def calendar(self) -> Calendar:
        """Rounds and epochs of the run, once its chain is complete."""
        return self.follower.run_state.calendar

    @property
    def _account(self) -> Address:
        return evm_address(self.me.keys.account_address)

    async def _open_chain(self) -> Chain:
        keys = self.me.keys
        return await trio.to_thread.run_sync(open_chain, self.me, keys.hot if keys.signs_by_files else None)

    # ---- the model

    async def _replay_all(self) -> None:
        """Apply every round's aggregate until every epoch is settled."""
        while True:
            at = self.replay.round
            if at == int(self.follower.run_state.round) and self.follower.run_state.is_settled:
                return
            await self.follower.grown(at)
            (certified,) = self.me.store.links(at, 1)
            state = await _patiently(lambda certified=certified: self.replay.step(self._host, certified))  # type: ignore[misc]
            self.status.write_once("round", str(at), round=at, state=state.hex())

    def _report_agreement(self, settled: dict[int, Settled]) -> None:
        """Report whether commits and settled results name the parameters that we computed."""
        rounds, wrong = self.replay.compared()
        found = list(wrong)
        for epoch, one in settled.items():
            at = self.calendar.epoch_end(epoch)
            model, own = one.result.model_hash, self.replay.state(at)
            if model != own:
                found.append(Mismatch(round=at, who=f"epoch {epoch}", claimed=model.hex(), ours=own.hex()))
            result = self.me.deployment.digest(one.result)
            if one.digest != result:  # its table differs from ours
                subject = f"result of epoch {epoch}"
                found.append(Mismatch(round=at, who=subject, claimed=one.digest.hex(), ours=result.hex()))
        report = AgreementReport(ok=not found, rounds=rounds, mismatches=tuple(found))
        self.status.write_once("agreement", "", **asdict(report))

    # ---- the money

    async def _settled(self, chain: Chain) -> dict[int, Settled]:
        """Every epoch's final result.

        Raises:
            Unavailable: not all are final yet.
        """
        found: dict[int, Settled] = {}
        previous = NO_DIGEST
        version = await trio.to_thread.run_sync(chain.set_version_of, self.me.run_id)
        for epoch in range(self.calendar.epochs):
            state = await trio.to_thread.run_sync(chain.epoch_state, self.me.run_id, epoch)
            if state.phase not in (EpochPhase.FINAL, EpochPhase.SWEPT):
                raise Unavailable(f"epoch {epoch} is {state.phase.name.lower()}, not final")
            settlement = self.follower.settlements[epoch]
            result = epoch_result(self.me.spec, settlement, Digest(state.model_hash), previous, version)
            kept = self.me.store.value(f"certificate/{epoch}") or b""
            found[epoch] = Settled(
                settlement=settlement, result=result, digest=state.digest, certificate=kept
            )
            previous = Digest(state.digest)
        return found

    async def _certify(self, chain: Chain, settled: dict[int, Settled]) -> None:
        """Collect a quorum's signatures on results: those that one was posted with, else new ones.

        Who reads the bundle has not the chain, so that keys count that the spec names, and no later ones.
        """
        with trio.move_on_after(CERTIFY_S_MAX):
            while lacking := [epoch for epoch, one in settled.items() if not one.certificate]:
                posted = await self._posted(chain)
                for epoch in lacking:
                    try:
                        found = await self._certificate(posted, settled[epoch])
                    except AssayError as error:
                        log.info("no certificate yet", extra={"epoch": epoch, "reason": str(error)})
                        continue
                    self.me.store.set_value(f"certificate/{epoch}", found)
                    settled[epoch] = replace(settled[epoch], certificate=found)
                await trio.sleep(POLL_S)
        if lacking := [epoch for epoch, one in settled.items() if not one.certificate]:
            log.warning("what is delivered will not verify: no quorum signed", extra={"epochs": lacking})

    async def _posted(self, chain: Chain) -> list[CertifiedResult]:
        """All results that were proposed, with their certificates; none where the chain does not tell now."""

        def read() -> list[CertifiedResult]:
            return chain.proposals_of(self.me.run_id, self.me.deployment.block, chain.block_number())

        try:
            return await trio.to_thread.run_sync(read)
        except AssayError as error:
            log.info("proposals not read", extra={"reason": str(error)})
            return []

    async def _certificate(self, posted: list[CertifiedResult], one: Settled) -> bytes:
        """Signatures of a quorum on a result, by the keys that the spec names.

        Raises:
            Unavailable: none was posted with it, and no quorum signs it now.
        """
        judges = named_judges(self.me.spec, one.result.set_version)
        message, keys = self.me.deployment.digest(one.result), [*judges.hot_keys.values()]
        for found in (other for other in posted if other.result.epoch == one.result.epoch):
            with suppress(BadSignatureError, ValueError):  # of another result, or keys of a later delegation
                verify_certificate(message, found.certificate, keys)
                return found.certificate
        previous = Digest(one.result.prev_result)
        return (await certified_result(self.me, self._host, judges, one.settlement, previous)).certificate

    async def _show_final(self, chain: Chain, settled: dict[int, Settled]) -> None:
        """Collect the proofs that results are final, where the chain's blocks can be fetched."""
        for epoch, one in settled.items():
            with trio.move_on_after(PROOF_S_MAX):
                proof = await _patiently(
                    lambda of=(chain, epoch, one): trio.to_thread.run_sync(self._proof, *of)  # type: ignore[misc]
                )
                settled[epoch] = replace(one, anchor=proof)

    def _proof(self, chain: Chain, epoch: int, one: Settled) -> EventProof:
        """Proof that an epoch's result is final.

        Raises:
            Unavailable: the chain has no proof now, or its blocks cannot be rebuilt.
            MalformedMessage: the proof is not about our result.
        """
        for event in chain.events(self.me.deployment.block):
            if not isinstance(event, ResultFinalized):
                continue
            if (event.run_id, event.epoch) == (self.me.run_id, epoch):
                proof = chain.prove(event)
                check_result_anchor(proof, self.me.deployment, one.result)
                return proof
        raise Unavailable(f"no event ResultFinalized of epoch {epoch}")

    async def _take_back(self, chain: Chain) -> None:
        """Collect our share of slashes, and withdraw the rest of the escrow once it has closed.

        The last epoch's final result closes it, or what ended the run before.

        Raises:
            Unavailable, ChainRefused: not possible now; a repeated call resumes.
        """
        in_thread, run_id = trio.to_thread.run_sync, self.me.run_id
        await self._cases_end(chain)
        await in_thread(chain.collect, self._account)
        run = await in_thread(chain.run, run_id)
        if run is None:
            raise Unavailable("the escrow contract has no run of this id")
        if self.follower.run_state.has_lapsed and run.closes_at >= run.deadline:
            if self.me.keys.signs_by_files and await in_thread(chain.timestamp) < run.deadline:
                raise Unavailable("the run never started, and its account closes it: `assay order cancel`")
            await in_thread(chain.request_close, run_id)  # all of it returns: nothing was done
            run = await in_thread(chain.run, run_id)
            assert run is not None
        self.status.write_once("refund-due", "", **asdict(RefundDue(at_s=run.closes_at)))
        while await in_thread(chain.timestamp) < run.closes_at:
            await trio.sleep(POLL_S / 2)
        while run.free:  # anyone may refund: a move of another party that waits for its block refuses ours
            await in_thread(chain.refund, run_id)
            run = await in_thread(chain.run, run_id)
            assert run is not None
            if run.free:
                await trio.sleep(POLL_S / 2)
        await until_final(chain)  # if the refund is gone with its block, it is asked for again
        collected = await in_thread(self._collected, chain)
        self.status.write_once("refunded", "", amount=run.returned, collected=collected)

    def _collected(self, chain: Chain) -> int:
        """Our share of slashes so far, across restarts."""
        return sum(
            event.amount
            for event in chain.events(self.me.deployment.block)
            if isinstance(event, RewardCollected) and event.account == self._account
        )

    async def _cases_end(self, chain: Chain) -> None:
        """Wait, within bounds, for the end of every case that the run's slash orders can open."""

        def is_open(order: SlashOrder) -> bool:
            return not (chain.case(order.offence_id).phase.is_over or chain.is_beyond_cap(order))

        with trio.move_on_after(CASES_S_MAX):
            for order in implied_orders(self.me, self.follower).values():
                while await trio.to_thread.run_sync(is_open, order):
                    await trio.sleep(POLL_S)

    # ---- the proof

    async def _anchored(self, chain: Chain) -> Anchored | None:
        """The ledger's last anchor by the account that receives the fee; None if there is none."""
        ledger_service = evm_address(self.me.spec.money.treasury)
        events = await trio.to_thread.run_sync(chain.events, self.me.deployment.block)
        for event in reversed(events):
            if isinstance(event, LogAnchored) and (event.ledger_service, event.run_id) == (
                ledger_service,
                self.me.run_id,
            ):
                return Anchored(
                    ledger_service=ledger_service,
                    size=event.size,
                    root=event.root,
                    block_number=event.block_number,
                    block_hash=event.block_hash,
                    tx_hash=event.tx_hash,
                )
        return None

    async def _register(
        self, chain: Chain, settled: dict[int, Settled], inputs: RunInputs
    ) -> Registered | None:
        """The model's record on chain; None if no quorum signs in time: the model is delivered anyway."""
        if not settled:
            log.warning("no model is on record", extra={"rounds": ending_of(self.follower.run_state).text})
            return None
        last = settled[self.calendar.epochs - 1]
        trained_on = inventory(self.me.spec.data, inputs.manifest).sha256()
        found: Registered | None = None
        with trio.move_on_after(REGISTER_S_MAX):
            found = await _patiently(
                lambda: register_model(self.me, self._host, chain, self.calendar, last, trained_on)
            )
        if found is None:
            log.warning("the model is not on record: no quorum signed in time, or the contract refused")
        self.status.write_once("registered", "", record=None if found is None else found.record_id.hex())
        return found

    async def _pack(
        self,
        settled: dict[int, Settled],
        inputs: RunInputs,
        registered: Registered | None,
        anchor: Anchored | None,
    ) -> None:
        log_point = await witnessed_point(self.me, self._host)
        key = await trio.to_thread.run_sync(release_key, self.me.config.keys, self.me.config.password)
        # Manifests that come after the last epoch is settled are about overdue openings, not about the model.
        links = tuple(self.me.store.links(0, self.calendar.last_round + 1))
        run = Finished(
            spec=self.me.spec,
            run_id=self.me.run_id,
            deployment=self.me.deployment,
            links=links,
            ending=ending_of(self.follower.run_state),
            settled=settled,
            theta=self.replay.theta,
            state=self.replay.state(len(links)),
            inputs=inputs,
            load=self.me.blobs.load,
            anchor=anchor,
            release=release_of(key),
            registered=registered,
            declarations=self.me.config.declarations,
            log_point=log_point,
            held_out=await trio.to_thread.run_sync(self._held_out, inputs),
            task_lists=await self._task_lists(),
        )
        await trio.to_thread.run_sync(self._write_openings)
        while not await self._is_whole():  # nobody could make up for a bundle that lacks something
            await trio.sleep(MEND_AGAIN_S)
        state = await trio.to_thread.run_sync(write_bundle, self.bundle, run)
        self.status.write_once("bundle", "", path=str(self.bundle), state=state.hex())
        log.info("bundle written", extra={"state": state.hex()[:8]})

    async def _task_lists(self) -> tuple[TaskList, ...]:
        """The lists of known-answer tasks of all nodes that have shown theirs to a verifier by now."""
        run_state = self.follower.run_state
        for node, record in run_state.nodes.items():
            if record.tasks == NO_DIGEST or kept_secret(self.me.store, node) is not None:
                continue
            found = await find_list(self._host, run_state.holders, run_state, node)
            if found is None:
                log.warning("list of known-answer tasks not delivered", extra={"node": node.hex()[:8]})
            else:
                keep_list(self.me.store, found)
        return tuple(kept_lists(self.me.store, self.me.run_id))

    def _write_openings(self) -> None:
        """Copy the openings that were kept to the bundle's side; none is missed where one cannot be read."""
        for opening in tuple(self.keeper.kept):
            path = self.bundle.parent / opening_name(opening)
            try:
                body = self.me.blobs.load(opening)
            except Unavailable as error:
                log.warning("opening not delivered", extra={"reason": str(error)})
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with durably(path) as file:
                file.write(body)

    def _held_out(self, inputs: RunInputs) -> HeldOut | None:
        """The held-out loss, where the folder of data has them all and they are not too many to check."""
        spec, theta, data = self.me.spec, self.replay.theta, self.me.config.data
        is_small = spec.data.tokens * spec.data.token_bytes <= CHECKED_BYTES_MAX
        if not is_small or not all(shard_path(data, shard).is_file() for shard in inputs.manifest.shards):
            return None
        try:
            return held_out_loss(spec, inputs, theta, data)
        except (AssayError, MemoryError) as error:
            log.warning("no held-out loss", extra={"reason": str(error)})
            return None


async def _patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """Retry until it works: what is unavailable now may come later."""
    while True:
        try:
            return await attempt()
        except AssayError as error:
            log.info("not yet", extra={"reason": str(error)})
        await trio.sleep(POLL_S)
