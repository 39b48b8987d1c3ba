"""Rotation: hands over from the present verifier set to the next, by the signatures of the present one.

Room: participant (edge: the chain). Each member signs for itself; whoever has a quorum's signatures sends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eth_abi.abi import encode
from eth_utils.crypto import keccak

from assay.chain.commit_statement import evm_address
from assay.chain.statements import VERIFIER, Address, Rotation, certificate, sign_digest, term_of
from assay.chain.text.times import time_text
from assay.participant.files.record import Role, SignedRecord
from assay.participant.wallet.account import Account
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:  # web3 takes a second to import
    from assay.chain.client import Sent
    from assay.chain.reader import ChainReader


def sign_rotation(account: Account, records: Sequence[SignedRecord]) -> bytes:
    """This verifier's signature on handing over to the verifiers of these records.

    Raises:
        ConfigError: a record is of another role, or its account cannot be seated.
        Unavailable: the endpoint is gone.
    """
    _, rotation = _next_set(account.chain, records)
    return sign_digest(account.chain.deployment.digest(rotation), account.keys.hot)


def rotate(account: Account, records: Sequence[SignedRecord], signatures: Sequence[bytes]) -> Sent:
    """Install the verifiers of these records as the next set.

    Raises:
        ConfigError: as `sign_rotation`. ChainRefused: the signatures are not a quorum of the present set.
    """
    members, rotation = _next_set(account.chain, records)
    cert = certificate(account.chain.deployment.digest(rotation), signatures)
    return account.chain.rotate_verifiers(members, rotation.from_epoch, cert)


def _next_set(chain: ChainReader, records: Sequence[SignedRecord]) -> tuple[list[Address], Rotation]:
    for signed in records:
        if signed.record.role is not Role.VERIFIER:
            raise ConfigError(f"a record of a {signed.record.role.name.lower()} among the next verifiers")
    accounts = {Address(evm_address(signed.record.account)) for signed in records}
    if len(accounts) != len(records):
        raise ConfigError("two of the next verifiers have one account")
    version, now = chain.set_version(), chain.timestamp()
    for account in sorted(accounts):
        lot = chain.lot_of(account, VERIFIER, term_of(version + 1))
        if lot.amount < chain.stake_of(account, VERIFIER).minimum or lot.until < now:
            raise ConfigError(
                f"{account} has no lot for set {version + 1} that lasts beyond {time_text(now)}: "
                f"assay stake lock --set {version + 1}"
            )
    members = sorted(accounts, key=lambda account: int(account, 16))
    rotation = Rotation(
        deployment_id=chain.deployment.deployment_id,
        from_version=version,
        set_hash=keccak(encode(["address[]"], [members])),
        from_epoch=0,
    )
    return members, rotation
