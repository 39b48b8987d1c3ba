"""Latency: how long rounds took, as far as the certified chain says.

Room: explorer (pure). Agreed time is in whole seconds, from leaders' clocks within bounds (decision 0027).
Round trips are not here: each process measures its own, and no manifest has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from assay.protocol.messages import CertifiedManifest
from assay.protocol.types import PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """How a node's commits arrived, by the inclusion lists of rounds with a commit of it.

    lists: of verifiers, each at its own deadline. named: those that name the node.
    """

    lists: int = 0
    named: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """The rounds of training: seconds between the agreed times of a round and the one before."""

    median_s: int
    most_s: int  # that nine in ten took at most
    slowest_s: int
    slowest_round: int
    rounds: int
    rounds_given_up: int  # with at least one iteration that ended without a manifest: its leader was given up
    iterations_given_up: int
    arrivals: Arrivals  # of all nodes' commits


def latency_of(
    links: Sequence[CertifiedManifest], rounds: int, arrivals: Mapping[PeerId, Arrivals]
) -> Latency | None:
    """The time of a run's rounds; None before the second.

    Args:
        links: Of the chain, or as far as it has got.
        rounds: Of training.
        arrivals: Of each node's commits.
    """
    trained = links[:rounds]
    if len(trained) < 2:
        return None
    times = [after.manifest.time_s - before.manifest.time_s for before, after in pairwise(trained)]
    ordered, slowest = sorted(times), max(times)
    iterations = [0, *(int(link.block.iteration) for link in trained)]
    given_up = [after - before - 1 for before, after in pairwise(iterations)]
    return Latency(
        median_s=ordered[len(ordered) // 2],
        most_s=ordered[(9 * len(ordered) - 1) // 10],
        slowest_s=slowest,
        slowest_round=times.index(slowest) + 1,
        rounds=len(trained),
        rounds_given_up=sum(count > 0 for count in given_up),
        iterations_given_up=sum(given_up),
        arrivals=Arrivals(
            lists=sum(one.lists for one in arrivals.values()),
            named=sum(one.named for one in arrivals.values()),
        ),
    )
