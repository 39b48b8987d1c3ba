"""Every life of one audit, one of four lies; `python -m tests.simulation.explore_audit` tries all cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.protocol.auditing import audits
from assay.protocol.auditing.audits import AuditStatus
from tests.simulation import explore_audit
from tests.simulation.explore_audit import CASES, SEALED, Case, broken, explore

pytestmark = pytest.mark.slow

QUICK = [
    case for case in CASES if case.liar is None or (case.liar == 3 and case.wanted == 1 and case.turn == 1)
]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.words)
def test_no_life_of_an_audit_breaks_a_promise(case: Case) -> None:
    found, states = broken(case)

    assert not found
    assert states >= 2


def test_liars_change_how_an_audit_ends_and_only_they_are_at_fault_for_it() -> None:
    ends, _ = explore(Case(liar=1, turn=1))

    assert {end.status for end in ends} == {AuditStatus.PASSED, AuditStatus.DISMISSED}
    assert {end.at_fault for end in ends} == {frozenset(), frozenset({1})}


@pytest.mark.parametrize(("rounds", "says"), [((6, 4), "not found"), ((7, 3), "not cleared")])
def test_one_round_less_than_the_least_lets_a_lying_leader_hide_a_verdict(
    rounds: tuple[int, int], says: str
) -> None:
    cases = (
        Case(liar=0, wanted=2, turn=turn, is_false=says == "not found", rounds=rounds) for turn in (0, 1)
    )

    assert any(says in line for case in cases for line in broken(case)[0])


def test_a_match_is_no_fault_where_the_chain_does_not_show_which_sketch_the_node_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(liar=1, sketch=SEALED)
    assert not broken(case)[0]

    decide = audits._with_faults

    def forgetful(audit: audits.Audit) -> audits.Audit:
        """The rule with an unknown sketch taken for the shared one."""
        shown = audit.sketch or next((v.recomputed for v in audit.adverse if v.recomputed), None)
        return replace(decide(replace(audit, sketch=shown)), sketch=audit.sketch)

    monkeypatch.setattr(audits, "_with_faults", forgetful)
    assert any("an honest verifier is at fault" in line for line in broken(case)[0])


def test_one_liar_leaves_steps_unjudged_where_the_others_follow_it_into_a_blind_reference_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case(liar=0, wanted=2, turn=1, is_blind=True)
    assert not broken(case)[0]

    decide = explore_audit._truth

    def follows(case: Case, audit: audits.Audit, place: int) -> object:
        if audits.judges_in_reference(audit):
            return decide(replace(case, own=0), audit, place)
        return decide(case, audit, place)

    monkeypatch.setattr(explore_audit, "_truth", follows)
    assert any("is not judged" in line for line in broken(case)[0])
