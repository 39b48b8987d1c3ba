"""Judgement: what docs/protocol.md makes of an ended audit and a paid epoch, said once more in another way.

For the simulation all machines are of one execution class. Whether a step is false
the simulation knows, and no verifier does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from assay.protocol.agreement.quorum import faults_tolerated
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.messages import Outcome, Verdict
from assay.protocol.params import PPM, RunSpec
from assay.protocol.types import NO_DIGEST, Digest, PeerId

JUDGED = (Outcome.MATCH, Outcome.MISMATCH)
FOUND_FALSE = (AuditStatus.CONFIRMED, AuditStatus.KNOWN_ANSWER)
FOUND_TRUE = (AuditStatus.DISMISSED, AuditStatus.LATE)


def proved_wrong(audit: Audit) -> set[PeerId]:
    """The verifiers that a decided dispute proves at fault (5.9)."""
    f = faults_tolerated(len(audit.order))
    old = [v for v in audit.verdicts[: audit.undisputed] if v.outcome is not Outcome.MATCH]
    standing = old + list(audit.verdicts[audit.undisputed :])
    mismatches = [v for v in standing if v.outcome is Outcome.MISMATCH]
    matches = [v for v in standing if v.outcome is Outcome.MATCH]
    if audit.ruling in FOUND_TRUE:
        winners, other = matches, Outcome.MISMATCH
    elif audit.ruling in FOUND_FALSE and len(mismatches) > f:
        winners, other = mismatches, Outcome.MATCH
    elif audit.ruling in FOUND_FALSE:  # it was withheld: nobody who recomputed is refuted but by sketches
        winners, other = matches, Outcome.INCONCLUSIVE
    else:
        return set()
    judged = [v for v in audit.verdicts if v.outcome in JUDGED]
    newest = audit.verdicts[audit.earlier :]
    true_sketch = _agreed((v.recomputed for v in winners), f)
    true_witness = _agreed((v.witness for v in newest if v in winners), f)
    wrong = set()
    for verdict in judged:
        is_refuted = verdict.outcome is other and len(winners) > f
        if is_refuted and other is Outcome.MATCH and verdict.recomputed == true_sketch != NO_DIGEST:
            is_refuted = audit.sketch == true_sketch  # else the node's sketch was the lie
        is_invented = true_sketch not in (NO_DIGEST, verdict.recomputed) or (
            verdict in newest and true_witness not in (NO_DIGEST, verdict.witness)
        )
        if is_refuted or is_invented:
            wrong.add(verdict.verifier)
    return wrong


def _agreed(digests: Iterable[Digest], f: int) -> Digest:
    """What more than f say."""
    said = Counter(one for one in digests if one != NO_DIGEST)
    return next((one for one, count in said.items() if count > f), NO_DIGEST)


def complaint(audit: Audit, *, is_false: bool, honest: set[PeerId]) -> str:
    """What is wrong with how an audit ended that at most f verifiers could disturb; empty if nothing is.

    Args:
        audit: Of the run's last state that holds it.
        is_false: Whether the step is false.
        honest: Verifiers and nodes that follow the rules.
    """
    if not is_false:
        is_right = audit.ruling in (AuditStatus.PASSED, AuditStatus.DISMISSED)
        return "" if is_right else f"an honest step is {audit.ruling.name}"
    if audit.ruling is AuditStatus.PASSED:
        return "" if not _judges(audit.verdicts) & honest else "a false step passed an honest auditor"
    is_right = audit.ruling in (*FOUND_FALSE, AuditStatus.SUPERSEDED)
    return "" if is_right else f"a false step is {audit.ruling.name}"


def _judges(verdicts: Iterable[Verdict]) -> set[PeerId]:
    return {one.verifier for one in verdicts}


def dearest(spec: RunSpec) -> list[int]:
    """The most that each epoch can cost (4a.2): all its steps, of all seats, each of the largest size."""
    local, prices = spec.rule.local, [0] * -(-spec.rounds // spec.money.epoch_rounds)
    step = local.steps * max(local.sequences, local.sequences_max) * spec.model.context
    for number in range(spec.rounds):
        prices[number // spec.money.epoch_rounds] += step * spec.seats
    return [tokens * spec.money.price_per_mtoken // 10**6 for tokens in prices]


def owed(spec: RunSpec, tokens: Mapping[PeerId, int]) -> tuple[int, dict[PeerId, int]]:
    """What an epoch costs in all, and what each node has of it (6), by the tokens of its paid steps."""
    whole = sum(tokens.values())
    gross = whole * spec.money.price_per_mtoken // 10**6
    share = gross * spec.money.operators_ppm // PPM
    exact = {node: divmod(share * count, whole) for node, count in tokens.items()}
    rows = {node: part for node, (part, _) in exact.items()}
    for node in sorted(exact, key=lambda node: (-exact[node][1], node))[: share - sum(rows.values())]:
        rows[node] += 1
    return gross, {node: amount for node, amount in rows.items() if amount}
