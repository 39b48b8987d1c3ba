"""Follower: keeps one participant's verified copy of the finalised chain, and fetches what is missing.

Room: participant (edge: store and host). Certified manifests are checked before they are
stored, so any peer may send them.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Sequence
from pathlib import Path

import trio

from assay.ledger.settlement.payouts import Settlement, settle
from assay.network.host import Host
from assay.network.limits import FETCH_HOLDERS_AT_ONCE
from assay.participant.links import extend
from assay.participant.store import Store
from assay.protocol.auditing.audits import Audit, AuditStatus, Fault
from assay.protocol.encoding.codec import decode, encode, encode_list
from assay.protocol.errors import AssayError, MalformedMessage, OutOfPhase, PeerFault, Unavailable
from assay.protocol.identity import Domain, verify
from assay.protocol.messages import (
    CertifiedManifest,
    FundingReport,
    ManifestRange,
    SignedFundingReport,
    StepRequest,
)
from assay.protocol.params import RunSpec
from assay.protocol.permitted import with_reports
from assay.protocol.run_state import RunState, StepId, start
from assay.protocol.types import NO_DIGEST, NO_PEER, Digest, PeerId

log = logging.getLogger(__name__)
LINKS_MAX, LINKS_BYTES_MAX = 256, 900_000  # of one response
TAKEN_AT_ONCE = 16  # of its manifests, before other tasks have their turn
POLL_S = 2.0
CONNECT_S = 0.1  # until we look again whether there is anybody to ask
PROMPT_S = 1.0  # an answer later than this keeps nobody else waiting
FRUITLESS_S = 0.5  # before asking again when nobody had what a peer's manifest promised: it may be made up
BLOB_BYTES_MAX = 256 << 20
_NOBODY = PeerId(NO_DIGEST)


class Follower:
    """The finalised chain up to the newest known manifest, its run state, and waiting for its growth."""

    def __init__(self, spec: RunSpec, run_id: Digest, store: Store) -> None:
        """Replay what the store holds; every signature is checked again.

        Raises:
            MalformedMessage, PeerFault: the store is damaged.
        """
        self._store = store
        self.run_state: RunState = start(spec, run_id)
        self.settlements: dict[int, Settlement] = {}  # of every final epoch
        self.confirmed: dict[StepId, Audit] = {}  # of the whole run
        self.failed: dict[Digest, tuple[Audit, Fault]] = {}  # verifiers' faults, likewise
        self._reports: dict[PeerId, FundingReport] = {}  # that no manifest carries yet
        for certified in store.links():
            self._fold(extend(self.run_state, certified))
        self._news = trio.Event()
        self._lagging = trio.Event()  # set when a peer has a newer manifest, or may tell us one now
        self._is_level = False  # whether over a third of our peers had nothing newer than we, once

    def take(self, certified: CertifiedManifest) -> bool:
        """Check, store and apply the next certified manifest; False if it is not the next one.

        Raises:
            MalformedMessage, PeerFault: the manifest or its certificate is invalid.
        """
        return self._take([certified]) > 0

    def _take(self, links: Sequence[CertifiedManifest]) -> int:
        """Check, store and apply those of these that are next, in order; how many they are.

        Raises:
            MalformedMessage, PeerFault: one of them is invalid; those before it are taken.
        """
        run_state, taken = self.run_state, list[tuple[CertifiedManifest, RunState]]()
        try:
            for certified in links:
                if certified.manifest.round > run_state.round:
                    self._lagging.set()
                if certified.manifest.round == run_state.round:
                    run_state = extend(run_state, certified)
                    taken.append((certified, run_state))
        finally:
            if taken:
                self._store.add_links([certified for certified, _ in taken])
                for _, after in taken:
                    self._fold(after)
                self._wake()
        return len(taken)

    def look(self) -> None:
        """Have `poll` ask at once: some peer may answer us now that did not."""
        self._lagging.set()

    async def level(self) -> None:
        """Wait until over a third of our peers, so not liars alone, had nothing newer than we."""
        while not (self._is_level or self.run_state.is_complete):
            await self._news.wait()

    @property
    def is_funded(self) -> bool:
        """Whether the next round trains and is paid for, by reports that its manifest may carry too."""
        seat_of = self.run_state.seat_of  # who gave a seat up since speaks for it no more
        present = [one for sender, one in self._reports.items() if seat_of(sender) == one.verifier]
        return with_reports(self.run_state, present).is_funded

    def hear(self, sender: PeerId, signed: SignedFundingReport) -> None:
        """Keep a verifier's newest report on the escrow until a manifest carries it.

        Raises:
            OutOfPhase: the sender gave its seat up, or will have it: one of us has not heard of it yet.
            PeerFault, MalformedMessage: it is not the sender's, who must be a verifier of this run.
        """
        report, spec = signed.funding_report, self.run_state.spec
        seat = self.run_state.seat_of(sender)
        if seat == NO_PEER and sender in spec.seat_peers:
            raise OutOfPhase(sender, "FundingReport without a seat")
        if seat != report.verifier or seat == NO_PEER:
            raise PeerFault(sender, f"sends a FundingReport of {report.verifier.hex()[:8]}")
        verify(sender, Domain(spec.deployment_id, self.run_state.run_id), report, signed.signature)
        known = self._reports.get(sender)
        if known is None or known.block < report.block:
            self._reports[sender] = report
            self._wake()

    async def funded(self) -> None:
        """Wait until the next round `is_funded`."""
        while not self.is_funded:
            await self._news.wait()

    def _wake(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def _fold(self, run_state: RunState) -> None:
        self.run_state = run_state
        self.confirmed |= {
            step: a for step, a in run_state.audits.items() if a.ruling is AuditStatus.CONFIRMED
        }
        self.failed |= {f.offence_id: (a, f) for a in run_state.audits.values() for f in a.faults}
        ripe = run_state.calendar.ripe_at(int(run_state.round) - 1)
        if ripe is not None:
            self.settlements[ripe] = settle(run_state, ripe)

    async def grown(self, beyond: int) -> RunState:
        """Wait until more than `beyond` manifests are final."""
        while self.run_state.round <= beyond:
            await self._news.wait()
        return self.run_state

    async def answer_links(self, _peer: PeerId, body: bytes) -> bytes:
        """Handler of `links`: certified manifests from a round on, as many as fit."""
        first = decode(StepRequest, body).number
        links: list[bytes] = []
        if first < self.run_state.round:
            for body in self._store.link_bodies(first, LINKS_MAX):
                if links and sum(map(len, links)) + len(body) > LINKS_BYTES_MAX:
                    break
                links.append(body)  # as it is stored: decoding it would cost a peer nothing and us everything
        return encode_list(ManifestRange, links)

    async def ask(self, host: Host, peer: PeerId) -> None:
        """Fetch missing certified manifests from one peer.

        Raises:
            PeerFault, MalformedMessage, Unavailable: the peer's answer is invalid or missing.
        """
        request = encode(StepRequest(number=int(self.run_state.round), node=_NOBODY))
        answer = decode(ManifestRange, await host.request(peer, "links", request, timeout_s=20))
        for at in range(0, len(answer.links), TAKEN_AT_ONCE):
            self._take(answer.links[at : at + TAKEN_AT_ONCE])
            await trio.lowlevel.checkpoint()

    async def is_newest(self, host: Host, peers: Sequence[PeerId]) -> bool:
        """Whether more than half of these peers, ourselves counted, answer, and none has a newer manifest.

        All are asked at once, and nothing is taken.
        """
        request = encode(StepRequest(number=int(self.run_state.round), node=_NOBODY))
        has_news: list[bool] = []

        async def ask(peer: PeerId) -> None:
            try:
                links = decode(ManifestRange, await host.request(peer, "links", request, timeout_s=20)).links
                news = [one for one in links if one.manifest.round == self.run_state.round]
                for one in news:
                    extend(self.run_state, one)  # it may be made up
            except (PeerFault, MalformedMessage, Unavailable) as error:
                log.info("no word of newer manifests", extra={"peer": peer.hex()[:8], "reason": str(error)})
            else:
                if news or not links:  # else we have them by now, and there may be more
                    has_news.append(bool(news))

        async with trio.open_nursery() as nursery:
            for peer in set(peers).intersection(host.connected()):
                nursery.start_soon(ask, peer)
        return bool(has_news) and not any(has_news) and 2 * (len(has_news) + 1) > len(set(peers))

    async def poll(self, host: Host, peers: Sequence[PeerId]) -> None:
        """Query peers at first, and whenever the chain has not grown for a while.

        Ends only by cancellation.
        """
        while set(peers).isdisjoint(host.connected()):
            await trio.sleep(CONNECT_S)
        self.look()
        while not self.run_state.is_complete:
            before = self.run_state.round
            with trio.move_on_after(POLL_S):
                await self._lagging.wait()
            if self._lagging.is_set() or self.run_state.round == before:
                self._lagging = trio.Event()
                await self.catch_up(host, peers)
                if self.run_state.round == before:
                    await trio.sleep(FRUITLESS_S)
        await trio.sleep_forever()

    async def catch_up(self, host: Host, peers: Sequence[PeerId]) -> None:
        """Query peers in turns, in random order, until none has news; the first without any is believed
        by one who was `level` before.

        One that is slow delays the next by a second, by two if that one is slow as well, and so on, and has
        its next turn only after its answer: it may send one manifest at a time, just before it is given up.
        One without news may lie, or be as far behind, while another's answer is on its way: it has its next
        turn after a while, and so has one that is not connected yet or refuses, else a liar could be the only
        one that we ask. Answers are awaited until over two thirds have no news: not all of these are liars
        or behind, as a third lies at most, and over two thirds have signed each manifest.
        """
        willing, first = list(peers), self.run_state.round
        random.shuffle(willing)
        awaited, fruitless = set[PeerId](), set[PeerId]()
        async with trio.open_nursery() as nursery:

            async def turn(peer: PeerId) -> None:
                before, has_answered = self.run_state.round, False
                try:
                    await self.ask(host, peer)
                    has_answered = True
                except (PeerFault, MalformedMessage, Unavailable) as error:
                    if peer in host.connected():
                        told = {"peer": peer.hex()[:8], "reason": str(error)}
                        log.info("manifests not fetched", extra=told)
                awaited.remove(peer)
                is_last = not awaited and not willing
                if self.run_state.round > before:
                    fruitless.clear()
                elif has_answered:
                    fruitless.add(peer)
                    if 3 * len(fruitless) > len(peers):
                        self._is_level = True
                        self._wake()
                    is_last |= not awaited and self.run_state.round == first and self._is_level
                    is_last |= 3 * len(fruitless) > 2 * len(set(peers).intersection(host.connected()))
                if is_last and self.run_state.round == before:
                    nursery.cancel_scope.cancel()
                answered.set()
                if not has_answered or peer in fruitless:
                    await trio.sleep(POLL_S)
                willing.append(peer)

            while willing or nursery.child_tasks:
                answered = trio.Event()
                if willing:
                    awaited.add(peer := willing.pop(0))
                    nursery.start_soon(turn, peer)
                with trio.move_on_after(PROMPT_S * 2 ** len(awaited) / 2):
                    await answered.wait()


async def fetch_blob(
    host: Host,
    digest: Digest,
    holders: Sequence[PeerId],
    deadline_s: float,
    size_max: int = BLOB_BYTES_MAX,
    first: PeerId | None = None,
    last: Collection[PeerId] = (),
    path: Path | None = None,
) -> bytes:
    """Download a blob from the connected ones of `holders`, as `Host.fetch` does; retried until the deadline.

    They are asked in a random order, but `first` before all others, and alone while chunks come from it, and
    those in `last` after all others.

    Raises:
        Unavailable: it was not complete in time.
    """
    reason = "nobody is connected"
    with trio.move_on_after(deadline_s):
        while True:
            willing = [peer for peer in holders if peer in host.connected()]
            random.shuffle(willing)
            willing.sort(key=lambda peer: (peer != first, peer in last))
            at_once = 1 if first in willing else FETCH_HOLDERS_AT_ONCE
            if willing:
                try:
                    return await host.fetch(
                        digest, holders=willing, size_max=size_max, deadline_s=deadline_s, at_once=at_once,
                        path=path,
                    )  # fmt: skip
                except AssayError as error:
                    reason = str(error)
            await trio.sleep(0.5)
    raise Unavailable(f"blob {digest.hex()[:8]}: {reason}")
