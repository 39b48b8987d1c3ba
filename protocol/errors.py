"""Errors: the exception hierarchy; each class states who is at fault, and so what the caller does next.

Room: protocol (pure). Callers act on the class; the text is for people: what arrived, what was expected,
and which peer sent it.
"""

from __future__ import annotations


class AssayError(Exception):
    """Base of every error this project raises on purpose."""


class PeerFault(AssayError):
    """A peer broke a rule: drop the message, score the peer, carry on."""

    def __init__(self, peer: bytes, reason: str) -> None:
        super().__init__(f"peer {peer.hex()[:8]}: {reason}")
        self.peer = peer
        self.reason = reason


class OutOfPhase(PeerFault):
    """A well-formed message that does not belong to the present phase; state is unchanged."""


class MalformedMessage(AssayError):
    """Bytes that no correct program sends: close the stream they came from."""


class ConfigError(AssayError):
    """The operator can fix it: print one line, exit 2."""


class Unavailable(AssayError):
    """Chain, disk or network is unavailable: retry with backoff, then surface."""


class NotYet(Unavailable):
    """What was asked for is right, but too early; the text says until when."""


class Diverged(AssayError):
    """Our own state disagrees with a certificate: stop, discard the state and resync."""
