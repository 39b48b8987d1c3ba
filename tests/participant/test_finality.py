"""What a process has read of its chain is final before the process ends, or it is told that it is not."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
import trio.testing

from assay.chain.state import Head
from assay.participant.wallet import finality
from assay.participant.wallet.finality import until_final
from assay.protocol.errors import Unavailable


class Chain:
    """A chain with a block a second, of which each is final ten seconds later; it may fork in block 5."""

    def __init__(self, *, is_final: bool = True, forks_s: float = float("inf")) -> None:
        self.is_final, self.forks_s = is_final, forks_s

    def head(self, at: str = "latest") -> Head:
        number = 5 + int(trio.current_time())
        number -= 10 if at == "finalized" else 0
        return Head(number=number if self.is_final or at == "latest" else 0, hash=b"a", time_s=number)

    def block_hash(self, _number: int) -> bytes:
        return b"a" if trio.current_time() < self.forks_s else b"b"


@pytest.fixture(autouse=True)
def _in_this_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time would run on while another thread is at work."""

    async def at_once(call: Any, *arguments: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return call(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)


def waited_s(chain: Any) -> float:
    """How long it is waited for, in virtual time."""

    async def main() -> float:
        await until_final(chain)
        return trio.current_time()

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_newest_block_is_waited_for_until_it_is_final():
    assert 10 <= waited_s(Chain()) <= 12


def test_a_block_that_was_reorganised_meanwhile_is_no_end():
    with pytest.raises(Unavailable, match="block 5 is another one now"):
        waited_s(Chain(forks_s=3))


def test_a_chain_that_finalises_nothing_is_waited_for_so_long(caplog, monkeypatch):
    monkeypatch.setattr(finality, "FINAL_S_MAX", 30)
    with caplog.at_level(logging.WARNING):
        assert 30 <= waited_s(Chain(is_final=False)) < 32
    assert "not final yet" in caplog.text
