"""Consensus: verifiers agree on one manifest per training round (Simplex).

Room: verifier (pure). Authenticated messages and the time come in as values;
what should happen next goes out as effects, in the order they must happen.
(The rules follow in the next commit; these are the signatures.)
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.errors import MalformedMessage
from protocol.identity import Domain
from protocol.messages import CertifiedManifest, Proposal, QuorumCertificate, SignedVote
from protocol.types import Digest
from verifier.consensus_types import Config, Effect, Event, Record, State


def step(state: State, event: Event) -> tuple[State, tuple[Effect, ...]]:
    """Next state and what to do about it.

    Raises:
        OutOfPhase: a message that is of no use now; state is unchanged.
        PeerFault: a signed statement breaks a rule; state is unchanged.
        Diverged: somebody else signs with our key, or more than f verifiers lie: stop.
    """
    raise NotImplementedError


def restore(
    config: Config, records: Iterable[Record], now_ms: int, last: CertifiedManifest | None = None
) -> State:
    """The state after a start or a restart: `records` in the order they were persisted.

    Args:
        config: As before the restart.
        records: The journal; empty at the first start. Records of iterations
            up to `last`'s may be missing.
        now_ms: The driver's clock.
        last: The last `Finalised` link that the driver made durable.
    """
    raise NotImplementedError


def authenticate(
    config: Config, domain: Domain, message: SignedVote | Proposal | QuorumCertificate | CertifiedManifest
) -> None:
    """Do nothing if `message` is well formed, of this run, and every signature in it holds.

    Raises:
        PeerFault: a verifier signed nonsense, or a signature is not the claimed signer's.
        MalformedMessage: the sender put together what its signer did not sign.
    """
    raise MalformedMessage("not written yet")


def body(state: State, block: Digest) -> Proposal | None:
    """The proposal with this block digest, to answer another verifier's `NeedBlock`."""
    return state.bodies.get(block)
