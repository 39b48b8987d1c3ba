"""Rounds: attacks on a verifier while a round is collected, proposed and certified.

Room: redteam. The checking verifier and all its checks are production's (`fake_verifier`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import assay.participant.links
import assay.protocol.membership
import assay.verifier.round.commits
import assay.verifier.round.examination
import assay.verifier.round.machine
from assay.chain.commit_statement import check_commit_statement
from assay.ledger.settlement.payouts import settle
from assay.participant.links import extend
from assay.protocol.agreement import quorum
from assay.protocol.agreement.double_votes import double_vote
from assay.protocol.identity import sign
from assay.protocol.messages import Admission, Member, SignedAdmission, SignedVote, Vote, VoteKind
from assay.protocol.params import check_spec
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Iteration, PeerId
from assay.redteam.attack import Attacks, Outcome, Where, tallied, without
from assay.redteam.verifiers.fake_verifier import NODE, VERIFIER_KEYS, FakeVerifier, a_fake_verifier, tally
from assay.testing.members import DOMAIN, NODES, RUN_ID, a_deployment, a_digest, a_member, peers
from assay.testing.run import a_network, a_spec, funded_start
from assay.testing.signed import STATE
from assay.training.codec.wire import Update
from assay.training.data.batches import batch_positions, batch_root
from assay.verifier.aggregation.registry import rule_of
from assay.verifier.round.commits import admit, check_commit, contradiction
from assay.verifier.round.leader import manifest_of
from assay.verifier.round.machine import Equivocation, step

ROUND_ATTACKS = Attacks(Where.ROUND)


def _unchecked(is_defended: bool) -> AbstractContextManager[Any]:
    return without(assay.verifier.round.machine, "check_commit", lambda *_: None, unless=is_defended)


# ---- commits


@ROUND_ATTACKS.attack("replay a commit", 2, "round, parent and run are signed")
def _replayed(is_defended: bool, seed: int) -> Outcome:
    fake_verifier = a_fake_verifier(seed)
    old = fake_verifier.signed(NODE)
    elsewhere = replace(old, commit=replace(old.commit, run_id=a_digest("another run")))
    now = fake_verifier.passes().round
    with _unchecked(is_defended):
        return tally([lambda: step(now, old), lambda: step(now, elsewhere)], 0.0, "none: refused")


@ROUND_ATTACKS.attack("commit after the beacon", 18, "a round takes its own commits only")
def _late(is_defended: bool, seed: int) -> Outcome:
    """A node commits after the beacon of its round is out, knowing whether it is drawn."""
    fake_verifier = a_fake_verifier(seed)
    ready = fake_verifier.signed(NODE)
    now = fake_verifier.passes(2).round
    with _unchecked(is_defended):
        return tally([lambda: step(now, ready)], 1.0, "none: refused, so unpaid")


@ROUND_ATTACKS.attack("two commits for one step", 3, "the pair of statements is evidence")
def _equivocates(is_defended: bool, seed: int) -> Outcome:
    """One commit for half of the verifiers, another for the rest; undefended, they do not compare."""
    fake_verifier = a_fake_verifier(seed)
    first, second = fake_verifier.signed(NODE), fake_verifier.signed(NODE, update=a_digest("another update"))
    state, _ = step(fake_verifier.round, first)
    other = state if is_defended else fake_verifier.round
    seen, effects = step(other, second)
    is_proved = effects == (Equivocation(contradiction(first, second)),)
    if is_proved:
        hot = a_member(NODE).hot
        for signed in (first, second):  # the pair that the court recovers from its calldata
            check_commit_statement(fake_verifier.run_state.spec, a_deployment(), signed, hot)
        is_proved = NODE not in advance(fake_verifier.run_state, manifest_of(seen, (), NO_DIGEST)).active
    harm = "none: banned from the next round on and unpaid from this one; the court takes all its stake"
    return tallied(1, is_proved, 1.0, harm)


@ROUND_ATTACKS.attack("other parameters", 32, "commits name their parameters")
def _forked(is_defended: bool, seed: int) -> Outcome:
    """One bit of the parameters differs; undefended, commits do not name their parameters."""
    fake_verifier = a_fake_verifier(seed) if is_defended else FakeVerifier(
        funded_start(replace(a_fake_verifier(seed).run_state.spec, state_every=1000))
    )  # fmt: skip
    fake_verifier.passes()
    signed = (
        fake_verifier.signed(NODE, state=a_digest("one bit else"))
        if is_defended
        else fake_verifier.signed(NODE)
    )
    return tally(
        [lambda: check_commit(fake_verifier.rules, fake_verifier.run_state, STATE, signed)],
        1.0,
        "none: refused as diverged",
    )


@ROUND_ATTACKS.attack("another set in the aggregate", 32, "the chain digest binds set and aggregate")
def _other_set(is_defended: bool, seed: int) -> Outcome:
    """A leader aggregates another set than its manifest lists: the chain digest binds both."""
    fake_verifier = a_fake_verifier(seed).passes()
    manifest = fake_verifier.full_manifest(
        beacon_shares=fake_verifier.beacon_shares(), chain=a_digest("another chain")
    )
    with without(assay.verifier.round.examination, "check_place", lambda *_: None, unless=is_defended):
        return tally([lambda: fake_verifier.vote_on(manifest)], 0.0, "none: no vote")


@ROUND_ATTACKS.attack("leave out a commit", 32, "manifests carry a quorum's inclusion lists")
def _left_out(is_defended: bool, seed: int) -> Outcome:
    """A leader leaves out the commit of each node in turn; undefended, the lists of verifiers bind nobody."""
    fake_verifier = a_fake_verifier(seed)
    without_one = [[peer for peer in NODES if peer != one] for one in NODES]
    with without(assay.participant.links, "required", lambda *_: frozenset(), unless=is_defended):
        members = [
            partial(fake_verifier.vote_on, fake_verifier.full_manifest(nodes)) for nodes in without_one
        ]
        return tally(members, 0.0, "none: no vote; undefended, the node's step is lost and unpaid")


@ROUND_ATTACKS.attack("vote twice", 31, "the pair is evidence in a manifest")
def _double_vote(is_defended: bool, seed: int) -> Outcome:
    """A verifier notarises two blocks, each to others; undefended, no manifest carries the pair."""
    fake_verifier = a_fake_verifier(seed)
    culprit, key = next(iter(VERIFIER_KEYS.items()))
    votes = [
        Vote(run_id=RUN_ID, iteration=Iteration(3), kind=VoteKind.NOTARISE, block=a_digest("block", n))
        for n in range(2)
    ]
    pair = double_vote(
        *(SignedVote(vote=one, verifier=culprit, signature=sign(key, DOMAIN, one)) for one in votes)
    )
    state, _ = step(fake_verifier.round, pair)
    carried = manifest_of(state, (), NO_DIGEST).double_votes if is_defended else ()
    after = advance(fake_verifier.run_state, fake_verifier.full_manifest(double_votes=carried))
    caught = after.verifiers[culprit].is_disqualified
    harm = "none: disqualified, unpaid and slashed; undefended, nothing follows"
    return tallied(1, caught, 0.0, harm)


@ROUND_ATTACKS.attack(
    "seat a node without stake (4 ways)", 15, "a quorum's admissions, each after a look at the chain"
)
def _stakeless_seat(is_defended: bool, seed: int) -> Outcome:
    """One lying verifier of four votes for nodes without a lot, and as leader seats them.

    Alone, as if it were three, in an honest verifier's name, or for a node that took part before. Undefended,
    one vote suffices.
    """
    fake_verifier = a_fake_verifier(seed)
    spec, run_state = fake_verifier.run_state.spec, fake_verifier.run_state
    fake_verifier.run_state = replace(run_state, spec=replace(spec, seats=len(spec.nodes) + 1))
    liar, key = next(iter(VERIFIER_KEYS.items()))
    newcomer = a_member(PeerId(a_digest("newcomer", seed)))

    def vote(member: Member, verifier: PeerId) -> SignedAdmission:
        one = Admission(run_id=RUN_ID, time_s=run_state.time_s, member=member, verifier=verifier)
        return SignedAdmission(admission=one, signature=sign(key, DOMAIN, one))

    tries = (
        (vote(newcomer, liar),),
        (vote(newcomer, liar),) * 3,
        tuple(vote(newcomer, verifier) for verifier in sorted(VERIFIER_KEYS)[:3]),
        (vote(a_member(NODE), liar),),
    )
    with without(assay.protocol.membership, "quorum", lambda _count: 1, unless=is_defended):
        members = [
            partial(fake_verifier.vote_on, fake_verifier.full_manifest(admissions=one)) for one in tries
        ]
        return tally(members, 0.0, "none: no vote; undefended, it trains with nothing to lose")


@ROUND_ATTACKS.attack("claims beside the rules (4 ways)", 15, "every field of a commit is checked")
def _short(is_defended: bool, seed: int) -> Outcome:
    """Five identities share one step's work, each with a fifth of its tokens; or claim a wrong batch."""
    fake_verifier = a_fake_verifier(seed)
    spec = fake_verifier.run_state.spec
    other = batch_root(spec, batch_positions(spec, NODE, 30, spec.tokens_per_step))
    lies: tuple[dict[str, Any], ...] = (
        {"tokens": spec.tokens_per_step // 5}, {"batch_root": other}, {"base": 7},
        {"momentum_before": a_digest("invented")},
    )  # fmt: skip
    with _unchecked(is_defended):
        members = [partial(step, fake_verifier.round, fake_verifier.signed(NODE, **lie)) for lie in lies]
        return tally(members, 0.2, "none: refused")


@ROUND_ATTACKS.attack("steal one key of a node", 33, "two signatures, of two keys")
def _signed_by_another(is_defended: bool, seed: int) -> Outcome:
    fake_verifier, thief = a_fake_verifier(seed), list(NODES)[1]
    stolen = fake_verifier.signed(NODE, key=thief)
    honest = fake_verifier.signed(NODE)
    half = replace(honest, statement=stolen.statement)  # one of two keys stolen
    held = fake_verifier.round
    with ExitStack() as stack:
        if not is_defended:
            stack.enter_context(without(assay.verifier.round.commits, "verify", lambda *_: None))
            stack.enter_context(
                without(assay.verifier.round.commits, "check_commit_statement", lambda *_: None)
            )
        return tally(
            [
                partial(admit, held.rules, held.run_state, held.state, stolen),
                partial(admit, held.rules, held.run_state, held.state, half),
            ],
            0.0,
            "none: refused; both keys are needed",
        )


# ---- certificates


@ROUND_ATTACKS.attack("rewrite a final round", 31, "certificates of a quorum")
def _rewritten(is_defended: bool, seed: int) -> Outcome:
    """A history signed by two of four verifiers: another manifest in place of a final one."""
    fake_verifier = a_fake_verifier(seed)
    fork = fake_verifier.link(fake_verifier.manifest(aggregate=NO_DIGEST), signers=2)
    with without(quorum, "quorum", lambda _count: 2, unless=is_defended):
        return tally(
            [lambda: extend(fake_verifier.run_state, fork)], 0.0, "none: refused by whoever follows the chain"
        )


@ROUND_ATTACKS.attack("roll the chain back", 31, "every manifest names the one before")
def _rolled_back(is_defended: bool, seed: int) -> Outcome:
    fake_verifier = a_fake_verifier(seed)
    old = fake_verifier.link(fake_verifier.manifest(), signers=3)
    fake_verifier.passes(2)
    with (
        without(assay.participant.links, "check_place", lambda *_: None, unless=is_defended),
        without(assay.participant.links, "advance", lambda run_state, *_: run_state),
    ):
        return tally(
            [lambda: extend(fake_verifier.run_state, old)], 0.0, "none: it does not extend the chain"
        )


# ---- many identities


@ROUND_ATTACKS.attack("one account as node and verifier", 15, "an order with such members is refused")
def _two_seats(is_defended: bool, seed: int) -> Outcome:
    """One account runs a node and judges it."""
    spec = a_spec(seed=seed)
    own = replace(spec.verifiers[0], account=spec.nodes[0].account)
    both = replace(spec, verifiers=(own, *spec.verifiers[1:]))
    is_refused = False
    try:
        check_spec(both)
    except ValueError:
        is_refused = is_defended
    harm = "none: the order is refused" if is_refused else "it judges its own steps"
    return tallied(1, is_refused, 0.0, harm)


@ROUND_ATTACKS.attack("many names for pay", 15, "pay is by recomputable tokens", has_off=False)
def _sybil_pay(is_defended: bool, seed: int) -> Outcome:
    """Ten identities in place of one: the pay of one step's work."""
    per_step = []
    for names in (3, 12):
        network = a_network(seed=seed, nodes=peers("node", names), rounds=4)
        while int(network.run_state.round) <= network.run_state.calendar.settled_at(0):
            network.grow()
        found = settle(network.run_state, 0)
        per_step.append(found.paid("operator") / (4 * names))
    gain = per_step[1] / per_step[0]
    return Outcome(
        attempts=1,
        caught=0,
        succeeded=gain > 1.001,
        cost=1.0,
        harm=f"{gain:.3f} times the pay of a step, each",
    )


def _updates(seed: int, nodes: int, liars: int, loud: int) -> dict[PeerId, Update]:
    """Equal updates but for noise, with amplitudes; attackers oppose them, 2^loud times as large."""
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal((4, 64)) * 100
    index = np.tile(np.arange(64), (4, 1))
    found = {}
    for n in range(nodes):
        is_liar = n >= nodes - liars
        value = np.rint(-direction if is_liar else direction + rng.standard_normal(direction.shape) * 50)
        exponent = np.full(4, -40 + (loud if is_liar else 0), np.int64)
        found[PeerId(bytes([n + 1]) * 32)] = Update(
            np.arange(4), index, (value * 128).astype(np.int32), exponent, np.full(4, 128, np.int64)
        )
    return found


def _progress(updates: dict[PeerId, Update], name: str, f: int) -> float:
    """Cosine of the aggregate with the first, honest node's update."""
    made = rule_of(name, f, bytes(32))(updates, 4)
    dense = np.zeros((4, 4096))
    assert made.exponent_N is not None
    dense[made.blocks, made.index_T] = np.ldexp(made.value_T.astype(np.float64), made.exponent_N[made.blocks])
    mine = np.zeros((4, 4096))
    mine[:, :64] = next(iter(updates.values())).value_BK
    return float((dense * mine).sum() / max(float(np.linalg.norm(dense) * np.linalg.norm(mine)), 1e-30))


LOUD_RULES = ("clipping+mean", "trimmed-mean", "clipping+trimmed-mean", "median", "multi-krum")


@ROUND_ATTACKS.attack("two loud liars of eight", 11, "clipping, trimming, medians")
def _loud(is_defended: bool, seed: int) -> Outcome:
    """Two of eight send the opposite a thousand times as large; undefended, values count as they came."""
    rules = LOUD_RULES if is_defended else ("mean",)
    found = {name: _progress(_updates(seed, 8, 2, 10), name, 2) for name in rules}
    turned = sum(value <= 0 for value in found.values())
    cosines = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
    return Outcome(
        attempts=len(rules),
        caught=0,
        succeeded=turned,
        cost=1.0,
        harm=f"cosine with the honest way: {cosines}",
    )


@ROUND_ATTACKS.attack(
    "five liars of eight nodes", 15, "none in the round; audits ban them after it", has_off=False
)
def _many(is_defended: bool, seed: int) -> Outcome:
    """Five of eight nodes collude, until audits ban them."""
    found = {name: _progress(_updates(seed, 8, 5, 0), name, 2) for name in LOUD_RULES}
    turned = sum(value <= 0 for value in found.values())
    harm = "the aggregate turns round in {} of {} rules for the about 7 rounds until audits ban them"
    return Outcome(
        attempts=len(found), caught=0, succeeded=turned, cost=1.0, harm=harm.format(turned, len(found))
    )
