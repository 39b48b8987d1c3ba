"""History: what the finalised chain says, as a fold that every party computes alike.

Room: protocol (pure). `advance(history, manifest)` takes one final manifest after the
other; who may train, which audits are open, how they ended and which steps earned
money all follow from it (`audits` has the rules of a single one). The ledger, the
payouts and the slashes are functions of this and of the EVM chain's events, of nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from assay.protocol import audits as rules
from assay.protocol.audits import Audit, Fault, Ruling
from assay.protocol.draws import audit_rate_ppm, audit_seed, auditors, beacon_input, is_drawn
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import (
    Appraised,
    Backing,
    Commit,
    Contradiction,
    Manifest,
    Planted,
    Unsealed,
    Verdict,
    VerdictSeal,
)
from assay.protocol.params import PPM, RunSpec
from assay.protocol.quorum import faults_tolerated, quorum
from assay.protocol.randomness.drand import randomness
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId

BACKING_PAUSE = 64  # rounds between two words of one verifier on one node's stake
BACKING_ROUNDS = 16  # for which such a word may wait for a manifest
BEACON_PAUSE = 16  # rounds without a share of the beacon, and its pay, for whose share was missing
StepId = tuple[RoundId, PeerId]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """What the chain knows of one node."""

    momentum: Digest = NO_DIGEST  # root after its last accepted step; zero before the first
    round: int = -1  # of that step
    accepted: int = 0
    clean: int = 0  # audits passed in a row, since it was last on probation
    leans: frozenset[PeerId] = frozenset()  # verifiers who say so since it was last on probation
    exec_class: Digest = NO_DIGEST  # of its last accepted step
    fault_round: int = -1  # of the earliest proven fault; from then on nothing is paid
    has_contradicted: bool = False  # that fault is two commits for one round

    @property
    def barred(self) -> bool:
        """Its commits are taken no more."""
        return self.fault_round >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierRecord:
    """What the chain knows of one verifier."""

    fault_round: int = -1  # earliest step on which a committee proved it wrong
    judged: int = 0  # verdicts the chain carries
    silent: int = 0  # verdicts it sealed and did not open in time

    @property
    def is_excluded(self) -> bool:
        """It is drawn no more."""
        return self.fault_round >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The fold's state after `round` manifests."""

    spec: RunSpec
    run_id: Digest
    round: RoundId  # of the next manifest
    parent: Digest
    chain: Digest
    nodes: Mapping[PeerId, NodeRecord]
    verifiers: Mapping[PeerId, VerifierRecord]
    audits: Mapping[StepId, Audit]  # of epochs not yet ripe for settlement
    steps: Mapping[StepId, int] = field(default_factory=dict)  # accepted tokens, same epochs
    reveals: Mapping[int, tuple[PeerId, ...]] = field(default_factory=dict)  # by round they are for
    away: Mapping[PeerId, int] = field(default_factory=dict)  # from which round on it is asked again
    last_commits: tuple[Commit, ...] = ()
    backings: Mapping[tuple[PeerId, PeerId], Backing] = field(default_factory=dict)  # (node, verifier)
    drand_next: int = 0  # the drand round that the last manifest named; 0: none
    appraised: Mapping[tuple[PeerId, PeerId], Appraised] = field(default_factory=dict)  # (node, verifier)

    @property
    def is_complete(self) -> bool:
        """Nothing can follow: training, audits and disputes are over."""
        return self.round > self.spec.last_round

    @property
    def is_training(self) -> bool:
        """The next manifest takes commits."""
        return self.round < self.spec.rounds

    @property
    def active(self) -> tuple[PeerId, ...]:
        """Nodes whose commits the next manifest may take, ascending."""
        if not self.is_training:
            return ()
        return tuple(m.peer for m in self.spec.nodes if not self.nodes[m.peer].barred)

    @property
    def beacon(self) -> tuple[PeerId, ...]:
        """Verifiers who must share in the beacon that the next manifest carries, ascending.

        Whose share was missing is not asked for a while: nobody chooses, round by round, whether it counts.
        """
        peers = self.spec.verifier_peers
        present = tuple(peer for peer in peers if self.away.get(peer, 0) <= self.round)
        return present if len(present) >= quorum(len(peers)) else peers

    @property
    def excluded(self) -> tuple[PeerId, ...]:
        """Verifiers at fault, ascending: no later step draws them."""
        return tuple(sorted(peer for peer, record in self.verifiers.items() if record.is_excluded))

    def discount_ppm(self, node: PeerId) -> int:
        """What the next draw multiplies this node's adaptive rate with: what a quorum of verifiers grants.

        Fewer than a quorum of liars grant nothing, and fewer than a quorum who refuse cost nothing.
        """
        known = self.spec.verifier_peers
        words = (self.appraised.get((node, verifier)) for verifier in known)
        granted = sorted(int(one.discount) for one in words if one is not None and self.is_fresh(one))
        need = quorum(len(known))
        return granted[need - 1] if len(granted) >= need else PPM

    def is_backed(self, node: PeerId) -> bool:
        """Whether no more than f verifiers say that stake has left from behind this node."""
        known = self.spec.verifier_peers
        words = (self.backings.get((node, verifier)) for verifier in known)
        return sum(one is not None and not one.is_whole for one in words) <= faults_tolerated(len(known))

    def rate_ppm(self, node: PeerId) -> int:
        """The probability with which the next draw audits this node's step, in millionths."""
        if not self.is_backed(node):
            return PPM
        return audit_rate_ppm(self.spec.audit, self.nodes[node].clean, self.discount_ppm(node))

    def is_fresh(self, word: Appraised) -> bool:
        """Whether the evidence behind this word still counts when the next manifest is made."""
        return self.round <= word.round + self.spec.audit.attested_rounds

    def epoch_of(self, round_id: int) -> int:
        """The settlement a round belongs to."""
        return round_id // self.spec.money.epoch_rounds


def start(spec: RunSpec, run_id: Digest) -> History:
    """Before the first manifest."""
    return History(
        spec=spec,
        run_id=run_id,
        round=RoundId(0),
        parent=digest(spec),
        chain=Digest(hashlib.sha256(b"assay/chain/1" + run_id + digest(spec)).digest()),
        nodes={member.peer: NodeRecord() for member in spec.nodes},
        verifiers={member.peer: VerifierRecord() for member in spec.verifiers},
        audits={},
    )


def next_chain(chain: Digest, commits: tuple[Commit, ...], aggregate: Digest) -> Digest:
    """H(chain | ids | update digests | aggregate): binds the parameters without hashing them."""
    body = b"".join(commit.node + commit.update for commit in commits)
    return Digest(
        hashlib.sha256(b"assay/chain/1" + chain + len(commits).to_bytes(4, "big") + body + aggregate).digest()
    )


def may_seal(history: History, audit: Audit, verifier: PeerId) -> bool:
    """Whether the next manifest may carry this verifier's sealed verdict."""
    return rules.may_seal(history.spec.audit, audit, verifier, int(history.round))


def may_reveal(history: History, audit: Audit, verdict: Verdict) -> bool:
    """Whether the next manifest may carry this verdict."""
    may_say = history.spec.audit.limits != NO_DIGEST or (
        verdict.outcome not in rules.RECOMPUTED or verdict.exec_class == audit.commit.exec_class
    )
    return may_say and rules.may_reveal(audit, verdict, int(history.round))


def may_appraise(history: History, word: Appraised) -> bool:
    """Whether the next manifest may carry this word: on young evidence of a node in the run.

    A verifier's next word on a node may come when half of the last one's life is over: no node can
    crowd the others out of manifests by showing evidence in every round.
    """
    if history.spec.audit.attestation == NO_DIGEST or word.run_id != history.run_id:
        return False
    if word.node not in history.active or word.verifier not in history.spec.verifier_peers:
        return False
    life = history.spec.audit.attested_rounds
    is_young = word.round < history.round <= word.round + (life + 1) // 2
    known = history.appraised.get((word.node, word.verifier))
    return is_young and (known is None or known.round + max(life // 2, 1) <= word.round)


def may_back(history: History, word: Backing) -> bool:
    """Whether the next manifest may carry this word: of a verifier that saw a node's stake change lately.

    A verifier's first word on a node is that stake has left; each next one says otherwise than the last, and
    comes `BACKING_PAUSE` rounds later: no liar can crowd the others out of manifests by changing its mind.
    """
    if word.run_id != history.run_id or word.verifier not in history.spec.verifier_peers:
        return False
    if word.node not in history.nodes or history.nodes[word.node].barred:
        return False
    known = history.backings.get((word.node, word.verifier))
    if known is None:
        is_news = not word.is_whole
    else:
        is_news = word.is_whole != known.is_whole and known.round + BACKING_PAUSE <= word.round
    return is_news and word.round < history.round <= word.round + BACKING_ROUNDS


def may_contradict(history: History, pair: Contradiction) -> bool:
    """Whether the next manifest may carry this pair, its signatures aside.

    Two different commits of one node for one round of this run, in the order of their digests, of a
    node that is not barred yet, while pay for that round can still be kept back.
    """
    first, second = pair.first.commit, pair.second.commit
    record = history.nodes.get(first.node)
    is_pair = (first.run_id, first.round, first.node) == (second.run_id, second.round, second.node)
    return (
        is_pair
        and first.run_id == history.run_id
        and digest(first) < digest(second)
        and record is not None
        and not record.barred
        and history.round - history.spec.closing_rounds <= first.round <= history.round
    )


def awaited(history: History) -> tuple[StepId, ...]:
    """Audits for which the next manifest is the last chance of a word that is missing."""
    return tuple(
        step
        for step, audit in sorted(history.audits.items())
        if any(rules.awaits(history.spec.audit, audit, int(history.round)))
    )


def advance(history: History, manifest: Manifest, name: Digest | None = None) -> History:
    """The history with one more final manifest.

    Args:
        history: Where the fold stands.
        manifest: Final and checked: certified, next round, linked to `history.parent`.
        name: Its digest, where only a part of it is given.

    Returns:
        The new history; the old one is not modified.
    """
    assert manifest.round == history.round and manifest.parent == history.parent
    now = int(manifest.round)
    spec, nodes, verifiers = history.spec, dict(history.nodes), dict(history.verifiers)
    audits, steps, reveals = _prune(history, now)
    away = dict(history.away)
    if now:
        shared = {reveal.verifier for reveal in manifest.reveals}
        away |= {peer: now + 1 + BEACON_PAUSE for peer in history.beacon if peer not in shared}
        if now <= spec.rounds:
            reveals[now - 1] = tuple(reveal.verifier for reveal in manifest.reveals)
        seed = beacon_of(history, manifest)
        for step, audit in audits.items():
            audits[step] = rules.draw_second_look(audit, now, seed, spec.audit)
        audits |= drawn(history, manifest, seed)

    for pair in manifest.contradictions:
        nodes[pair.first.commit.node] = _contradicted(nodes[pair.first.commit.node], pair)
    for step, words in _words(manifest).items():
        audits[step] = rules.hear(
            audits[step], now, words.seals, words.verdicts, words.unsealed, is_planted=bool(words.planted)
        )
    here = digest(manifest) if name is None else name
    for step, audit in sorted(audits.items()):
        after = rules.rule(audit, now, spec, here, is_barred=nodes[audit.node].barred)
        audits[step] = after
        if after.ruling is not audit.ruling:
            nodes[after.node] = _ruled(nodes[after.node], after)
        for verifier in set(after.silent) - set(audit.silent):
            verifiers[verifier] = replace(verifiers[verifier], silent=verifiers[verifier].silent + 1)
        for fault in after.faults[len(audit.faults) :]:
            verifiers[fault.verdict.verifier] = _failed(verifiers[fault.verdict.verifier], fault)
    for signed_verdict in manifest.verdicts:
        verifier = signed_verdict.verdict.verifier
        verifiers[verifier] = replace(verifiers[verifier], judged=verifiers[verifier].judged + 1)
        if signed_verdict.verdict.leans:
            node = signed_verdict.verdict.node
            nodes[node] = _leaning(nodes[node], verifier, faults_tolerated(len(verifiers)))

    appraised = {key: word for key, word in history.appraised.items() if history.is_fresh(word)}
    for signed_word in manifest.appraised:
        appraised[(signed_word.appraised.node, signed_word.appraised.verifier)] = signed_word.appraised
    backings = dict(history.backings)
    for signed_backing in manifest.backings:
        backings[(signed_backing.backing.node, signed_backing.backing.verifier)] = signed_backing.backing
    if manifest.backings:
        heard = replace(history, backings=backings)
        for node in nodes:  # less stands behind it than was agreed: trust begins again
            if history.is_backed(node) and not heard.is_backed(node):
                nodes[node] = replace(nodes[node], clean=0)
    for signed_commit in manifest.commits:
        commit = signed_commit.commit
        steps[(commit.round, commit.node)] = commit.tokens
        record = nodes[commit.node]
        if record.accepted and record.exec_class != commit.exec_class:  # another machine: trust begins again
            record = replace(record, clean=0, leans=frozenset())
            appraised = {key: word for key, word in appraised.items() if key[0] != commit.node}
        nodes[commit.node] = replace(
            record,
            momentum=commit.momentum_after,
            round=now,
            accepted=record.accepted + 1,
            exec_class=commit.exec_class,
        )

    commits = tuple(signed_commit.commit for signed_commit in manifest.commits)
    return replace(
        history,
        round=RoundId(now + 1),
        parent=here,
        chain=manifest.chain,
        nodes=nodes,
        verifiers=verifiers,
        audits=audits,
        steps=steps,
        reveals=reveals,
        away=away,
        last_commits=commits,
        backings=backings,
        drand_next=manifest.drand_next,
        appraised=appraised,
    )


def beacon_of(history: History, manifest: Manifest) -> Digest:
    """The seed that what `manifest` reveals makes of the manifest before it."""
    before = RoundId(int(manifest.round) - 1)
    alpha = beacon_input(history.spec.deployment_id, history.run_id, before, manifest.parent)
    shares = [(reveal.verifier, reveal.proof) for reveal in manifest.reveals]
    return audit_seed(alpha, shares, drand=randomness(manifest.drand))


def drawn(history: History, manifest: Manifest, seed: Digest) -> dict[StepId, Audit]:
    """The audits that `manifest` opens, of the steps of the manifest before it."""
    judges = judges_of(history.spec, manifest.excluded)
    return {
        (commit.round, commit.node): Audit(
            round=commit.round,
            node=commit.node,
            commit=commit,
            seed=seed,
            order=auditors(seed, commit.node, judges),
        )
        for commit in history.last_commits
        if is_drawn(seed, commit.node, history.rate_ppm(commit.node))
    }


def judges_of(spec: RunSpec, excluded: Sequence[PeerId]) -> tuple[PeerId, ...]:
    """Who may audit: verifiers not at fault, or all if those are fewer than a quorum.

    Below that, a few liars could be a committee of their own.
    """
    left = tuple(peer for peer in spec.verifier_peers if peer not in set(excluded))
    return left if len(left) >= quorum(len(spec.verifiers)) else spec.verifier_peers


@dataclass(slots=True)
class _Words:
    """What one manifest says about one audit."""

    seals: list[VerdictSeal] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    unsealed: Unsealed | None = None
    planted: Planted | None = None


def _words(manifest: Manifest) -> dict[StepId, _Words]:
    found: dict[StepId, _Words] = {}
    for sealed in manifest.seals:
        found.setdefault((sealed.seal.round, sealed.seal.node), _Words()).seals.append(sealed.seal)
    for signed in manifest.verdicts:
        verdict = signed.verdict
        found.setdefault((verdict.round, verdict.node), _Words()).verdicts.append(verdict)
    for unsealed in manifest.unsealed:
        found.setdefault((unsealed.round, unsealed.node), _Words()).unsealed = unsealed
    for planted in manifest.planted:
        found.setdefault((planted.round, planted.node), _Words()).planted = planted
    return found


def _ruled(record: NodeRecord, audit: Audit) -> NodeRecord:
    """What a change of ruling means for the node."""
    if audit.ruling in (Ruling.CLEARED, Ruling.DISMISSED):
        return replace(record, clean=record.clean + 1)
    if audit.ruling is Ruling.UPHELD:
        return replace(record, clean=0, fault_round=int(audit.round))
    return record


def _leaning(record: NodeRecord, verifier: PeerId, f: int) -> NodeRecord:
    """On probation again once more verifiers than can all be liars say that it leans; no fault."""
    said = record.leans | {verifier}
    return replace(record, leans=said) if len(said) <= f else replace(record, leans=frozenset(), clean=0)


def _contradicted(record: NodeRecord, pair: Contradiction) -> NodeRecord:
    return replace(record, clean=0, fault_round=int(pair.first.commit.round), has_contradicted=True)


def _failed(record: VerifierRecord, fault: Fault) -> VerifierRecord:
    earliest = int(fault.verdict.round)
    return replace(record, fault_round=min(earliest, record.fault_round) if record.is_excluded else earliest)


def _prune(
    history: History, now: int
) -> tuple[dict[StepId, Audit], dict[StepId, int], dict[int, tuple[PeerId, ...]]]:
    """Audits, steps and reveals without the epochs that were ripe before this manifest."""

    def kept(round_id: int) -> bool:
        return now <= history.spec.settled_at(history.epoch_of(round_id)) + 1

    return (
        {step: audit for step, audit in history.audits.items() if kept(step[0])},
        {step: tokens for step, tokens in history.steps.items() if kept(step[0])},
        {round_id: peers for round_id, peers in history.reveals.items() if kept(round_id)},
    )
