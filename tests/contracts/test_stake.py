"""Stake: locked in lots, slashed by the lot, leaves late, and every unit is accounted for."""

from __future__ import annotations

from dataclasses import replace
from secrets import token_bytes

import pytest

from assay.chain.client import ALREADY_DONE, MAINNET, UNIT, ChainRefused
from assay.chain.deployment.deploy import deploy
from assay.chain.events import Slashed
from assay.chain.statements import OPERATOR, VERIFIER, Delegation, term_of
from assay.protocol.errors import ConfigError
from tests.contracts.chain_world import PURSE, Person, World, view


def punish(world: World, offender: Person, ppm: int, role: int = OPERATOR) -> bytes:
    """A case to its slash, which is not paid out yet; its id."""
    slash_order = world.a_ruling(offender, ppm=ppm, role=role)
    world.bank.open_case(slash_order, world.cert(slash_order))
    world.advance(world.params.veto_window_s)
    world.bank.execute_case(slash_order.offence_id)
    return slash_order.offence_id


def test_stake_comes_back_whole_after_the_delay(world: World):
    chain = world.as_(world.operators[0])
    chain.stake(OPERATOR, 500 * UNIT)
    ticket = chain.request_unstake(OPERATOR, 200 * UNIT)
    with pytest.raises(ChainRefused, match="TooEarly"):
        chain.withdraw(ticket)
    world.advance(world.params.unbonding_s)

    chain.withdraw(ticket)

    assert chain.withdraw(ticket) == ALREADY_DONE
    assert chain.token_balance() == PURSE - 300 * UNIT
    assert chain.stake_of(chain.address, OPERATOR).active == 300 * UNIT


def test_a_slash_reaches_the_lot_of_its_run_and_nothing_else(world: World):
    offender = world.operators[0]
    chain = world.as_(offender)
    world.join(offender, OPERATOR, 400 * UNIT)
    chain.stake(OPERATOR, 200 * UNIT)
    world.lock(offender, 50 * UNIT, commitment=b"another run".ljust(32, b"\0"))
    ticket = chain.request_unstake(OPERATOR, 100 * UNIT)

    punish(world, offender, 250_000)

    state = chain.stake_of(offender.account, OPERATOR)
    assert (state.active, state.free, state.unbonding) == (400 * UNIT, 50 * UNIT, 100 * UNIT)
    assert world.lot_of(offender) == 300 * UNIT
    world.advance(world.params.unbonding_s)
    chain.withdraw(ticket)
    assert (
        chain.ensure_lot(OPERATOR, world.run_id, 340 * UNIT, 0).tx_hash is not None
    )  # whole again, as far as it goes
    assert world.lot_of(offender) == 340 * UNIT


def test_one_lot_backs_one_run_at_a_time(world: World):
    chain = world.as_(world.operators[0])
    chain.stake(OPERATOR, 400 * UNIT)
    world.lock(world.operators[0], 300 * UNIT)
    with pytest.raises(ChainRefused, match="NotEnoughStake"):
        world.lock(world.operators[0], 300 * UNIT, commitment=b"another run".ljust(32, b"\0"))
    with pytest.raises(ChainRefused, match="NotEnoughStake"):
        chain.request_unstake(OPERATOR, 400 * UNIT)


def test_a_slash_in_one_role_leaves_the_other_alone(world: World):
    offender = world.verifiers[0]
    chain = world.as_(offender)
    chain.stake(OPERATOR, 400 * UNIT)
    chain.stake(VERIFIER, 200 * UNIT)

    punish(world, offender, 100_000, VERIFIER)

    assert chain.stake_of(offender.account, OPERATOR).active == 400 * UNIT
    assert chain.stake_of(offender.account, VERIFIER).active == 290 * UNIT
    assert chain.lot_of(offender.account, VERIFIER, term_of(1)).amount == 90 * UNIT


@pytest.mark.parametrize("amount", [100 * UNIT, 100 * UNIT + 1, 123_456_789, 999_999_999])
@pytest.mark.parametrize("ppm", [1, 333_333 // 3, 299_999])
def test_slashed_is_burnt_plus_rewards_to_the_unit(world: World, amount: int, ppm: int):
    offender = world.operators[0]
    world.join(offender, OPERATOR, amount)
    sunk = world.sunk()

    case_id = punish(world, offender, ppm)
    world.advance(world.params.payout_delay_s)
    world.bank.pay_out_case(case_id)

    slashed = next(e for e in world.bank.events(world.deployment.block) if isinstance(e, Slashed))
    assert slashed.amount == -(-amount * ppm // 10**6)  # rounded up, against the offender
    assert slashed.buyer_amount == slashed.amount * world.params.slash_buyer_ppm // 10**6
    assert slashed.challenger_amount == min(world.params.accuser_fee, slashed.amount * 3 // 10)
    assert slashed.amount == slashed.burnt + slashed.buyer_amount + slashed.challenger_amount
    assert world.sunk() == sunk + slashed.burnt
    for who in (world.buyer.account, world.verifiers[0].account, world.bank.address):
        world.bank.collect(who)
    assert world.bank.collect(world.buyer.account) == ALREADY_DONE
    assert world.held("StakeVault") == amount - slashed.amount
    assert world.bank.token_balance(world.verifiers[0].account) == PURSE + slashed.challenger_amount


def test_stake_that_a_slash_took_can_be_topped_up(world: World):
    offender = world.operators[0]
    chain = world.as_(offender)
    world.join(offender, OPERATOR, 400 * UNIT)
    punish(world, offender, 300_000)
    chain.stake(OPERATOR, 450 * UNIT - chain.stake_of(offender.account, OPERATOR).active)
    assert chain.stake_of(offender.account, OPERATOR).active == 450 * UNIT


def test_what_stays_is_nothing_or_the_minimum(world: World):
    chain = world.as_(world.operators[0])
    with pytest.raises(ChainRefused, match="BelowMinimum"):
        chain.stake(OPERATOR, 100 * UNIT - 1)
    chain.stake(OPERATOR, 100 * UNIT)
    with pytest.raises(ChainRefused, match="BelowMinimum"):
        chain.request_unstake(OPERATOR, 1)
    with pytest.raises(ChainRefused, match="NotEnoughStake"):
        chain.request_unstake(OPERATOR, 100 * UNIT + 1)
    ticket = chain.request_unstake(OPERATOR, 100 * UNIT)
    with pytest.raises(ChainRefused, match="NotYourTicket"):
        world.as_(world.operators[1]).withdraw(ticket)
    chain.cancel_unstake(ticket)
    assert chain.stake_of(chain.address, OPERATOR).active == 100 * UNIT
    world.advance(world.params.unbonding_s)
    assert chain.ticket(ticket).amount == 0
    with pytest.raises(ChainRefused, match="TicketSpent"):
        world.raw(world.operators[0], "StakeVault", "withdraw", ticket)


def test_nobody_but_the_court_slashes_or_holds_a_lot(world: World):
    victim = world.operators[0].account
    for function, arguments in {
        "slash": (victim, 0, bytes(32), 1, bytes(32), victim, victim, 1),
        "payOut": (bytes(32),),
        "restore": (bytes(32),),
        "bar": (victim, bytes(32), victim),
        "hold": (victim, 0, bytes(32)),
        "unhold": (victim, 0, bytes(32)),
        "lockBond": (bytes(32), victim, 1),
        "returnBond": (bytes(32),),
        "burnBond": (bytes(32),),
    }.items():
        with pytest.raises(ChainRefused, match="OnlyCourt"):
            world.raw(world.buyer, "StakeVault", function, *arguments)


def test_a_hot_key_needs_its_own_consent_and_never_changes_hands(world: World):
    owner, thief = world.operators[0], world.operators[1]
    consent = Delegation(
        deployment_id=world.deployment.deployment_id, account=thief.account, hot_key=owner.hot_key, expiry=9
    )
    with pytest.raises(ChainRefused, match="BadConsent"):
        world.as_(thief).delegate(owner.hot_key, 9, world.signed(consent, thief.hot))
    world.delegate(owner)
    with pytest.raises(ChainRefused, match="HotKeyTaken"):
        world.as_(thief).delegate(owner.hot_key, 9, world.signed(consent, owner.hot))
    found = world.bank.hot_key(owner.hot_key)
    assert found is not None
    assert found.account == owner.account
    assert view(world, "StakeVault", "accountOf", owner.hot_key) == owner.account


SLOWEST_CASE_S = (
    MAINNET.evidence_window_s + MAINNET.veto_window_s + MAINNET.execute_window_s + MAINNET.margin_s
)


@pytest.mark.parametrize(
    "change",
    [
        {
            "unbonding_s": MAINNET.evidence_window_s
            + MAINNET.veto_window_s
            + MAINNET.execute_window_s
            + MAINNET.margin_s
        },
        {"challenge_window_s": 20 * 86_400},
        {"slash_buyer_ppm": 500_001},
        {"jury_seats": 2},
        {"draw_delay_blocks": 0},
        {"payout_delay_s": 20 * 86_400, "unbonding_s": 60 * 86_400},
        {"case_ppm_max": 1_000_001},
        {"veto_window_s": 0},
        {"resolve_window_s": 0},
        {"challenge_bond": 0},
        {"case_bond": 0},
        {"payout_delay_s": 0},
        {"report_window_s": 0},
    ],
)
def test_a_deployment_whose_stake_could_escape_a_slash_cannot_exist(world: World, change: dict[str, int]):
    verifiers = [p.account for p in world.verifiers]
    with pytest.raises(ConfigError, match="could not be deployed"):
        deploy(world.rpc_url, world.bank_key, replace(MAINNET, **change), token_bytes(32), verifiers)
