"""Chain: one more certified manifest, checked and folded in, by anybody who knows the spec.

Room: participant (pure). This is the whole of a light client: it needs no training
data, no torch and no trust in who sent the link. What only a verifier can check
(updates, batches, aggregates) a quorum has signed.
"""

from __future__ import annotations

from itertools import pairwise

from assay.protocol import audits
from assay.protocol.audits import Audit
from assay.protocol.commitments import check_planted, check_unsealed
from assay.protocol.errors import MalformedMessage
from assay.protocol.finality import check_certified
from assay.protocol.identity import Domain
from assay.protocol.messages import CertifiedManifest, Manifest, Outcome
from assay.protocol.state_transition import (
    History,
    advance,
    may_appraise,
    may_back,
    may_contradict,
    may_reveal,
    next_chain,
)
from assay.protocol.types import NO_DIGEST, PeerId, RoundId


def extend(history: History, certified: CertifiedManifest) -> History:
    """The history with one more link.

    Raises:
        MalformedMessage: it does not extend this history, or its parts disagree.
        PeerFault: a signature of its certificate does not verify.
    """
    check_place(history, certified.manifest)
    domain = Domain(history.spec.deployment_id, history.run_id)
    check_certified(certified, domain, history.spec.verifier_peers)
    return advance(history, certified.manifest)


def check_place(history: History, manifest: Manifest) -> None:
    """Do nothing if a manifest's links, order and members fit the history it extends.

    Raises:
        MalformedMessage: which part does not fit.
    """

    def need(holds: bool, words: str) -> None:
        if not holds:
            raise MalformedMessage(f"manifest of round {manifest.round}: {words}")

    need(manifest.run_id == history.run_id, "is of another run")
    need(manifest.round == history.round, f"expected round {history.round}")
    need(manifest.parent == history.parent, "does not extend the manifest before")
    need(not history.is_complete, "the run is complete")
    commits = tuple(signed.commit for signed in manifest.commits)
    need(all(a.node < b.node for a, b in pairwise(commits)), "commits must ascend by node, one each")
    active = set(history.active)
    need(all(c.node in active for c in commits), "carries a commit of a node that may not train")
    need(all(c.round == history.round for c in commits), "carries a commit of another round")
    need(manifest.aggregate == NO_DIGEST or bool(commits), "has an aggregate of no commits")
    need(
        manifest.chain == next_chain(history.chain, commits, manifest.aggregate), "the chain digest is wrong"
    )
    reveals = manifest.reveals
    need(all(a.verifier < b.verifier for a, b in pairwise(reveals)), "reveals must ascend by verifier")
    known = set(history.spec.verifier_peers)
    need(all(r.verifier in known for r in reveals), "carries a reveal of a stranger")
    is_used = history.spec.audit.drand.is_used
    need(not manifest.drand or bool(history.drand_next), "carries a drand round that its parent did not name")
    need(is_used or not manifest.drand_next, "names a drand round in a run without them")
    need(manifest.excluded == history.excluded, "names other verifiers than those at fault")
    pairs = manifest.contradictions
    nodes = [pair.first.commit.node for pair in pairs]
    need(all(a < b for a, b in pairwise(nodes)), "contradictions must ascend by node, one each")
    for pair in pairs:
        who = pair.first.commit.node.hex()[:8]
        need(
            may_contradict(history, pair),
            f"says that {who} contradicted itself, which its two commits do not",
        )
    words = [one.appraised for one in manifest.appraised]
    order = [(word.node, word.verifier) for word in words]
    need(all(a < b for a, b in pairwise(order)), "appraisals must ascend by node and verifier")
    for word in words:
        who = f"{word.verifier.hex()[:8]} on the evidence of {word.node.hex()[:8]}"
        need(may_appraise(history, word), f"carries a word of {who}, which may not come now")
    stakes = [one.backing for one in manifest.backings]
    order = [(word.node, word.verifier) for word in stakes]
    need(all(a < b for a, b in pairwise(order)), "words on stake must ascend by node and verifier")
    for stake in stakes:
        who = f"{stake.verifier.hex()[:8]} on the stake of {stake.node.hex()[:8]}"
        need(may_back(history, stake), f"carries a word of {who}, which may not come now")
    check_words(history, manifest)


def check_words(history: History, manifest: Manifest) -> None:
    """Do nothing if everything a manifest says about audits may be said now, and proves what it claims.

    Signatures are not checked here.

    Raises:
        MalformedMessage: which word does not fit.
    """

    def need(holds: bool, words: str) -> None:
        if not holds:
            raise MalformedMessage(f"manifest of round {manifest.round}: {words}")

    at, rules = int(manifest.round), history.spec.audit

    def audit_of(round_id: RoundId, node: PeerId) -> Audit:
        audit = history.audits.get((round_id, node))
        need(audit is not None, f"speaks of round {round_id} of {node.hex()[:8]}, which is not audited")
        assert audit is not None
        return audit

    sealed = [(s.seal.round, s.seal.node, s.seal.verifier) for s in manifest.seals]
    need(all(a < b for a, b in pairwise(sealed)), "seals must ascend by step and verifier")
    for round_id, node, verifier in sealed:
        need(
            audits.may_seal(rules, audit_of(round_id, node), verifier, at),
            f"{verifier.hex()[:8]} may not seal a verdict on round {round_id} of {node.hex()[:8]}",
        )
    steps = [(s.verdict.round, s.verdict.node, s.verdict.verifier) for s in manifest.verdicts]
    need(all(a < b for a, b in pairwise(steps)), "verdicts must ascend by step and verifier")
    for signed in manifest.verdicts:
        verdict = signed.verdict
        need(
            may_reveal(history, audit_of(verdict.round, verdict.node), verdict),
            f"{verdict.verifier.hex()[:8]} may not judge round {verdict.round} of {verdict.node.hex()[:8]}",
        )
        is_fit = (
            verdict.outcome is Outcome.MATCH
            and verdict.exec_class != audit_of(verdict.round, verdict.node).commit.exec_class
        )
        need(
            is_fit or not verdict.leans,
            f"says that {verdict.node.hex()[:8]} leans, which only a match between classes can show",
        )
    for one in manifest.seals:  # a seal from before an alarm must not bind its verifier after it
        pattern = audit_of(one.seal.round, one.seal.node).pattern
        need(one.seal.pattern == pattern, f"carries a seal on round {one.seal.round} of another hearing")
    opened = [(one.round, one.node) for one in manifest.unsealed]
    need(all(a < b for a, b in pairwise(opened)), "opened seals must ascend by step")
    for unsealed in manifest.unsealed:
        audit = audit_of(unsealed.round, unsealed.node)
        need(audits.may_unseal(audit, at), f"opens the seal of round {unsealed.round} at the wrong time")
        check_unsealed(unsealed, audit.commit, audit.segment)
    shown = [(one.round, one.node) for one in manifest.planted]
    need(all(a < b for a, b in pairwise(shown)), "planted faults must ascend by step")
    for planted in manifest.planted:
        audit = audit_of(planted.round, planted.node)
        need(planted.run_id == history.run_id, "carries a planted fault of another run")
        need(audits.may_plant(rules, audit, at), f"names a fault of round {planted.round} at the wrong time")
        check_planted(planted, rules.canaries, rules.canary_count)
