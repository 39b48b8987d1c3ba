"""Addresses: the contract addresses of one deployment, and the EIP-712 domains of their statements.

Room: chain (pure). Every participant has this as a JSON file; it holds no secret.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import rlp
from eth_utils.address import is_checksum_address, to_checksum_address
from eth_utils.conversions import to_bytes
from eth_utils.crypto import keccak

from assay.chain.statements import STATEMENTS, Address, Domain, Signable, digest
from assay.protocol.encoding.json_text import parse_json, plain, read_plain
from assay.protocol.errors import ConfigError

CONTRACTS: dict[str, str] = {
    "AssayToken": "token",
    "StakeVault": "stake_vault",
    "VerifierSet": "verifier_set",
    "RunEscrow": "run_escrow",
    "EpochSettlement": "epoch_settlement",
    "SlashCourt": "slash_court",
    "ModelRegistry": "model_registry",
    "Directory": "directory",
    "AppealCourt": "appeal_court",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The nine contracts of one deployment.

    `deployment_id` is 32 random bytes: two fresh local chains share chain id and addresses, so it
    alone prevents replay of old signatures. `block` is where reading events starts.
    """

    chain_id: int
    deployment_id: bytes
    block: int
    token: Address
    stake_vault: Address
    verifier_set: Address
    run_escrow: Address
    epoch_settlement: Address
    slash_court: Address
    model_registry: Address
    directory: Address
    appeal_court: Address

    def __post_init__(self) -> None:
        if len(self.deployment_id) != 32:
            raise ValueError(f"deployment_id: {len(self.deployment_id)} bytes, expected 32")
        if not 0 <= self.chain_id < 1 << 256:
            raise ValueError(f"chain_id: {self.chain_id}, expected an unsigned EVM word")
        for name in CONTRACTS.values():
            if not is_checksum_address(getattr(self, name)):
                raise ValueError(f"{name}: {getattr(self, name)!r:.60}, expected a checksummed address")

    def address(self, contract: str) -> Address:
        """The address of a contract by its Solidity name."""
        found: Address = getattr(self, CONTRACTS[contract])
        return found

    def domain(self, kind: type[Signable]) -> Domain:
        """The EIP-712 domain of statements of this kind."""
        return Domain(
            name=f"Assay{kind.CONTRACT}",
            chain_id=self.chain_id,
            verifying_contract=self.address(kind.CONTRACT),
        )

    def digest(self, statement: Signable) -> bytes:
        """The EIP-712 digest of this statement in this deployment, 32 bytes.

        Raises:
            ValueError: the statement names another deployment.
        """
        if statement.deployment_id != self.deployment_id:
            raise ValueError(f"a statement for deployment {statement.deployment_id.hex()[:8]}")
        return digest(statement, self.domain(type(statement)))

    def to_json(self) -> str:
        """One JSON object; bytes as hexadecimal."""
        return json.dumps(plain(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Deployment:
        """Inverts `to_json`.

        Raises:
            ConfigError: the text is not such an object.
        """
        try:
            return read_plain(cls, parse_json(text))
        except ValueError as error:
            raise ConfigError(f"deployment file: {error}") from error


def created_address(deployer: str, nonce: int) -> Address:
    """The address of the contract that an account creates with the transaction of this nonce."""
    return Address(to_checksum_address(keccak(rlp.encode([to_bytes(hexstr=deployer), nonce]))[12:]))


assert {kind.CONTRACT for kind in STATEMENTS} <= set(CONTRACTS)
