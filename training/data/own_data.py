"""Own data: a Merkle tree over the windows of data that only one node has, and what an auditor makes of some.

Room: training (pure). A node binds itself to the root before its first step. Of a drawn step it shows the
windows that the drawn part took, each with its path; nobody is shown any other. A leaf is salted: text that
can be guessed, such as a form, would else be confirmed by the hash of its window in a neighbour's path.
Rules: docs/protocol.md, "Data".

Shape suffixes: S = sequences, T = context + 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.protocol.auditing.commitments import derived_salt
from assay.protocol.encoding import merkle
from assay.protocol.encoding.merkle import Tree
from assay.protocol.errors import ConfigError, MalformedMessage
from assay.protocol.messages import Commit, OwnData
from assay.protocol.openings import OwnWindow
from assay.protocol.openings import Path as MerklePath
from assay.protocol.params import RunSpec, windows_needed
from assay.protocol.types import Digest
from assay.training.data.batches import Tokens, batch_positions, read_own_tokens
from assay.training.data.shards import token_type


@dataclass(frozen=True, slots=True)
class OwnStream:
    """A node's own tokens, and the tree that binds it to them."""

    spec: RunSpec
    tokens: Tokens
    secret: Digest  # from which the windows' salts follow
    tree: Tree

    @property
    def bound(self) -> OwnData:
        """What the node announces."""
        return OwnData(root=self.tree.root, windows=self.tree.count)

    def shown(self, commit: Commit, segment: int) -> tuple[OwnWindow, ...]:
        """The windows that the drawn part of a step took, in its order."""
        positions = batch_positions(self.spec, commit.node, int(commit.round), commit.tokens, self.bound)
        return tuple(self._window(at) for at in positions[drawn_part(self.spec, commit, segment)])

    def _window(self, at: int) -> OwnWindow:
        index = at // self.spec.window_tokens
        path = MerklePath(hashes=self.tree.proof(index))
        salt = _salt(self.secret, index)
        return OwnWindow(salt=salt, tokens=_window_bytes(self.spec, self.tokens, index), path=path)


def read_own_data(folder: Path, spec: RunSpec, run_id: Digest, secret: Digest) -> OwnStream:
    """A node's own data, every byte of them checked once.

    Args:
        folder: Of the tokens; training/data/shards.py.
        spec: The run.
        run_id: Its id; a root says nothing of what the same data have in another run.
        secret: From which the windows' salts follow.

    Raises:
        ConfigError: something is missing or modified, or too little for one step.
    """
    tokens = read_own_tokens(folder, spec.data)
    count, least = len(tokens) // spec.window_tokens, windows_needed(spec.most_windows_per_round)
    if not least <= count <= merkle.LEAVES_MAX:
        raise ConfigError(
            f"own data {folder}: {count} windows of {spec.window_tokens} tokens, "
            f"expected {least} to {merkle.LEAVES_MAX}"
        )
    return OwnStream(spec, tokens, secret, own_tree(spec, run_id, tokens, secret))


def own_tree(spec: RunSpec, run_id: Digest, tokens: Tokens, secret: Digest) -> Tree:
    """The tree over all windows of a node's own tokens; what is left at the end is in none."""
    return merkle.tree(
        [
            _leaf(run_id, index, _salt(secret, index), _window_bytes(spec, tokens, index))
            for index in range(len(tokens) // spec.window_tokens)
        ]
    )


def own_batch(
    spec: RunSpec, commit: Commit, own: OwnData, windows: Sequence[OwnWindow], segment: int
) -> NDArray[np.int64]:
    """The batch of a step of a node with data of its own, of which it shows the drawn part.

    Args:
        spec: The run.
        commit: The step.
        own: What its node is bound to.
        windows: As shown, not checked.
        segment: Of inner steps, the drawn one.

    Returns:
        Inputs and targets together, zero where they belong to another segment. Shape (S, T), int64.

    Raises:
        MalformedMessage: other windows than those drawn, or none that the root binds.
    """
    try:
        positions = batch_positions(spec, commit.node, int(commit.round), commit.tokens, own)
    except ValueError as fault:
        raise MalformedMessage(f"opening: {fault}") from None
    drawn = drawn_part(spec, commit, segment)
    starts = positions[drawn]
    if len(windows) != len(starts):
        raise MalformedMessage(
            f"opening: {len(windows)} windows of the node's data, {len(starts)} were drawn"
        )
    batch_ST = np.zeros((len(positions), spec.window_tokens), np.int64)
    rows = (
        _checked(spec, commit.run_id, own, at // spec.window_tokens, one)
        for at, one in zip(starts, windows, strict=True)
    )
    batch_ST[drawn] = np.stack(list(rows))
    return batch_ST


def drawn_part(spec: RunSpec, commit: Commit, segment: int) -> slice:
    """The sequences, of all of a step, that its gradient or the drawn segment of its inner steps takes."""
    local = spec.rule.local
    if spec.rule.is_gradient:
        return slice(None)
    each, first = spec.step_sequences(commit.tokens), segment * local.segment
    return slice(first * each, min(first + local.segment, local.steps) * each)


def _checked(spec: RunSpec, run_id: Digest, own: OwnData, index: int, shown: OwnWindow) -> NDArray[np.int64]:
    if len(shown.tokens) != spec.window_bytes:
        raise MalformedMessage(
            f"opening: a window of {len(shown.tokens)} bytes, expected {spec.window_bytes}"
        )
    leaf = _leaf(run_id, index, shown.salt, shown.tokens)
    merkle.check(leaf, index, own.windows, shown.path.hashes, own.root)
    row_T = np.frombuffer(shown.tokens, token_type(spec.data.token_bytes)).astype(np.int64)
    if int(row_T.max()) >= spec.data.vocabulary:
        raise MalformedMessage(f"opening: token {row_T.max()} of {spec.data.vocabulary} in window {index}")
    return row_T


def _window_bytes(spec: RunSpec, tokens: Tokens, index: int) -> bytes:
    at = index * spec.window_tokens
    found = tokens[at : at + spec.window_tokens]
    return bytes(np.asarray(found).astype(token_type(spec.data.token_bytes)).tobytes())


def _leaf(run_id: Digest, index: int, salt: Digest, tokens: bytes) -> Digest:
    domain = hashlib.sha256(b"assay/own-data/1" + run_id).digest()
    return merkle.leaf_hash(domain, index, salt + tokens)


def _salt(secret: Digest, index: int) -> Digest:
    return derived_salt(secret, b"window", index.to_bytes(8, "big"))
