"""Steps: what a node keeps of its recent steps, and what it shows of them when drawn.

Room: node (edge: files of one folder). Written by the trainer, read by both of a
node's processes: an opening needs no torch, so it never waits behind a step. A
damaged file counts as absent: the chain knows every root, so nothing false is shown.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
from numpy.typing import NDArray

from protocol import merkle
from protocol.codec import encode
from protocol.errors import Diverged
from protocol.messages import Opening
from protocol.messages import Path as MerklePath
from protocol.params import BLOCK_SIZE
from protocol.types import Digest, PeerId, RoundId
from training.momentum import momentum_leaves
from training.parameters import write_array


class StepFiles:
    """Records and momenta by round. Shapes: N = blocks, C = 4096."""

    def __init__(self, folder: Path, *, run_id: Digest, node: PeerId, block_count: int, keep: int) -> None:
        """Open or create.

        Args:
            folder: Nobody else writes here.
            run_id: Domain of the momentum's leaves.
            node: Whose steps they are.
            block_count: N.
            keep: Rounds after which a step is forgotten.
        """
        self.folder = folder / "steps"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._run_id, self._node, self._block_count, self._keep = run_id, node, block_count, keep

    def record(self, round_id: int) -> dict[str, Any] | None:
        """The kept step of a round; None where there is none, or disk has damaged it."""
        try:
            found = cbor2.loads(self._record_path(round_id).read_bytes())
        except (OSError, ValueError, cbor2.CBORError):
            return None
        return found if isinstance(found, dict) and found.get("round") == round_id else None

    def momentum(self, round_id: int) -> NDArray[np.float32] | None:
        """Momentum after the step of a round, zero for -1; None where it is not here, or damaged."""
        if round_id < 0:
            return np.zeros((self._block_count, BLOCK_SIZE), np.float32)
        try:
            found: NDArray[np.float32] = np.load(self._momentum_path(round_id), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        is_whole = found.shape == (self._block_count, BLOCK_SIZE) and found.dtype == np.float32
        return found if is_whole else None

    def root(self, momentum_NC: NDArray[np.float32]) -> Digest:
        """The root a commit names for this momentum."""
        return merkle.root(momentum_leaves(self._run_id, momentum_NC))

    def keep(self, record: dict[str, Any], after_NC: NDArray[np.float32]) -> None:
        """Make a step durable, the momentum first, and forget the ones too old to be asked for."""
        round_id = int(record["round"])
        write_array(self._momentum_path(round_id), after_NC)
        write_durably(self._record_path(round_id), cbor2.dumps(record))
        self._forget(round_id)

    def opening(self, round_id: int, blocks: list[int]) -> bytes:
        """The encoded opening of a recent step for the blocks drawn.

        Raises:
            Diverged: that step is not here any more, or damaged.
        """
        record = self.record(round_id)
        after = self.momentum(round_id)
        before = None if record is None else self.momentum(record["base_round"])
        if record is None or after is None or before is None:
            raise Diverged(f"the step of round {round_id} is not on this disk any more")
        leaves_before = momentum_leaves(self._run_id, before)
        leaves_after = momentum_leaves(self._run_id, after)
        return encode(
            Opening(
                run_id=self._run_id,
                round=RoundId(round_id),
                node=self._node,
                blocks=tuple(blocks),
                before=before[blocks].astype("<f4").tobytes(),
                after=after[blocks].astype("<f4").tobytes(),
                paths_before=tuple(MerklePath(hashes=merkle.proof(leaves_before, b)) for b in blocks),
                paths_after=tuple(MerklePath(hashes=merkle.proof(leaves_after, b)) for b in blocks),
                salt=record["salt"],
                sketch=record["sketch"],
            )
        )

    def _record_path(self, round_id: int) -> Path:
        return self.folder / f"{round_id:08d}.cbor"

    def _momentum_path(self, round_id: int) -> Path:
        return self.folder / f"momentum-{round_id:08d}.npy"

    def _forget(self, round_id: int) -> None:
        """Delete what no audit can ask for: old steps, and momenta that no kept step began from."""
        oldest = round_id - self._keep
        kept = (self.record(number) for number in range(oldest, round_id + 1))
        bases = {record["base_round"] for record in kept if record is not None}
        for path in self.folder.iterdir():
            number = path.stem.removeprefix("momentum-")
            if not number.isdigit() or int(number) >= oldest:
                continue
            if path.suffix != ".npy" or int(number) not in bases:
                path.unlink()


def write_durably(path: Path, body: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
