"""Round facts: what one final manifest adds to the books, so that queries need not replay the chain.

Room: ledger (pure). Derived from the run state before and after the manifest; the
rules themselves live in protocol/state_transition.py and ledger/settlement/payouts.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from assay.ledger.settlement.payouts import Settlement
from assay.protocol.agreement.configurations import FIRST, Configuration
from assay.protocol.auditing.audits import Audit, Fault
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import CertifiedManifest, Commit, Contradiction, DoubleVote, Manifest, Verdict
from assay.protocol.run_state import RunState
from assay.protocol.types import Digest, PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """One final round, as the books store it."""

    round: int
    epoch: int  # that its commits belong to
    manifest: Digest
    aggregate: Digest
    signatures: int  # verifiers that signed its certificate
    active: int  # nodes that could have contributed
    commits: tuple[Commit, ...]
    beacon_shares: tuple[PeerId, ...]  # verifiers whose beacon share for the round before counted
    drawn: tuple[Audit, ...]
    verdicts: tuple[Verdict, ...]
    ruled: tuple[Audit, ...]  # closed by this manifest
    faults: tuple[tuple[Audit, Fault], ...]  # of verifiers, proved by this manifest
    contradictions: tuple[Contradiction, ...]  # of nodes
    double_votes: tuple[DoubleVote, ...]  # of verifiers
    settlement: Settlement | None  # of the epoch that this manifest made final
    configuration: Configuration = FIRST  # by whose keys verifiers signed what it carries


def round_facts(
    before: RunState,
    certified: CertifiedManifest,
    after: RunState,
    settlements: Mapping[int, Settlement],
) -> RoundFacts:
    """The facts of one certified manifest.

    Args:
        before: The run state that the manifest extends.
        certified: The manifest with its certificate, checked.
        after: `advance(before, certified.manifest)`.
        settlements: By epoch; the one that this manifest makes final is among them, if there is one.
    """
    manifest = certified.manifest
    ripe = after.calendar.ripe_at(int(manifest.round))
    ruled = (
        audit
        for step, audit in sorted(after.audits.items())
        if audit.has_ended and (step not in before.audits or not before.audits[step].has_ended)
    )
    return RoundFacts(
        round=int(manifest.round),
        epoch=before.epoch_of(int(manifest.round)),
        manifest=digest(manifest),
        aggregate=manifest.aggregate,
        signatures=len(certified.certificate.verifiers),
        active=len(before.active),
        commits=tuple(signed.commit for signed in manifest.commits),
        beacon_shares=_reveals(before, manifest),
        drawn=tuple(audit for step, audit in sorted(after.audits.items()) if step not in before.audits),
        verdicts=tuple(signed.verdict for signed in manifest.verdicts),
        ruled=tuple(ruled),
        faults=tuple(
            (audit, fault)
            for step, audit in sorted(after.audits.items())
            for fault in audit.faults
            if step not in before.audits or fault not in before.audits[step].faults
        ),
        contradictions=manifest.contradictions,
        double_votes=manifest.double_votes,
        settlement=None if ripe is None else settlements.get(ripe),
        configuration=before.rotation.configuration,
    )


def _reveals(before: RunState, manifest: Manifest) -> tuple[PeerId, ...]:
    """Verifiers whose beacon share for the round before counted, if that was a training round."""
    is_counted = 0 < manifest.round <= before.training_rounds
    return tuple(beacon_share.verifier for beacon_share in manifest.beacon_shares) if is_counted else ()
