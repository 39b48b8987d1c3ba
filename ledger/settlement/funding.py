"""Funding of a run: what its escrow can pay for, whether it is closing, and how long closing must last.

Room: ledger (pure). A verifier applies `reading_of` to its chain's finalised block and reports the result
(docs/protocol.md section 4a).

    RunOpened --budget covers epochs 0 to e - 1, and results are posted--> e epochs funded
              --closesAt - closeDelay--> closing
"""

from __future__ import annotations

from dataclasses import dataclass

from assay.chain.commit_statement import evm_address
from assay.chain.state import EscrowState, FinalEscrow
from assay.chain.text.times import span_text
from assay.protocol.agreement.quorum import faults_tolerated
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import ConfigError
from assay.protocol.messages import Closing
from assay.protocol.params import AuditSpec, RunSpec, TimingSpec, closing_rounds
from assay.protocol.randomness.drand import longest_wait_s

UNPOSTED_MAX = 24  # ripe epochs whose results are not posted: each locks a bond for a challenge window
POST_S = 10  # to notice that an epoch is ripe, to sign its result and to have it mined


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a run's escrow means for its training."""

    epochs: int  # from the first on, that can be paid in full, and whose results can be posted in time
    closing: Closing


def reading_of(spec: RunSpec, final: FinalEscrow, close_delay_s: int, posted: int) -> Reading:
    """The reading of an escrow at one block.

    An epoch is funded if the budget covers it and every epoch before it, each with all steps accepted. An
    epoch never costs more than that, so what is reserved and paid for earlier epochs leaves at least the
    money of the later ones; and a budget never shrinks, so neither does the figure. What is not posted when
    the escrow closes goes back to the buyer, so training waits where more than `UNPOSTED_MAX` ripe epochs are
    not.

    Args:
        spec: The run.
        final: Its escrow at that block, and the verifier set that it was opened with.
        close_delay_s: From a request to close to the end of the escrow, `RunEscrow.closeDelay`.
        posted: Epochs whose results were posted, from the first on.
    """
    escrow, now_s = final.escrow, final.time_s
    if escrow is None:
        return Reading(epochs=0, closing=Closing.NO)
    closing = Closing.NO
    if now_s >= escrow.closes_at - close_delay_s:
        closing = Closing.BY_BUYER if escrow.closes_at < escrow.deadline else Closing.BY_DEADLINE
    verifiers = {evm_address(member.account) for member in spec.judges}
    if escrow.spec_hash != digest(spec) or set(final.judges) != verifiers:
        return Reading(epochs=0, closing=closing)  # our results for it could not be settled
    unripe = -(-spec.closing_rounds // spec.money.epoch_rounds) + 1
    return Reading(epochs=min(_payable(spec, escrow), posted + unripe + UNPOSTED_MAX), closing=closing)


def _payable(spec: RunSpec, escrow: EscrowState) -> int:
    """Epochs that an escrow can pay in full, from the first on. All but the last cost the same."""
    count, price = min(spec.epochs, escrow.epochs), spec.epoch_price(0)
    alike = min(count, spec.epochs - 1)
    if alike and price > escrow.epoch_cap:
        return 0
    epochs = min(alike, escrow.budget // price) if price else alike
    if epochs == count or epochs < alike:
        return epochs
    last = spec.epoch_price(epochs)
    return epochs + (last <= min(escrow.budget - epochs * price, escrow.epoch_cap))


def closing_s(audit: AuditSpec, timing: TimingSpec, verifiers: int, epoch_rounds: int) -> int:
    """Seconds in which a run that is asked to close has posted every result, with f verifiers silent.

    Each of its last rounds takes `collect_ms` at most after its leader's turn has come, or as long as a
    leader waits for the drand round that was named; of n successive leaders at most f are silent, and each
    costs an `iteration_ms`. The results of the epochs that become ripe in these rounds are posted one by one.
    """
    f = faults_tolerated(verifiers)
    rounds = closing_rounds(audit, verifiers) + 1  # the one in which closing is agreed, and the closing ones
    silent = -(-rounds * f // (verifiers - f)) + f
    epochs = -(-rounds // epoch_rounds) + 1
    round_ms = timing.collect_ms
    if audit.drand.is_used:
        round_ms = max(round_ms, 1000 * longest_wait_s(audit.drand))
    return -(-(rounds * round_ms + silent * timing.iteration_ms) // 1000) + epochs * POST_S


def check_close_delay(need_s: int, close_delay_s: int, finality_s: int = 0) -> None:
    """Do nothing if a deployment's close delay is long enough for what is done to be paid.

    Args:
        need_s: `closing_s` of the run.
        close_delay_s: Of the deployment.
        finality_s: How far its finalised block is behind the newest.

    Raises:
        ConfigError: with what is needed and what there is.
    """
    if need_s + finality_s > close_delay_s:
        raise ConfigError(
            f"[verify] and [timing] let a run that closes take {span_text(need_s + finality_s)} to settle "
            f"what was done, the escrow of this deployment waits {span_text(close_delay_s)} for it"
        )
