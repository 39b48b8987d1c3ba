"""Guard: patches libp2p 0.8.1, once per process, so that no peer can crash or exhaust it.

Room: network (edge: it changes libp2p's classes; nothing else in Assay does).
Unpatched, one malformed frame from any connected peer ends the process. Each
patch below names the attack it stops, and tests/network/test_fuzz.py shows that
the same bytes kill a host without it. The version is pinned because private
methods are patched; an upgrade is decided by that test.

Only `Exception` is caught, at places where a task or a stream is supervised:
cancellation always passes through.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from libp2p.host.basic_host import BasicHost
from libp2p.io import msgio
from libp2p.io.exceptions import IncompleteReadError
from libp2p.network.connection import swarm_connection
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.swarm import Swarm
from libp2p.stream_muxer.yamux import yamux
from libp2p.tools.anyio_service.trio_manager import TrioManager
from libp2p.transport.tcp import tcp

from assay.network import limits

log = logging.getLogger(__name__)

_RESTART_S = 1.0

_is_hardened = False


def harden() -> None:
    """Patch libp2p in this process. Idempotent."""
    global _is_hardened
    if _is_hardened:
        return
    _is_hardened = True
    _contain_tasks()
    _contain_streams()
    _bound_yamux()
    _release_inbound_slots()
    _refuse_shared_port()
    _read_to_the_end()
    _quiet_logs()


def _contain_tasks() -> None:
    # Any exception in a task of the swarm or of pubsub cancels the whole service.
    start = TrioManager.run_task

    def run_task(
        self: TrioManager,
        fn: Callable[..., Awaitable[Any]],
        *args: Any,
        daemon: bool = False,
        name: str | None = None,
        _internal: bool = False,
    ) -> None:
        if not _internal:
            fn = _restarting(fn) if daemon else _logging(fn)
        start(self, fn, *args, daemon=daemon, name=name, _internal=_internal)

    TrioManager.run_task = run_task


def _logging(fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(fn)
    async def run(*args: Any) -> None:
        try:
            await fn(*args)
        except Exception as error:
            log.info("libp2p task ended", extra={"task": fn.__name__, "error": _error_text(error)})

    return run


def _restarting(fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(fn)
    async def run(*args: Any) -> None:
        while True:
            try:
                await fn(*args)
                return
            except Exception as error:
                log.warning(
                    "libp2p service task failed", extra={"task": fn.__name__, "error": _error_text(error)}
                )
                await trio.sleep(_RESTART_S)

    return run


def _contain_streams() -> None:
    # A handler that raises, or a negotiation that fails oddly, must end its own stream only.
    handle = BasicHost._swarm_stream_handler

    async def handle_safely(self: BasicHost, stream: Any) -> None:
        try:
            await handle(self, stream)
        except Exception as error:
            log.debug("stream ended", extra={"error": _error_text(error)})
            await reset_quietly(stream)

    BasicHost._swarm_stream_handler = handle_safely

    accept = SwarmConn._handle_muxed_stream

    async def accept_bounded(self: SwarmConn, muxed_stream: Any) -> None:
        # Counted here, without an await between check and count: libp2p's own set is filled later.
        serving = getattr(self, "assay_serving", 0)
        if serving >= limits.STREAMS_PER_CONNECTION_MAX:
            log.info("too many streams", extra={"stranger": str(self.muxed_conn.peer_id)})
            await reset_quietly(muxed_stream)
            return
        self.assay_serving = serving + 1
        try:
            await accept(self, muxed_stream)
        except Exception as error:
            log.debug("stream refused", extra={"error": _error_text(error)})
        finally:
            self.assay_serving -= 1

    SwarmConn._handle_muxed_stream = accept_bounded


class WindowOverrun(trio.TooSlowError):
    """A peer sent more than its window allows.

    It derives from the one exception that Yamux's reader answers by closing the
    connection; all others it logs, and continues buffering (187 MiB were measured).
    """


def _bound_yamux() -> None:
    yamux.MAX_WINDOW_SIZE = limits.WINDOW_BYTES_MAX  # 16 MiB per stream otherwise
    yamux.MAX_MESSAGE_SIZE = limits.NOISE_PLAINTEXT_BYTES_MAX  # larger ones are split over two

    def get(self: Any) -> int:
        return int(self.__dict__["recv_window"])

    def put(self: Any, value: int) -> None:
        if value < 0:
            raise WindowOverrun(f"stream {self.stream_id}: {-value} bytes above the window")
        self.__dict__["recv_window"] = value

    yamux.YamuxStream.recv_window = property(get, put)

    # libp2p answers every read, of a single byte too, with a window update: three of four frames that a
    # verifier sent, and with each the window doubled. Yamux itself asks for one when half a window is free.
    update = yamux.YamuxStream._auto_tune_and_send_window_update

    async def update_at_half(self: Any, *, bytes_read: int = 0) -> None:
        self._pending_recv_release += bytes_read
        if self._pending_recv_release >= self.target_recv_window // 2:
            await update(self)

    yamux.YamuxStream._auto_tune_and_send_window_update = update_at_half


def _release_inbound_slots() -> None:
    # libp2p holds an inbound connection's slot until the whole swarm stops, so 250 connections
    # in a lifetime, from any source, would leave a host that accepts none. Wait for the
    # connection instead.
    async def handle(self: Swarm, closer: Any, maddr: Any, _event: Any) -> None:
        raw = RawConnection(closer, False)
        try:
            muxed = await self.upgrade_inbound_raw_conn(raw, maddr)
            await muxed.event_closed.wait()
        except Exception as error:
            log.debug("inbound connection refused", extra={"error": _error_text(error)})
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(1):
                await _close_quietly(raw)

    Swarm._do_handle_inbound_connection = handle


def _refuse_shared_port() -> None:
    # libp2p listens with SO_REUSEPORT for hole punching; a second host on the same port would
    # then start without an error and take half of the connections.
    def set_flags(sock: Any) -> None:
        sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_REUSEADDR, 1)

    tcp._set_reuse_flags = set_flags


def _read_to_the_end() -> None:
    # libp2p gives up after 101 reads, which a path with small segments reaches by itself.
    async def read_exactly(reader: Any, n: int, retry_count: int = 0) -> bytes:
        parts = bytearray()
        while len(parts) < n:
            piece = await reader.read(n - len(parts))
            if not piece:
                raise IncompleteReadError(
                    f"connection closed: {n} bytes expected, {len(parts)} received",
                    expected_bytes=n,
                    received_bytes=len(parts),
                )
            parts += piece
        return bytes(parts)

    msgio.read_exactly = read_exactly
    yamux.read_exactly = read_exactly


def _quiet_logs() -> None:
    # libp2p logs at ERROR what any peer can cause at any rate, and one module writes to the root
    # logger. This package logs what an operator needs.
    logging.getLogger("libp2p").setLevel(logging.CRITICAL)
    swarm_connection.logging = logging.getLogger("libp2p.network.connection")


async def reset_quietly(stream: Any) -> None:
    """Reset a stream within a second, whatever state it and its connection are in."""
    with trio.CancelScope(shield=True), trio.move_on_after(1):
        try:
            await stream.reset()
        except Exception as error:
            log.debug("reset ended", extra={"error": _error_text(error)})


async def _close_quietly(raw: RawConnection) -> None:
    try:
        await raw.close()
    except Exception as error:
        log.debug("close ended", extra={"error": _error_text(error)})


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[: limits.REASON_CHARS_MAX]
