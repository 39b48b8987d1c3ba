"""Order: a buyer's order, parsed from run.toml and checked.

Room: orders (edge: reads one file). Every key has a default, every unknown key is refused, and every problem
becomes one line that names the file and the key. `spec` turns an order into the integers that the parties
sign.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    Field,
    PrivateAttr,
    ValidationError,
)

from assay.attestation.policy import AppraisalPolicy
from assay.attestation.policy_file import policy_of
from assay.orders.amounts import DECIMALS, TOKENS_MAX, UNIT, money_text, scaled
from assay.orders.config_errors import ConfigProblem, problems_of
from assay.orders.drand import QUICKNET_ASKED, DrandNetwork, check_wait, read_network
from assay.orders.method import method_rule
from assay.orders.model import model_sizes, tokenizer_of
from assay.orders.sections import (
    BudgetSection,
    CommSection,
    ComputeSection,
    DataSection,
    ModelSection,
    RunSection,
    Section,
    TimingSection,
    TrainSection,
    VerifySection,
)
from assay.orders.toml import read_toml
from assay.protocol.errors import ConfigError
from assay.protocol.params import ModelSpec
from assay.protocol.update_rule import (
    Outer,
    RuleSpec,
    Wire,
    check_rule,
)
from assay.training.data.tokenizer import Tokenizer
from assay.verifier.aggregation.registry import DECODED
from assay.verifier.audit.limits import Limits, parse_limits, shipped

SIGNS_FROM_NODES = 25  # docs/results/aggregation.md: from here on signs are shorter than the union
COMMAND_LINE = "command line"


class Order(Section):
    """A whole run.toml. Paths in it are relative to `folder`."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    compute: ComputeSection = ComputeSection()
    data: Annotated[tuple[DataSection, ...], Field(strict=False, max_length=64)] = (DataSection(),)
    train: TrainSection = TrainSection()
    comm: CommSection = CommSection()
    verify: VerifySection = VerifySection()
    budget: BudgetSection = BudgetSection()
    timing: TimingSection = TimingSection()

    _folder: Path = PrivateAttr(default_factory=Path)

    def sizes(self) -> ModelSpec:
        """The ordered model, from preset, base and tokenizer; its `base` is zero.

        Raises:
            ConfigError: they cannot be read or do not make a model.
        """
        return model_sizes(self.model, self.folder)

    def limits(self) -> Limits | None:
        """The tolerances for steps of other execution classes; None if they are not judged.

        Raises:
            ConfigError: the file cannot be read or is no calibration.
        """
        if self.verify.limits in ("shipped", "none"):
            return shipped() if self.verify.limits == "shipped" else None
        path = self.folder / self.verify.limits
        try:
            return parse_limits(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"[verify] limits: {path}: {error}") from None

    def policy(self) -> AppraisalPolicy | None:
        """The policy by which nodes' attestation evidence is appraised; None if evidence does not count.

        Raises:
            ConfigError: the file cannot be read or is no policy.
        """
        if self.verify.attestation is None:
            return None
        path = self.folder / self.verify.attestation
        return policy_of(read_toml(path), f"[verify] attestation: {path}")

    def drand(self) -> DrandNetwork | None:
        """The drand network that draws also depend on; None without.

        Raises:
            ConfigError: the file cannot be read or describes no network, or no address is known.
        """
        if self.verify.drand is None:
            return None
        if self.verify.drand == "quicknet":
            found = replace(QUICKNET_ASKED, urls=self.verify.drand_urls or QUICKNET_ASKED.urls)
        else:
            spec = read_network(self.folder / self.verify.drand)
            if not self.verify.drand_urls:
                raise ConfigError("[verify] drand: a network of your own needs drand_urls, where it is asked")
            found = DrandNetwork(spec, self.verify.drand_urls)
        check_wait(found, self.timing.iteration_s)
        return found

    def attester(self, number: str) -> Path | None:
        """The key file of a node's software attester, absolute; None without one."""
        named = self.run.attesters.get(number)
        return None if named is None else (self.folder / named).resolve()

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the order.

        Raises:
            ConfigError: the file cannot be read or is no tokenizer.
        """
        return tokenizer_of(self.model, self.folder)

    @property
    def folder(self) -> Path:
        """The folder of relative data paths: the file's folder, or the current one for `--data`."""
        return self._folder

    def rule(self) -> RuleSpec:
        """The update rule of the order.

        By default it tolerates a third of the nodes, and encodes aggregates in the shorter way.
        """
        f = (self.run.nodes - 1) // 3 if self.comm.f is None else self.comm.f
        rule = method_rule(self.train, self.comm.model_copy(update={"f": f}))
        is_shorter = self.run.nodes >= SIGNS_FROM_NODES or rule.aggregation.name in DECODED
        if self.comm.download is None and is_shorter and rule.outer.kind is Outer.SIGN:
            return replace(rule, aggregation=replace(rule.aggregation, wire=Wire.SIGNS))
        return rule

    @property
    def tokens_per_round(self) -> int:
        """Tokens that all nodes together train on in one round."""
        return self.run.nodes * self.rule().sequences_per_round * self.sizes().context

    @property
    def epochs(self) -> int:
        """Settlements of the run."""
        return -(-self.run.rounds // self.budget.epoch_rounds)

    def epoch_units_max(self) -> int:
        """The most that one epoch can cost, in token units: the escrow's cap per epoch."""
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

    def _gross_units(self, rounds: int) -> int:
        return rounds * self.tokens_per_round * self.budget.price_per_mtoken // 10**6


def load_order(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Order:
    """The order a file describes, with choices from the command line on top.

    Args:
        path: A run.toml; without one, the defaults.
        overrides: By key path ("run.rounds", "data"), in place of the file's; None keeps that.

    Raises:
        ConfigError: one line for each problem, with the file, the key and what was expected.
    """
    raw = read_toml(path) if path else {}
    chosen = {key: value for key, value in (overrides or {}).items() if value is not None}
    for key, value in chosen.items():
        _override(raw, key.split("."), value)
    folder = path.parent if path and "data" not in chosen else Path()
    return order_of(raw, folder, path, chosen)


def order_of(
    raw: Mapping[str, Any],
    folder: Path,
    path: Path | None = None,
    chosen: Mapping[str, Any] | None = None,
) -> Order:
    """The order in already parsed tables.

    Args:
        raw: As read from TOML.
        folder: Where relative paths in them start.
        path: The file they come from, for messages.
        chosen: Keys that come from the command line instead, for messages.

    Raises:
        ConfigError: one line for each problem, with the file, the key and what was expected.
    """
    try:
        order = Order.model_validate(raw)
        order._folder = folder
        try:
            order.sizes()
        except ConfigError as fault:
            raise ConfigError(f"{path or COMMAND_LINE}: [model]: {fault}") from None
        problems = list(_contradictions(order))
    except ValidationError as error:
        problems = problems_of(error, Order)
    if problems:
        raise ConfigError("\n".join(f"{_origin(path, chosen or {}, p)}: {p.text()}" for p in problems))
    return order


def _contradictions(order: Order) -> Iterator[ConfigProblem]:
    """Problems that no single key shows: parts of an order that contradict each other."""
    run, budget = order.run, order.budget
    for number, text in run.attesters.items():
        place = ("run", "attesters", number)
        if number not in map(str, range(run.nodes)):
            yield ConfigProblem(place, text, f"no such node; nodes are 0 to {run.nodes - 1}")
        elif order.verify.attestation is None:
            yield ConfigProblem(place, text, "evidence counts nothing without [verify] attestation")
    steps = run.rounds * run.nodes
    if order.verify.known_answers * 20 > steps or order.verify.known_answers > run.rounds:
        reason = (
            f"at most one step in 20 can be a known-answer task, and one a round: "
            f"{steps} steps, {run.rounds} rounds"
        )
        yield ConfigProblem(("verify", "known_answers"), order.verify.known_answers, reason)
    if not order.data:
        yield ConfigProblem(
            ("data",), [], "expected at least one source; leave the key out for the standard library"
        )
    rule, faults = order.rule(), list[str]()
    check_rule(rule, lambda holds, reason: None if holds else faults.append(reason))
    if rule.aggregation.f and run.nodes <= 2 * rule.aggregation.f:
        faults.append(f"f = {rule.aggregation.f} needs more than twice as many nodes, not {run.nodes}")
    for reason in faults:
        yield ConfigProblem(("comm", "method"), order.comm.method, f"as it is set up here: {reason}")
    if scaled(budget.operators, 6) + scaled(budget.verifiers, 6) > 10**6:
        yield ConfigProblem(("budget", "operators"), budget.operators, "with verifiers, the shares exceed 1")
    if order.epoch_units_max() == 0:
        reason = "an epoch would cost less than one token unit; expected a higher price or longer epochs"
        yield ConfigProblem(("budget", "price_per_mtoken"), budget.price_per_mtoken, reason)
    elif order.budget_units() < order.worst_case_units():
        need, have = order.worst_case_units(), order.budget_units()
        reason = (
            f"the run can cost {money_text(need)} {UNIT} ({need} units), "
            f"this pays for {money_text(have)} {UNIT} ({have} units)"
        )
        yield ConfigProblem(("budget", "amount"), budget.amount, reason)
    elif order.budget_units() > TOKENS_MAX * 10**DECIMALS:
        reason = f"the run can cost {money_text(order.worst_case_units())} {UNIT}, more than can be held"
        yield ConfigProblem(("budget", "price_per_mtoken"), budget.price_per_mtoken, reason)


def _override(raw: dict[str, Any], key: list[str], value: Any) -> None:
    table: Any = raw
    for part in key[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return  # an error in the file; it is reported as such
    table[key[-1]] = value


def _origin(path: Path | None, chosen: Mapping[str, Any], problem: ConfigProblem) -> str:
    """Where a value was set: in the file, or on the command line."""
    parts = [str(part) for part in problem.place]
    if any(parts[: key.count(".") + 1] == key.split(".") for key in chosen):
        return COMMAND_LINE
    return str(path) if path else "default order"
