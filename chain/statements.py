"""Statements: EIP-712 statements of hot keys and accounts, their signatures and certificates.

Room: chain (pure). One dataclass per EIP-712 struct of contracts/src/Statements.sol;
the type string, the encoding and the digest all derive from its fields. A test
compares every digest with the contract's. `TrackRecord` has none: no contract reads it.
Rules: EIP-712; a signature is 65 bytes r, s, v with low s and v 27 or 28; a
certificate is such signatures over one digest, in strictly ascending order of
signer address; a quorum of n members is floor(2n/3) + 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar, NewType, get_args, get_type_hints

from eth_abi.abi import encode
from eth_keys.datatypes import PrivateKey, Signature
from eth_keys.exceptions import BadSignature
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from eth_utils.exceptions import ValidationError

from assay.protocol.errors import MalformedMessage

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Address = NewType("Address", str)  # 20 bytes as EIP-55 checksummed hexadecimal, "0x..."

Bytes32 = Annotated[bytes, "bytes32"]
EvmAddress = Annotated[Address, "address"]
Uint8 = Annotated[int, "uint8"]
Uint32 = Annotated[int, "uint32"]
Uint64 = Annotated[int, "uint64"]
Uint128 = Annotated[int, "uint128"]
Uint256 = Annotated[int, "uint256"]

SIGNATURE_BYTES = 65
MEMBERS_MAX = 64
CERT_ECDSA = 0
OPERATOR, VERIFIER = 0, 1  # roles of stake
LOCK_S_MAX = 400 * 86_400  # StakeVault.LOCK_SECONDS_MAX

_SECP256K1_N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
_DOMAIN_TYPE = "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"


class BadSignatureError(MalformedMessage):
    """A signature or certificate that is malformed or does not verify."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """EIP-712 domain: the one contract on one chain that verifies a statement."""

    name: str
    chain_id: int
    verifying_contract: Address
    version: str = "1"

    def separator(self) -> bytes:
        """The EIP-712 domain separator, 32 bytes."""
        return _separator(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One value for one (run, epoch, kind, slot); two different ones from one key are equivocation."""

    CONTRACT: ClassVar[str] = "SlashCourt"
    deployment_id: Bytes32
    run_id: Bytes32
    epoch: Uint64
    kind: Uint8
    slot: Bytes32
    value: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochResult:
    """Result of one epoch: its payout table's Merkle root and sum in token units."""

    CONTRACT: ClassVar[str] = "EpochSettlement"
    deployment_id: Bytes32
    run_id: Bytes32
    epoch: Uint64  # counted from 0, without gaps
    set_version: Uint32  # the set the run was opened with
    prev_result: Bytes32  # digest of the result before, zero for epoch 0
    root: Bytes32
    table_hash: Bytes32
    model_hash: Bytes32
    total: Uint128


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashOrder:
    """Order of the verifiers to slash `ppm` parts per million of the offender's stake."""

    CONTRACT: ClassVar[str] = "SlashCourt"
    deployment_id: Bytes32
    run_id: Bytes32
    epoch: Uint64
    offender: EvmAddress
    role: Uint8
    ppm: Uint32
    offence_id: Bytes32
    evidence_hash: Bytes32
    challenger: EvmAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Veto:
    """The current verifier set vetoes a case."""

    CONTRACT: ClassVar[str] = "SlashCourt"
    deployment_id: Bytes32
    case_id: Bytes32
    reason_hash: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class Discharge:
    """The run's verifiers find that a node left, and that nothing it did there can be disputed any more."""

    CONTRACT: ClassVar[str] = "SlashCourt"
    deployment_id: Bytes32
    run_id: Bytes32
    account: EvmAddress  # of the node: its lot for the run


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackRecord:
    """The run's verifiers state how many audits in a row an account's node had passed when it ended.

    For the verifiers of other runs: no contract has this type, so no contract takes the signatures.
    """

    CONTRACT: ClassVar[str] = "VerifierSet"
    deployment_id: Bytes32
    run_id: Bytes32
    account: EvmAddress
    exec_class: Bytes32  # of its last accepted step
    clean: Uint64
    heard: Uint64  # agreed time of that step, Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """A hot key agrees to sign for an account until `expiry` (Unix seconds); signed by the hot key."""

    CONTRACT: ClassVar[str] = "StakeVault"
    deployment_id: Bytes32
    account: EvmAddress
    hot_key: EvmAddress
    expiry: Uint64


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerBinding:
    """An account names its Ed25519 peer key until `expiry` (Unix seconds); signed by the account."""

    CONTRACT: ClassVar[str] = "StakeVault"
    deployment_id: Bytes32
    account: EvmAddress
    peer_key: Bytes32
    hot_key: EvmAddress
    expiry: Uint64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """The current verifier set hands over to the set with this hash."""

    CONTRACT: ClassVar[str] = "VerifierSet"
    deployment_id: Bytes32
    from_version: Uint32
    set_hash: Bytes32
    from_epoch: Uint64


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """Provenance of a model, as hashes only. `parent` is zero or an earlier record's digest."""

    CONTRACT: ClassVar[str] = "ModelRegistry"
    deployment_id: Bytes32
    run_id: Bytes32
    model_hash: Bytes32
    data_inventory_hash: Bytes32
    config_hash: Bytes32
    parent: Bytes32
    last_result: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class Supersession:
    """The current verifier set supersedes a model record by another, or withdraws it (zero)."""

    CONTRACT: ClassVar[str] = "ModelRegistry"
    deployment_id: Bytes32
    record_id: Bytes32
    new_record_id: Bytes32
    reason_hash: Bytes32


Signable = (
    Statement
    | EpochResult
    | SlashOrder
    | Veto
    | Discharge
    | TrackRecord
    | Delegation
    | PeerBinding
    | Rotation
    | ModelRecord
    | Supersession
)
STATEMENTS: tuple[type[Signable], ...] = get_args(Signable)


def digest(statement: Signable, domain: Domain) -> bytes:
    """The 32-byte EIP-712 digest to sign: equal to what the verifying contract computes.

    Raises:
        ValueError: the domain names another contract than the one that verifies this statement.
    """
    if domain.name != f"Assay{statement.CONTRACT}":
        raise ValueError(f"{type(statement).__name__} is checked by {statement.CONTRACT}, not {domain.name}")
    return keccak(b"\x19\x01" + domain.separator() + struct_hash(statement))


def struct_hash(statement: DataclassInstance) -> bytes:
    """EIP-712 hashStruct: of the type string and all fields, in declaration order."""
    kind: type = type(statement)
    solidity_types = [solidity for _, solidity in _members_of(kind)]
    return keccak(encode(["bytes32", *solidity_types], [keccak(text=type_string(kind)), *values(statement)]))


def type_string(kind: type) -> str:
    """The EIP-712 encodeType of a statement, as in `Veto(bytes32 deploymentId,...)`."""
    return f"{kind.__name__}({','.join(f'{solidity} {name}' for name, solidity in _members_of(kind))})"


def values(statement: DataclassInstance) -> tuple[bytes | int | str | bool, ...]:
    """The field values in declaration order: the tuple a contract call takes."""
    return tuple(getattr(statement, field.name) for field in fields(statement))


# ---- one signature


def address_of(key: bytes) -> Address:
    """The address of a 32-byte secp256k1 private key."""
    return Address(PrivateKey(key).public_key.to_checksum_address())


def sign(statement: Signable, domain: Domain, key: bytes) -> bytes:
    """65 bytes: r, s, v. Deterministic (RFC 6979), low s."""
    return sign_digest(digest(statement, domain), key)


def sign_digest(message_digest: bytes, key: bytes) -> bytes:
    """Signature of 32 bytes that the caller made with `digest`: 65 bytes r, s, v."""
    signature = PrivateKey(key).sign_msg_hash(message_digest)
    return signature.to_bytes()[:64] + bytes([27 + signature.v])


def recover(message_digest: bytes, signature: bytes) -> Address:
    """The signer's address, by the contract's rules.

    Raises:
        BadSignatureError: wrong length, v, high s, or no key has this signature.
    """
    if len(signature) != SIGNATURE_BYTES:
        raise BadSignatureError(f"a signature of {len(signature)} bytes; 65 expected")
    if signature[64] not in (27, 28):
        raise BadSignatureError(f"a signature with v {signature[64]}; 27 or 28 expected")
    if int.from_bytes(signature[32:64], "big") > _SECP256K1_N // 2:
        raise BadSignatureError("a signature with high s: not in its canonical form")
    try:
        parsed = Signature(signature[:64] + bytes([signature[64] - 27]))
        return Address(parsed.recover_public_key_from_msg_hash(message_digest).to_checksum_address())
    except (BadSignature, ValidationError) as error:
        raise BadSignatureError(f"a signature that no key can have made: {error}") from error


# ---- many signatures


def quorum(member_count: int) -> int:
    """floor(2n/3) + 1: any two quorums share an honest member while fewer than n/3 are Byzantine."""
    return member_count * 2 // 3 + 1


def certificate(message_digest: bytes, signatures: Iterable[bytes]) -> bytes:
    """Concatenates signatures in the contract's format: one per signer, ascending by address.

    Raises:
        BadSignatureError: one of them does not recover.
    """
    by_signer = {int(recover(message_digest, one), 16): one for one in signatures}
    return b"".join(one for _, one in sorted(by_signer.items()))


def signers(message_digest: bytes, cert: bytes) -> tuple[Address, ...]:
    """Addresses of a certificate's signers, ascending.

    Raises:
        BadSignatureError: the length is wrong, a signature does not recover, or signers do not
            strictly ascend (unsorted or repeated).
    """
    if len(cert) % SIGNATURE_BYTES or len(cert) > MEMBERS_MAX * SIGNATURE_BYTES:
        raise BadSignatureError(f"a certificate of {len(cert)} bytes; up to 64 times 65 expected")
    found: list[Address] = []
    for start in range(0, len(cert), SIGNATURE_BYTES):
        signer = recover(message_digest, cert[start : start + SIGNATURE_BYTES])
        if found and int(signer, 16) <= int(found[-1], 16):
            raise BadSignatureError(f"signer {signer} after {found[-1]}: not strictly ascending")
        found.append(signer)
    return tuple(found)


def verify_certificate(message_digest: bytes, cert: bytes, members: Sequence[str]) -> None:
    """Do nothing if a quorum of `members` (hot keys) signed; same rules as VerifierSet.verify.

    Raises:
        BadSignatureError: the form is wrong, a signer is no member, or the quorum is not reached.
    """
    seats = {Address(to_checksum_address(member)) for member in members}
    found = signers(message_digest, cert)
    strangers = [signer for signer in found if signer not in seats]
    if strangers:
        raise BadSignatureError(f"signer {strangers[0]} is not in the verifier set")
    if len(found) < quorum(len(seats)):
        raise BadSignatureError(f"{len(found)} signatures; {quorum(len(seats))} of {len(seats)} expected")


# ---- inside


@cache
def _members_of(kind: type) -> tuple[tuple[str, str], ...]:
    hints = get_type_hints(kind, include_extras=True)
    return tuple((_camel(field.name), hints[field.name].__metadata__[0]) for field in fields(kind))


def _camel(snake: str) -> str:
    head, *rest = snake.split("_")
    return head + "".join(part.capitalize() for part in rest)


@lru_cache(maxsize=32)  # an endpoint says what its token is called
def _separator(domain: Domain) -> bytes:
    parts = [keccak(text=_DOMAIN_TYPE), keccak(text=domain.name), keccak(text=domain.version)]
    kinds = ["bytes32", "bytes32", "bytes32", "uint256", "address"]
    return keccak(encode(kinds, [*parts, domain.chain_id, domain.verifying_contract]))


def term_of(set_version: int) -> bytes:
    """The commitment of a verifier's lot: its place in the verifier set of this number."""
    return set_version.to_bytes(32, "big")
