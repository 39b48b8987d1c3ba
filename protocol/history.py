"""History: what the finalised chain says, as a fold that every party computes alike.

Room: protocol (pure). `advance(spec, history, manifest)` takes one final manifest
after the other; who may train, which audits are open, how they ended and which
steps earned money all follow from it. The ledger, the payouts and the slashes are
functions of this and of the EVM chain's events, of nothing else.

    an audit:  OPEN --match--> CLEARED
                 |--no verdict in time--> LAPSED (paid: the node did its part)
                 '--mismatch or withheld--> ALARM --quorum against--> UPHELD (slash, barred, epoch unpaid)
                                              |--enough matches--> DISMISSED
                                              '--no quorum in time--> LAPSED (this step unpaid, no slash)
    an UPHELD audit makes the node's other open audits MOOT: one slash, and nothing from the
    faulty step on is paid
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from protocol.codec import digest
from protocol.draws import audit_rate_ppm, audit_seed, auditors, beacon_input, is_drawn
from protocol.messages import Commit, Manifest, Outcome, Verdict
from protocol.params import RunSpec
from protocol.quorum import faults_tolerated, quorum
from protocol.types import NO_DIGEST, Digest, PeerId, RoundId

COMMITTEE_MIN = 5
StepId = tuple[RoundId, PeerId]


class Ruling(enum.Enum):
    """How an audit stands."""

    OPEN = "open"
    ALARM = "alarm"
    CLEARED = "cleared"
    DISMISSED = "dismissed"
    UPHELD = "upheld"
    LAPSED = "lapsed"
    MOOT = "moot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """One drawn step, from the draw to the ruling."""

    round: RoundId
    node: PeerId
    commit: Commit
    seed: Digest
    order: tuple[PeerId, ...]  # verifiers, most responsible first
    verdicts: tuple[Verdict, ...] = ()
    ruling: Ruling = Ruling.OPEN
    alarm_round: int = -1  # manifest that carried the first adverse verdict
    closed_round: int = -1

    @property
    def committee(self) -> tuple[PeerId, ...]:
        """Who decides a dispute: so many that liars alone are never a quorum of them."""
        size = COMMITTEE_MIN
        while quorum(size) <= faults_tolerated(len(self.order)):
            size += 1
        return self.order[:size]

    @property
    def is_open(self) -> bool:
        """More verdicts can still change the ruling."""
        return self.ruling in (Ruling.OPEN, Ruling.ALARM)

    @property
    def adverse(self) -> tuple[Verdict, ...]:
        """Verdicts against the node, in the order the chain took them."""
        return tuple(v for v in self.verdicts if v.outcome in (Outcome.MISMATCH, Outcome.WITHHELD))

    @property
    def offence_id(self) -> Digest:
        """Names the offence, whoever reports it."""
        return Digest(hashlib.sha256(b"assay/offence/1" + digest(self.commit)).digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """What the chain knows of one node."""

    momentum: Digest = NO_DIGEST  # root after its last accepted step; zero before the first
    round: int = -1  # of that step
    accepted: int = 0
    clean: int = 0  # audits passed in a row
    fault_round: int = -1  # of the earliest upheld fault; from then on nothing is paid

    @property
    def barred(self) -> bool:
        """Its commits are taken no more."""
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
    audits: Mapping[StepId, Audit]  # of epochs not yet ripe for settlement
    steps: Mapping[StepId, int] = field(default_factory=dict)  # accepted tokens, same epochs
    reveals: Mapping[int, tuple[PeerId, ...]] = field(default_factory=dict)  # by round they are for
    last_commits: tuple[Commit, ...] = ()

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
        audits={},
    )


def next_chain(chain: Digest, commits: tuple[Commit, ...], aggregate: Digest) -> Digest:
    """H(chain | ids | update digests | aggregate): binds the parameters without hashing them."""
    body = b"".join(commit.node + commit.update for commit in commits)
    return Digest(
        hashlib.sha256(b"assay/chain/1" + chain + len(commits).to_bytes(4, "big") + body + aggregate).digest()
    )


def may_judge(history: History, audit: Audit, verifier: PeerId, at_round: int) -> bool:
    """Whether the manifest of `at_round` may carry this verifier's verdict on this audit."""
    if not audit.is_open or any(verdict.verifier == verifier for verdict in audit.verdicts):
        return False
    rules = history.spec.audit
    if audit.ruling is Ruling.ALARM:
        return verifier in audit.committee and at_round <= audit.alarm_round + rules.dispute_rounds
    if at_round > audit.round + rules.audit_rounds or verifier not in audit.order:
        return False
    turns_over = (at_round - audit.round - 2) // rules.turn_rounds
    return audit.order.index(verifier) <= max(turns_over, 0)


def verdicts_due(history: History, at_round: int) -> tuple[StepId, ...]:
    """Open audits whose last chance is the manifest of `at_round`: a leader waits for these."""
    rules = history.spec.audit
    return tuple(
        step
        for step, audit in sorted(history.audits.items())
        if (audit.ruling is Ruling.OPEN and at_round >= audit.round + rules.audit_rounds)
        or (audit.ruling is Ruling.ALARM and at_round >= audit.alarm_round + rules.dispute_rounds)
    )


def advance(history: History, manifest: Manifest) -> History:
    """The history with one more final manifest.

    Args:
        history: Where the fold stands.
        manifest: Final and checked: certified, next round, linked to `history.parent`.

    Returns:
        The new history; the old one is not modified.
    """
    assert manifest.round == history.round and manifest.parent == history.parent
    now = int(manifest.round)
    spec, nodes = history.spec, dict(history.nodes)
    audits, steps, reveals = _prune(history, now)
    if history.last_commits:
        reveals[now - 1] = tuple(reveal.verifier for reveal in manifest.reveals)
        alpha = beacon_input(spec.deployment_id, history.run_id, RoundId(now - 1), manifest.parent)
        seed = audit_seed(alpha, [(reveal.verifier, reveal.proof) for reveal in manifest.reveals])
        for commit in history.last_commits:
            if is_drawn(seed, commit.node, audit_rate_ppm(spec.audit, nodes[commit.node].clean)):
                order = auditors(seed, commit.node, spec.verifier_peers)
                audits[(commit.round, commit.node)] = Audit(
                    round=commit.round, node=commit.node, commit=commit, seed=seed, order=order
                )

    for signed in manifest.verdicts:
        step = (signed.verdict.round, signed.verdict.node)
        audits[step] = _judge(audits[step], signed.verdict, now)
    for step, audit in sorted(audits.items()):
        closed = _rule(audit, now, spec, nodes[audit.node])
        audits[step] = closed
        if closed.ruling is audit.ruling:
            continue
        record = nodes[closed.node]
        if closed.ruling in (Ruling.CLEARED, Ruling.DISMISSED):
            nodes[closed.node] = replace(record, clean=record.clean + 1)
        elif closed.ruling is Ruling.UPHELD:
            nodes[closed.node] = replace(record, clean=0, fault_round=int(closed.round))

    for signed_commit in manifest.commits:
        commit = signed_commit.commit
        steps[(commit.round, commit.node)] = commit.tokens
        record = nodes[commit.node]
        nodes[commit.node] = replace(
            record, momentum=commit.momentum_after, round=now, accepted=record.accepted + 1
        )

    commits = tuple(signed_commit.commit for signed_commit in manifest.commits)
    return replace(
        history,
        round=RoundId(now + 1),
        parent=digest(manifest),
        chain=manifest.chain,
        nodes=nodes,
        audits=audits,
        steps=steps,
        reveals=reveals,
        last_commits=commits,
    )


def _judge(audit: Audit, verdict: Verdict, now: int) -> Audit:
    judged = replace(audit, verdicts=(*audit.verdicts, verdict))
    if audit.ruling is Ruling.OPEN and verdict.outcome in (Outcome.MISMATCH, Outcome.WITHHELD):
        return replace(judged, ruling=Ruling.ALARM, alarm_round=now)
    return judged


def _rule(audit: Audit, now: int, spec: RunSpec, node: NodeRecord) -> Audit:
    """Close the audit if its verdicts or its time suffice, or the node is out already."""
    if audit.is_open and node.barred:
        return replace(audit, ruling=Ruling.MOOT, closed_round=now)
    if audit.ruling is Ruling.OPEN:
        if any(verdict.outcome is Outcome.MATCH for verdict in audit.verdicts):
            return replace(audit, ruling=Ruling.CLEARED, closed_round=now)
        if now >= audit.round + spec.audit.audit_rounds:
            return replace(audit, ruling=Ruling.LAPSED, closed_round=now)
    if audit.ruling is Ruling.ALARM:
        need, judges = quorum(len(audit.committee)), set(audit.committee)
        matches = sum(v.outcome is Outcome.MATCH for v in audit.verdicts if v.verifier in judges)
        if sum(verdict.verifier in judges for verdict in audit.adverse) >= need:
            return replace(audit, ruling=Ruling.UPHELD, closed_round=now)
        if matches > len(audit.committee) - need:
            return replace(audit, ruling=Ruling.DISMISSED, closed_round=now)
        if now >= audit.alarm_round + spec.audit.dispute_rounds:
            return replace(audit, ruling=Ruling.LAPSED, closed_round=now)
    return audit


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
