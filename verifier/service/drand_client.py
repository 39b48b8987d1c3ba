"""Drand client: fetches the rounds of a drand network that manifests name.

Room: verifier (edge: HTTP in a thread). Servers need not be trusted: a round has exactly one valid signature,
which is checked before any other code sees it. A server that is slow, wrong or down costs a try at the next
one.
"""

from __future__ import annotations

import http.client
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

import trio

from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import MalformedMessage, Unavailable
from assay.protocol.randomness.drand import SIGNATURE_BYTES, DrandSpec, check_signature, released_s
from assay.verifier.round.drand import KEPT

log = logging.getLogger(__name__)
ANSWER_BYTES_MAX = 1 << 16
TIMEOUT_S = 5.0  # for a whole answer
THREADS_PER_SERVER = 4  # one that never ends its answers keeps these, and is asked no more meanwhile
RETRY_S = 0.5
GIVE_UP_S = 600  # a round that no server has returned by then is of no use any more


class DrandClient:
    """Fetches every wanted round as soon as it is out."""

    def __init__(self, spec: DrandSpec, urls: Sequence[str], released: Callable[[int, bytes], None]) -> None:
        """
        Args:
            spec: The network.
            urls: Its addresses, each as in `https://api.drand.sh/<chain hash>`; tried in turn, beginning
                with the one that answered last.
            released: Called with a round's number and its checked signature.
        """
        self._spec, self._urls, self._released = spec, tuple(url.rstrip("/") for url in urls), released
        self._threads = {url: trio.CapacityLimiter(THREADS_PER_SERVER) for url in self._urls}
        self._turn = 0  # index of the server that is asked first
        self._wanted, self._numbers = trio.open_memory_channel[int](KEPT)
        self._seen: set[int] = set()

    def want(self, number: int) -> None:
        """Fetch this round once it is out. Asking again is harmless."""
        if number in self._seen:
            return
        try:
            self._wanted.send_nowait(number)
        except trio.WouldBlock:  # the manifests that follow name others
            log.warning("drand round not queued", extra={"number": number})
            return
        self._seen = {*sorted(self._seen)[-KEPT:], number}

    async def run(self) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            async for number in self._numbers:
                nursery.start_soon(self._get, number)

    async def _get(self, number: int) -> None:
        released = released_s(self._spec, number)
        await trio.sleep(max(0.0, released - time.time()))
        with trio.move_on_after(GIVE_UP_S):
            turn = self._turn
            while True:
                url = self._urls[turn % len(self._urls)]
                try:
                    signature = await self._ask(url, number)
                except (Unavailable, MalformedMessage) as error:
                    log.info("drand round unavailable", extra={"number": number, "reason": str(error)})
                    turn += 1
                    await trio.sleep(RETRY_S)
                    continue
                self._turn = turn % len(self._urls)
                self._released(number, signature)
                return
        log.warning("drand round given up", extra={"number": number})

    async def _ask(self, url: str, number: int) -> bytes:
        """A round's signature from one server, checked.

        Raises:
            Unavailable: no answer in time, or no well-formed one.
            MalformedMessage: the answer is not the round's signature.
        """
        with trio.move_on_after(TIMEOUT_S) as scope:
            body = await trio.to_thread.run_sync(
                _get_bytes,
                f"{url}/public/{number}",
                abandon_on_cancel=True,  # type: ignore[call-arg]  # the stubs are of an older trio
                limiter=self._threads[url],
            )
        if scope.cancelled_caught:
            raise Unavailable(f"{url}: no whole answer in {TIMEOUT_S:g} s")
        return await trio.to_thread.run_sync(
            self._checked,
            body,
            number,
            abandon_on_cancel=True,  # type: ignore[call-arg]
        )

    def _checked(self, body: bytes, number: int) -> bytes:
        signature = read_answer(body, number)
        check_signature(self._spec, number, signature)
        return signature


def read_answer(body: bytes, number: int) -> bytes:
    """The signature in a drand node's answer.

    Raises:
        MalformedMessage: it has none, or is for another round.
    """
    try:
        fields = parse_json(body)
        found, text = fields["round"], fields["signature"]
        signature = bytes.fromhex(text)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise MalformedMessage(f"drand round {number}: an answer that is none: {body[:80]!r}") from None
    if type(found) is not int or found != number:
        raise MalformedMessage(f"drand round {number}: the answer is of round {str(found)[:40]}")
    if len(signature) != SIGNATURE_BYTES:
        raise MalformedMessage(f"drand round {number}: a signature of {len(signature)} bytes")
    return signature


def _get_bytes(url: str) -> bytes:
    """The body of an answer. A socket's timeout ends only a silence, so the body has its own deadline."""
    deadline, body = time.monotonic() + TIMEOUT_S, b""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            while len(body) < ANSWER_BYTES_MAX and (piece := answer.read1(ANSWER_BYTES_MAX - len(body))):
                body += piece
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no whole answer in {TIMEOUT_S:g} s")
            return body
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise Unavailable(f"{url}: {error}") from None
