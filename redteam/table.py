"""Table: the result of every attack, and of honest audits.

Room: redteam. Rows are in the order of the packages they attack; `AttackTable` is what a program reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from assay.redteam.attack import Attack, AttackResult, Outcome, finding_of, together
from assay.redteam.court.accusations import ACCUSATION_ATTACKS
from assay.redteam.court.appeals import APPEAL_ATTACKS
from assay.redteam.court.contracts import CONTRACT_ATTACKS
from assay.redteam.court.proposals import PROPOSAL_ATTACKS
from assay.redteam.nodes.byzantine_nodes import LIAR_ATTACKS
from assay.redteam.nodes.false_positives import Honest, total
from assay.redteam.nodes.false_state import STATE_ATTACKS
from assay.redteam.nodes.malformed import BYTES_ATTACKS
from assay.redteam.nodes.own_data import OWN_DATA_ATTACKS
from assay.redteam.nodes.steps import STEP_ATTACKS
from assay.redteam.nodes.trust import TRUST_ATTACKS
from assay.redteam.verifiers.absences import ABSENCE_ATTACKS
from assay.redteam.verifiers.beacon import BEACON_ATTACKS
from assay.redteam.verifiers.byzantine_verifiers import JUDGE_ATTACKS
from assay.redteam.verifiers.leaving import LEAVING_ATTACKS
from assay.redteam.verifiers.milestones import MILESTONE_ATTACKS
from assay.redteam.verifiers.rounds import ROUND_ATTACKS
from assay.redteam.verifiers.seats import SEAT_ATTACKS

ATTACKS: tuple[Attack, ...] = (
    *STEP_ATTACKS, *STATE_ATTACKS, *OWN_DATA_ATTACKS, *TRUST_ATTACKS, *LIAR_ATTACKS, *JUDGE_ATTACKS,
    *APPEAL_ATTACKS, *ACCUSATION_ATTACKS, *MILESTONE_ATTACKS, *SEAT_ATTACKS, *LEAVING_ATTACKS,
    *ABSENCE_ATTACKS, *ROUND_ATTACKS, *BEACON_ATTACKS, *BYTES_ATTACKS, *PROPOSAL_ATTACKS, *CONTRACT_ATTACKS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One attack and its outcome with the defence on."""

    attack: Attack
    outcome: Outcome

    @property
    def finding(self) -> AttackResult:
        """The result."""
        return finding_of(self.outcome)

    @property
    def rate(self) -> float:
        """Share of the attempts that were caught."""
        return self.outcome.caught / self.outcome.attempts


def named(part: str) -> tuple[Attack, ...]:
    """The attacks with this text in their names; all of them if it is empty."""
    return tuple(attack for attack in ATTACKS if part.lower() in attack.name.lower())


def try_all(
    attacks: Sequence[Attack], seeds: int, on_attack: Callable[[int, int], None] = lambda _done, _of: None
) -> list[Row]:
    """Try every attack against its defence, once for each seed; slow ones once in all.

    Args:
        attacks: What is tried.
        seeds: How often each.
        on_attack: Called with how many were tried, and how many will be.
    """
    rows = []
    for attack in attacks:
        runs = [attack.run(True, seed) for seed in range(1 if attack.is_slow else seeds)]
        rows.append(Row(attack, together(runs)))
        on_attack(len(rows), len(attacks))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedAttack:
    """What a program reads of a row. detection_rate: of its attempts."""

    name: str
    defence: str
    detection_rate: float
    cost: float
    harm: str
    verdict: AttackResult


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackTable:
    """Every row, and the audits of honest steps in all; none where attacks alone were asked for."""

    attacks: tuple[TriedAttack, ...]
    honest: Honest

    @classmethod
    def of(cls, rows: Sequence[Row], honest: Sequence[Honest]) -> AttackTable:
        """Of what was tried."""
        attacks = tuple(
            TriedAttack(
                name=row.attack.name,
                defence=row.attack.defence,
                detection_rate=round(row.rate, 4),
                cost=round(row.outcome.cost, 4),
                harm=row.outcome.harm,
                verdict=row.finding,
            )
            for row in rows
        )
        return cls(attacks=attacks, honest=total(list(honest)))


def as_markdown(rows: Sequence[Row], honest: Sequence[Honest]) -> str:
    """The table and the honest rows, for docs/results/redteam.md."""
    lines = [
        "| # | attack | against | defence | caught | cost | harm | verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        attack, outcome = row.attack, row.outcome
        caught = f"{outcome.caught}/{outcome.attempts}"
        cells = (attack.number, attack.name, attack.where.value, attack.defence, caught,
                 f"{outcome.cost:.2f}", outcome.harm, row.finding.value)  # fmt: skip
        lines.append(_line(*cells))
    if honest:
        lines += ["", *honest_lines(honest)]
    return "\n".join(lines)


def honest_lines(honest: Sequence[Honest]) -> list[str]:
    """The honest side, by way of judging and code path, and in all."""
    lines = [
        "| judged | code path | audits | blocks | undecided | false | of a block, below | an audit, below |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in [*honest, total(list(honest))] if len(honest) > 1 else honest:
        bounds = ("-", "-") if one.false_slashes else (f"{one.block_bound:.1e}", f"{one.audit_bound:.1e}")
        audits = f"{one.audits:,}", f"{one.blocks:,}", one.undecided, one.false_slashes
        lines.append(_line(one.judging, one.path, *audits, *bounds))
    return lines


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def counts(rows: Sequence[Row]) -> str:
    """How many of each result, as text."""
    found = {kind: sum(row.finding is kind for row in rows) for kind in AttackResult}
    return ", ".join(f"{count} {kind.value}" for kind, count in found.items())
