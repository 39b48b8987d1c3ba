"""Drand: the network whose rounds a simulated run mixes into its draws, with signatures that cost nothing.

A round's signature is the SHA-384 of its number, and is on the servers from its release on, unless they are
down.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from assay.protocol.errors import Unavailable
from assay.protocol.randomness import drand
from assay.protocol.randomness.drand import QUICKNET, DrandSpec
from tests.simulation.one_thread import BEGUN_S, now_s

URL = "http://drand.simulated"
SPEC = DrandSpec(key=QUICKNET.key, genesis_s=BEGUN_S - 1000, period_s=1)


def signature(number: int) -> bytes:
    """The only one of a round."""
    return hashlib.sha384(b"drand" + number.to_bytes(8, "big")).digest()


@contextmanager
def published(is_down: Callable[[], bool]) -> Iterator[None]:
    """While this lasts, the servers answer if they are not down."""

    def answer(url: str) -> bytes:
        number = int(url.rsplit("/", 1)[1])
        if is_down() or now_s() < SPEC.genesis_s + (number - 1) * SPEC.period_s:
            raise Unavailable(f"{url}: there is no round {number}, or nobody")
        return json.dumps({"round": number, "signature": signature(number).hex()}).encode()

    def holds(_key: bytes, number: int, found: bytes) -> bool:
        return found == signature(number)

    with (
        mock.patch("assay.verifier.service.drand_client._get_bytes", answer),
        mock.patch.object(drand, "_holds", holds),
    ):
        yield
