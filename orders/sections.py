"""Sections: the tables of run.toml, each key with its type, bounds and default.

Room: orders (pure).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator

from assay.orders.amounts import DECIMALS, TOKENS_MAX, scaled
from assay.protocol.auditing.draws import OPENED_LEAST
from assay.protocol.grpo import GROUP_MAX, Reward
from assay.protocol.messages import LOSS_MICRO_MAX, NODES_MAX, VERIFIERS_MAX
from assay.protocol.openings import OPENED_BLOCKS_MAX
from assay.protocol.params import (
    ACCEPT_PPM_MAX,
    ACCEPT_SEQUENCES_MAX,
    AUDIT_ROUNDS_MAX,
    BASE_BITS,
    BETA_MICRO_MAX,
    BETA_MICRO_MIN,
    KNOWN_ANSWERS_MAX,
    MILESTONES_MAX,
    PPM,
    RUN_NAME,
    RUN_ROUNDS_MAX,
    STRATA_MAX,
)
from assay.protocol.update_rule import BLOCK_SIZE, FRAGMENTS_MAX, LAG_MAX, RANK_MAX, RESET_MAX
from assay.training.data.documents import Format
from assay.verifier.aggregation.names import DECODED_NAMES, RULE_NAMES

ROUNDS_MAX = RUN_ROUNDS_MAX
RUN_DAYS_MAX = 366  # RunEscrow.RUN_SECONDS_MAX
START_S_MAX = RUN_DAYS_MAX * 86_400
STDLIB_BYTES = 6_000_000
Preset = Literal[
    "gpt-1m", "gpt-15m", "gpt-125m", "gpt-350m",
    "llama-130k", "llama-1m", "llama-15m", "llama-125m", "llama-350m", "llama-1b"
]  # fmt: skip

LoraTarget = Literal["q", "k", "v", "o", "gate", "up", "down"]


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
Epochs = Field(max_length=MILESTONES_MAX)
Loss = Annotated[float, Field(gt=0, lt=LOSS_MICRO_MAX / 10**6), _finite_in(6)]
HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s]+$", max_length=1024)]
Positive = Annotated[int, Field(ge=1, le=ROUNDS_MAX)]


class Section(BaseModel):
    """One table of run.toml: strict types, no unknown keys, unchanging once read."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class RunSection(Section):
    """[run]: length and members."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=RUN_NAME)] = "quickstart"
    seed: Annotated[int, Field(ge=0, le=2**64 - 1)] = 20261120
    rounds: Positive = 70
    nodes: Annotated[int, Field(ge=0, le=NODES_MAX)] = 5  # that the buyer names
    own_data: Annotated[int, Field(ge=0, le=STRATA_MAX - 1)] = 0  # of these: train on data only they have
    least_nodes: Annotated[int, Field(ge=1, le=NODES_MAX)] | None = None  # more than these: the run waits
    start_within_s: Annotated[int, Field(ge=1, le=START_S_MAX)] = 86_400  # for others, or never starts
    seats: Annotated[int, Field(ge=1, le=NODES_MAX)] | None = None  # more than needed: others may join
    verifiers: Annotated[int, Field(ge=1, le=VERIFIERS_MAX)] = 4  # seats
    reserves: Annotated[int, Field(ge=0, le=2)] = 0  # more verifiers, which may take over a seat
    attesters: dict[str, str] = Field(default_factory=dict)  # node number -> key file of a software attester

    @property
    def least_count(self) -> int:
        """Nodes without which the run does not start."""
        return self.nodes if self.least_nodes is None else self.least_nodes

    @property
    def seat_count(self) -> int:
        """Nodes that may take part at a time."""
        return max(self.nodes, self.least_count) if self.seats is None else self.seats


class ModelSection(Section):
    """[model]: a preset or a Hugging Face folder to start from; single sizes replace the preset's."""

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
    chat_template: Annotated[str, Field(min_length=1, max_length=4096)] | None = None  # default: the base's
    vocabulary: Annotated[int, Field(ge=1, le=1 << 24)] | None = None  # default: the tokenizer's
    lora_rank: Annotated[int, Field(ge=1, le=1024)] | None = None  # train an adapter of this rank on a base
    lora_alpha: Annotated[int, Field(ge=1, le=1 << 16)] | None = None  # default: twice the rank
    lora_targets: Annotated[tuple[LoraTarget, ...], Field(strict=False, max_length=7)] | None = (
        None  # matrices of every layer; default: q and v
    )
    base_bits: Literal[BASE_BITS] | None = None  # type: ignore[valid-type]  # the frozen matrices'; default: float32


class DataSection(Section):
    """[[data]]: one source of text; several are joined in the order written."""

    source: Annotated[str, Field(min_length=1, max_length=4096)] = "stdlib"
    licence: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    max_bytes: Annotated[int, Field(ge=1, le=1 << 50)] | None = None  # of text; default: all of it
    # by suffix: .jsonl, .ndjson, .parquet, anything else is text; JSON Lines of messages are "chat", of
    # preference pairs "preferences", and of prompts with the answers that GRPO rewards "tasks"
    format: Format = "auto"
    field: Annotated[str, Field(min_length=1, max_length=128)] = "text"  # JSON key or Parquet column
    seats: Annotated[int, Field(ge=1, le=NODES_MAX)] | None = None  # whose nodes train on it, and on it alone
    # share of the sequences that are drawn from it; left out: its share of the tokens
    weight: Annotated[float, Field(gt=0, le=1), _finite_in(3)] | None = None

    @property
    def is_stdlib(self) -> bool:
        """The sources of the Python standard library that runs this."""
        return self.source == "stdlib"

    @property
    def is_chat(self) -> bool:
        """Whether it holds conversations, of which only an assistant's part is trained on."""
        return self.format == "chat"

    @property
    def is_preferences(self) -> bool:
        """Whether it holds preference pairs, on which DPO trains."""
        return self.format == "preferences"

    @property
    def is_tasks(self) -> bool:
        """Whether it holds tasks with answers, on which GRPO trains."""
        return self.format == "tasks"

    @property
    def is_templated(self) -> bool:
        """Whether a chat template makes its text."""
        return self.is_chat or self.is_preferences or self.is_tasks

    @property
    def bytes_max(self) -> int:
        """The most text to read, in bytes."""
        return self.max_bytes or (STDLIB_BYTES if self.is_stdlib else 1 << 50)

    @property
    def licence_text(self) -> str:
        """The licence as written, or the known one of a built-in source."""
        return self.licence or ("PSF-2.0" if self.is_stdlib else "unknown")


class ComputeSection(Section):
    """[compute]: how every node computes a gradient. Device and threads are each operator's own choice."""

    dtype: Literal["float32", "bfloat16"] = "float32"  # bfloat16: autocast; parameters stay float32
    micro_sequences: Annotated[int, Field(ge=0, le=65_536)] = 0  # per forward pass; 0 = the whole batch


class TrainSection(Section):
    """[train]: the work of one node in one round. Absent keys take the method's default."""

    sequences: Annotated[int, Field(ge=1, le=65_536)] | None = None  # per step
    # most of a step: a node takes as many as it has time for, and is paid for them; `sequences` if left out
    sequences_max: Annotated[int, Field(ge=1, le=65_536)] | None = None
    steps: Annotated[int, Field(ge=1, le=100_000)] | None = None  # a node takes on its own per round
    segment: Annotated[int, Field(ge=1, le=100_000)] | None = None  # of them that one audit repeats
    lr: Annotated[float, Field(gt=0, le=100), _finite_in(9)] | None = None  # of the outer step
    lr_floor: Share | None = None  # of the peak, at the last round
    warmup: Annotated[int, Field(ge=0, le=ROUNDS_MAX)] | None = (
        None  # rounds; default: at most 3/5 of the run
    )
    schedule: Literal["constant", "cosine", "wsd"] | None = None
    decay: Annotated[int, Field(ge=1, le=ROUNDS_MAX)] | None = None  # wsd: the last rounds, in which it falls
    weight_decay: Annotated[float, Field(ge=0, le=1000), _finite_in(6)] | None = None
    inner_lr: Annotated[float, Field(gt=0, le=100), _finite_in(9)] | None = None  # of the inner steps
    inner_warmup: Annotated[int, Field(ge=0, le=ROUNDS_MAX)] | None = None  # rounds
    inner_weight_decay: Annotated[float, Field(ge=0, le=1000), _finite_in(6)] | None = None
    proximal: Annotated[float, Field(ge=0, le=1000), _finite_in(6)] | None = None  # FedProx
    keep_moments: bool | None = None  # the inner optimiser keeps its moments for the next round
    clip: Annotated[float, Field(ge=0, le=1e6), _finite_in(6)] | None = None  # gradient norm; 0 = none
    # of DPO, if the data are preference pairs: how far the model may go from its base; 0.1 if left out
    dpo_beta: (
        Annotated[float, Field(ge=BETA_MICRO_MIN / 1e6, le=BETA_MICRO_MAX / 1e6), _finite_in(6)] | None
    ) = None
    # of GRPO, if the data are tasks: completions of a prompt, 8 if left out
    grpo_group: Annotated[int, Field(ge=2, le=GROUP_MAX)] | None = None
    grpo_tokens: Annotated[int, Field(ge=1, le=65_536)] | None = None  # the most of a completion; 32
    # environment: by the answer "exact" (default), "ending", "prefix" (a share); "arithmetic" by the prompt
    grpo_reward: Literal[tuple(one.name.lower() for one in Reward)] | None = None  # type: ignore[valid-type]
    equalise: bool | None = None  # a gradient's rows and columns, brought nearer to one size
    validation_share: Annotated[float, Field(gt=0, lt=1), _finite_in(6)] = 0.05
    # without-replacement: all nodes together draw a sequence again once they have been over all the others
    sampling: Literal["with-replacement", "without-replacement"] = "with-replacement"

    @property
    def replaces(self) -> bool:
        """Whether a sequence may be drawn again before all others were drawn."""
        return self.sampling == "with-replacement"


class CommSection(Section):
    """[comm]: what nodes send, and how it moves the parameters. Absent keys take the method's default."""

    method: Literal["demo", "muloco", "sparseloco", "diloco", "streaming-diloco", "fedavg"] = "demo"
    k: Annotated[int, Field(ge=1, le=BLOCK_SIZE)] | None = None  # coefficients of each 64 x 64 block
    rank: Annotated[int, Field(ge=1, le=RANK_MAX)] | None = None  # two factors in place of coefficients
    values: Literal["sign", "sign-mean", "2-bit", "e3m0", "int8", "int16"] | None = None
    transform: Literal["none", "dct"] | None = None
    # share of the unsent part that is kept
    beta: Annotated[float, Field(ge=0, le=1), _finite_in(6)] | None = None
    reset: Annotated[int, Field(ge=1, le=RESET_MAX)] | None = None  # rounds until the unsent part is dropped
    outer: Literal["sign", "sgd", "nesterov", "adam", "yogi"] | None = None
    momentum: Annotated[float, Field(ge=0, lt=1), _finite_in(6)] | None = None  # of the outer step
    # trimmed-mean: among a coefficient's senders; with DeMo most have fewer than three, so nearly a mean
    aggregation: Literal[(*RULE_NAMES, *DECODED_NAMES)] | None = None  # type: ignore[valid-type]
    f: Annotated[int, Field(ge=0, le=63)] | None = None  # Byzantine nodes to tolerate, under a third
    download: Literal["union", "signs", "message"] | None = (
        None  # how aggregates are written; default: shortest
    )
    fragments: Annotated[int, Field(ge=1, le=FRAGMENTS_MAX)] | None = None  # synced in turn, one a round
    merge: Share | None = None  # of its own values that a node keeps in what was synced
    read_lag: Annotated[int, Field(ge=0, le=LAG_MAX)] | None = None  # rounds
    apply_lag: Annotated[int, Field(ge=0, le=LAG_MAX)] | None = None  # rounds


class VerifySection(Section):
    """[verify]: how often steps are recomputed, and by which deadlines."""

    probation: Positive = 4
    floor: PositiveShare = 0.05
    blocks: Annotated[int, Field(ge=OPENED_LEAST, le=OPENED_BLOCKS_MAX)] = 64  # opened at the floor
    wide: Share = 0.03125  # of audits open more: as many blocks as arrive in time, or `wide_blocks`
    wide_blocks: Annotated[int, Field(ge=1, le=OPENED_BLOCKS_MAX)] | None = None
    replicated: Share = 0.2  # of audits get a second auditor, which the first cannot predict
    limits: Annotated[str, Field(min_length=1, max_length=4096)] = "shipped"  # "none", or a calibration file
    attestation: Annotated[str, Field(min_length=1, max_length=4096)] | None = None  # a policy's file
    attested_rounds: Positive = 100  # for which a node's evidence lowers its audit rate
    code: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None  # SHA-256 of an attested guest
    drand: Annotated[str, Field(min_length=1, max_length=4096)] | None = None  # "quicknet", or a file
    drand_urls: Annotated[tuple[HttpUrl, ...], Field(strict=False, max_length=16)] = ()  # its addresses
    known_answers: Annotated[int, Field(ge=0, le=KNOWN_ANSWERS_MAX)] = 0  # steps of each node, false on order
    takeover_rounds: Annotated[int, Field(ge=1, le=1000)] = 2
    # rounds; as many as the number of verifiers needs if left out, but at least 8 and 4
    audit_rounds: Annotated[int, Field(ge=4, le=AUDIT_ROUNDS_MAX)] | None = None
    dispute_rounds: Annotated[int, Field(ge=2, le=AUDIT_ROUNDS_MAX)] | None = None
    absence_s: Annotated[int, Field(ge=0, le=30 * 86_400)] = 4 * 3600  # an opening may come late by so much
    state_every: Positive = 1


class BudgetSection(Section):
    """[budget]: price and escrow in token units (10^-6 token), stakes in whole tokens."""

    price_per_mtoken: Annotated[int, Field(ge=1, le=TOKENS_MAX)] = 20_000_000  # per 10^6 training tokens
    amount: Annotated[int | Literal["auto"], PlainValidator(_amount)] = "auto"
    operators: Share = 0.87
    verifiers: Share = 0.08  # the rest is the fee
    slash: PositiveShare = 0.3  # of the stake; the slash court has a cap
    withheld: PositiveShare | None = None  # of the stake, for a withheld opening; as `slash` if left out
    verifier_slash: PositiveShare = 0.2  # of an auditor's stake, for a false verdict
    epoch_rounds: Positive = 10
    operator_stake: Stake = 1000.0
    verifier_stake: Stake = 10_000.0  # with the above, no bribe suits node and auditor: docs/odds.md

    @property
    def withheld_share(self) -> float:
        """Share of the stake lost for a withheld opening."""
        return self.slash if self.withheld is None else self.withheld


class EvaluateSection(Section):
    """[evaluate]: multiple-choice items that the model is scored on, beside its held-out loss."""

    # JSON Lines of {"query": text, "choices": [text, ...], "gold": index of the right one}
    choices: Annotated[str, Field(min_length=1, max_length=4096)] | None = None


class AcceptSection(Section):
    """[accept]: the share of an epoch's price that is owed only if the model is good enough after it.

    Epochs are counted from 0; an epoch that several keys name has to satisfy each.
    """

    share: Annotated[float, Field(ge=0, le=ACCEPT_PPM_MAX / PPM), _finite_in(6)] = 0.0
    # held-out ones that each verifier measures after such an epoch
    sequences: Annotated[int, Field(ge=1, le=ACCEPT_SEQUENCES_MAX)] = 32
    # epoch: the most held-out loss in nats
    held_out: Annotated[dict[str, Loss], Epochs] = Field(default_factory=dict)
    # epoch: the least share of [evaluate] choices whose right choice has the highest log-likelihood
    acc: Annotated[dict[str, PositiveShare], Epochs] = Field(default_factory=dict)
    # epoch: likewise, of the highest log-likelihood per character
    acc_norm: Annotated[dict[str, PositiveShare], Epochs] = Field(default_factory=dict)

    @property
    def bounds(self) -> Mapping[str, Mapping[str, float]]:
        """What the model has to reach: by key, by epoch."""
        return {"held_out": self.held_out, "acc": self.acc, "acc_norm": self.acc_norm}


class TimingSection(Section):
    """[timing]: timeouts of verifiers, in seconds."""

    collect_s: Seconds = 30
    ready_s: Seconds = 4
    iteration_s: Seconds = 60
    resend_s: Seconds = 1


class RunFile(Section):
    """A whole run.toml as written. Paths in it are relative to its folder."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    compute: ComputeSection = ComputeSection()
    data: Annotated[tuple[DataSection, ...], Field(strict=False, max_length=64)] = (DataSection(),)
    train: TrainSection = TrainSection()
    comm: CommSection = CommSection()
    verify: VerifySection = VerifySection()
    budget: BudgetSection = BudgetSection()
    evaluate: EvaluateSection = EvaluateSection()
    accept: AcceptSection = AcceptSection()
    timing: TimingSection = TimingSection()
