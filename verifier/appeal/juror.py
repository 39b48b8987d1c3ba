"""Juror: what a process that follows a run knows of the operators which appeals of the run end at.

Room: verifier (edge: the network, a folder of evidence, the directory). Verifiers and watchtowers have one.
It asks the accused node for evidence, and the run's verifiers, who keep what the node signed for: a juror may
be unable to reach a node behind a router, and somebody may keep one off the network. What arrives is checked
by whoever recomputes before it counts.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

import trio

from assay.chain.commit_statement import evm_address
from assay.chain.state import DefencePhase
from assay.ledger.settlement.duties import AppealView, DefenceView
from assay.network.host import Host, PeerAddress
from assay.participant.config import Participant
from assay.participant.directory.find import announced_record, last_record
from assay.participant.files.evidence import evidence_files, evidence_path, notice_path
from assay.participant.follower import Follower
from assay.participant.wallet.claims import open_chain
from assay.protocol.encoding.codec import decode
from assay.protocol.errors import AssayError, MalformedMessage, Unavailable
from assay.protocol.messages import EvidenceRequest, SignedEvidenceNotice
from assay.protocol.types import Digest, PeerId
from assay.verifier.appeal.fetch import FETCH_S, FETCHES_MAX, keep, latest
from assay.verifier.audit.messages import JudgeOperator, question

log = logging.getLogger(__name__)
ASK_AGAIN_S = 60.0
ASKED_MAX = 64  # operators at a time
Wanted = tuple[Sequence[PeerId], EvidenceRequest, Path]  # of whose nodes, what, and where it is kept


class Juror:
    """Evidence that the accused showed, and judgements of operators by it."""

    def __init__(
        self,
        me: Participant,
        follower: Follower,
        recompute: Callable[[JudgeOperator], Awaitable[bool]],
    ) -> None:
        """Asks for nothing before `run`.

        Args:
            me: The participant.
            follower: Its chain of manifests.
            recompute: Whether a shown operator is right. Raises MalformedMessage where the evidence shows
                nothing, other errors where we cannot tell.
        """
        self._me, self._follower, self._recompute = me, follower, recompute
        self._asking: set[Path] = set()
        self._fetched: Counter[Path] = Counter()
        # A juror may sit in as many defences as there are signers.
        self._judged: dict[JudgeOperator, bool] = {}
        self._unable: dict[JudgeOperator, tuple[float, AssayError]] = {}  # since when, and why
        self._met: set[PeerId] = set()  # accused nodes that are not among our addresses
        self._wanted, self._wanting = trio.open_memory_channel[Wanted](ASKED_MAX)

    def knows(self, peer: PeerId) -> bool:
        """Whether a peer outside our addresses is an accused node that we dial."""
        return peer in self._met

    async def run(self, host: Host) -> None:
        """Fetch wanted evidence; ends only by cancellation."""
        async with trio.open_nursery() as nursery:
            async for nodes, request, path in self._wanting:
                nursery.start_soon(self._fetch, host, nursery, nodes, request, path)

    def heed(self, appeals: Sequence[AppealView]) -> None:
        """With a seat: get what jurors of these appeals may ask for, and drop what we got for others."""
        if self._me.me not in self._me.spec.seat_peers:
            return
        folder, open_now = self._me.config.folder, {view.case_id for view in appeals}
        for path in evidence_files(folder):
            is_open = any(path.name.startswith(case_id.hex()) for case_id in open_now)
            if not is_open and notice_path(path).exists():  # without one its owner put it there
                with suppress(OSError):  # tried again at the next look; the settler goes on
                    path.unlink()
                    notice_path(path).unlink()
        for view in appeals:
            for defence in view.defences:
                path = evidence_path(folder, view.case_id, defence.state.first)
                if defence.state.phase is DefencePhase.JURY:
                    self._want(view, defence.state.first, path)

    async def is_right(self, view: AppealView, defence: DefenceView) -> bool | None:
        """Whether the operator that is left is right; None if the accused has shown no evidence about it.

        Then the accused is asked for it, meanwhile, for whoever asks here again.

        Raises:
            AssayError: we cannot tell: the accused cannot know us, or the data are not here.
        """
        path = evidence_path(self._me.config.folder, view.case_id, defence.state.first)
        if not path.exists():
            if self._me.me not in self._me.spec.seat_peers:
                await trio.to_thread.run_sync(self._check_announced)
            self._want(view, defence.state.first, path)
            return None
        request = question(view.case_id, view.state.operators, defence.state, path)
        if request in self._judged:
            return self._judged[request]
        since, why = self._unable.get(request, (-ASK_AGAIN_S, None))
        if why is not None and trio.current_time() < since + ASK_AGAIN_S:
            raise why
        try:
            found = self._judged[request] = await self._recompute(request)
            return found
        except MalformedMessage as error:
            log.warning("evidence shows nothing", extra={"file": path.name, "reason": str(error)})
            path.unlink(missing_ok=True)  # the accused may show better
            return None
        except AssayError as error:
            log.warning("no vote yet: cannot recompute", extra={"file": path.name, "reason": str(error)})
            self._unable[request] = trio.current_time(), error
            raise

    def _check_announced(self) -> None:
        """An accused node knows a juror outside the run by the record that it announced last.

        Raises:
            Unavailable: that is not this process's: silence to us says nothing of the accused.
        """
        account = evm_address(self._me.keys.account_address)
        last = last_record(open_chain(self._me), account, int(time.time()))
        if last is None or last.record.peer != self._me.me:
            log.warning("no vote yet: announce this process's record", extra={"account": account})
            raise Unavailable(f"the accused cannot know {account}: assay network announce")

    def _want(self, view: AppealView, index: int, path: Path) -> None:
        """Have the accused asked, unless it is being asked already."""
        if path in self._asking or self._fetched[path] >= FETCHES_MAX:
            return
        request = EvidenceRequest(case_id=Digest(view.case_id), operator=index)
        nodes = [
            peer
            for peer, record in self._follower.run_state.nodes.items()
            if evm_address(record.member.account) == view.state.accused
        ]
        with suppress(trio.WouldBlock):  # asked for again with the next look
            self._wanted.send_nowait((nodes, request, path))
            self._asking.add(path)

    async def _fetch(
        self, host: Host, nursery: trio.Nursery, nodes: Sequence[PeerId], request: EvidenceRequest, path: Path
    ) -> None:
        """Ask for the accused's evidence once, and keep it as a file; nobody waits for this."""
        await self._meet(host, nursery, {*nodes} - {*self._me.addresses} - self._met)
        peers = (*nodes, *self._me.spec.seat_peers)
        try:
            shown, holders = await latest(host, peers, nodes, request, self._me.domain, self._me.spec)
            if not path.exists() or shown.notice.written_ns > _written_ns(path):
                self._fetched[path] += 1
                await keep(host, holders, shown, path, FETCH_S)
                log.info("evidence fetched", extra={"file": path.name, "holders": len(holders)})
        except (AssayError, OSError) as error:
            log.info("no evidence", extra={"file": path.name, "reason": str(error)})
        await trio.sleep(ASK_AGAIN_S)
        self._asking.discard(path)

    async def _meet(self, host: Host, nursery: trio.Nursery, nodes: Collection[PeerId]) -> None:
        """Stay connected from now on with nodes that are not among our addresses, where they can be found."""
        for node in nodes:
            try:
                place = await trio.to_thread.run_sync(self._place_of, node)
            except AssayError as error:
                log.info("accused not found", extra={"node": node.hex()[:8], "reason": str(error)})
            else:
                self._met.add(node)
                nursery.start_soon(host.keep_connected, [place])

    def _place_of(self, node: PeerId) -> PeerAddress:
        """Where a node is that came into the run later, by the record that it announced.

        Raises:
            AssayError: it announced none that verifies.
        """
        account = evm_address(self._follower.run_state.nodes[node].member.account)
        found = announced_record(open_chain(self._me), account, node, int(time.time()))
        if found is None:
            raise Unavailable(f"{account} announced no record")
        return PeerAddress(peer=node, host=found.record.host, port=found.record.port)


def _written_ns(path: Path) -> int:
    """When the accused wrote this file of evidence; later than any for one that its owner put there."""
    try:
        return decode(SignedEvidenceNotice, notice_path(path).read_bytes()).notice.written_ns
    except (OSError, MalformedMessage):
        return 1 << 64
