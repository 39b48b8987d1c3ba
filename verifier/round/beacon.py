"""Beacon: collects and checks the verifiers' VRF shares of a round's randomness beacon.

Room: verifier (pure). A verifier's share is its VRF output over the last manifest: only that verifier can
make it, anybody can check it, and its value cannot be chosen. A leader could still choose which shares to
include, so one that follows its predecessor at once must include all of them, and what a later one leaves
out makes the beacon partial: then every step of the round is audited.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from assay.protocol.agreement.quorum import quorum
from assay.protocol.auditing.draws import beacon_input
from assay.protocol.errors import AssayError, MalformedMessage
from assay.protocol.messages import BeaconShare, Manifest
from assay.protocol.randomness.vrf import verify
from assay.protocol.run_state import RunState
from assay.protocol.types import PeerId, RoundId

REVEALS_PER_VERIFIER = 4  # pooled: of the last manifest, and of those notarised but not final here


def valid_shares(
    pool: Mapping[PeerId, Sequence[BeaconShare]], run_state: RunState
) -> tuple[BeaconShare, ...]:
    """Pooled shares that are valid for the last manifest of `run_state` and may count, ascending by verifier.

    Those of verifiers that are away may only where one that is due is missing: the beacon is partial then.
    """
    seats = run_state.spec.verifier_peers
    holding = (
        next((beacon_share for beacon_share in beacon_shares if holds(run_state, beacon_share)), None)
        for verifier, beacon_shares in sorted(pool.items())
        if verifier in seats
    )
    held = tuple(beacon_share for beacon_share in holding if beacon_share is not None)
    return held if lacks_shares(run_state, held) else _due(run_state, held)


def lacks_shares(run_state: RunState, shares: Sequence[BeaconShare]) -> bool:
    """Whether a share that the next manifest should carry is not among these."""
    return bool(run_state.round) and len(_due(run_state, shares)) < len(run_state.beacon)


def reveals_needed(run_state: RunState, *, follows: bool) -> int:
    """Shares a manifest needs: all that are due if it follows the parent's leader at once, else a quorum."""
    return len(run_state.beacon) if follows else quorum(len(run_state.spec.verifiers))


def is_enough(run_state: RunState, shares: Sequence[BeaconShare], *, follows: bool) -> bool:
    """Whether a manifest may carry no other shares than these; without a round before it needs none."""
    counted = _due(run_state, shares) if follows else shares
    return not run_state.round or len(counted) >= reveals_needed(run_state, follows=follows)


def is_partial(run_state: RunState, shares: Sequence[BeaconShare], drand: bytes) -> bool:
    """Whether the next manifest, with these shares, lacks one that is due or the drand round named for it."""
    lacks_drand = bool(run_state.drand_next) and not drand
    return lacks_shares(run_state, shares) or (bool(run_state.round) and lacks_drand)


def _due(run_state: RunState, shares: Sequence[BeaconShare]) -> tuple[BeaconShare, ...]:
    due = run_state.beacon
    return tuple(beacon_share for beacon_share in shares if beacon_share.verifier in due)


def pooled(
    known: Sequence[BeaconShare], beacon_share: BeaconShare, run_state: RunState
) -> tuple[BeaconShare, ...]:
    """A verifier's pool with one more share: the newest ones, and always the one that is valid now.

    Anybody can send an invalid share in a verifier's name; it must not evict the valid one.
    """
    newest = (*(other for other in known if other != beacon_share), beacon_share)[-REVEALS_PER_VERIFIER:]
    true = next((other for other in known if holds(run_state, other)), None)
    return newest if true is None or true in newest else (true, *newest[1:])


def check_reveals(run_state: RunState, manifest: Manifest, *, follows: bool) -> None:
    """Do nothing if a proposed manifest carries the shares that it must, all valid, and says if any lacks.

    Raises:
        MalformedMessage, PeerFault: a share is missing, superfluous or invalid.
    """
    partial = is_partial(run_state, manifest.beacon_shares, manifest.drand)
    if not run_state.round:
        if manifest.beacon_shares or manifest.is_partial:
            raise MalformedMessage("manifest carries reveals before there is a round to reveal for")
        return
    alpha = _alpha(run_state)
    for beacon_share in manifest.beacon_shares:
        if beacon_share.run_id != run_state.run_id or beacon_share.round != run_state.round - 1:
            raise MalformedMessage("manifest carries a reveal of another round")
        given = run_state.key(beacon_share.verifier), alpha, beacon_share.proof
        if not _vrf_holds(*given):
            verify(*given)  # raises what is wrong with it
    shares = manifest.beacon_shares
    may_count = run_state.spec.verifier_peers if lacks_shares(run_state, shares) else run_state.beacon
    if not {beacon_share.verifier for beacon_share in shares} <= set(may_count):
        raise MalformedMessage("manifest carries a reveal of a verifier that was away")
    if not is_enough(run_state, shares, follows=follows):
        need = reveals_needed(run_state, follows=follows)
        raise MalformedMessage(f"manifest carries {len(shares)} reveals, expected {need}")
    if manifest.is_partial != partial:
        raise MalformedMessage(f"manifest says is_partial = {manifest.is_partial}, expected {partial}")


def holds(run_state: RunState, beacon_share: BeaconShare) -> bool:
    """Whether a share is valid for the last manifest of `run_state`, whoever sends it."""
    is_due = beacon_share.run_id == run_state.run_id and beacon_share.round == run_state.round - 1
    return is_due and _vrf_holds(run_state.key(beacon_share.verifier), _alpha(run_state), beacon_share.proof)


@functools.lru_cache(maxsize=1024)  # leaders ask at every tick; a check takes a millisecond
def _vrf_holds(key: PeerId, alpha: bytes, proof: bytes) -> bool:
    try:
        verify(key, alpha, proof)
    except AssayError:
        return False
    return True


def _alpha(run_state: RunState) -> bytes:
    return beacon_input(
        run_state.spec.deployment_id, run_state.run_id, RoundId(int(run_state.round) - 1), run_state.parent
    )
