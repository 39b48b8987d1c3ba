"""Joiners: who comes to a game besides its cast, by dice of its own: without it the seed plays as it did.

Each is an agent as those in agents.py. What they do, all others have to bear.
"""

from __future__ import annotations

from random import Random

from eth_abi.abi import encode
from eth_utils.crypto import keccak

from assay.chain.commit_statement import commit_statement
from assay.chain.state import CasePhase, DefencePhase
from assay.chain.statements import VERIFIER, Rotation, SlashOrder, term_of
from assay.protocol.auditing.audits import Audit
from assay.protocol.offences import offence_id
from tests.contracts.game.agents import LAST_STEP, nobody
from tests.contracts.game.table import CORRUPT, DAY, Agent, Cheat, Life, Run, Table

OPERATORS = (1, 8, 64, 300)  # of a step's program
INVENTIONS = 3


def hands_over(table: Table, dice: Random) -> Life:
    """The verifiers, to a set without any of them, while their runs go on."""
    for _ in range(dice.randrange(LAST_STEP)):
        yield
    _hand_over(table)


def _hand_over(table: Table) -> None:
    world, until = table.world, table.now() + 100 * DAY
    for at in range(len(world.jurors)):
        table.clients[f"juror {at}"].ensure_lot(VERIFIER, term_of(2), world.params.min_verifier_stake, until)
    members = sorted((one.account for one in world.jurors), key=lambda account: int(account, 16))
    handed = Rotation(
        deployment_id=world.deployment.deployment_id,
        from_version=1,
        set_hash=keccak(encode(["address[]"], [members])),
        from_epoch=0,
    )
    table.clients["keeper"].rotate_verifiers(members, 0, table.certified(handed))
    table.next_set = [f"juror {at}" for at in range(len(world.jurors))]


def invents_double_votes(table: Table, dice: Random) -> Life:
    """A quorum that handed over and is bought then, about the one of its set that is not."""
    for _ in range(dice.randrange(4)):
        yield
    _hand_over(table)
    while f"verifier {0}" not in table.honest and len(table.vetoers()) >= CORRUPT:
        if len(table.invented) < INVENTIONS and dice.random() < 0.4:
            _invent(table, dice)
        for case_id in table.invented:
            case, me = table.bank.case(case_id), table.clients["mallory"]
            if case.phase is CasePhase.OPEN and case.veto_ends_at <= table.now() < case.execute_by:
                table.attempt("execute an invention", me.execute_case, case_id)
            elif case.phase is CasePhase.EXECUTED and table.now() >= case.payable_at:
                table.attempt("be paid for an invention", me.pay_out_case, case_id)
        yield


def _invent(table: Table, dice: Random) -> None:
    run = table.runs[dice.choice(list(table.runs))]
    order = SlashOrder(
        deployment_id=run.spec.deployment_id,
        run_id=run.run_id,
        epoch=0,
        offender=table.people[f"verifier {CORRUPT}"].account,
        role=VERIFIER,
        ppm=table.world.params.case_ppm_max,
        offence_id=offence_id(run.run_id, dice.randbytes(32)),
        evidence_hash=dice.randbytes(32),
        challenger=table.people["mallory"].account,
    )
    if table.attempt("invent", table.clients["mallory"].open_case, order, table.certified(order)):
        table.invented.append(order.offence_id)


def appeal_all(table: Table, dice: Random) -> Life:
    """Operators that were rightly convicted; they claim what nobody computed, and cut it as they like."""
    while True:
        for run in table.runs.values():
            for audit in run.follower.confirmed.values():
                _appeal(table, run, audit, dice)
            for case, defender, defence, _ in table.defences(run):
                if isinstance(case, Cheat) and defence.phase is DefencePhase.CUT and dice.random() < 0.8:
                    told = case.claim(defence.first, defence.last, dice)
                    told[-1] = defence.end
                    move = table.clients[case.name].cut_part
                    table.attempt("cut falsely", move, case.case_id, table.people[defender].account, told)
        yield


def _appeal(table: Table, run: Run, audit: Audit, dice: Random) -> None:
    case_id = audit.offence_id
    case, appeal = table.bank.case(case_id), table.bank.appeal(case_id)
    names = {person.account: name for name, person in table.people.items()}
    if case.phase is not CasePhase.OPEN or table.now() >= case.veto_ends_at or appeal.phase:
        return
    name, said = names[case.offender], commit_statement(run.spec, audit.commit)
    cheat = Cheat(
        case_id=case_id,
        accused=table.people[name],
        statement=said,
        signature=table.world.signed(said, table.people[name].hot),
        operators=dice.choice(OPERATORS),
        name=name,
    )
    told = cheat.claim(0, cheat.operators, dice)
    if table.attempt("appeal falsely", table.clients[name].appeal_case, case_id, cheat.operators, told):
        table.cheats.append(cheat)


JOINERS: tuple[Agent, ...] = (nobody, hands_over, invents_double_votes, appeal_all)
