"""Params: `RunSpec`, all parameters that the parties of one run share; its digest is the escrow's `specHash`.

Room: protocol (pure). The buyer funds that digest, so no party can later claim
another model, price or audit rate. Integers only: money in minor units, time
in milliseconds, ratios in millionths.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

from assay.protocol.agreement.quorum import committee_size, faults_tolerated, opening_rounds, quorum
from assay.protocol.calendar import Calendar
from assay.protocol.encoding.codec import Later, Max
from assay.protocol.grpo import NO_GRPO, GrpoSpec, grpo_faults
from assay.protocol.messages import ADMISSIONS_MAX, LOSS_MICRO_MAX, NODES_MAX, VERIFIERS_MAX, Score
from assay.protocol.messages import Member as Member
from assay.protocol.openings import OPENED_BLOCKS_MAX, WINDOW_BYTES_MAX, WINDOWS_MAX
from assay.protocol.proposal_size import PROPOSAL_BYTES_MAX, proposal_bytes
from assay.protocol.randomness.drand import NO_DRAND, DrandSpec, drand_faults
from assay.protocol.split import Split
from assay.protocol.types import NO_ADDRESS, NO_DIGEST, Address, Digest, PeerId
from assay.protocol.update_rule import BLOCK_SIDE as BLOCK_SIDE
from assay.protocol.update_rule import BLOCK_SIZE as BLOCK_SIZE
from assay.protocol.update_rule import PPM as PPM
from assay.protocol.update_rule import LocalSpec as LocalSpec
from assay.protocol.update_rule import RuleSpec as RuleSpec
from assay.protocol.update_rule import Values as Values
from assay.protocol.update_rule import check_rule

RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"  # it stands as it is in file names, pages and the model card
RUN_NODES_MAX = 128
RUN_VERIFIERS_MAX = 16
RUN_ROUNDS_MAX = 1_000_000  # members list a run's epochs; a longer one is several that continue each other
MILESTONES_MAX = 256
STRATA_MAX = 64
ITEMS_MAX = 1024  # of multiple choice: each choice is a forward pass of every verifier
AUDIT_ROUNDS_MAX = 1000  # of an audit, and of a dispute: so long a run that closes may go on
KNOWN_ANSWERS_MAX = 1000  # of a node: who trains holds its whole list
LAYERS_MAX = 1024  # whoever reads a stranger's spec lists every layer's parameters: milliseconds
ACCEPT_SEQUENCES_MAX = 1 << 12  # each is a forward pass of every verifier in the reference class
ACCEPT_PPM_MAX = 500_000  # of a price may depend on milestones: whoever worked gets half at least
LINE_ROUNDS_MAX = 1 << 32  # of runs that continue each other: a round among them fits into 8 bytes
CROWDED_MAX = 1 << 12  # windows of a step that may be all that its node has: some 40,000 draws
BETA_MICRO_MIN, BETA_MICRO_MAX = 1_000, 10_000_000  # 0.001 to 10; papers use 0.01 to 0.5


class Family(enum.IntEnum):
    """Decoder architecture; docs/protocol.md, "Model"."""

    GPT = 1  # learned positions, LayerNorm, GELU
    LLAMA = 2  # rotary positions, RMSNorm, SwiGLU, grouped queries
    QWEN2 = 3  # a Llama with biases on queries, keys and values
    QWEN3 = 4  # a Llama with an RMSNorm of each head's queries and keys, before they are rotated
    GEMMA = 5  # a Llama with GeGLU, norms that multiply by 1 + weight, and embeddings times sqrt(width)


class Target(enum.IntEnum):
    """A matrix of every layer of a Llama-style model that an adapter is added to."""

    Q = 1
    K = 2
    V = 3
    O = 4  # noqa: E741 - the field's name of it, which orders use
    GATE = 5
    UP = 6
    DOWN = 7


BASE_BITS = (8, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """Low-rank factors that are trained in place of the parameters, which stay as imported.

    A matrix W of `targets` acts as W + (alpha / rank) B A. A rank of 0 is no adapter: all is trained.
    With `base_bits` the matrices of the base's layers are whole numbers of so many bits times scales.

    Reference:
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685.
    """

    TAG: ClassVar[bytes] = b"assay/adapter-spec/1"
    rank: int  # rows of A, columns of B
    alpha: int
    targets: Annotated[tuple[Target, ...], Max(len(Target))]  # ascending
    base_bits: Annotated[int, Later()] = 0  # of the base's matrices: 8, 4, or 0 for float32


NO_ADAPTER = AdapterSpec(rank=0, alpha=0, targets=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer, its initial parameters, and what of it is trained."""

    TAG: ClassVar[bytes] = b"assay/model-spec/3"
    family: Family
    vocabulary: int
    layers: int
    width: int
    heads: int
    kv_heads: int  # heads that share one key and value: heads / kv_heads
    hidden: int  # width inside the MLP
    context: int  # tokens
    rope_theta: int  # base of the rotary wavelengths; 0 for GPT
    norm_epsilon_nano: int
    is_tied: bool  # the output head is the embedding
    base: Digest  # state digest of imported starting parameters; zero: drawn from the seed
    adapter: AdapterSpec = NO_ADAPTER
    head_width: Annotated[int, Later()] = 0  # of one head; 0: width / heads

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.head_width or self.width // self.heads

    @property
    def mixed_width(self) -> int:
        """Width of all heads' queries together, and so of what attention puts out."""
        return self.heads * self.head

    @property
    def is_adapted(self) -> bool:
        """Whether an adapter alone is trained."""
        return self.adapter != NO_ADAPTER

    @property
    def whole(self) -> ModelSpec:
        """This model without its adapter: the base, and what is delivered once the adapter is merged."""
        return replace(self, adapter=NO_ADAPTER)


class Precision(enum.IntEnum):
    """Number format of forward and backward passes; parameters and gradients stay float32."""

    FLOAT32 = 1
    BFLOAT16 = 2  # by torch's autocast


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSpec:
    """How a gradient is computed, as far as all nodes must agree."""

    TAG: ClassVar[bytes] = b"assay/compute-spec/1"
    dtype: Precision
    micro_sequences: int  # sequences of one forward and backward pass; 0 = the whole batch
    beta_micro: Annotated[int, Later()] = 0  # of DPO on preference pairs; 0: another loss
    grpo: Annotated[GrpoSpec, Later()] = NO_GRPO  # completions that the model samples; none: another loss

    @property
    def is_dpo(self) -> bool:
        """Whether the loss is that of DPO: a batch then holds preference pairs, two sequences each."""
        return self.beta_micro > 0

    @property
    def is_grpo(self) -> bool:
        """Whether a node trains on completions that it samples, rather than on the data's sequences."""
        return self.grpo != NO_GRPO

    @property
    def drawn_sequences(self) -> int:
        """Sequences that are drawn together, side by side in the data: a pair, or one."""
        return 2 if self.is_dpo else 1

    @property
    def trained_per_window(self) -> int:
        """Sequences that a node trains on for each window it draws: the window's, or with GRPO a group."""
        return self.grpo.group if self.is_grpo else self.drawn_sequences

    @property
    def sequence_unit(self) -> int:
        """Steps differ in size by multiples of this many sequences: whole windows and whole passes."""
        return math.lcm(self.trained_per_window, self.micro_sequences or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """A part of the data on which the nodes of some seats train, and no others."""

    TAG: ClassVar[bytes] = b"assay/stratum/1"
    tokens: int  # from where the stratum before it ends; 0: its one seat's node brings data of its own
    seats: int

    @property
    def is_own(self) -> bool:
        """Whether it is data that only one node has, of which the spec says nothing."""
        return self.tokens == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceShare:
    """A source of the data, and how often a sequence is drawn from it."""

    TAG: ClassVar[bytes] = b"assay/source-share/1"
    tokens: int  # from where the source before it ends
    weight_milli: int  # of a thousand draws, so many


class Portion(NamedTuple):
    """Windows that a node draws from, as numbers among those trained on."""

    weight: int  # of as many draws as the weights of all its portions, so many
    numbers: range


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """The training set: one token stream, cut in two, committed by a Merkle root over its shards."""

    TAG: ClassVar[bytes] = b"assay/data-spec/3"
    root: Digest
    manifest: Digest  # SHA-256 of the manifest: every source with its licence, every shard
    tokenizer: Digest  # SHA-256 of tokenizer.json; zero: tokens are bytes
    vocabulary: int  # every token is below this
    token_bytes: int  # 1, 2 or 4, little-endian
    tokens: int  # all of them
    validation_tokens: int  # never trained on; in stretches all over the stream: `protocol/split.py`
    source: Annotated[str, Max(512)]
    licence: Annotated[str, Max(128)]
    strata: Annotated[tuple[Stratum, ...], Max(STRATA_MAX), Later()] = ()  # none: every node trains on all
    # none: sources are drawn by their size
    mixture: Annotated[tuple[SourceShare, ...], Max(STRATA_MAX), Later()] = ()
    replaces: Annotated[bool, Later()] = True  # a window may be drawn again before all others were drawn

    def split(self, window: int) -> Split:
        """Which windows of this many tokens nodes train on, and which nobody does."""
        return Split(self.tokens // window, self.validation_tokens // window)

    def training_windows(self, stratum: int, window: int) -> range:
        """The numbers, among the windows trained on, of a stratum's: none that holds another's tokens."""
        return self._trained(self._windows(stratum, window), window)

    def portions(self, stratum: int, window: int) -> tuple[Portion, ...]:
        """What nodes of a stratum draw from: each source that has a weight, or all of their windows alike."""
        if not self.mixture:
            return (Portion(1, self.training_windows(stratum, window)),)
        spans = (_span(self.mixture, number, window) for number in range(len(self.mixture)))
        weights = (one.weight_milli for one in self.mixture)
        return tuple(
            Portion(weight, self._trained(span, window)) for weight, span in zip(weights, spans, strict=True)
        )

    def held_out_windows(self, stratum: int, window: int) -> range:
        """The numbers, among the windows held out, of a stratum's."""
        first, end = self._windows(stratum, window)
        before = self.split(window).trained_before
        return range(first - before(first), end - before(end))

    def _windows(self, stratum: int, window: int) -> tuple[int, int]:
        """The first window of a stratum, and the one after its last; of everything without strata."""
        return _span(self.strata, stratum, window) if self.strata else (0, self.tokens // window)

    def _trained(self, span: tuple[int, int], window: int) -> range:
        first, end = map(self.split(window).trained_before, span)
        return range(first, end)


def _span(parts: Sequence[Stratum] | Sequence[SourceShare], number: int, window: int) -> tuple[int, int]:
    """The first window that lies wholly in a part of the stream, and the one after the last."""
    begin = sum(one.tokens for one in parts[:number])
    first = -(-begin // window)
    return first, max(first, (begin + parts[number].tokens) // window)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSpec:
    """Audit rules of a run: rates, deadlines in rounds, and digests of what auditors rely on."""

    TAG: ClassVar[bytes] = b"assay/audit-spec/7"
    probation: int  # a node's first audits come at rate 1; then rate = probation / clean audits
    floor_ppm: int  # the rate never falls under this; never 0
    blocks: int  # count opened per audit, half uniform, half among non-empty blocks
    wide_ppm: int = 0  # probability of a wide audit, which opens more
    wide_blocks: int = 1  # count opened in a wide audit, likewise
    replication_ppm: int  # rate of replicated audits, drawn once the first auditor has committed
    takeover_rounds: int  # rounds after which the next verifier in the drawn order takes over
    audit_rounds: int  # a verdict counts up to this many rounds after the step
    dispute_rounds: int  # a committee's time after the dispute was opened
    absence_s: int = 0  # agreed time for which an opening may be overdue before it counts as withheld
    limits: Digest = NO_DIGEST  # SHA-256 of the calibration for other execution classes; zero: none
    known_answer_count: int = 0  # known-answer tasks of each node, which draws its own
    attestation: Digest = NO_DIGEST  # of the policy by which attested hardware lowers the rate; zero: none
    attested_rounds: int = 0  # how long evidence counts, from the round whose manifest was its nonce
    code: Digest = NO_DIGEST  # SHA-256 of an attested guest's code; zero without
    drand: DrandSpec = NO_DRAND  # external randomness mixed into the draws, if any


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicesSpec:
    """The run's multiple-choice items, which the model is scored on after an epoch with a milestone."""

    TAG: ClassVar[bytes] = b"assay/choices-spec/1"
    digest: Digest  # SHA-256 of `choices.json`: their texts and tokens; zero: the run has none
    items: int


NO_CHOICES = ChoicesSpec(digest=NO_DIGEST, items=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """What the model should have reached after an epoch: every bound that is named."""

    TAG: ClassVar[bytes] = b"assay/milestone/2"
    epoch: int
    most_loss_micro: int  # held-out loss, in millionths of a nat; `LOSS_MICRO_MAX`: any
    least_acc_ppm: int = 0  # of the run's choices; 0: any
    least_acc_norm_ppm: int = 0

    @property
    def asks_loss(self) -> bool:
        """Whether it bounds the held-out loss."""
        return self.most_loss_micro < LOSS_MICRO_MAX

    @property
    def asks_accuracy(self) -> bool:
        """Whether it bounds an accuracy."""
        return self.least_acc_ppm > 0 or self.least_acc_norm_ppm > 0

    def is_reached(self, score: Score, items: int) -> bool:
        """Whether a score on this many items is within every bound."""
        return (
            score.loss_micro <= self.most_loss_micro
            and score.acc_count * PPM >= self.least_acc_ppm * items
            and score.acc_norm_count * PPM >= self.least_acc_norm_ppm * items
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptSpec:
    """The share of an epoch's price that is owed only if the epoch's milestone is reached.

    The loss is the mean over `sequences` held-out sequences, evenly spaced, in the reference class; an
    accuracy is over all of the run's choices.
    """

    TAG: ClassVar[bytes] = b"assay/accept-spec/2"
    share_ppm: int  # of the price of each epoch that has a milestone
    sequences: int
    milestones: Annotated[tuple[Milestone, ...], Max(MILESTONES_MAX)]  # ascending by epoch; none: all is owed

    def milestone(self, epoch: int) -> Milestone | None:
        """The epoch's milestone; None if it has none."""
        return next((one for one in self.milestones if one.epoch == epoch), None)


NO_ACCEPT = AcceptSpec(share_ppm=0, sequences=0, milestones=())


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneySpec:
    """Price, shares and penalties."""

    TAG: ClassVar[bytes] = b"assay/money-spec/4"
    price_per_mtoken: int  # minor units per 10^6 accepted tokens
    operators_ppm: int
    verifiers_ppm: int  # the rest is the fee
    treasury: Address
    slash_ppm: int  # of an operator's stake, for a confirmed mismatch
    withheld_ppm: (
        int  # for an opening that never came; below `slash_ppm`, withholding would be cheaper than a mismatch
    )
    verifier_slash_ppm: int  # of a verifier's stake, for a verdict that the committee proved false
    epoch_rounds: int
    accept: AcceptSpec = NO_ACCEPT

    @property
    def operator_price(self) -> int:
        """What operators earn for 10^6 accepted tokens, in minor units, rounded down."""
        return self.price_per_mtoken * self.operators_ppm // PPM

    @property
    def sure_operator_price(self) -> int:
        """What of it does not depend on milestones."""
        return self.operator_price - self.operator_price * self.accept.share_ppm // PPM


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSpec:
    """Consensus timeouts in milliseconds. Safety never depends on them."""

    TAG: ClassVar[bytes] = b"assay/timing-spec/1"
    collect_ms: int  # after this time at the latest a leader proposes what it has
    ready_ms: int  # a verifier that holds everything waits this long for the leader
    iteration_ms: int  # and this long otherwise
    resend_ms: int

    @property
    def opening_ms(self) -> int:
        """How long a drawn node's opening may take to arrive, a restart included.

        A leader waits `collect_ms` for an auditor's commitment that is due, which comes after it.
        """
        return self.collect_ms * 6 // 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """The run that a run continues, and the last of its manifests that counts.

    The parameters that the successor starts from, its `model.base`, are those after that manifest and the
    aggregates that waited then.
    """

    TAG: ClassVar[bytes] = b"assay/predecessor/1"
    run_id: Digest
    manifest: Digest
    rounds: int  # of training up to that manifest, with those that its own predecessors trained
    outer: Digest  # of the outer optimiser's buffers there; zero: they begin at 0, or there are none


NO_PREDECESSOR = Predecessor(run_id=NO_DIGEST, manifest=NO_DIGEST, rounds=0, outer=NO_DIGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Complete specification of one run: with the chain, it suffices to check everything else."""

    TAG: ClassVar[bytes] = b"assay/run-spec/11"
    deployment_id: Digest
    name: Annotated[str, Max(64)]
    seed: int
    rounds: int
    state_every: int  # rounds between commits that carry the digest of the parameters
    model: ModelSpec
    compute: ComputeSpec
    data: DataSpec
    choices: ChoicesSpec = NO_CHOICES
    rule: RuleSpec
    audit: AuditSpec
    money: MoneySpec
    timing: TimingSpec
    buyer: Address
    seats: int  # nodes that may take part at a time: beyond those of the spec, whoever locks a lot may join
    least_nodes: int  # without which the run does not start
    start_by_s: int  # agreed time, Unix seconds, until which these may come; 0: the spec names them all
    nodes: Annotated[tuple[Member, ...], Max(NODES_MAX)]  # of round 0, ascending by peer
    verifiers: Annotated[tuple[Member, ...], Max(VERIFIERS_MAX)]  # ascending by peer
    reserves: Annotated[
        tuple[Member, ...], Max(VERIFIERS_MAX), Later()
    ] = ()  # may take over a seat; ascending
    predecessor: Annotated[Predecessor, Later()] = NO_PREDECESSOR  # the run that this one continues, if any
    buyer_key: Annotated[Address, Later()] = NO_ADDRESS  # signs for a buyer without a key; none: its account

    @property
    def is_continued(self) -> bool:
        """Whether it goes on where another run stopped."""
        return self.predecessor != NO_PREDECESSOR

    def in_line(self, round_id: int) -> tuple[int, int]:
        """The rounds that this run and those it continues train together, and which of them a round is.

        Learning rates, batches and samples are a function of this, not of the round alone: a successor
        goes on with both, and draws nothing that a run before it drew.
        """
        before = self.predecessor.rounds
        return before + self.rounds, before + round_id

    @property
    def signer(self) -> Address:
        """Address of the key that signs run file and index: the buyer's account, or the one named for it."""
        return self.buyer if self.buyer_key == NO_ADDRESS else self.buyer_key

    @property
    def tokens_per_step(self) -> int:
        """Least tokens that one accepted step counts for."""
        return self.rule.sequences_per_round * self.model.context

    @property
    def most_tokens_per_step(self) -> int:
        """Most tokens that one accepted step counts for."""
        return self.rule.most_sequences_per_round * self.model.context

    def step_sequences(self, tokens: int) -> int:
        """Sequences of each inner step, or of the gradient, of a step that counts for `tokens` tokens.

        Raises:
            ValueError: no step of this run does.
        """
        local, unit = self.rule.local, self.compute.sequence_unit
        each = local.steps * self.model.context
        sequences, rest = divmod(tokens, each)
        more, torn = divmod(sequences - local.sequences, unit)
        if rest or torn or more < 0 or sequences > local.most_sequences:
            most = f" to {self.most_tokens_per_step} in steps of {unit * each}" if local.sequences_max else ""
            raise ValueError(f"{tokens} tokens, expected {self.tokens_per_step}{most}")
        return sequences

    @property
    def window_tokens(self) -> int:
        """Tokens that are drawn, or held out, together: of a sequence, or with DPO of a preference pair."""
        return (self.model.context + 1) * self.compute.drawn_sequences

    @property
    def window_bytes(self) -> int:
        """Length in bytes of the tokens of a window."""
        return self.window_tokens * self.data.token_bytes

    @property
    def most_windows_per_round(self) -> int:
        """Most windows that a node trains on in one round; with GRPO, prompts that it completes."""
        return self.rule.most_sequences_per_round // self.compute.trained_per_window

    @property
    def split(self) -> Split:
        """Which windows of the run's stream its nodes train on, and which nobody does."""
        return self.data.split(self.window_tokens)

    def stratum_of(self, node: PeerId) -> int:
        """The number of the stratum that a node trains on; 0 if all train on everything.

        Nodes that the spec names take the seats of the strata in order. One that joins later is assigned
        by its key, with each public stratum's share of the seats as its probability.
        """
        strata = self.data.strata
        if not strata:
            return 0
        named = [member.peer for member in self.nodes]
        if node in named:
            seat = named.index(node)
        else:
            own = len(self.bringing_nodes)
            head = b"assay/stratum-of/1" + self.seed.to_bytes(8, "big") + node
            seat = own + int.from_bytes(hashlib.sha256(head).digest()[:16], "big") % (self.seats - own)
        ends = itertools.accumulate(stratum.seats for stratum in strata)
        return next(number for number, end in enumerate(ends) if seat < end)

    @property
    def bringing_nodes(self) -> tuple[PeerId, ...]:
        """The nodes that train on data of their own: the first that the spec names."""
        own = sum(stratum.is_own for stratum in self.data.strata)
        return tuple(member.peer for member in self.nodes[:own])

    def brings_data(self, node: PeerId) -> bool:
        """Whether a node trains on data that only it has."""
        return node in self.bringing_nodes

    @property
    def takes_newcomers(self) -> bool:
        """Whether there is a seat for a node that the spec does not name: all such train on public data."""
        return len(self.bringing_nodes) < self.seats

    def training_windows(self, node: PeerId) -> range:
        """The numbers, among the windows trained on, of those that a node trains on."""
        return self.data.training_windows(self.stratum_of(node), self.window_tokens)

    def portions(self, node: PeerId) -> tuple[Portion, ...]:
        """What a node draws from that brings no data."""
        return self.data.portions(self.stratum_of(node), self.window_tokens)

    def first_draw(self, node: PeerId, round_id: int, seat: int) -> int:
        """The number of a node's first draw in a round, where all draws are numbered: no two steps share one.

        Each seat has as many in a round as the largest step takes, so what a smaller step or an absent node
        leaves out is not drawn in that pass over the data. A node that brings data is alone with them.
        """
        _, in_line = self.in_line(round_id)
        steps = in_line if self.brings_data(node) else in_line * self.seats + seat
        return steps * self.most_windows_per_round

    @property
    def verifier_peers(self) -> tuple[PeerId, ...]:
        """The verifiers' protocol keys, ascending."""
        return tuple(member.peer for member in self.verifiers)

    @property
    def seat_peers(self) -> tuple[PeerId, ...]:
        """The keys that may hold a verifier's seat at some time: the judges', verifiers first."""
        return self.verifier_peers + self.reserve_peers

    @property
    def judges(self) -> tuple[Member, ...]:
        """Whose accounts sign for the run on chain: its verifiers and those who may take over a seat."""
        return self.verifiers + self.reserves

    @property
    def reserve_peers(self) -> tuple[PeerId, ...]:
        """The keys of those who may take over a verifier's seat, ascending."""
        return tuple(member.peer for member in self.reserves)

    @property
    def closing_rounds(self) -> int:
        """Rounds after which a step's audit has ended, dispute and second committee included."""
        return closing_rounds(self.audit, len(self.verifiers))

    @property
    def epochs(self) -> int:
        """Number of epochs (settlements) that were ordered; a run that closes early has fewer."""
        return self.ordered.epochs

    @property
    def ordered(self) -> Calendar:
        """The calendar of this run if it trains for as many rounds as were ordered."""
        return self.calendar(self.rounds)

    def calendar(self, rounds: int) -> Calendar:
        """The calendar of this run if it trains for this many rounds."""
        return Calendar(
            rounds=rounds, epoch_rounds=self.money.epoch_rounds, closing_rounds=self.closing_rounds
        )

    def epoch_price(self, epoch: int) -> int:
        """The most that an ordered epoch can cost, in minor units.

        That is every step of all seats accepted, and each of the largest size.
        """
        steps = self.ordered.epoch_end(epoch) - epoch * self.money.epoch_rounds
        tokens = steps * self.seats * self.most_tokens_per_step
        return tokens * self.money.price_per_mtoken // 10**6

    @property
    def price(self) -> int:
        """The most that all ordered epochs can cost, in minor units: all but the last are equally long."""
        return (self.epochs - 1) * self.epoch_price(0) + self.epoch_price(self.epochs - 1)


def closing_rounds(audit: AuditSpec, verifiers: int) -> int:
    """Rounds after which a step's audit has ended, where this many verifiers take part."""
    attempts = 1 if verifiers <= committee_size(verifiers, 0) else 2
    return audit.audit_rounds + attempts * audit.dispute_rounds


def windows_needed(most: int) -> int:
    """Windows that must be there for nodes whose largest step takes `most`: twice as many, if it is large.

    What is drawn again counts once: a step of all windows there are takes whoever checks it ten draws for
    each, one of half of them 1.4.
    """
    return most if most <= CROWDED_MAX else 2 * most


def check_spec(spec: RunSpec) -> None:
    """Do nothing if the parts of a spec fit together.

    Raises:
        ValueError: which part does not, what it is and what was expected.
    """

    def need(holds: bool, message: str) -> None:
        if not holds:
            raise ValueError(message)

    need(
        re.fullmatch(RUN_NAME, spec.name) is not None,
        f"name is {spec.name!a}, expected letters, digits, '.', '_' and '-', a letter or a digit first",
    )
    need(
        1 <= spec.rounds <= RUN_ROUNDS_MAX,
        f"rounds is {spec.rounds}, expected at least 1 and at most {RUN_ROUNDS_MAX}",
    )
    need(spec.state_every >= 1, f"state_every is {spec.state_every}, expected at least 1")
    for name in ("collect_ms", "ready_ms", "iteration_ms", "resend_ms"):
        need(getattr(spec.timing, name) >= 1, f"{name} is 0, expected at least 1")
    for fault in model_faults(spec.model):
        need(False, fault)
    need(
        spec.model.base != NO_DIGEST or not spec.model.is_adapted,
        "an adapter is trained on imported parameters, and this run imports none",
    )
    before = spec.predecessor
    is_whole = NO_DIGEST not in (before.run_id, before.manifest) and 1 <= before.rounds < LINE_ROUNDS_MAX
    need(
        not spec.is_continued or (is_whole and spec.model.base != NO_DIGEST),
        "a run that continues another names its id, its last manifest, the rounds trained so far, and the "
        "parameters that it starts from",
    )
    check_rule(spec.rule, need)
    need(
        spec.least_nodes > 2 * spec.rule.aggregation.f,
        f"{spec.least_nodes} nodes for f = {spec.rule.aggregation.f}, more than twice as many expected",
    )
    need(0 < spec.audit.floor_ppm <= PPM, "the audit floor must be above 0 and at most 1")
    need(spec.audit.probation >= 1, "probation must be at least one audit")
    need(spec.audit.takeover_rounds >= 1, "audit turns must take at least one round")
    need(
        4 <= spec.audit.audit_rounds <= AUDIT_ROUNDS_MAX,
        f"audit_rounds is {spec.audit.audit_rounds}, expected 4 (draw, two commitments, verdict) "
        f"to {AUDIT_ROUNDS_MAX}",
    )
    need(
        2 <= spec.audit.dispute_rounds <= AUDIT_ROUNDS_MAX,
        f"dispute_rounds is {spec.audit.dispute_rounds}, expected 2 (commitments, verdicts) "
        f"to {AUDIT_ROUNDS_MAX}",
    )
    for fault in drand_faults(spec.audit.drand):
        need(False, fault)
    need(spec.audit.wide_ppm <= PPM, "the share of wide audits is at most 1")
    for name in ("blocks", "wide_blocks"):
        count = getattr(spec.audit, name)
        need(
            1 <= count <= OPENED_BLOCKS_MAX,
            f"{count} {name} opened per audit, 1 to {OPENED_BLOCKS_MAX} expected",
        )
    need(spec.audit.replication_ppm <= PPM, "the share of replicated audits is at most 1")
    tasks = spec.audit.known_answer_count
    need(
        tasks * 20 <= spec.rounds and tasks <= KNOWN_ANSWERS_MAX,
        f"{tasks} known-answer tasks of each node in {spec.rounds} rounds, "
        f"at most one step in 20 expected, and at most {KNOWN_ANSWERS_MAX}",
    )
    is_attested = spec.audit.attestation != NO_DIGEST
    need(
        is_attested == (spec.audit.attested_rounds > 0),
        "a policy for attestation needs the rounds for which evidence counts, and no policy has none",
    )
    need(is_attested or spec.audit.code == NO_DIGEST, "a digest of attested code needs a policy")
    need(spec.money.operators_ppm + spec.money.verifiers_ppm <= PPM, "shares add up to more than 1")
    need(spec.money.epoch_rounds >= 1, "an epoch needs at least one round")
    need(
        (spec.choices.items > 0) == (spec.choices.digest != NO_DIGEST) and spec.choices.items <= ITEMS_MAX,
        f"{spec.choices.items} multiple-choice items, expected 1 to {ITEMS_MAX} with a digest, or neither",
    )
    for fault in _accept_faults(spec):
        need(False, fault)
    for name in ("slash_ppm", "withheld_ppm", "verifier_slash_ppm"):
        need(0 < getattr(spec.money, name) <= PPM, f"{name} must be above 0 and at most 1")
    need(spec.buyer_key != spec.buyer, "the buyer's account signs for itself, expected no other key")
    need(len(spec.verifiers) >= 1, "a run needs verifiers")
    need(spec.least_nodes >= 1, "a run needs nodes")
    need(
        len(spec.nodes) <= spec.least_nodes <= spec.seats <= RUN_NODES_MAX,
        f"{len(spec.nodes)} nodes named, {spec.least_nodes} needed, {spec.seats} seats: "
        f"expected to ascend, and at most {RUN_NODES_MAX}",
    )
    need(
        (spec.start_by_s > 0) == (spec.least_nodes > len(spec.nodes)),
        "a run that waits for nodes needs a time by which it starts, and no other has one",
    )
    need(
        len(spec.verifiers) + len(spec.reserves) <= RUN_VERIFIERS_MAX,
        f"{len(spec.verifiers)} verifiers and {len(spec.reserves)} reserves, "
        f"at most {RUN_VERIFIERS_MAX} expected",
    )
    largest = proposal_bytes(
        seats=spec.seats,
        verifiers=len(spec.verifiers),
        segments=spec.rule.segments,
        tasks=spec.audit.known_answer_count,
    )
    need(
        largest <= PROPOSAL_BYTES_MAX,
        f"proposals of up to {largest:,} bytes with {spec.seats} seats and {spec.rule.segments} segments a "
        f"round, at most {PROPOSAL_BYTES_MAX:,} expected: fewer seats, or longer segments",
    )
    # The manifest that starts a run admits all that it waits for.
    need(
        spec.least_nodes * quorum(len(spec.verifiers)) <= ADMISSIONS_MAX or not spec.start_by_s,
        f"{spec.least_nodes} nodes to wait for: {len(spec.verifiers)} verifiers can admit "
        f"{ADMISSIONS_MAX // quorum(len(spec.verifiers))} at once",
    )
    for group in (spec.nodes, spec.verifiers, spec.reserves):
        peers = [member.peer for member in group]
        need(peers == sorted(set(peers)), "members must ascend by peer, each once")
    everyone = spec.nodes + spec.verifiers + spec.reserves
    need(
        len(everyone) == len({member.account for member in everyone}),
        "one account cannot stand behind two members",
    )
    need(
        all(member.account != spec.money.treasury for member in everyone),
        "the fee goes to a member's account, expected another: its payouts could not be told from the fee",
    )
    need(len(spec.seat_peers) == len(set(spec.seat_peers)), "a reserve is a verifier of this run already")
    # At most f of all judges lie, so at most f of those that hold the seats at any time, whoever begins.
    seats, judges = len(spec.verifiers), len(spec.judges)
    need(
        faults_tolerated(judges) == faults_tolerated(seats),
        f"{seats} verifiers tolerate {faults_tolerated(seats)} faults, with {len(spec.reserves)} reserves "
        f"{faults_tolerated(judges)}: expected as many",
    )
    for faults in (
        dpo_faults(spec.compute, spec.rule.local.sequences),
        _class_faults(spec),
        _grpo_faults(spec),
        size_faults(spec.rule.local, spec.compute),  # last: it divides by the group
    ):
        for fault in faults:
            need(False, fault)
    need(
        spec.most_windows_per_round <= WINDOWS_MAX,
        f"a step takes {spec.most_windows_per_round} windows, at most {WINDOWS_MAX} expected",
    )
    drawn, windows = spec.window_tokens, windows_needed(spec.most_windows_per_round)
    need(
        spec.data.tokens - spec.data.validation_tokens >= drawn * windows,
        f"the data hold {spec.data.tokens - spec.data.validation_tokens} training tokens, "
        f"one step needs {drawn * windows}",
    )
    need(spec.data.validation_tokens >= drawn, f"validation needs at least {drawn} tokens")
    need(spec.data.token_bytes in (1, 2, 4), f"tokens of {spec.data.token_bytes} bytes, expected 1, 2 or 4")
    need(
        spec.data.vocabulary <= 1 << (8 * spec.data.token_bytes),
        f"{spec.data.vocabulary} different tokens do not fit {spec.data.token_bytes} bytes",
    )
    need(
        spec.epoch_price(0) > 0 or not spec.money.price_per_mtoken,
        "an epoch costs less than one token unit: expected a higher price, longer epochs, or a price of 0",
    )
    for fault in (
        *stratum_faults(
            spec.data,
            seats=spec.seats,
            window=spec.window_tokens,
            windows_needed=windows,
        ),
        *own_data_faults(spec),
        *sampling_faults(spec.data, window=spec.window_tokens, windows_needed=windows),
    ):
        need(False, fault)
    need(
        spec.data.vocabulary <= spec.model.vocabulary,
        f"the data hold {spec.data.vocabulary} different tokens, the model knows {spec.model.vocabulary}",
    )


def _accept_faults(spec: RunSpec) -> list[str]:
    accept = spec.money.accept
    if accept == NO_ACCEPT:
        return []
    faults, epochs = [], [one.epoch for one in accept.milestones]
    if not 0 < accept.share_ppm <= ACCEPT_PPM_MAX:
        faults.append(f"{accept.share_ppm} ppm depend on milestones, expected 1 to {ACCEPT_PPM_MAX}")
    if not epochs or epochs != sorted(set(epochs)) or epochs[-1] >= spec.epochs:
        faults.append(f"milestones must ascend by epoch, each once, below {spec.epochs}, and be at least one")
    for one in accept.milestones:
        faults += _milestone_faults(one, has_choices=spec.choices != NO_CHOICES)
    most = min(spec.data.validation_tokens // (spec.model.context + 1), ACCEPT_SEQUENCES_MAX)
    if accept.sequences % spec.compute.drawn_sequences:
        faults.append(
            f"{accept.sequences} sequences to measure, expected an even number: DPO needs whole pairs"
        )
    if not 0 < accept.sequences <= most:
        faults.append(f"{accept.sequences} sequences to measure, expected 1 to {most}, of those held out")
    verifiers = len(spec.verifiers)
    least = (
        opening_rounds(verifiers) + faults_tolerated(verifiers) + 1
    )  # so that commitments have honest leaders
    if spec.closing_rounds < least:
        faults.append(
            f"{spec.closing_rounds} manifests until an epoch is settled, expected {least} to evaluate it"
        )
    return faults


def stratum_faults(data: DataSpec, *, seats: int, window: int, windows_needed: int) -> tuple[str, ...]:
    """Errors in how the data are divided into strata, as text; empty if there are none.

    Each public stratum with seats must have as many windows as are needed, of `window` tokens.
    """
    strata = data.strata
    if not strata or not data.split(window).held:
        return ()
    given = sum(one.seats for one in strata), sum(one.tokens for one in strata)
    own = [one for one in strata if one.is_own]
    least = 0 if own else 1  # where every seat has data of its own, the spec's data are only held out
    if given != (seats, data.tokens) or min(one.seats for one in strata) < least:
        return (
            f"strata of {given[0]} seats and {given[1]} tokens, "
            f"expected {seats} and {data.tokens}, and a seat in each",
        )
    if list(strata[: len(own)]) != own or any(one.seats != 1 for one in own):
        return ("strata without tokens come first, with one seat each, whose node brings data of its own",)
    counts = [len(data.training_windows(number, window)) for number in range(len(strata))]
    return tuple(
        f"stratum {number} has {count} windows of {window} tokens to train on, a step needs {windows_needed}"
        for number, count in enumerate(counts)
        if strata[number].seats and not strata[number].is_own and count < windows_needed
    )


def sampling_faults(data: DataSpec, *, window: int, windows_needed: int) -> Iterator[str]:
    """Errors in how windows are drawn from sources and strata, as text; none where they fit together.

    Each source with a weight must have as many windows as are needed, of `window` tokens.
    """
    is_divided = sum(not one.is_own for one in data.strata) > 1
    if is_divided and not data.replaces:
        yield (
            "who joins later is assigned its stratum by its key, not by its seat: strata are drawn with "
            "replacement"
        )
    if not data.mixture or not data.split(window).held:
        return
    if is_divided:
        yield "a node of a stratum draws from one source alone: expected strata, or weights of sources"
    weights, tokens = (sum(getattr(one, name) for one in data.mixture) for name in ("weight_milli", "tokens"))
    if (weights, tokens) != (1000, data.tokens) or min(one.weight_milli for one in data.mixture) < 1:
        yield (
            f"sources of {tokens} tokens weigh {weights} thousandths together, "
            f"expected {data.tokens} and 1000, and 1 at least of each"
        )
        return
    for number, one in enumerate(data.portions(0, window)):
        if len(one.numbers) < windows_needed:
            yield (
                f"source {number} has {len(one.numbers)} windows of {window} tokens to train on, "
                f"a step needs {windows_needed}: expected more of it, or no weights"
            )


def own_data_faults(spec: RunSpec) -> Iterator[str]:
    """Errors in what a run asks of nodes with data of their own, as text; none where there are none."""
    own, named = sum(one.is_own for one in spec.data.strata), len(spec.nodes)
    if own > named:
        yield f"{own} seats with data of their own, and {named} nodes named: who brings data is named"
    if own and (spec.compute.is_dpo or spec.compute.is_grpo):
        yield (
            "data that only one node has are trained on for the next token: what DPO and GRPO read beside it "
            "would be the node's word"
        )
    if own and (size := spec.window_bytes) > WINDOW_BYTES_MAX:
        yield f"a window of {size} bytes, an opening shows at most {WINDOW_BYTES_MAX} of one"


def _milestone_faults(one: Milestone, *, has_choices: bool) -> Iterator[str]:
    if not 0 < one.most_loss_micro <= LOSS_MICRO_MAX:
        yield (
            f"a milestone's loss is {one.most_loss_micro} millionths, expected above 0, "
            f"and at most {LOSS_MICRO_MAX}"
        )
    for name in ("least_acc_ppm", "least_acc_norm_ppm"):
        if (ppm := getattr(one, name)) > PPM:
            yield f"a milestone's {name} is {ppm}, expected at most {PPM}"
    if not one.asks_loss and not one.asks_accuracy:
        yield f"the milestone of epoch {one.epoch} asks for nothing, expected a loss or an accuracy"
    if one.asks_accuracy and not has_choices:
        yield f"the milestone of epoch {one.epoch} asks for an accuracy, and the run has no choices"


def dpo_faults(compute: ComputeSpec, sequences: int) -> tuple[str, ...]:
    """Errors in how DPO is set up, as text; empty for another loss. sequences: of a step."""
    if not compute.is_dpo:
        return ()
    faults = []
    if not BETA_MICRO_MIN <= compute.beta_micro <= BETA_MICRO_MAX:
        faults.append(
            f"beta of DPO is {compute.beta_micro} millionths, expected {BETA_MICRO_MIN} to {BETA_MICRO_MAX}"
        )
    if sequences % 2:
        faults.append(f"{sequences} sequences in a step of DPO, expected an even number: pairs")
    if compute.micro_sequences % 2:
        faults.append(
            f"micro_sequences is {compute.micro_sequences}, expected an even number: DPO needs whole pairs"
        )
    return tuple(faults)


def size_faults(local: LocalSpec, compute: ComputeSpec) -> Iterator[str]:
    """Errors in how far the steps of a run may differ in size, as text; none where all are of one size.

    Whole passes of `micro_sequences` each: whatever a node chooses, its auditors need the memory of one pass,
    and all kernels see the shapes for which limits between execution classes were measured.
    """
    if not local.sequences_max:
        return
    if not compute.micro_sequences:
        yield "steps of different size are made of passes of one size, expected micro_sequences above 0"
        return
    unit = compute.sequence_unit
    for name, count in (("sequences", local.sequences), ("sequences_max", local.sequences_max)):
        if count % unit:
            yield f"{name} is {count}, expected a multiple of {unit}: whole passes, pairs and groups"


def _class_faults(spec: RunSpec) -> Iterator[str]:
    """What is audited within one execution class alone: other classes' limits would not hold for it."""
    is_half = spec.compute.dtype is Precision.BFLOAT16
    if spec.model.family is Family.GEMMA and is_half and spec.audit.limits != NO_DIGEST:
        yield "a Gemma in bfloat16 is audited within one execution class, expected no limits between classes"


def _grpo_faults(spec: RunSpec) -> Iterator[str]:
    """Errors in how GRPO is set up; none for another loss."""
    if not spec.compute.is_grpo:
        return
    if spec.compute.is_dpo:
        yield "a loss is that of GRPO or of DPO, expected no beta beside a group"
    if not spec.rule.is_gradient:
        yield "GRPO samples from the parameters that a round starts from, expected a rule without inner steps"
    if spec.audit.limits != NO_DIGEST:
        yield "GRPO is audited within one execution class alone, expected no limits between classes"
    yield from grpo_faults(
        spec.compute.grpo,
        sequences=spec.rule.local.sequences,
        context=spec.model.context,
        vocabulary=spec.model.vocabulary,
    )


def model_faults(model: ModelSpec) -> tuple[str, ...]:
    """Errors in a model's sizes, as text; empty if they fit together."""
    sizes = {
        name: getattr(model, name)
        for name in ("vocabulary", "layers", "width", "heads", "kv_heads", "hidden", "context")
    }
    faults = [f"model {name} is {size}, expected at least 1" for name, size in sizes.items() if size < 1]
    if model.layers > LAYERS_MAX:
        faults.append(f"model layers is {model.layers}, expected at most {LAYERS_MAX}")
    if faults:
        return tuple(faults)
    if not model.head_width and model.width % model.heads:
        faults.append(f"model width {model.width} must be a multiple of heads ({model.heads})")
    if model.heads % model.kv_heads:
        faults.append(f"model heads {model.heads} must be a multiple of kv_heads ({model.kv_heads})")
    if not 0 < model.norm_epsilon_nano < 10**9:
        faults.append("model norm epsilon must be above 0 and below 1")
    if model.family is Family.GPT:
        if model.kv_heads != model.heads:
            faults.append("a GPT has as many kv_heads as heads")
        if model.rope_theta:
            faults.append("a GPT has learned positions, expected a rope_theta of 0")
        if model.head_width:
            faults.append(
                f"a GPT's heads are width / heads wide, expected a head_width of 0, not {model.head_width}"
            )
    else:
        if model.head % 2:
            what = "head_width" if model.head_width else "width / heads"
            faults.append(f"model {what} is {model.head}, rotation needs an even number")
        if model.rope_theta < 2:
            faults.append(f"rope_theta is {model.rope_theta}, expected at least 2")
    return (*faults, *_adapter_faults(model))


def target_shape(model: ModelSpec, target: Target) -> tuple[int, int]:
    """Rows and columns of a Llama's matrix: what it puts out and takes in."""
    width, hidden, mixed, shared = model.width, model.hidden, model.mixed_width, model.kv_heads * model.head
    match target:
        case Target.Q:
            return mixed, width
        case Target.O:
            return width, mixed
        case Target.K | Target.V:
            return shared, width
        case Target.GATE | Target.UP:
            return hidden, width
        case Target.DOWN:
            return width, hidden


def _adapter_faults(model: ModelSpec) -> list[str]:
    adapter = model.adapter
    if not model.is_adapted:
        return []
    if model.family is Family.GPT:
        return ["an adapter needs a Llama: a GPT's queries, keys and values are one matrix"]
    faults = []
    if adapter.rank < 1 or adapter.alpha < 1:
        faults.append(f"an adapter of rank {adapter.rank} and alpha {adapter.alpha}, expected at least 1")
    if not adapter.targets or list(adapter.targets) != sorted(set(adapter.targets)):
        faults.append("an adapter's targets must ascend, each once, and be at least one")
    if adapter.base_bits not in (0, *BASE_BITS):
        faults.append(f"a base in {adapter.base_bits} bits, expected 8, 4 or 0 for float32")
    for target in adapter.targets:
        rows, columns = target_shape(model, target)
        if adapter.rank >= min(rows, columns):
            faults.append(
                f"an adapter of rank {adapter.rank} for {target.name.lower()}, a matrix of "
                f"{rows} x {columns}: expected less than its shorter side"
            )
    return faults
