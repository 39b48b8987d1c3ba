"""Find: reads records and run files from the directory on chain, and announces our own.

Room: participant (edge: the chain). What the directory holds are strangers' bytes: they are bounded before
they are decoded, and checked as a file that was passed by hand. They are asked for by account and run id, and
must be that account's and that run's: nobody can put others in their place, an endpoint can keep them back.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from assay.chain.commit_statement import evm_address
from assay.chain.statements import Address as EvmAddress
from assay.participant.files.record import SignedRecord, check_record
from assay.participant.files.run_file import RunFile, check_run_file, write_run_file
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import ConfigError, MalformedMessage, PeerFault
from assay.protocol.market import SignedSeatOffer
from assay.protocol.types import Digest, PeerId

if TYPE_CHECKING:  # web3 takes a second to import
    from assay.chain.client import Chain, Sent
    from assay.chain.reader import ChainReader

RECORD_BYTES_MAX = 1024  # Directory.RECORD_BYTES_MAX
RUN_BYTES_MAX = 98_304  # Directory.RUN_BYTES_MAX
OFFER_HEAD = bytes([0x83, 0x40 | len(SignedSeatOffer.TAG)]) + SignedSeatOffer.TAG  # of no record's encoding


def announced_run(chain: ChainReader, run_id: Digest, now_s: int) -> RunFile | None:
    """The checked run file of this run; None if its buyer announced none.

    Raises:
        ConfigError: what was announced is no run file of this run.
        Unavailable: the endpoint is gone, or does not show what was announced.
    """
    body = chain.announced_run(run_id)
    if body is None:
        return None
    try:
        found = decode(RunFile, body, RUN_BYTES_MAX)
        check_run_file(found, now_s)
    except (MalformedMessage, ConfigError) as error:
        raise ConfigError(f"run {run_id.hex()[:16]} in the directory: {error}") from None
    if found.run_id != run_id:
        raise ConfigError(
            f"run {run_id.hex()[:16]} in the directory: the file of run {found.run_id.hex()[:16]}"
        )
    return found


def save_run(path: Path, chain: ChainReader, run_id: Digest, now_s: int) -> None:
    """Write the announced file of a run.

    Raises:
        ConfigError: nobody announced it, what was announced is no run file of it, or it cannot be written.
        Unavailable: as `announced_run`.
    """
    chain.check_deployment()
    found = announced_run(chain, run_id, now_s)
    if found is None:
        raise ConfigError(f"run {run_id.hex()}: its buyer announced no run file on this network")
    write_run_file(path, found)


def record_in(body: bytes, account: bytes, now_s: int) -> SignedRecord:
    """An announced record, signed by the keys that it names, of the account that announced it.

    Raises:
        MalformedMessage, PeerFault: it is not.
    """
    signed = decode(SignedRecord, body, RECORD_BYTES_MAX)
    check_record(signed, now_s)
    if signed.record.account != account:
        raise PeerFault(signed.record.peer, f"record of another account, announced by {evm_address(account)}")
    return signed


def announced_record(
    chain: ChainReader, account: EvmAddress, peer: PeerId, now_s: int
) -> SignedRecord | None:
    """The checked record that an account announced last of this peer; None if it announced none.

    Raises:
        ConfigError: what was announced is no record of this account.
        Unavailable: the endpoint is gone, or does not show what was announced.
    """
    (number,) = chain.record_blocks([(account, peer)])
    if not number:
        return None
    try:
        return record_in(chain.announced_record(account, peer, number), bytes.fromhex(account[2:]), now_s)
    except (MalformedMessage, PeerFault) as error:
        raise ConfigError(f"record of {peer.hex()[:16]} in the directory: {error}") from None


def last_record(chain: ChainReader, account: EvmAddress, now_s: int) -> SignedRecord | None:
    """The checked record that a staked account announced last, of any peer; None if it announced none.

    Raises:
        MalformedMessage, PeerFault: what was announced is no record of this account.
        Unavailable: the endpoint is gone, or does not show what was announced.
    """
    number, whose = chain.staker_block(account), bytes.fromhex(account[2:])
    if not number:
        return None
    body = chain.announced_record(account, None, number)
    if not body.startswith(OFFER_HEAD):
        return record_in(body, whose, now_s)
    peer = decode(SignedSeatOffer, body, RECORD_BYTES_MAX).offer.peer
    (number,) = chain.record_blocks([(account, peer)])
    return record_in(chain.announced_record(account, peer, number), whose, now_s) if number else None


def announce_record(chain: Chain, signed: SignedRecord) -> Sent:
    """Announce our own record, unless it is the last that we announced.

    Raises:
        ChainRefused, Unavailable: of the transaction.
    """
    return chain.announce_record(signed.record.peer, encode(signed))


def announce_run(chain: Chain, run: RunFile) -> Sent:
    """Announce the file of a run that we opened, unless it is the one that we announced.

    Raises:
        ChainRefused, Unavailable: of the transaction.
    """
    return chain.announce_run(run.run_id, encode(run))


def is_too_large(run: RunFile) -> bool:
    """Whether the directory does not take this run's file."""
    return len(encode(run)) > RUN_BYTES_MAX
