"""Byzantine nodes: attacks by nodes in what the chain records, step after step.

Room: redteam. Runs of a few rounds, with four verifiers that are honest unless the node has an accomplice.
Every manifest passes production's own check; the fold and the payout table are production's.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from typing import Any

import assay.protocol.state_transition
from assay.protocol.auditing import audits
from assay.protocol.auditing.audits import REFERENCE, Audit, with_messages
from assay.protocol.auditing.commitments import known_answer_proofs, known_answer_root
from assay.protocol.auditing.draws import audit_rate_ppm, is_drawn
from assay.protocol.messages import Discount
from assay.protocol.messages import Outcome as Found
from assay.protocol.params import PPM
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from assay.redteam.attack import Attacks, Outcome, Where, tallied, without
from assay.redteam.members import (
    MISMATCH,
    NODE,
    WITHHELD,
    all_steps,
    one_act,
    pay_of,
)
from assay.testing.members import RUN_ID, VERIFIERS, a_digest
from assay.testing.run import Judgement, Network, a_network, a_spec, honest
from assay.verifier.audit import odds

LIAR_ATTACKS = Attacks(Where.CHAIN)


@LIAR_ATTACKS.attack("lie in every step", 8, "the draw; quorum of auditors; ban")
def _steady_liar(is_defended: bool, seed: int) -> Outcome:
    network = a_network(seed=seed, rounds=16)
    network.false = all_steps(16)
    with without(assay.protocol.state_transition, "is_drawn", lambda *_: False, unless=is_defended):
        paid = pay_of(network, NODE)
    record = network.run_state.nodes[NODE]
    harm = f"{record.accepted} false steps accepted before it was banned, paid {paid}"
    return one_act(record.banned, paid > 0, 0.0, harm)


def _first_drawn(
    rate: Callable[[int], int], clean: int, lie_every: int, steps: int, rng: random.Random
) -> int:
    """The first drawn false step, counted from 1; 0 if none of `steps` steps is.

    Args:
        rate: Of audits, in millionths, after a count of passed ones.
        clean: Consecutive passed audits of the node at the start.
        lie_every: One step in this many is false.
        steps: Steps in all.
        rng: The beacons.
    """
    false = 0
    for number in range(steps):
        is_false = number % lie_every == 0
        false += is_false
        if is_drawn(Digest(rng.randbytes(32)), NODE, rate(clean)):
            if is_false:
                return false
            clean += 1
    return 0


@LIAR_ATTACKS.attack("coasting: skip every 4th step", 8, "audit floor (5 %)")
def _coasting(is_defended: bool, seed: int) -> Outcome:
    """Every fourth step is skipped once audits come at the floor; undefended, only probation is audited."""
    rng, runs, steps, rules = random.Random(seed), 40, 1000, a_spec(probation=10, floor_ppm=50_000).audit

    def rate(clean: int) -> int:
        return audit_rate_ppm(rules, clean) if is_defended or clean < rules.probation else 0

    found = [_first_drawn(rate, 200, 4, steps, rng) for _ in range(runs)]
    caught = sorted(one for one in found if one)
    expected = odds.steps_until(odds.hit(Fraction(1, 20), Fraction(1)), Fraction(1, 2))
    middle = caught[len(caught) // 2] if caught else 0
    harm = f"{middle} skipped steps before one is drawn (median of {runs}; formula {expected})"
    return tallied(runs, len(caught), 0.75, harm)


@LIAR_ATTACKS.attack("coasting: three nodes of one owner take turns", 8, "audit floor (5 %), of each node")
def _coasting_owner(is_defended: bool, seed: int) -> Outcome:
    """The same by an owner of three nodes that take turns, so that each tells a third of the lies."""
    rng, runs, steps, rules = random.Random(seed), 40, 1000, a_spec(probation=10, floor_ppm=50_000).audit
    caught = []
    for _ in range(runs):
        clean, told = [200, 200, 200], 0
        for number in range(steps):
            who, is_false = number // 4 % 3, number % 4 == 0
            told += is_false
            is_audited = is_defended or clean[who] < rules.probation
            rate = audit_rate_ppm(rules, clean[who]) if is_audited else 0
            if is_drawn(Digest(rng.randbytes(32)), NODE, rate):
                if is_false:
                    caught.append(told)
                    break
                clean[who] += 1
    expected = odds.steps_until(odds.hit(Fraction(1, 20), Fraction(1)), Fraction(1, 2))
    middle = sorted(caught)[len(caught) // 2] if caught else 0
    harm = f"{middle} lies before one is drawn, as by one node (median of {runs}; formula {expected})"
    return tallied(runs, len(caught), 0.75, harm)


@LIAR_ATTACKS.attack("trust farming", 8, "the rate never falls under its floor")
def _trust_farming(is_defended: bool, seed: int) -> Outcome:
    """Honest for 200,000 audits, then always false: at 1 / clean without a floor it is hardly drawn."""
    rng, runs, steps = random.Random(seed), 60, 400
    rules = a_spec(probation=10, floor_ppm=50_000).audit
    caught = 0
    for _ in range(runs):
        rate = audit_rate_ppm(rules, 200_000) if is_defended else PPM * rules.probation // 200_000
        caught += any(is_drawn(Digest(rng.randbytes(32)), NODE, rate) for _ in range(steps))
    harm = f"{rate / PPM:.4%} of its steps are drawn after 200,000 clean audits"
    return tallied(runs, caught, 0.0, harm)


@LIAR_ATTACKS.attack("forged hardware quote", 36, "evidence lowers the rate, never under the floor")
def _forged_quote(is_defended: bool, seed: int) -> Outcome:
    """Forged attestation evidence of the best kind, and false steps after it."""
    rng, runs, steps = random.Random(seed), 60, 400
    if is_defended:
        rules = a_spec(probation=10, floor_ppm=50_000).audit
        rate = audit_rate_ppm(rules, 200_000, Discount.PROCESSOR_AND_GPU)
    else:
        rate = 0  # attestation in place of audits
    caught = sum(
        any(is_drawn(Digest(rng.randbytes(32)), NODE, rate) for _ in range(steps)) for _ in range(runs)
    )
    harm = f"evidence lowers the rate to {rate / PPM:.0%}, no further"
    return tallied(runs, caught, 0.0, harm)


@LIAR_ATTACKS.attack("ground identity", 16, "beacons that exist only after the commit")
def _ground_identity(is_defended: bool, seed: int) -> Outcome:
    """The best of 400 keys for not being drawn: chosen by beacons that it knows, tested by later ones."""
    past = [a_digest("past", seed, n) for n in range(40)]
    future = [a_digest("future", seed, n) for n in range(400)] if is_defended else past
    keys = [PeerId(a_digest("key", seed, n)) for n in range(400)]
    rate = 50_000

    def drawn(key: PeerId, beacons: list[Digest]) -> int:
        return sum(is_drawn(beacon, key, rate) for beacon in beacons)

    best = min(keys, key=lambda key: drawn(key, past))
    share = drawn(best, future) / len(future)
    harm = f"its best of 400 keys is drawn in {share:.1%} of steps, the rule says {rate / PPM:.0%}"
    return one_act(False, share < rate / PPM / 4, 0.0, harm)


@LIAR_ATTACKS.attack("withhold the opening", 19, "no opening counts against the node")
def _withholds(is_defended: bool, seed: int) -> Outcome:
    """Sends false steps, and no opening when drawn."""
    network = a_network(seed=seed)
    network.withheld = all_steps(12)
    with without(audits, "ADVERSE", (MISMATCH,), unless=is_defended):
        network.grow(12)
    record = network.run_state.nodes[NODE]
    harm = f"banned and slashed like a mismatch, after {record.accepted} steps" if record.banned else "stays"
    return one_act(record.banned, not record.banned, 0.0, harm)


@LIAR_ATTACKS.attack("withhold in the dispute", 20, "referees rule by default")
def _withholds_in_dispute(is_defended: bool, seed: int) -> Outcome:
    """Sends its opening to the first auditor, which finds it false, and to no other."""
    network = a_network(seed=seed)
    network.false = all_steps(12)
    for verifier in VERIFIERS:
        network.minds[verifier] = _late_withheld
    with without(audits, "ADVERSE", (MISMATCH,), unless=is_defended):
        network.grow(12)
    record = network.run_state.nodes[NODE]
    return one_act(
        record.banned, not record.banned, 0.0, "referees rule by default" if record.banned else "stays"
    )


def _late_withheld(network: Network, audit: Audit) -> Any:
    if audit.node == NODE and audit.pattern != NO_DIGEST:
        return WITHHELD, {}
    return honest(network, audit)


@LIAR_ATTACKS.attack("never open the sketch commitment", 19, "a commitment that stays shut is withheld")
def _committed_for_ever(is_defended: bool, seed: int) -> Outcome:
    """Skips the work where the auditor colludes, so it never opens the sketch that would be wrong."""
    network = a_network(seed=seed)
    network.committed = {NODE}
    for verifier in VERIFIERS:  # their blocks agree; only the sketch would show the missing work
        network.minds[verifier] = honest

    def guessed(
        audit: Audit, now: int, commitments: Any, verdicts: Any, sketch_openings: Any, **more: Any
    ) -> Audit:
        updated = with_messages(audit, now, commitments, verdicts, sketch_openings, **more)
        if updated.verdicts and updated.sketch is None:
            return replace(updated, sketch=updated.verdicts[0].recomputed)
        return updated

    with without(audits, "with_messages", guessed, unless=is_defended):
        paid = pay_of(network, NODE)
    is_banned = network.run_state.nodes[NODE].banned
    return one_act(is_banned, not is_banned, 0.0, f"paid {paid}: a commitment that stays shut is withheld")


def _no_class(seed: int) -> Network:
    """A node declares an execution class that nobody has, so that no auditor can judge its false steps."""
    network = a_network(seed=seed, rounds=12)
    network.commit_changes = lambda _round, node: {"exec_class": a_digest("nobody's")} if node == NODE else {}
    for verifier in VERIFIERS:
        network.minds[verifier] = _unable
    network.false = all_steps(12)
    return network


def _unable(network: Network, audit: Audit) -> Judgement:
    return (Found.INCONCLUSIVE, {}) if audit.node == NODE else honest(network, audit)


@LIAR_ATTACKS.attack("class that nobody has, for pay", 30, "who cannot be judged is not paid")
def _class_for_pay(is_defended: bool, seed: int) -> Outcome:
    """Undefended, an empty verdict counts as none, and a step that nobody judged is paid."""
    network = _no_class(seed)

    def deaf(
        audit: Audit, now: int, commitments: Any, verdicts: Any, sketch_openings: Any, **more: Any
    ) -> Audit:
        conclusive = [verdict for verdict in verdicts if verdict.outcome is not Found.INCONCLUSIVE]
        return with_messages(audit, now, commitments, conclusive, sketch_openings, **more)

    with ExitStack() as off:
        for name, stand_in in (("with_messages", deaf), ("_is_evaded", lambda _: False)):
            off.enter_context(without(audits, name, stand_in, unless=is_defended))
        paid = pay_of(network, NODE)
    return one_act(
        False, paid > 0, 0.0, f"{network.run_state.nodes[NODE].accepted} steps accepted, paid {paid}"
    )


@LIAR_ATTACKS.attack(
    "class that nobody has, to sabotage", 30, "the reference class: every machine can judge it"
)
def _class_for_sabotage(is_defended: bool, seed: int) -> Outcome:
    """Defended, the spec names limits, and auditors judge by them in the reference class."""
    network = _no_class(seed)
    if is_defended:
        network = a_network(seed=seed, rounds=12, limits=a_digest("limits"))
        network.commit_changes = lambda _, node: {"exec_class": a_digest("nobody's")} if node == NODE else {}
        network.false = all_steps(12)
        for verifier in VERIFIERS:
            network.minds[verifier] = _in_reference
    network.finish()
    record = network.run_state.nodes[NODE]
    harm = f"{record.accepted} of 12 steps in the aggregate, none paid"
    return one_act(record.banned, not record.banned, 0.0, harm)


def _in_reference(network: Network, audit: Audit) -> Judgement:
    finding = honest(network, audit)
    if finding is None:
        return None
    outcome, fields = finding
    return outcome, {**fields, "exec_class": REFERENCE}


@LIAR_ATTACKS.attack("cut off an honest node", 35, "absence is no fault", has_off=False)
def _partitioned(is_defended: bool, seed: int) -> Outcome:
    """An honest node is cut off for five rounds, so that it loses its receipts."""
    network = a_network(seed=seed)
    network.grow(2)
    network.absent = {NODE}
    network.grow(5)
    network.absent = set()
    network.finish()
    record = network.run_state.nodes[NODE]
    harm = f"{12 - record.accepted} of 12 steps unpaid, no stake lost"
    return one_act(False, record.banned or record.accepted != 7, 0.0, harm)


@LIAR_ATTACKS.attack(
    "cut off an honest node that is drawn", 35, "an opening may be overdue for hours of agreed time"
)
def _cut_off_when_drawn(is_defended: bool, seed: int) -> Outcome:
    """An honest node is cut off for ten rounds, minutes, when a step of its own has been drawn."""
    network = a_network(seed=seed, rounds=40, absence_s=4 * 3600 if is_defended else 0)
    network.is_checked, network.round_s = False, 60
    network.grow(2)
    network.absent, network.withheld = {NODE}, {(RoundId(0), NODE), (RoundId(1), NODE)}
    network.grow(10)
    network.absent, network.withheld, network.returning = set(), set(), {NODE}
    network.finish()
    record = network.run_state.nodes[NODE]
    harm = (
        f"{40 - record.accepted} of 40 steps unpaid, {'half its stake' if record.banned else 'no stake'} lost"
    )
    return one_act(False, record.banned, 0.0, harm)


@LIAR_ATTACKS.attack(
    "seem to be away", 19, "overdue openings are unpaid, keep from training, and cost the stake in the end"
)
def _seems_away(is_defended: bool, seed: int) -> Outcome:
    """Lies in every step, opens none that is drawn, and says that it is back as often as it may."""
    network = a_network(seed=seed, rounds=80, absence_s=3600)
    network.is_checked, network.round_s = False, 60
    network.false, network.withheld, network.returning = all_steps(80), all_steps(80), {NODE}
    with without(audits, "_awaited", lambda audit, *_, **__: audit, unless=is_defended):
        network.grow(80)
    record = network.run_state.nodes[NODE]
    harm = f"{record.accepted} of 80 steps accepted, none of the drawn ones paid, {record.returns} returns"
    return one_act(record.banned, not record.banned, 0.0, harm)


@LIAR_ATTACKS.attack(
    "cut off an honest node whose known-answer task is found",
    35,
    "a task may be shown for hours of agreed time by who heard nothing of the dispute",
)
def _cut_off_with_task(is_defended: bool, seed: int) -> Outcome:
    """An honest node is cut off for ten rounds, minutes, in which its task is judged, found and disputed."""
    at, rounds = RoundId(4), 40
    network = a_network(
        seed=seed, rounds=rounds, absence_s=4 * 3600 if is_defended else 0, known_answer_count=1
    )
    tasks = [(a_digest("salt"), at, NODE)]
    network.lists[NODE], network.false, network.round_s = known_answer_root(tasks), {(at, NODE)}, 60
    network.grow(int(at) + 2)
    network.absent = {NODE}
    network.grow(10)
    assert network.audit(at, NODE).is_false
    network.absent, network.known_answers = set(), {(at, NODE): known_answer_proofs(RUN_ID, tasks)[0]}
    network.finish()
    record = network.run_state.nodes[NODE]
    harm = f"{rounds - record.accepted} of {rounds} steps, {'a stake' if record.banned else 'no stake'} lost"
    return one_act(False, record.banned, 0.0, harm)


@LIAR_ATTACKS.attack(
    "seem to be cut off with a known-answer task",
    19,
    "without the task the stake goes when the hours are over",
)
def _seems_cut_off(is_defended: bool, seed: int) -> Outcome:
    """Lies in every step of a run with such tasks, and falls silent as soon as one is disputed."""
    network = a_network(seed=seed, rounds=80, absence_s=3600, known_answer_count=1)
    network.false, network.round_s, network.returning = all_steps(80), 60, {NODE}
    with without(audits, "_awaited", lambda audit, *_, **__: audit, unless=is_defended):
        for _ in range(80):
            own = (audit for audit in network.run_state.audits.values() if audit.node == NODE)
            network.absent = {NODE} if any(audit.dispute_opened_round >= 0 for audit in own) else set()
            network.grow()
    record = network.run_state.nodes[NODE]
    harm = f"{record.accepted} of 80 steps accepted, none of the drawn ones paid, {record.returns} returns"
    return one_act(record.banned, not record.banned, 0.0, harm)
