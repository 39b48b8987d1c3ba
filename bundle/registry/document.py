"""Document: the registry entry of a delivered model as a value, and its one writer and reader.

Room: bundle (pure). The entry's JSON has the fields of `Entry`; bundle/registry/entry.py computes them.
Digests, keys and hashes are text in hexadecimal, some with their algorithm before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from assay.bundle.finished import Energy
from assay.chain.statements import ModelRecord
from assay.participant.declarations import Declarations
from assay.protocol.encoding.json_text import canonical_json, parse_json, plain, read_plain
from assay.training.data.inventory import Inventory

FORMAT = "assay/registry/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The delivered file of weights."""

    file: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Modalities:
    """What the model reads and writes."""

    input: tuple[str, ...]
    output: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The imported parameters that training started from, or that an adapter was trained on."""

    state: str
    flop: int | None  # spent on them, as declared


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The low-rank factors that were trained, on a base left as it was; `Model.weights` has them merged."""

    weights: Weights
    rank: int
    alpha: int
    targets: tuple[str, ...]
    parameters: int

    @property
    def text(self) -> str:
        """The adapter in one line."""
        targets = ", ".join(self.targets)
        return f"LoRA of rank {self.rank}, alpha {self.alpha}, on {targets}: {self.parameters:,} parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model. Whether its record is still valid must be asked of the chain."""

    id: str
    name: str
    weights: Weights
    architecture: str
    family: str
    parameters: int
    modalities: Modalities
    context_tokens: int
    licence: str | None
    base: Base | None
    adapter: Adapter | None
    started_from: str
    supersedes: None = None
    withdrawn_at_delivery: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentId:
    """The contracts of the run."""

    id: str
    chain_id: int
    registry: str  # address


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """The run that trained the model."""

    id: str
    spec: str
    deployment: DeploymentId
    buyer: str  # account
    rounds: int
    rounds_ordered: int
    closed_by: str | None
    precision: str
    seed: int
    code_version: str | None
    execution_classes: Mapping[str, int]  # contributions by class


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedData(Inventory):
    """The inventory of the data, and its digest, which the record on chain has."""

    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens by what became of their steps."""

    processed: int
    accepted: int
    discarded: int
    discarded_steps_by_reason: Mapping[str, int]
    recomputed_by_verifiers: int
    in_training_data: int
    epochs_over_data_milli: int

    @property
    def epochs_text(self) -> str:
        """How many times the training data were processed."""
        return f"{self.epochs_over_data_milli // 1000}.{self.epochs_over_data_milli % 1000:03} times"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flop:
    """Floating-point operations, computed from tokens and not measured."""

    accepted: int
    discarded: int
    verification: int
    refused_before_a_manifest: None = None  # refusals by verifiers leave no trace in the chain
    per_token: int
    weights_per_token: int
    formula: str
    method: str
    references: tuple[str, ...]
    is_measured: bool = False

    @property
    def trained(self) -> int:
        """Of training, paid or not."""
        return self.accepted + self.discarded


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A node that took part."""

    peer: str
    account: str
    contributions: int
    accepted: int
    banned: str | None  # the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedVerifier:
    """A verifier of the run."""

    peer: str
    account: str
    verdicts: int
    beacon_shares: int
    disqualified: str | None  # the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Participants:
    """Everybody who took part, ascending by peer."""

    operators: tuple[Operator, ...]
    verifiers: tuple[ListedVerifier, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """Appraisals of hardware evidence in the chain."""

    policy: str | None
    words: int
    by_discount: Mapping[str, int]
    nodes_appraised: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAnswers:
    """Known-answer tasks."""

    ordered: int
    found: int
    missed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Audits:
    """All audits of the run."""

    drawn: int
    verdicts: Mapping[str, int]  # by outcome
    rulings: Mapping[str, int]
    known_answers: KnownAnswers
    verifiers_at_fault: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledEpoch:
    """One epoch's result on chain."""

    epoch: int
    root: str
    table_hash: str
    total: int
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Payments:
    """What was paid for the run."""

    epochs: tuple[SettledEpoch, ...]
    paid: Mapping[str, int]  # by role
    unit: str = "10^-6 token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The newest checkpoint of the ledger that a quorum cosigned."""

    size: int
    root: str
    ledger_service: str
    cosigners: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAnchor:
    """The ledger's last anchor on chain before delivery."""

    ledger_service: str
    size: int
    root: str
    tx: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRecord(ModelRecord):
    """The model's record on chain with its id."""

    record_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedRecord(NamedRecord):
    """The content of `record.json`: the record with the signatures of a quorum."""

    certificate: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Compute beside the thresholds of the EU AI Act."""

    counted: str = "accepted and discarded training of this run, and the base model's as stated"
    training_flop: int
    base_flop: int | None
    base_is_known: bool
    total_flop: int
    is_lower_bound: bool
    share_of_1e23: str
    share_of_1e25: str
    exceeds_a_third_of_base: bool | None
    alerts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The registry entry. `log`, `log_anchor`, `record`: None where the run has none."""

    format: str = FORMAT
    model: Model
    run: TrainingRun
    data: ListedData
    tokens: Tokens
    flop: Flop
    energy: Energy
    participants: Participants
    attestation: Attestation
    audits: Audits
    settlement: Payments
    log: Checkpoint | None
    log_anchor: CheckpointAnchor | None
    record: NamedRecord | None
    thresholds: Thresholds
    declared: Declarations


def entry_json(entry: Entry) -> bytes:
    """The content of `entry.json`: canonical JSON."""
    return canonical_json(plain(entry))


def read_entry(body: bytes) -> Entry:
    """Inverts `entry_json`.

    Raises:
        ValueError: the first field that is wrong, or the JSON is not canonical.
    """
    entry = read_plain(Entry, parse_json(body))
    if entry.format != FORMAT:
        raise ValueError(f"format: {entry.format!r:.60}, expected {FORMAT!r}")
    if entry_json(entry) != body:
        raise ValueError("not in its canonical encoding")
    return entry
