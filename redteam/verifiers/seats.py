"""Seats: attacks on the hand-over of verifiers' seats within a run (docs/protocol.md, section 4b).

Room: redteam. Runs of four seats and two reserves, of whom one may be Byzantine (f = 1). Every manifest
passes production's own check; the fold is production's.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import assay.participant.links
import assay.protocol.membership
import assay.testing.run
from assay.participant.links import check_place
from assay.protocol.errors import AssayError
from assay.protocol.identity import sign
from assay.protocol.messages import (
    Admission,
    BeaconShare,
    HandOver,
    Manifest,
    SeatNotice,
    SeatNoticeKind,
    SignedAdmission,
    SignedSeatNotice,
)
from assay.protocol.rotation import READY_ROUNDS
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import Iteration, PeerId, RoundId, Signature
from assay.redteam.attack import Attacks, Outcome, Where, tallied, without
from assay.redteam.members import one_act
from assay.testing.members import (
    DOMAIN,
    RUN_ID,
    VERIFIERS,
    a_digest,
    a_member,
    a_peer_key,
    name_of,
    peers,
)
from assay.testing.run import Network, a_spec, funded_start
from assay.verifier.round.beacon import is_partial

SEAT_ATTACKS = Attacks(Where.CHAIN)
RESERVES = peers("reserve", 2)
READY, RESIGN = SeatNoticeKind.READY, SeatNoticeKind.RESIGN
RARE = 10**6  # clean audits, after which a node's steps are drawn at the floor's rate


def a_run(seed: int, *, reserves: Collection[PeerId] = RESERVES, **choices: Any) -> Network:
    """A run with reserves, before its first manifest."""
    spec = a_spec(seed=seed, **{"rounds": 400, "audit_rounds": 8, **choices})
    return Network(funded_start(replace(spec, reserves=tuple(map(a_member, reserves)))))


def a_notice(holder: PeerId, kind: SeatNoticeKind, at: int, **changes: Any) -> SignedSeatNotice:
    """What a holder or a reserve says of its seat, signed by its own key."""
    notice = SeatNotice(run_id=RUN_ID, round=RoundId(at), holder=holder, kind=kind)
    notice = replace(notice, **changes)
    return SignedSeatNotice(notice=notice, signature=sign(a_peer_key(name_of(holder)), DOMAIN, notice))


def next_manifest(
    network: Network, *said: SignedSeatNotice, missing: Collection[PeerId] = (),
    silent: Collection[PeerId] = (), led_by: int | None = None, **changes: Any,
) -> Manifest:  # fmt: skip
    """The next manifest: the shares of all seats that are asked but these, and reserves that are ready.

    said: other notices that it carries. silent: seats of which it has nothing at all. led_by: the number of
    the seat that leads it.
    """
    run_state = network.run_state
    number, reserves = int(run_state.round), run_state.spec.reserve_peers
    shares = tuple(
        BeaconShare(run_id=RUN_ID, round=RoundId(number - 1), verifier=seat, proof=bytes(80))
        for seat in (run_state.beacon if number else ())
        if seat not in missing and seat not in silent
    )
    known = run_state.rotation
    due = [one for one in reserves if known.ready.get(one, -READY_ROUNDS) + READY_ROUNDS // 2 <= number]
    told = {one.notice.holder for one in said}
    notices = [a_notice(one, READY, number) for one in due if known.may_hold(one) and one not in told]
    if led_by is not None:
        changes["iteration"] = Iteration(known.configuration.number << 32 | 4 * (number + 1) + led_by)
    content = {
        "beacon_shares": shares,
        "is_partial": is_partial(run_state, shares, b""),
        "seat_notices": tuple(sorted((*said, *notices), key=lambda one: one.notice.holder)),
    }
    made = network.manifest(**{**content, **changes})
    return replace(
        made,
        inclusion_lists=tuple(s for s in made.inclusion_lists if s.inclusion_list.verifier not in silent),
        commitments=tuple(s for s in made.commitments if s.commitment.verifier not in silent),
        verdicts=tuple(s for s in made.verdicts if s.verdict.verifier not in silent),
    )


def grow(network: Network, *said: SignedSeatNotice, **how: Any) -> Manifest:
    """Add the next manifest, as any verifier would check it; return it."""
    manifest = next_manifest(network, *said, **how)
    check_place(network.run_state, manifest)
    network.run_state = advance(network.run_state, manifest)
    return manifest


def grow_by(network: Network, rounds: int) -> Network:
    """Add this many manifests in which nothing happens."""
    for _ in range(rounds):
        grow(network)
    return network


def _refused(run_state: RunState, manifest: Manifest) -> bool:
    try:
        assay.participant.links.check_place(run_state, manifest)
    except AssayError:
        return True
    return False


@SEAT_ATTACKS.attack("forge a resignation (7 ways)", 38, "a holder's signature over run, round and kind")
def _forged_notice(is_defended: bool, seed: int) -> Outcome:
    """A leader that wants an honest verifier's seat to change hands shows its resignation, which is none."""
    network = grow_by(a_run(seed), 20)
    number, victim, other = int(network.run_state.round), VERIFIERS[1], VERIFIERS[2]
    reserve, stranger = RESERVES[0], peers("stranger", 1)[0]
    true = a_notice(victim, RESIGN, number)
    tries = (
        a_notice(victim, RESIGN, number, run_id=a_digest("another run")),
        a_notice(victim, RESIGN, number - 17),
        a_notice(victim, RESIGN, number + 1),
        replace(true, signature=a_notice(other, RESIGN, number).signature),
        replace(true, signature=a_notice(victim, RESIGN, number - 1).signature),
        replace(a_notice(reserve, RESIGN, number), signature=a_notice(reserve, READY, number).signature),
        a_notice(stranger, RESIGN, number),
    )
    with without(assay.participant.links, "_check_notices", lambda *_: None, unless=is_defended):
        caught = sum(_refused(network.run_state, next_manifest(network, one)) for one in tries)
    return tallied(len(tries), caught, 0.0, "none: no vote; undefended, who is named loses its seat for good")


@SEAT_ATTACKS.attack("hand a seat over by a leader's word (7 ways)", 38, "the fold says what is handed over")
def _hand_over_at_will(is_defended: bool, seed: int) -> Outcome:
    """A lying leader gives a seat away: without a cause, too early, not to whom it is due, or not at all."""
    network = grow_by(a_run(seed), 6)
    friend = RESERVES[seed % 2]
    tries: list[tuple[RunState, tuple[HandOver, ...]]] = []
    tries.append((network.run_state, (HandOver(seat=VERIFIERS[1], holder=friend),)))  # no cause
    grow(network, a_notice(VERIFIERS[1], RESIGN, int(network.run_state.round)))
    bound = network.run_state
    assert bound.disqualified == (VERIFIERS[1],) and not bound.hand_over
    tries.append((bound, (HandOver(seat=VERIFIERS[1], holder=friend),)))  # audits bind its holder
    while not network.run_state.hand_over:
        grow(network)
    due = network.run_state
    (one,) = due.hand_over
    last = next(reserve for reserve in RESERVES if reserve != one.holder)
    tries += [
        (due, ()),
        (due, (replace(one, holder=last),)),  # not next
        (due, (replace(one, seat=VERIFIERS[2]),)),
        (due, (one, HandOver(seat=VERIFIERS[2], holder=last))),
        (due, (replace(one, holder=VERIFIERS[3]),)),
    ]
    caught = 0
    with without(assay.participant.links, "check_place", lambda *_: None, unless=is_defended):
        for run_state, given in tries:
            at = replace(network, run_state=run_state)
            caught += _refused(run_state, next_manifest(at, hand_over=given))
    return tallied(len(tries), caught, 0.0, "none: no vote")


@SEAT_ATTACKS.attack("a reserve that trains judges itself", 15, "who has a part in a run cannot join it")
def _trains_and_judges(is_defended: bool, seed: int) -> Outcome:
    """A reserve's account, with its keys, joins as a node, and then takes a verifier's seat."""
    network = a_run(seed)
    spec, reserve = network.run_state.spec, RESERVES[seed % 2]
    network.run_state = replace(network.run_state, spec=replace(spec, seats=spec.seats + 1))
    grow_by(network, 2)
    member, time_s = a_member(reserve), network.run_state.time_s
    votes = (Admission(run_id=RUN_ID, time_s=time_s, member=member, verifier=seat) for seat in VERIFIERS[:3])
    admissions = tuple(SignedAdmission(admission=one, signature=Signature(bytes(64))) for one in votes)
    with without(assay.protocol.membership, "may_join", lambda *_: True, unless=is_defended):
        try:
            grow(network, admissions=admissions)
        except AssayError:
            return one_act(True, False, 0.0, "none: no vote; undefended, it judges its own steps alone")
    resigned = 0
    while network.run_state.seat_of(reserve) not in VERIFIERS:  # the other reserve may be the first in order
        number, said = int(network.run_state.round), list[SignedSeatNotice]()
        if number > 40 * resigned:
            said.append(a_notice(VERIFIERS[resigned], RESIGN, number))
            resigned += 1
        grow(network, *said)
    seat, began = network.run_state.seat_of(reserve), int(network.run_state.round)
    judged, own = 0, 0
    for _ in range(24):
        grow(network)
        ended = [a for a in network.run_state.audits.values() if a.node == reserve and a.round > began]
        ended = [a for a in ended if a.closed_round == int(network.run_state.round) - 1]
        judged += len(ended)
        own += sum({one.verifier for one in audit.verdicts} == {seat} for audit in ended)
    harm = f"one account holds a node and a seat: {own} of {judged} audits of its steps are its own alone"
    return one_act(False, True, 0.0, harm)
