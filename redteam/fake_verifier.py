"""Fake verifier: a verifier under the red team's control, in a run whose members have real keys.

Room: redteam. Signatures, beacon proofs and certificates are production's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nacl.signing import SigningKey

from assay.chain.addresses import Deployment
from assay.chain.commit_statement import evm_address, sign_commit
from assay.chain.statements import address_of
from assay.protocol.draws import beacon_input
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import AssayError
from assay.protocol.identity import Domain, peer_of, sign
from assay.protocol.messages import (
    BeaconShare,
    Block,
    CertifiedManifest,
    Commit,
    Manifest,
    SignedCommit,
    SignedInclusionList,
    SignedVote,
    Vote,
    VoteKind,
)
from assay.protocol.params import Member
from assay.protocol.quorum import assemble
from assay.protocol.randomness import vrf
from assay.protocol.state_transition import RunState, advance, next_chain
from assay.protocol.types import NO_DIGEST, Address, Iteration, PeerId, RoundId
from assay.redteam.attack import Outcome
from assay.redteam.run_builder import (
    RUN_ID,
    a_commit,
    a_network,
    a_spec,
    funded_start,
    inclusion_lists,
    mark,
)
from assay.training.data.batches import batch_positions, batch_root
from assay.training.layout import layout_of
from assay.training.optimiser.momentum_root import zero_root
from assay.verifier.round.beacon import is_partial
from assay.verifier.round.commits import Rules
from assay.verifier.round.machine import Round

STATE = mark("parameters")


def _key(kind: str, n: int) -> SigningKey:
    return SigningKey(hashlib.sha256(f"redteam {kind} {n}".encode()).digest())


def _keys(kind: str, count: int) -> dict[PeerId, SigningKey]:
    return dict(sorted((peer_of(key), key) for key in (_key(kind, n) for n in range(count))))


NODE_KEYS, VERIFIER_KEYS = _keys("node", 3), _keys("verifier", 4)
NODE = next(iter(NODE_KEYS))


def hot_key(peer: PeerId) -> bytes:
    return hashlib.sha256(b"hot" + peer).digest()


def a_member(peer: PeerId) -> Member:
    hot = Address(bytes.fromhex(address_of(hot_key(peer))[2:]))
    return Member(peer=peer, account=Address(peer[:20]), hot=hot)


def a_deployment() -> Deployment:
    names = (
        "token", "stake_vault", "verifier_set", "run_escrow", "epoch_settlement", "slash_court",
        "model_registry",
    )  # fmt: skip
    addresses = {name: evm_address(mark(name)[:20]) for name in names}
    return Deployment(chain_id=31337, deployment_id=mark("deployment"), block=0, **addresses)


@dataclass(slots=True)
class FakeVerifier:
    """A verifier in a run of three nodes, after some rounds."""

    run_state: RunState

    @property
    def domain(self) -> Domain:
        """The signatures' domain."""
        return Domain(deployment_id=self.run_state.spec.deployment_id, run_id=RUN_ID)

    @property
    def rules(self) -> Rules:
        """The constants of the run."""
        blocks = layout_of(self.run_state.spec.model).blocks
        zero = zero_root(RUN_ID, self.run_state.spec.rule, blocks)
        return Rules(deployment=a_deployment(), domain=self.domain, zero_momentum=zero, block_count=blocks)

    @property
    def round(self) -> Round:
        """A round without messages."""
        return Round(rules=self.rules, run_state=self.run_state, state=STATE, opened_ms=0)

    def commit(self, peer: PeerId, **changes: Any) -> Commit:
        """An honest node's commit for the next round."""
        spec, record = self.run_state.spec, self.run_state.nodes[peer]
        positions = batch_positions(spec, peer, int(self.run_state.round))
        honest = a_commit(
            self.run_state,
            peer,
            state=STATE if int(self.run_state.round) % spec.state_every == 0 else NO_DIGEST,
            batch_root=batch_root(spec, positions),
            momentum_before=record.momentum if record.base else self.rules.zero_momentum,
        )
        return replace(honest, **changes)

    def signed(self, peer: PeerId, *, key: PeerId | None = None, **changes: Any) -> SignedCommit:
        """The commit with both signatures, or with another key's."""
        commit, by = self.commit(peer, **changes), key or peer
        return SignedCommit(
            commit=commit,
            signature=sign(NODE_KEYS[by], self.domain, commit),
            statement=sign_commit(self.run_state.spec, a_deployment(), commit, hot_key(by)),
        )

    def beacon_shares(self) -> tuple[BeaconShare, ...]:
        """Every verifier's share of the beacon of the round before."""
        before = RoundId(int(self.run_state.round) - 1)
        alpha = beacon_input(self.run_state.spec.deployment_id, RUN_ID, before, self.run_state.parent)
        return tuple(
            BeaconShare(run_id=RUN_ID, round=before, verifier=peer, proof=vrf.prove(bytes(key), alpha))
            for peer, key in VERIFIER_KEYS.items()
        )

    def manifest(self, **changes: Any) -> Manifest:
        """The next manifest, without commits and audit messages."""
        empty = a_network()
        empty.run_state = self.run_state
        empty.absent = set(NODE_KEYS)
        made = replace(empty.manifest(), commitments=(), verdicts=(), sketch_openings=(), known_answers=())
        made = replace(made, **changes)
        return replace(made, is_partial=is_partial(self.run_state, made.beacon_shares, made.drand))

    def full_manifest(self, nodes: Sequence[PeerId] = tuple(NODE_KEYS), **changes: Any) -> Manifest:
        """The next manifest with these nodes' commits; every verifier lists all nodes' commits."""
        commits = tuple(self.signed(peer) for peer in nodes)
        aggregate = mark("aggregate", self.run_state.round)
        chain = next_chain(self.run_state.chain, tuple(one.commit for one in commits), aggregate)
        lists = tuple(
            SignedInclusionList(
                inclusion_list=one, signature=sign(VERIFIER_KEYS[one.verifier], self.domain, one)
            )
            for one in inclusion_lists(self.run_state, set(NODE_KEYS))
        )
        full = {"commits": commits, "aggregate": aggregate, "chain": chain, "inclusion_lists": lists}
        return self.manifest(**{**full, **changes})

    def link(self, manifest: Manifest, signers: int) -> CertifiedManifest:
        """The manifest with a certificate by this many verifiers."""
        block = Block(
            run_id=RUN_ID, iteration=Iteration(int(manifest.round) + 1), round=manifest.round,
            parent=NO_DIGEST, manifest=digest(manifest),
        )  # fmt: skip
        vote = Vote(run_id=RUN_ID, iteration=block.iteration, kind=VoteKind.FINALISE, block=digest(block))
        votes = [
            SignedVote(vote=vote, verifier=peer, signature=sign(key, self.domain, vote))
            for peer, key in list(VERIFIER_KEYS.items())[:signers]
        ]
        return CertifiedManifest(manifest=manifest, block=block, certificate=assemble(votes))

    def passes(self, rounds: int = 1) -> FakeVerifier:
        """The state this many rounds without commits later."""
        for _ in range(rounds):
            beacon_shares = self.beacon_shares() if self.run_state.round else ()
            self.run_state = advance(self.run_state, self.manifest(beacon_shares=beacon_shares))
        return self


def a_fake_verifier(seed: int, **choices: Any) -> FakeVerifier:
    """The verifier at the start of a run."""
    spec = a_spec(
        seed=seed,
        nodes=tuple(NODE_KEYS),
        verifiers=tuple(VERIFIER_KEYS),
        members=a_member,
        rounds=40,
        **choices,
    )
    return FakeVerifier(funded_start(spec))


def refusals_of(members: Sequence[Callable[[], object]]) -> int:
    """How many of these calls raise."""
    count = 0
    for act in members:
        try:
            act()
        except AssayError:
            count += 1
    return count


def tally(members: Sequence[Callable[[], object]], cost: float, harm: str) -> Outcome:
    refused = refusals_of(members)
    return Outcome(
        attempts=len(members), caught=refused, succeeded=len(members) - refused, cost=cost, harm=harm
    )
