"""Trace: the digest of every operator's output, under one Merkle root.

Room: training (pure). Two parties that ran the same operators on the same sources have the same root; if not,
their traces show where they parted (referee.py). A digest covers dtype, shape and little-endian values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from assay.protocol.encoding import merkle
from assay.protocol.types import Digest
from assay.training.reference.gradient import run
from assay.training.reference.operators import Array, Operator

_DOMAIN = blake3(b"assay/operator-trace/1").digest()


@dataclass(frozen=True, slots=True)
class Answer:
    """An operator's output digest, and the siblings of its leaf from the leaf up."""

    output: Digest
    path: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Digests of all outputs in order, and the tree over them."""

    outputs: tuple[Digest, ...]
    tree: merkle.Tree

    def answer(self, index: int) -> Answer:
        """The digest at an index, as it can be checked against the root."""
        return Answer(self.outputs[index], self.tree.proof(index))


def traced(program: tuple[Operator, ...], arrays: Mapping[str, Array]) -> tuple[Trace, Array]:
    """The trace of a whole run, and the last operator's output."""
    outputs: list[Digest] = []
    last = run(program, arrays, lambda _, output: outputs.append(output_digest(output)))
    return trace_of(outputs), last


def trace_of(outputs: list[Digest]) -> Trace:
    """The trace with these digests."""
    return Trace(tuple(outputs), merkle.tree([leaf(i, output) for i, output in enumerate(outputs)]))


def output_digest(output: Array) -> Digest:
    """BLAKE3 of one array: dtype and shape, then little-endian values."""
    little = output.dtype.newbyteorder("<")
    shape = ",".join(map(str, output.shape))
    whole = blake3(f"assay/operator-output/1|{little.str}|{shape}|".encode())
    whole.update(np.ascontiguousarray(output, little).reshape(-1).view(np.uint8).data)
    return Digest(whole.digest())


def leaf(index: int, output: Digest) -> Digest:
    """The leaf that binds an operator's index to its output."""
    return merkle.leaf_hash(_DOMAIN, index, output)
