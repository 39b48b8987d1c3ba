"""The court: contradictions slash at once, rulings slowly, capped and open to a veto."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.chain import ALREADY_DONE, UNIT, CasePhase, ChainRefused
from ledger.events import Equivocation, Slashed
from ledger.statements import OPERATOR, VERIFIER, Veto, values
from tests.contracts.chain_world import PURSE, Person, World


def report(world: World, offender: Person, reporter: Person, **changes: object) -> None:
    first = world.said(**changes)
    second = replace(first, value=b"two".ljust(32, b"\0"))
    world.as_(reporter).report_equivocation(
        first, world.signed(first, offender.hot), second, world.signed(second, offender.hot)
    )


def test_two_values_in_one_slot_cost_the_whole_stake_in_every_role_once(world: World):
    offender = world.operators[0]
    world.join(offender, OPERATOR, 300 * UNIT)
    world.as_(offender).stake(VERIFIER, 200 * UNIT)
    ticket = world.as_(offender).request_unstake(OPERATOR, 300 * UNIT)

    report(world, offender, world.bystander)
    report(world, offender, world.operators[1])  # told again: nothing more

    events = world.bank.events(world.deployment.block)
    assert [e.amount for e in events if isinstance(e, Slashed)] == [300 * UNIT, 200 * UNIT]
    assert len([e for e in events if isinstance(e, Equivocation)]) == 1
    assert world.bank.rewards_of(world.bystander.account) == 150 * UNIT
    assert world.bank.rewards_of(world.buyer.account) == 100 * UNIT
    assert world.bank.rewards_of(world.operators[1].account) == 0
    world.advance(world.params.unbonding_s)
    world.as_(offender).withdraw(ticket)
    assert world.as_(offender).token_balance() == PURSE - 500 * UNIT


def test_an_account_that_contradicted_itself_never_stakes_again(world: World):
    """Else it would report itself while it has little to lose, and be free in that slot ever after."""
    offender = world.operators[0]
    world.join(offender, OPERATOR, 300 * UNIT)
    report(world, offender, world.bystander)
    first, third = world.said(), world.said(value=b"three".ljust(32, b"\0"))

    with pytest.raises(ChainRefused, match="AccountBarred"):
        world.as_(offender).stake(OPERATOR, 200 * UNIT)
    with pytest.raises(ChainRefused, match="AccountBarred"):  # other bytes, same offence: nothing to take
        world.raw(
            world.bystander,
            "SlashCourt",
            "reportEquivocation",
            values(third),
            world.signed(third, offender.hot),
            values(first),
            world.signed(first, offender.hot),
        )


def test_a_second_contradiction_of_a_barred_account_is_old_news(world: World):
    offender = world.operators[0]
    world.join(offender, OPERATOR, 300 * UNIT)
    report(world, offender, world.bystander)

    report(world, offender, world.bystander, epoch=7)

    assert world.bank.is_barred(offender.account)
    assert world.bank.rewards_of(world.bystander.account) == 90 * UNIT


def test_a_ruling_cannot_use_up_a_contradictions_name(world: World):
    """A ruling's offence id is free; a tiny one under a contradiction's id must not stand in for it."""
    offender = world.operators[0]
    world.join(offender, OPERATOR, 300 * UNIT)
    name = world.bank.equivocation_id(offender.hot_key, world.said())
    ruling = world.a_ruling(offender, offence_id=name, ppm=1)
    world.bank.open_case(ruling, world.cert(ruling))
    world.advance(world.params.veto_window_s)
    world.bank.execute_case(name)
    first = world.said()
    second = replace(first, value=b"two".ljust(32, b"\0"))
    signatures = world.signed(first, offender.hot), world.signed(second, offender.hot)

    told = (values(first), signatures[0], values(second), signatures[1])
    world.raw(world.bystander, "SlashCourt", "reportEquivocation", *told)

    assert world.bank.stake_of(offender.account, OPERATOR).active == 0


def test_reporting_oneself_before_staking_buys_no_immunity(world: World):
    """Slots are round numbers, known in advance: an offence with nothing at stake must not use them up."""
    offender = world.operators[0]
    world.delegate(offender)
    report(world, offender, world.bystander)

    with pytest.raises(ChainRefused, match="AccountBarred"):
        world.as_(offender).stake(VERIFIER, 300 * UNIT)


@pytest.mark.parametrize(
    "change", [{"value": None}, {"epoch": 2}, {"kind": 2}, {"slot": b"\1" * 32}, {"run_id": b"\2" * 32}]
)
def test_statements_that_do_not_contradict_slash_nobody(world: World, change: dict[str, object]):
    offender = world.operators[0]
    world.join(offender, OPERATOR, 300 * UNIT)
    first = world.said()
    second = first if change == {"value": None} else replace(first, value=b"\3" * 32, **change)  # type: ignore[arg-type]

    with pytest.raises(ChainRefused, match="NotAContradiction"):
        world.bank.report_equivocation(
            first, world.signed(first, offender.hot), second, world.signed(second, offender.hot)
        )


def test_two_honest_people_who_disagree_are_no_equivocation(world: World):
    for person in world.operators[:2]:
        world.join(person, OPERATOR, 300 * UNIT)
    first, second = world.said(), world.said(value=b"\3" * 32)
    with pytest.raises(ChainRefused, match="DifferentSigners"):
        world.bank.report_equivocation(
            first,
            world.signed(first, world.operators[0].hot),
            second,
            world.signed(second, world.operators[1].hot),
        )


def test_reporting_oneself_pays_nothing_and_saves_nothing(world: World):
    offender = world.operators[0]
    world.join(offender, OPERATOR, 300 * UNIT)
    supply = world.bank.token_supply()

    report(world, offender, offender)

    assert world.bank.rewards_of(offender.account) == 0
    assert world.bank.token_supply() == supply - 240 * UNIT


def test_an_unknown_key_cannot_be_judged(world: World):
    with pytest.raises(ChainRefused, match="UnknownSigner"):
        report(world, world.operators[2], world.bystander)


def test_a_ruling_is_carried_out_after_its_veto_window_and_not_before(world: World):
    offender = world.operators[0]
    world.join(offender, OPERATOR, 400 * UNIT)
    ruling = world.a_ruling(offender)
    world.bank.open_case(ruling, world.cert(ruling))
    assert world.bank.open_case(ruling, world.cert(ruling)) == ALREADY_DONE
    with pytest.raises(ChainRefused, match="TooEarly"):
        world.bank.execute_case(ruling.offence_id)
    assert world.bank.stake_of(offender.account, OPERATOR).active == 400 * UNIT
    world.advance(world.params.veto_window_s)

    world.as_(world.bystander).execute_case(ruling.offence_id)

    assert world.bank.execute_case(ruling.offence_id) == ALREADY_DONE
    assert world.bank.case(ruling.offence_id).phase == CasePhase.EXECUTED
    assert world.bank.stake_of(offender.account, OPERATOR).active == 300 * UNIT


def test_a_veto_ends_a_case_without_a_slash(world: World):
    offender = world.operators[0]
    world.join(offender, OPERATOR, 400 * UNIT)
    ruling = world.a_ruling(offender)
    world.bank.open_case(ruling, world.cert(ruling))
    veto = Veto(
        deployment_id=world.deployment.deployment_id, case_id=ruling.offence_id, reason_hash=b"\1" * 32
    )
    with pytest.raises(ChainRefused, match="QuorumNotReached"):
        world.bank.veto_case(ruling.offence_id, b"\1" * 32, world.cert(veto, 2))

    world.bank.veto_case(ruling.offence_id, b"\1" * 32, world.cert(veto))

    world.advance(world.params.veto_window_s)
    with pytest.raises(ChainRefused, match="WrongState"):
        world.bank.execute_case(ruling.offence_id)
    assert world.bank.open_case(ruling, world.cert(ruling)) == ALREADY_DONE  # and it never comes back
    assert world.bank.stake_of(offender.account, OPERATOR).active == 400 * UNIT


def test_a_veto_after_its_window_is_too_late(world: World):
    ruling = world.a_ruling(world.operators[0])
    world.bank.open_case(ruling, world.cert(ruling))
    world.advance(world.params.veto_window_s)
    veto = Veto(
        deployment_id=world.deployment.deployment_id, case_id=ruling.offence_id, reason_hash=bytes(32)
    )
    with pytest.raises(ChainRefused, match="WindowOver"):
        world.bank.veto_case(ruling.offence_id, bytes(32), world.cert(veto))


def test_a_case_holds_withdrawals_and_ends_by_time(world: World):
    offender = world.operators[0]
    chain = world.as_(offender)
    chain.stake(OPERATOR, 400 * UNIT)
    ticket = chain.request_unstake(OPERATOR, 400 * UNIT)
    world.advance(world.params.unbonding_s)
    ruling = world.a_ruling(offender)
    world.bank.open_case(ruling, world.cert(ruling))
    with pytest.raises(ChainRefused, match="AccountFrozen"):
        chain.withdraw(ticket)
    with pytest.raises(ChainRefused, match="TooEarly"):
        world.bank.expire_case(ruling.offence_id)
    world.advance(world.params.veto_window_s + world.params.execute_window_s)

    with pytest.raises(ChainRefused, match="WindowOver"):
        world.bank.execute_case(ruling.offence_id)
    world.bank.expire_case(ruling.offence_id)

    chain.withdraw(ticket)
    assert chain.token_balance() == PURSE


@pytest.mark.parametrize(("ppm", "expected"), [(300_000, None), (300_001, "AboveCap"), (0, "AboveCap")])
def test_a_ruling_takes_at_most_the_cap(world: World, ppm: int, expected: str | None):
    ruling = world.a_ruling(world.operators[0], ppm=ppm)
    if expected is None:
        world.bank.open_case(ruling, world.cert(ruling))
    else:
        with pytest.raises(ChainRefused, match=expected):
            world.bank.open_case(ruling, world.cert(ruling))


def test_a_ruling_needs_the_runs_quorum_and_a_known_run(world: World):
    ruling = world.a_ruling(world.operators[0])
    with pytest.raises(ChainRefused, match="QuorumNotReached"):
        world.bank.open_case(ruling, world.cert(ruling, 2))
    with pytest.raises(ChainRefused):
        world.bank.open_case(replace(ruling, offender=world.operators[1].account), world.cert(ruling))
    nowhere = replace(ruling, run_id=b"\5" * 32)
    with pytest.raises(ChainRefused, match="UnknownRun"):
        world.bank.open_case(nowhere, world.cert(nowhere))


def test_a_runs_verifiers_open_no_case_once_its_evidence_is_out_of_time(world: World):
    ruling = world.a_ruling(world.operators[0])
    run = world.bank.run(world.run_id)
    assert run is not None
    world.rpc("evm_setNextBlockTimestamp", run.closes_at + world.params.evidence_window_s)
    with pytest.raises(ChainRefused, match="WindowOver"):
        world.raw(world.bystander, "SlashCourt", "openCase", values(ruling), 0, world.cert(ruling))
