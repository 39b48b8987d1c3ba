"""Order spec: builds the `RunSpec` that all parties sign from an order.

Room: orders (pure). The one place where an order's decimal numbers become the integers of `RunSpec`; the same
order, data and members give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from assay.ledger.settlement.funding import closing_s
from assay.orders.amounts import scaled
from assay.orders.order import Order
from assay.orders.order import compute_spec as compute_spec
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import ConfigError
from assay.protocol.messages import LOSS_MICRO_MAX
from assay.protocol.openings import OPENED_BLOCKS_MAX
from assay.protocol.params import (
    NO_ACCEPT,
    NO_CHOICES,
    AcceptSpec,
    AuditSpec,
    ChoicesSpec,
    DataSpec,
    Member,
    Milestone,
    ModelSpec,
    MoneySpec,
    RunSpec,
    SourceShare,
    Stratum,
    TimingSpec,
    check_spec,
    sampling_faults,
    stratum_faults,
    windows_needed,
)
from assay.protocol.randomness.drand import NO_DRAND
from assay.protocol.types import NO_ADDRESS, NO_DIGEST, Address, Digest
from assay.training.data.batches import describe
from assay.training.data.shards import DataManifest
from assay.training.fragments import check_fragments
from assay.training.layout import layout_of
from assay.verifier.aggregation.registry import check_aggregation
from assay.verifier.audit.messages import OPENING_BYTES_PER_S, opening_bytes_max

SOURCE_MAX, LICENCE_MAX = 512, 128  # characters, the bounds of DataSpec


def model_spec(order: Order, base: Digest = NO_DIGEST) -> ModelSpec:
    """The model, starting from the parameters of this digest if they are imported."""
    return replace(order.sizes, base=base)


def audit_spec(order: Order) -> AuditSpec:
    """The rules of audits."""
    verify, policy = order.verify, order.policy
    return AuditSpec(
        probation=verify.probation,
        floor_ppm=scaled(verify.floor, 6),
        blocks=verify.blocks,
        wide_ppm=scaled(verify.wide, 6),
        wide_blocks=verify.wide_blocks or _wide_blocks(order),
        replication_ppm=scaled(verify.replicated, 6),
        takeover_rounds=verify.takeover_rounds,
        audit_rounds=order.audit_rounds,
        dispute_rounds=order.dispute_rounds,
        absence_s=verify.absence_s,
        limits=NO_DIGEST if order.limits is None else order.limits.digest(),
        known_answer_count=verify.known_answers,
        attestation=NO_DIGEST if policy is None else digest(policy),
        attested_rounds=verify.attested_rounds if policy is not None else 0,
        code=NO_DIGEST if policy is None else Digest(bytes.fromhex(verify.code or "00" * 32)),
        drand=NO_DRAND if order.drand is None else order.drand.spec,
    )


def _wide_blocks(order: Order) -> int:
    """Blocks whose opening arrives in time over a line of `OPENING_BYTES_PER_S`."""
    layout, seconds = layout_of(order.sizes), timing_spec(order).opening_ms / 1000
    whole, block = (opening_bytes_max(order.rule, layout, count) for count in (0, 1))
    arriving = (int(seconds * OPENING_BYTES_PER_S) - whole) // (block - whole)
    return min(max(arriving, order.verify.blocks), OPENED_BLOCKS_MAX)


def money_spec(order: Order, treasury: Address) -> MoneySpec:
    """Price, shares and penalties, with the fee going to `treasury`."""
    budget = order.budget
    return MoneySpec(
        price_per_mtoken=budget.price_per_mtoken,
        operators_ppm=scaled(budget.operators, 6),
        verifiers_ppm=scaled(budget.verifiers, 6),
        treasury=treasury,
        slash_ppm=scaled(budget.slash, 6),
        withheld_ppm=scaled(budget.withheld_share, 6),
        verifier_slash_ppm=scaled(budget.verifier_slash, 6),
        epoch_rounds=budget.epoch_rounds,
        accept=accept_spec(order),
    )


def accept_spec(order: Order) -> AcceptSpec:
    """Which share of which epochs' price depends on held-out loss and accuracy after them."""
    accept = order.accept
    epochs = sorted({epoch for bounds in accept.bounds.values() for epoch in bounds}, key=int)
    if not epochs:
        return NO_ACCEPT
    return AcceptSpec(
        share_ppm=scaled(accept.share, 6),
        sequences=accept.sequences,
        milestones=tuple(
            Milestone(
                epoch=int(epoch),
                most_loss_micro=scaled(accept.held_out.get(epoch, LOSS_MICRO_MAX / 10**6), 6),
                least_acc_ppm=scaled(accept.acc.get(epoch, 0), 6),
                least_acc_norm_ppm=scaled(accept.acc_norm.get(epoch, 0), 6),
            )
            for epoch in epochs
        ),
    )


def choices_spec(order: Order) -> ChoicesSpec:
    """The multiple-choice items that the model is scored on, if any."""
    return NO_CHOICES if order.choices is None else order.choices.spec()


def timing_spec(order: Order) -> TimingSpec:
    """The timeouts of verifiers."""
    timing = order.timing
    return TimingSpec(
        collect_ms=scaled(timing.collect_s, 3),
        ready_ms=scaled(timing.ready_s, 3),
        iteration_ms=scaled(timing.iteration_s, 3),
        resend_ms=scaled(timing.resend_s, 3),
    )


def order_closing_s(order: Order) -> int:
    """Seconds in which a run of this order that is asked to close has posted every result."""
    return closing_s(audit_spec(order), timing_spec(order), order.run.verifiers, order.budget.epoch_rounds)


def data_spec(order: Order, manifest: DataManifest) -> DataSpec:
    """Description of the data for all parties: its root, split, source and licence.

    A local path is named by its last part only: its location on the buyer's disk is private, and the root
    names the bytes it holds.

    Raises:
        ConfigError: too little for one training step or one validation sequence.
    """
    compute = compute_spec(order)
    drawn = (order.sizes.context + 1) * compute.drawn_sequences
    count = windows_needed(order.rule.most_sequences_per_round // compute.trained_per_window)
    validation = manifest.tokens * scaled(order.train.validation_share, 6) // 10**6
    training = manifest.tokens - validation
    if training < drawn * count:
        raise ConfigError(
            f"data: {manifest.tokens} tokens, {training} of them for training; "
            f"one step of one node needs {drawn * count}"
        )
    what = "preference pair" if order.is_dpo else "sequence"
    if validation < drawn:
        raise ConfigError(
            f"data: {manifest.tokens} tokens, {validation} of them held out for validation; "
            f"one {what} needs {drawn}; use more data or a larger [train] validation_share"
        )
    own = [f"what {order.run.own_data} nodes have of their own"] if order.run.own_data else []
    data = describe(
        manifest,
        validation_tokens=validation,
        source=_bounded(" + ".join([*(one.source for one in manifest.sources), *own]), SOURCE_MAX, "source"),
        licence=_bounded(
            " AND ".join(dict.fromkeys(one.licence for one in manifest.sources)), LICENCE_MAX, "licence"
        ),
        strata=_strata(order, manifest),
        mixture=_mixture(order, manifest),
        replaces=order.train.replaces,
    )
    for fault in (
        *stratum_faults(data, seats=order.seats, window=drawn, windows_needed=count),
        *sampling_faults(data, window=drawn, windows_needed=count),
    ):
        raise ConfigError(f"data: {fault}")
    return data


def _strata(order: Order, manifest: DataManifest) -> tuple[Stratum, ...]:
    """Who trains on what; nothing where all train on everything."""
    bring = order.run.own_data
    public = tuple(
        Stratum(tokens=source.tokens, seats=section.seats)
        for section, source in zip(order.data, manifest.sources, strict=True)
        if section.seats is not None
    )
    if bring and not public:
        public = (Stratum(tokens=manifest.tokens, seats=order.seats - bring),)
    return (Stratum(tokens=0, seats=1),) * bring + public


def _mixture(order: Order, manifest: DataManifest) -> tuple[SourceShare, ...]:
    """How often each source is drawn; nothing where that follows from its size."""
    return tuple(
        SourceShare(tokens=source.tokens, weight_milli=scaled(section.weight, 3))
        for section, source in zip(order.data, manifest.sources, strict=True)
        if section.weight is not None
    )


def build_spec(
    order: Order,
    *,
    deployment_id: Digest,
    data: DataSpec,
    buyer: Address,
    treasury: Address,
    nodes: Sequence[Member],
    verifiers: Sequence[Member],
    reserves: Sequence[Member] = (),
    base: Digest = NO_DIGEST,
    start_by_s: int = 0,
    buyer_key: Address = NO_ADDRESS,
) -> RunSpec:
    """The spec of this order, passed by `check_spec`.

    Args:
        order: What is bought.
        deployment_id: Of the contracts that the run is paid through.
        data: As `data_spec` describes the collected data.
        buyer: Who funds the run and gets the rest back.
        treasury: Who receives the fee.
        nodes: In any order.
        verifiers: In any order.
        reserves: Likewise.
        base: State digest of the imported starting parameters; zero to draw them from the seed.
        start_by_s: Unix time by which the nodes must have come that the order waits for; 0 if for none.
        buyer_key: Address of the key that signs run file and index; zero: the buyer's own.

    Raises:
        ConfigError: parts do not fit together, for example two members share an account.
    """
    spec = RunSpec(
        deployment_id=deployment_id,
        name=order.run.name,
        seed=order.run.seed,
        rounds=order.run.rounds,
        state_every=order.verify.state_every,
        model=model_spec(order, base),
        compute=compute_spec(order),
        data=data,
        choices=choices_spec(order),
        rule=order.rule,
        audit=audit_spec(order),
        money=money_spec(order, treasury),
        timing=timing_spec(order),
        buyer=buyer,
        seats=order.seats,
        least_nodes=order.least_nodes,
        start_by_s=start_by_s,
        nodes=tuple(sorted(nodes, key=lambda member: member.peer)),
        verifiers=tuple(sorted(verifiers, key=lambda member: member.peer)),
        reserves=tuple(sorted(reserves, key=lambda member: member.peer)),
        buyer_key=NO_ADDRESS if buyer_key == buyer else buyer_key,
    )
    try:
        check_spec(spec)
        check_aggregation(spec.rule)
        check_fragments(layout_of(spec.model), spec.rule.fragments)
    except ValueError as fault:
        raise ConfigError(f"the order does not make a run: {fault}") from None
    return spec


def _bounded(text: str, count: int, what: str) -> str:
    if len(text) > count:
        raise ConfigError(f"[[data]] {what}: {len(text)} characters in all, at most {count} expected")
    return text
