"""Service: an operator's process, which takes runs, keeps a node up in each, and gets the lots back.

Room: fleet (edge). What is done is decided in plan.py, from what is observed here; the state is on disk
before anything is done. While the chain is away, nodes that run go on, and nothing is taken or left.

    look: chain, processes, logs --> step --> state.json --> folders, lots, processes
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import trio

from assay.chain.client import Chain
from assay.chain.commit_statement import evm_address
from assay.chain.statements import OPERATOR
from assay.chain.text.units import money_text
from assay.fleet import seats as folders
from assay.fleet.children import Children
from assay.fleet.config import LOCK, FleetConfig, holding, read_state, write_state
from assay.fleet.fitness import Machine
from assay.fleet.market import read_account, read_candidates, read_library, read_on_chain
from assay.fleet.measure import Sample, measured_pay, with_sample
from assay.fleet.offer import own_offer, withdrawal
from assay.fleet.plan import Action, Candidate, Do, Observed, Seat, Stage, State, View, step
from assay.fleet.speed import kept_flop_per_s
from assay.participant.checks import check_port
from assay.participant.directory.find import announced_run
from assay.participant.directory.listing import Known
from assay.participant.files.invitation import read_invitation
from assay.participant.keys.keyring import STRONG, load_keys
from assay.participant.keys.private_files import make_private_folder
from assay.participant.market.standing import announce_offer, last_offer, says_the_same
from assay.participant.wallet.delegation import Renewal
from assay.participant.wallet.discharge import is_bound, read_certificate, send_discharge
from assay.protocol.errors import AssayError, ConfigError, NotYet, Unavailable
from assay.protocol.market import SeatOffer
from assay.protocol.types import Digest
from assay.training.data.batches import read_tokens

log = logging.getLogger(__name__)
SOON_S = 1.0  # between two looks, when a process has ended or the operator asks to end
RETRY_S = 5.0
OFFER_DAYS = 30  # for which an offer stands; it is renewed when half of them are over


class Fleet:
    """An operator's process.

    Args:
        config: The operator's.

    Raises:
        ConfigError: the keys cannot be opened, or the account signs by files.
    """

    def __init__(self, config: FleetConfig) -> None:
        self._config = config
        self._keys = load_keys(config.base.keys, config.base.password)
        self._keys.check_unattended("an operator's process")
        self._invitation = read_invitation(config.base.network)
        self._chain = Chain(config.base.rpc_url, self._invitation.deployment, self._keys.signer)
        self._known, self._state = Known(), State()
        self._samples: dict[Digest, tuple[Sample, ...]] = {}
        self._children: Children
        self._woken = trio.Event()
        self._machine: Machine
        self._is_draining = False
        self._fault: str | None = None
        self._offered: SeatOffer | None = None  # by us, on chain
        self._renewal = Renewal(config.base.delegation_days)

    def drain(self) -> None:
        """Take no more runs, give up every seat, and end when that is done."""
        log.info("leaving every run; the next signal ends at once")
        self._is_draining = True
        self._wake()

    async def run(self) -> None:
        """Serve until cancelled, or until every seat is given up after `drain`.

        Raises:
            ConfigError: another supervisor has this folder, or the operator has to mend something.
        """
        make_private_folder(self._config.folder)
        with holding(self._config.folder / LOCK, "an operator's process"):
            self._state = read_state(self._config.folder)
            async with trio.open_nursery() as nursery:
                self._children = Children(self._config, nursery, self._wake)
                self._children.want([seat.run_id for seat in self._state.seats if seat.has_process])
                speed = await kept_flop_per_s(self._config)
                base = self._config.base
                self._machine = Machine(
                    flop_per_s=speed,
                    blob_bytes=base.blob_bytes,
                    replicas=base.replicas * base.processes if base.device == "cpu" else 1,
                    is_checkpointing=base.is_checkpointing,
                )
                log.info("operator is up", extra={"account": self._chain.address, "flop_per_s": speed})
                await self._serve()
                nursery.cancel_scope.cancel()

    async def _serve(self) -> None:
        reason, is_checked = "", False
        while not (self._is_draining and not any(seat.holds_machine for seat in self._state.seats)):
            wait_s = float(self._config.look_s)
            try:
                if not is_checked:
                    await trio.to_thread.run_sync(self._chain.check_deployment)
                    is_checked = True
                await trio.to_thread.run_sync(self._renewal.keep, self._chain, self._keys)
                view, now = await trio.to_thread.run_sync(
                    self._look,
                    abandon_on_cancel=True,  # type: ignore[call-arg]  # the stubs are of an older trio
                )
                reason = ""
                await self._act(view, now)
                if self._config.offers:
                    await self._keep_offer(view.fault is not None, now)
            except Unavailable as error:
                if reason != str(error):  # once, not at every look
                    reason = str(error)
                    log.warning("chain unavailable: runs go on as they are", extra={"reason": reason})
                wait_s = RETRY_S
            except Exception as error:  # a look reads strangers' bytes: these end no nodes that owe openings
                if not is_checked:
                    raise  # nothing but our own configuration was read
                if reason != repr(error):
                    reason = repr(error)
                    log.exception("nothing is taken or left: a look raised an error")
                wait_s = RETRY_S
            if any(seat.stage is Stage.TAKING for seat in self._state.seats):
                wait_s = min(wait_s, RETRY_S)
            await trio.sleep(min(SOON_S, wait_s))
            with trio.move_on_after(wait_s - SOON_S):
                await self._woken.wait()
            self._woken = trio.Event()
        if self._offered is not None:
            await self._keep_offer(True, self._offered.from_s)

    def _wake(self) -> None:
        self._woken.set()

    # ---- what is so

    def _look(self) -> tuple[View, int]:
        """What `step` decides by, and the chain's time; runs in a thread.

        Raises:
            Unavailable: the endpoint is gone.
        """
        now = self._chain.timestamp()
        observed = {seat.run_id: self._observed(seat, now) for seat in self._state.seats}
        account = read_account(self._chain, evm_address(self._keys.hot_address))
        candidates: tuple[Candidate, ...] = ()
        if not self._is_draining and account.fault is None:
            candidates = read_candidates(
                self._chain,
                now,
                self._known,
                self._machine,
                read_library(self._config.data),
                self._state,
                self._config.bounds,
            )
        view = View(
            candidates=candidates,
            observed=observed,
            free_stake=account.free_stake,
            fault=account.fault,
            is_draining=self._is_draining,
        )
        return view, now

    def _observed(self, seat: Seat, now: int) -> Observed:
        folder, child = self._config.seat_folder(seat.run_id), self._children.of(seat.run_id)
        on_chain = read_on_chain(self._chain, seat.run_id)
        reading = folders.read_log(folder) if seat.has_process else folders.Reading()
        is_done = child.is_done and not (seat.stage is Stage.LEAVING and reading.must_ask_again)
        return Observed(
            is_ready=(folder / folders.CONFIG).exists(),
            lot=on_chain.lot,
            can_discharge=seat.stage is Stage.ENDED and self._can_discharge(seat),
            can_release=on_chain.can_release,
            is_open=on_chain.is_open,
            is_seated=reading.is_seated,
            has_process=child.pid is not None,
            is_done=is_done,
            fault=child.fault,
            closed_by=reading.closed_by,
            pay=self._pay(seat, reading, now),
        )

    def _can_discharge(self, seat: Seat) -> bool:
        try:
            cert = read_certificate(self._config.seat_folder(seat.run_id))
        except ConfigError:  # the run's end frees the lot too
            return False
        return cert is not None and is_bound(self._chain, self._chain.address, seat.run_id)

    def _pay(self, seat: Seat, reading: folders.Reading, now: int) -> int | None:
        """What a run is measured to pay, since its training began or we did."""
        if seat.stage is not Stage.RUNNING or not reading.round:
            self._samples.pop(seat.run_id, None)
            return None
        window_s = self._config.bounds.poor_s
        samples = with_sample(self._samples.get(seat.run_id, ()), now, reading.counted, window_s)
        self._samples[seat.run_id] = samples
        step_pay_micro = int(seat.step_pay_micro * reading.size)
        return measured_pay(samples, now, reading.counted, step_pay_micro, window_s)

    # ---- what is done

    async def _act(self, view: View, now: int) -> None:
        before = self._state
        after, actions = step(before, view, now, self._config.bounds)
        if after != before:
            try:
                await trio.to_thread.run_sync(write_state, self._config.folder, after)
            except ConfigError as error:  # a full disk must not end nodes that owe openings
                log.error("nothing is taken or left: the state cannot be kept", extra={"reason": str(error)})
                return
        self._state = after
        for line, fields in _news(before, self._state):
            log.info(line, extra=fields)
        if view.fault not in (None, self._fault):  # once, not at every look
            log.warning("no run can be taken", extra={"reason": view.fault})
        self._fault = view.fault
        wanted = [seat.run_id for seat in self._state.seats if seat.has_process]
        for run_id in wanted:
            if self._children.of(run_id).is_done:  # it has to ask for its discharge once more
                self._children.forget(run_id)
        self._children.want(wanted)
        for action in actions:
            seat = self._state.seat(action.run_id) or before.seat(action.run_id)
            assert seat is not None
            try:
                await trio.to_thread.run_sync(self._perform, action, seat)
            except NotYet as early:
                log.info("later", extra={"run": seat.run_id.hex()[:16], "reason": str(early)})
            except AssayError as error:
                fields = {"run": seat.run_id.hex()[:16], "do": action.do.value, "reason": str(error)}
                log.warning("not done yet", extra=fields)
            if action.do is Do.FORGET:
                self._children.forget(action.run_id)

    async def _keep_offer(self, is_closed: bool, now: int) -> None:
        """Have the chain say which seats are free, of which none are if we can take no run."""
        try:
            await trio.to_thread.run_sync(self._announce_offer, is_closed or self._is_draining, now)
        except AssayError as error:  # runs are taken and left without an offer, too
            log.warning("not offered", extra={"reason": str(error)})

    def _announce_offer(self, is_closed: bool, now: int) -> None:
        """Announce our offer, if it is another than the last: few runs a day are taken, so it costs little.

        What the chain has is asked for once: an endpoint that forgot it must not have us pay at every look.
        """
        before, bounds = self._offered, self._config.bounds
        if before is None and self._chain.staker_block(self._chain.address):
            before = last_offer(self._chain, self._chain.address)
        self._offered = before
        taken = sum(seat.holds_machine for seat in self._state.seats)
        if is_closed or taken >= bounds.runs_most:
            if before is None or not before.seats:
                return
            signed = withdrawal(self._keys, before, now)
        else:
            deployment_id, speed = self._invitation.deployment_id, self._machine.flop_per_s
            signed = own_offer(self._keys, deployment_id, bounds, speed, now, OFFER_DAYS, before, taken=taken)
            if before is not None and says_the_same(before, signed.offer, now):
                return
        if self._chain.in_flight():
            return
        announce_offer(self._chain, signed)
        self._offered = signed.offer
        log.info("offered", extra={"seats": signed.offer.seats, "least_price": signed.offer.least_price})

    def _perform(self, action: Action, seat: Seat) -> None:
        match action.do:
            case Do.TAKE:
                self._take(seat)
            case Do.LEAVE:
                folders.ask_to_leave(self._config, seat)
            case Do.DISCHARGE:
                send_discharge(self._chain, self._config.seat_folder(seat.run_id), seat.run_id)
            case Do.RELEASE:
                self._chain.release_lot(self._chain.address, OPERATOR, seat.run_id)
                log.info("lot is free", extra={"run": seat.run_id.hex()[:16], "amount": seat.lot})
            case Do.FORGET:
                folders.clear(self._config, seat)

    def _take(self, seat: Seat) -> None:
        """Make the seat's folder, then lock its lot, which is the consent to be slashed in this run.

        Raises:
            NotYet: a transaction of the account is on its way; it may be the same lot's.
            AssayError: of the data, the files, the port or the transaction.
        """
        run = self._known.files.get(seat.run_id) or announced_run(self._chain, seat.run_id, int(time.time()))
        data = None if run is None else read_library(self._config.data).get(run.spec.data.manifest)
        if run is None or data is None:
            raise ConfigError("its run file or its data are gone")
        read_tokens(data, run.spec.data)  # a lot is bound for long; every byte is read once before
        folders.prepare(self._config, self._keys, seat, run, data, STRONG, int(time.time()))
        check_port(self._config.base.ip, self._config.ports + seat.number)
        self._chain.check_mined()
        self._chain.ensure_lot(OPERATOR, seat.run_id, seat.lot, seat.deadline)


def _news(before: State, after: State) -> Iterator[tuple[str, dict[str, object]]]:
    """One line for each seat that is new, or in another stage."""
    for seat in after.seats:
        old = before.seat(seat.run_id)
        if old is None or old.stage is not seat.stage:
            fields: dict[str, object] = {
                "run": seat.run_id.hex()[:16],
                "stage": seat.stage.value,
                "why": seat.why,
                "pay_per_hour": money_text(seat.pay),
            }
            yield ("run taken" if old is None else "run moved on"), fields
    for seat in before.seats:
        if after.seat(seat.run_id) is None:
            yield "run forgotten: its lot is free", {"run": seat.run_id.hex()[:16]}
