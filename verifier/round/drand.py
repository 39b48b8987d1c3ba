"""Outside: what a leader waits for, and must carry, where a run's draws depend on a drand network too.

Room: verifier (pure; time is an argument). A leader that follows its predecessor at once chooses nothing:
it carries the round that the parent named, and names one that is still to come by everybody's clock.
After an iteration that was given up it may leave both out, so that a run outlives the service, and clocks
that disagree: its draws then depend on the verifiers' shares alone (docs/decisions/0017).
"""

from __future__ import annotations

from collections.abc import Mapping

from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Manifest
from assay.protocol.randomness import drand
from assay.protocol.state_transition import RunState

KEPT = 8  # rounds of the network: of the last manifest, and of those notarised but not final here


def pooled(held: Mapping[int, bytes], number: int, signature: bytes) -> Mapping[int, bytes]:
    """The rounds we hold with one more that was checked: the newest."""
    return dict(sorted({**held, number: signature}.items())[-KEPT:])


def names_next(run_state: RunState) -> bool:
    """Whether the next manifest has to name a round: if another one follows that needs it."""
    return run_state.spec.audit.drand.is_used and run_state.round < run_state.spec.last_round


def next_number(run_state: RunState, wall_s: int) -> int:
    """The round that a leader names now; 0 where none is."""
    return drand.named_at(run_state.spec.audit.drand, wall_s) if names_next(run_state) else 0


def carried(run_state: RunState, held: Mapping[int, bytes]) -> bytes:
    """What a leader puts into the next manifest: the named round if it is here."""
    return held.get(run_state.drand_next, b"") if run_state.drand_next else b""


def is_waited_for(run_state: RunState, held: Mapping[int, bytes]) -> bool:
    """Whether the next manifest should carry a round that is not here."""
    return bool(run_state.drand_next) and not carried(run_state, held)


def is_coming(run_state: RunState, held: Mapping[int, bytes], wall_s: int) -> bool:
    """Whether waiting for it can still help: it is not out, or only just."""
    rules = run_state.spec.audit.drand
    return is_waited_for(run_state, held) and not drand.is_overdue(rules, run_state.drand_next, wall_s)


def check_outside(run_state: RunState, manifest: Manifest, *, follows: bool, wall_s: int) -> None:
    """Do nothing if a proposed manifest carries and names what it must.

    Args:
        history: What it extends; its place there is checked already.
        manifest: The proposed one.
        follows: No iteration was given up since the parent's.
        wall_s: Our clock, Unix time.

    Raises:
        MalformedMessage: a signature is wrong or left out, or the named round is not one to come.
    """
    rules = run_state.spec.audit.drand
    if manifest.drand:
        drand.check_signature(rules, run_state.drand_next, manifest.drand)
    elif follows and run_state.drand_next:
        raise MalformedMessage(f"manifest without drand round {run_state.drand_next}, which its parent named")
    if manifest.drand_next:
        if not drand.may_be_named(rules, manifest.drand_next, wall_s):
            released = drand.released_s(rules, manifest.drand_next)
            raise MalformedMessage(
                f"manifest names drand round {manifest.drand_next}, released at {released}: expected one "
                f"after {wall_s}, at most {drand.AHEAD_S} s later"
            )
    elif follows and names_next(run_state):
        raise MalformedMessage("manifest names no drand round, expected one to come")
