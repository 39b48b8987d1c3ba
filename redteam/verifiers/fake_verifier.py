"""Fake verifier: a verifier under the red team's control, in a run whose members have real keys.

Room: redteam. Signatures, beacon proofs and certificates are production's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from assay.protocol.errors import AssayError
from assay.protocol.messages import BeaconShare, CertifiedManifest, Commit, Manifest, SignedCommit
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import PeerId
from assay.redteam.attack import Outcome, tallied
from assay.testing import run, signed
from assay.testing.members import (
    DOMAIN,
    NODES,
    RUN_ID,
    VERIFIERS,
    a_deployment,
    a_peer_key,
    name_of,
)
from assay.testing.messages import SIGNED, an_inclusion_list
from assay.testing.signed import STATE
from assay.training.layout import layout_of
from assay.training.optimiser.momentum_root import zero_root
from assay.verifier.round.beacon import is_partial
from assay.verifier.round.commits import Rules
from assay.verifier.round.examination import examine
from assay.verifier.round.machine import Round

NODE = NODES[0]
VERIFIER_KEYS = {member: a_peer_key(name_of(member)) for member in VERIFIERS}


@dataclass(slots=True)
class FakeVerifier:
    """A verifier in a run of three nodes, after some rounds."""

    run_state: RunState

    @property
    def rules(self) -> Rules:
        """The constants of the run."""
        blocks = layout_of(self.run_state.spec.model).blocks
        zero = zero_root(RUN_ID, self.run_state.spec.rule, blocks)
        return Rules(deployment=a_deployment(), domain=DOMAIN, zero_momentum=zero, block_count=blocks)

    @property
    def round(self) -> Round:
        """A round without messages."""
        return Round(rules=self.rules, run_state=self.run_state, state=STATE, opened_ms=0)

    def commit(self, peer: PeerId, **changes: Any) -> Commit:
        """An honest node's commit for the next round."""
        return signed.a_commit(name_of(peer), self.run_state, **changes)

    def signed(self, peer: PeerId, *, key: PeerId | None = None, **changes: Any) -> SignedCommit:
        """The commit with both signatures, or with another key's."""
        name = name_of(key or peer)
        return signed.a_signed_commit(name_of(peer), self.run_state, peer_key=name, hot_key=name, **changes)

    def beacon_shares(self) -> tuple[BeaconShare, ...]:
        """Every verifier's share of the beacon of the round before."""
        return tuple(signed.a_reveal(name_of(member), self.run_state) for member in VERIFIERS)

    def manifest(self, commits: Sequence[Commit] = (), **changes: Any) -> Manifest:
        """The next manifest, with these commits and without audit messages."""
        made = run.a_manifest(self.run_state, commits=commits, signer=SIGNED, **changes)
        return replace(made, is_partial=is_partial(self.run_state, made.beacon_shares, made.drand))

    def full_manifest(self, nodes: Sequence[PeerId] = NODES, **changes: Any) -> Manifest:
        """The next manifest with these nodes' commits; every verifier lists all nodes' commits."""
        lists = (an_inclusion_list(self.run_state, verifier, set(NODES)) for verifier in VERIFIERS)
        listed = {"inclusion_lists": tuple(map(SIGNED.inclusion_list, lists))}
        return self.manifest([self.commit(peer) for peer in nodes], **{**listed, **changes})

    def link(self, manifest: Manifest, signers: int) -> CertifiedManifest:
        """The manifest with a certificate by this many verifiers."""
        return signed.a_certified(manifest, signers=map(name_of, VERIFIERS[:signers]))

    def vote_on(self, manifest: Manifest, *, wall_s: int = 0, follows: bool = True) -> None:
        """Examine a proposal for the next round as a verifier that holds no commits itself.

        follows: No iteration was given up since the parent's.

        Raises:
            AssayError: it would not vote for it.
        """
        examine(self.round, (), manifest, follows=follows, wall_s=wall_s)

    def passes(self, rounds: int = 1) -> FakeVerifier:
        """The state this many rounds without commits later."""
        for _ in range(rounds):
            beacon_shares = self.beacon_shares() if self.run_state.round else ()
            self.run_state = advance(self.run_state, self.manifest(beacon_shares=beacon_shares))
        return self


def a_fake_verifier(seed: int, **choices: Any) -> FakeVerifier:
    """The verifier at the start of a run."""
    return FakeVerifier(run.funded_start(run.a_spec(seed=seed, rounds=40, **choices)))


def refusals_of(members: Sequence[Callable[[], object]], refusal: type[AssayError] = AssayError) -> int:
    """How many of these calls raise a refusal."""
    count = 0
    for act in members:
        try:
            act()
        except refusal:
            count += 1
    return count


def tally(
    members: Sequence[Callable[[], object]], cost: float, harm: str, refusal: type[AssayError] = AssayError
) -> Outcome:
    """The outcome of acts that are each refused or succeed. Any exception but `refusal` is our own bug."""
    return tallied(len(members), refusals_of(members, refusal), cost, harm)
