"""Trust: attacks by nodes that want to be audited less, or to stay within the tolerance of audits.

Room: redteam. Between execution classes a step may deviate within a tolerance, and a node's record and
hardware lower its audit rate: these attacks exploit each.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

import assay.protocol.run_state
from assay.participant.links import check_place
from assay.protocol.messages import (
    Appraisal,
    Discount,
    Manifest,
    SignedAppraisal,
    SignedStakeReport,
    StakeReport,
)
from assay.protocol.params import PPM, Precision
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, PeerId, RoundId, Signature
from assay.protocol.update_rule import BLOCK_SIZE
from assay.redteam.attack import Attacks, Outcome, Where, without
from assay.testing.members import NODES, VERIFIERS, a_digest
from assay.testing.messages import next_commit
from assay.testing.run import Network, a_network
from assay.verifier.audit.drift import Drift, observe
from assay.verifier.audit.limits import POLICIES, Limit
from assay.verifier.audit.tolerance import Grade, Measured, grades

NODE = NODES[0]
AUDITS, BLOCKS, OPENED = 40, 100, 32
# What was measured between real code paths in float32: docs/results/tolerance.md.
MEASURED = replace(POLICIES[Precision.FLOAT32], t1=11_000, t2=55_000, profile=600)
QUIET, COMMON = 6e-7, 0.08  # an honest residual's size, and the share that honest nodes have in common
TRUST_ATTACKS = Attacks(Where.CHAIN)


@TRUST_ATTACKS.attack("steer within the tolerance", 12, "drift over a node's audits (T5)", where=Where.STEP)
def _within_tolerance(is_defended: bool, seed: int) -> Outcome:
    """A fifth of T1 in one direction, step after step; every single audit matches."""
    steered = _audits_until_alert(MEASURED, MEASURED.t1 / 5 * 1e-9, seed) if is_defended else None
    honest = _audits_until_alert(MEASURED, 0.0, seed)
    found = f"back on probation after {steered} audits" if steered else "every audit is a match, for ever"
    harm = f"{found}; an honest node in {AUDITS} audits: {'an alert' if honest else 'no alert'}"
    return Outcome(attempts=1, caught=bool(steered), succeeded=not steered, cost=1.0, harm=harm)


def _audits_until_alert(limit: Limit, bias: float, seed: int) -> int | None:
    rng = np.random.default_rng(seed)

    def unit(count: int) -> NDArray[np.float64]:
        rows: NDArray[np.float64] = rng.standard_normal((count, BLOCK_SIZE))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows

    always = unit(BLOCKS) * bias + unit(BLOCKS) * COMMON * QUIET
    drift = Drift()
    for number in range(AUDITS):
        drawn = np.sort(rng.permutation(BLOCKS)[:OPENED])
        residual = always[drawn] + unit(OPENED) * QUIET
        zeros = np.zeros(OPENED)
        rho = np.linalg.norm(residual, axis=1)
        measured = Measured(rho, zeros, zeros.astype(bool), zeros, zeros, zeros, residual)
        assert grades(measured, limit).worst is Grade.PASSED
        drift, is_alarm = observe(drift, measured, drawn.tolist(), limit)
        if is_alarm:
            return number + 1
    return None


@TRUST_ATTACKS.attack("earn trust, then change the machine", 30, "another execution class is on probation")
def _other_machine(is_defended: bool, seed: int) -> Outcome:
    """Trust is earned on one machine, the steps come from another; undefended, trust is the node's."""
    run_state = a_network(seed=seed, rounds=30, probation=2).grow(10).run_state
    moved = replace(next_commit(run_state, NODE), exec_class=a_digest("another class"))
    trusted = replace(run_state.nodes[NODE], clean=1000)
    run_state = replace(run_state, nodes={**run_state.nodes, NODE: trusted})
    manifest = a_network(seed=seed, rounds=30, probation=2).manifest()
    carried = replace(
        manifest,
        round=run_state.round,
        parent=run_state.parent,
        commits=tuple(replace(one, commit=moved) for one in manifest.commits if one.commit.node == NODE),
        sketch_openings=(),
    )
    if not is_defended:
        known = replace(trusted, exec_class=moved.exec_class)
        run_state = replace(run_state, nodes={**run_state.nodes, NODE: known})
    rate = advance(run_state, carried).rate_ppm(NODE)
    harm = f"the next steps are drawn at {rate / PPM:.0%}"
    return Outcome(attempts=1, caught=rate == PPM, succeeded=rate < PPM, cost=1.0, harm=harm)


@TRUST_ATTACKS.attack("two of four verifiers vouch for hardware", 36, "a discount is what a quorum grants")
def _bought_appraisers(is_defended: bool, seed: int) -> Outcome:
    """Two of four verifiers appraise hardware that does not exist; undefended, any one appraisal counts."""
    network = a_network(seed=seed, rounds=30, attestation=a_digest("policy"), attested_rounds=10).grow(3)
    with without(assay.protocol.run_state, "quorum", lambda _count: 1, unless=is_defended):
        after = advance(network.run_state, _vouching(network.manifest(), network.run_state, VERIFIERS[:2]))
        discount = after.discount_ppm(NODE)
    floor = after.spec.audit.floor_ppm / PPM
    harm = f"its rate is multiplied with {discount / PPM:g}; the floor of {floor:.0%} stays in any case"
    return Outcome(attempts=1, caught=0, succeeded=discount < PPM, cost=0.0, harm=harm)


def _vouching(manifest: Manifest, run_state: RunState, verifiers: tuple[PeerId, ...]) -> Manifest:
    appraisals = tuple(
        Appraisal(
            run_id=run_state.run_id, round=RoundId(int(run_state.round) - 1), node=NODE, verifier=verifier,
            discount=Discount.PROCESSOR_AND_GPU, evidence=NO_DIGEST, result=NO_DIGEST,
        )
        for verifier in verifiers
    )  # fmt: skip
    signed = (
        SignedAppraisal(appraised=appraisal, signature=Signature(bytes(64))) for appraisal in appraisals
    )
    return replace(manifest, appraised=tuple(signed))


@TRUST_ATTACKS.attack(
    "leave with the stake, train on", 34, "verifiers watch stakes: rate 1 while some has left"
)
def _leaves_with_stake(is_defended: bool, seed: int) -> Outcome:
    """After probation it removes its stake, and trains on where nothing can be slashed any more."""
    network = a_network(seed=seed, rounds=90, probation=1, floor_ppm=50_000).trust().grow(2)
    if is_defended:
        network.run_state = advance(network.run_state, _weighing(network, VERIFIERS[:2]))
    rate = network.run_state.rate_ppm(NODE)
    harm = f"its steps are drawn at {rate / PPM:.0%}"
    return Outcome(attempts=1, caught=rate == PPM, succeeded=rate < PPM, cost=0.0, harm=harm)


@TRUST_ATTACKS.attack("one verifier slanders a node's stake", 27, "more than f verifiers must say so")
def _slanders_stake(is_defended: bool, seed: int) -> Outcome:
    """One verifier of four reports that an honest node's stake has left; undefended, one report counts."""
    network = a_network(seed=seed, rounds=90, probation=1, floor_ppm=50_000).trust().grow(2)
    with without(assay.protocol.run_state, "faults_tolerated", lambda _count: 0, unless=is_defended):
        rate = advance(network.run_state, _weighing(network, VERIFIERS[:1])).rate_ppm(NODE)
    harm = f"an honest node's steps are drawn at {rate / PPM:.0%}"
    return Outcome(attempts=1, caught=0, succeeded=rate == PPM, cost=0.0, harm=harm)


def _weighing(network: Network, verifiers: tuple[PeerId, ...]) -> Manifest:
    """The next manifest, in which these verifiers report that stake behind the node has left."""
    run_state = network.run_state
    reports = (
        StakeReport(
            run_id=run_state.run_id, round=RoundId(int(run_state.round) - 1), node=NODE, verifier=verifier,
            is_whole=False,
        )
        for verifier in verifiers
    )  # fmt: skip
    signed = tuple(
        SignedStakeReport(stake_report=report, signature=Signature(bytes(64))) for report in reports
    )
    manifest = replace(network.manifest(), stake_reports=signed)
    check_place(run_state, manifest)
    return manifest
