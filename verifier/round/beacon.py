"""Shares: the verifiers' shares of the beacon, which a leader collects and must not choose among.

Room: verifier (pure). Each verifier's share is its VRF's output over the last manifest: one value that only
it can make and anybody can check. Only whether a share is there could be chosen, so a leader that follows
its predecessor at once must carry all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from assay.protocol.draws import beacon_input
from assay.protocol.errors import AssayError, MalformedMessage
from assay.protocol.messages import Manifest, Reveal
from assay.protocol.quorum import quorum
from assay.protocol.randomness.vrf import verify
from assay.protocol.state_transition import History
from assay.protocol.types import PeerId, RoundId

REVEALS_PER_VERIFIER = 4  # pooled: of the last manifest, and of those notarised but not final here


def valid_reveals(pool: Mapping[PeerId, Sequence[Reveal]], history: History) -> tuple[Reveal, ...]:
    """Pooled reveals that hold for the last manifest of `history`, ascending by verifier."""
    holding = (
        next((reveal for reveal in reveals if _holds(history, reveal)), None)
        for verifier, reveals in sorted(pool.items())
        if verifier in history.beacon
    )
    return tuple(reveal for reveal in holding if reveal is not None)


def reveals_needed(history: History, *, follows: bool) -> int:
    """All shares where the parent's leader is followed at once, else a quorum: a leader chooses none."""
    return len(history.beacon) if follows else quorum(len(history.spec.verifiers))


def pooled(known: Sequence[Reveal], reveal: Reveal, history: History) -> tuple[Reveal, ...]:
    """A verifier's pool with one more reveal: the newest, and never without the one that holds now.

    Anybody can send nonsense in a verifier's name; it must not push the true word out.
    """
    newest = (*(other for other in known if other != reveal), reveal)[-REVEALS_PER_VERIFIER:]
    true = next((other for other in known if _holds(history, other)), None)
    return newest if true is None or true in newest else (true, *newest[1:])


def check_reveals(history: History, manifest: Manifest, *, follows: bool) -> None:
    """Do nothing if a proposed manifest carries the shares that it must, all of them true.

    Raises:
        MalformedMessage, PeerFault: what is wrong with them.
    """
    if not history.round:
        if manifest.reveals:
            raise MalformedMessage("manifest carries reveals before there is a round to reveal for")
        return
    alpha = _alpha(history)
    for reveal in manifest.reveals:
        if reveal.run_id != history.run_id or reveal.round != history.round - 1:
            raise MalformedMessage("manifest carries a reveal of another round")
        verify(reveal.verifier, alpha, reveal.proof)
    if not {reveal.verifier for reveal in manifest.reveals} <= set(history.beacon):
        raise MalformedMessage("manifest carries a reveal of a verifier that was away")
    need = reveals_needed(history, follows=follows)
    if len(manifest.reveals) < need:
        raise MalformedMessage(f"manifest carries {len(manifest.reveals)} reveals, expected {need}")


def _holds(history: History, reveal: Reveal) -> bool:
    is_due = reveal.run_id == history.run_id and reveal.round == history.round - 1
    return is_due and _vrf_holds(reveal.verifier, _alpha(history), reveal.proof)


@functools.lru_cache(maxsize=1024)  # leaders ask at every tick; a check takes a millisecond
def _vrf_holds(verifier: PeerId, alpha: bytes, proof: bytes) -> bool:
    try:
        verify(verifier, alpha, proof)
    except AssayError:
        return False
    return True


def _alpha(history: History) -> bytes:
    return beacon_input(
        history.spec.deployment_id, history.run_id, RoundId(int(history.round) - 1), history.parent
    )
