"""Serve: the server and what sends its webhooks live and end together."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest
import uvicorn

from assay.api.serve import _serve


async def answers(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nobody asks")


class Sending:
    """Stands for a delivery."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.is_cancelled = False

    async def run(self) -> None:
        if self.error is not None:
            raise self.error
        try:
            await asyncio.Event().wait()
        finally:
            self.is_cancelled = True


def serving(delivery: Any, *, stops_after_s: float | None) -> None:
    runner = uvicorn.Server(uvicorn.Config(answers, lifespan="off", log_config=None))

    async def run() -> None:
        if stops_after_s is not None:
            asyncio.get_running_loop().call_later(stops_after_s, setattr, runner, "should_exit", True)
        with socket.create_server(("127.0.0.1", 0)) as line:
            await asyncio.wait_for(_serve(runner, line, delivery), 20)

    began_s = time.monotonic()
    try:
        asyncio.run(run())
    finally:
        assert time.monotonic() - began_s < 10, "ended by the time-out of this test"


def test_a_server_that_cannot_send_any_more_stops_and_says_why():
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        serving(Sending(RuntimeError("a mistake of ours")), stops_after_s=None)


def test_sending_ends_with_the_server():
    delivery = Sending(None)
    serving(delivery, stops_after_s=0.3)
    assert delivery.is_cancelled
