"""Judgement: what docs/protocol.md makes of an ended audit and a paid epoch, said once more in another way.

For the simulation all machines are of one execution class. Whether a step is false
the simulation knows, and no verifier does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.messages import Outcome, Verdict
from assay.protocol.params import PPM, AuditSpec, RunSpec
from assay.protocol.types import NO_DIGEST, Digest, PeerId

JUDGED = (Outcome.MATCH, Outcome.MISMATCH)
FOUND_FALSE = (AuditStatus.CONFIRMED, AuditStatus.KNOWN_ANSWER)
FOUND_TRUE = (AuditStatus.DISMISSED, AuditStatus.LATE)


def may_judge(rules: AuditSpec, audit: Audit, at: int) -> tuple[PeerId, ...]:
    """The verifiers whose verdict commitment the manifest of `at` may carry, of an open audit (5.2, 5.4)."""
    useless = {one.verifier for one in audit.verdicts if one.outcome is Outcome.INCONCLUSIVE}
    wanted = (audit.auditors_wanted or 1) + len(useless) + len(audit.silent)
    given = {one.verifier for one in audit.commitments} | _judges(audit.verdicts)
    if len(audit.commitments) >= wanted or audit.open_from >= 0 or at >= audit.round + rules.audit_rounds:
        return ()
    turns = max(at - int(audit.round) - 2, 0) // rules.takeover_rounds
    return tuple(one for one in audit.order[: wanted + turns] if one not in given)


def proved_wrong(audit: Audit, f: int) -> set[PeerId]:
    """The verifiers that a decided dispute proves at fault (5.9), of which at most f lie."""
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


def complaint(audit: Audit, *, is_false: bool, honest: set[PeerId], last: int | None = None) -> str:
    """What is wrong with how an audit ended that at most f verifiers could disturb; empty if nothing is.

    Args:
        audit: Of the run's last state that holds it.
        is_false: Whether the step is false.
        honest: Verifiers and nodes that follow the rules.
        last: Of a known-answer task, the last manifest in which its node may show that it is one (5.10).
    """
    if last is not None:
        could_be_shown = audit.ruling is not AuditStatus.PASSED or audit.closed_round < last
        is_right = audit.ruling is AuditStatus.KNOWN_ANSWER and audit.is_known_answer
        return f"a known-answer task is {audit.ruling.name}" if could_be_shown and not is_right else ""
    if not is_false:
        is_right = audit.ruling in (AuditStatus.PASSED, AuditStatus.DISMISSED)
        return "" if is_right else f"an honest step is {audit.ruling.name}"
    if audit.ruling is AuditStatus.PASSED:
        return "" if not _judges(audit.verdicts) & honest else "a false step passed an honest auditor"
    is_right = audit.ruling in (*FOUND_FALSE, AuditStatus.SUPERSEDED)
    return "" if is_right else f"a false step is {audit.ruling.name}"


def _judges(verdicts: Iterable[Verdict]) -> set[PeerId]:
    return {one.verifier for one in verdicts}


def keepers(audit: Audit, f: int) -> tuple[Digest, set[PeerId]]:
    """The opening that is kept of an ended audit, and the seats whose holders keep it (5.3); or nothing."""
    named = {(one.verifier, one.opening): None for one in audit.verdicts if one.opening != NO_DIGEST}
    votes = Counter(opening for _, opening in named)
    if not votes:
        return NO_DIGEST, set()
    kept = max(votes, key=votes.__getitem__)  # of several the first
    seats = {verifier for verifier, opening in named if opening == kept}
    for verifier in audit.order:
        if len(seats) <= f:
            seats.add(verifier)
    return kept, seats


def dearest(spec: RunSpec) -> list[int]:
    """The most that each epoch can cost (4a.2): all its steps, of all seats, each of the largest size."""
    local, prices = spec.rule.local, [0] * -(-spec.rounds // spec.money.epoch_rounds)
    step = local.steps * max(local.sequences, local.sequences_max) * spec.model.context
    for number in range(spec.rounds):
        prices[number // spec.money.epoch_rounds] += step * spec.seats
    return [tokens * spec.money.price_per_mtoken // 10**6 for tokens in prices]


def owed(
    spec: RunSpec, tokens: Mapping[PeerId, int], work: Mapping[PeerId, int], *, has_missed: bool
) -> tuple[int, dict[PeerId, int], dict[PeerId, int]]:
    """What an epoch costs in all, and what each node and each verifier has of it (6).

    Args:
        spec: The run.
        tokens: Of each node's paid steps.
        work: The weight of what each verifier did.
        has_missed: Whether the model missed the epoch's milestone (6a).
    """
    gross = sum(tokens.values()) * spec.money.price_per_mtoken // 10**6
    gross -= has_missed * (gross * spec.money.accept.share_ppm // PPM)
    operators, verifiers = spec.money.operators_ppm, spec.money.verifiers_ppm
    return gross, _shared(gross * operators // PPM, tokens), _shared(gross * verifiers // PPM, work)


def _shared(amount: int, weights: Mapping[PeerId, int]) -> dict[PeerId, int]:
    whole = sum(weights.values())
    exact = {peer: divmod(amount * weight, whole) for peer, weight in weights.items()} if whole else {}
    rows = {peer: part for peer, (part, _) in exact.items()}
    for peer in sorted(exact, key=lambda peer: (-exact[peer][1], peer))[: amount - sum(rows.values())]:
        rows[peer] += 1
    return {peer: part for peer, part in rows.items() if part}


def weight(audit: Audit, verdict: Verdict) -> int:
    """What a verdict weighs when its verifier is paid, by what became of the audit (6)."""
    is_right = {
        Outcome.MATCH: audit.ruling not in FOUND_FALSE,
        Outcome.MISMATCH: audit.ruling not in FOUND_TRUE,
        Outcome.WITHHELD: audit.ruling is not AuditStatus.DISMISSED,  # of one that came late it was true
    }.get(verdict.outcome, False)
    return 10 * is_right
