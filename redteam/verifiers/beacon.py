"""Beacon: attacks that try to predict or to choose which steps are drawn for audit.

Room: redteam. A leader that chooses among shares, a verifier with two of them, colluders who know all.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import partial

import assay.protocol.agreement.quorum
import assay.protocol.randomness.drand
import assay.verifier.round.beacon
import assay.verifier.round.commits
from assay.protocol.auditing.draws import audit_seed, beacon_input, is_drawn
from assay.protocol.messages import (
    BeaconShare,
    Manifest,
)
from assay.protocol.params import PPM
from assay.protocol.randomness import vrf
from assay.protocol.randomness.drand import QUICKNET
from assay.protocol.state_transition import advance, beacon_of
from assay.redteam.attack import Attacks, Outcome, Where, tallied, without
from assay.redteam.verifiers.fake_verifier import (
    NODE,
    VERIFIER_KEYS,
    FakeVerifier,
    a_fake_verifier,
    refusals_of,
    tally,
)
from assay.testing.members import RUN_ID, a_digest

BEACON_ATTACKS = Attacks(Where.ROUND)


@BEACON_ATTACKS.attack("choose the beacon's shares", 17, "a leader that follows carries every share")
def _beacon(is_defended: bool, seed: int) -> Outcome:
    """A leader chooses the shares so that a friend's step is not drawn, at a rate of one half."""
    fake_verifier, rounds, rate = a_fake_verifier(seed), 16, PPM // 2
    drawn, chosen = 0, 0
    refusals = attempts = 0
    with without(assay.verifier.round.beacon, "reveals_needed", lambda *_, **__: 3, unless=is_defended):
        for _ in range(rounds):
            fake_verifier.passes()
            beacon_shares = fake_verifier.beacon_shares()
            run_state = fake_verifier.run_state
            alpha = beacon_input(
                run_state.spec.deployment_id, RUN_ID, beacon_shares[0].round, run_state.parent
            )
            drawn += _is_drawn(alpha, beacon_shares, rate)
            best = next(
                (some for some in _choices(beacon_shares) if not _is_drawn(alpha, some, rate)), beacon_shares
            )
            if len(best) < len(beacon_shares):
                attempts += 1
                manifest = fake_verifier.full_manifest(beacon_shares=best)
                refused = refusals_of([partial(fake_verifier.vote_on, manifest)])
                refusals += refused
                best = beacon_shares if refused else best
            chosen += _is_drawn(alpha, best, rate)
    harm = f"the friend is drawn in {chosen} of {rounds} rounds, by all shares in {drawn}"
    return tallied(attempts, refusals, 0.0, harm)


def _is_drawn(alpha: bytes, beacon_shares: tuple[BeaconShare, ...], rate: int) -> bool:
    return is_drawn(audit_seed(alpha, [(one.verifier, one.proof) for one in beacon_shares]), NODE, rate)


def _choices(beacon_shares: tuple[BeaconShare, ...]) -> list[tuple[BeaconShare, ...]]:
    """All of them, then all but one: a quorum of four is three."""
    return [beacon_shares, *itertools.combinations(beacon_shares, len(beacon_shares) - 1)]


@BEACON_ATTACKS.attack(
    "choose a share after a given-up iteration", 17, "a partial beacon draws every step, by the next beacon"
)
def _beacon_after_dummy(is_defended: bool, seed: int) -> Outcome:
    """The same after a skipped iteration, where a quorum of shares suffices."""
    fake_verifier = a_fake_verifier(seed).passes()
    rare = replace(fake_verifier.run_state.nodes[NODE], clean=10**9)  # drawn at the floor's rate
    commit, escaped, choices = fake_verifier.commit(NODE), 0, _choices(fake_verifier.beacon_shares())[1:]
    start = replace(
        fake_verifier.run_state, last_commits=(commit,), nodes={**fake_verifier.run_state.nodes, NODE: rare}
    )
    for some in choices:
        then = FakeVerifier(start)
        manifest = then.manifest(beacon_shares=some)
        if not is_defended:
            manifest = replace(manifest, is_partial=False)
        then.run_state = advance(start, manifest)
        present = tuple(one for one in then.beacon_shares() if one.verifier in then.run_state.beacon)
        then.run_state = advance(then.run_state, then.manifest(beacon_shares=present))
        escaped += (commit.round, NODE) not in then.run_state.audits
    harm = f"the friend escapes by {escaped} of {len(choices)} choices; who is left out is away 16 rounds"
    return tallied(len(choices), len(choices) - escaped, 0.0, harm)


@BEACON_ATTACKS.attack(
    "leave out a share, then keep one's own",
    19,
    "shares of who is away stand in for missing ones",
    has_off=False,
)
def _halted(is_defended: bool, seed: int) -> Outcome:
    """A liar that leads after a given-up iteration leaves out an honest share, and gives none from then on.

    A quorum are asked for their shares then, the liar among them. The honest one that is away is not; its
    share counts where one is missing.
    """
    fake_verifier = a_fake_verifier(seed).passes(3)
    liar, victim = fake_verifier.run_state.spec.verifier_peers[0], max(VERIFIER_KEYS)
    shares = tuple(one for one in fake_verifier.beacon_shares() if one.verifier != victim)
    manifest = fake_verifier.full_manifest(beacon_shares=shares)
    fake_verifier.vote_on(manifest, follows=False)
    fake_verifier.run_state = advance(fake_verifier.run_state, manifest)
    honest = [one for one in fake_verifier.beacon_shares() if one.verifier != liar]
    tries = [some for count in range(len(honest) + 1) for some in itertools.combinations(honest, count)]
    manifests = [fake_verifier.full_manifest(beacon_shares=some) for some in tries]
    refused = refusals_of([partial(fake_verifier.vote_on, one, follows=False) for one in manifests])
    harm = f"of {len(tries)} choices among honest shares {refused} are refused: a manifest needs all of them"
    is_halted = refused == len(tries)
    return Outcome(attempts=1, caught=0, succeeded=is_halted, cost=0.0, harm=harm)


@BEACON_ATTACKS.attack("a second share of the beacon", 17, "ECVRF: one proof for one input")
def _second_proof(is_defended: bool, seed: int) -> Outcome:
    """A second share of the same verifier for the same round, to choose the better of two."""
    fake_verifier = a_fake_verifier(seed).passes()
    true = fake_verifier.beacon_shares()
    alpha = b"something else"
    key = next(iter(VERIFIER_KEYS.values()))
    forged = replace(true[0], proof=vrf.prove(bytes(key), alpha))
    bent = replace(true[0], proof=true[0].proof[:-1] + bytes([true[0].proof[-1] ^ 1]))
    with without(assay.verifier.round.beacon, "verify", lambda *_: b"", unless=is_defended):
        members = [
            partial(fake_verifier.vote_on, fake_verifier.full_manifest(beacon_shares=(one, *true[1:])))
            for one in (forged, bent)
        ]
        return tally(members, 0.0, "none: one input has one proof")


@BEACON_ATTACKS.attack("know every share beforehand", 17, "a drand round named while it is to come")
def _foresight(is_defended: bool, seed: int) -> Outcome:
    """All verifiers collude: with every share they know each draw before they choose what to commit.

    Of eight sets of commits they take one by which a friend is not drawn, at a rate of one half.
    Undefended, no randomness comes from outside.
    """
    fake_verifier, tries, rate = a_fake_verifier(seed, drand=QUICKNET), 16, PPM // 2
    rng = random.Random(seed)
    drawn = 0
    for turn in range(tries):
        # drand's future value of the named round, which nobody knows yet
        released = rng.randbytes(48) if is_defended else b""
        options = [fake_verifier.manifest(aggregate=a_digest("set", turn, n), drand_next=1) for n in range(8)]
        foreseen = [not _hits(fake_verifier, one, b"", rate) for one in options]
        chosen = options[foreseen.index(True)] if any(foreseen) else options[0]
        drawn += _hits(fake_verifier, chosen, released, rate)
    harm = f"the friend is drawn in {drawn} of {tries} rounds, where chance draws it in {tries // 2}"
    return Outcome(attempts=1, caught=0, succeeded=drawn <= 1, cost=0.0, harm=harm)


def _hits(fake_verifier: FakeVerifier, manifest: Manifest, released: bytes, rate: int) -> bool:
    """Whether the friend's step in this manifest is drawn, with every share and this drand round."""
    after = FakeVerifier(advance(fake_verifier.run_state, manifest))
    return is_drawn(
        beacon_of(after.run_state, after.manifest(beacon_shares=after.beacon_shares(), drand=released)),
        NODE,
        rate,
    )


@BEACON_ATTACKS.attack("name a drand round that is out", 17, "every voter's clock")
def _past_round(is_defended: bool, seed: int) -> Outcome:
    """A leader names drand rounds that are already published, so that it knows what it chooses among."""
    fake_verifier, network = a_fake_verifier(seed, drand=QUICKNET), QUICKNET
    now_s = network.genesis_s + 10**6
    newest = (now_s - network.genesis_s) // network.period_s + 1
    with without(assay.protocol.randomness.drand, "may_be_named", lambda *_: True, unless=is_defended):
        members = [
            partial(fake_verifier.vote_on, fake_verifier.full_manifest(drand_next=number), wall_s=now_s)
            for number in (1, newest - 1, newest)
        ]
        return tally(members, 0.0, "none: no vote")
