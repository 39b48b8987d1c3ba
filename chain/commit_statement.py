"""Commit statement: the EIP-712 statement of a node's commit, so that contracts can slash equivocation.

Room: chain (pure). The hot key signs, for every commit, one statement "in this
run, at this round, my commit is X". Two different ones for one round are
equivocation, with which anyone can have the node's stake slashed.
"""

from __future__ import annotations

from eth_utils.address import to_checksum_address

from assay.chain.addresses import Deployment
from assay.chain.statements import Address, BadSignatureError, Statement, recover, sign
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import PeerFault
from assay.protocol.messages import Commit, SignedCommit
from assay.protocol.params import RunSpec
from assay.protocol.types import HotSignature

COMMIT_KIND = 1


def commit_statement(spec: RunSpec, commit: Commit) -> Statement:
    """The statement that a hot key signs for this commit."""
    return Statement(
        deployment_id=spec.deployment_id,
        run_id=commit.run_id,
        epoch=int(commit.round) // spec.money.epoch_rounds,
        kind=COMMIT_KIND,
        slot=int(commit.round).to_bytes(32, "big"),
        value=digest(commit),
    )


def sign_commit(spec: RunSpec, deployment: Deployment, commit: Commit, hot_key: bytes) -> HotSignature:
    """The hot key's signature on the commit's statement. 65 bytes."""
    statement = commit_statement(spec, commit)
    return HotSignature(sign(statement, deployment.domain(Statement), hot_key))


def check_commit_statement(spec: RunSpec, deployment: Deployment, signed: SignedCommit, hot: bytes) -> None:
    """Do nothing if `hot` (20 bytes) signed the statement about this commit.

    Raises:
        PeerFault: the signature is missing or by another key.
    """
    commit = signed.commit
    try:
        signer = recover(deployment.digest(commit_statement(spec, commit)), signed.statement)
    except BadSignatureError as error:
        raise PeerFault(commit.node, f"statement about its commit: {error}") from None
    if signer != evm_address(hot):
        raise PeerFault(commit.node, f"statement about its commit signed by {signer}, not by its hot key")


def evm_address(raw: bytes) -> Address:
    """20 bytes as EIP-55 checksummed text."""
    return Address(to_checksum_address(raw))
