"""Parameters: theta of recent rounds, rebuilt from certified aggregates alone.

Room: training (edge: checkpoint files). Every honest process holds the same bits
at every round. Recent rounds stay in memory because audits look back; a
checkpoint every `keep` rounds bounds what a restart must replay.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.errors import Diverged
from protocol.params import RunSpec
from protocol.types import Digest
from training.exact import apply_signs, initial_parameters, inverse_signs, learning_rate, scatter_values
from training.layout import Layout, from_blocks, layout_of
from training.wire import decode_aggregate


def state_digest(theta_P: NDArray[np.float32]) -> Digest:
    """BLAKE3 of the parameters: dtype and length, then little-endian values."""
    head = b"assay/state/1|float32|" + len(theta_P).to_bytes(8, "big")
    return Digest(blake3(head + np.ascontiguousarray(theta_P, "<f4").tobytes()).digest())


def apply_aggregate(
    spec: RunSpec, layout: Layout, theta_P: NDArray[np.float32], round_id: int, aggregate: bytes
) -> NDArray[np.float32]:
    """theta of the next round. Empty bytes (a round without commits) leave it as it is.

    Raises:
        MalformedMessage: these are not the bytes of an aggregate.
    """
    if not aggregate:
        return theta_P
    sparse = decode_aggregate(aggregate, layout.blocks)
    dense = scatter_values(layout.blocks, sparse.block_T, sparse.index_T, sparse.value_T)
    signs = from_blocks(layout, inverse_signs(dense))
    return apply_signs(theta_P, signs, learning_rate(spec.rule, spec.rounds, round_id))


class Parameters:
    """theta_r for the newest round r and the `keep` rounds before it."""

    def __init__(self, spec: RunSpec, folder: Path, keep: int) -> None:
        """Resume from the checkpoint that lets `keep` earlier rounds be replayed, else from the start."""
        self.spec, self.layout = spec, layout_of(spec.model)
        self._folder, self._keep = folder, keep
        folder.mkdir(parents=True, exist_ok=True)
        found = sorted(self._checkpoints())
        self.round = found[-2] if len(found) > 1 else 0
        self._recent = {self.round: self._load(self.round)}

    def at(self, round_id: int) -> NDArray[np.float32]:
        """theta of a recent round.

        Raises:
            Diverged: that round is ahead of us or too long ago.
        """
        if round_id not in self._recent:
            raise Diverged(
                f"no parameters of round {round_id}: rounds {min(self._recent)} to {self.round} are here"
            )
        return self._recent[round_id]

    def apply(self, round_id: int, aggregate: bytes) -> Digest:
        """Step from `round_id` to the next round; the digest of what results.

        Raises:
            Diverged: this is not the round we are at.
        """
        if round_id != self.round:
            raise Diverged(f"the aggregate of round {round_id} arrived while at round {self.round}")
        theta = apply_aggregate(self.spec, self.layout, self._recent[round_id], round_id, aggregate)
        self.round = round_id + 1
        self._recent[self.round] = theta
        for old in [r for r in self._recent if r < self.round - self._keep]:
            del self._recent[old]
        if self.round % self._keep == 0:
            self._save(self.round, theta)
        return state_digest(theta)

    def replace(self, theta_P: NDArray[np.float32]) -> None:
        """Put other values in the newest round's place. Only a fault that is made on purpose does this."""
        self._recent[self.round] = theta_P

    def reset(self) -> None:
        """Forget everything and start from round 0: what a diverged process does."""
        for round_id in self._checkpoints():
            self._path(round_id).unlink()
        self.round = 0
        self._recent = {0: self._load(0)}

    def _path(self, round_id: int) -> Path:
        return self._folder / f"theta-{round_id:08d}.npy"

    def _checkpoints(self) -> list[int]:
        return [int(path.stem.split("-")[1]) for path in self._folder.glob("theta-*.npy")]

    def _load(self, round_id: int) -> NDArray[np.float32]:
        if round_id == 0 and not self._path(0).exists():
            return initial_parameters(self.spec.seed, self.layout.names, self.layout.shapes)
        theta: NDArray[np.float32] = np.load(self._path(round_id), allow_pickle=False)
        return theta

    def _save(self, round_id: int, theta_P: NDArray[np.float32]) -> None:
        write_array(self._path(round_id), theta_P)
        for old in sorted(self._checkpoints())[:-3]:
            self._path(old).unlink()


def write_array(path: Path, array: NDArray[np.float32]) -> None:
    """Write an array so that the file is there whole or not at all, also after a power cut."""
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
