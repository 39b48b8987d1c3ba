"""Steps: stores a node's recent steps, and makes their openings when drawn for audit.

Room: node (edge: files of one folder). Written by the trainer, read by both of a node's processes: an opening
needs no torch, so it never waits for a step. A damaged file counts as absent: the chain has every root, so
nothing false is sent.

The Merkle tree of every stored state is stored beside it, in 1/256 of its size, so an opening reads and
hashes only the drawn blocks and their paths, however large the model. Inner states are not that small: an
opening contains one of them whole, and hashes two.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from assay.node.messages import StepRecord
from assay.protocol.auditing.commitments import open_commitment
from assay.protocol.encoding import merkle
from assay.protocol.encoding.codec import INT_MAX, decode, encode
from assay.protocol.encoding.merkle import Tree
from assay.protocol.errors import Diverged, MalformedMessage
from assay.protocol.messages import Commit, SketchOpening
from assay.protocol.openings import InnerBlocks, InnerOpening, Opening, OwnWindow
from assay.protocol.openings import Path as MerklePath
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from assay.protocol.update_rule import BLOCK_SIZE, RuleSpec
from assay.training.layout import Layout, to_blocks
from assay.training.optimiser.inner import InnerState, moments_rows, moments_tree, roots_of, theta_leaves
from assay.training.optimiser.matrices import shown_moments
from assay.training.optimiser.momentum_root import momentum_domain, private_leaves
from assay.training.optimiser.node_state import NodeState, carried_digest, start_private
from assay.training.optimiser.public_state import durably, write_array, write_arrays


class StepFiles:
    """Records and private states by round. Shapes: N = blocks, C = 4096."""

    def __init__(
        self, folder: Path, *, run_id: Digest, node: PeerId, rule: RuleSpec, layout: Layout, keep: int
    ) -> None:
        """Open or create.

        Args:
            folder: Nobody else writes here.
            run_id: Domain of the leaves.
            node: The node whose steps they are.
            rule: Defines whether there are inner states, and whether they are carried.
            layout: Order and shapes of the parameters.
            keep: Rounds after which a step is deleted.
        """
        self.folder = folder / "steps"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._run_id, self._node, self._keep = run_id, node, keep
        self._rule, self._layout = rule, layout

    def record(self, round_id: int) -> StepRecord | None:
        """The stored step of a round; None if there is none, or the file is damaged."""
        try:
            return decode(StepRecord, self._record_path(round_id).read_bytes(), INT_MAX)
        except (OSError, MalformedMessage):
            return None

    def private(self, base: int) -> NodeState | None:
        """The private state that a commit with this `base` continues; None if it is absent or damaged."""
        if base == 0:
            return start_private(self._layout)
        error = self._error(base, is_mapped=False)
        if error is None:
            return None
        if not self._rule.carries_inner:
            return NodeState(error, None, base)
        carried = self._inner(base - 1, self._rule.segments - 1)
        return None if carried is None else NodeState(error, carried, base)

    def ends(self, round_id: int) -> tuple[InnerState, ...] | None:
        """The inner state after each segment of a round; None if one is absent or damaged."""
        ends = tuple(self._inner(round_id, segment) for segment in range(self._rule.segments))
        whole = tuple(end for end in ends if end is not None)
        return whole if len(whole) == len(ends) else None

    def tree(self, private: NodeState) -> Tree:
        """The Merkle tree over this state, whose root a commit names."""
        carried = carried_digest(self._run_id, self._rule, self._layout, private)
        return merkle.tree(private_leaves(self._run_id, private.error_NC, carried))

    def inner_digests(self, ends: Sequence[InnerState]) -> tuple[Digest, ...]:
        """The digests in a commit of the state after each segment."""
        return tuple(roots_of(self._run_id, self._layout, end).digest for end in ends)

    def keep(self, record: StepRecord, after: NodeState, tree: Tree, ends: Sequence[InnerState] = ()) -> None:
        """Make a step durable, the private state first, and delete those too old to be audited.

        Args:
            record: The step.
            after: The private state it leads to.
            tree: The tree over that state.
            ends: The inner state after each segment.
        """
        round_id = int(record.commit.round)
        for segment, end in enumerate(ends):
            arrays = {f"moment{i}": moment for i, moment in enumerate(end.moments)}
            write_arrays(
                self._inner_path(round_id, segment),
                {"theta": end.theta_P, "count": np.array(end.count, np.int64), **arrays},
            )
        write_durably(self._tree_path(round_id), tree.hashes)
        write_array(self._momentum_path(round_id), after.error_NC)
        write_durably(self._record_path(round_id), encode(record))
        self._forget(round_id)

    def sketch_openings(self, commit: Commit, segment: int) -> SketchOpening:
        """Openings of the sketch commitments in a recent commit of ours.

        Raises:
            Diverged: that step is absent or damaged.
        """
        record = self.record(int(commit.round))
        if record is None or record.commit.commitment != commit.commitment:
            raise _gone(int(commit.round))
        return open_commitment(commit, record.salt, record.sketches, segment)

    def opening(
        self, round_id: int, blocks: list[int], segment: int = 0, windows: tuple[OwnWindow, ...] = ()
    ) -> bytes:
        """The encoded opening of a recent step for the blocks and the segment drawn.

        windows: Of the node's own data, which that part of the step took, if it brings some.

        Raises:
            Diverged: that step is absent or damaged.
        """
        record = self.record(round_id)
        if record is None:
            raise _gone(round_id)
        base = record.commit.base
        was = self._opened(base, blocks, record.commit.momentum_before)
        now = self._opened(round_id + 1, blocks, record.commit.momentum_after)
        if was is None or now is None:
            raise _gone(round_id)
        (before, tree_before), (after, tree_after) = was, now
        opening = Opening(
            run_id=self._run_id,
            round=RoundId(round_id),
            node=self._node,
            blocks=tuple(blocks),
            before=before,
            after=after,
            paths_before=_paths(tree_before, blocks),
            paths_after=_paths(tree_after, blocks),
            windows=windows,
        )
        if self._rule.is_gradient:
            return encode(opening)
        carries, last = self._rule.carries_inner, self._layout.blocks
        start = self._inner(round_id, segment - 1) if segment else None
        if carries and segment == 0 and base:
            start = self._inner(base - 1, self._rule.segments - 1)
        end = self._inner(round_id, segment)
        is_last = segment == self._rule.segments - 1
        final = end if is_last else self._inner(round_id, self._rule.segments - 1)
        if end is None or final is None or (start is None and (segment or (carries and base))):
            raise Diverged(f"the inner steps of round {round_id} are not on this disk any more")
        shows_theta = start is not None and (segment > 0 or self._rule.is_local_kept)
        return encode(
            InnerOpening(
                opening=opening,
                segment=segment,
                start_count=start.count if start else 0,
                start_theta=start.theta_P.astype("<f4").tobytes() if start and shows_theta else b"",
                start_theta_root=(
                    roots_of(self._run_id, self._layout, start).theta
                    if start and not shows_theta
                    else NO_DIGEST
                ),
                start_moments=shown_moments(self._rule.local, self._layout, start.moments) if start else b"",
                start_path=MerklePath(
                    hashes=tree_before.proof(last) if carries and start and segment == 0 else ()
                ),
                end=self._inner_blocks(end, blocks, shows_moments=True),
                last=() if is_last else (self._inner_blocks(final, blocks, shows_moments=False),),
                last_path=MerklePath(hashes=tree_after.proof(last) if carries else ()),
            )
        )

    def _inner_blocks(self, state: InnerState, blocks: list[int], *, shows_moments: bool) -> InnerBlocks:
        """The drawn blocks of an inner state, with their paths."""
        layout, is_shown = self._layout, shows_moments and bool(state.moments)
        theta = merkle.tree(theta_leaves(self._run_id, layout, state.theta_P))
        rows_NC = moments_rows(layout, state.moments)
        moments = moments_tree(self._run_id, rows_NC) if state.moments else None
        return InnerBlocks(
            count=state.count,
            theta_root=theta.root,
            moments_root=moments.root if moments else NO_DIGEST,
            theta=to_blocks(layout, state.theta_P)[blocks].astype("<f4").tobytes(),
            theta_paths=_paths(theta, blocks),
            moments=rows_NC[blocks].astype("<f4").tobytes() if is_shown else b"",
            moments_paths=_paths(moments, blocks) if moments and is_shown else (),
        )

    def _opened(self, base: int, blocks: list[int], root: Digest) -> tuple[bytes, Tree] | None:
        """Blocks of the private state of this base, and the tree in which they are leaves.

        None if they are absent, or differ from what this root binds.
        """
        error_NC = self._error(base, is_mapped=True) if base else start_private(self._layout).error_NC
        if error_NC is None:
            return None
        shown = error_NC[blocks].astype("<f4").tobytes()
        tree = self._kept_tree(base - 1)
        if tree is not None and self._leads(tree, shown, blocks, root):
            return shown, tree
        # Before the first step, or damaged: the whole state is hashed again.
        private = self.private(base)
        made = None if private is None else self.tree(private)
        return None if made is None or made.root != root else (shown, made)

    def _kept_tree(self, round_id: int) -> Tree | None:
        """The tree over the private state after a round; None if it is absent or truncated."""
        try:
            return Tree(
                self._layout.blocks + self._rule.carries_inner, self._tree_path(round_id).read_bytes()
            )
        except (OSError, ValueError):
            return None

    def _leads(self, tree: Tree, shown: bytes, blocks: list[int], root: Digest) -> bool:
        """Whether a stored tree, which may be damaged, leads from these leaves to the root."""
        domain, size = momentum_domain(self._run_id), 4 * BLOCK_SIZE
        leaves = [
            (block, merkle.leaf_hash(domain, block, shown[at * size : (at + 1) * size]))
            for at, block in enumerate(blocks)
        ]
        if self._rule.carries_inner:
            leaves.append((self._layout.blocks, tree.leaf(self._layout.blocks)))
        try:
            for index, leaf in leaves:
                merkle.check(leaf, index, tree.count, tree.proof(index), root)
        except MalformedMessage:
            return False
        return True

    def _error(self, base: int, *, is_mapped: bool) -> NDArray[np.float32] | None:
        """The error in `private`, of a base above 0; None as there."""
        try:
            error: NDArray[np.float32] = np.load(
                self._momentum_path(base - 1), mmap_mode="r" if is_mapped else None, allow_pickle=False
            )
        except (OSError, ValueError, EOFError):
            return None
        fits = error.shape == (self._layout.blocks, BLOCK_SIZE) and error.dtype == np.float32
        return error if fits else None

    def _inner(self, round_id: int, segment: int) -> InnerState | None:
        """The inner state after a segment; None if it is absent or damaged."""
        try:
            with np.load(self._inner_path(round_id, segment), allow_pickle=False) as saved:
                names = sorted(name for name in saved.files if name.startswith("moment"))
                theta_P, moments = saved["theta"], tuple(saved[name] for name in names)
                count = int(saved["count"])
        except (OSError, ValueError, EOFError, KeyError, BadZipFile):
            return None
        expected = (self._layout.parameters,)
        if any(part.shape != expected or part.dtype != np.float32 for part in (theta_P, *moments)):
            return None
        return InnerState(theta_P, moments, count)

    def _inner_path(self, round_id: int, segment: int) -> Path:
        return self.folder / f"inner-{round_id:08d}-{segment:02d}.npz"

    def _record_path(self, round_id: int) -> Path:
        return self.folder / f"{round_id:08d}.cbor"

    def _momentum_path(self, round_id: int) -> Path:
        return self.folder / f"momentum-{round_id:08d}.npy"

    def _tree_path(self, round_id: int) -> Path:
        return self.folder / f"tree-{round_id:08d}.bin"

    def _forget(self, round_id: int) -> None:
        """Delete what no audit can ask for: old steps, and momenta that no kept step began from."""
        oldest = round_id - self._keep
        kept = (self.record(number) for number in range(oldest, round_id + 1))
        continued = {record.commit.base - 1 for record in kept if record is not None}
        for path in self.folder.iterdir():
            number = path.stem.removeprefix("momentum-").removeprefix("tree-").removeprefix("inner-")[:8]
            if not number.isdigit() or int(number) >= oldest:
                continue
            if path.suffix == ".cbor" or int(number) not in continued:
                path.unlink()


def _paths(tree: Tree, blocks: list[int]) -> tuple[MerklePath, ...]:
    return tuple(MerklePath(hashes=tree.proof(block)) for block in blocks)


def _gone(round_id: int) -> Diverged:
    return Diverged(f"the step of round {round_id} is not on this disk any more")


def write_durably(path: Path, body: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    with durably(path) as file:
        file.write(body)
