"""Order: what a buyer asks for, as written in run.toml.

Room: orders (edge: reads one file). Every key has a default, every unknown key is
refused, and every problem becomes one line that names the file and the key. What
the parties sign is made from an order by `spec`, in integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    ValidationError,
)

from attestation.policy import AppraisalPolicy
from attestation.policy_file import policy_of
from node.behaviours import Behaviour, parse_behaviour
from orders.amounts import DECIMALS, TOKENS_MAX, UNIT, money_text, scaled
from orders.drand import QUICKNET_ASKED, DrandNetwork, check_wait, read_network
from orders.method import method_rule
from orders.model import Preset, model_sizes, tokenizer_of
from orders.toml import read_toml
from orders.words import Problem, problems_of
from protocol.errors import ConfigError
from protocol.messages import NODES_MAX, VERIFIERS_MAX
from protocol.openings import OPENED_BLOCKS_MAX
from protocol.params import ModelSpec
from protocol.rule import BLOCK_SIZE, FRAGMENTS_MAX, LAG_MAX, RANK_MAX, Outer, RuleSpec, Wire, check_rule
from training.documents import Format
from training.tokenizer import Tokenizer
from verifier.behaviours import NAMES as AUDITORS
from verifier.limits import Limits, parse_limits, shipped
from verifier.rules import DECODED, RULE_NAMES

SIGNS_FROM_NODES = 25  # docs/results/aggregation.md: from here on signs are shorter than the union
ROUNDS_MAX = 1_000_000
COMMAND_LINE = "command line"
STDLIB_BYTES = 6_000_000


def _finite_in(decimals: int) -> AfterValidator:
    """Refuses a number that `scaled` could not turn into an integer exactly."""

    def check(number: float) -> float:
        scaled(number, decimals)
        return number

    return AfterValidator(check)


def _amount(value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= TOKENS_MAX * 10**DECIMALS:
        raise ValueError('expected "auto" or a whole number of token units above 0')
    return value


Share = Annotated[float, Field(ge=0, le=1), _finite_in(6)]
PositiveShare = Annotated[float, Field(gt=0, le=1), _finite_in(6)]
Seconds = Annotated[float, Field(gt=0, le=86_400), _finite_in(3)]
Stake = Annotated[float, Field(gt=0, le=TOKENS_MAX), _finite_in(DECIMALS)]
HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s]+$", max_length=1024)]
Positive = Annotated[int, Field(ge=1, le=ROUNDS_MAX)]


class Section(BaseModel):
    """One table of run.toml: strict types, no unknown keys, unchanging once read."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class RunSection(Section):
    """[run]: how long, how many, and who of them cheats so that it can be seen."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = (
        "quickstart"
    )
    seed: Annotated[int, Field(ge=0, le=2**64 - 1)] = 20261120
    rounds: Positive = 60
    nodes: Annotated[int, Field(ge=1, le=NODES_MAX)] = 5
    verifiers: Annotated[int, Field(ge=1, le=VERIFIERS_MAX)] = 4
    attesters: dict[str, str] = Field(default_factory=dict)  # node number -> key file of a software attester
    behave: dict[str, str] = Field(default_factory=dict)  # node number -> NAME or NAME@ROUND; v0 -> NAME


class ModelSection(Section):
    """[model]: a preset or a Hugging Face folder to start from; any size written besides replaces its own."""

    preset: Preset | None = None  # "gpt-1m" if neither preset, family nor base is written
    base: Annotated[str, Field(min_length=1, max_length=4096)] | None = None  # config.json, *.safetensors
    family: Literal["gpt", "llama"] | None = None
    layers: Annotated[int, Field(ge=1, le=256)] | None = None
    width: Annotated[int, Field(ge=1, le=16_384)] | None = None
    heads: Annotated[int, Field(ge=1, le=256)] | None = None
    kv_heads: Annotated[int, Field(ge=1, le=256)] | None = None  # heads / kv_heads share a key and value
    hidden: Annotated[int, Field(ge=1, le=65_536)] | None = None  # width inside the MLP
    context: Annotated[int, Field(ge=2, le=65_536)] | None = None  # tokens
    rope_theta: Annotated[int, Field(ge=2, le=10**9)] | None = None
    tied: bool | None = None  # the output head is the embedding
    tokenizer: Annotated[str, Field(min_length=1, max_length=4096)] | None = None  # default: bytes
    separator: Annotated[str, Field(max_length=128)] | None = None  # token after a document; "" = none
    vocabulary: Annotated[int, Field(ge=1, le=1 << 24)] | None = None  # default: the tokenizer's


class DataSection(Section):
    """[[data]]: one source of text; several are joined in the order written."""

    source: Annotated[str, Field(min_length=1, max_length=4096)] = "stdlib"
    licence: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    max_bytes: Annotated[int, Field(ge=1, le=1 << 50)] | None = None  # of text; default: all of it
    format: Format = "auto"  # by suffix: .jsonl, .ndjson, .parquet, anything else is text
    field: Annotated[str, Field(min_length=1, max_length=128)] = "text"  # JSON key or Parquet column

    @property
    def is_stdlib(self) -> bool:
        """The sources of the Python standard library that runs this."""
        return self.source == "stdlib"

    @property
    def bytes_max(self) -> int:
        """How much text is taken at most."""
        return self.max_bytes or (STDLIB_BYTES if self.is_stdlib else 1 << 50)

    @property
    def licence_text(self) -> str:
        """The licence as written, or what is known without being told."""
        return self.licence or ("PSF-2.0" if self.is_stdlib else "unknown")


class ComputeSection(Section):
    """[compute]: how every node computes a gradient. Device and threads are each operator's own choice."""

    dtype: Literal["float32", "bfloat16"] = "float32"  # bfloat16: autocast; parameters stay float32
    micro_sequences: Annotated[int, Field(ge=0, le=65_536)] = 0  # per forward pass; 0 = the whole batch


class TrainSection(Section):
    """[train]: the work of one node in one round. What is not written is the method's own."""

    sequences: Annotated[int, Field(ge=1, le=65_536)] | None = None  # per step
    steps: Annotated[int, Field(ge=1, le=100_000)] | None = None  # a node takes on its own per round
    segment: Annotated[int, Field(ge=1, le=100_000)] | None = None  # of them that one audit repeats
    lr: Annotated[float, Field(gt=0, le=100), _finite_in(9)] | None = None  # of the network's step
    lr_floor: Share | None = None  # of the peak, at the last round
    warmup: Annotated[int, Field(ge=0, le=ROUNDS_MAX)] | None = None  # rounds
    schedule: Literal["constant", "cosine", "wsd"] | None = None
    decay: Annotated[int, Field(ge=1, le=ROUNDS_MAX)] | None = None  # wsd: the last rounds, in which it falls
    weight_decay: Annotated[float, Field(ge=0, le=1000), _finite_in(6)] | None = None
    inner_lr: Annotated[float, Field(gt=0, le=100), _finite_in(9)] | None = None  # of a node's own steps
    inner_warmup: Annotated[int, Field(ge=0, le=ROUNDS_MAX)] | None = None  # rounds
    inner_weight_decay: Annotated[float, Field(ge=0, le=1000), _finite_in(6)] | None = None
    proximal: Annotated[float, Field(ge=0, le=1000), _finite_in(6)] | None = None  # FedProx
    keep_moments: bool | None = None  # a node's own optimiser goes on in the next round
    clip: Annotated[float, Field(ge=0, le=1e6), _finite_in(6)] | None = None  # gradient norm; 0 = none
    equalise: bool | None = None  # a gradient's rows and columns, brought nearer to one size
    validation_share: Annotated[float, Field(gt=0, lt=1), _finite_in(6)] = 0.05


class CommSection(Section):
    """[comm]: what nodes send, and how the network moves by it. What is not written is the method's own."""

    method: Literal["demo", "sparseloco", "diloco", "streaming-diloco", "fedavg"] = "demo"
    k: Annotated[int, Field(ge=1, le=BLOCK_SIZE)] | None = None  # coefficients of each 64 x 64 block
    rank: Annotated[int, Field(ge=1, le=RANK_MAX)] | None = None  # two factors in place of coefficients
    values: Literal["sign", "sign-mean", "2-bit", "e3m0", "int8", "int16"] | None = None
    transform: Literal["none", "dct"] | None = None
    beta: Annotated[float, Field(ge=0, le=1), _finite_in(6)] | None = None  # what stays of the unsent part
    outer: Literal["sign", "sgd", "nesterov", "adam", "yogi"] | None = None
    momentum: Annotated[float, Field(ge=0, lt=1), _finite_in(6)] | None = None  # of the outer step
    aggregation: Literal[(*RULE_NAMES, *DECODED)] | None = None  # type: ignore[valid-type]
    f: Annotated[int, Field(ge=0, le=63)] | None = None  # liars among the nodes it is set up to stand
    download: Literal["union", "signs"] | None = None  # how aggregates are written; signs from 25 nodes on
    fragments: Annotated[int, Field(ge=1, le=FRAGMENTS_MAX)] | None = None  # synced in turn, one a round
    merge: Share | None = None  # of its own values that a node keeps in a synced fragment
    read_lag: Annotated[int, Field(ge=0, le=LAG_MAX)] | None = None  # rounds
    apply_lag: Annotated[int, Field(ge=0, le=LAG_MAX)] | None = None  # rounds


class VerifySection(Section):
    """[verify]: how often steps are recomputed, and by when."""

    probation: Positive = 4
    floor: PositiveShare = 0.05
    blocks: Annotated[int, Field(ge=1, le=OPENED_BLOCKS_MAX)] = 64
    looks: Share = 0.2  # of audits get a second auditor, whom the first cannot foresee
    limits: Annotated[str, Field(min_length=1, max_length=4096)] = "shipped"  # "none", or a calibration file
    attestation: Annotated[str, Field(min_length=1, max_length=4096)] | None = None  # a policy's file
    attested_rounds: Positive = 100  # for which a node's evidence lowers its audit rate
    code: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None  # SHA-256 of an attested guest
    drand: Annotated[str, Field(min_length=1, max_length=4096)] | None = None  # "quicknet", or a file
    drand_urls: Annotated[tuple[HttpUrl, ...], Field(strict=False, max_length=16)] = ()  # where it is asked
    canaries: Annotated[int, Field(ge=0, le=1000)] = 0  # planted faults, all of one honest node
    turn_rounds: Annotated[int, Field(ge=1, le=1000)] = 2
    audit_rounds: Annotated[int, Field(ge=4, le=1000)] = 8
    dispute_rounds: Annotated[int, Field(ge=2, le=1000)] = 4
    state_every: Positive = 1


class BudgetSection(Section):
    """[budget]: price and escrow in token units (10^-6 token), stakes in whole tokens."""

    price_per_mtoken: Annotated[int, Field(ge=1, le=TOKENS_MAX)] = 20_000_000  # per 10^6 training tokens
    amount: Annotated[int | Literal["auto"], PlainValidator(_amount)] = "auto"
    operators: Share = 0.87
    verifiers: Share = 0.08  # the rest is the fee
    slash: PositiveShare = 0.5  # of the stake
    withheld: PositiveShare | None = None  # of the stake of who does not open; as `slash` if left out
    verifier_slash: PositiveShare = 0.1  # of an auditor's stake, for a verdict proved false
    epoch_rounds: Positive = 10
    operator_stake: Stake = 1000.0
    verifier_stake: Stake = 1000.0

    @property
    def withheld_share(self) -> float:
        """What a refused opening costs."""
        return self.slash if self.withheld is None else self.withheld


class TimingSection(Section):
    """[timing]: when verifiers stop waiting, in seconds."""

    collect_s: Seconds = 30
    ready_s: Seconds = 4
    iteration_s: Seconds = 60
    resend_s: Seconds = 1


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
        """The model that is asked for, from preset, base and tokenizer; its `base` is zero.

        Raises:
            ConfigError: they cannot be read or do not make a model.
        """
        return model_sizes(self.model, self.folder)

    def limits(self) -> Limits | None:
        """What steps of other execution classes are judged by; None if they are not judged.

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
        """By what evidence of nodes' hardware is appraised; None if it counts nothing.

        Raises:
            ConfigError: the file cannot be read or is no policy.
        """
        if self.verify.attestation is None:
            return None
        path = self.folder / self.verify.attestation
        return policy_of(read_toml(path), f"[verify] attestation: {path}")

    def drand(self) -> DrandNetwork | None:
        """The drand network that draws depend on too; None without.

        Raises:
            ConfigError: the file cannot be read or is no network's, or nobody says where to ask it.
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
        """How text becomes tokens.

        Raises:
            ConfigError: the file cannot be read or is no tokenizer.
        """
        return tokenizer_of(self.model, self.folder)

    @property
    def folder(self) -> Path:
        """Where relative data paths start: the file's folder, or the present one for `--data`."""
        return self._folder

    def rule(self) -> RuleSpec:
        """The update rule that is asked for.

        Unless told otherwise it stands a third of the nodes, and writes aggregates in the shorter way.
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

    def behaviours(self) -> dict[int, Behaviour]:
        """How each node that is not simply honest behaves, by its number."""
        nodes = ((number, text) for number, text in self.run.behave.items() if number.isdigit())
        return {int(number): parse_behaviour(text) for number, text in nodes}

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
        overrides: By key path ("run.rounds", "data"). None leaves the file's word;
            "run.behave" adds to the file's table, everything else replaces.

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
    """The order that tables describe.

    Args:
        raw: As they were read from TOML.
        folder: Where relative paths in them start.
        path: The file they are from, for messages.
        chosen: Keys that are from the command line instead, for messages.

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


def _contradictions(order: Order) -> Iterator[Problem]:
    """What no single key shows: parts of an order that do not fit each other."""
    run, budget = order.run, order.budget
    for number, text in run.attesters.items():
        place = ("run", "attesters", number)
        if number not in map(str, range(run.nodes)):
            yield Problem(place, text, f"no such node; nodes are 0 to {run.nodes - 1}")
        elif order.verify.attestation is None:
            yield Problem(place, text, "evidence counts nothing without [verify] attestation")
    for number, text in run.behave.items():
        place = ("run", "behave", number)
        if number.startswith("v"):
            if number not in (f"v{i}" for i in range(run.verifiers)):
                yield Problem(place, text, f"no such verifier; they are v0 to v{run.verifiers - 1}")
            elif text not in AUDITORS:
                yield Problem(
                    place, text, f"behaviour {text!r} is unknown; expected one of {', '.join(AUDITORS)}"
                )
            continue
        if number not in map(str, range(run.nodes)):
            yield Problem(place, text, f"no such node; nodes are 0 to {run.nodes - 1}")
            continue
        try:
            behaviour = parse_behaviour(text)
        except ConfigError as fault:
            yield Problem(place, text, str(fault))
            continue
        if behaviour.name != "honest" and behaviour.from_round >= run.rounds:
            words = f"would begin in round {behaviour.from_round} of a run whose last is {run.rounds - 1}"
            yield Problem(place, text, f"{words}; write {behaviour.name}@ROUND")
    steps = run.rounds * run.nodes
    if order.verify.canaries * 20 > steps or order.verify.canaries > run.rounds:
        words = f"at most one step in 20 can be planted, and one a round: {steps} steps, {run.rounds} rounds"
        yield Problem(("verify", "canaries"), order.verify.canaries, words)
    if not order.data:
        yield Problem(
            ("data",), [], "expected at least one source; leave the key out for the standard library"
        )
    rule, faults = order.rule(), list[str]()
    check_rule(rule, lambda holds, words: None if holds else faults.append(words))
    if rule.aggregation.f and run.nodes <= 2 * rule.aggregation.f:
        faults.append(f"f = {rule.aggregation.f} needs more than twice as many nodes, not {run.nodes}")
    for words in faults:
        yield Problem(("comm", "method"), order.comm.method, f"as it is set up here: {words}")
    if scaled(budget.operators, 6) + scaled(budget.verifiers, 6) > 10**6:
        yield Problem(("budget", "operators"), budget.operators, "with verifiers, the shares exceed 1")
    if order.epoch_units_max() == 0:
        words = "an epoch would cost less than one token unit; expected a higher price or longer epochs"
        yield Problem(("budget", "price_per_mtoken"), budget.price_per_mtoken, words)
    elif order.budget_units() < order.worst_case_units():
        need, have = order.worst_case_units(), order.budget_units()
        words = (
            f"the run can cost {money_text(need)} {UNIT} ({need} units), "
            f"this pays for {money_text(have)} {UNIT} ({have} units)"
        )
        yield Problem(("budget", "amount"), budget.amount, words)
    elif order.budget_units() > TOKENS_MAX * 10**DECIMALS:
        words = f"the run can cost {money_text(order.worst_case_units())} {UNIT}, more than can be held"
        yield Problem(("budget", "price_per_mtoken"), budget.price_per_mtoken, words)


def _override(raw: dict[str, Any], key: list[str], value: Any) -> None:
    table: Any = raw
    for part in key[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return  # the file's mistake; it is reported as such
    present = table.get(key[-1])
    if key == ["run", "behave"] and isinstance(present, dict):
        value = {**present, **value}
    table[key[-1]] = value


def _origin(path: Path | None, chosen: Mapping[str, Any], problem: Problem) -> str:
    """Whose word it was: the file's, or the command line's."""
    parts = [str(part) for part in problem.place]
    for key, value in chosen.items():
        if parts[: key.count(".") + 1] != key.split("."):
            continue
        if key != "run.behave" or (len(parts) > 2 and parts[2] in value):
            return COMMAND_LINE
    return str(path) if path else "default order"
