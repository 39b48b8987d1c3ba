"""Chain duties: a verifier's work for the contracts: it signs what follows from its chain, and prosecutes.

Room: verifier (edge: the chain, in threads). A hot key signs only what this process computed from its own
copy of the finalised chain; a request names an epoch, step or node, never bytes to sign.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import trio

from assay.chain.commit_statement import commit_statement, evm_address
from assay.chain.statements import Discharge, EpochResult, ModelRecord, SlashOrder, sign_digest
from assay.ledger.settlement.results import (
    accusers_of,
    double_vote_order_of,
    epoch_result,
    fault_ruling_of,
    model_record,
    result_digest,
    slash_order_of,
)
from assay.network.host import Handler, Host
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.participant.following.sync import StateSync
from assay.participant.wallet.cases import Vetoes
from assay.participant.wallet.certificates import certified
from assay.participant.wallet.claims import claim_everything, open_chain
from assay.participant.wallet.judges import read_judges
from assay.participant.wallet.settler import Settler
from assay.participant.wallet.track_records import track_record_of
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import AssayError, ConfigError, Unavailable
from assay.protocol.membership import bound_by, no_track_record
from assay.protocol.messages import (
    Contradiction,
    ModelRequest,
    ModelSignature,
    ResultSignature,
    SlashOrderRequest,
    StepRequest,
)
from assay.protocol.types import NO_DIGEST, Digest, HotSignature, PeerId, RoundId
from assay.training.data.inventory import inventory
from assay.training.data.shards import read_manifest
from assay.verifier.service.accusations import has_shown_list, is_honest
from assay.verifier.service.appeals import Appeals
from assay.verifier.service.driver import EVIDENCE

if TYPE_CHECKING:
    from assay.chain.client import Chain

log = logging.getLogger(__name__)
TAKEOVER_S = 20.0  # each later accuser waits this much longer for the earlier ones to open the case
RETRY_S = 2.0
SETTLE_S = 60.0  # for which each verifier leaves the ordinary moves to the ledger service and to earlier ones
NOBODY = PeerId(bytes(32))
SIGNED_RESULT = "signed-result/"  # and the epoch: key of the digest of the one result that we signed for it


class ChainDuties:
    """Handlers that sign what follows from our chain; tasks that prosecute, settle, claim."""

    def __init__(self, me: Participant, follower: Follower, state_sync: StateSync) -> None:
        self._me, self._follower, self._state_sync = me, follower, state_sync
        self.appeals = Appeals(me, follower, state_sync)
        self._seen: set[SlashOrderRequest] = set()
        self._trained_on: Digest | None = None  # a manifest may be large, and does not change
        self._set_version: int | None = None  # of the verifier set that the run was opened with
        self._discharges: dict[PeerId, bytes] = {}  # signatures: asked for again, they cost nothing
        self._track_records: dict[PeerId, bytes] = {}  # likewise
        self._chain: Chain | None = None
        self._host: Host
        self.handlers: Mapping[str, Handler] = {
            "sign-result": self._sign_result,
            "sign-slash-order": self._sign_slash_order,
            "sign-veto": Vetoes(me, follower, lambda case_id: is_honest(me.store, case_id)).answer,
            "sign-discharge": self._sign_discharge,
            "sign-track-record": self._sign_track_record,
            "sign-model": self._sign_model,
        }

    async def run(self, host: Host) -> None:
        """Prosecute confirmed audits and claim our pay; ends only by cancellation."""
        self._host = host
        async with trio.open_nursery() as nursery:
            nursery.start_soon(claim_everything, self._me, self._follower)
            nursery.start_soon(self._report_contradictions)
            nursery.start_soon(self.appeals.run, host)
            while True:
                run_state = self._follower.run_state
                for request in self._due():
                    if request not in self._seen:
                        self._seen.add(request)
                        slash_order, accusers = self._charge(request)
                        seat = run_state.seat_of(self._me.me)
                        if seat in accusers:
                            place = accusers.index(seat)
                            nursery.start_soon(self._prosecute, request, slash_order, place)
                await self._follower.grown(int(run_state.round))

    def settler(self) -> Settler:
        """What does whatever the contracts need once others had time to; it judges by our results."""
        return Settler(
            self._me,
            self._follower,
            patience_s=SETTLE_S * (1 + self._me.spec.seat_peers.index(self._me.me)),
            own_result=self._result,
            handlers=self.handlers,
            defender=self.appeals,
            juror=self.appeals.juror,
        )

    # ---- signatures that others request ----

    async def _sign_result(self, _peer: PeerId, body: bytes) -> bytes:
        result = await self._result(decode(StepRequest, body).number)
        digest = result_digest(self._me.deployment, result)
        # Two results signed for one epoch cost the whole stake, so the first is on disk before it is sent: a
        # verifier whose parameters were rebuilt since must stay silent.
        name = f"{SIGNED_RESULT}{result.epoch}"
        signed = self._me.store.value(name)
        if signed is None:
            self._me.store.set_value(name, digest)
        elif signed != digest:
            raise Unavailable(f"another result of epoch {result.epoch} was signed here before")
        return encode(
            ResultSignature(
                epoch=result.epoch,
                prev_result=Digest(result.prev_result),
                root=Digest(result.root),
                table_hash=Digest(result.table_hash),
                model_hash=Digest(result.model_hash),
                total=result.total,
                signature=HotSignature(sign_digest(digest, self._me.keys.hot)),
            )
        )

    async def _sign_model(self, _peer: PeerId, body: bytes) -> bytes:
        record = await self._record(decode(ModelRequest, body).parent)
        return encode(
            ModelSignature(
                model_hash=Digest(record.model_hash),
                data_inventory_hash=Digest(record.data_inventory_hash),
                config_hash=Digest(record.config_hash),
                last_result=Digest(record.last_result),
                signature=HotSignature(sign_digest(self._me.deployment.digest(record), self._me.keys.hot)),
            )
        )

    async def _record(self, parent: Digest) -> ModelRecord:
        """The record of the run's model, from our own chain, data manifest and parameters.

        Raises:
            Unavailable: the run has not ended here, or the parent is not the model that it started from.
            ConfigError: our data folder is not the run's.
        """
        spec = self._me.spec
        calendar = self._follower.run_state.calendar
        result = await self._result(calendar.epochs - 1)
        if parent != NO_DIGEST:
            chain = await trio.to_thread.run_sync(open_chain, self._me)
            model = await trio.to_thread.run_sync(chain.model_of, parent)
            if spec.model.base == NO_DIGEST or model != spec.model.base:
                raise Unavailable(f"record {parent.hex()[:8]} is not of the model that this run started from")
        if self._trained_on is None:
            self._trained_on = await trio.to_thread.run_sync(self._read_inventory)
        last = result_digest(self._me.deployment, result)
        return model_record(spec, calendar, result, last, self._trained_on, parent)

    def _read_inventory(self) -> Digest:
        data = self._me.config.data
        try:
            return inventory(self._me.spec.data, read_manifest(data)).sha256()
        except ValueError as error:
            raise ConfigError(f"data {data}: {error}") from None

    async def _result(self, epoch: int) -> EpochResult:
        """The result we compute for an epoch that is ready to settle.

        Raises:
            Unavailable: it is not ready here.
        """
        if epoch not in self._follower.settlements:
            raise Unavailable(f"epoch {epoch} is not ripe here")
        if self._set_version is None:
            chain = await trio.to_thread.run_sync(open_chain, self._me)
            self._set_version = await trio.to_thread.run_sync(chain.set_version_of, self._me.run_id)
        version, previous = self._set_version, NO_DIGEST
        for earlier in range(epoch + 1):
            model = await self._state_sync.reach(self._follower.run_state.calendar.epoch_end(earlier))
            table = self._follower.settlements[earlier]
            result = epoch_result(self._me.spec, table, model, previous, version)
            previous = result_digest(self._me.deployment, result)
        return result

    async def _sign_slash_order(self, _peer: PeerId, body: bytes) -> bytes:
        slash_order, _ = self._charge(decode(SlashOrderRequest, body))
        return sign_digest(self._me.deployment.digest(slash_order), self._me.keys.hot)

    async def _sign_discharge(self, _peer: PeerId, body: bytes) -> bytes:
        """Our signature on the discharge of a node that has left, whoever asks for it.

        Raises:
            Unavailable: our chain, or evidence that no manifest carries, still binds it.
        """
        node = PeerId(body)
        reason = bound_by(self._follower.run_state, node) or self._known_against(node)
        if reason is not None:
            raise Unavailable(f"node {node[:4].hex()} is not discharged here: {reason}")
        if node not in self._discharges:
            account = evm_address(self._follower.run_state.nodes[node].member.account)
            left = Discharge(
                deployment_id=self._me.spec.deployment_id, run_id=self._me.run_id, account=account
            )
            message = self._me.deployment.digest(left)
            self._discharges[node] = sign_digest(message, self._me.keys.hot)
        return self._discharges[node]

    async def _sign_track_record(self, _peer: PeerId, body: bytes) -> bytes:
        """Our signature on the track record of a node that has ended, whoever asks for it.

        Raises:
            Unavailable: our chain, or evidence that no manifest carries, speaks against it.
        """
        node, run_state = PeerId(body), self._follower.run_state
        reason = no_track_record(run_state, node) or self._known_against(node)
        if reason is not None:
            raise Unavailable(f"node {node[:4].hex()} has no track record here: {reason}")
        if node not in self._track_records:
            said = track_record_of(self._me.run_id, run_state.nodes[node])
            message = self._me.deployment.digest(said.statement(self._me.spec.deployment_id))
            self._track_records[node] = sign_digest(message, self._me.keys.hot)
        return self._track_records[node]

    def _known_against(self, node: PeerId) -> str | None:
        """What we know against a node that no manifest carries, or do not know of it yet; None if nothing."""
        if any(name.endswith(f"/{node.hex()}") for name in self._me.store.values(EVIDENCE)):
            return "it signed two commits for one round"
        if not has_shown_list(self._me.store, self._follower.run_state, node):
            return "it has not shown its list of known-answer tasks"
        return None

    def _due(self) -> list[SlashOrderRequest]:
        """Every slash that the chain implies, of nodes and of verifiers."""
        nodes = [(step, NOBODY) for step in self._follower.confirmed]
        verifiers = [
            ((audit.round, audit.node), fault.verdict.verifier)
            for audit, fault in self._follower.failed.values()
        ]
        double_votes = [
            ((RoundId(0), NOBODY), peer)
            for peer, record in sorted(self._follower.run_state.verifiers.items())
            if record.double_vote != NO_DIGEST
        ]
        return [
            SlashOrderRequest(round=round_id, node=node, verifier=verifier)
            for (round_id, node), verifier in nodes + verifiers + double_votes
        ]

    def _charge(self, request: SlashOrderRequest) -> tuple[SlashOrder, tuple[PeerId, ...]]:
        """The slash a request names, and the seats whose holders prosecute it: those whose verdicts prove it.

        Raises:
            Unavailable: our chain does not imply it.
        """
        step, spec, run_id = (request.round, request.node), self._me.spec, self._me.run_id
        rotation = self._follower.run_state.rotation
        if request.verifier == NOBODY:
            confirmed = self._follower.confirmed.get(step)
            if confirmed is not None:
                account = self._follower.run_state.nodes[confirmed.node].member.account
                return slash_order_of(spec, run_id, confirmed, account, rotation), accusers_of(confirmed)
        record = self._follower.run_state.verifiers.get(request.verifier)
        if request.node == NOBODY and record is not None and record.double_vote != NO_DIGEST:
            others = tuple(
                one for one in spec.verifier_peers if rotation.configuration.key(one) != request.verifier
            )
            return double_vote_order_of(spec, run_id, request.verifier, record), others
        for audit, fault in self._follower.failed.values():
            if (audit.round, audit.node) == step and fault.verdict.verifier == request.verifier:
                return fault_ruling_of(spec, run_id, audit, fault, rotation), accusers_of(audit, fault)
        raise Unavailable(f"nothing to rule on round {request.round} of {request.node.hex()[:8]} here")

    # ---- prosecution ----

    def _sender(self) -> Chain:
        """The client of every try: it knows what it sent before, and how long that has waited."""
        self._chain = self._chain or open_chain(self._me)
        return self._chain

    async def _report_contradictions(self) -> None:
        """Report every contradiction of commits to the slash court; the pair alone is proof."""
        done: set[str] = set()
        while True:
            for name, body in self._me.store.values(EVIDENCE).items():
                if name not in done and await self._report(body):
                    done.add(name)
            await trio.sleep(RETRY_S)

    async def _report(self, body: bytes) -> bool:
        """Whether the node's stake is slashed, by our report or another's."""
        try:
            found = decode(Contradiction, body)
            both = (found.first, found.second)
            pair = [(commit_statement(self._me.spec, one.commit), one.statement) for one in both]
            chain = await trio.to_thread.run_sync(self._sender)
            await trio.to_thread.run_sync(chain.report_equivocation, *pair[0], *pair[1])
        except AssayError as error:
            log.warning("report not accepted yet", extra={"reason": str(error)})
            return False
        log.info("contradiction reported", extra={"node": found.first.commit.node.hex()[:8]})
        return True

    async def _prosecute(self, request: SlashOrderRequest, slash_order: SlashOrder, place: int) -> None:
        """Open the case with a quorum of signatures, if no earlier accuser has; settlers see it through."""
        await trio.sleep(TAKEOVER_S * place)
        fields = {"offender": slash_order.offender, "round": int(request.round)}
        while True:
            try:
                chain = await trio.to_thread.run_sync(self._sender)
                if await trio.to_thread.run_sync(chain.is_punished, slash_order.offence_id):
                    return
                if await trio.to_thread.run_sync(chain.is_beyond_cap, slash_order):
                    log.warning("no case: slash orders took all they may in these 30 days", extra=fields)
                    return
                judges = await trio.to_thread.run_sync(read_judges, chain, self._me.spec, self._me.run_id)
                body, method = encode(request), "sign-slash-order"
                signatures = await certified(
                    self._me, self._host, judges, slash_order, "slash order", method, body, self.handlers
                )
                await trio.to_thread.run_sync(chain.open_case, slash_order, signatures)
                log.info("case opened", extra=fields)
                return
            except AssayError as error:
                log.warning("prosecution retried", extra={"reason": str(error)})
                await trio.sleep(RETRY_S)
