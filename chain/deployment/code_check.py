"""Code check: compares deployed bytecode with this release's artefacts, immutables excepted.

Room: chain (pure). A deployment file is untrusted, and money is sent to the addresses in it. A contract
that reports the right `deploymentId` may hold any code; so its code is compared, byte for byte, with this
release's. Immutables stand in 32-byte slots that are zero in the artefact. Construction writes one value into
all slots of an immutable; code that was made otherwise may not, and so answer with one and use another. Every
address of another contract is compared with the file's. Windows and rates are the deployer's choice: `assay
stake show` and the order's commands print the relevant ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from assay.protocol.errors import ConfigError

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


def check_code(contract: str, where: str, code: bytes, artefact: Mapping[str, Any]) -> Mapping[str, bytes]:
    """The immutables in this code, which is the artefact's otherwise.

    Args:
        contract: Its name, for the error text.
        where: Its address.
        code: The bytecode on chain.
        artefact: This release's, with `deployedBytecode` and `immutables`.

    Returns:
        The 32 bytes of each, by its name.

    Raises:
        ConfigError: it is another contract's code, or another release's, or has an immutable of two values.
    """
    expected = bytes.fromhex(artefact["deployedBytecode"].removeprefix("0x"))
    masked, found = bytearray(code), {}
    if len(code) == len(expected):
        for name, places in artefact["immutables"].items():
            values = {code[start : start + 32] for start in places}
            if len(values) != 1:
                raise ConfigError(
                    f"{contract} at {where} has {len(values)} values of its {name}, as no deployment has: "
                    "do not send transactions to it"
                )
            (found[name],) = values
            for start in places:
                masked[start : start + 32] = bytes(32)
    if bytes(masked) != expected:
        raise ConfigError(
            f"{contract} at {where} has other code than this release expects: do not send transactions to it"
        )
    return found


def links_of(abi: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """A contract's getters that must return another contract of the deployment: (getter, its name)."""
    for entry in abi:
        is_getter = entry.get("type") == "function" and not entry["inputs"]
        if is_getter and entry["name"] in LINKS and [o["type"] for o in entry["outputs"]] == ["address"]:
            yield entry["name"], LINKS[entry["name"]]
