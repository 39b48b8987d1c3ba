"""Court actions: the steps of a slash case and of its appeal for which the chain has all that they need.

Room: api (edge: reads the chain). An appeal's claims and cuts come from making the step again, which takes
the run's model: `assay appeal`.
"""

from __future__ import annotations

from collections.abc import Mapping

from assay.api.actions.action import Action, Owner, Plan, checked_address, raw, short
from assay.api.http.problems import Problem
from assay.api.schemas import AddressText, Asked, HashGiven
from assay.chain.state import AppealPhase, CasePhase, CaseState, DefencePhase, DefenceState, JuryState
from assay.chain.text.units import token_text


class _Case(Asked):
    case_id: HashGiven


class _Defence(_Case):
    defender: AddressText


class _Vote(_Defence):
    end: HashGiven  # digest that the juror judged
    is_right: bool


def _execute(owner: Owner, given: _Case) -> Plan:
    case = _in(owner, given, CasePhase.OPEN)
    whose = owner.named(case.offender)
    return _of_case(
        given, f"carry out case {short(given.case_id)}: {case.ppm / 10_000:g} % of a lot of {whose} is taken"
    )


def _pay_out(owner: Owner, given: _Case) -> Plan:
    case = _in(owner, given, CasePhase.EXECUTED)
    amount = token_text(owner.chain.pot_of(raw(given.case_id)))
    return _of_case(
        given,
        f"end case {short(given.case_id)} for ever: the {amount} that were taken from "
        f"{owner.named(case.offender)} are shared and burnt, and cannot return",
    )


def _expire(owner: Owner, given: _Case) -> Plan:
    case = _in(owner, given, CasePhase.OPEN)
    bond = token_text(owner.chain.case_bond(raw(given.case_id)))
    return _of_case(
        given,
        f"end case {short(given.case_id)}, which was not carried out in time: the bond of {bond} of "
        f"{owner.named(case.opener)} burns",
    )


def _draw(owner: Owner, given: _Defence) -> Plan:
    _defence(owner, given)
    return _of_defence(given, f"draw the jury of {_named(given)}")


def _vote(owner: Owner, given: _Vote) -> Plan:
    defence, jury = _defence(owner, given)
    if defence.end != raw(given.end):
        raise Problem(409, f"the jury judges the digest 0x{defence.end.hex()}")
    seats = jury.seats.count(owner.account)
    if not seats:
        raise Problem(403, "this account is not on the jury")
    return _of_defence(
        given,
        f"answer for ever as a juror, with {seats} of {len(jury.seats)} seats, in {_named(given)}: what the "
        f"accused says that operator {defence.first} puts out, {short(given.end)}, is "
        f"{'right' if given.is_right else 'WRONG'}",
        raw(given.end),
        given.is_right,
    )


def _lapse(owner: Owner, given: _Defence) -> Plan:
    defence, _ = owner.chain.defence(raw(given.case_id), checked_address(given.defender))
    if defence.phase in (DefencePhase.NONE, DefencePhase.ENDED):
        raise Problem(409, f"there is no {_named(given)}, or it has ended")
    return _of_defence(
        given,
        f"end {_named(given)}: whoever was to move and did not, has lost, with its bond; before a jury "
        "nobody has",
    )


def _conclude(owner: Owner, given: _Case) -> Plan:
    appeal = owner.chain.appeal(raw(given.case_id))
    if appeal.phase is not AppealPhase.OPEN:
        raise Problem(409, f"the appeal of case {short(given.case_id)} is not open")
    return _of_case(
        given,
        f"end the appeal of {owner.named(appeal.accused)}, which no defence has beaten: case "
        f"{short(given.case_id)} is as if it had not been",
    )


def _in(owner: Owner, given: _Case, phase: CasePhase) -> CaseState:
    found = owner.chain.case(raw(given.case_id))
    if found.phase is not phase:
        raise Problem(
            409, f"case {short(given.case_id)} is {found.phase.name.lower()}, not {phase.name.lower()}"
        )
    return found


def _defence(owner: Owner, given: _Defence) -> tuple[DefenceState, JuryState]:
    found = owner.chain.defence(raw(given.case_id), checked_address(given.defender))
    if found[0].phase is not DefencePhase.JURY:
        raise Problem(409, f"{_named(given)} waits for no jury")
    return found


def _of_case(given: _Case, summary: str) -> Plan:
    return Plan(arguments=(raw(given.case_id),), summary=summary)


def _of_defence(given: _Defence, summary: str, *more: object) -> Plan:
    return Plan(arguments=(raw(given.case_id), checked_address(given.defender), *more), summary=summary)


def _named(given: _Defence) -> str:
    return f"the defence of case {short(given.case_id)} by {checked_address(given.defender)}"


COURT: Mapping[str, Action] = {
    "case.execute": Action(
        "SlashCourt", "execute", _Case, _execute, does="carries out a slash order after its veto window"
    ),
    "case.payout": Action(
        "SlashCourt", "payOut", _Case, _pay_out, does="ends a slash for ever, after its delay"
    ),
    "case.expire": Action(
        "SlashCourt", "expire", _Case, _expire, does="ends a case that was not carried out in time"
    ),
    "appeal.draw": Action("AppealCourt", "drawJury", _Defence, _draw, does="draws the jury of a defence"),
    "appeal.vote": Action("AppealCourt", "vote", _Vote, _vote, does="answers as a juror of a defence"),
    "appeal.lapse": Action(
        "AppealCourt", "lapse", _Defence, _lapse, does="ends a defence whose next move did not come"
    ),
    "appeal.conclude": Action(
        "AppealCourt", "conclude", _Case, _conclude, does="ends an appeal that no defence has beaten"
    ),
}
