"""Server: the state that routes share: configuration, runs, access store, chain and clock; authentication.

Room: api (edge). A request authenticates by a bearer secret; cookies are never read.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from assay.api.access import AccessStore, InProgress, KeyReused, NoRoom, Principal
from assay.api.catalogue import RunCatalogue, ServedRun
from assay.api.config import ServerFile
from assay.api.gateway import Gateway
from assay.api.http.answers import Answers
from assay.api.http.problems import MEDIA_TYPE, Problem, problem_body
from assay.api.http.rate_limits import Buckets, Rate
from assay.api.streams import Streams
from assay.ledger.merkle_log import Edge

SWEEP_S = 60
KEY_CHARS_MAX = 64
SERVER = "assay.server"  # key of a request's scope
bearer = HTTPBearer(auto_error=False, description="A session of /v1/signin, or an API token (assay_...).")


@dataclass(slots=True)
class Server:
    """One server's shared state."""

    config: ServerFile
    catalogue: RunCatalogue
    access: AccessStore
    gateway: Gateway | None
    answers: Answers = field(default_factory=Answers)
    now_s: Callable[[], int] = field(default=lambda: int(time.time()))
    streams: Streams = field(init=False)
    exporting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))  # makes a piece
    _lock: Lock = field(default_factory=Lock)
    _swept_s: int = 0
    _accounts: Buckets = field(init=False)
    _tokens: Buckets = field(init=False)

    def __post_init__(self) -> None:
        limits = self.config.limits
        self.streams = Streams(limits)
        self._accounts = Buckets(rate=Rate(per_minute=limits.account_per_minute, burst=limits.account_burst))
        self._tokens = Buckets(rate=Rate(per_minute=limits.token_per_minute, burst=limits.token_burst))

    def authenticate(self, request: Request) -> Principal | None:
        """The authenticated caller, whose request is counted; None without credentials.

        Raises:
            Problem: an invalid secret, or too many requests.
        """
        found, now_s = self._identify(request), self.now_s()
        if found is None:
            return None
        with self._lock:
            # Requests in between leave the mark; one in the future is of a clock that was set back.
            is_sweeping = not self._swept_s <= now_s < self._swept_s + SWEEP_S
            if is_sweeping:
                self._swept_s = now_s
            wait = self._tokens.take(found.name, time.monotonic())
            if found.account is not None:
                wait = max(wait, self._accounts.take(found.account, time.monotonic()))
        if is_sweeping:
            self.access.sweep(now_s)
        if wait:
            seconds = str(int(wait) + 1)
            raise Problem(
                429, f"too many requests; the next in {seconds} s", headers={"Retry-After": seconds}
            )
        return found

    def _identify(self, request: Request) -> Principal | None:
        """The caller of a request; None without credentials.

        Raises:
            Problem: an invalid secret.
        """
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        if not scheme:
            return None
        found = self.access.authenticate(secret.strip(), self.now_s()) if scheme.lower() == "bearer" else None
        if found is None:
            raise Problem(401, "the session or token is unknown, expired or revoked", headers=_CHALLENGE)
        return found

    def check_still_reads(self, request: Request, run: ServedRun) -> None:
        """Do nothing if the caller of a request that was allowed may still read the run's books.

        Raises:
            Problem: the session or token has ended, or the account is no party any more.
        """
        self.run_for(self._identify(request), run.name)

    def run_for(self, caller: Principal | None, name: str) -> ServedRun:
        """The run of this name, if the caller may read its books.

        Raises:
            Problem: there is none, or the caller's account is neither a reader nor a party of it.
        """
        found = self.catalogue.find(name)
        if not self.may_read(caller, found):
            raise Problem(403, "only a run's parties, and the readers of this server, may read its books")
        return found

    def may_read(self, caller: Principal | None, run: ServedRun | None = None) -> bool:
        """Whether the caller may read all books, or those of one run.

        A session proves an account and nothing more, and anybody can make one. A token was given by whoever
        keeps the server.
        """
        if caller is None or caller.token is not None or self.config.public_read:
            return True
        return self._takes_part(caller.account or "", run)

    def may_be_sent(self, owner: str, token: int | None, run: ServedRun) -> bool:
        """Whether the owner of a webhook may have a run's entries sent, also where everybody may read them.

        Args:
            owner: As `name_of` has it.
            token: The token that registered the webhook, which must still be valid; None for a session.
            run: The run.
        """
        if token is not None:
            return self.access.is_valid(token, "hook", self.now_s())
        return self._takes_part(owner.removeprefix("account:"), run)

    def _takes_part(self, account: str, run: ServedRun | None) -> bool:
        """Whether an account is a reader of this server, or a party of a run."""
        account, readers = account.lower(), {one.lower() for one in self.config.readers}
        return account in readers or (run is not None and run.is_party(account))

    def name_of(self, caller: Principal) -> str:
        """Whose a request is, for bounds: its account, or a token without one."""
        return caller.name if caller.account is None else f"account:{caller.account.lower()}"

    def chain(self) -> Gateway:
        """The chain gateway.

        Raises:
            Problem: this server has no chain.
        """
        if self.gateway is None:
            raise Problem(503, "this server is not connected to a chain")
        return self.gateway


_CHALLENGE = {"WWW-Authenticate": "Bearer"}


def server_of(request: Request) -> Server:
    """The server that a request came to."""
    found: Server = request.scope[SERVER]
    return found


TheServer = Annotated[Server, Depends(server_of)]


def needs(scope: str) -> Callable[..., Principal | None]:
    """FastAPI dependency: the caller, which must have this scope; reading may be public."""

    def check(
        request: Request, server: TheServer, _shown: Annotated[Any, Depends(bearer)]
    ) -> Principal | None:
        found = server.authenticate(request)
        if found is None:
            if scope == "read" and server.config.public_read:
                return None
            raise Problem(401, "sign in, or send an API token", headers=_CHALLENGE)
        if scope not in found.scopes:
            raise Problem(403, f"the token has no scope {scope!r}")
        return found

    return check


Reader = Annotated[Principal | None, Depends(needs("read"))]


def check_etag(request: Request, edge: Edge, more: str = "") -> str:
    """The ETag of a response that depends on path, query, log and `more` alone.

    Raises:
        HTTPException: 304, if the caller has this response already.
    """
    target = f"{request.url.path}?{request.url.query}"
    made = hashlib.sha256(f"{target}\n{edge.size}\n{edge.root.hex()}\n{more}".encode()).hexdigest()[:32]
    tag = f'"{made}"'
    known_tags = request.headers.get("if-none-match", "")
    if tag in [one.strip().removeprefix("W/") for one in known_tags.split(",")[:16]]:
        raise NotModified(tag)
    return tag


class NotModified(Exception):
    """The caller has this response already (304)."""

    def __init__(self, tag: str) -> None:
        super().__init__(tag)
        self.tag = tag


def once(
    server: Server,
    caller: Principal,
    request: Request,
    given: BaseModel,
    carry_out: Callable[[], tuple[int, BaseModel]],
) -> Response:
    """Execute a request, or return the stored response of its Idempotency-Key.

    Raises:
        Problem: no key, a key of another request, or one still being processed.
    """
    key = request.headers.get("idempotency-key", "")
    if not 1 <= len(key) <= KEY_CHARS_MAX or not key.isascii() or not key.isprintable():
        raise Problem(400, f"expected a header Idempotency-Key of 1 to {KEY_CHARS_MAX} characters")
    body = f"{request.method} {request.url.path}\n{given.model_dump_json()}"
    request_hash = hashlib.sha256(body.encode()).digest()
    stale_s = int(server.config.limits.request_s) + 1
    try:
        before = server.access.begin(caller.name, key, request_hash, server.now_s(), stale_s)
    except KeyReused:
        raise Problem(422, "this Idempotency-Key was used for another request") from None
    except InProgress:
        raise Problem(409, "the request with this Idempotency-Key is still being processed") from None
    except NoRoom as error:
        raise Problem(429, str(error), headers={"Retry-After": "3600"}) from None
    if before is not None:
        return _answer(*before, {"Idempotency-Replayed": "true"})
    status, text = 500, b""
    try:
        try:
            status, made = carry_out()
            text = made.model_dump_json().encode()
        except HTTPException as problem:
            status, text = problem.status_code, problem_body(problem.status_code, problem.detail)
            if status >= 500 or status == 429:
                raise
    finally:
        server.access.finish(caller.name, key, status, text)
    return _answer(status, text, {})


def _answer(status: int, text: bytes, headers: dict[str, str]) -> Response:
    return Response(text, status, headers, "application/json" if status < 400 else MEDIA_TYPE)
