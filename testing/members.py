"""Members: participants of small runs, each with keys that follow from its name.

Room: testing.
"""

from __future__ import annotations

import functools
import hashlib

from nacl.signing import SigningKey

from assay.chain.addresses import CONTRACTS, Deployment
from assay.chain.commit_statement import evm_address
from assay.chain.statements import address_of
from assay.protocol.identity import Domain, peer_of
from assay.protocol.params import Member
from assay.protocol.types import Address, Digest, PeerId

_NAMES: dict[PeerId, str] = {}  # of every peer that has been named


def a_digest(*what: object) -> Digest:
    """A placeholder: the same for the same objects."""
    return Digest(hashlib.sha256(repr(what).encode()).digest())


DEPLOYMENT_ID = a_digest("deployment")
RUN_ID = a_digest("run")
DOMAIN = Domain(deployment_id=DEPLOYMENT_ID, run_id=RUN_ID)


def a_peer_key(name: str) -> SigningKey:
    """The peer key of the member of this name."""
    return SigningKey(hashlib.sha256(b"peer" + name.encode()).digest())


def a_hot_key(name: str) -> bytes:
    """Its hot key, secp256k1."""
    return hashlib.sha256(b"hot" + name.encode()).digest()


def an_account_key(name: str) -> bytes:
    """The key of its account, secp256k1."""
    return hashlib.sha256(b"account" + name.encode()).digest()


@functools.cache
def peer(name: str) -> PeerId:
    """The peer id of the member of this name."""
    found = peer_of(a_peer_key(name))
    _NAMES[found] = name
    return found


def name_of(member: PeerId) -> str:
    """The name whose peer this is; of bytes that no name has led to, their hexadecimal digits."""
    return _NAMES.get(member, member.hex())


@functools.cache
def a_member(member: PeerId) -> Member:
    """The member with this peer id."""
    account, hot = (address_of(key(name_of(member))) for key in (an_account_key, a_hot_key))
    return Member(
        peer=member, account=Address(bytes.fromhex(account[2:])), hot=Address(bytes.fromhex(hot[2:]))
    )


def peers(kind: str, count: int) -> tuple[PeerId, ...]:
    """This many members, ascending by peer id, as a run lists them."""
    return tuple(sorted(peer(f"{kind} {n}") for n in range(count)))


NODES, VERIFIERS = peers("node", 3), peers("verifier", 4)


@functools.cache
def a_deployment() -> Deployment:
    """Contracts on a chain that nobody runs."""
    addresses = {name: evm_address(a_digest(name)[:20]) for name in CONTRACTS.values()}
    return Deployment(chain_id=31337, deployment_id=DEPLOYMENT_ID, block=0, **addresses)
