"""Desk: a verifier of the red team's, with members that have real keys.

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
    Block,
    CertifiedManifest,
    Commit,
    Manifest,
    Reveal,
    SignedCommit,
    SignedVote,
    Vote,
    VoteKind,
)
from assay.protocol.params import Member
from assay.protocol.quorum import assemble
from assay.protocol.randomness import vrf
from assay.protocol.state_transition import History, advance, start
from assay.protocol.types import NO_DIGEST, Address, Iteration, PeerId, RoundId
from assay.redteam.attack import Outcome
from assay.redteam.run_builder import RUN_ID, a_commit, a_network, a_spec, mark
from assay.training.data.batches import batch_positions, batch_root
from assay.training.layout import layout_of
from assay.training.optimiser.momentum_root import zero_root
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
class Desk:
    """A verifier's desk in a run of three nodes, after some rounds."""

    history: History

    @property
    def domain(self) -> Domain:
        """What signatures are valid for."""
        return Domain(deployment_id=self.history.spec.deployment_id, run_id=RUN_ID)

    @property
    def rules(self) -> Rules:
        """What never changes."""
        blocks = layout_of(self.history.spec.model).blocks
        zero = zero_root(RUN_ID, self.history.spec.rule, blocks)
        return Rules(deployment=a_deployment(), domain=self.domain, zero_momentum=zero, block_count=blocks)

    @property
    def round(self) -> Round:
        """Nothing has come in yet."""
        return Round(rules=self.rules, history=self.history, state=STATE, opened_ms=0)

    def commit(self, peer: PeerId, **changes: Any) -> Commit:
        """What an honest node commits to now."""
        spec, record = self.history.spec, self.history.nodes[peer]
        positions = batch_positions(spec, peer, int(self.history.round))
        honest = a_commit(
            self.history, peer, state=STATE if int(self.history.round) % spec.state_every == 0 else NO_DIGEST,
            batch_root=batch_root(spec, positions),
            momentum_before=record.momentum if record.round >= 0 else self.rules.zero_momentum,
        )  # fmt: skip
        return replace(honest, **changes)

    def signed(self, peer: PeerId, *, key: PeerId | None = None, **changes: Any) -> SignedCommit:
        """The commit with both signatures, or with somebody else's."""
        commit, by = self.commit(peer, **changes), key or peer
        return SignedCommit(
            commit=commit,
            signature=sign(NODE_KEYS[by], self.domain, commit),
            statement=sign_commit(self.history.spec, a_deployment(), commit, hot_key(by)),
        )

    def reveals(self) -> tuple[Reveal, ...]:
        """Every verifier's share of the beacon of the round before."""
        before = RoundId(int(self.history.round) - 1)
        alpha = beacon_input(self.history.spec.deployment_id, RUN_ID, before, self.history.parent)
        return tuple(
            Reveal(run_id=RUN_ID, round=before, verifier=peer, proof=vrf.prove(bytes(key), alpha))
            for peer, key in VERIFIER_KEYS.items()
        )

    def manifest(self, **changes: Any) -> Manifest:
        """The next one, with no words about audits."""
        empty = a_network()
        empty.history = self.history
        empty.absent = set(NODE_KEYS)
        made = replace(empty.manifest(), seals=(), verdicts=(), unsealed=(), planted=())
        return replace(made, **changes)

    def link(self, manifest: Manifest, signers: int) -> CertifiedManifest:
        """The manifest as a link that so many verifiers signed."""
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

    def passes(self, rounds: int = 1) -> Desk:
        """So many rounds without commits later."""
        for _ in range(rounds):
            reveals = self.reveals() if self.history.round else ()
            self.history = advance(self.history, self.manifest(reveals=reveals))
        return self


def a_desk(seed: int, **choices: Any) -> Desk:
    """At the start of a run."""
    spec = a_spec(
        seed=seed,
        nodes=tuple(NODE_KEYS),
        verifiers=tuple(VERIFIER_KEYS),
        members=a_member,
        rounds=40,
        **choices,
    )
    return Desk(start(spec, RUN_ID))


def refusals_of(acts: Sequence[Callable[[], object]]) -> int:
    """How many of these raise."""
    count = 0
    for act in acts:
        try:
            act()
        except AssayError:
            count += 1
    return count


def tally(acts: Sequence[Callable[[], object]], cost: float, harm: str) -> Outcome:
    refused = refusals_of(acts)
    return Outcome(attempts=len(acts), caught=refused, succeeded=len(acts) - refused, cost=cost, harm=harm)
