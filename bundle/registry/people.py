"""Registry people: the operators and verifiers of a run, their counted work, and their bans and faults.

Room: bundle (pure). Keys and accounts only; no names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from assay.bundle.finished import Finished
from assay.bundle.registry.document import ListedVerifier, Operator, Participants
from assay.chain.commit_statement import evm_address
from assay.ledger.journal.round_facts import RoundFacts
from assay.protocol.agreement.double_votes import signer_of
from assay.protocol.auditing.audits import AuditStatus, FaultKind
from assay.protocol.types import PeerId


def people(run: Finished, facts: Sequence[RoundFacts]) -> Participants:
    """Every operator and verifier that took part, ascending by peer."""
    accepted = Counter(commit.node for one in facts for commit in one.commits)
    unpaid = Counter(step.node for one in run.settled.values() for step in one.settlement.unpaid)
    banned, disqualified = _banned(run, facts), _disqualified(facts)
    key = {one.round: one.configuration.key for one in facts}
    verdicts = Counter(key[one.round](verdict.verifier) for one in facts for verdict in one.verdicts)
    beacon_shares = Counter(key[one.round](seat) for one in facts for seat in one.beacon_shares)
    return Participants(
        operators=tuple(
            Operator(
                peer=member.peer.hex(),
                account=evm_address(member.account),
                contributions=accepted[member.peer],
                accepted=accepted[member.peer] - unpaid[member.peer],
                banned=banned.get(member.peer),
            )
            for member in run.nodes
        ),
        verifiers=tuple(
            ListedVerifier(
                peer=member.peer.hex(),
                account=evm_address(member.account),
                verdicts=verdicts[member.peer],
                beacon_shares=beacon_shares[member.peer],
                disqualified=disqualified.get(member.peer),
            )
            for member in run.spec.judges
        ),
    )


def _banned(run: Finished, facts: Sequence[RoundFacts]) -> dict[PeerId, str]:
    """The reason why each banned node's commits were refused."""
    found = {
        audit.node: f"round {int(audit.round)}: {'false step' if audit.is_false else 'did not open it'}"
        for one in facts
        for audit in one.ruled
        if audit.ruling is AuditStatus.CONFIRMED
    }
    for link in run.links:
        for pair in link.manifest.contradictions:
            commit = pair.first.commit
            found.setdefault(commit.node, f"round {int(commit.round)}: two different commits")
    return found


def _disqualified(facts: Sequence[RoundFacts]) -> dict[PeerId, str]:
    """The first fault that is proved of each disqualified verifier."""
    found: dict[PeerId, str] = {}
    for one in facts:
        for audit in one.ruled:
            for fault in audit.faults:
                fault_text = f"round {int(audit.round)}: {fault.failing.value}"
                found.setdefault(one.configuration.key(fault.verdict.verifier), fault_text)
        for pair in one.double_votes:
            signer = signer_of(pair, one.configuration)
            found.setdefault(signer, f"round {one.round}: {FaultKind.DOUBLE_VOTED.value}")
    return found
