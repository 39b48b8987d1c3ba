"""Round trips: how long a process waits for an answer of each of its peers, in a file that others may read.

Room: participant (edge: a file). Each process measures its own and writes them beside its store, where
`assay watch` and the explorer find them. They are in no manifest: nothing proves them.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from assay.participant.files.armour import write_text
from assay.protocol.encoding.json_text import canonical_json, parse_json, plain, read_plain
from assay.protocol.errors import ConfigError
from assay.protocol.types import PeerId

if TYPE_CHECKING:
    from assay.network.host import Host  # whoever only reads needs no libp2p

log = logging.getLogger(__name__)
FILE = "round_trips.json"
FORMAT = "assay/round-trips/1"
EVERY_S = 10.0
STALE_S = 60  # older ones are of a process that has ended, or hangs
BYTES_MAX = 1 << 20
US_MAX = 10**12  # that are read: more has no place on a page


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTrips:
    """What one process measured. at_s: Unix time. us: of the newest answered ping, by connected member."""

    format: str
    at_s: int
    us: Mapping[PeerId, int]

    @property
    def median_us(self) -> int | None:
        """The median of all peers; None without any."""
        return round(statistics.median(self.us.values())) if self.us else None


def read_round_trips(path: Path, now_s: float) -> RoundTrips | None:
    """What a process wrote at most `STALE_S` ago; None where there is no such file."""
    try:
        with open(path, "rb") as file:
            found = read_plain(RoundTrips, parse_json(file.read(BYTES_MAX)))
    except (OSError, ValueError):
        return None
    is_new = found.at_s <= now_s <= found.at_s + STALE_S
    is_sane = found.format == FORMAT and all(0 <= us <= US_MAX for us in found.us.values())
    return found if is_new and is_sane else None


async def write_round_trips(path: Path, members: frozenset[PeerId], host: Host) -> None:
    """Write the round trips to connected members again and again; ends only by cancellation."""
    reason = ""
    while True:
        us = {
            peer: round(latency_s * 1e6)
            for peer, latency_s in host.latencies().items()
            if peer in members & host.connected()
        }
        found = RoundTrips(format=FORMAT, at_s=int(time.time()), us=us)
        try:
            await trio.to_thread.run_sync(write_text, path, canonical_json(plain(found)).decode())
            reason = ""
        except ConfigError as error:
            if reason != str(error):  # a full disk is said once
                reason = str(error)
                log.warning("round trips not written", extra={"reason": reason})
        await trio.sleep(EVERY_S)
