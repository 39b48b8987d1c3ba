"""Purchase: each check of a buyer's transactions passes just inside its bound and refuses just outside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from assay.chain.commit_statement import evm_address
from assay.chain.state import EpochPhase, EscrowState, LotState, StakeState
from assay.chain.statements import OPERATOR, VERIFIER, term_of
from assay.ledger.settlement.funding import closing_s
from assay.orders.load import load_order
from assay.orders.price.quote import quote_of
from assay.orders.purchase import (
    DAY_S,
    MINING_S,
    Escrow,
    RunTerms,
    check_cancel,
    check_found,
    check_lots,
    check_place,
    check_refund,
    check_start,
    check_wallet,
    deadline_after,
    place,
    read_escrow,
    to_top_up,
)
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import ConfigError, NotYet
from tests.orders.test_quote import SMALL, a_spec

QUOTE, SPEC = quote_of(load_order(None, SMALL)), a_spec(SMALL)
OPERATORS = [evm_address(member.account) for member in SPEC.nodes]
VERIFIERS = [evm_address(member.account) for member in SPEC.verifiers]
BUYER, RUN_ID = evm_address(SPEC.buyer), b"r" * 32
NOW, UNTIL, LEAST = 1_000_000, 2_000_000, 500
NO_LOT = LotState(amount=0, until=0, cases=0)


@dataclass
class AChain:
    """The contracts of one run in memory, as far as a purchase reads them."""

    now: int = NOW
    delay: int = 1000
    balance: int = 0
    final_s: int = NOW
    cap_ppm: int = 300_000
    window_s: int = 10**6
    members: tuple[str, ...] = tuple(sorted(VERIFIERS))
    lots: Mapping[tuple[str, int, bytes], LotState] = field(default_factory=dict)
    opened: list[dict[str, object]] = field(default_factory=list)
    found: EscrowState | None = None

    def timestamp(self):
        return self.now

    def close_delay(self):
        return self.delay

    def token_balance(self):
        return self.balance

    def case_ppm_max(self):
        return self.cap_ppm

    def evidence_window(self):
        return self.window_s

    def set_version(self):
        return 3

    def verifier_set(self):
        return self.members

    def final_escrow(self, run_id):
        return SimpleNamespace(time_s=self.final_s, newest_s=self.now)

    def stake_of(self, account, role):
        return StakeState(active=LEAST, free=0, unbonding=0, minimum={VERIFIER: LEAST}[role])

    def lot_of(self, account, role, commitment):
        return self.lots.get((account, role, commitment), NO_LOT)

    def run(self, run_id):
        return self.found if run_id == RUN_ID else None

    def epoch_state(self, run_id, epoch):
        return an_epoch(EpochPhase.NONE)

    def open_run(self, spec_hash, **terms):
        self.opened.append({"spec_hash": spec_hash, **terms})
        self.found = a_run()


def an_account(spec=SPEC, address=BUYER, **chain):
    return SimpleNamespace(
        spec=spec, address=address, run_id=RUN_ID, chain=AChain(**chain), config=SimpleNamespace(run="run")
    )


def an_epoch(phase):
    return SimpleNamespace(phase=phase, until=NOW)


def a_run(**changes):
    plain = EscrowState(
        buyer=BUYER, epochs=SPEC.epochs, set_version=3, pending=0, deadline=UNTIL, closes_at=UNTIL,
        budget=QUOTE.budget, epoch_cap=QUOTE.epoch_cap, reserved=0, paid=0, returned=0,
        spec_hash=digest(SPEC), holds=True, lot=QUOTE.lot,
    )  # fmt: skip
    return replace(plain, **changes)


def an_escrow(now=NOW, epochs=(), **changes):
    terms = RunTerms(
        named=3,
        least_nodes=3,
        start_by_s=0,
        seats=3,
        operator_price=1,
        accept_ppm=0,
        opening_bytes=1,
        opening_ms=1,
        absence_s=0,
        continues=None,
    )
    return Escrow(run_id=RUN_ID, terms=terms, now=now, run=a_run(**changes), epochs=epochs)


def locked(**changes):
    """Everybody's lot, each exactly enough; by `changes`, those of single accounts instead."""
    operators = {
        (one, OPERATOR, RUN_ID): LotState(amount=QUOTE.lot, until=UNTIL, cases=0) for one in OPERATORS
    }
    verifiers = {
        (one, VERIFIER, term_of(3)): LotState(amount=LEAST, until=UNTIL, cases=0) for one in VERIFIERS
    }
    lots = {**operators, **verifiers}
    return {key: changes.get(key[0], lot) for key, lot in lots.items()}


# ---- before it is opened


def test_a_purchase_that_agrees_with_the_contracts_is_not_refused():
    check_place(an_account(), QUOTE)


@pytest.mark.parametrize(
    ("account", "words"),
    [
        (an_account(address=OPERATORS[0]), "buyer is"),
        (an_account(members=(*VERIFIERS[1:], OPERATORS[0])), "not those of the contracts, set 3"),
        (an_account(members=tuple(VERIFIERS[1:])), "not those of the contracts"),
        (an_account(cap_ppm=299_999), "slash court"),
        (an_account(window_s=SPEC.audit.absence_s - 1), "absence_s"),
        (an_account(spec=a_spec({**SMALL, "run.seed": 5})), "seed"),
    ],
)
def test_a_purchase_that_the_contracts_would_leave_without_effect_is_refused(account, words):
    with pytest.raises(ConfigError, match=words):
        check_place(account, QUOTE)


def test_a_run_closes_within_the_close_delay_less_what_the_chain_takes_to_be_final():
    need = closing_s(SPEC.audit, SPEC.timing, len(SPEC.verifiers), SPEC.money.epoch_rounds)

    check_place(an_account(delay=need + 7, final_s=NOW - 7), QUOTE)
    for chain in ({"delay": need + 7, "final_s": NOW - 8}, {"delay": need + 6, "final_s": NOW - 7}):
        with pytest.raises(ConfigError, match="settle"):
            check_place(an_account(**chain), QUOTE)


def test_lots_of_all_operators_and_of_two_thirds_of_the_verifiers_are_enough():
    check_lots(an_account(lots=locked()), QUOTE.lot, UNTIL)
    check_lots(an_account(lots=locked(**{VERIFIERS[0]: NO_LOT})), QUOTE.lot, UNTIL)


@pytest.mark.parametrize("lot", [
    NO_LOT,
    LotState(amount=QUOTE.lot - 1, until=UNTIL, cases=0),
    LotState(amount=QUOTE.lot, until=UNTIL - 1, cases=0),
])  # fmt: skip
def test_an_operator_whose_lot_is_too_small_or_too_short_is_named(lot):
    with pytest.raises(ConfigError, match=f"operator {OPERATORS[1]} has locked") as refused:
        check_lots(an_account(lots=locked(**{OPERATORS[1]: lot})), QUOTE.lot, UNTIL)
    assert OPERATORS[0] not in str(refused.value)


@pytest.mark.parametrize("lot", [
    NO_LOT,
    LotState(amount=LEAST - 1, until=UNTIL, cases=0),
    LotState(amount=LEAST, until=UNTIL - 1, cases=0),
])  # fmt: skip
def test_a_third_of_the_verifiers_without_a_lot_is_too_many(lot):
    lots = locked(**{VERIFIERS[0]: lot, VERIFIERS[2]: lot})

    with pytest.raises(ConfigError, match=f"of 4 verifiers 2 have .*{VERIFIERS[0]}, {VERIFIERS[2]}"):
        check_lots(an_account(lots=lots), QUOTE.lot, UNTIL)
    three = an_account(spec=replace(SPEC, verifiers=SPEC.verifiers[:3]), lots=locked(**{VERIFIERS[0]: lot}))
    with pytest.raises(ConfigError, match="of 3 verifiers 1 have"):
        check_lots(three, QUOTE.lot, UNTIL)


def test_a_wallet_may_hold_exactly_the_amount():
    check_wallet(an_account(balance=7), 7)
    with pytest.raises(ConfigError, match=r"0\.000007 aUSD to put up, and .* holds 0\.000006"):
        check_wallet(an_account(balance=6), 7)


def test_a_run_is_opened_on_the_quoted_terms_for_the_named_operators():
    account = an_account(balance=QUOTE.budget, lots=locked())

    assert place(account, QUOTE, UNTIL).run == a_run()
    assert account.chain.opened == [
        {
            "spec_hash": digest(SPEC), "budget": QUOTE.budget, "epoch_cap": QUOTE.epoch_cap,
            "epochs": SPEC.epochs, "deadline": UNTIL, "lot": QUOTE.lot, "operators": OPERATORS,
        }
    ]  # fmt: skip
    for poor in (an_account(balance=QUOTE.budget - 1, lots=locked()), an_account(balance=QUOTE.budget)):
        with pytest.raises(ConfigError):
            place(poor, QUOTE, UNTIL)
        assert not poor.chain.opened


def test_a_run_is_open_for_1_to_366_days_and_longer_than_the_close_delay():
    assert deadline_after(an_account(), 1) == NOW + DAY_S
    assert deadline_after(an_account(), 366) == NOW + 366 * DAY_S
    for days in (-1, 0, 367):
        with pytest.raises(ConfigError, match="1 to 366"):
            deadline_after(an_account(), days)
    assert deadline_after(an_account(delay=2 * DAY_S - MINING_S), 2) == NOW + 2 * DAY_S
    with pytest.raises(ConfigError, match="close delay"):
        deadline_after(an_account(delay=2 * DAY_S - MINING_S + 1), 2)


def test_where_files_are_carried_a_run_closes_at_the_same_time_all_day():
    midnight = NOW - NOW % DAY_S
    for now in (midnight, midnight + DAY_S - 1):
        assert deadline_after(an_account(now=now), 2, to_midnight=True) == midnight + 2 * DAY_S
    late = an_account(now=midnight + DAY_S - 1, delay=DAY_S)
    with pytest.raises(ConfigError, match="close delay"):
        deadline_after(late, 2, to_midnight=True)


def test_a_run_starts_in_the_future_and_before_it_can_close():
    for start_by in (0, NOW + 1, UNTIL - 1000):
        check_start(an_account(spec=replace(SPEC, start_by_s=start_by)), UNTIL)
    check_start(
        an_account(spec=replace(SPEC, start_by_s=0)), 1000
    )  # waits for nobody: when it closes is all one
    for start_by, words in ((NOW, "had to start"), (NOW - 1, "had to start"), (UNTIL - 999, "closes from")):
        with pytest.raises(ConfigError, match=words):
            check_start(an_account(spec=replace(SPEC, start_by_s=start_by)), UNTIL)


# ---- one that is open


def test_a_run_that_nobody_opened_has_no_escrow_and_an_open_one_has_its_epochs():
    assert read_escrow(an_account()) is None

    found = read_escrow(an_account(found=a_run()))

    assert found is not None
    assert (found.run, found.now, len(found.epochs)) == (a_run(), NOW, SPEC.epochs)
    assert (found.terms.named, found.terms.seats) == (len(SPEC.nodes), SPEC.seats)


def test_a_run_is_closed_from_its_last_second_on():
    assert not an_escrow(now=UNTIL - 1).is_closed
    assert an_escrow(now=UNTIL).is_closed


def test_a_run_that_is_open_as_quoted_is_found():
    check_found(an_escrow(), QUOTE, SPEC)
    check_found(an_escrow(budget=QUOTE.budget + 1), QUOTE, SPEC)


@pytest.mark.parametrize(
    ("escrow", "words"),
    [
        (an_escrow(epoch_cap=QUOTE.epoch_cap - 1), "quoted were"),
        (an_escrow(epochs=(), lot=QUOTE.lot + 1), "quoted were"),
        (an_escrow(spec_hash=bytes(32)), "quoted were"),
        (an_escrow(now=UNTIL), "opened before and closed"),
        (an_escrow(budget=QUOTE.budget - 1), "is open with .*topup --to"),
    ],
)
def test_a_run_that_is_open_on_other_terms_is_refused(escrow, words):
    with pytest.raises(ConfigError, match=words):
        check_found(escrow, QUOTE, SPEC)


def test_a_run_of_other_epochs_is_refused():
    other = replace(an_escrow(), run=a_run(epochs=SPEC.epochs + 1))

    with pytest.raises(ConfigError, match=f"open for {SPEC.epochs + 1} epochs"):
        check_found(other, QUOTE, SPEC)


def test_money_is_added_by_amount_or_up_to_an_amount():
    escrow = an_escrow(budget=100)

    assert to_top_up(escrow, amount=7, to=None) == 7
    assert [to_top_up(escrow, amount=None, to=to) for to in (0, 99, 100, 101)] == [0, 0, 0, 1]
    for amount, to in ((None, None), (7, 7), (0, 0), (0, None)):
        with pytest.raises(ConfigError):
            to_top_up(escrow, amount=amount, to=to)


def test_a_closed_run_takes_no_money_but_may_be_found_full():
    assert to_top_up(an_escrow(now=UNTIL - 1, budget=100), amount=1, to=None) == 1
    assert to_top_up(an_escrow(now=UNTIL, budget=100), amount=None, to=100) == 0
    for amount, to in ((1, None), (None, 101)):
        with pytest.raises(ConfigError, match="takes no money"):
            to_top_up(an_escrow(now=UNTIL, budget=100), amount=amount, to=to)


def test_only_the_buyer_cancels_and_only_what_would_close_later_by_itself():
    account = an_account()

    assert check_cancel(account, an_escrow(now=UNTIL - 1001))
    assert not check_cancel(account, an_escrow(now=UNTIL - 1000))
    with pytest.raises(ConfigError, match="only the buyer"):
        check_cancel(an_account(address=OPERATORS[0]), an_escrow())


def test_the_rest_returns_once_the_run_is_closed_and_every_result_is_over():
    assert check_refund(an_escrow(now=UNTIL, budget=100, paid=99))
    assert not check_refund(an_escrow(now=UNTIL, budget=100, paid=60, returned=40))
    with pytest.raises(NotYet, match="open until"):
        check_refund(an_escrow(now=UNTIL - 1))
    phases = [an_epoch(phase) for phase in EpochPhase]
    with pytest.raises(NotYet, match="1 results are neither") as waits:
        check_refund(an_escrow(now=UNTIL, epochs=tuple(phases), pending=1))
    waiting = [f"epoch {number} (" in str(waits.value) for number in range(len(phases))]
    assert waiting == [phase in (EpochPhase.PROPOSED, EpochPhase.CHALLENGED) for phase in EpochPhase]
