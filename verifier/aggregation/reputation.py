"""Reputation: leaves out up to f nodes whose recent updates later rounds contradict.

Room: verifier (pure). Over 90 % of the coefficients an honest node sends are sent by no other node in that
round, so a false value there is not contradicted at once. It is contradicted a few rounds later: parameters
that were moved the wrong way return with the opposite sign in what others send. So every node's messages of
the last rounds are compared with what every *other* node sends now:

    net(i, j) = sum of sign(i, then) * sign(j, now) over the coefficients both sent
    score(i)  = median over j of the net of the last rounds

Most nodes are honest, so the median lies within the honest nodes' nets for i: f colluders that support each
other, or discredit a node, do not move it further. A node with less than half the median node's score is left
out of the aggregate, at most f of them, until later rounds support it again: it keeps sending and being
scored meanwhile. A new node counts after half a window of agreement, so a new identity does not restore a bad
reputation. Agreement within a round does not count: whoever sees the others' messages first can copy it.

Honest nodes whose data differ contradict each other too. Where seats have data of their own, a node is
therefore compared with those of its own stratum, as far as these are enough to have an honest majority.

This bounds the share of votes that go against the others, not the harm of those that do; Byzantine nodes that
help as often as they hurt stay (docs/results/robustness.md measures that attack). Integers only. The state is
a function of the last `past + WINDOW` rounds' updates, so anyone can rebuild it.

Shape suffixes: N = nodes of a round, C = coefficients of a slab, T = coefficients one node sent of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import BLOCK_SIZE
from assay.protocol.types import PeerId
from assay.training.codec.wire import Update
from assay.verifier.aggregation.gram import Ints, need_majority

Updates = Mapping[PeerId, Update]
PAST = 8  # rounds that a message is remembered; overshoot makes older ones disagree
WINDOW = 16  # rounds whose nets make a score: Byzantine nodes are found within about four
_SLAB_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class RoundAgreement:
    """One round's comparison. Row i: how far each node now agrees with what node i sent before, int64."""

    peers: tuple[PeerId, ...]
    net_NN: Ints


@dataclass(frozen=True, slots=True)
class RememberedUpdate:
    """An update as it is remembered: signs and positions in 3 bytes a coefficient, 1 where all are sent."""

    blocks_B: Ints
    index_BK: NDArray[np.uint16] | None  # None: every coefficient
    sign_BK: NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Reputation:
    """State after a round: the updates to compare the next one with, and the window's nets, oldest first."""

    past: tuple[Mapping[PeerId, RememberedUpdate], ...] = ()
    window: tuple[RoundAgreement, ...] = ()


def observe(before: Reputation, updates: Updates, block_count: int, *, past: int = PAST) -> Reputation:
    """The reputation after a round: its updates are compared with earlier ones and remembered.

    Args:
        before: After the round before.
        updates: All checked updates of the round, also of nodes that are left out.
        block_count: Blocks of the layout.
        past: Rounds to remember; times the number of fragments, if they rotate. Costs
            bytes per coefficient and round, so 1 or 2 suffice where every coefficient is sent.
    """
    remembered = {peer: _remembered(update) for peer, update in sorted(updates.items())}
    nets = RoundAgreement(tuple(remembered), _nets(before.past, remembered, block_count))
    return Reputation((*before.past, remembered)[-past:], (*before.window, nets)[-WINDOW:])


def admitted(
    reputation: Reputation, *, f: int, stratum_of: Callable[[PeerId], int] = lambda _peer: 0
) -> tuple[PeerId, ...]:
    """The nodes of the last round whose updates count, ascending: all but at most f.

    In a stratum of more than 2f nodes, a node is left out if it has less than half the median node's score
    in that stratum. Where steps overshoot, or many nodes are Byzantine, the median score too is negative:
    then a node is left out if its score is below twice the median. In a smaller stratum f Byzantine nodes
    could be the majority, so its nodes are compared with those of all strata, who see other data: one is
    left out if it is contradicted half again as much as a typical node is confirmed in its own stratum. Where
    no more than 2f nodes share their stratum with another, nothing tells what is typical, and all count.

    Args:
        reputation: After the round's updates.
        f: Byzantine nodes to tolerate, of all strata together.
        stratum_of: The stratum of a node's data.

    Raises:
        ValueError: n <= 2f, where the median is bounded by no honest node.
    """
    scores = scores_of(reputation)
    need_majority(len(scores), f)
    strata: dict[int, list[PeerId]] = {}
    for peer in scores:
        strata.setdefault(stratum_of(peer), []).append(peer)
    inside = {
        peer: score for peers in strata.values() for peer, score in scores_of(reputation, peers).items()
    }
    paired = [inside[peer] for peers in strata.values() if len(peers) > 1 for peer in peers]
    typical = _median(paired) if len(paired) > 2 * f else 0  # of fewer, f liars choose the median
    below: list[PeerId] = []
    for peers in strata.values():
        median = _median([inside[peer] for peer in peers])
        if len(peers) > 2 * f:
            bar = median if median > 0 else 4 * median
            below += [peer for peer in peers if 2 * inside[peer] < bar]
        elif typical:
            below += [peer for peer in peers if 2 * scores[peer] < -3 * abs(typical)]
    out = sorted(below, key=lambda peer: (scores[peer], peer))[:f]
    return tuple(peer for peer in scores if peer not in out)


def scores_of(reputation: Reputation, among: Sequence[PeerId] | None = None) -> dict[PeerId, int]:
    """Score of every node of the last round, or of these `among` themselves. 0 for a node that is alone."""
    peers = reputation.window[-1].peers if among is None else among
    total_NN = np.zeros((len(peers), len(peers)), np.int64)
    for nets in reputation.window:
        place = {peer: row for row, peer in enumerate(nets.peers)}
        mine = [row for row, peer in enumerate(peers) if peer in place]
        theirs = [place[peers[row]] for row in mine]
        total_NN[np.ix_(mine, mine)] += nets.net_NN[np.ix_(theirs, theirs)]
    if len(peers) == 1:
        return {peers[0]: 0}
    others_NM = total_NN[~np.eye(len(peers), dtype=bool)].reshape(len(peers), -1)
    # The upper median of the n - 1 others: with n >= 2f + 1, f + 1 honest nets lie at or below it.
    score_N = np.sort(others_NM, axis=1)[:, (len(peers) - 1) // 2]
    return dict(zip(peers, score_N.tolist(), strict=True))


def _median(scores: list[int]) -> int:
    """The lower median; 0 of none."""
    return sorted(scores)[(len(scores) - 1) // 2] if scores else 0


def _remembered(update: Update) -> RememberedUpdate:
    is_dense = update.index_BK.shape[1] == BLOCK_SIZE
    index_BK = None if is_dense else update.index_BK.astype(np.uint16)
    return RememberedUpdate(update.blocks_B, index_BK, np.sign(update.value_BK).astype(np.int8))


def _nets(
    past: tuple[Mapping[PeerId, RememberedUpdate], ...],
    now: Mapping[PeerId, RememberedUpdate],
    block_count: int,
) -> Ints:
    """Entry (i, j): sum over past rounds of the signs of i then times those of j now."""
    net_NN = np.zeros((len(now), len(now)), np.int64)
    if not past:
        return net_NN
    is_dense = next(iter(now.values())).index_BK is None
    for first in range(0, block_count, _SLAB_BLOCKS):
        # At most 64 rounds times 2^16 positions: integers below 2^24, exact in any order.
        if is_dense:
            now_NC, past_NC = np.zeros((2, len(now), _SLAB_BLOCKS * BLOCK_SIZE), np.float32)
            for row, (peer, one) in enumerate(now.items()):
                _add(one, first, now_NC[row])
                for remembered in past:
                    if peer in remembered:
                        _add(remembered[peer], first, past_NC[row])
            net_NN += (past_NC @ now_NC.T).astype(np.int64)
            continue
        past_sign_CN = np.zeros((_SLAB_BLOCKS * BLOCK_SIZE, len(now)), np.float32)
        for row, peer in enumerate(now):
            for remembered in past:
                if peer in remembered:
                    where_T, sign_T = _within(remembered[peer], first)
                    past_sign_CN[where_T, row] += sign_T  # indices of one update are distinct
        for row, one in enumerate(now.values()):
            where_T, sign_T = _within(one, first)
            net_NN[:, row] += (sign_T @ past_sign_CN[where_T]).astype(np.int64)
    return net_NN


def _add(remembered: RememberedUpdate, first: int, sum_C: NDArray[np.float32]) -> None:
    """Add the signs that an update with every coefficient sent for the slab's blocks."""
    low, high = np.searchsorted(remembered.blocks_B, (first, first + _SLAB_BLOCKS))
    sum_C.reshape(-1, BLOCK_SIZE)[remembered.blocks_B[low:high] - first] += remembered.sign_BK[low:high]


def _within(remembered: RememberedUpdate, first: int) -> tuple[Ints, NDArray[np.float32]]:
    """Position within the slab, and sign, of all that an update sent for its blocks."""
    low, high = np.searchsorted(remembered.blocks_B, (first, first + _SLAB_BLOCKS))
    assert remembered.index_BK is not None
    where_BK = (remembered.blocks_B[low:high, None] - first) * BLOCK_SIZE + remembered.index_BK[low:high]
    return where_BK.reshape(-1), remembered.sign_BK[low:high].reshape(-1).astype(np.float32)
