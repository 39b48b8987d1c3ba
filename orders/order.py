"""Order: a buyer's checked order, with the contents of the files it names.

Room: orders (pure). `load` reads an order from run.toml, once; `spec` turns it into the integers that the
parties sign.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from assay.attestation.policy import AppraisalPolicy
from assay.orders.amounts import DECIMALS, TOKENS_MAX, scaled, token_text
from assay.orders.config_errors import ConfigProblem
from assay.orders.drand import DrandNetwork
from assay.orders.sections import (
    AcceptSection,
    BudgetSection,
    CommSection,
    ComputeSection,
    DataSection,
    EvaluateSection,
    ModelSection,
    RunSection,
    TimingSection,
    TrainSection,
    VerifySection,
)
from assay.protocol.agreement.quorum import faults_tolerated, least_audit_rounds, least_dispute_rounds, quorum
from assay.protocol.grpo import DIGIT, NO_GRPO, GrpoSpec, Reward, grpo_faults
from assay.protocol.messages import ADMISSIONS_MAX
from assay.protocol.openings import WINDOWS_MAX
from assay.protocol.params import ComputeSpec, ModelSpec, Precision, size_faults
from assay.protocol.update_rule import Outer, RuleSpec, check_rule
from assay.training.data.chat_template import ChatTemplate
from assay.training.data.choices import Choices
from assay.training.data.tokenizer import Tokenizer
from assay.training.layout import layout_of
from assay.training.optimiser.matrices import check_start
from assay.verifier.audit.limits import Limits

DPO_BETA = 0.1  # of the paper, and the default of TRL
GRPO_GROUP, GRPO_TOKENS = 8, 32  # the default of TRL; of an answer without the thought before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The tables of a run.toml and what they name; only data and starting parameters are still to be read."""

    run: RunSection
    model: ModelSection
    compute: ComputeSection
    data: tuple[DataSection, ...]
    train: TrainSection
    comm: CommSection
    verify: VerifySection
    budget: BudgetSection
    evaluate: EvaluateSection
    accept: AcceptSection
    timing: TimingSection
    folder: Path  # where relative paths start
    sizes: ModelSpec  # its `base` is zero
    tokenizer: Tokenizer
    chat: ChatTemplate | None  # for conversations; None if no source has any
    choices: Choices | None  # that the model is scored on
    rule: RuleSpec
    limits: Limits | None  # for steps of other execution classes; None: they are not judged
    policy: AppraisalPolicy | None  # for nodes' attestation evidence; None: evidence does not count
    drand: DrandNetwork | None  # that draws also depend on

    @property
    def seats(self) -> int:
        """Nodes that may take part at a time."""
        return self.run.seat_count

    @property
    def least_nodes(self) -> int:
        """Nodes without which the run does not start."""
        return self.run.least_count

    @property
    def start_within_s(self) -> int:
        """Time for which the run waits for more nodes than are named; 0: it waits for none."""
        return self.run.start_within_s if self.least_nodes > self.run.nodes else 0

    @property
    def is_dpo(self) -> bool:
        """Whether the data are preference pairs, so that the loss is that of DPO."""
        return any(source.is_preferences for source in self.data)

    @property
    def dpo_beta(self) -> float:
        """Beta of DPO; 0 with any other data."""
        if not self.is_dpo:
            return 0.0
        return DPO_BETA if self.train.dpo_beta is None else self.train.dpo_beta

    @property
    def is_grpo(self) -> bool:
        """Whether the data are tasks, so that nodes train on completions that they sample."""
        return any(source.is_tasks for source in self.data)

    @property
    def grpo(self) -> GrpoSpec:
        """The terms of GRPO; none with any other data."""
        train = self.train
        if not self.is_grpo:
            return NO_GRPO
        return GrpoSpec(
            group=train.grpo_group or GRPO_GROUP,
            completion=train.grpo_tokens or GRPO_TOKENS,
            end=self.tokenizer.separator or 0,
            reward=Reward[(train.grpo_reward or "exact").upper()],
        )

    @property
    def tokens_per_step(self) -> int:
        """Least tokens that a node trains on in one round."""
        return self.rule.sequences_per_round * self.sizes.context

    @property
    def most_tokens_per_step(self) -> int:
        """Most tokens that a node may train on in one round."""
        return self.rule.most_sequences_per_round * self.sizes.context

    @property
    def epochs(self) -> int:
        """Settlements of the run."""
        return -(-self.run.rounds // self.budget.epoch_rounds)

    @property
    def lot_units(self) -> int:
        """What each operator locks for the run, in token units."""
        return scaled(self.budget.operator_stake, DECIMALS)

    def epoch_units_max(self) -> int:
        """The most that one epoch can cost, in token units, every seat taken: the escrow's cap per epoch."""
        return self._gross_units(min(self.budget.epoch_rounds, self.run.rounds))

    def worst_case_units(self) -> int:
        """What the run costs if every contribution counts, in token units."""
        whole, rest = divmod(self.run.rounds, self.budget.epoch_rounds)
        return whole * self._gross_units(self.budget.epoch_rounds) + self._gross_units(rest)

    def budget_units(self) -> int:
        """What the buyer puts in escrow, in token units."""
        if self.budget.amount != "auto":
            return self.budget.amount
        return -(-self.worst_case_units() * 105 // 100)

    @property
    def audit_rounds(self) -> int:
        """Rounds from a step to its last verdict."""
        return self.verify.audit_rounds or max(8, least_audit_rounds(self.run.verifiers))

    @property
    def dispute_rounds(self) -> int:
        """Rounds that a committee has."""
        return self.verify.dispute_rounds or max(4, least_dispute_rounds(self.run.verifiers))

    def _gross_units(self, rounds: int) -> int:
        return rounds * self.seats * self.most_tokens_per_step * self.budget.price_per_mtoken // 10**6


def compute_spec(order: Order) -> ComputeSpec:
    """How every node computes a gradient."""
    dtype = Precision[order.compute.dtype.upper()]
    return ComputeSpec(
        dtype=dtype,
        micro_sequences=order.compute.micro_sequences,
        beta_micro=scaled(order.dpo_beta, 6),
        grpo=order.grpo,
    )


def public_start(rule: RuleSpec) -> tuple[RuleSpec, Mapping[str, str]]:
    """This rule with rounds that start from public parameters alone, and the keys of an order for it.

    No keys if it starts so already. A node that continues from its own parameters can do so in no other way
    than to give them up, so fragments become one.
    """
    if rule.is_gradient:
        return rule, {}
    local, keys = rule.local, dict[str, str]()
    if local.keeps_moments:
        local, keys = replace(local, keeps_moments=False), {**keys, "keep_moments": "false"}
    if rule.segments > 1:
        local, keys = replace(local, segment=local.steps), {**keys, "segment": str(local.steps)}
    if not rule.is_local_kept:
        return replace(rule, local=local), keys
    return (
        replace(rule, local=local, fragments=1, merge_ppm=0, apply_lag=0),
        {**keys, "fragments": "1", "merge": "0", "apply_lag": "0"},
    )


def keys_text(keys: Mapping[str, str]) -> str:
    """Keys of an order, as somebody who writes it reads them."""
    return ", ".join(f"{key} = {value}" for key, value in keys.items())


def contradictions(order: Order) -> Iterator[ConfigProblem]:
    """Problems that no single key shows: parts of an order that contradict each other."""
    run, budget = order.run, order.budget
    for number, text in run.attesters.items():
        place = ("run", "attesters", number)
        if number not in map(str, range(run.nodes)):
            yield ConfigProblem(place, text, f"no such node; nodes are 0 to {run.nodes - 1}")
        elif order.verify.attestation is None:
            yield ConfigProblem(place, text, "evidence counts nothing without [verify] attestation")
    yield from _wrong_counts(order)
    yield from _wrong_domains(order)
    yield from _wrong_weights(order)
    yield from _wrong_milestones(order)
    if order.verify.known_answers * 20 > run.rounds:
        reason = f"at most one step in 20 can be a known-answer task, and each node has {run.rounds} steps"
        yield ConfigProblem(("verify", "known_answers"), order.verify.known_answers, reason)
    for name, least in (
        ("audit_rounds", least_audit_rounds(run.verifiers)),
        ("dispute_rounds", least_dispute_rounds(run.verifiers)),
    ):
        if getattr(order, name) < least:
            reason = f"lying leaders could hide verdicts: {run.verifiers} verifiers need at least {least}"
            yield ConfigProblem(("verify", name), getattr(order, name), reason)
    tolerated, of_all = faults_tolerated(run.verifiers), faults_tolerated(run.verifiers + run.reserves)
    if of_all != tolerated:
        reason = (
            f"{run.verifiers} verifiers tolerate {tolerated} faults, with them {of_all}: expected as many"
        )
        yield ConfigProblem(("run", "reserves"), run.reserves, reason)
    if not order.data:
        yield ConfigProblem(
            ("data",), [], "expected at least one source; leave the key out for the standard library"
        )
    for index, source in enumerate(order.data):
        if source.is_stdlib and source.is_templated:
            reason = "the standard library has no conversations, no preference pairs and no tasks"
            yield ConfigProblem(("data", index, "format"), source.format, reason)
    if order.model.chat_template is not None and order.chat is None:
        reason = (
            'no source has conversations; write format = "chat", "preferences" or "tasks" under the [[data]] '
            "that has"
        )
        yield ConfigProblem(("model", "chat_template"), order.model.chat_template, reason)
    for reason in size_faults(order.rule.local, compute_spec(order)):
        yield ConfigProblem(("train", "sequences_max"), order.train.sequences_max, reason)
    yield from _wrong_dpo(order)
    yield from _wrong_grpo(order)
    windows = order.rule.most_sequences_per_round // compute_spec(order).trained_per_window
    if windows > WINDOWS_MAX:
        reason = f"a step takes {windows} windows, at most {WINDOWS_MAX} expected: fewer steps, or sequences"
        yield ConfigProblem(("train", "sequences"), order.rule.local.most_sequences, reason)
    if order.sizes.is_adapted and order.compute.dtype == "bfloat16" and order.limits is not None:
        # Measured on small adapters: honest blocks of another class are 2 to 6 % away, and so are false ones.
        reason = (
            "an adapter's steps in bfloat16 cannot be judged between execution classes; "
            'expected "float32", or [verify] limits = "none" and machines of one class'
        )
        yield ConfigProblem(("compute", "dtype"), order.compute.dtype, reason)
    rule, faults = order.rule, list[str]()
    if order.comm.momentum and rule.outer.kind in (Outer.SGD, Outer.SIGN):
        named = rule.outer.kind.name.lower()
        reason = f'the outer step "{named}" has none; expected outer = "nesterov", "adam" or "yogi"'
        yield ConfigProblem(("comm", "momentum"), order.comm.momentum, reason)
    check_rule(rule, lambda holds, reason: None if holds else faults.append(reason))
    try:
        check_start(rule, layout_of(order.sizes))
    except ValueError as fault:
        faults.append(f"{fault}; with {keys_text(public_start(rule)[1])} it shows none")
    for reason in faults:
        yield ConfigProblem(("comm", "method"), order.comm.method, f"as it is set up here: {reason}")
    yield from _wrong_f(order)
    if scaled(budget.operators, 6) + scaled(budget.verifiers, 6) > 10**6:
        yield ConfigProblem(("budget", "operators"), budget.operators, "with verifiers, the shares exceed 1")
    if order.epoch_units_max() == 0:
        reason = "an epoch would cost less than one token unit; expected a higher price or longer epochs"
        yield ConfigProblem(("budget", "price_per_mtoken"), budget.price_per_mtoken, reason)
    elif order.budget_units() < order.worst_case_units():
        need, have = order.worst_case_units(), order.budget_units()
        reason = (
            f"the run can cost {token_text(need)} ({need} units), "
            f"this pays for {token_text(have)} ({have} units)"
        )
        yield ConfigProblem(("budget", "amount"), budget.amount, reason)
    elif order.budget_units() > TOKENS_MAX * 10**DECIMALS:
        reason = f"the run can cost {token_text(order.worst_case_units())}, more than can be held"
        yield ConfigProblem(("budget", "price_per_mtoken"), budget.price_per_mtoken, reason)


def _wrong_f(order: Order) -> Iterator[ConfigProblem]:
    """An f at which the nodes that it allows to lie could stop the model by staying away."""
    f, least = order.rule.aggregation.f, order.least_nodes
    if not 0 < least < 3 * f + 1:
        return
    absent = least - 2 * f  # the rule refuses a round of no more than 2f
    fewer = f"if {absent} of {least} nodes stay away" if absent > 0 else f"with {least} nodes"
    most, needed = (least - 1) // 3, 3 * f + 1
    reason = (
        f"{fewer} the model stands still, and the others are paid; expected at most {most}, or {needed} nodes"
    )
    yield ConfigProblem(("comm", "f"), f, reason)


def _wrong_milestones(order: Order) -> Iterator[ConfigProblem]:
    """A share without milestones, milestones without a share, and milestones of no epoch."""
    accept = order.accept
    if any(accept.bounds.values()) != (accept.share > 0):
        reason = "expected both or neither: a share of the price, and held_out, acc or acc_norm"
        yield ConfigProblem(("accept", "share"), accept.share, reason)
    known = {str(epoch) for epoch in range(order.epochs)}
    for key, bounds in accept.bounds.items():
        for epoch, bound in bounds.items():
            if epoch not in known:
                reason = f"no such epoch; epochs are 0 to {order.epochs - 1}"
                yield ConfigProblem(("accept", key, epoch), bound, reason)
        if bounds and key != "held_out" and order.choices is None:
            reason = "accuracy needs items; expected [evaluate] choices, the file that has them"
            yield ConfigProblem(("accept", key), dict(bounds), reason)


def _wrong_dpo(order: Order) -> Iterator[ConfigProblem]:
    """What does not go with DPO, or with any loss but that."""
    if not order.is_dpo:
        if order.train.dpo_beta is not None:
            reason = 'no source has preference pairs; write format = "preferences" under every [[data]]'
            yield ConfigProblem(("train", "dpo_beta"), order.train.dpo_beta, reason)
        return
    for index, source in enumerate(order.data):
        if not source.is_preferences:
            reason = 'another source has preference pairs, which train alone; expected "preferences"'
            yield ConfigProblem(("data", index, "format"), source.format, reason)
    if order.model.base is None:
        reason = "DPO needs a base: the reference model that the pairs are compared under"
        yield ConfigProblem(("model", "base"), None, reason)
    if order.sizes.vocabulary < DIGIT or order.tokenizer.vocabulary < DIGIT:
        reason = f"the reference model's figures are written in {DIGIT} tokens, expected at least as many"
        yield ConfigProblem(("model", "vocabulary"), order.sizes.vocabulary, reason)
    sequences, micro = order.rule.local.sequences, order.compute.micro_sequences
    if sequences % 2:
        reason = "a step of DPO takes whole preference pairs, expected an even number"
        yield ConfigProblem(("train", "sequences"), sequences, reason)
    if micro % 2:
        reason = "it would tear a preference pair, expected an even number"
        yield ConfigProblem(("compute", "micro_sequences"), micro, reason)
    if order.compute.dtype == "bfloat16" and order.limits is not None:
        reason = (
            "a pair's two gradients nearly cancel, so bfloat16 cannot be judged between execution classes; "
            'expected "float32", or [verify] limits = "none" and machines of one class'
        )
        yield ConfigProblem(("compute", "dtype"), order.compute.dtype, reason)


def _wrong_grpo(order: Order) -> Iterator[ConfigProblem]:
    """What does not go with GRPO, or with any loss but that."""
    if not order.is_grpo:
        for key in ("grpo_group", "grpo_tokens", "grpo_reward"):
            if (value := getattr(order.train, key)) is not None:
                reason = 'no source has tasks; write format = "tasks" under every [[data]]'
                yield ConfigProblem(("train", key), value, reason)
        return
    for index, source in enumerate(order.data):
        if not source.is_tasks:
            reason = 'another source has tasks, which train alone; expected "tasks"'
            yield ConfigProblem(("data", index, "format"), source.format, reason)
    if order.tokenizer.separator is None:
        reason = "a completion ends with the tokenizer's separator, expected one"
        yield ConfigProblem(("model", "separator"), order.model.separator, reason)
    if not order.rule.is_gradient:
        reason = "GRPO samples at the start of a round, expected a method without inner steps"
        yield ConfigProblem(("comm", "method"), order.comm.method, reason)
    if order.limits is not None:
        reason = (
            "where two tokens nearly tie, another execution class samples another completion, so no limit "
            'between classes tells a lie from a rounding; expected "none", and machines of one class'
        )
        yield ConfigProblem(("verify", "limits"), order.verify.limits, reason)
    faults = grpo_faults(
        order.grpo,
        sequences=order.rule.sequences_per_round,
        context=order.sizes.context,
        vocabulary=min(order.sizes.vocabulary, order.tokenizer.vocabulary),
    )
    for fault in faults:
        yield ConfigProblem(("train", "grpo_group"), order.grpo.group, f"as it is set up here: {fault}")


def _wrong_domains(order: Order) -> Iterator[ConfigProblem]:
    """Sources of which some have seats of their own and some not, or seats that are not all of the run's.

    Also more nodes that bring data than are named, or data that cannot be brought.
    """
    bring, public = order.run.own_data, order.seats - order.run.own_data
    if bring > order.run.nodes:
        reason = f"of the {order.run.nodes} nodes that are named; expected no more"
        yield ConfigProblem(("run", "own_data"), bring, reason)
    if bring and (order.is_dpo or order.is_grpo):
        reason = (
            "preference pairs and tasks hold more than their text, which would be the node's word: expected 0"
        )
        yield ConfigProblem(("run", "own_data"), bring, reason)
    named = [source.seats for source in order.data if source.seats is not None]
    if not named:
        return
    for index, source in enumerate(order.data):
        if source.seats is None:
            reason = "another source has seats of its own; expected some for every source, or for none"
            yield ConfigProblem(("data", index, "seats"), None, reason)
    if len(named) == len(order.data) and sum(named) != public:
        own = f", less {bring} with data of their own" if bring else ""
        reason = f"the sources have {sum(named)} seats together, expected the run's {order.seats}{own}"
        yield ConfigProblem(("data", 0, "seats"), named[0], reason)


def _wrong_weights(order: Order) -> Iterator[ConfigProblem]:
    """Sources of which some have weights and some not, weights that are no shares, or that seats override."""
    has_seats = any(source.seats is not None for source in order.data)
    if has_seats and not order.train.replaces:
        reason = (
            "a node that joins later is assigned its source by its key, where no two draw the same by their "
            'seats alone; expected "with-replacement", or no [[data]] seats'
        )
        yield ConfigProblem(("train", "sampling"), order.train.sampling, reason)
    weights = [source.weight for source in order.data if source.weight is not None]
    if not weights:
        return
    for index, source in enumerate(order.data):
        if source.weight is None:
            reason = "another source has a weight; expected one for every source, or for none"
            yield ConfigProblem(("data", index, "weight"), None, reason)
    if has_seats:
        reason = "nodes of a source's seats train on it alone, which its weight cannot change; expected none"
        yield ConfigProblem(("data", 0, "weight"), order.data[0].weight, reason)
    total = sum(scaled(weight, 3) for weight in weights)
    if len(weights) == len(order.data) and total != 1000:
        reason = f"the weights of all sources make {total / 1000:g} together, expected 1"
        yield ConfigProblem(("data", 0, "weight"), weights[0], reason)


def _wrong_counts(order: Order) -> Iterator[ConfigProblem]:
    """Numbers of nodes that do not ascend from named to seats, or are too many to be admitted at once."""
    run, least = order.run, order.least_nodes
    if not least:
        yield ConfigProblem(("run", "nodes"), run.nodes, "nobody would train; expected least_nodes, or nodes")
    elif least < run.nodes:
        reason = f"expected at least as many as the buyer names: {run.nodes}"
        yield ConfigProblem(("run", "least_nodes"), run.least_nodes, reason)
    if order.seats < max(run.nodes, least):
        reason = f"expected at least as many as nodes take part from the start: {max(run.nodes, least)}"
        yield ConfigProblem(("run", "seats"), run.seats, reason)
    most = ADMISSIONS_MAX // quorum(run.verifiers)
    if order.start_within_s and least > most:
        reason = f"{run.verifiers} verifiers can admit {most} at once, expected no more"
        yield ConfigProblem(("run", "least_nodes"), run.least_nodes, reason)
