"""Code check: are these contracts the ones that were reviewed, and do they know each other?

Room: chain (pure). A deployment file comes from somebody, and money is sent to the addresses
in it. An address whose contract says the right `deploymentId` may hold any code; so its code is
compared, byte for byte, with this release's. What the constructor wrote into it (immutables) stands
in 32-byte places that are zero in the artefact; of these, every address of another contract is
compared with the file's. Windows and rates are the deployer's choice: `assay stake show` and the
order's commands print those that matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.protocol.errors import ConfigError

_PLACE = re.compile(re.escape(b"\x7f" + bytes(32)))  # PUSH32 of nothing: an immutable, before it was written
OWN_CODE = ("VerifierSet", "StakeVault", "SlashCourt", "RunEscrow", "EpochSettlement", "ModelRegistry")
LINKS: Mapping[str, str] = {
    "token": "AssayToken",
    "court": "SlashCourt",
    "vault": "StakeVault",
    "verifierSet": "VerifierSet",
    "escrow": "RunEscrow",
    "settlement": "EpochSettlement",
}


def check_code(contract: str, where: str, code: bytes, artefact: Mapping[str, Any]) -> None:
    """Do nothing if this code is the artefact's, whatever its immutables.

    Args:
        contract: Its name, for the words.
        where: Its address.
        code: What the chain has there.
        artefact: This release's, with `deployedBytecode`.

    Raises:
        ConfigError: it is another contract's code, or another release's.
    """
    expected = bytes.fromhex(artefact["deployedBytecode"].removeprefix("0x"))
    masked = bytearray(code)
    if len(code) == len(expected):
        for place in _PLACE.finditer(expected):
            masked[place.start() + 1 : place.end()] = bytes(32)
    if bytes(masked) != expected:
        raise ConfigError(f"{contract} at {where} has other code than this release has: send it nothing")


def links_of(abi: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The getters of a contract that must name another contract of the deployment: (getter, its name)."""
    for entry in abi:
        is_getter = entry.get("type") == "function" and not entry["inputs"]
        if is_getter and entry["name"] in LINKS and [o["type"] for o in entry["outputs"]] == ["address"]:
            yield entry["name"], LINKS[entry["name"]]
