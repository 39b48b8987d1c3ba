"""Quote: what a buyer is told is what the settlement takes, and a spec of other terms is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from assay.ledger.settlement.payouts import settle
from assay.orders.load import load_order
from assay.orders.price.quote import (
    Quote,
    Terms,
    check_spec_keeps,
    cost_at_most,
    cost_expected,
    quote_of,
    refusable,
    terms_of,
    verification_ppm,
)
from assay.orders.price.quoted import quoted
from assay.orders.spec import build_spec, data_spec
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import ConfigError, MalformedMessage
from assay.protocol.params import Member, RunSpec
from assay.protocol.run_state import start
from assay.protocol.state_transition import advance
from assay.protocol.types import Address, Digest, PeerId
from assay.testing.members import RUN_ID
from assay.testing.signed import NODES, VERIFIERS, a_chain, a_member
from assay.training.data.shards import write_tokens

EXAMPLES = [
    path
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))
    if not path.name.endswith(".scenario.toml")
]
TEXT = np.frombuffer(b"All of it is text, and there is enough of it. " * 400, np.uint8)
SMALL = {
    "run.nodes": 3, "run.verifiers": 4, "run.rounds": 7,
    "model.layers": 1, "model.width": 64, "model.heads": 2,
    "model.context": 16, "train.sequences": 2, "verify.replicated": 0, "verify.limits": "none",
    "verify.audit_rounds": 7, "verify.dispute_rounds": 4, "budget.epoch_rounds": 3,
    "budget.price_per_mtoken": 1_234_567,
}  # fmt: skip


def a_local_member(number: int) -> Member:
    return Member(
        peer=PeerId(bytes([number]) * 32), account=Address(bytes([number]) * 20), hot=Address(bytes(20))
    )


def a_spec(overrides=None, nodes=None, verifiers=None) -> RunSpec:
    order = load_order(None, overrides)
    return build_spec(
        order,
        deployment_id=Digest(b"d" * 32),
        data=data_spec(order, write_tokens(None, [TEXT])),
        buyer=Address(b"b" * 20),
        treasury=Address(b"t" * 20),
        nodes=nodes or [a_local_member(at) for at in range(order.run.nodes)],
        verifiers=verifiers or [a_local_member(100 + at) for at in range(order.run.verifiers)],
    )


def test_a_quote_is_a_message_with_one_encoding(tmp_path: Path):
    quote = quote_of(load_order(None, SMALL))
    assert decode(Quote, encode(quote)) == quote

    written = {key.split(".")[1]: value for key, value in SMALL.items() if key.startswith("run.")}
    rest = {key: value for key, value in SMALL.items() if not key.startswith("run.")}
    (tmp_path / "any name.toml").write_text("[run]\n" + "".join(f"{k} = {v}\n" for k, v in written.items()))
    again = quote_of(load_order(tmp_path / "any name.toml", rest))
    assert again.name == quote.name  # where and how it was written does not matter


def test_a_quote_without_reserves_has_the_bytes_of_quotes_from_before_them():
    without, one = (quote_of(load_order(None, {**SMALL, "run.reserves": count})).terms for count in (0, 1))
    tag_and_others = len(fields(Terms))
    assert encode(without)[0] == 0x80 + tag_and_others  # the head of an array says its length
    assert encode(one)[0] == 0x80 + tag_and_others + 1


def test_a_quotes_name_has_at_most_64_bytes():
    quote = quote_of(load_order(None, SMALL))
    longest = replace(quote, terms=replace(quote.terms, name=64 * "n"))
    assert decode(Quote, encode(longest)) == longest
    with pytest.raises(MalformedMessage, match="at most 64"):
        decode(Quote, encode(longest).replace(b"\x78\x40" + 64 * b"n", b"\x78\x41" + 65 * b"n"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_has_a_quote_within_its_escrow(file: Path):
    try:
        order = load_order(file)
    except ConfigError as missing:  # some examples name files that a reader is to bring
        pytest.skip(str(missing))
    quote = quote_of(order)

    most, expected = cost_at_most(quote.terms), cost_expected(quote.terms)
    assert 0 < expected.gross <= most.gross == order.worst_case_units() <= quote.budget
    assert 0 < verification_ppm(order) <= 10**6


@pytest.mark.parametrize(
    "change",
    [
        {"budget.price_per_mtoken": 1_234_568}, {"run.rounds": 8}, {"run.seed": 1}, {"run.nodes": 4},
        {"run.seats": 4}, {"run.least_nodes": 4}, {"run.reserves": 1},
        {"budget.operators": 0.5}, {"model.context": 32}, {"verify.floor": 0.3}, {"comm.k": 16},
        {"budget.amount": 10**9}, {"timing.collect_s": 1}, {"run.rounds": 20, "verify.known_answers": 1},
        {"budget.slash": 0.2},
    ],
)  # fmt: skip
def test_whatever_changes_what_is_bought_changes_the_digest(change):
    assert quote_of(load_order(None, {**SMALL, **change})).name != quote_of(load_order(None, SMALL)).name


def test_how_long_a_run_waits_for_nodes_is_in_the_quote_and_what_they_cost_is_expected():
    waits = {**SMALL, "run.nodes": 0, "run.least_nodes": 3}
    quote = quote_of(load_order(None, waits))
    assert quote.name != quote_of(load_order(None, {**waits, "run.start_within_s": 60})).name

    trains = cost_expected(quote_of(load_order(None, SMALL)).terms)
    assert cost_expected(quote.terms).tokens * 7 == trains.tokens * 6  # of seven rounds the first seats nodes
    assert cost_at_most(quote.terms) == cost_at_most(quote_of(load_order(None, SMALL)).terms)
    by_round = quote_of(load_order(None, {**waits, "budget.epoch_rounds": 1}))  # the first epoch pays nothing
    assert cost_expected(by_round.terms).tokens == cost_expected(quote.terms).tokens


def test_a_quotes_time_is_that_of_its_rounds_in_whole_seconds():
    for collect_s, time_s in ((1, 7), (1.5, 10), (142.858, 1000)):
        assert quoted(load_order(None, {**SMALL, "timing.collect_s": collect_s})).time_s == time_s


def test_a_spec_made_from_the_order_keeps_its_quote():
    check_spec_keeps(quote_of(load_order(None)), a_spec())
    check_spec_keeps(quote_of(load_order(None, SMALL)), a_spec(SMALL))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"money": ("price_per_mtoken", 1_234_568)}, "money.price_per_mtoken: 1234568 in the spec"),
        ({"money": ("operators_ppm", 1)}, "money.operators_ppm"),
        ({"model": ("context", 8)}, "model.context"),
        ({"audit": ("floor_ppm", 1)}, "audit.floor_ppm"),
        ({"audit": ("limits", Digest(b"l" * 32))}, "audit.limits"),
        ({"audit": ("known_answer_count", 1)}, "audit.known_answer_count"),
    ],
)
def test_a_spec_of_other_terms_is_refused_by_the_name_of_each(change, words):
    spec = a_spec(SMALL)
    for part, (name, value) in change.items():
        spec = replace(spec, **{part: replace(getattr(spec, part), **{name: value})})

    with pytest.raises(ConfigError, match=words):
        check_spec_keeps(quote_of(load_order(None, SMALL)), spec)


def test_fewer_nodes_or_rounds_and_verifiers_in_reserve_are_other_terms_too():
    spec, quote = a_spec(SMALL), quote_of(load_order(None, SMALL))

    changes = {"nodes": spec.nodes[:2]}, {"rounds": 6}, {"seed": 1}, {"reserves": (a_local_member(200),)}
    for other in (replace(spec, **change) for change in changes):
        with pytest.raises(ConfigError, match="in the spec"):
            check_spec_keeps(quote, other)


def test_the_most_is_what_the_settlement_takes_if_everything_counts():
    spec = a_spec(SMALL, [a_member(name) for name in NODES], [a_member(name) for name in VERIFIERS])
    run_state, tables = start(spec, RUN_ID), []
    for link in a_chain(run_state, spec.ordered.last_round + 1):
        run_state = advance(run_state, link.manifest)
        for epoch in range(spec.epochs):
            if spec.ordered.settled_at(epoch) == int(run_state.round) - 1:
                tables.append(settle(run_state, epoch))

    most = cost_at_most(terms_of(spec))
    assert len(tables) == spec.epochs == 3
    assert sum(table.tokens_paid for table in tables) == most.tokens
    assert sum(table.total for table in tables) == most.gross
    for role, units in (("operator", most.operators), ("verifier", most.verifiers), ("fee", most.fee)):
        assert sum(table.paid(role) for table in tables) == units


def test_what_may_be_refused_is_the_share_of_each_epoch_that_has_a_milestone():
    keys = {**SMALL, "accept.share": 0.3, "accept.sequences": 1, "accept.held_out": {"0": 2.0, "2": 1.5}}
    quote = quote_of(load_order(None, keys))
    spec = a_spec(keys, [a_member(name) for name in NODES], [a_member(name) for name in VERIFIERS])

    prices = [spec.epoch_price(epoch) for epoch in (0, 2)]

    assert refusable(quote.terms) == sum(price * 300_000 // 10**6 for price in prices) > 0
    assert refusable(quote_of(load_order(None, SMALL)).terms) == 0
    assert quote.budget == quote_of(load_order(None, SMALL)).budget
    check_spec_keeps(quote, spec)


def test_false_steps_on_order_are_not_expected_to_be_paid():
    """Of any node: each has its own."""
    rounds = {**SMALL, "run.rounds": 40}
    honest = quote_of(load_order(None, rounds)).terms
    known_answers = quote_of(load_order(None, {**rounds, "verify.known_answers": 2})).terms
    steps = cost_at_most(honest).tokens // honest.tokens_per_step

    assert cost_expected(honest) == cost_at_most(honest)
    assert cost_expected(known_answers).tokens == (steps - 2 * honest.nodes) * honest.tokens_per_step


SIZED = {**SMALL, "train.sequences_max": 6, "compute.micro_sequences": 2}


def test_where_nodes_may_train_more_the_escrow_holds_the_price_of_the_most():
    least, most = quote_of(load_order(None, SMALL)), quote_of(load_order(None, SIZED))
    all_large = quote_of(load_order(None, {**SMALL, "train.sequences": 6}))
    spec = a_spec(SIZED, [a_member(name) for name in NODES], [a_member(name) for name in VERIFIERS])

    assert (most.budget, most.epoch_cap) == (all_large.budget, all_large.epoch_cap)
    assert cost_at_most(most.terms) == cost_at_most(all_large.terms)
    assert cost_expected(most.terms) == cost_expected(least.terms)
    assert most.epoch_cap == spec.epoch_price(0)
    assert sum(map(spec.epoch_price, range(spec.epochs))) == cost_at_most(most.terms).gross <= most.budget
    check_spec_keeps(most, spec)
    with pytest.raises(ConfigError, match=r"rule\.local\.sequences_max: 6 in the spec, 0 was ordered"):
        check_spec_keeps(quote_of(load_order(None, {**SMALL, "compute.micro_sequences": 2})), spec)


@pytest.mark.parametrize("keys", [SMALL, {}])
def test_a_most_that_is_the_least_is_none(keys):
    order = load_order(None, keys)

    same = load_order(None, {**keys, "train.sequences_max": order.rule.local.sequences})
    assert quote_of(same) == quote_of(order)
