"""A contract that is an account: it makes the calls that its owner sends it, and has no key.

In bytes, so that no test needs a compiler: as `execute` of contracts/test/SmartAccount.t.sol. Its input
is the address to call, 20 bytes, and the call.
"""

from __future__ import annotations

from pathlib import Path

from assay.chain.client import Chain
from assay.chain.signing.unsigned import read_unsigned
from assay.chain.statements import Address
from assay.participant.keys.keyring import AccountElsewhere


def _code(owner: Address) -> bytes:
    """What is sent to deploy it: ten bytes that copy the rest to the chain."""
    body = bytes.fromhex(
        f"33 73{owner[2:]} 14 601d 57 5f5ffd 5b"  # only the owner
        "6014 36 03 6014 5f 37"  # the call, without its address, to memory
        "5f 5f 6014 36 03 5f 34 5f35 6060 1c 5a f1"
        "603f 57 3d5f5f3e 3d5ffd 5b 00"  # a revert goes on to the owner
    )
    return bytes.fromhex(f"60{len(body):02x} 600a 5f 39 60{len(body):02x} 5f f3") + body


class SmartAccount:
    """One of this owner's, deployed by it."""

    def __init__(self, owner: Chain) -> None:
        self._owner = owner
        sent = owner._rpc.send("deploy", {"data": _code(owner.address)})
        receipt = owner._rpc.receipt("deploy", sent.tx_hash or b"")
        self.address = Address(receipt["contractAddress"])

    def call(self, to: str, data: bytes) -> None:
        """Have it call `to`; raises what the callee reverts with."""
        whole = bytes.fromhex(to[2:]) + data
        self._owner._rpc.send("call", {"to": self.address, "data": whole})

    def make(self, folder: Path) -> str:
        """Have it make the call of the only file in a folder, and remove the file; what the call is for."""
        (path,) = folder.glob("*.json")
        found = read_unsigned(path)
        assert (found.transaction.account, found.transaction.value_wei) == (self.address, 0)
        self.call(found.transaction.to, found.transaction.data)
        path.unlink()
        return found.action

    def keys(self, folder: Path) -> AccountElsewhere:
        """It, as an account whose transactions go to a folder."""
        return AccountElsewhere(url=f"file:{folder}", account=self.address)
