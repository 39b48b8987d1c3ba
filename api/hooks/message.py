"""Message: one event as a signed request to a webhook, in the form of Standard Webhooks.

Room: api (pure: key and time come in). The signature covers the message's id, the time of the attempt and the
body, so a receiver can refuse what it has had before and what is old.
Reference: https://www.standardwebhooks.com, symmetric signatures (v1).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

from assay.api.entries import Event

SECRET_PREFIX = "whsec_"


def secret_text(secret: bytes) -> str:
    """A webhook's secret as its owner is given it."""
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def message_id(hook: str, number: int) -> str:
    """The id of the message that brings an entry to a webhook: the same for every attempt."""
    return f"msg_{hook}_{number}"


def message_body(run: str, event: Event) -> bytes:
    """The JSON of a message: its type, the time at which the entry was recorded, the run, and the entry."""
    head = json.dumps({"type": event.kind, "timestamp": event.recorded, "run": run})
    return head[:-1].encode() + b', "data": ' + event.data + b"}"


def signed_headers(secret: bytes, message: str, at_s: int, body: bytes) -> dict[str, str]:
    """The headers of one attempt.

    Args:
        secret: The webhook's.
        message: Id of the message.
        at_s: Time of the attempt, Unix seconds.
        body: The message's body.
    """
    signed = hmac.new(secret, f"{message}.{at_s}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": message,
        "webhook-timestamp": str(at_s),
        "webhook-signature": "v1," + base64.b64encode(signed).decode(),
    }
