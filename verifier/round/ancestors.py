"""Ancestors: the run state that a manifest extends whose parents are notarised and not yet final.

Room: verifier (pure).
"""

from __future__ import annotations

import functools
from typing import Generic, TypeVar

from assay.protocol.messages import Manifest
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance

# A leader looks at its notarised ancestors with every message. Without a cache each look folds all of them
# anew, with their VRF proofs: a verifier that was slow once, and so has many, never catches up.
ADVANCED_KEPT = 64
T = TypeVar("T")


def base_history(run_state: RunState, ancestors: tuple[Manifest, ...]) -> RunState:
    """The history that a manifest on top of these notarised, not yet final manifests extends."""
    for manifest in ancestors:
        # One that does not extend our history was overtaken: the chain went on beside it.
        if manifest.round == run_state.round and manifest.parent == run_state.parent:
            run_state = _advanced(_Same(run_state), _Same(manifest))
    return run_state


class _Same(Generic[T]):
    """A value that equals itself only, so that a cache need not compare contents."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


@functools.lru_cache(maxsize=ADVANCED_KEPT)
def _advanced(run_state: _Same[RunState], manifest: _Same[Manifest]) -> RunState:
    return advance(run_state.value, manifest.value)
