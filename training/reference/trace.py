"""Trace: the digest of every operator's output, and of every position between two operators.

Room: training (pure). Two parties that ran the same operators on the same sources have the same positions; if
not, the first position that differs names the operator at which they parted (referee.py). An output's digest
covers dtype, shape and little-endian values; a position's covers all outputs before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from blake3 import blake3

from assay.protocol.types import Digest
from assay.training.reference.gradient import run
from assay.training.reference.narrowing import START
from assay.training.reference.operators import Array, Operator


@dataclass(frozen=True, slots=True)
class Trace:
    """Digests of all outputs in order, and the positions: one more, from `START` on."""

    outputs: tuple[Digest, ...]
    positions: tuple[Digest, ...]


def traced(program: tuple[Operator, ...], arrays: Mapping[str, Array]) -> tuple[Trace, Array]:
    """The trace of a whole run, and the last operator's output."""
    outputs: list[Digest] = []
    last = run(program, arrays, lambda _, output: outputs.append(output_digest(output)))
    return trace_of(outputs), last


def trace_of(outputs: Iterable[Digest]) -> Trace:
    """The trace with these digests."""
    told, positions = tuple(outputs), [START]
    for output in told:
        positions.append(after(positions[-1], output))
    return Trace(told, tuple(positions))


def after(position: Digest, output: Digest) -> Digest:
    """The position after one more operator."""
    return Digest(blake3(position + output).digest())


def output_digest(output: Array) -> Digest:
    """BLAKE3 of one array: dtype and shape, then little-endian values."""
    little = output.dtype.newbyteorder("<")
    shape = ",".join(map(str, output.shape))
    whole = blake3(f"assay/operator-output/1|{little.str}|{shape}|".encode())
    whole.update(np.ascontiguousarray(output, little).reshape(-1).view(np.uint8).data)
    return Digest(whole.digest())
