"""A program that moves money through the API as an honest wallet does."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

from eth_account import Account
from eth_account.messages import encode_typed_data

from tests.api.a_server import ApiWorld

_keys = count()


def key() -> dict[str, str]:
    return {"Idempotency-Key": f"key-{next(_keys)}"}


def prepare(world_api: ApiWorld, token: str, action: str, **parameters: Any) -> Any:
    body = {"action": action, "parameters": parameters}
    return world_api.ask("POST", "/v1/moves/prepare", token, headers=key(), json=body)


def signed(prepared: dict[str, Any], secret: bytes, **changes: Any) -> dict[str, Any]:
    """The move as an honest wallet sends it; `changes` to every transaction make it another."""
    statement = Account.sign_message(encode_typed_data(full_message=prepared["typed_data"]), secret)
    raws = [Account.sign_transaction({**one, **changes}, secret) for one in prepared["transactions"]]
    return {
        "id": prepared["id"],
        "signature": "0x" + bytes(statement.signature).hex(),
        "transactions": ["0x" + bytes(raw.raw_transaction).hex() for raw in raws],
    }


def send(world_api: ApiWorld, token: str, body: dict[str, Any], **headers: str) -> Any:
    return world_api.ask("POST", "/v1/moves", token, headers=headers or key(), json=body)


def landed(world_api: ApiWorld, token: str, answer: Any) -> Any:
    """The move's state once the chain has its transactions; a busy machine mines a little later."""
    assert answer.status_code == 202, answer.text
    told, deadline = answer.json(), time.monotonic() + 60
    while told["state"] == "sent" and time.monotonic() < deadline:
        time.sleep(0.05)
        told = world_api.get(f"/v1/moves/{told['id']}", token).json()
    return told
