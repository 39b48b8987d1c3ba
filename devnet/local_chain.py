"""Local chain: `assay chain dev`, one chain on this machine for people who try things out.

Room: devnet (edge: one child process). Imports nothing that trains, so that it is up in seconds.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from eth_utils.address import to_checksum_address

from assay.chain.deployment.anvil import Anvil
from assay.chain.rpc import Rpc
from assay.devnet.anvil_binary import anvil_binary
from assay.protocol.errors import ConfigError

FUND_WEI = 100 * 10**18  # of the local chain's worthless coin


def serve_chain(folder: Path, port: int, block_time_s: int, funded: Sequence[str]) -> None:
    """A local chain until Ctrl-C or SIGTERM.

    Raises:
        ConfigError: anvil is missing and cannot be fetched, the folder cannot be made, the port is busy, or
            an account is none.
    """
    binary = anvil_binary()
    strange = [account for account in funded if not re.fullmatch(r"0x[0-9a-fA-F]{40}", account)]
    if strange:
        raise ConfigError(f"{strange[0][:60]!a} is not an account, expected 0x and 40 hexadecimal digits")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that anvil is ended too
    with Anvil(binary=binary, state_dir=folder, port=port, block_time_s=block_time_s) as anvil:
        bank = Rpc(anvil.rpc_url, anvil.keys[0])
        for account in funded:
            bank.send("fund", {"to": to_checksum_address(account), "value": FUND_WEI})
        print(f"chain at {anvil.rpc_url}, state in {folder}; Ctrl-C ends it", flush=True)
        try:
            while True:
                time.sleep(1)
                anvil.pid  # noqa: B018 - raises Unavailable if the chain died
        except KeyboardInterrupt:
            return
