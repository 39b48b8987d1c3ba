"""Move routes: prepare an account's transactions, check the signed ones, and submit them to the chain.

Room: api (edge). Signed transactions are stored before they are sent, so a server killed in between
submits the same bytes again when the move's state is requested.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from eth_utils.crypto import keccak
from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import Response

from assay.api.access import Kept, NoRoom, OverLimit, Principal
from assay.api.actions.planning import Planned, actions_answer, actions_text, plan
from assay.api.http.bodies import StrictRoute
from assay.api.http.problems import Problem
from assay.api.moves import MOVE_S, MoveRefused, check_move, check_transaction, typed_data
from assay.api.schemas import (
    ActionsAnswer,
    MoveAnswer,
    MoveAsked,
    PrepareAsked,
    PreparedAnswer,
    SentTransaction,
    TransactionAnswer,
)
from assay.api.server import Server, TheServer, needs, once
from assay.chain.signing.unsigned import Transaction
from assay.protocol.encoding.json_text import plain, read_plain

router = APIRouter(route_class=StrictRoute, prefix="/v1/moves", tags=["moves"])
Mover = Annotated[Principal, Depends(needs("move"))]
MoveId = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
_HEADERS: Any = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": 64},
        }
    ]
}


@router.post(
    "/prepare",
    status_code=201,
    response_model=PreparedAnswer,
    openapi_extra=_HEADERS,
    description="The unsigned transactions of a move, and the statement that the account signs with them."
    f"\n\nActions: {actions_text()}.",
)
def prepare(server: TheServer, caller: Mover, body: PrepareAsked, request: Request) -> Response:
    """The unsigned transactions of a move, and the statement that the account signs with them."""
    return once(server, caller, request, body, lambda: (201, _prepare(server, caller, body)))


@router.post("", status_code=202, response_model=MoveAnswer, openapi_extra=_HEADERS)
def send(server: TheServer, caller: Mover, body: MoveAsked, request: Request) -> Response:
    """Send a prepared move: its statement and its transactions, signed by the account."""
    return once(server, caller, request, body, lambda: (202, _send(server, caller, body)))


@router.get("/actions")
def actions() -> ActionsAnswer:
    """Every action that a move may be, with its function and its parameters, to make forms of."""
    return actions_answer()


@router.get("/{move_id}")
def state(server: TheServer, caller: Mover, move_id: MoveId) -> MoveAnswer:
    """State of a move; transactions unknown to the chain are submitted again."""
    return _answer(server, _mine(server, caller, move_id))


def _prepare(server: Server, caller: Principal, body: PrepareAsked) -> PreparedAnswer:
    chain, account, now_s = server.chain(), _account(caller), server.now_s()
    planned: Planned = plan(server, account, body.action, body.parameters)
    transactions = chain.unsigned(account, planned.calls)
    nonce = secrets.token_bytes(32)
    typed = typed_data(
        chain.deployment,
        action=body.action,
        summary=planned.summary,
        account=account,
        amount=planned.amount,
        parameters=body.parameters,
        transactions=transactions,
        nonce=nonce,
        expiry=now_s + MOVE_S,
    )
    kept = Kept(
        id=nonce.hex(),
        principal=caller.name,
        account=account,
        body={
            "action": body.action,
            "typed": typed,
            "transactions": plain(transactions),
        },
        amount=planned.amount,
        expires_s=now_s + MOVE_S,
        state="prepared",
        raw=(),
    )
    try:
        server.access.keep_move(kept, now_s)
    except NoRoom as error:
        raise Problem(429, str(error), headers={"Retry-After": "60"}) from None
    return PreparedAnswer.of(
        kept,
        action=body.action,
        expires_at=kept.expires_s,
        typed_data=typed,
        transactions=[TransactionAnswer(**one.plain()) for one in transactions],
    )


def _send(server: Server, caller: Principal, body: MoveAsked) -> MoveAnswer:
    kept, now_s = _mine(server, caller, body.id), server.now_s()
    raws = tuple(one.lower() for one in body.transactions)
    if kept.state == "sent":
        if kept.raw != raws:
            raise Problem(409, "this move was sent before, with other transactions")
        return _answer(server, kept)
    if kept.expires_s <= now_s:
        raise Problem(409, "this move has expired; prepare it again")
    prepared = [read_plain(Transaction, one) for one in kept.body["transactions"]]
    if len(prepared) != len(raws):
        raise Problem(422, f"{len(raws)} transactions, {len(prepared)} were prepared")
    try:
        check_move(kept.body["typed"], bytes.fromhex(body.signature[2:]), kept.account)
        for raw, one in zip(raws, prepared, strict=True):
            check_transaction(bytes.fromhex(raw[2:]), one)
    except MoveRefused as error:
        raise Problem(422, str(error)) from None
    try:
        if not server.access.send_move(kept.id, raws, caller.token, now_s):
            raise Problem(409, "this move was sent before, or has expired")
    except OverLimit:
        raise Problem(403, "the token's spend limit does not cover this move") from None
    sent = server.access.move(kept.id)
    assert sent is not None
    return _answer(server, sent)


def _answer(server: Server, kept: Kept) -> MoveAnswer:
    """The state of a move on chain."""
    chain, sent = server.chain(), list[SentTransaction]()
    raws = {keccak(raw): raw for raw in (bytes.fromhex(one[2:]) for one in kept.raw)}
    # The last one is looked up first: none is then shown as pending beside a later one that is mined.
    states = {tx_hash: chain.mined(tx_hash) for tx_hash in reversed(raws)}
    for tx_hash, raw in raws.items():
        found, refused = states[tx_hash], ""
        if found.state == "unknown":
            refused = chain.offer(raw)
            found = chain.mined(tx_hash)
        sent.append(
            SentTransaction(
                hash=f"0x{tx_hash.hex()}", state=found.state, block=found.block, refused=refused or None
            )
        )
    return MoveAnswer.of(
        kept,
        action=kept.body["action"],
        state=_state([one.state for one in sent], kept, server.now_s()),
        transactions=sent,
    )


def _state(states: list[str], kept: Kept, now_s: int) -> str:
    if kept.state == "prepared":
        return "prepared" if kept.expires_s > now_s else "expired"
    if "reverted" in states:
        return "reverted"
    return next((one for one in ("final", "mined") if all(s in ("final", one) for s in states)), "sent")


def _mine(server: Server, caller: Principal, move_id: str) -> Kept:
    kept = server.access.move(move_id)
    if kept is None or kept.account != _account(caller):
        raise Problem(404, "this account has no such move")
    return kept


def _account(caller: Principal) -> str:
    if caller.account is None:
        raise Problem(403, "this token has no account")
    return caller.account
