"""Code check: compares deployed bytecode with this release's artefacts, immutables excepted.

Room: chain (pure). A deployment file is untrusted, and money is sent to the addresses in it. A contract
that reports the right `deploymentId` may hold any code; so its code is compared, byte for byte, with this
release's. Immutables stand in 32-byte slots that are zero in the artefact; of these, every address of
another contract is compared with the file's. Windows and rates are the deployer's choice: `assay stake
show` and the order's commands print the relevant ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.protocol.errors import ConfigError

_PLACE = re.compile(re.escape(b"\x7f" + bytes(32)))  # PUSH32 of zero: an immutable before construction
OWN_CODE = (
    "VerifierSet", "StakeVault", "SlashCourt", "RunEscrow", "EpochSettlement", "ModelRegistry", "Directory",
    "AppealCourt",
)  # fmt: skip
LINKS: Mapping[str, str] = {
    "token": "AssayToken",
    "court": "SlashCourt",
    "vault": "StakeVault",
    "verifierSet": "VerifierSet",
    "escrow": "RunEscrow",
    "settlement": "EpochSettlement",
    "appeals": "AppealCourt",
}


def check_code(contract: str, where: str, code: bytes, artefact: Mapping[str, Any]) -> None:
    """Do nothing if this code is the artefact's, whatever its immutables.

    Args:
        contract: Its name, for the error text.
        where: Its address.
        code: The bytecode on chain.
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
        raise ConfigError(
            f"{contract} at {where} has other code than this release expects: do not send transactions to it"
        )


def links_of(abi: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """A contract's getters that must return another contract of the deployment: (getter, its name)."""
    for entry in abi:
        is_getter = entry.get("type") == "function" and not entry["inputs"]
        if is_getter and entry["name"] in LINKS and [o["type"] for o in entry["outputs"]] == ["address"]:
            yield entry["name"], LINKS[entry["name"]]
