"""Byzantine verifiers: attacks by verifiers in what the chain records.

Room: redteam. Runs of a few rounds, four verifiers of which one may be Byzantine (f = 1). Every manifest
passes production's own check; the fold and the payout table are production's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from typing import Any

import assay.participant.links
import assay.protocol.auditing.audits
import assay.protocol.state_transition
from assay.protocol.auditing.audits import (
    REFERENCE,
    Audit,
    AuditStatus,
    judges_in_reference,
    last_verdict,
)
from assay.protocol.auditing.commitments import known_answer_proofs, known_answer_root
from assay.protocol.auditing.draws import auditors, is_replicated
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Outcome as Found
from assay.protocol.messages import SignedVerdict, SignedVerdictCommitment, Verdict
from assay.protocol.params import PPM, AuditSpec
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId, Signature
from assay.redteam.attack import Attacks, Outcome, Where, tallied, without
from assay.redteam.members import (
    GUESS,
    LIAR,
    MATCH,
    MISMATCH,
    NODE,
    WITHHELD,
    all_steps,
    one_act,
    pay_of,
)
from assay.testing.members import NODES, RUN_ID, VERIFIERS, a_digest
from assay.testing.messages import a_verdict, a_verdict_commitment, sketch_of
from assay.testing.run import Judgement, Network, a_network, always, funded_start, honest, mute
from assay.verifier.audit import odds

JUDGE_ATTACKS = Attacks(Where.CHAIN)


def leaked(_network: Network, audit: Audit) -> tuple[Found, dict[str, Any]]:
    """MATCH, with the sketch that the node leaked beforehand."""
    return MATCH, {"recomputed": sketch_of(audit.round, audit.node)}


@JUDGE_ATTACKS.attack("lazy verifier", 24, "committed sketches are compared")
def _lazy(is_defended: bool, seed: int) -> Outcome:
    network = a_network(seed=seed)
    network.minds[LIAR] = always(MATCH, recomputed=GUESS, witness=GUESS)
    with without(assay.protocol.auditing.audits, "_differs", lambda _audit: False, unless=is_defended):
        paid = pay_of(network, LIAR)
    record = network.run_state.verifiers[LIAR]
    harm = f"{record.judged} verdicts before the fault was proved" if is_defended else f"paid {paid}"
    return one_act(record.is_disqualified, not record.is_disqualified and paid > 0, 0.0, harm)


@JUDGE_ATTACKS.attack("lazy verifier helped by nodes", 24, "known-answer tasks")
def _lazy_with_help(is_defended: bool, seed: int) -> Outcome:
    """Nodes give it their sketches, so only known-answer tasks reveal that it recomputes nothing."""
    network = _with_tasks(seed, NODES if is_defended else ())
    network.minds[LIAR] = leaked
    return _tested(network)


@JUDGE_ATTACKS.attack(
    "a seller of known-answer tasks", 24, "each node draws its own tasks, and knows no others"
)
def _sold(is_defended: bool, seed: int) -> Outcome:
    """Nodes give a lazy verifier their sketches, and who knows tasks sells it the list: these it finds false.

    Undefended, one party knows all tasks, as a buyer did that drew them and gave them to one node.
    """
    network = _with_tasks(seed, NODES if is_defended else NODES[:1])
    sold = {step for step in network.false if step[1] == NODES[0]}
    network.minds[LIAR] = lambda network, audit: (
        (MISMATCH, {"recomputed": GUESS}) if (audit.round, audit.node) in sold else leaked(network, audit)
    )
    return _tested(network)


def _with_tasks(seed: int, nodes: Sequence[PeerId]) -> Network:
    """A run of which these nodes have five known-answer tasks each, and show them as soon as they may."""
    network = a_network(seed=seed, rounds=100, audit_rounds=8, known_answer_count=5)
    for node in nodes:
        drawn = sorted(random.Random(f"{seed} {node.hex()}").sample(range(1, 100), 5))
        tasks = [(a_digest("salt", at, node), RoundId(at), node) for at in drawn]
        network.lists[node] = known_answer_root(tasks)
        network.false |= {(at, node) for _, at, node in tasks}
        network.known_answers |= {(one.round, one.node): one for one in known_answer_proofs(RUN_ID, tasks)}
    return network


def _tested(network: Network) -> Outcome:
    """Whether the liar of a finished run was found by a known-answer task."""
    network.finish()
    record, nodes = network.run_state.verifiers[LIAR], network.run_state.nodes.values()
    assert not any(one.banned for one in nodes), "the node of a known-answer task was slashed"
    harm = f"{record.judged} verdicts; {len(network.known_answers)} known-answer tasks among {3 * 100} steps"
    return one_act(record.is_disqualified, not record.is_disqualified, 0.0, harm)


@JUDGE_ATTACKS.attack("lazy verifier in a class of its own", 24, "second looks in the reference class")
def _lazy_in_a_class_of_its_own(is_defended: bool, seed: int) -> Outcome:
    """It passes everything in a class that it made up, and in another run in the reference class."""
    classes, caught, judged = (a_digest("made up"), REFERENCE), 0, 0
    for exec_class in classes:
        network = a_network(seed=seed, limits=a_digest("limits"), replication_ppm=PPM // 2)
        network.minds = dict.fromkeys(VERIFIERS, _by_the_rules)
        network.minds[LIAR] = always(MATCH, exec_class=exec_class, recomputed=GUESS, witness=GUESS)
        with ExitStack() as off:
            if not is_defended:
                off.enter_context(without(assay.protocol.auditing.audits, "_recomputed", lambda *_: ()))
                off.enter_context(without(assay.protocol.auditing.audits, "REFERENCE", exec_class))
            network.finish()
        record = network.run_state.verifiers[LIAR]
        caught += record.is_disqualified or not record.judged
        judged += record.judged
    return tallied(2, caught, 0.0, f"{judged / 2:.0f} verdicts that count")


def _by_the_rules(network: Network, audit: Audit) -> Judgement:
    """An honest verifier of the nodes' class, in a run that allows the reference class."""
    finding = honest(network, audit)
    if finding is None or not judges_in_reference(audit):
        return finding
    outcome, fields = finding
    return outcome, {
        **fields,
        "exec_class": REFERENCE,
        "recomputed": a_digest("there", audit.round, audit.node),
    }


@JUDGE_ATTACKS.attack("copy a verdict", 25, "verdicts are committed to first")
def _copied_verdict(is_defended: bool, seed: int) -> Outcome:
    """A verifier waits for another's verdict and repeats it as its own."""
    network = a_network(seed=seed, replication_ppm=PPM, audit_rounds=9)
    accepted = 0
    true = assay.protocol.auditing.audits.may_open_verdict

    def any_sketch_opening(audit: Audit, verdict: Any, at: int) -> bool:
        return true(audit, verdict, at) or (audit.is_open and not audit.has_judged(verdict.verifier))

    network.minds[LIAR] = mute
    with without(assay.protocol.auditing.audits, "may_open_verdict", any_sketch_opening, unless=is_defended):
        for _ in range(16):
            manifest = network.manifest()
            copies = []
            for signed in manifest.verdicts:
                audit = network.audit(int(signed.verdict.round), signed.verdict.node)
                copy = a_verdict(audit, LIAR, signed.verdict.outcome, recomputed=signed.verdict.recomputed)
                copies.append(SignedVerdict(verdict=copy, signature=Signature(bytes(64))))
            copied_verdicts = sorted(
                {*manifest.verdicts, *copies},
                key=lambda s: (s.verdict.round, s.verdict.node, s.verdict.verifier),
            )
            if copies and _is_taken(network, replace(manifest, verdicts=tuple(copied_verdicts))):
                accepted += 1
            network.grow()
    return one_act(not accepted, accepted > 0, 0.0, f"{accepted} copied verdicts in the chain")


def _is_taken(network: Network, manifest: Any) -> bool:
    try:
        assay.participant.links.check_place(network.run_state, manifest)
    except MalformedMessage:
        return False
    return True


@JUDGE_ATTACKS.attack("copy in a dispute", 25, "witness in a pattern that the opened dispute chose")
def _copied_witness(is_defended: bool, seed: int) -> Outcome:
    """In a dispute it repeats the sketch, public by then, with an invented witness sketch."""
    network = a_network(seed=seed)

    def copies(net: Network, audit: Audit) -> Any:
        return MATCH, {"recomputed": sketch_of(audit.round, audit.node), "witness": GUESS}

    network.minds[LIAR] = copies
    accuser = VERIFIERS[1]
    network.minds[accuser] = always(MISMATCH)  # somebody has to open a dispute
    with without(assay.protocol.auditing.audits, "_shared", lambda *_: NO_DIGEST, unless=is_defended):
        network.grow(12)
    disqualified = LIAR in network.run_state.disqualified
    return one_act(
        disqualified,
        not disqualified,
        0.0,
        "one dispute round" if disqualified else "judges on without looking",
    )


@JUDGE_ATTACKS.attack("switch a committed verdict", 25, "only the committed verdict opens the commitment")
def _switched(is_defended: bool, seed: int) -> Outcome:
    """Commits to MATCH, and opens the opposite once the others have revealed."""
    network = a_network(seed=seed, replication_ppm=PPM)

    def two_faced(net: Network, audit: Audit) -> Any:
        is_bound = audit.committed_by(LIAR) is not None
        return (MISMATCH, {"recomputed": GUESS}) if is_bound else (MATCH, {})

    def any_word(audit: Audit, verdict: Any, at: int) -> bool:
        committed = audit.committed_by(verdict.verifier)
        if not audit.is_open or committed is None or not 0 <= audit.open_from <= at:
            return False
        return not audit.has_judged(verdict.verifier)

    network.minds[LIAR] = two_faced
    with without(assay.protocol.auditing.audits, "may_open_verdict", any_word, unless=is_defended):
        network.grow(14)
    counted = sum(
        a.ruling is AuditStatus.DISPUTED or bool(a.adverse) for a in network.run_state.audits.values()
    )
    record = network.run_state.verifiers[LIAR]
    harm = f"{record.silent} commitments not opened, unpaid; {counted} disputes opened"
    return one_act(record.silent > 0, counted > 0, 1.0, harm)


@JUDGE_ATTACKS.attack("false accusation", 27, "a quorum convicts; the accuser is at fault")
def _false_accusation(is_defended: bool, seed: int) -> Outcome:
    network = a_network(seed=seed)
    network.minds[LIAR] = always(MISMATCH, recomputed=GUESS, witness=GUESS)
    with without(assay.protocol.auditing.audits, "quorum", lambda _count: 1, unless=is_defended):
        network.grow(12)
    banned = sum(record.banned for record in network.run_state.nodes.values())
    disqualified = LIAR in network.run_state.disqualified
    return one_act(
        disqualified,
        banned > 0,
        0.0,
        f"{banned} honest nodes banned; accuser loses 10 % of its stake a fault",
    )


@JUDGE_ATTACKS.attack("false report of a withheld opening", 27, "a quorum convicts")
def _frame_by_withholding(is_defended: bool, seed: int) -> Outcome:
    """Claims that nothing was opened: no fault of its own, so it can try at every step."""
    network = a_network(seed=seed)
    network.minds[LIAR] = always(WITHHELD)
    with without(assay.protocol.auditing.audits, "quorum", lambda _count: 1, unless=is_defended):
        network.grow(12)
    banned = sum(record.banned for record in network.run_state.nodes.values())
    disputes = sum(a.dispute_opened_round >= 0 for a in network.run_state.audits.values())
    harm = (
        f"{banned} honest nodes banned; {disputes} committees called at no cost to it but pay for the verdict"
    )
    return one_act(False, banned > 0, 0.0, harm)


@JUDGE_ATTACKS.attack("commit and never open", 25, "who is silent is replaced")
def _never_opens(is_defended: bool, seed: int) -> Outcome:
    network = a_network(seed=seed, audit_rounds=9)
    network.unopened = {LIAR}
    with ExitStack() as off:
        for name, none in (("_silent", lambda audit, *_: audit.silent), ("_is_evaded", lambda _: False)):
            off.enter_context(without(assay.protocol.auditing.audits, name, none, unless=is_defended))
        network.grow(14)
    lapsed = sum(a.ruling is AuditStatus.EXPIRED for a in network.run_state.audits.values())
    rounds = network.run_state.spec.audit.takeover_rounds
    harm = f"{lapsed} audits expired; each of its commitments costs {rounds} round"
    return one_act(network.run_state.verifiers[LIAR].silent > 0, lapsed > 0, 1.0, harm)


@JUDGE_ATTACKS.attack(
    "commit late for a false node and never open", 25, "where nobody found a match, a committee judges"
)
def _late_accomplice(is_defended: bool, seed: int) -> Outcome:
    """A node's steps are false; its accomplice, always first, commits late and keeps its verdict shut."""
    network = a_network(seed=seed, audit_rounds=7, takeover_rounds=2)
    network.false, network.unopened = all_steps(24), {LIAR}

    def first(seed_: Digest, node: PeerId, judges: Any) -> tuple[PeerId, ...]:
        return (LIAR, *(one for one in auditors(seed_, node, judges) if one != LIAR))

    def late(network: Network, audit: Audit) -> Judgement:
        is_time = audit.ruling is AuditStatus.OPEN and network.run_state.round >= audit.round + 3
        return (MATCH, {}) if is_time and audit.node == NODE else mute(network, audit)

    network.minds[LIAR] = late
    with ExitStack() as patches:
        patches.enter_context(without(assay.protocol.state_transition, "auditors", first))
        patches.enter_context(
            without(assay.protocol.auditing.audits, "_is_evaded", lambda _: False, unless=is_defended)
        )
        paid = pay_of(network, NODE)
    record = network.run_state.nodes[NODE]
    harm = f"{record.accepted} false steps accepted, paid {paid}"
    return one_act(record.banned, not record.banned and paid > 0, 0.0, harm)


@JUDGE_ATTACKS.attack(
    "lead a dispute's last manifest, and leave a slow verdict out",
    25,
    "the last f + 1 leaders wait for verdicts",
)
def _left_out(is_defended: bool, seed: int) -> Outcome:
    """A node's steps are false; its accomplice passes them, and leads the last manifest of every dispute.

    The last honest verifier of an audit's order is slow: a manifest has its verdict if its leader waits.
    Undefended, leaders wait in the last manifest alone.
    """
    network = a_network(seed=seed, dispute_rounds=4)
    network.false, network.minds[LIAR] = all_steps(24), always(MATCH, recomputed=GUESS, witness=GUESS)
    rules, sound = network.run_state.spec.audit, assay.protocol.auditing.audits.awaits

    def is_left_out(verdict: Verdict) -> bool:
        audit, at = network.run_state.audits[(verdict.round, verdict.node)], int(network.run_state.round)
        slow = [one for one in audit.order if one != LIAR][-1]
        _, waited_for, _ = assay.protocol.auditing.audits.awaits(rules, audit, at)
        is_there = verdict.verifier in waited_for and at < last_verdict(rules, audit)
        return audit.ruling is AuditStatus.DISPUTED and verdict.verifier == slow and not is_there

    def in_the_last(rules: AuditSpec, audit: Audit, at: int) -> Any:
        return sound(rules, audit, at - audit.f)

    with without(assay.protocol.auditing.audits, "awaits", in_the_last, unless=is_defended):
        while not network.run_state.is_complete:
            manifest = network.manifest()
            carried = tuple(one for one in manifest.verdicts if not is_left_out(one.verdict))
            network.run_state = advance(network.run_state, replace(manifest, verdicts=carried))
    found = [audit.ruling for audit in network.run_state.audits.values() if audit.node == NODE]
    lapsed = found.count(AuditStatus.EXPIRED)
    is_banned = network.run_state.nodes[NODE].banned
    return one_act(is_banned, not is_banned and lapsed > 0, 0.0, f"{lapsed} disputes end without a finding")


@JUDGE_ATTACKS.attack("buy one auditor of four", 26, "auditors are drawn; 20 % of audits replicated")
def _bought_auditor(is_defended: bool, seed: int) -> Outcome:
    """A node falsifies every step, and one of four auditors passes all of its own audits."""
    rounds = 24
    network = a_network(seed=seed, rounds=rounds, replication_ppm=200_000)
    network.false = all_steps(rounds)
    network.minds[LIAR] = leaked

    def chosen(seed_: Digest, node: PeerId, judges: Any) -> tuple[PeerId, ...]:
        order = auditors(seed_, node, judges)
        return (LIAR, *(one for one in order if one != LIAR)) if LIAR in order else order

    if not is_defended:
        network = _without_replication(network)
    with without(assay.protocol.state_transition, "auditors", chosen, unless=is_defended):
        network.finish()
    record = network.run_state.nodes[NODE]
    harm = f"{record.accepted} false steps got in before it was banned; {_power(seed, 200_000)}"
    return one_act(record.banned, not record.banned, 0.0, harm)


def _without_replication(network: Network) -> Network:
    """The same run without replicated audits."""
    run_state = network.run_state
    spec = replace(run_state.spec, audit=replace(run_state.spec.audit, replication_ppm=0))
    return replace(network, run_state=funded_start(spec))


def _power(seed: int, replication_ppm: int) -> str:
    """Share of false steps that one audit finds with one of four auditors bought: measured, by formula."""
    draws, found = 3000, 0
    for number in range(draws):
        order = auditors(a_digest("beacon", seed, number), NODE, VERIFIERS)
        again = is_replicated(a_digest("later", seed, number), NODE, number, replication_ppm)
        found += any(one != LIAR for one in order[: 1 + again])
    formula = float(odds.power_under_collusion(1, 4, Fraction(replication_ppm, PPM)))
    return f"one audit finds {found / draws:.3f} of its lies (formula {formula:.3f})"


@JUDGE_ATTACKS.attack(
    "three of four verifiers frame a node", 26, "none beyond f = 1; for its stake, an appeal", has_off=False
)
def _majority(is_defended: bool, seed: int) -> Outcome:
    """Three of four verifiers against an honest node: more than the tolerated f = 1."""
    network = a_network(seed=seed)
    for verifier in VERIFIERS[:3]:
        network.minds[verifier] = lambda _net, audit: (
            (MISMATCH, {"recomputed": GUESS, "witness": GUESS}) if audit.node == NODE else (MATCH, {})
        )
    network.grow(12)
    banned = network.run_state.nodes[NODE].banned
    return one_act(False, banned, 0.0, "an honest node is banned and unpaid" if banned else "none")


@JUDGE_ATTACKS.attack(
    "two of four verifiers pass a node's lies", 26, "none beyond f = 1: no quorum convicts", has_off=False
)
def _two_of_four(is_defended: bool, seed: int) -> Outcome:
    """Two of four pass a node's false steps: no quorum convicts it."""
    rounds = 12
    network = a_network(seed=seed, rounds=rounds)
    network.false = all_steps(rounds)
    for verifier in VERIFIERS[:2]:
        network.minds[verifier] = leaked
    paid, honest_pay = pay_of(network, NODE), pay_of(network, NODES[1])
    network.finish()
    record = network.run_state.nodes[NODE]
    slashed = len(network.run_state.disqualified)
    harm = (
        f"{record.accepted} false steps got in, paid {paid / honest_pay:.0%} of honest pay; "
        f"{slashed} honest verifiers found at fault"
    )
    return one_act(record.banned, not record.banned, 0.0, harm)


@JUDGE_ATTACKS.attack(
    "known-answer task done honestly", 24, "a list proves what was ordered; a committee what was done"
)
def _known_answer_frames(is_defended: bool, seed: int) -> Outcome:
    """A node computes a known-answer task honestly and reveals it as false, to frame the MATCH voters."""
    tasks = [(a_digest("salt"), RoundId(1), NODE)]
    network = a_network(seed=seed, rounds=20, audit_rounds=9, known_answer_count=1)
    network.lists[NODE] = known_answer_root(tasks)
    network.known_answers = {(RoundId(1), NODE): known_answer_proofs(RUN_ID, tasks)[0]}
    true = assay.protocol.auditing.audits._decided

    def list_is_proof(
        audit: Audit, now: int, rules: AuditSpec, manifest: Digest, time_s: int, heard_round: int
    ) -> Audit:
        if not audit.is_known_answer:
            return true(audit, now, rules, manifest, time_s, heard_round)
        faults_ = tuple(
            assay.protocol.auditing.audits.Fault(v, assay.protocol.auditing.audits.FaultKind.PASSED)
            for v in audit.verdicts
            if v.outcome is MATCH
        )
        return replace(audit, ruling=AuditStatus.KNOWN_ANSWER, closed_round=now, faults=faults_)

    with without(assay.protocol.auditing.audits, "_decided", list_is_proof, unless=is_defended):
        network.grow(15)
    framed = len(network.run_state.disqualified)
    return one_act(False, framed > 0, 1.0, f"{framed} honest verifiers at fault")


@JUDGE_ATTACKS.attack("hide a verifier's fault", 26, "manifests name who is at fault")
def _hidden_fault(is_defended: bool, seed: int) -> Outcome:
    """A leader omits a proved fault from its manifests, so that the disqualified verifier is drawn again."""
    network = a_network(seed=seed)
    network.minds[LIAR] = always(MISMATCH, recomputed=GUESS, witness=GUESS)
    while LIAR not in network.run_state.disqualified:  # chance decides when it is first drawn
        network.grow()
    manifest = replace(network.manifest(), disqualified=())
    if not is_defended:
        with without(assay.participant.links, "check_place", lambda *_: None):
            taken = _is_taken(network, manifest)
    else:
        taken = _is_taken(network, manifest)
    return one_act(not taken, taken, 0.0, "none: refused by every verifier" if not taken else "drawn on")


@JUDGE_ATTACKS.attack(
    "messages out of order, too early, too late", 18, "every message has its time in the chain"
)
def _untimely_messages(is_defended: bool, seed: int) -> Outcome:
    """A verifier without assignment commits anyway, and a verdict comes after its deadline."""
    network = a_network(seed=seed).grow(2)
    audit = network.audit(0, NODE)
    caught = 0
    off = without(assay.participant.links, "check_messages", lambda *_: None, unless=is_defended)
    stranger = a_verdict(audit, audit.order[-1], MATCH)
    commitment = SignedVerdictCommitment(
        commitment=a_verdict_commitment(stranger), signature=Signature(bytes(64))
    )
    early = SignedVerdict(verdict=a_verdict(audit, audit.order[0], MATCH), signature=Signature(bytes(64)))
    with off:
        for manifest in (
            replace(network.manifest(), commitments=(commitment,)),
            replace(network.manifest(), commitments=(), verdicts=(early,)),
        ):
            caught += not _is_taken(network, manifest)
        late = a_network(seed=seed)
        late.minds = dict.fromkeys(VERIFIERS, mute)
        late.grow(8)
        early_verdict = replace(early, verdict=a_verdict(audit, audit.order[0], MATCH))
        caught += not _is_taken(late, replace(late.manifest(), verdicts=(early_verdict,)))
    return tallied(3, caught, 0.0, "none: refused by every verifier")
