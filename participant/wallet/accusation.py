"""Accusation: has a quorum of verifiers make a step again that somebody found false, and sign a slash order.

Room: participant (edge: the chain and the network). Verifiers look into it once the run is over, or the node
has left: see verifier/service/accusations.py. The accuser commits to its report first, so that nobody who
hears of it can make it in its place; the order that verifiers sign names it as the challenger.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Set
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from assay.chain.statements import BadSignatureError, SlashOrder, certificate, recover
from assay.ledger.settlement.results import accused_order_of
from assay.network.blob_store import DiskBlobs
from assay.network.host import Host, RemoteError, open_host
from assay.participant.config import addresses_of, records_of
from assay.participant.files.record import read_records
from assay.participant.task_lists import SHOW_S, find_list
from assay.participant.wallet.account import Account
from assay.participant.wallet.judges import Judges, read_judges
from assay.protocol.agreement.quorum import quorum
from assay.protocol.auditing.audits import case_id_of
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import AssayError, Unavailable
from assay.protocol.messages import Accusation, Commit, TaskList
from assay.protocol.run_state import RunState
from assay.protocol.types import Address, Digest, PeerId

ANSWER_S = 30.0
CONNECTED_S = 10.0  # until all verifiers, or those that are there, are connected
ASK_AGAIN_S = 5.0
PATIENCE_S = 86_400.0  # a verifier may have a thousand steps to make again, and others' accusations before


def certified_order(account: Account, commit: Commit, offender: Address) -> tuple[SlashOrder, bytes]:
    """The slash order about a step, and a quorum's signatures on it, once they have made the step again.

    Args:
        account: The accuser's, with stake or as the run's buyer; the court gets its commitment first.
        commit: Of the step.
        offender: The account of its node.

    Raises:
        Unavailable: no quorum signs; with their reasons.
        ChainRefused: of the commitment.
    """
    salt = account.chain.commit_to_report(case_id_of(commit))
    me = Address(account.keys.account_address)
    accusation = Accusation(round=commit.round, node=commit.node, account=me, salt=Digest(salt))
    order = accused_order_of(account.spec, account.run_id, commit, offender, me)
    message = account.deployment.digest(order)
    judges = read_judges(account.chain, account.spec, account.run_id)
    asked = _Asked(message, judges, quorum(len(account.spec.judges)))

    async def main() -> None:
        async with _verifiers(account) as (host, places):
            await _ask_all(host, asked, encode(accusation), places)

    trio.run(main)
    if len(asked.signatures) < asked.needed:
        listed = "; ".join(asked.reasons())
        raise Unavailable(
            f"{len(asked.signatures)} verifiers sign the slash order, expected {asked.needed}; {listed}"
        )
    return order, certificate(message, list(asked.signatures.values()))


def list_of(account: Account, run_state: RunState, node: PeerId) -> TaskList | None:
    """The list of a node's known-answer tasks, from the first of the run's verifiers that shows it."""

    async def main() -> TaskList | None:
        async with _verifiers(account) as (host, places):
            with trio.move_on_after(CONNECTED_S):
                while not places <= host.connected():
                    await trio.sleep(SHOW_S / 10)
            return await find_list(host, sorted(places & host.connected()), run_state, node)

    return trio.run(main)


@asynccontextmanager
async def _verifiers(account: Account) -> AsyncIterator[tuple[Host, Set[PeerId]]]:
    """A host that connects to the run's verifiers as a stranger, and who they are."""
    records = read_records(account.config.records, int(time.time()))
    known = addresses_of(records_of(account.run_file, records))
    places = [known[peer] for peer in account.spec.seat_peers if peer in known]
    peers = {place.peer for place in places}
    with tempfile.TemporaryDirectory(prefix="assay-accusation-") as folder:
        async with (
            open_host(
                seed=secrets.token_bytes(32),
                listen_port=0,
                network_id=account.run_id.hex()[:16],
                is_member=peers.__contains__,
                handlers={},
                blobs=DiskBlobs(Path(folder), bytes_max=0),
            ) as host,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(host.keep_connected, places)
            yield host, peers
            nursery.cancel_scope.cancel()


class _Asked:
    """What verifiers have answered so far."""

    def __init__(self, message: bytes, judges: Judges, needed: int) -> None:
        self.message, self.judges, self.needed = message, judges, needed
        self.signatures: dict[PeerId, bytes] = {}
        self.refusals: dict[PeerId, str] = {}

    def take(self, verifier: PeerId, body: bytes) -> None:
        """Take an answer: a signature, or nothing yet."""
        try:
            if body and recover(self.message, body) == self.judges.hot_keys[verifier]:
                self.signatures[verifier] = body
            elif body:
                self.refusals[verifier] = "it signs something else"
        except BadSignatureError as error:
            self.refusals[verifier] = str(error)

    @property
    def is_decided(self) -> bool:
        """Whether a quorum signed, or cannot any more."""
        left = len(self.judges.hot_keys) - len(self.refusals)
        return len(self.signatures) >= self.needed or left < self.needed

    def reasons(self) -> Iterator[str]:
        """Why each of them does not sign."""
        for verifier in sorted(self.judges.hot_keys.keys() - self.signatures.keys()):
            yield f"{verifier.hex()[:8]}: {self.refusals.get(verifier, 'no answer')}"


async def _ask_all(host: Host, asked: _Asked, body: bytes, peers: Set[PeerId]) -> None:
    """Ask until it is decided: who we are is the commitment's matter."""
    with trio.move_on_after(PATIENCE_S):
        while not asked.is_decided:
            async with trio.open_nursery() as round_of_questions:
                for verifier in peers & host.connected() - asked.signatures.keys() - asked.refusals.keys():
                    round_of_questions.start_soon(_ask, host, verifier, asked, body)
            if not asked.is_decided:
                await trio.sleep(ASK_AGAIN_S)


async def _ask(host: Host, verifier: PeerId, asked: _Asked, body: bytes) -> None:
    try:
        asked.take(verifier, await host.request(verifier, "accuse", body, timeout_s=ANSWER_S))
    except RemoteError as error:
        asked.refusals[verifier] = str(error)
    except AssayError:  # it is gone, or busy: asked again
        pass
