"""Sign-in: parses and checks Sign-In with Ethereum messages (EIP-4361).

Room: api (pure: the time comes in). The EIP's grammar is applied strictly: one message has one text,
and a text that another parser could read differently is refused.

    example.org wants you to sign in with your Ethereum account:
    0x52908400098527886E0F7030069857D2E4169EE7

    I accept the terms.

    URI: https://example.org/login
    Version: 1
    Chain ID: 1
    Nonce: 32891756
    Issued At: 2026-01-01T00:00:00Z
    Expiration Time: ... Not Before: ... Request ID: ... Resources: ...
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from assay.chain.statements import Address
from assay.protocol.errors import AssayError

TEXT_CHARS_MAX = 4_000
SKEW_S = 60  # a wallet's clock may be ahead of ours
AGE_S_MAX = 600
RESOURCES_MAX = 16
_URI = r"[A-Za-z][A-Za-z0-9+.\-]*:(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*"
_TIME = r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+\-]\d\d:\d\d)"
_MESSAGE = re.compile(
    rf"""(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*)://)?(?P<domain>[A-Za-z0-9\-._~\[\]:]+)\
[ ]wants[ ]you[ ]to[ ]sign[ ]in[ ]with[ ]your[ ]Ethereum[ ]account:\n\
(?P<address>0x[0-9A-Fa-f]{{40}})\n\n\
(?:(?P<statement>[A-Za-z0-9\-._~:/?\#\[\]@!$&'()*+,;= ]+)\n)?\n\
URI:[ ](?P<uri>{_URI.replace("#", chr(92) + "#")})\n\
Version:[ ](?P<version>1)\n\
Chain[ ]ID:[ ](?P<chain_id>[0-9]{{1,20}})\n\
Nonce:[ ](?P<nonce>[A-Za-z0-9]{{8,128}})\n\
Issued[ ]At:[ ](?P<issued_at>{_TIME})\
(?:\nExpiration[ ]Time:[ ](?P<expires_at>{_TIME}))?\
(?:\nNot[ ]Before:[ ](?P<not_before>{_TIME}))?\
(?:\nRequest[ ]ID:[ ](?P<request_id>(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{{2}})*))?\
(?P<resources>\nResources:(?:\n-[ ]{_URI.replace("#", chr(92) + "#")})*)?""".replace("\\\n", ""),
    re.ASCII,
)
_AUTHORITY = re.compile(r"(?P<scheme>https?)://(?P<domain>[^/?#]*)(?:[/?#].*)?", re.DOTALL)


class SignInRefused(AssayError):
    """A message that violates the grammar, or is not for this server at this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """The fields of a sign-in message. Times are kept as written."""

    scheme: str | None = None
    domain: str
    address: Address
    statement: str | None = None
    uri: str
    chain_id: int
    nonce: str
    issued_at: str
    expires_at: str | None = None
    not_before: str | None = None
    request_id: str | None = None
    resources: tuple[str, ...] | None = None

    def text(self) -> str:
        """The message, as a wallet shows and signs it."""
        origin = f"{self.scheme}://{self.domain}" if self.scheme is not None else self.domain
        lines = [f"{origin} wants you to sign in with your Ethereum account:", self.address, ""]
        lines += [] if self.statement is None else [self.statement]
        lines += ["", f"URI: {self.uri}", "Version: 1", f"Chain ID: {self.chain_id}", f"Nonce: {self.nonce}"]
        lines.append(f"Issued At: {self.issued_at}")
        for name, value in (
            ("Expiration Time", self.expires_at),
            ("Not Before", self.not_before),
            ("Request ID", self.request_id),
        ):
            lines += [] if value is None else [f"{name}: {value}"]
        if self.resources is not None:
            lines += ["Resources:", *(f"- {one}" for one in self.resources)]
        return "\n".join(lines)


def parse_signin(text: str) -> SignIn:
    """The message in a text.

    Raises:
        SignInRefused: it violates the grammar, or the address lacks its checksum.
    """
    found = _MESSAGE.fullmatch(text) if len(text) <= TEXT_CHARS_MAX else None
    if found is None:
        raise SignInRefused("not a sign-in message by EIP-4361")
    part = found.groupdict()
    if part["address"] != to_checksum_address(part["address"]):
        raise SignInRefused("the address is not written with its checksum (EIP-55)")
    listed = None if part["resources"] is None else tuple(part["resources"].split("\n- ")[1:])
    if listed is not None and len(listed) > RESOURCES_MAX:
        raise SignInRefused(f"{len(listed)} resources, at most {RESOURCES_MAX} expected")
    fields: dict[str, Any] = {**part, "chain_id": int(part["chain_id"]), "resources": listed}
    del fields["version"]
    message = SignIn(**fields)
    if message.text() != text:
        raise SignInRefused("a sign-in message that is not in its canonical form")
    for name in ("issued_at", "expires_at", "not_before"):
        if part[name] is not None:
            _moment(part[name])
    return message


def check_signin(message: SignIn, *, origin: str, chain_id: int, now: datetime) -> None:
    """Do nothing if the message is for this server and valid now. The caller checks the nonce.

    Args:
        message: The parsed message.
        origin: This server's, such as `https://api.example.org`: scheme and domain.
        chain_id: Of the accounts' chain.
        now: Time-zone aware.

    Raises:
        SignInRefused: another domain, URI or chain, or outside its validity.
    """
    scheme, _, domain = origin.partition("://")
    if message.domain != domain or message.scheme not in (None, scheme):
        raise SignInRefused(f"a sign-in for {message.domain[:80]!r}, {domain!r} expected")
    where = _AUTHORITY.fullmatch(message.uri)
    if where is None or (where["scheme"], where["domain"]) != (scheme, domain):
        raise SignInRefused(f"a sign-in for another origin than {origin}")
    if message.chain_id != chain_id:
        raise SignInRefused(f"a sign-in on chain {message.chain_id}, {chain_id} expected")
    issued = _moment(message.issued_at)
    if issued > now + timedelta(seconds=SKEW_S):
        raise SignInRefused("the message was issued in the future")
    if issued < now - timedelta(seconds=AGE_S_MAX):
        raise SignInRefused(f"the message was issued more than {AGE_S_MAX} seconds ago")
    if message.expires_at is not None and _moment(message.expires_at) <= now:
        raise SignInRefused("the message has expired")
    if message.not_before is not None and _moment(message.not_before) > now:
        raise SignInRefused("the message is not valid yet")


def signed_digest(text: str) -> bytes:
    """The digest that a wallet signs for a text (EIP-191, version 0x45)."""
    body = text.encode()
    return keccak(b"\x19Ethereum Signed Message:\n" + str(len(body)).encode() + body)


def _moment(text: str) -> datetime:
    """Parse an RFC 3339 time.

    Raises:
        SignInRefused: no valid date or time.
    """
    match = re.fullmatch(r"(.{10})[Tt](.{8})(?:\.(\d+))?([Zz]|[+\-]\d\d:\d\d)", text)
    assert match is not None, "the grammar let it through"
    day, clock, part, zone = match.groups()
    try:
        offset = "+00:00" if zone in "Zz" else zone
        found = datetime.fromisoformat(f"{day}T{clock}{offset}")
        return found.astimezone(timezone.utc) + timedelta(microseconds=int((part or "0").ljust(6, "0")[:6]))
    except (ValueError, OverflowError):
        raise SignInRefused(f"{text!r} is not a time") from None
