"""Sign-in routes: open a session for a wallet's EIP-4361 signature, and close it.

Room: api (edge). Only a message that is valid in everything else uses the nonce up, so no client
can spoil another's. A session authenticates and moves no money.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

from eth_utils.address import to_checksum_address
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from assay.api.access import SESSION_PREFIX, Principal
from assay.api.http.bodies import StrictRoute
from assay.api.http.problems import Problem
from assay.api.schemas import MessageAnswer, MessageAsked, NonceAnswer, SessionAnswer, SignInAsked
from assay.api.server import Server, TheServer, needs
from assay.api.signin import SignIn, SignInRefused, check_signin, parse_signin, signed_digest
from assay.chain.statements import Address, BadSignatureError, recover

router = APIRouter(route_class=StrictRoute, prefix="/v1/signin", tags=["sign-in"])
STATEMENT = "Sign in to this server. It moves nothing."
Caller = Annotated[Principal | None, Depends(needs("read"))]


@router.post("/nonce")
def nonce(server: TheServer) -> NonceAnswer:
    """A nonce for one sign-in message, and the other required fields of the message."""
    now_s, chain_id = server.now_s(), server.chain().deployment.chain_id
    made = server.access.new_nonce(now_s)
    origin = server.config.origin
    return NonceAnswer(
        nonce=made,
        expires_at=int(made[:10], 16),
        chain_id=chain_id,
        domain=origin.partition("://")[2],
        uri=origin,
    )


@router.post("/message")
def message(server: TheServer, body: MessageAsked) -> MessageAnswer:
    """A whole EIP-4361 message for an account, for a client that does not write it from a nonce itself."""
    fresh, now_s = nonce(server), server.now_s()
    made = SignIn(
        domain=fresh.domain,
        address=Address(to_checksum_address(body.account)),
        statement=STATEMENT,
        uri=fresh.uri,
        chain_id=fresh.chain_id,
        nonce=fresh.nonce,
        issued_at=_time_text(now_s),
        expires_at=_time_text(fresh.expires_at),
    )
    return MessageAnswer(message=made.text(), expires_at=fresh.expires_at)


@router.post("", status_code=201)
def sign_in(server: TheServer, body: SignInAsked) -> SessionAnswer:
    """A session for the account that signed an EIP-4361 message with one of our nonces."""
    now_s, chain = server.now_s(), server.chain()
    try:
        message = parse_signin(body.message)
        now = datetime.fromtimestamp(now_s, timezone.utc)
        check_signin(message, origin=server.config.origin, chain_id=chain.deployment.chain_id, now=now)
    except SignInRefused as error:
        raise Problem(401, str(error)) from None
    if not _is_signed(server, body.message, message.address, bytes.fromhex(body.signature[2:])):
        raise Problem(401, f"the message is not signed by {message.address}")
    if not server.access.use_nonce(message.nonce, now_s):
        raise Problem(401, "the nonce is unknown, expired or used")
    secret, expires_at = server.access.open_session(message.address, now_s)
    return SessionAnswer(token=secret, account=message.address, expires_at=expires_at)


@router.delete("", status_code=204)
def sign_out(server: TheServer, caller: Caller, request: Request) -> Response:
    """End the caller's session."""
    secret = request.headers.get("authorization", "").partition(" ")[2].strip()
    if caller is None or not secret.startswith(SESSION_PREFIX):
        raise Problem(409, "only a session can sign out; a token is revoked by the server's operator")
    server.access.close_session(secret)
    return Response(status_code=204)


def _time_text(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_signed(server: Server, text: str, account: str, signature: bytes) -> bool:
    digest = signed_digest(text)
    try:
        if recover(digest, signature) == account:
            return True
    except BadSignatureError:
        pass  # a contract wallet's signature may have any form
    return server.chain().is_valid_signature(account, digest, signature)
