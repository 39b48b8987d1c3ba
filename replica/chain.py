"""Chain: one more certified manifest, checked and folded in, by anybody who knows the spec.

Room: replica (pure). This is the whole of a light client: it needs no training
data, no torch and no trust in who sent the link. What only a verifier can check
(updates, batches, aggregates) a quorum has signed.
"""

from __future__ import annotations

from itertools import pairwise

from protocol.errors import MalformedMessage
from protocol.finality import check_certified
from protocol.history import History, advance, may_judge, next_chain
from protocol.identity import Domain
from protocol.messages import CertifiedManifest, Manifest
from protocol.types import NO_DIGEST


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
    steps = [(s.verdict.round, s.verdict.node, s.verdict.verifier) for s in manifest.verdicts]
    need(all(a < b for a, b in pairwise(steps)), "verdicts must ascend by step and verifier")
    for signed in manifest.verdicts:
        verdict = signed.verdict
        audit = history.audits.get((verdict.round, verdict.node))
        need(
            audit is not None and may_judge(history, audit, verdict.verifier, int(manifest.round)),
            f"{verdict.verifier.hex()[:8]} may not judge round {verdict.round} of {verdict.node.hex()[:8]}",
        )
