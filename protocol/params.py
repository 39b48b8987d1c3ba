"""Params: everything the parties of one run share, hashed into what the buyer funds.

Room: protocol (pure). `RunSpec` is a message like any other; its digest is the
`specHash` that the escrow contract stores, so nobody can later say that another
model, price or audit rate was agreed. Integers only: money in minor units, time
in milliseconds, ratios in millionths.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, ClassVar

from protocol.codec import Max
from protocol.messages import NODES_MAX, VERIFIERS_MAX
from protocol.types import Address, Digest, PeerId

PPM = 1_000_000
RUN_NODES_MAX = 128
RUN_VERIFIERS_MAX = 16
BLOCK_SIDE = 64
BLOCK_SIZE = BLOCK_SIDE * BLOCK_SIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer."""

    TAG: ClassVar[bytes] = b"assay/model-spec/1"
    vocabulary: int
    layers: int
    width: int
    heads: int
    context: int  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """The training set: one token stream, cut in two, committed by a Merkle root."""

    TAG: ClassVar[bytes] = b"assay/data-spec/1"
    root: Digest
    tokens: int  # all of them
    validation_tokens: int  # the last ones, never trained on
    source: Annotated[str, Max(512)]
    licence: Annotated[str, Max(128)]


class Values(enum.IntEnum):
    """How the coefficients that are sent are written. All but SIGN carry a scale per block."""

    SIGN = 1  # one bit; the block's amplitude is free, so only a sign step may follow
    SIGN_MEAN = 2  # one bit times the block's mean magnitude
    TWO_BIT = 3  # levels -3, -1, 1, 3
    E3M0 = 4  # sign and three bits of exponent: 0 and +-1, 2, 4 ... 64
    INT8 = 5  # -127 to 127
    INT16 = 6  # -32767 to 32767: as good as float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSpec:
    """DeMo in the DCT domain with a sign wire (Peng et al., arXiv:2411.19870; docs/protocol.md)."""

    TAG: ClassVar[bytes] = b"assay/demo-spec/1"
    k: int  # coefficients sent of each 64 x 64 block
    beta_micro: int  # momentum decay
    clip_micro: int  # gradient norm each node clips to; 0 = no clipping
    lr_nano: int  # peak learning rate
    lr_floor_ppm: int  # share of the peak at the last round
    warmup_rounds: int
    sequences: int  # per node and round


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSpec:
    """How often, by whom and by when steps are recomputed."""

    TAG: ClassVar[bytes] = b"assay/audit-spec/1"
    probation: int  # a node's first audits come at rate 1; then rate = probation / clean audits
    floor_ppm: int  # the rate never falls under this; never 0
    blocks: int  # opened per audit, half uniform, half among non-empty blocks
    turn_rounds: int  # rounds after which the next verifier in the drawn order takes over
    audit_rounds: int  # a verdict counts up to this many rounds after the step
    dispute_rounds: int  # a committee has this many rounds after the alarm


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneySpec:
    """Price, shares and penalties."""

    TAG: ClassVar[bytes] = b"assay/money-spec/1"
    price_per_mtoken: int  # minor units per 10^6 accepted tokens
    operators_ppm: int
    verifiers_ppm: int  # the rest is the fee
    treasury: Address
    slash_ppm: int  # of an operator's stake, for an upheld mismatch
    epoch_rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingSpec:
    """When verifiers stop waiting. Safety never depends on these."""

    TAG: ClassVar[bytes] = b"assay/timing-spec/1"
    collect_ms: int  # a leader proposes what it has after this long
    ready_ms: int  # a verifier that holds everything gives the leader this long
    iteration_ms: int  # and this long otherwise
    resend_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One participant: its protocol key, the account it is paid to, the key contracts know."""

    TAG: ClassVar[bytes] = b"assay/member/1"
    peer: PeerId
    account: Address
    hot: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One run, complete: whoever holds this and the chain can check everything else."""

    TAG: ClassVar[bytes] = b"assay/run-spec/1"
    deployment_id: Digest
    name: Annotated[str, Max(64)]
    seed: int
    rounds: int
    state_every: int  # commits carry the digest of the parameters every so many rounds
    model: ModelSpec
    data: DataSpec
    rule: DemoSpec
    audit: AuditSpec
    money: MoneySpec
    timing: TimingSpec
    buyer: Address
    nodes: Annotated[tuple[Member, ...], Max(NODES_MAX)]  # ascending by peer
    verifiers: Annotated[tuple[Member, ...], Max(VERIFIERS_MAX)]  # ascending by peer

    @property
    def tokens_per_step(self) -> int:
        """Tokens one accepted contribution stands for."""
        return self.rule.sequences * self.model.context

    @property
    def verifier_peers(self) -> tuple[PeerId, ...]:
        """The verifiers' protocol keys, ascending."""
        return tuple(member.peer for member in self.verifiers)

    @property
    def last_round(self) -> int:
        """The round whose manifest closes the chain: training, then time for every verdict."""
        return self.rounds - 1 + self.audit.audit_rounds + self.audit.dispute_rounds

    @property
    def epochs(self) -> int:
        """Settlements of the run."""
        return -(-self.rounds // self.money.epoch_rounds)

    def settled_at(self, epoch: int) -> int:
        """The round whose manifest makes `epoch` ripe: nothing about it can change after."""
        last = min((epoch + 1) * self.money.epoch_rounds, self.rounds) - 1
        return last + self.audit.audit_rounds + self.audit.dispute_rounds


def check_spec(spec: RunSpec) -> None:
    """Do nothing if the parts of a spec fit together.

    Raises:
        ValueError: which part does not, what it is and what was expected.
    """

    def need(holds: bool, words: str) -> None:
        if not holds:
            raise ValueError(words)

    need(spec.rounds >= 1, f"rounds is {spec.rounds}, expected at least 1")
    need(spec.model.width % max(spec.model.heads, 1) == 0, "model width must be a multiple of heads")
    need(1 <= spec.rule.k <= BLOCK_SIZE // 2, f"k is {spec.rule.k}, expected 1 to {BLOCK_SIZE // 2}")
    need(0 <= spec.rule.beta_micro < PPM, f"beta is {spec.rule.beta_micro} millionths, expected below 1")
    need(0 < spec.audit.floor_ppm <= PPM, "the audit floor must be above 0 and at most 1")
    need(spec.audit.probation >= 1, "probation must be at least one audit")
    need(spec.audit.turn_rounds >= 1, "audit turns must take at least one round")
    need(spec.audit.audit_rounds >= 2, "audits need at least 2 rounds: one for the draw, one for the verdict")
    need(spec.audit.dispute_rounds >= 1, "disputes need at least one round")
    need(spec.money.operators_ppm + spec.money.verifiers_ppm <= PPM, "shares add up to more than 1")
    need(spec.money.epoch_rounds >= 1, "an epoch needs at least one round")
    need(0 < spec.money.slash_ppm <= PPM, "the slash must be above 0 and at most 1")
    need(len(spec.verifiers) >= 1, "a run needs verifiers")
    need(len(spec.nodes) >= 1, "a run needs nodes")
    # A proposal must fit one fact of 256 KiB: 750 bytes a commit, 330 a verdict, 1.7 kB a dummy certificate.
    need(len(spec.nodes) <= RUN_NODES_MAX, f"{len(spec.nodes)} nodes, at most {RUN_NODES_MAX} expected")
    need(
        len(spec.verifiers) <= RUN_VERIFIERS_MAX,
        f"{len(spec.verifiers)} verifiers, at most {RUN_VERIFIERS_MAX} expected",
    )
    for group in (spec.nodes, spec.verifiers):
        peers = [member.peer for member in group]
        need(peers == sorted(set(peers)), "members must ascend by peer, each once")
    everyone = [member.account for member in spec.nodes + spec.verifiers]
    need(len(everyone) == len(set(everyone)), "one account cannot stand behind two members")
    window = spec.model.context + 1
    need(
        spec.data.tokens - spec.data.validation_tokens >= window * spec.rule.sequences,
        f"the data hold {spec.data.tokens - spec.data.validation_tokens} training tokens, "
        f"one step needs {window * spec.rule.sequences}",
    )
    need(spec.data.validation_tokens >= window, f"validation needs at least {window} tokens")
