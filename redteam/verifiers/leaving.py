"""Leaving: attacks on verifiers' seats between a cause to hand them over and the hand-over itself.

Room: redteam. Runs with reserves, as in `seats`, of four holders of whom one may lie: it leaves to its
successor what binds it, keeps others' seats from being handed over, or uses that fewer judge meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import assay.participant.links
import assay.protocol.membership
import assay.protocol.state_transition
import assay.testing.run
from assay.protocol.agreement.double_votes import double_vote
from assay.protocol.agreement.quorum import faults_tolerated, quorum
from assay.protocol.auditing import audits
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.auditing.commitments import known_answer_proofs, known_answer_root
from assay.protocol.identity import sign
from assay.protocol.messages import (
    DoubleVote,
    HandOver,
    SignedSeatNotice,
    SignedVote,
    Vote,
    VoteKind,
)
from assay.protocol.messages import Outcome as Found
from assay.protocol.params import RunSpec
from assay.protocol.run_state import RunState
from assay.protocol.types import Iteration, PeerId, RoundId
from assay.redteam.attack import Attacks, Outcome, Where, without
from assay.redteam.members import LIAR, MATCH, NODE, one_act
from assay.redteam.verifiers.seats import RARE, RESERVES, RESIGN, a_notice, a_run, grow, grow_by
from assay.testing.members import (
    DOMAIN,
    RUN_ID,
    VERIFIERS,
    a_digest,
    a_peer_key,
    name_of,
    peers,
)
from assay.testing.run import Judgement, Network, mute

LEAVING_ATTACKS = Attacks(Where.CHAIN)
HELD_UP_ROUNDS = 32  # more than a hand-over takes
WATCHED_ROUNDS = 200
MATCHES = (Found.MATCH, dict[str, Any]())


@LEAVING_ATTACKS.attack(
    "leave open verdicts to the next holder", 38, "a seat waits until no audit binds its holder"
)
def _disowned(is_defended: bool, seed: int) -> Outcome:
    """A verifier commits to verdicts and resigns; undefended, the next holder owes what only it can open."""
    network = a_run(seed)
    network.unopened = {LIAR}
    with without(Audit, "binds", lambda *_, **__: False, unless=is_defended):
        grow_by(network, 8)
        grow(network, a_notice(LIAR, RESIGN, int(network.run_state.round)))
        while not network.run_state.rotation.configuration.number:
            grow(network)
        network.unopened, network.minds = set(), {LIAR: _with_salts_of_its_own}  # an honest successor
        grow_by(network, 8)
    records = network.run_state.verifiers
    owed = sum(records[one].silent for one in RESERVES if one in records)
    harm = f"{records[LIAR].silent} commitments not opened are its own, {owed} its successor's"
    return one_act(not owed, owed > 0, 0.0, harm)


@LEAVING_ATTACKS.attack(
    "commit to verdicts by the manifest that hands over", 38, "that manifest has none of the seat's holder"
)
def _left_by_the_last_manifest(is_defended: bool, seed: int) -> Outcome:
    """A verifier says nothing until nothing binds it, resigns, and commits where it is drawn as it leaves."""
    left = silent = disputed = 0
    for start in range(8, 12):
        network = a_run(seed, takeover_rounds=2)
        network.minds = {LIAR: mute}
        grow_by(network, start)
        grow(network, a_notice(LIAR, RESIGN, int(network.run_state.round)))
        network.minds = {LIAR: _passes}
        with _whoever_is_drawn_commits(is_defended):
            said = [signed.commitment for signed in grow(network).commitments]
        own = {(one.round, one.node) for one in said if one.verifier == LIAR}
        holder = network.run_state.key(LIAR)
        assert holder in RESERVES
        network.minds = {LIAR: _with_salts_of_its_own}
        grow_by(network, 10)
        found = network.run_state.audits
        left += len(own)
        silent += network.run_state.verifiers[holder].silent
        disputed += sum(found[step].dispute_opened_round >= 0 for step in own if step in found)
    harm = (
        f"its successor cannot open {left}, of which {silent} are held against it; "
        f"{disputed} audits of honest steps are disputed"
    )
    return one_act(not silent, silent > 0, 0.0, harm)


@contextmanager
def _whoever_is_drawn_commits(is_defended: bool) -> Iterator[None]:
    def may_commit(run_state: RunState, audit: Audit, verifier: PeerId) -> bool:
        return audits.may_commit_verdict(run_state.spec.audit, audit, verifier, int(run_state.round))

    with ExitStack() as patches:
        for module in (assay.testing.run, assay.participant.links):
            patches.enter_context(without(module, "may_commit_verdict", may_commit, unless=is_defended))
        yield


def _with_salts_of_its_own(_network: Network, audit: Audit) -> Judgement:
    return MATCH, {"salt": a_digest("successor", audit.round, audit.node)}


@LEAVING_ATTACKS.attack(
    "resign before a passed known-answer task is shown", 38, "a seat waits while the task may be shown"
)
def _left_behind(is_defended: bool, seed: int) -> Outcome:
    """A verifier passes a step that is false on order and resigns; its node shows the order to its successor.

    An audit that has passed is opened again by what the node shows; undefended, it binds nobody.
    """
    tasks, escapes, caught, binds = 0, 0, 0, Audit.binds
    for number in range(8, 24):
        task = [(a_digest("salt"), RoundId(number), NODE)]
        network = a_run(seed, known_answer_count=1, takeover_rounds=2)
        network.lists[NODE] = known_answer_root(task)
        step = (RoundId(number), NODE)
        network.false, network.minds = {step}, {LIAR: _passes}
        while step not in network.run_state.audits or not network.audit(number, NODE).commitments:
            grow(network)
        if network.audit(number, NODE).committed_by(LIAR) is None:
            continue  # another verifier was drawn first
        tasks += 1
        grow(network, a_notice(LIAR, RESIGN, int(network.run_state.round)))
        with without(Audit, "binds", lambda one, seat, **_: binds(one, seat), unless=is_defended):
            while not network.run_state.rotation.configuration.number:
                if int(network.run_state.round) >= number + network.run_state.spec.audit.audit_rounds:
                    break  # the last chance to show it, if its node has waited so long
                grow(network)
            network.minds.clear()
            network.known_answers = {step: known_answer_proofs(RUN_ID, task)[0]}
            grow_by(network, 6)
        records = network.run_state.verifiers
        escapes += any(records[one].is_disqualified for one in RESERVES if one in records)
        caught += records[LIAR].is_disqualified
    harm = f"{escapes} of {tasks} liars escape, and an honest reserve is slashed for each"
    return Outcome(attempts=tasks, caught=caught, succeeded=escapes, cost=0.0, harm=harm)


def _passes(_network: Network, _audit: Audit) -> Judgement:
    return MATCH, {}


@LEAVING_ATTACKS.attack(
    "hold up the hand-over of others' seats (4 ways)",
    38,
    "who is free goes first; an overdue opening keeps only its accuser; who is at fault is not counted",
)
def _held_up(is_defended: bool, seed: int) -> Outcome:
    """A liar keeps the seat of a dead verifier, or of one that resigned, from being handed over.

    An opening of its friend is overdue for hours: it is bound by that itself, as it accused the step, or the
    dead verifier is, as it found nothing to judge. The liar resigns first, or it is at fault, so that with
    the seat that retires fewer than a quorum would be left; all nodes are on probation then. Undefended, only
    the first seat with a cause retires and is handed over, and all judge if fewer than a quorum are left.
    """
    with ExitStack() as patches:
        for target, name, stand_in in _ONE_AT_A_TIME:
            patches.enter_context(without(target, name, stand_in, unless=is_defended))
        best = _until_replaced(seed, dies=True), _until_replaced(seed, dies=False)
        dead = [
            _until_replaced(seed, dies=True, is_overdue=True, liar_resigns=True),
            _until_replaced(seed, dies=True, is_overdue=True),
        ]
        leaves = [
            _until_replaced(seed, dies=False, is_overdue=True, liar_resigns=True),
            _until_replaced(seed, dies=False, liar_votes_twice=True),
        ]
    harm = (
        f"a dead verifier's seat is handed over after {max(dead)} rounds in place of {best[0]}, "
        f"one whose holder resigned after {max(leaves)} in place of {best[1]}"
    )
    late = [one - best[0] for one in dead] + [one - best[1] for one in leaves]
    held_up = sum(one > HELD_UP_ROUNDS for one in late)
    return Outcome(attempts=len(late), caught=0, succeeded=held_up, cost=0.0, harm=harm)


def _until_replaced(
    seed: int,
    *,
    dies: bool,
    is_overdue: bool = False,
    liar_resigns: bool = False,
    liar_votes_twice: bool = False,
) -> int:
    """Rounds from a verifier's death, or resignation, until its seat is another's, or `WATCHED_ROUNDS`."""
    probation = RARE if liar_votes_twice else 1
    network = a_run(seed, nodes=peers("node", 8), probation=probation, floor_ppm=50_000, absence_s=4 * 3600)
    network.round_s = 60
    liar, victim = (VERIFIERS[2], VERIFIERS[0]) if liar_votes_twice else (LIAR, VERIFIERS[3])
    grow_by(network, 12)
    if not liar_votes_twice:
        network.trust()  # an honest verifier is free in some round or other
    step = (network.run_state.round, network.run_state.active[0])
    if is_overdue:
        network.withheld = {step}
        network.minds = {liar: lambda _, audit: (Found.MISMATCH, {}) if audit.round == step[0] else MATCHES}
        record = network.run_state.nodes[step[1]]
        suspect = {**network.run_state.nodes, step[1]: replace(record, clean=0)}
        network.run_state = replace(network.run_state, nodes=suspect)
        while step not in network.run_state.audits or not network.run_state.audits[step].is_late:
            grow(network)
        assert network.run_state.audits[step].ruling is AuditStatus.OVERDUE
    began = int(network.run_state.round)
    while network.run_state.key(victim) == victim and network.run_state.round < began + WATCHED_ROUNDS:
        number, said, changes = int(network.run_state.round), list[SignedSeatNotice](), dict[str, Any]()
        if number == began:
            leavers = (victim,) * (not dies) + (liar,) * liar_resigns
            said = [a_notice(one, RESIGN, number) for one in leavers]
            changes = {"double_votes": (_two_votes(liar),)} if liar_votes_twice else {}
        silent = (victim,) if dies else ()
        grow(network, *said, silent=silent, led_by=number % 3, **changes)
    return int(network.run_state.round) - began


def _first_of(run_state: RunState) -> tuple[PeerId, ...]:
    return run_state._leaving[:1]


def _first_handed_over(run_state: RunState) -> tuple[HandOver, ...]:
    holder, audits = run_state._next_holder, run_state.audits.values()
    free = (one for one in _first_of(run_state) if not any(run_state._binds(audit, one) for audit in audits))
    return tuple(HandOver(seat=one, holder=holder) for one in free if holder is not None)


def _binds_until_it_ends(audit: Audit, seat: PeerId, *, may_be_shown: bool = False) -> bool:
    said = {one.verifier for one in audit.commitments}
    said |= {one.verifier for one in audit.verdicts + audit.withheld}
    return seat in said and (may_be_shown or not audit.has_ended)


def _all_or_a_quorum(spec: RunSpec, disqualified: Sequence[PeerId]) -> tuple[PeerId, ...]:
    left = tuple(seat for seat in spec.verifier_peers if seat not in disqualified)
    return left if len(left) >= quorum(len(spec.verifiers)) else spec.verifier_peers


_ONE_AT_A_TIME: tuple[tuple[Any, str, Any], ...] = (
    (RunState, "_retiring", property(_first_of)),
    (RunState, "hand_over", property(_first_handed_over)),
    (Audit, "binds", _binds_until_it_ends),
    (assay.protocol.state_transition, "judges_of", _all_or_a_quorum),
)


@LEAVING_ATTACKS.attack(
    "have a friend's step passed while another's seat retires",
    38,
    "as many equal verdicts as for all seats, however few judge",
)
def _three_judge(is_defended: bool, seed: int) -> Outcome:
    """A node shows the openings of its false steps to a lying verifier alone, while one of four retires.

    The order of three tolerates nobody: undefended, the liar's is the one match that dismisses a dispute.
    """
    disputes = passed = 0
    for start in range(8, 12):
        network, leaver = a_run(seed), VERIFIERS[3]
        network.minds = {LIAR: _passes}
        grow_by(network, start)
        grow(network, a_notice(leaver, RESIGN, int(network.run_state.round)))
        with without(Audit, "f", property(_f_of_its_order), unless=is_defended):
            while network.run_state.key(leaver) == leaver:
                network.withheld |= {(network.run_state.round, NODE)}
                grow(network)
            grow_by(network, network.run_state.spec.closing_rounds)
        for step in network.withheld & network.run_state.audits.keys():
            audit = network.run_state.audits[step]
            disputes += audit.dispute_opened_round >= 0 and leaver not in audit.order
            passed += audit.ruling is AuditStatus.DISMISSED
    harm = f"of {disputes} disputes about false steps {passed} end with the step paid"
    return Outcome(attempts=disputes, caught=0, succeeded=passed, cost=0.0, harm=harm)


def _f_of_its_order(audit: Audit) -> int:
    return faults_tolerated(len(audit.order))


def _two_votes(seat: PeerId) -> DoubleVote:
    votes = [
        Vote(run_id=RUN_ID, iteration=Iteration(1), kind=VoteKind.NOTARISE, block=a_digest("block", n))
        for n in range(2)
    ]
    key = a_peer_key(name_of(seat))
    return double_vote(
        *(SignedVote(vote=one, verifier=seat, signature=sign(key, DOMAIN, one)) for one in votes)
    )
