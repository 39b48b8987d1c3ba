"""The court: contradictions slash at once, rulings slowly, capped and open to a veto."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.chain.client import ALREADY_DONE, UNIT, CasePhase, Chain, ChainRefused
from assay.chain.events import Equivocation, Slashed
from assay.chain.statements import OPERATOR, VERIFIER, Discharge, Veto, values
from tests.chain.moves import transfer_token
from tests.contracts.chain_world import PURSE, WINDOWS, Person, World, view

pytestmark = pytest.mark.slow
FEE = WINDOWS.accuser_fee


def report(world: World, offender: Person, reporter: Person, **changes: object) -> None:
    first = world.said(**changes)
    second = replace(first, value=b"two".ljust(32, b"\0"))
    world.as_(reporter).report_equivocation(
        first, world.signed(first, offender.hot), second, world.signed(second, offender.hot)
    )


def test_two_values_in_one_slot_cost_the_whole_stake_in_every_role_once(world: World):
    offender = world.operators[0]
    world.join(offender, OPERATOR, 300 * UNIT)
    world.as_(offender).stake(OPERATOR, 100 * UNIT)
    world.as_(offender).stake(VERIFIER, 200 * UNIT)
    ticket = world.as_(offender).request_unstake(OPERATOR, 100 * UNIT)

    report(world, offender, world.bystander)
    report(world, offender, world.operators[1])  # told again: nothing more

    events = world.bank.events(world.deployment.block)
    assert [e.amount for e in events if isinstance(e, Slashed)] == [400 * UNIT, 200 * UNIT]
    assert len([e for e in events if isinstance(e, Equivocation)]) == 1
    assert world.bank.rewards_of(world.bystander.account) == FEE
    assert world.bank.rewards_of(world.buyer.account) == 0
    assert world.bank.rewards_of(world.operators[1].account) == 0
    world.advance(world.params.unbonding_s)
    world.as_(offender).withdraw(ticket)
    assert world.as_(offender).token_balance() == PURSE - 600 * UNIT


def test_an_account_that_contradicted_itself_never_stakes_again(world: World):
    """Else it would report itself while it has little to lose, and be free in that slot ever after."""
    offender = world.operators[0]
    world.join(offender, OPERATOR, 300 * UNIT)
    report(world, offender, world.bystander)
    first, third = world.said(), world.said(value=b"three".ljust(32, b"\0"))

    with pytest.raises(ChainRefused, match="AccountBanned"):
        world.as_(offender).stake(OPERATOR, 200 * UNIT)
    with pytest.raises(ChainRefused, match="AccountBanned"):  # other bytes, same offence: nothing to take
        world.raw(
            world.bystander,
            "SlashCourt",
            "reportEquivocation",
            values(third),
            world.signed(third, offender.hot),
            values(first),
            world.signed(first, offender.hot),
            bytes(32),
        )


def test_a_second_contradiction_of_a_barred_account_is_old_news(world: World):
    offender = world.operators[0]
    world.join(offender, OPERATOR, 300 * UNIT)
    report(world, offender, world.bystander)

    report(world, offender, world.bystander, epoch=7)

    assert world.bank.is_banned(offender.account)
    assert world.bank.rewards_of(world.bystander.account) == FEE


def test_a_ruling_cannot_use_up_a_contradictions_name(world: World):
    """An offence's id begins with its run's: a tiny ruling under a contradiction's id is none."""
    offender = world.operators[0]
    world.join(offender, OPERATOR, 300 * UNIT)
    name = world.bank.equivocation_id(offender.hot_key, world.said())
    slash_order = world.a_ruling(offender, offence_id=name, ppm=1)
    with pytest.raises(ChainRefused, match="OffenceOfAnotherRun"):
        world.bank.open_case(slash_order, world.cert(slash_order))
    first = world.said()
    second = replace(first, value=b"two".ljust(32, b"\0"))
    signatures = world.signed(first, offender.hot), world.signed(second, offender.hot)

    told = (values(first), signatures[0], values(second), signatures[1], bytes(32))
    world.raw(world.bystander, "SlashCourt", "reportEquivocation", *told)

    assert world.bank.stake_of(offender.account, OPERATOR).active == 0


def test_reporting_oneself_before_staking_buys_no_immunity(world: World):
    """Slots are round numbers, known in advance: an offence with nothing at stake must not use them up."""
    offender = world.operators[0]
    world.delegate(offender)
    report(world, offender, world.bystander)

    with pytest.raises(ChainRefused, match="AccountBanned"):
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


def the_evidence(world: World, offender: Person) -> tuple[object, ...]:
    first = world.said()
    second = replace(first, value=b"two".ljust(32, b"\0"))
    signatures = world.signed(first, offender.hot), world.signed(second, offender.hot)
    return values(first), signatures[0], values(second), signatures[1]


def test_whoever_copies_a_report_from_the_waiting_transactions_earns_nothing(world: World):
    """The copier sees everything the reporter sends, sends the same before it, and is refused."""
    offender, copier = world.operators[0], world.operators[1]
    world.join(offender, OPERATOR, 300 * UNIT)
    reporter = world.as_(world.bystander)
    offence_id = world.bank.equivocation_id(offender.hot_key, world.said())
    salt = reporter.commit_to_report(offence_id)
    promise = view(world, "SlashCourt", "commitmentOf", reporter.address, offence_id, salt)
    world.raw(copier, "SlashCourt", "commitReport", promise)

    with pytest.raises(ChainRefused, match="NotCommitted"):
        world.raw(copier, "SlashCourt", "reportEquivocation", *the_evidence(world, offender), salt)
    report(world, offender, world.bystander)

    assert world.bank.rewards_of(reporter.address) == FEE
    assert world.bank.rewards_of(copier.account) == 0


def test_a_report_without_a_promise_slashes_all_the_same_and_pays_nobody(world: World):
    offender, sunk = world.operators[0], world.sunk()
    world.join(offender, OPERATOR, 300 * UNIT)
    first = world.said()
    second = replace(first, value=b"two".ljust(32, b"\0"))

    world.as_(world.bystander).report_equivocation(
        first,
        world.signed(first, offender.hot),
        second,
        world.signed(second, offender.hot),
        for_reward=False,
    )

    assert world.bank.is_banned(offender.account)
    assert world.bank.rewards_of(world.buyer.account) == 0
    assert world.bank.rewards_of(world.bystander.account) == 0
    assert world.sunk() == sunk + 300 * UNIT


def test_a_promise_grows_old_and_the_client_renews_it(world: World):
    offender = world.operators[0]
    world.join(offender, OPERATOR, 300 * UNIT)
    offence_id = world.bank.equivocation_id(offender.hot_key, world.said())
    salt = world.as_(world.bystander).commit_to_report(offence_id)
    world.advance(world.params.report_window_s)
    with pytest.raises(ChainRefused, match="WindowOver"):
        world.raw(world.bystander, "SlashCourt", "reportEquivocation", *the_evidence(world, offender), salt)

    report(world, offender, world.bystander)

    assert world.bank.rewards_of(world.bystander.account) == FEE


def test_a_chain_that_went_back_behind_a_promise_costs_no_reward(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    offender, reporter = world.operators[0], world.as_(world.bystander)
    world.join(offender, OPERATOR, 300 * UNIT)
    before, promise, gone = world.rpc("evm_snapshot"), type(reporter).commit_to_report, []

    def promise_and_lose_it(chain: Chain, offence_id: bytes) -> bytes:
        salt = promise(chain, offence_id)
        if not gone:
            gone.append(world.rpc("evm_revert", before))
        return salt

    monkeypatch.setattr(Chain, "commit_to_report", promise_and_lose_it)
    report(world, offender, world.bystander)

    assert gone == [True]
    assert world.bank.rewards_of(reporter.address) == FEE


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
    sunk = world.sunk()

    report(world, offender, offender)

    assert world.bank.rewards_of(offender.account) == 0
    assert world.sunk() == sunk + 300 * UNIT


def test_an_unknown_key_cannot_be_judged(world: World):
    with pytest.raises(ChainRefused, match="UnknownSigner"):
        report(world, world.operators[2], world.bystander)


def test_a_ruling_is_carried_out_after_its_veto_window_and_not_before(world: World):
    offender = world.operators[0]
    world.join(offender, OPERATOR, 400 * UNIT)
    slash_order = world.a_ruling(offender)
    world.bank.open_case(slash_order, world.cert(slash_order))
    assert world.bank.open_case(slash_order, world.cert(slash_order)) == ALREADY_DONE
    with pytest.raises(ChainRefused, match="TooEarly"):
        world.bank.execute_case(slash_order.offence_id)
    assert world.bank.stake_of(offender.account, OPERATOR).active == 400 * UNIT
    world.advance(world.params.veto_window_s)

    world.as_(world.bystander).execute_case(slash_order.offence_id)

    assert world.bank.execute_case(slash_order.offence_id) == ALREADY_DONE
    assert world.bank.case(slash_order.offence_id).phase == CasePhase.EXECUTED
    assert world.bank.stake_of(offender.account, OPERATOR).active == 300 * UNIT


def test_a_veto_ends_a_case_without_a_slash(world: World):
    offender = world.operators[0]
    world.join(offender, OPERATOR, 400 * UNIT)
    slash_order = world.a_ruling(offender)
    world.bank.open_case(slash_order, world.cert(slash_order))
    veto = Veto(
        deployment_id=world.deployment.deployment_id, case_id=slash_order.offence_id, reason_hash=b"\1" * 32
    )
    with pytest.raises(ChainRefused, match="QuorumNotReached"):
        world.bank.veto_case(slash_order.offence_id, b"\1" * 32, world.cert(veto, 2))

    world.bank.veto_case(slash_order.offence_id, b"\1" * 32, world.cert(veto))

    world.advance(world.params.veto_window_s)
    with pytest.raises(ChainRefused, match="WrongState"):
        world.bank.execute_case(slash_order.offence_id)
    assert (
        world.bank.open_case(slash_order, world.cert(slash_order)) == ALREADY_DONE
    )  # and it never comes back
    assert world.bank.stake_of(offender.account, OPERATOR).active == 400 * UNIT


def veto_of(world: World, case_id: bytes) -> bytes:
    """A quorum's signatures against a case."""
    veto = Veto(deployment_id=world.deployment.deployment_id, case_id=case_id, reason_hash=bytes(32))
    return world.cert(veto)


def executed(world: World, offender: Person, ppm: int = 250_000) -> bytes:
    """A case up to its slash, on the bystander's bond."""
    slash_order = world.a_ruling(offender, ppm=ppm)
    world.as_(world.bystander).open_case(slash_order, world.cert(slash_order))
    world.advance(world.params.veto_window_s)
    world.bank.execute_case(slash_order.offence_id)
    return slash_order.offence_id


def test_an_order_is_beyond_the_cap_once_others_took_all_and_not_if_it_has_a_case(world: World):
    offender, other = world.operators[:2]
    for person in (offender, other):
        world.join(person, OPERATOR, 400 * UNIT)
    cap = world.params.case_ppm_max
    first, second = world.a_ruling(offender, ppm=cap - 1), world.a_ruling(offender, ppm=cap)
    third, elsewhere = world.a_ruling(offender, ppm=1), world.a_ruling(other, ppm=1)
    beyond = []
    for slash_order in (first, second):
        world.bank.open_case(slash_order, world.cert(slash_order))
        beyond.append([world.bank.is_beyond_cap(one) for one in (first, second, third, elsewhere)])

    assert beyond == [[False, False, False, False], [False, False, True, False]]


def test_a_slash_by_ruling_is_paid_out_only_after_its_delay(world: World):
    offender, buyer = world.operators[0], world.buyer.account
    world.join(offender, OPERATOR, 400 * UNIT)
    sunk = world.sunk()
    case_id = executed(world, offender)
    assert world.bank.pot_of(case_id) == 100 * UNIT
    with pytest.raises(ChainRefused, match="TooEarly"):
        world.bank.pay_out_case(case_id)
    assert (world.bank.rewards_of(buyer), world.sunk()) == (0, sunk)
    world.advance(world.params.payout_delay_s)

    world.bank.pay_out_case(case_id)

    assert world.bank.pay_out_case(case_id) == world.bank.execute_case(case_id) == ALREADY_DONE
    assert world.bank.case(case_id).phase == CasePhase.PAID
    assert world.bank.rewards_of(buyer) == 20 * UNIT
    assert world.bank.rewards_of(world.verifiers[0].account) == FEE
    assert world.sunk() == sunk + 60 * UNIT
    with pytest.raises(ChainRefused, match="WrongState"):
        world.bank.veto_case(case_id, bytes(32), veto_of(world, case_id))


def test_a_veto_before_the_payout_makes_the_lot_whole_again(world: World):
    offender = world.operators[0]
    world.join(offender, OPERATOR, 300 * UNIT)
    world.as_(offender).stake(OPERATOR, 100 * UNIT)
    case_id = executed(world, offender)
    assert world.lot_of(offender) == 225 * UNIT
    assert world.bank.stake_of(offender.account, OPERATOR).free == 100 * UNIT

    world.bank.veto_case(case_id, bytes(32), veto_of(world, case_id))

    assert world.lot_of(offender) == 300 * UNIT
    assert world.bank.veto_case(case_id, bytes(32), veto_of(world, case_id)) == ALREADY_DONE
    world.advance(world.params.payout_delay_s)
    with pytest.raises(ChainRefused, match="WrongState"):
        world.bank.pay_out_case(case_id)
    assert world.bank.rewards_of(world.buyer.account) == 0


def test_who_contradicted_itself_gets_no_slash_back(world: World):
    """Else a friendly ruling would shelter part of a stake from the bar, and a veto bring it home."""
    offender = world.operators[0]
    world.join(offender, OPERATOR, 400 * UNIT)
    case_id = executed(world, offender)
    report(world, offender, world.bystander)

    with pytest.raises(ChainRefused, match="AccountBanned"):
        world.bank.veto_case(case_id, bytes(32), veto_of(world, case_id))

    world.advance(world.params.payout_delay_s)
    world.bank.pay_out_case(case_id)
    assert world.bank.stake_of(offender.account, OPERATOR).active == 0


def test_a_veto_after_the_delay_is_too_late(world: World):
    offender = world.operators[0]
    world.join(offender, OPERATOR, 400 * UNIT)
    case_id = executed(world, offender)
    world.advance(world.params.payout_delay_s)
    with pytest.raises(ChainRefused, match="WindowOver"):
        world.bank.veto_case(case_id, bytes(32), veto_of(world, case_id))


def test_a_case_that_nobody_carried_out_cannot_be_vetoed_either(world: World):
    world.join(world.operators[0], OPERATOR, 400 * UNIT)
    slash_order = world.a_ruling(world.operators[0])
    world.bank.open_case(slash_order, world.cert(slash_order))
    world.advance(world.params.veto_window_s + world.params.execute_window_s)
    with pytest.raises(ChainRefused, match="WindowOver"):
        world.bank.veto_case(slash_order.offence_id, bytes(32), veto_of(world, slash_order.offence_id))


@pytest.mark.parametrize("ends", ["paid", "vetoed", "vetoed late", "expired"])
def test_the_bond_of_whoever_opens_a_case_returns_with_the_payout_and_burns_otherwise(
    world: World, ends: str
):
    opener, bond = world.as_(world.bystander), world.params.case_bond
    world.join(world.operators[0], OPERATOR, 400 * UNIT)
    slash_order = world.a_ruling(world.operators[0])
    case_id, sunk = slash_order.offence_id, world.sunk()
    opener.open_case(slash_order, world.cert(slash_order))
    assert opener.token_balance() == PURSE - bond
    assert world.bank.case_bond(case_id) == bond
    world.advance(world.params.veto_window_s)
    match ends:
        case "paid":
            world.bank.execute_case(case_id)
            world.advance(world.params.payout_delay_s)
            world.bank.pay_out_case(case_id)
        case "vetoed":
            world.bank.veto_case(case_id, bytes(32), veto_of(world, case_id))
        case "vetoed late":
            world.bank.execute_case(case_id)
            world.bank.veto_case(case_id, bytes(32), veto_of(world, case_id))
        case "expired":
            world.advance(world.params.execute_window_s)
            world.bank.expire_case(case_id)
    opener.collect()

    is_back = ends == "paid"
    assert opener.token_balance() == (PURSE if is_back else PURSE - bond)
    assert world.sunk() - sunk == (60 * UNIT if is_back else bond)
    assert world.bank.case_bond(case_id) == 0


def test_nobody_opens_a_case_without_the_bond(world: World):
    world.join(world.operators[0], OPERATOR, 400 * UNIT)
    slash_order = world.a_ruling(world.operators[0])
    pauper = world.as_(world.bystander)
    transfer_token(pauper, world.buyer.account, PURSE - world.params.case_bond + 1)
    with pytest.raises(ChainRefused, match="ERC20InsufficientBalance"):
        pauper.open_case(slash_order, world.cert(slash_order))
    assert not world.bank.is_punished(slash_order.offence_id)


def test_a_case_holds_its_lot_and_ends_by_time(world: World):
    offender = world.operators[0]
    chain = world.as_(offender)
    world.join(offender, OPERATOR, 400 * UNIT)
    run = world.bank.run(world.run_id)
    assert run is not None
    world.advance(run.closes_at + world.params.evidence_window_s - world.bank.timestamp() - 60)
    slash_order = world.a_ruling(offender)
    world.bank.open_case(slash_order, world.cert(slash_order))
    world.advance(60)
    with pytest.raises(ChainRefused, match="LotHeld"):
        chain.release_lot(chain.address, OPERATOR, world.run_id)
    with pytest.raises(ChainRefused, match="TooEarly"):
        world.bank.expire_case(slash_order.offence_id)
    world.advance(world.params.veto_window_s + world.params.execute_window_s)
    with pytest.raises(ChainRefused, match="WindowOver"):
        world.bank.execute_case(slash_order.offence_id)
    world.bank.expire_case(slash_order.offence_id)

    world.as_(world.bystander).release_lot(chain.address, OPERATOR, world.run_id)

    assert chain.release_lot(chain.address, OPERATOR, world.run_id) == ALREADY_DONE
    ticket = chain.request_unstake(OPERATOR, 400 * UNIT)
    world.advance(world.params.unbonding_s)
    chain.withdraw(ticket)
    assert chain.token_balance() == PURSE


def test_a_node_that_left_has_its_lot_a_window_after_its_discharge_and_the_run_goes_on(world: World):
    leaver = world.operators[0]
    chain, window = world.as_(leaver), world.params.evidence_window_s
    world.join(leaver, OPERATOR, 400 * UNIT)
    said = Discharge(
        deployment_id=world.deployment.deployment_id, run_id=world.run_id, account=leaver.account
    )
    place = (leaver.account, OPERATOR, world.run_id)
    far = chain.release_at(chain.lot_of(*place), OPERATOR, world.run_id)
    with pytest.raises(ChainRefused, match="QuorumNotReached"):
        world.bank.discharge(leaver.account, world.run_id, world.cert(said, 2))

    assert world.as_(world.bystander).discharge(leaver.account, world.run_id, world.cert(said)).gas_used
    assert chain.discharge(leaver.account, world.run_id, world.cert(said)) == ALREADY_DONE

    at = chain.release_at(chain.lot_of(*place), OPERATOR, world.run_id)
    assert at == chain.timestamp() + window < far
    world.advance(window - 60)
    assert not chain.can_release(*place)
    with pytest.raises(ChainRefused, match="TooEarly"):
        chain.release_lot(*place)
    world.advance(60)
    assert chain.can_release(*place)
    chain.release_lot(*place)
    assert chain.stake_of(leaver.account, OPERATOR).free == 400 * UNIT
    run = chain.run(world.run_id)
    assert run is not None and run.closes_at > chain.timestamp()
    assert chain.discharge(leaver.account, world.run_id, world.cert(said)) == ALREADY_DONE  # no lot


@pytest.mark.parametrize(("ppm", "expected"), [(300_000, None), (300_001, "AboveCap"), (0, "AboveCap")])
def test_a_ruling_takes_at_most_the_cap(world: World, ppm: int, expected: str | None):
    world.join(world.operators[0], OPERATOR, 400 * UNIT)
    slash_order = world.a_ruling(world.operators[0], ppm=ppm)
    if expected is None:
        world.bank.open_case(slash_order, world.cert(slash_order))
    else:
        with pytest.raises(ChainRefused, match=expected):
            world.bank.open_case(slash_order, world.cert(slash_order))


def test_a_ruling_needs_the_runs_quorum_and_a_known_run(world: World):
    slash_order = world.a_ruling(world.operators[0])
    with pytest.raises(ChainRefused, match="QuorumNotReached"):
        world.bank.open_case(slash_order, world.cert(slash_order, 2))
    other = replace(slash_order, offender=world.operators[1].account)
    with pytest.raises(ChainRefused):
        world.bank.open_case(other, world.cert(slash_order))
    nowhere = world.a_ruling(world.operators[0], run_id=b"\5" * 32)
    with pytest.raises(ChainRefused, match="UnknownRun"):
        world.bank.open_case(nowhere, world.cert(nowhere))


def test_a_runs_verifiers_open_no_case_once_its_evidence_is_out_of_time(world: World):
    slash_order = world.a_ruling(world.operators[0])
    run = world.bank.run(world.run_id)
    given = (values(slash_order), 0, world.cert(slash_order))
    assert run is not None
    world.rpc("evm_setNextBlockTimestamp", run.closes_at + world.params.evidence_window_s)
    with pytest.raises(ChainRefused, match="WindowOver"):
        world.raw(world.bystander, "SlashCourt", "openCase", *given)
