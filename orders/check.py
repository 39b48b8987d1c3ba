"""Order check: reports what an order would do and cost, before anybody pays for it.

Room: orders (edge: reads the data). The report of `assay order check run.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from assay.chain.penalties import CASE_PPM_MAX, check_absence, check_penalties
from assay.chain.text.times import CLOSE_DELAY_S, EVIDENCE_WINDOW_S, span_text
from assay.ledger.settlement.funding import UNPOSTED_MAX, check_close_delay
from assay.orders.amounts import DECIMALS, bytes_text, money_text, scaled, token_text
from assay.orders.data.tokenise import OnBytes, collect_data, nobody
from assay.orders.load import load_order
from assay.orders.order import Order, keys_text, public_start
from assay.orders.price.quote import audit_share
from assay.orders.spec import (
    audit_spec,
    compute_spec,
    data_spec,
    model_spec,
    money_spec,
    order_closing_s,
    timing_spec,
)
from assay.participant.batch_size import planned_ms
from assay.protocol.errors import ConfigError
from assay.protocol.known_answers import lineage_max
from assay.protocol.params import PPM, AuditSpec, DataSpec, ModelSpec
from assay.protocol.types import NO_DIGEST, Address
from assay.protocol.update_rule import BLOCK_SIZE, RuleSpec
from assay.training.codec.contribution import contribution_bytes_max
from assay.training.data.choices import Choices
from assay.training.data.shards import DataManifest
from assay.training.execution.execution_class import execution_class
from assay.training.fragments import check_fragments
from assay.training.layout import Layout, layout_of
from assay.training.model.loss import use_one_thread
from assay.training.reference.narrowing import OPERATORS_MAX
from assay.verifier.aggregation.names import TRIMS_SENDERS
from assay.verifier.appeal.program import computed_count, why_never
from assay.verifier.audit import odds
from assay.verifier.audit.messages import OPENING_BYTES_PER_S, opening_bytes_max
from assay.verifier.audit.remake import STEPS_MAX
from assay.verifier.audit.upload import block_bits, copies_sent, openings_bytes, update_bytes

_BOUNDS = ("the held-out loss is at most", "acc is at least", "acc_norm is at least")


@dataclass(frozen=True, slots=True)
class OrderReport:
    """What an order would do and cost, by name; texts for a person."""

    rows: Mapping[str, str]

    @property
    def lines(self) -> list[str]:
        """One line for each."""
        return [f"{name:<9} {text}" for name, text in self.rows.items()]


def check_order(path: Path | None, on_bytes: OnBytes = nobody) -> OrderReport:
    """What an order would do; the order and its data are sound if this returns.

    Args:
        path: Of the order; None is the default one.
        on_bytes: As `collect_data`'s.

    Raises:
        ConfigError: one line per problem of the order, or the problem of its data.
    """
    order = load_order(path)
    check_penalties(money_spec(order, Address(bytes(20))), CASE_PPM_MAX)
    check_absence(audit_spec(order), EVIDENCE_WINDOW_S)
    check_close_delay(order_closing_s(order), CLOSE_DELAY_S)
    left_out = list[Path]()
    manifest = collect_data(order, None, on_bytes, left_out.append)
    data, model = data_spec(order, manifest), model_spec(order)
    layout = layout_of(model)
    rule = order.rule
    try:
        check_fragments(layout, rule.fragments)
    except ValueError as fault:
        raise ConfigError(f"[comm] fragments: {fault}") from None
    share = layout.blocks / rule.fragments  # of which a node sends coefficients in one round
    most = contribution_bytes_max(rule, layout.blocks)
    worst, budget = order.worst_case_units(), order.budget_units()
    use_one_thread()  # as nodes and verifiers do, so that the class below equals theirs
    rows = {
        "run": f"{order.run.name}: {order.run.nodes} nodes, {order.seats} seats, "
        f"{order.run.verifiers} verifiers"
        + (f", {order.run.reserves} in reserve" if order.run.reserves else ""),
        "starts": start_words(order),
        "model": f"{model_words(order, model)}: {layout.parameters:,} parameters in {layout.blocks:,} blocks",
        "adapter": adapter_words(model),
        "data": f"{data.tokens:,} tokens, {data.validation_tokens:,} held out: "
        f"{data.source} ({data.licence})",
        "text": f"{sum(one.bytes for one in manifest.sources):,} bytes in "
        f"{sum(one.documents for one in manifest.sources):,} documents, {tokenizer_words(data)}"
        + left_out_words(left_out),
        "strata": stratum_words(data, order.rule.aggregation.f),
        "own data": own_data_words(order),
        "draws": draw_words(order, manifest, data),
        "chat": manifest.chat_words,
        "loss": loss_words(order),
        "compute": f"{order.compute.dtype}, "
        + (
            f"{order.compute.micro_sequences} sequences"
            if order.compute.micro_sequences
            else "the whole batch"
        )
        + " per forward and backward pass",
        "method": method_words(order, rule),
        "update": f"about {bytes_text(update_bytes(rule, layout))} per node and round "
        f"({block_bits(rule) * share / layout.parameters:.2f} bits per parameter), "
        f"at most {bytes_text(most)}",
        "work": f"{order.run.rounds:,} rounds of {order.least_nodes * order.tokens_per_step:,} tokens, "
        + epoch_words(order),
        "sizes": size_words(order),
        "audits": f"about {audit_share(order):.0%} of an honest node's steps recomputed; "
        + opened_words(audit_spec(order), layout.blocks),
        "uploads": upload_words(order, layout),
        "openings": late_words(order, layout),
        "deters": deters_words(order),
        "accused": accused_words(order),
        "appeals": appeal_words(order, model),
        "price": f"{token_text(worst)} if every contribution counts",
        "pays": f"{token_text(node_price(order))} per 10^6 tokens to a node, for a lot of "
        f"{token_text(order.lot_units)}",
        "choices": choices_words(order.choices),
        "accept": accept_words(order),
        "budget": f"{token_text(budget)} in escrow; what is not earned returns",
        "class": f"{execution_class(compute_spec(order)).hex()[:16]} on this machine",
    }
    return OrderReport({name: text for name, text in rows.items() if text})


def epoch_words(order: Order) -> str:
    """How many epochs there are, and what many of them need."""
    text = f"{order.epochs:,} epochs"
    if order.epochs <= UNPOSTED_MAX:
        return text
    return (
        f"{text}; training waits while more than {UNPOSTED_MAX} of them lack a result, and each result locks "
        "its poster's bond for the challenge window: fewer epochs, of more rounds, wait less"
    )


def loss_words(order: Order) -> str:
    """What the run minimises and, with GRPO, what sampling costs; empty for the loss of the next token."""
    if order.is_dpo:
        return f"DPO, beta {order.dpo_beta:g}"
    if not order.is_grpo:
        return ""
    grpo = order.grpo
    prompts = order.rule.sequences_per_round // grpo.group
    return (
        f"GRPO, {prompts:,} prompts a step with {grpo.group} completions each, "
        f"of at most {grpo.completion:,} tokens; reward {grpo.reward.name.lower()}. Sampling takes "
        # a gradient takes a forward pass and a backward one, of twice the arithmetic
        f"up to {grpo.completion / 3:,.1f} times the arithmetic of the step's gradient, by its node and "
        "again by its auditor"
    )


def size_words(order: Order) -> str:
    """How far the steps of nodes may differ in size; empty where all are of one size."""
    local = order.rule.local
    if not local.sequences_max:
        return ""
    return (
        f"{local.sequences} to {local.sequences_max} sequences a step, as many as a node has time for in "
        f"{planned_ms(timing_spec(order)) / 1000:g} s; it is paid for each, and escrow and deterrence "
        "assume the most"
    )


def stratum_words(data: DataSpec, f: int) -> str:
    """Which seats train on what; empty if all train on everything."""
    seats = [stratum.seats for stratum in data.strata if not stratum.is_own and stratum.seats]
    if not data.strata or len(seats) < min(2, len(data.strata)):
        return ""
    words = f"{' + '.join(map(str, seats))} seats, each on its own source"
    small = sum(1 for count in seats if count <= 2 * f)
    if small:
        words += f"; in {small} of {len(seats)}, {f} liars can be the majority: bounded by the others' nodes"
    return words


def own_data_words(order: Order) -> str:
    """What is different with nodes that bring data of their own; empty without any."""
    bring, public = order.run.own_data, order.seats - order.run.own_data
    if not bring:
        return ""
    windows = order.rule.most_sequences_per_round
    drawn = (
        windows if order.rule.is_gradient else windows // order.rule.local.steps * order.rule.local.segment
    )
    others = f"the other {public} on the order's" if public else "the order's are only held out"
    return (
        f"{bring} of the named nodes train on data that only they have, {others}; a drawn step shows "
        f"{drawn:,} windows of them to its auditors and to nobody else. Without known-answer tasks, "
        "receipts, appeals and accusations"
    )


def draw_words(order: Order, manifest: DataManifest, data: DataSpec) -> str:
    """How often each source is drawn; empty where sequences are drawn by size and with replacement."""
    if data.replaces and not data.mixture:
        return ""
    compute, bring = compute_spec(order), order.run.own_data
    steps = order.run.rounds * (order.least_nodes - bring)
    draws = steps * order.rule.sequences_per_round // compute.trained_per_window
    portions = data.portions(bring, (order.sizes.context + 1) * compute.drawn_sequences)
    total = sum(one.weight for one in portions)
    passes = [draws * one.weight / total / len(one.numbers) for one in portions]
    if not data.mixture:
        return f"without replacement, {passes[0]:,.2f} passes over the sequences"
    shares = (
        f"{source.source} {one.weight / total:.1%} of the sequences, {count:,.2f} passes"
        for source, one, count in zip(manifest.sources, portions, passes, strict=True)
    )
    return f"{'; '.join(shares)}; {order.train.sampling.replace('-', ' ')}"


def accept_words(order: Order) -> str:
    """What depends on the model's score; empty if nothing does."""
    accept = order.accept
    asked = [
        f"{name} {', '.join(f'{bound:g} after epoch {epoch}' for epoch, bound in bounds.items())}"
        for (key, bounds), name in zip(accept.bounds.items(), _BOUNDS, strict=True)
        if bounds
    ]
    if not asked:
        return ""
    items = "" if order.choices is None else f" and {len(order.choices.items):,} items"
    return (
        f"{accept.share:.0%} of an epoch's price only if {', and '.join(asked)}: "
        f"each verifier measures {accept.sequences} sequences{items}"
    )


def choices_words(choices: Choices | None) -> str:
    """The multiple-choice items, in one line; empty without any."""
    if choices is None:
        return ""
    guess = sum(1 / len(item.choices) for item in choices.items) / len(choices.items)
    return (
        f"{len(choices.items):,} items of {choices.name}, {choices.sequences:,} choices, {choices.tokens:,} "
        f"tokens with their queries; a guess is right in {guess:.1%}"
    )


def node_price(order: Order) -> int:
    """What an operator earns for 10^6 accepted tokens, in token units."""
    return money_spec(order, Address(bytes(20))).operator_price


def start_words(order: Order) -> str:
    """What a run waits for that names fewer nodes than it needs; empty for any other."""
    if not order.start_within_s:
        return ""
    return f"with {order.least_nodes} nodes, within {span_text(order.start_within_s)}, or never"


def model_words(order: Order, model: ModelSpec) -> str:
    """The model's sizes and where they come from, in one line."""
    section = order.model
    origin = (
        f"base {Path(section.base).name}" if section.base else section.preset or model.family.name.lower()
    )
    sizes = (
        f"{model.layers} x {model.width}, {model.heads} heads ({model.kv_heads} kv), context {model.context}"
    )
    return f"{origin}, {sizes}, vocabulary {model.vocabulary:,}"


def adapter_words(model: ModelSpec) -> str:
    """The adapter that is trained, in one line; empty if all parameters are."""
    if not model.is_adapted:
        return ""
    adapter, whole = model.adapter, layout_of(model.whole).parameters
    targets = ", ".join(one.name.lower() for one in adapter.targets)
    held = f", in {adapter.base_bits} bits" if adapter.base_bits else ""
    return (
        f"rank {adapter.rank}, alpha {adapter.alpha}, on {targets}; the base's {whole:,} parameters stay as "
        f"they are{held}, {whole / layout_of(model).parameters:,.0f} times as many"
    )


def tokenizer_words(data: DataSpec) -> str:
    """The tokenizer, in one line."""
    return "a token each byte" if data.tokenizer == NO_DIGEST else f"tokenizer {data.tokenizer.hex()[:16]}"


def left_out_words(files: Sequence[Path]) -> str:
    """How many files are left out because they hold zero bytes; empty if none are."""
    if not files:
        return ""
    count, first = len(files), files[0].name
    words = f"1 file left out, {first}: it holds" if count == 1 else f"{count:,} files left out: they hold"
    return f"; {words} zero bytes, as binary files and UTF-16 text do"


def method_words(order: Order, rule: RuleSpec) -> str:
    """A node's local work and its message in one round, as lines."""
    local, compress = rule.local, rule.compress
    work = "one gradient" if rule.is_gradient else f"{local.steps} {local.optimiser.name} steps"
    if compress.rank:
        sent = f"factors of rank {compress.rank}"
    elif compress.k == BLOCK_SIZE:
        sent = f"everything as {compress.values.name}"
    else:
        sent = f"{compress.k} of {BLOCK_SIZE} coefficients as {compress.values.name}"
    parts = f", one of {rule.fragments} fragments a round" if rule.fragments > 1 else ""
    means = f"{rule.aggregation.name} for f = {rule.aggregation.f}"
    if rule.aggregation.name in TRIMS_SENDERS and not rule.is_dense:
        means += (
            ", which trims among those that sent a coefficient: nearly a mean, most have fewer than three"
        )
    return f"{order.comm.method}: {work}, then {sent}{parts}; {means}; {rule.outer.kind.name} step"


def opened_words(rules: AuditSpec, blocks: int) -> str:
    """How much of a step's state audits open, and how long a single false block stays unopened."""
    usual, wide = min(rules.blocks, blocks), min(rules.wide_blocks, blocks)
    opened = f"at the floor every one opens {usual:,} of {blocks:,} blocks"
    if usual < wide and rules.wide_ppm:
        opened += f", one of {PPM / rules.wide_ppm:g} {wide:,}"
    found = Fraction(rules.floor_ppm, PPM) * odds.power_over_blocks(rules, blocks, 1)
    steps = float(1 / found)
    return f"{opened}; a block that is false in every step is opened after {steps:,.0f}"


def upload_words(order: Order, layout: Layout) -> str:
    """How much an honest node uploads a round, in the mean: its update and what its audits open."""
    update, rules = update_bytes(order.rule, layout), audit_spec(order)
    copies = copies_sent(order.run.verifiers, update)
    first, last = (openings_bytes(order.rule, rules, layout, rate) for rate in (PPM, rules.floor_ppm))
    total, later = (copies * update + openings for openings in (first, last))
    return (
        f"{bytes_text(total)} a node and round on probation, {total / update:.1f} times its update, and "
        f"{bytes_text(later)} at the floor, {later / update:.1f} times: the update to {copies} verifiers, "
        f"and up to {bytes_text(first)} and {bytes_text(last)} of openings"
    )


def late_words(order: Order, layout: Layout) -> str:
    """Which openings arrive too late over a usual line, and what makes them arrive; empty if all do.

    An opening is a usual audit's at the floor. One that is late costs its node a dispute, and its lot if it
    stays away for `absence_s`.
    """
    count, rule, seconds = audit_spec(order).blocks, order.rule, timing_spec(order).opening_ms / 1000
    longest = opening_bytes_max(rule, layout, count)
    if longest <= seconds * OPENING_BYTES_PER_S:
        return ""
    public, keys = public_start(rule)
    collect_s = math.ceil(longest / OPENING_BYTES_PER_S / seconds * order.timing.collect_s)
    words = (
        f"one takes up to {bytes_text(longest)} and does not arrive within {seconds:g} s at "
        f"{bytes_text(OPENING_BYTES_PER_S)} a second, as collect_s = {collect_s} would allow"
    )
    if not keys:
        return words
    less = bytes_text(opening_bytes_max(public, layout, count))
    return (
        f"{words}; {keys_text(keys)}: openings of {less}, and "
        f'an audit repeats all {rule.local.steps} steps (docs/buyers.md, "A public start")'
    )


def deters_words(order: Order) -> str:
    """The cheating that stake, slash and the audits' floor make unprofitable, as lines."""
    budget, step_tokens = order.budget, order.most_tokens_per_step
    return (
        deterrence_words(
            audit_spec(order),
            order.audit_rounds + order.dispute_rounds,
            stake=scaled(budget.operator_stake, DECIMALS),
            slash_ppm=scaled(min(budget.slash, budget.withheld_share), 6),
            step_pay=step_tokens * budget.price_per_mtoken * scaled(budget.operators, 6) // PPM // 10**6,
            idle=order.rule.idle_steps,
        )
        + f"; {_bribery_words(order)}; {_laziness_words(order)}"
    )


def accused_words(order: Order) -> str:
    """Which steps nobody can accuse after the run, and why; empty if every one can be."""
    rule, steps = order.rule, lineage_max(order.rule, order.run.rounds, order.verify.known_answers)
    if steps <= STEPS_MAX:
        return ""
    fragments = f", in each of {rule.fragments} fragments" if rule.fragments > 1 else ""
    return (
        f"no step of a node after its first {STEPS_MAX:,}: its state begins anew every "
        f"{rule.compress.reset_rounds} rounds{fragments}, and up to {steps:,} steps lead to it"
    )


def appeal_words(order: Order, model: ModelSpec) -> str:
    """Of which steps a convicted node may have a jury decide, and why of no others."""
    compute, rule, least = compute_spec(order), order.rule, order.rule.local.sequences
    has_limits = order.limits is not None
    reason = why_never(model, compute, rule, least, has_limits=has_limits)
    if reason is None and order.run.own_data == order.seats:
        reason = "every node trains on data that only it has"
    if reason is not None:
        return f"of no step: {reason}"
    words = (
        "of every step" if order.verify.state_every == 1 else f"of one in {order.verify.state_every} rounds"
    )
    unit = compute.sequence_unit
    one, two = (computed_count(model, compute, rule, count * unit) for count in (1, 2))
    most = (1 + (OPERATORS_MAX - one) // (two - one)) * unit if two > one else rule.local.most_sequences
    if rule.local.most_sequences > most:
        words += f" of up to {most:,} sequences: a larger one has too many operators to be narrowed down"
    return words if rule.is_gradient else f"{words}, in execution classes with limits for inner steps"


def _laziness_words(order: Order) -> str:
    """Whether an auditor that recomputes nothing risks anything; docs/odds.md, section 4."""
    if order.limits is None:
        return "an auditor that recomputes nothing risks its stake in every audit"
    if order.verify.replicated:
        share = 1 + 1 / order.verify.replicated
        return f"an auditor that recomputes nothing risks its stake in one of {share:g} audits"
    if order.verify.known_answers:
        return "an auditor that recomputes nothing risks its stake in every audit of a known-answer task"
    return "an auditor that recomputes nothing is not deterred: replicated and known_answers are 0"


def _bribery_words(order: Order) -> str:
    """Whether the verifiers' stake makes bribing an auditor a loss for one of the two."""
    budget, second = order.budget, Fraction(str(order.verify.replicated))
    lost = int(scaled(budget.operator_stake, DECIMALS) * Fraction(str(budget.slash)))
    if not second:
        return "bribing an auditor pays, for no audit is replicated"
    need = odds.stake_against_bribery(lost, second, Fraction(str(budget.verifier_slash)))
    if scaled(budget.verifier_stake, DECIMALS) >= need:
        return "no bribe suits a node and its auditor"
    return f"bribing an auditor pays: it would not with a verifier_stake of {token_text(need)}"


def deterrence_words(
    rules: AuditSpec,
    late: int,
    *,
    stake: int,
    slash_ppm: int,
    step_pay: int,
    power: Fraction = Fraction(19, 20),
    idle: int = 1,
) -> str:
    """What an order's stake, slash and audit floor deter, in one line.

    Args:
        rules: The run's audits.
        late: Rounds until the last verdict on a step.
        stake: An operator's, token units.
        slash_ppm: The share lost for a confirmed fault, or for a refused opening, whichever is less.
        step_pay: What one accepted step earns its operator, token units.
        power: d, of one audit.
        idle: Steps without work that one unseen false step makes possible.
    """
    rate, lost = Fraction(rules.floor_ppm, PPM), stake * slash_ppm // PPM
    saving = odds.saving_deterred(lost, rate, power, idle=idle, in_flight=late)
    outside = int(lost * rate * power / (1 - rate * power)) if rate * power < 1 else None
    of_pay = f"{saving / step_pay:,.1f} times" if step_pay else "of"
    many = odds.steps_until(odds.hit(rate, Fraction(1, 10), power), Fraction(99, 100))
    sabotage = "any sabotage" if outside is None else f"one false step worth up to {money_text(outside)}"
    return (
        f"skipping work worth {token_text(saving)} a step ({of_pay} its pay), {sabotage}; "
        f"lying in 1 step of 10 is found within {many:,} steps (99 %)"
    )
