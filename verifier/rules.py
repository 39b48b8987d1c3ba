"""Rules: the rules of aggregation by name, as a run's spec names them.

Room: verifier (pure).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocol.types import PeerId
from training.wire import Aggregate, Update
from verifier.aggregation import mean_over_senders

Rule = Callable[[Mapping[PeerId, Update], int], Aggregate]
RULE_NAMES = ("mean",)


def rule_of(name: str, f: int, seed: bytes) -> Rule:
    """The rule of this name, set up to stand f liars. `seed` is public and new in each round."""
    assert name == "mean"
    return mean_over_senders
