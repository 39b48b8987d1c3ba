"""Members: helpers shared by the attacks on the state transition: member names and look-ups.

Room: redteam.
"""

from __future__ import annotations

from assay.ledger.settlement.payouts import settle
from assay.protocol.messages import Outcome as Found
from assay.protocol.types import PeerId, RoundId
from assay.redteam.attack import Outcome
from assay.testing.members import NODES, VERIFIERS, a_digest
from assay.testing.run import Network

LIAR, NODE = VERIFIERS[0], NODES[0]
GUESS = a_digest("a guess")
MATCH, MISMATCH, WITHHELD = Found.MATCH, Found.MISMATCH, Found.WITHHELD


def all_steps(rounds: int) -> set[tuple[RoundId, PeerId]]:
    """Every step of NODE."""
    return {(RoundId(number), NODE) for number in range(rounds)}


def pay_of(network: Network, peer: PeerId) -> int:
    """A member's pay in the first epoch. The run is grown until that is settled."""
    while int(network.run_state.round) <= network.run_state.calendar.settled_at(0):
        network.grow()
    return sum(row.amount for row in settle(network.run_state, 0).rows if row.peer == peer)


def one_act(is_caught: bool, has_succeeded: bool, cost: float, harm: str) -> Outcome:
    """The outcome of an adversary that acts throughout and is counted once."""
    return Outcome(attempts=1, caught=is_caught, succeeded=has_succeeded, cost=cost, harm=harm)
