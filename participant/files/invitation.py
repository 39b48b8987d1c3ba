"""Invitation: one small file that says which network this is, so that whoever holds it can check and join it.

Room: participant (edge in `check_network`: the chain). It names a chain, the contracts with their code and
parameters, endpoints to try, and the first verifiers' records. Nothing in it is believed: `check_network`
compares every part with the chain. Which network was meant only people know, so they compare its digest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from assay.chain.addresses import CONTRACTS, Deployment
from assay.chain.commit_statement import evm_address
from assay.chain.deployment.parameters import ChainParams
from assay.chain.text.units import DECIMALS
from assay.participant.files.armour import from_text, read_text, to_line, to_text, write_text
from assay.participant.files.record import Role, SignedRecord, check_record
from assay.protocol.encoding.codec import Max, digest
from assay.protocol.errors import ConfigError, MalformedMessage, PeerFault
from assay.protocol.params import RUN_VERIFIERS_MAX
from assay.protocol.types import Address, Digest

if TYPE_CHECKING:  # web3 takes a second to import
    from assay.chain.reader import ChainReader

PREFIX = "assay-network-1"
INVITATION_BYTES_MAX = 1 << 16
ENDPOINTS_MAX = 8
FIRST_SET = 1  # number of the verifier set that a deployment begins with
_URL_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractCode:
    """A contract's address, and the keccak-256 of its code there, immutables included."""

    TAG: ClassVar[bytes] = b"assay/contract-code/1"
    address: Address
    code: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """A network: chain, contracts, parameters, endpoints and first verifiers."""

    TAG: ClassVar[bytes] = b"assay/invitation/1"
    name: Annotated[str, Max(64)]
    chain_id: int
    block: int  # before the deployment; reading events starts here
    block_hash: Digest
    deployment_id: Digest
    contracts: Annotated[tuple[ContractCode, ...], Max(len(CONTRACTS))]  # in the order of `CONTRACTS`
    params: ChainParams
    endpoints: Annotated[tuple[Annotated[str, Max(_URL_MAX)], ...], Max(ENDPOINTS_MAX)]
    verifiers: Annotated[tuple[SignedRecord, ...], Max(RUN_VERIFIERS_MAX)]

    @property
    def deployment(self) -> Deployment:
        """The contracts' addresses."""
        addresses = {
            field: evm_address(one.address)
            for field, one in zip(CONTRACTS.values(), self.contracts, strict=True)
        }
        return Deployment(
            chain_id=self.chain_id, deployment_id=self.deployment_id, block=self.block, **addresses
        )

    @property
    def first_endpoint(self) -> str:
        """The endpoint to ask where no other is given.

        Raises:
            ConfigError: it names none.
        """
        if not self.endpoints:
            raise ConfigError(f"the invitation to {self.name} names no endpoint: give one of your own")
        return self.endpoints[0]


def invitation_of(
    chain: ChainReader, name: str, endpoints: Sequence[str], verifiers: Sequence[SignedRecord]
) -> Invitation:
    """The invitation to the network of this deployment, read from its chain.

    Raises:
        Unavailable: the endpoint is gone.
    """
    deployment = chain.deployment
    return Invitation(
        name=name,
        chain_id=deployment.chain_id,
        block=deployment.block,
        block_hash=Digest(chain.block_hash(deployment.block)),
        deployment_id=Digest(deployment.deployment_id),
        contracts=tuple(
            ContractCode(
                address=Address(bytes.fromhex(deployment.address(one)[2:])),
                code=Digest(chain.code_hash(one)),
            )
            for one in CONTRACTS
        ),
        params=chain.parameters(),
        endpoints=tuple(endpoints),
        verifiers=tuple(verifiers),
    )


def check_invitation(invitation: Invitation, now_s: int) -> None:
    """Do nothing if an invitation is sound by itself.

    Raises:
        ConfigError: a part is missing, or a verifier's record does not verify.
    """
    if not invitation.name.isprintable() or not invitation.name:
        raise ConfigError(f"invitation: name {invitation.name[:40]!a}, expected one printable line")
    if len(invitation.contracts) != len(CONTRACTS):
        raise ConfigError(f"invitation: {len(invitation.contracts)} contracts, {len(CONTRACTS)} expected")
    for url in invitation.endpoints:
        check_url(url)
    for signed in invitation.verifiers:
        try:
            check_record(signed, now_s)
        except PeerFault as error:
            raise ConfigError(f"invitation: {error}") from None
        if signed.record.role is not Role.VERIFIER:
            raise ConfigError(f"invitation: a {signed.record.role.name.lower()} among the first verifiers")


def check_url(url: str) -> None:
    """Do nothing if this may be an endpoint's URL.

    Raises:
        ConfigError: another scheme, or characters that a URL does not have.
    """
    if (
        not url.startswith(("http://", "https://"))
        or not url.isascii()
        or not url.isprintable()
        or " " in url
    ):
        raise ConfigError(f"endpoint {url[:80]!a}: expected http:// or https://")


def check_network(invitation: Invitation, chain: ChainReader) -> None:
    """Do nothing if the chain has exactly this network: code, wiring, parameters and first verifiers.

    Args:
        invitation: Passed by `check_invitation`.
        chain: A reader of `invitation.deployment`.

    Raises:
        ConfigError: what the chain has, and what the invitation says.
        Unavailable: the endpoint is gone.
    """
    chain.check_deployment()
    chain.check_created()
    found = chain.block_hash(invitation.block)
    if found != invitation.block_hash:
        raise ConfigError(
            f"wrong chain: block {invitation.block} is {found.hex()[:16]}, "
            f"the invitation says {invitation.block_hash.hex()[:16]}"
        )
    for name, one in zip(CONTRACTS, invitation.contracts, strict=True):
        code = chain.code_hash(name)
        if code != one.code:
            raise ConfigError(
                f"{name} at {evm_address(one.address)} has code {code.hex()[:16]}, "
                f"the invitation says {one.code.hex()[:16]}"
            )
    params = chain.parameters()
    for field in fields(params):
        have, said = getattr(params, field.name), getattr(invitation.params, field.name)
        # The issuer of a coin that was there before makes and takes coins as it likes.
        if have != said and field.name != "token_supply":
            raise ConfigError(f"{field.name} is {have} on chain, the invitation says {said}")
    if chain.token_decimals() != DECIMALS:
        raise ConfigError(f"its token has {chain.token_decimals()} decimals, {DECIMALS} expected")
    if len(chain.sinks()) != 1:
        raise ConfigError(f"its contracts send burnt tokens to {' and '.join(sorted(chain.sinks()))}")
    named = {evm_address(one.record.account) for one in invitation.verifiers}
    if named != set(chain.verifier_set(FIRST_SET)):
        raise ConfigError("the first verifiers of the contracts are not those of the invitation")


def spoken_digest(invitation: Invitation) -> str:
    """The invitation's digest to read aloud: twelve groups of five decimal digits, 199 bits."""
    number = int.from_bytes(digest(invitation), "big") % 10**60
    text = f"{number:060d}"
    return " ".join(text[at : at + 5] for at in range(0, 60, 5))


# ---- files


def invitation_text(invitation: Invitation) -> str:
    """The invitation as a text file."""
    notes = [
        f"Assay network {invitation.name!a} on chain {invitation.chain_id}",
        f"digest {spoken_digest(invitation)}",
        "check it: assay network show THIS_FILE",
    ]
    return to_text(PREFIX, invitation, notes)


def invitation_line(invitation: Invitation) -> str:
    """The invitation as one URL-safe line."""
    return to_line(PREFIX, invitation)


def parse_invitation(text: str, now_s: int) -> Invitation:
    """Inverts `invitation_text` and `invitation_line`; the result is sound by itself.

    Raises:
        ConfigError: damaged, or `check_invitation` refuses it.
    """
    try:
        invitation = from_text(PREFIX, Invitation, text)
    except MalformedMessage as error:
        raise ConfigError(f"invitation: {error}") from None
    check_invitation(invitation, now_s)
    return invitation


def read_invitation(path: Path) -> Invitation:
    """An invitation from its file, sound by itself; `check_network` compares it with the chain.

    Raises:
        ConfigError: it cannot be read, or is damaged.
    """
    text = read_text(path, "invitation", INVITATION_BYTES_MAX)
    try:
        return parse_invitation(text, int(time.time()))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def write_invitation(path: Path, invitation: Invitation) -> None:
    """Write an invitation's file."""
    write_text(path, invitation_text(invitation))
