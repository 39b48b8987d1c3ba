"""Drand: which round of a drand network a leader must wait for, carry and name in its manifest.

Room: verifier (pure; time is an argument). For runs whose draws also depend on drand. A leader that follows
its predecessor at once has no choice: it carries the round that the parent named, and names one that is in
the future by every clock. After a skipped iteration it may leave both out, so that a run survives an outage
of drand or clocks that disagree; its draws then depend on the verifiers' shares alone (docs/decisions/0017).
"""

from __future__ import annotations

from collections.abc import Mapping

from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Manifest
from assay.protocol.randomness import drand
from assay.protocol.run_state import RunState

KEPT = 8  # rounds of the network: of the last manifest, and of those notarised but not final here


def pooled(held: Mapping[int, bytes], number: int, signature: bytes) -> Mapping[int, bytes]:
    """The drand rounds held, with one more checked one: the newest `KEPT`."""
    return dict(sorted({**held, number: signature}.items())[-KEPT:])


def names_next(run_state: RunState) -> bool:
    """Whether the next manifest has to name a round, because a later manifest needs it."""
    return run_state.spec.audit.drand.is_used and run_state.round < run_state.calendar.last_round


def next_number(run_state: RunState, wall_s: int) -> int:
    """The drand round that a leader names now; 0 if none."""
    return drand.named_at(run_state.spec.audit.drand, wall_s) if names_next(run_state) else 0


def carried(run_state: RunState, held: Mapping[int, bytes]) -> bytes:
    """What a leader puts into the next manifest: the named round, if it is held."""
    return held.get(run_state.drand_next, b"") if run_state.drand_next else b""


def is_waited_for(run_state: RunState, held: Mapping[int, bytes]) -> bool:
    """Whether the next manifest should carry a round that is not held yet."""
    return bool(run_state.drand_next) and not carried(run_state, held)


def is_coming(run_state: RunState, held: Mapping[int, bytes], wall_s: int) -> bool:
    """Whether waiting for the named round can still help: it is due soon, or only just published."""
    rules = run_state.spec.audit.drand
    return is_waited_for(run_state, held) and not drand.is_overdue(rules, run_state.drand_next, wall_s)


def check_outside(run_state: RunState, manifest: Manifest, *, follows: bool, wall_s: int) -> None:
    """Do nothing if a proposed manifest carries and names the drand rounds that it must.

    Args:
        run_state: The chain it extends; its place there is checked already.
        manifest: The proposed one.
        follows: No iteration was skipped since the parent's.
        wall_s: Our clock, Unix time.

    Raises:
        MalformedMessage: a signature is wrong or missing, or the named round is not in the future.
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
