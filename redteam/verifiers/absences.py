"""Absences: attacks by shares of the beacon that do not come (docs/protocol.md, sections 4b and 5.1).

Room: redteam. Runs with reserves, as in `seats`, of four holders of whom one may lie: it keeps its share, has
another seem to be away, or leaves out as leader what it likes where every beacon is partial.
"""

from __future__ import annotations

import itertools
from typing import Any

import assay.protocol.rotation
import assay.protocol.state_transition
from assay.ledger.settlement.payouts import settle
from assay.protocol.messages import Manifest
from assay.protocol.run_state import StepId
from assay.protocol.types import PeerId, RoundId
from assay.redteam.attack import Attacks, Outcome, Where, without
from assay.redteam.members import LIAR, NODE, one_act
from assay.redteam.verifiers.seats import a_run, grow, grow_by
from assay.testing.members import NODES, VERIFIERS

ABSENCE_ATTACKS = Attacks(Where.CHAIN)
WATCHED_ROUNDS = 300


@ABSENCE_ATTACKS.attack(
    "withhold a share in f of f + 1 rounds", 38, "who misses a share is neither asked nor paid for a while"
)
def _unpaused(is_defended: bool, seed: int) -> Outcome:
    """A verifier gives its share of the beacon in every other round, so that every other beacon is partial.

    A partial beacon has all steps audited. Undefended, no seat of a run with reserves pauses before f + 1
    leaders in a row have asked for its share in vain.
    """
    rounds = 100
    with without(assay.protocol.state_transition, "BEACON_PAUSE", 0, unless=is_defended):
        partial, audited = _withholding(seed, rounds)
    steps = rounds * len(NODES)
    harm = f"{partial / rounds:.0%} of beacons are partial, {audited / steps:.0%} of steps are audited"
    return one_act(False, audited > steps // 4, 0.0, harm)


def _withholding(seed: int, rounds: int) -> tuple[int, int]:
    """Rounds with a partial beacon, and audited steps, where LIAR's share comes once it was missing once."""
    network = a_run(seed, probation=1, floor_ppm=50_000)
    network.trust()
    partial, audited, was_missing = 0, set[StepId](), False
    for _ in range(rounds):
        is_missing = bool(network.run_state.round) and LIAR in network.run_state.beacon and not was_missing
        partial += grow(network, missing={LIAR} if is_missing else ()).is_partial
        audited |= set(network.run_state.audits)
        was_missing = is_missing
    return partial, len(audited)


@ABSENCE_ATTACKS.attack(
    "cut a verifier off when its share is asked for", 38, "who takes part in anything is not absent"
)
def _seems_absent(is_defended: bool, seed: int) -> Outcome:
    """A verifier's share comes late whenever it is asked for; a lying leader leaves out all that it signed.

    In all other rounds the victim takes part in everything. Undefended, it is heard of by its share alone.
    """
    network = grow_by(a_run(seed), 8)
    victim, cuts, began = VERIFIERS[seed % 3 + 1], 0, int(network.run_state.round)
    leaders = itertools.cycle(one for one in VERIFIERS if one != victim)
    with without(assay.protocol.rotation, "_heard", _by_its_share, unless=is_defended):
        while network.run_state.key(victim) == victim and network.run_state.round < WATCHED_ROUNDS:
            leader, is_asked = next(leaders), victim in network.run_state.beacon
            cuts += is_asked
            is_silent = is_asked or leader == LIAR
            grow(network, silent={victim} if is_silent else (), led_by=VERIFIERS.index(leader))
    span = int(network.run_state.round) - began
    is_lost = network.run_state.key(victim) != victim
    end = "its seat is another's" if is_lost else "it is not asked for a while"
    return one_act(False, is_lost, 0.0, f"its share came late in {cuts} of {span} rounds: {end}")


def _by_its_share(manifest: Manifest) -> frozenset[PeerId]:
    return frozenset(one.verifier for one in manifest.beacon_shares)


@ABSENCE_ATTACKS.attack(
    "lie where a liar leads the last chance for a verdict",
    38,
    "it draws while an honest leader is sure to follow",
    has_off=False,
)
def _never_judged(is_defended: bool, seed: int) -> Outcome:
    """One verifier of four has every beacon partial, and as leader leaves out commitments to verdicts.

    By keeping its share it has the first iteration of each round given up. It leads every other second one,
    and leaves out an honest share there; in the other rounds its own is missing. Were a step drawn when one
    manifest is left for a commitment, an audit would expire where the liar leads that one, and be paid.
    A friend's steps are false where it would lead the last one, or the one before.
    """
    rounds, victims = 60, itertools.cycle(VERIFIERS[1:])
    network = a_run(seed, probation=1, floor_ppm=50_000)
    network.trust()
    last = network.run_state.spec.audit.audit_rounds - 1
    network.false = {(RoundId(at), NODE) for at in range(400) if (at + last + seed) % 2}
    partial, paid, taken = 0, 0, set[StepId]()
    for number in range(rounds):
        leads = number % 2  # LIAR is the first seat, and the third leads the other rounds
        missing = {next(victims) if leads else LIAR} if number else ()
        changes: dict[str, Any] = {"commitments": ()} if leads else {}
        manifest = grow(network, missing=missing, led_by=0 if leads else 2, **changes)
        partial += manifest.is_partial
        taken |= {(one.commit.round, one.commit.node) for one in manifest.commits} & network.false
        epoch, ripe = divmod(number - network.run_state.calendar.settled_at(0), 4)
        if ripe == 0 <= epoch:
            unpaid = {(RoundId(one.round), one.node) for one in settle(network.run_state, epoch).unpaid}
            due = {step for step in taken if network.run_state.epoch_of(step[0]) == epoch}
            paid += len(due - unpaid)
    is_banned = network.run_state.nodes[NODE].banned
    harm = (
        f"{partial} of {rounds} beacons are partial; {len(taken)} false steps until it is banned, {paid} paid"
    )
    return one_act(False, not is_banned or paid > 0, 0.0, harm)
