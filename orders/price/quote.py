"""Quote: the maximal and expected cost of an order, before there are members, data or a chain.

Room: orders (pure). A quote is a message with a digest by which a
buyer can refer to it: the same order gives the same digest on every machine. Its terms are the part of a
run's spec that an order alone determines; a spec keeps a quote if its own terms are equal, field by field.

    order --quote_of--> Quote(terms, escrow)        spec --terms_of--> Terms
                              '------------ equal? ------------'
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, ClassVar

from assay.chain.penalties import CASE_PPM_MAX, check_absence, check_penalties
from assay.chain.text.times import CLOSE_DELAY_S, EVIDENCE_WINDOW_S
from assay.ledger.settlement.funding import check_close_delay
from assay.orders.order import Order
from assay.orders.spec import (
    audit_spec,
    choices_spec,
    compute_spec,
    model_spec,
    money_spec,
    order_closing_s,
    timing_spec,
)
from assay.protocol.auditing.draws import audit_rate_ppm
from assay.protocol.encoding.codec import Later, Max, digest
from assay.protocol.errors import ConfigError
from assay.protocol.params import (
    PPM,
    AuditSpec,
    ChoicesSpec,
    ComputeSpec,
    ModelSpec,
    MoneySpec,
    RunSpec,
    TimingSpec,
)
from assay.protocol.types import NO_DIGEST, Address, Digest
from assay.protocol.update_rule import RuleSpec

_NOBODY = Address(bytes(20))


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is bought and at which price. Left out: members, data, chain, and secretly drawn values."""

    TAG: ClassVar[bytes] = b"assay/terms/6"
    name: Annotated[str, Max(64)]
    seed: int
    rounds: int
    nodes: int
    seats: int
    least_nodes: int
    verifiers: int
    state_every: int
    model: ModelSpec  # its base is zero
    compute: ComputeSpec
    choices: ChoicesSpec
    rule: RuleSpec
    audit: AuditSpec
    money: MoneySpec  # its treasury is zero
    timing: TimingSpec
    reserves: Annotated[int, Later()] = 0

    @property
    def tokens_per_step(self) -> int:
        """Least tokens of one node's work in one round."""
        return self.rule.sequences_per_round * self.model.context

    @property
    def most_tokens_per_step(self) -> int:
        """Most tokens of one node's work in one round."""
        return self.rule.most_sequences_per_round * self.model.context

    @property
    def epochs(self) -> int:
        """Settlements of the run."""
        return -(-self.rounds // self.money.epoch_rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """The terms, and the amount to put into escrow for them. Amounts in token units."""

    TAG: ClassVar[bytes] = b"assay/quote/6"
    terms: Terms
    budget: int  # put into escrow; what is not earned returns
    epoch_cap: int  # what one epoch can cost at most
    lot: int  # what each operator has at stake in the run
    start_within_s: int  # for which it waits for more nodes than are named; 0: it waits for none

    @property
    def name(self) -> Digest:
        """The quote's digest: what a buyer refers to it by."""
        return digest(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of a number of paid tokens, split as the settlement splits it. Amounts in token units."""

    tokens: int
    gross: int  # leaves the escrow
    operators: int
    verifiers: int
    fee: int


def quote_of(order: Order) -> Quote:
    """The quote of an order.

    Raises:
        ConfigError: a penalty is above the slash court's cap, or closing takes longer than escrows wait.
    """
    money = money_spec(order, _NOBODY)
    check_penalties(money, CASE_PPM_MAX)
    check_absence(audit_spec(order), EVIDENCE_WINDOW_S)
    check_close_delay(order_closing_s(order), CLOSE_DELAY_S)
    terms = Terms(
        name=order.run.name,
        seed=order.run.seed,
        rounds=order.run.rounds,
        nodes=order.run.nodes,
        seats=order.seats,
        least_nodes=order.least_nodes,
        verifiers=order.run.verifiers,
        state_every=order.verify.state_every,
        model=model_spec(order),
        compute=compute_spec(order),
        choices=choices_spec(order),
        rule=order.rule,
        audit=audit_spec(order),
        money=money,
        timing=timing_spec(order),
        reserves=order.run.reserves,
    )
    return Quote(
        terms=terms,
        budget=order.budget_units(),
        epoch_cap=order.epoch_units_max(),
        lot=order.lot_units,
        start_within_s=order.start_within_s,
    )


def terms_of(spec: RunSpec) -> Terms:
    """The part of a spec that a quote covers."""
    return Terms(
        name=spec.name,
        seed=spec.seed,
        rounds=spec.rounds,
        nodes=len(spec.nodes),
        seats=spec.seats,
        least_nodes=spec.least_nodes,
        verifiers=len(spec.verifiers),
        state_every=spec.state_every,
        model=replace(spec.model, base=NO_DIGEST),
        compute=spec.compute,
        choices=spec.choices,
        rule=spec.rule,
        audit=spec.audit,
        money=replace(spec.money, treasury=_NOBODY),
        timing=spec.timing,
        reserves=len(spec.reserves),
    )


def check_spec_keeps(quote: Quote, spec: RunSpec) -> None:
    """Do nothing if a run of this spec is the quoted one.

    Raises:
        ConfigError: every term that differs, with both values.
    """
    found = differing(quote.terms, terms_of(spec))
    if found:
        raise ConfigError("the spec is not of this order:\n" + "\n".join(found))


def cost_at_most(terms: Terms) -> Cost:
    """The cost if every seat is taken, and every contribution counts and is as large as may be."""
    return _cost(terms, _most_tokens(terms))


def cost_expected(terms: Terms) -> Cost:
    """The cost if no more nodes come than are needed, and all steps count but every known-answer task.

    A task of which nobody judges is paid like any other step, and one is not begun before its node has
    announced its list: fewer may be unpaid.

    Where nodes may choose, every step is the smallest: how fast they will be is not known.
    """
    tokens = []
    for epoch in range(terms.epochs):
        # A run that waits for nodes trains nothing in round 0.
        rounds = _rounds_in(terms, epoch) - (not epoch and terms.least_nodes > terms.nodes)
        # Only the nodes know where their known-answer tasks are; the expected spread is even.
        known_answers = terms.audit.known_answer_count // terms.epochs + (
            epoch < terms.audit.known_answer_count % terms.epochs
        )
        tokens.append(terms.least_nodes * max(rounds - known_answers, 0) * terms.tokens_per_step)
    return _cost(terms, tokens)


def refusable(terms: Terms) -> int:
    """What is not owed, of the cost at most, if the model misses every milestone; token units."""
    full = list(_gross(terms, _most_tokens(terms)))
    accept = terms.money.accept
    return sum(full[one.epoch] * accept.share_ppm // PPM for one in accept.milestones)


def audit_share(order: Order) -> float:
    """Expected share of an always honest node's steps that are audited.

    Treats each expected audit as finished at once, which is too early by a few rounds during
    probation only: the true share is a little higher.
    """
    rules = audit_spec(order)
    audits = 0.0
    for _ in range(order.run.rounds):
        audits += audit_rate_ppm(rules, int(audits)) / PPM
    return audits / order.run.rounds


def verification_ppm(order: Order) -> int:
    """The expected share of an honest node's steps that are recomputed, in millionths."""
    return round(audit_share(order) * PPM)


def _most_tokens(terms: Terms) -> list[int]:
    """The most tokens that each epoch can be paid for."""
    return [
        terms.seats * _rounds_in(terms, epoch) * terms.most_tokens_per_step for epoch in range(terms.epochs)
    ]


def _cost(terms: Terms, tokens: list[int]) -> Cost:
    """The settlement's own arithmetic, epoch by epoch, for these numbers of paid tokens."""
    operators = verifiers = gross_all = 0
    for gross in _gross(terms, tokens):
        operators += gross * terms.money.operators_ppm // PPM
        verifiers += gross * terms.money.verifiers_ppm // PPM
        gross_all += gross
    return Cost(
        tokens=sum(tokens),
        gross=gross_all,
        operators=operators,
        verifiers=verifiers,
        fee=gross_all - operators - verifiers,
    )


def _gross(terms: Terms, tokens: list[int]) -> Iterator[int]:
    """The price of each epoch with these numbers of paid tokens."""
    return (count * terms.money.price_per_mtoken // 10**6 for count in tokens)


def _rounds_in(terms: Terms, epoch: int) -> int:
    first = epoch * terms.money.epoch_rounds
    return min(terms.money.epoch_rounds, terms.rounds - first)


def differing(ordered: Any, found: Any, place: str = "") -> list[str]:
    """One line for each field in which a part of a spec is not what was ordered, with both values."""
    if is_dataclass(ordered) and type(ordered) is type(found):
        return [
            line
            for field in fields(ordered)
            for line in differing(
                getattr(ordered, field.name), getattr(found, field.name), f"{place}.{field.name}".lstrip(".")
            )
        ]
    return (
        [] if ordered == found else [f"{place}: {_short(found)} in the spec, {_short(ordered)} was ordered"]
    )


def _short(value: Any) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else str(value)
