"""Settlement phase: describes an epoch's settlement state and its next step, as text for people.

Room: chain (pure). The states are EpochSettlement's; `now` is the chain's clock.
"""

from __future__ import annotations

from assay.chain.state import EpochPhase, EpochState
from assay.chain.text.times import when_text
from assay.chain.text.units import money_text, token_text


def phase_text(state: EpochState, now: int) -> str:
    """One line on an epoch's settlement."""
    total, when = token_text(state.total), when_text(state.until, now)
    match state.phase:
        case EpochPhase.NONE:
            return "no result on chain"
        case EpochPhase.PROPOSED if now < state.until:
            return f"{total} proposed, not final: can be challenged until {when}"
        case EpochPhase.PROPOSED:
            return f"{total} proposed; the time to challenge ended {when}, anyone may make it final"
        case EpochPhase.CHALLENGED if now < state.until:
            return f"{total} proposed, challenged by {state.challenger}: a jury may answer until {when}"
        case EpochPhase.CHALLENGED:
            return f"{total} proposed, challenged, not answered by {when}: it waits for another window"
        case EpochPhase.FINAL:
            left = f"{money_text(state.claimed)} of {total} claimed"
            rest = "the rest returns to the buyer when anyone sweeps it, possible since"
            return f"final, {left}; " + (f"claim until {when}" if now < state.until else f"{rest} {when}")
        case EpochPhase.SWEPT:
            return f"{money_text(state.claimed)} of {total} were claimed, the rest went back to the buyer"


def is_ready(state: EpochState, now: int) -> bool:
    """Whether this result can be finalised as soon as its predecessor is."""
    return state.phase is EpochPhase.PROPOSED and now >= state.until


def appeal_text(state: EpochState, now: int, window_ended: int | None) -> str:
    """Text that says until when an epoch's result can be challenged on chain.

    Args:
        state: The epoch's on-chain state.
        now: The chain's clock.
        window_ended: When the window of the result ended or will end, if the books know it.
    """
    match state.phase:
        case EpochPhase.NONE:
            return "no result is on chain; it can be challenged once it is proposed"
        case EpochPhase.PROPOSED if now < state.until:
            bond = token_text(state.bond)
            return f"can be challenged until {when_text(state.until, now)}, with a bond of {bond}"
        case EpochPhase.PROPOSED:
            return f"over since {when_text(state.until, now)}"
        case EpochPhase.CHALLENGED:
            return f"challenged by {state.challenger}; a jury answers until {when_text(state.until, now)}"
        case EpochPhase.FINAL | EpochPhase.SWEPT:
            since = f" since {when_text(window_ended, now)}" if window_ended is not None else ""
            return f"over{since}: the result is final"
