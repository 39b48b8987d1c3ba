"""Limits: every bound on memory, work and waiting that a peer can cause, with its cost.

Room: network (pure). No other module of this package writes a bound as a number. Sizes
are bytes, times are seconds. A peer is a registered member; any other host gets one
handshake and nothing else, or, where strangers may apply, one of a few connections for seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * 1024

# --- frames: checked against the length prefix, before anything is read -----------------------------
NOTIFICATION_BYTES_MAX = 256 * KIB  # one message of the protocol; bulk bytes are blobs
REQUEST_BYTES_MAX = 256 * KIB  # body of a request
RESPONSE_BYTES_MAX = 1 * MIB  # body of a response; larger answers are blobs
METHOD_BYTES_MAX = 64  # name of a method
REASON_CHARS_MAX = 200  # error text that a peer may put into our logs
FRAME_OVERHEAD_BYTES = 128  # ids and names beside a body
CHUNK_LIST_BYTES_MAX = 4 * MIB  # 128Ki chunks: blobs up to 32 GiB

# --- connections and streams ---------------------------------------------------------------------
CONNECTIONS_MAX = 300  # each costs about 150 KiB idle, and at most the window below per stream
STRANGERS_MAX = 16  # of them, where non-members may apply; each ends with the next round of pings
CONNECTIONS_PER_PEER_MAX = 3  # two may arise when both sides dial at once
STREAMS_PER_CONNECTION_MAX = 64  # one more is reset at once
WINDOW_BYTES_MAX = 4 * MIB  # receive window per stream: what a stalled handler can hold
CTL_STREAMS_PER_PEER_MAX = 2  # the newest is kept: a reconnecting peer must not wait for its old stream
BLOB_STREAMS_PER_PEER_MAX = 4
BLOB_STREAMS_KEPT = 2  # of ours, at each holder, between two pulls
# Beyond, one ends that has waited a second for a request; else who has fewer takes a place of who has most.
BLOB_STREAMS_MAX = 32  # 32 streams x 8 chunks x 256 KiB = 64 MiB in flight
CHUNKS_IN_FLIGHT = 8  # per blob stream; 2 MiB covers 100 ms at 160 Mbit/s
FETCH_HOLDERS_AT_ONCE = 2  # a fetch reads from this many holders side by side, and more while nothing comes
HOLDER_ATTEMPTS = 3  # attempts of one fetch at the same holder after a break without fault
CHUNK_LISTS_CACHED = 256  # 32 bytes per chunk each: 10 MB blobs cost 0.3 MiB together
NOISE_PLAINTEXT_BYTES_MAX = 65535 - 16  # of one Noise message
WRITE_BYTES = NOISE_PLAINTEXT_BYTES_MAX - 12  # one write to a stream: one Yamux frame in one Noise message
READ_BYTES = 256 * KIB  # one read from a stream, which answers with one window update

# --- queues ----------------------------------------------------------------------------------------
OUTBOX_FRAMES_MAX = 1024  # per peer; beyond, the oldest notification is dropped
OUTBOX_BYTES_MAX = 2 * MIB  # per peer: 64 silent peers cost 128 MiB
NOTIFICATIONS_PER_PEER_PER_S = (
    500.0  # beyond this rate a peer's stream is read more slowly; nothing is lost yet
)
NOTIFICATIONS_PER_PEER_BURST = 1000.0
INBOX_NOTIFICATIONS_PER_PEER = 256  # queued notifications, per sender
INBOX_BYTES_PER_PEER = 4 * MIB  # the same in bytes, for large notifications
SPENT_HALF_S = 10.0  # in which half of the processor time is forgotten that a peer took
REPLIES_MAX = 64  # frames waiting for a peer that does not read; beyond, its stream is reset
REQUESTS_PER_PEER_MAX = 16  # handlers running and responses unsent for one peer; beyond, it gets "busy"
PENDING_REQUESTS_MAX = 256  # our own, per peer
LIGHT_S = 0.25  # who took less lately need not wait for its turn: 1.7 % of a core, in the long run
PASS_S = 0.00025  # in which steps of others may begin in each pass of the event loop; later ones take turns
STEPS_AT_ONCE = 1  # of work for peers, in each later pass
HASH_THREADS = 2  # threads for hashing and disk of our own fetches
SERVE_THREADS = 2  # the same for the blobs that peers read
PINGS_PER_PEER_PER_S = 5.0  # fifty times what a host sends; beyond, a peer's stream is reset
PINGS_PER_PEER_BURST = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """All timeouts of a host, in seconds unless named otherwise. Tests shorten them; operators do not."""

    ping_interval_s: float = 10.0
    ping_misses: int = 3  # this many unanswered pings in a row end the connection
    redial_min_s: float = 1.0  # backoff after a failed dial, doubled up to the next line
    redial_max_s: float = 30.0
    redial_jitter: float = 0.3  # share of the wait that is random, so that peers do not dial in step
    dial_s: float = 10.0
    polite_dial_s: float = 0.5  # the larger key waits this long for the smaller one to dial first
    open_stream_s: float = 5.0
    send_s: float = 10.0  # a notification not written in this time counts as undeliverable
    inbox_wait_s: float = 0.25  # throttling of a flooding peer's stream before its notification is dropped
    handler_s: float = 60.0  # a request's handler is cancelled after this
    first_frame_s: float = 10.0  # a stream that sends nothing is closed
    chunk_s: float = 10.0  # progress: at least one chunk (256 KiB) in this time
    stalled_s: float = 1.0  # a chunk asked for so long ago, or a pull without one, is another holder's too
    serve_idle_s: float = 30.0  # a puller that requests nothing is closed
    keep_stream_s: float = 15.0  # our own between two pulls
    give_place_s: float = 1.0  # a puller that requests nothing for so long may lose its place to another
    retry_s: float = 1.0  # before a fetch tries a holder again
    close_s: float = 1.0  # time for an orderly close when a host ends
