"""Message: a library of Standard Webhooks accepts what is sent, and nothing that was changed."""

from __future__ import annotations

import base64
import json

from assay.api.entries import Event
from assay.api.hooks.message import message_body, message_id, secret_text, signed_headers

SECRET = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")


def test_the_signature_is_that_of_the_standards_example():
    headers = signed_headers(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')

    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert secret_text(SECRET) == "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_the_signature_covers_id_time_and_body():
    whole = ("msg_a_1", 1, b"{}")
    changed = [("msg_a_2", 1, b"{}"), ("msg_a_1", 2, b"{}"), ("msg_a_1", 1, b"{ }")]

    signatures = {signed_headers(SECRET, *one)["webhook-signature"] for one in (whole, *changed)}

    assert len(signatures) == 4
    assert signed_headers(bytes(32), *whole) != signed_headers(SECRET, *whole)


def test_a_body_has_the_type_the_time_the_run_and_the_entry():
    event = Event(number=7, kind="Staked", recorded="2026-01-01T00:00:00.000+00:00", data=b'{"number":7}')

    assert json.loads(message_body('pa"per', event)) == {
        "type": "Staked",
        "timestamp": "2026-01-01T00:00:00.000+00:00",
        "run": 'pa"per',
        "data": {"number": 7},
    }
    assert "." not in message_id("a", 7)  # which parts what is signed
