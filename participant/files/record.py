"""Record: what others need to know about a participant, signed by its peer key and its hot key.

Room: participant (pure; the last section reads and writes files). A record names keys, account, role and one
network address, and nothing else. That the account agrees is shown on chain, by the hot key's delegation.
A participant that moves signs a new record with a higher sequence number, which makes older ones void.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from eth_utils.crypto import keccak

from assay.chain.commit_statement import evm_address
from assay.chain.statements import BadSignatureError, recover, sign_digest
from assay.chain.text.times import time_text
from assay.participant.files.armour import from_text, read_text, to_text, write_text
from assay.participant.keys.keyring import Keys
from assay.protocol.encoding.codec import Later, Max, digest
from assay.protocol.errors import ConfigError, MalformedMessage, PeerFault
from assay.protocol.identity import Domain, peer_of, sign, verify
from assay.protocol.params import Member
from assay.protocol.types import NO_DIGEST, Address, HotSignature, PeerId, Signature

PREFIX = "assay-record-1"
SUFFIX = ".record"
OWN_RECORD = f"own{SUFFIX}"  # in the folder of the keys: the last one that they signed
RECORD_BYTES_MAX = 4096
RECORD_FILES_MAX = 4096  # in one folder
AHEAD_S_MAX = 86_400  # how far a record's time may be ahead of the reader's clock
HOST_MAX = 253  # characters of a DNS name
EXPLORER_MAX = 200  # characters of an explorer's address
_PATH = re.compile(r"(/(?!\.\.?(/|$))[A-Za-z0-9._~-]+)*")
_LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
_ANYWHERE = Domain(NO_DIGEST, NO_DIGEST)  # a record belongs to no deployment and no run
_HOT_TAG = b"assay/record-hot/1"


class Role(enum.IntEnum):
    """What a participant does; it may do several things with several sets of keys."""

    NODE = 1
    VERIFIER = 2
    LEDGER = 3
    BUYER = 4
    WATCHTOWER = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A participant's keys, account, role and address."""

    TAG: ClassVar[bytes] = b"assay/record/1"
    peer: PeerId
    account: Address
    hot: Address
    role: Role
    host: Annotated[str, Max(HOST_MAX)]  # IPv4, IPv6 or DNS name, in the one form of `plain_host`
    port: int
    made_at_s: int  # Unix time of the maker's clock
    sequence: int  # higher in each further record of the peer key
    explorer: Annotated[str, Max(EXPLORER_MAX), Later()] = ""  # that it serves, as `plain_explorer`; or none

    @property
    def member(self) -> Member:
        """This participant as a run's spec names it."""
        return Member(peer=self.peer, account=self.account, hot=self.hot)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRecord:
    """A record and the signatures of the two keys that it names."""

    TAG: ClassVar[bytes] = b"assay/signed-record/1"
    record: Record
    by_peer: Signature
    by_hot: HotSignature


def sign_record(
    keys: Keys,
    role: Role,
    host: str,
    port: int,
    now_s: int,
    before: SignedRecord | None = None,
    *,
    explorer: str = "",
) -> SignedRecord:
    """The next record of these keys.

    Args:
        keys: Whose.
        role: What it does.
        host: IPv4 or IPv6 address, or DNS name.
        port: Its TCP port, 1 to 65535.
        now_s: Unix time. The sequence number is at least this, so that it rises also where `before` was lost.
        before: The last record of these keys, if it is known.
        explorer: Address of an explorer that it serves; empty: none.

    Raises:
        ConfigError: host or port are not an address, or the explorer's is none.
    """
    record = Record(
        peer=peer_of(keys.peer),
        account=Address(keys.account_address),
        hot=Address(keys.hot_address),
        role=role,
        host=plain_host(host),
        port=port,
        made_at_s=now_s,
        sequence=max(now_s, 0 if before is None else before.record.sequence + 1),
        explorer=plain_explorer(explorer) if explorer else "",
    )
    if not 0 < port < 1 << 16:
        raise ConfigError(f"port {port}, expected 1 to 65535")
    return SignedRecord(
        record=record,
        by_peer=sign(keys.peer, _ANYWHERE, record),
        by_hot=HotSignature(sign_digest(_hot_digest(record), keys.hot)),
    )


def check_record(signed: SignedRecord, now_s: int) -> None:
    """Do nothing if a record is well-formed and signed by both keys that it names.

    Raises:
        PeerFault: what arrived, and what was expected.
    """
    record = signed.record
    verify(record.peer, _ANYWHERE, record, signed.by_peer)
    try:
        signer = recover(_hot_digest(record), signed.by_hot)
    except BadSignatureError as error:
        raise PeerFault(record.peer, f"record's hot signature: {error}") from None
    if signer != evm_address(record.hot):
        raise PeerFault(record.peer, f"record signed by hot key {signer}, names {evm_address(record.hot)}")
    try:
        is_plain = plain_host(record.host) == record.host
        is_plain &= not record.explorer or plain_explorer(record.explorer) == record.explorer
    except ConfigError as error:
        raise PeerFault(record.peer, f"record: {error}") from None
    if not is_plain or not 0 < record.port < 1 << 16:
        raise PeerFault(
            record.peer, f"record's address {record.host} port {record.port} is not in plain form"
        )
    if record.made_at_s > now_s + AHEAD_S_MAX:
        raise PeerFault(record.peer, f"record made {time_text(record.made_at_s)}, it is {time_text(now_s)}")


def check_newer(known: SignedRecord | None, found: SignedRecord) -> None:
    """Do nothing if `found` may take the place of the record that is known of its peer.

    Raises:
        PeerFault: it is older, another one with the same number, or moves the peer to another account.
    """
    if known is None or known == found:
        return
    old, new = known.record, found.record
    if new.sequence <= old.sequence:
        raise PeerFault(new.peer, f"record {new.sequence} arrived, record {old.sequence} is known")
    if (new.peer, new.account) != (old.peer, old.account):
        raise PeerFault(
            new.peer,
            f"record with account {evm_address(new.account)}, it is known with {evm_address(old.account)}",
        )


def takes_place_of(known: SignedRecord, found: SignedRecord) -> bool:
    """Whether a checked record is a newer one of the same peer, account and role."""
    old, new = known.record, found.record
    is_same = (new.peer, new.account, new.role) == (old.peer, old.account, old.role)
    return is_same and new.sequence > old.sequence


def newest(records: Iterable[SignedRecord]) -> dict[PeerId, SignedRecord]:
    """The newest of checked records, by peer."""
    found: dict[PeerId, SignedRecord] = {}
    for one in records:
        known = found.get(one.record.peer)
        if known is None or one.record.sequence > known.record.sequence:
            found[one.record.peer] = one
    return found


def plain_host(host: str) -> str:
    """The one form of a host: an address that can be dialled, compressed, or a DNS name in lower case.

    Raises:
        ConfigError: neither.
    """
    text = host.strip().removeprefix("[").removesuffix("]").lower().removesuffix(".")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        labels = text.split(".")
        is_name = len(text) <= HOST_MAX and all(_LABEL.fullmatch(label) for label in labels)
        if not is_name or labels[-1].isdigit():
            raise ConfigError(f"{host[:60]!a} is neither an IP address nor a DNS name") from None
        return text
    if address.is_unspecified or address.is_multicast or "%" in text:
        raise ConfigError(f"{text} is not an address at which others reach a participant")
    return str(address)


def plain_explorer(url: str) -> str:
    """The one form of an explorer's address: no credentials, no query, no `/` at the end.

    Raises:
        ConfigError: it is no http or https address of a host, or a longer one.
    """
    try:
        parts = urlsplit(url)
        host, port = plain_host(parts.hostname or ""), parts.port
    except (ValueError, ConfigError):
        raise _no_explorer(url) from None
    named = f"[{host}]" if ":" in host else host
    path = parts.path.rstrip("/")
    plain = f"{parts.scheme}://{named}{'' if port is None else f':{port}'}{path}"
    is_plain = plain.lower() == url.rstrip("/").lower()  # nothing else in it, such as credentials
    if not is_plain or parts.scheme not in ("http", "https") or _PATH.fullmatch(path) is None:
        raise _no_explorer(url)
    if len(plain) > EXPLORER_MAX:
        raise _no_explorer(url)
    return plain


def _no_explorer(url: str) -> ConfigError:
    return ConfigError(
        f"{url[:60]!a} is no explorer's address: expected one such as https://example.org/assay, of "
        f"{EXPLORER_MAX} characters at most, without credentials"
    )


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[IPV6]:PORT`.

    Raises:
        ConfigError: not of this form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or (":" in host) != host.startswith("["):
        raise ConfigError(f"{text[:80]!a} is not an address, expected HOST:PORT or [IPV6]:PORT")
    return plain_host(host), int(port)


def _hot_digest(record: Record) -> bytes:
    """What the hot key signs: 32 bytes that are the digest of no EIP-712 statement and no transaction."""
    return keccak(_HOT_TAG + digest(record))


# ---- files


def write_record(path: Path, signed: SignedRecord) -> None:
    """Write a record's public file."""
    record = signed.record
    notes = [
        f"Assay {record.role.name.lower()} {record.peer.hex()}",
        f"at {record.host} port {record.port}, {time_text(record.made_at_s)}",
        *([f"explorer {record.explorer}"] if record.explorer else []),
    ]
    write_text(path, to_text(PREFIX, signed, notes))


def renew_own(
    folder: Path, keys: Keys, role: Role, host: str, port: int, now_s: int, *, explorer: str = ""
) -> SignedRecord:
    """Sign the next record of the keys in a folder, and keep it there.

    Raises:
        ConfigError: as `sign_record`, or the last record is damaged.
    """
    path = folder / OWN_RECORD
    before = read_record(path, now_s) if path.exists() else None
    signed = sign_record(keys, role, host, port, now_s, before, explorer=explorer)
    write_record(path, signed)
    return signed


def read_record(path: Path, now_s: int) -> SignedRecord:
    """A checked record from its file.

    Raises:
        ConfigError: unreadable, damaged or not signed by the keys that it names.
    """
    try:
        signed = from_text(PREFIX, SignedRecord, read_text(path, "record", RECORD_BYTES_MAX))
        check_record(signed, now_s)
    except (MalformedMessage, PeerFault) as error:
        raise ConfigError(f"record {path}: {error}") from None
    return signed


def read_records(folder: Path, now_s: int) -> dict[PeerId, SignedRecord]:
    """The newest record of each peer in a folder's `*.record` files; empty where there is no folder.

    Raises:
        ConfigError: one of the files is no record, or there are too many.
    """
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if len(paths) > RECORD_FILES_MAX:
        raise ConfigError(f"{folder}: {len(paths)} records, at most {RECORD_FILES_MAX} expected")
    return newest(read_record(path, now_s) for path in paths)


def learn_records(folder: Path, records: Iterable[SignedRecord], now_s: int) -> dict[PeerId, SignedRecord]:
    """Keep those of checked records that are newer than what a folder holds; returns the newest of each peer.

    Raises:
        ConfigError: a record is older than the known one, or contradicts it.
    """
    known = read_records(folder, now_s)
    for one in records:
        peer = one.record.peer
        try:
            check_newer(known.get(peer), one)
        except PeerFault as error:
            raise ConfigError(f"{error}: ask for its present record, or remove it from {folder}") from None
        if known.get(peer) != one:
            write_record(folder / f"{peer.hex()}{SUFFIX}", one)
            known[peer] = one
    return known
