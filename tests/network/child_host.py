"""A host in a process of its own, for tests that kill, freeze or attack it.

python child_host.py SEED_HEX PORT [unguarded]
"""

from __future__ import annotations

import json
import sys

import trio

from assay.network.host import open_host
from assay.network.limits import Timing
from assay.protocol.types import PeerId
from tests.network.memory_blobs import MemoryBlobs

BLOB = bytes(range(256)) * 4096  # 1 MiB


async def echo(_peer: PeerId, body: bytes) -> bytes:
    return body


async def main() -> None:
    blobs = MemoryBlobs()
    blobs.put(BLOB)
    async with open_host(
        seed=bytes.fromhex(sys.argv[1]),
        listen_port=int(sys.argv[2]),
        network_id="loopback",
        is_member=lambda _peer: True,
        handlers={"echo": echo},
        blobs=blobs,
        timing=Timing(first_frame_s=2, serve_idle_s=2, chunk_s=2),
    ) as host:
        print(json.dumps({"port": host.address.port}), flush=True)
        async for _fact in host.notifications:
            pass


if __name__ == "__main__":
    trio.run(main)
