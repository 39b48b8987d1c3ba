"""Bias memory: one auditor's drift statistics of the nodes it audits, kept across restarts.

Room: verifier (edge: one file). If the file is missing, damaged or of another run, the memory starts empty: a
bias is then found some audits later, and nothing else changes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from assay.protocol.encoding.codec import Max, decode, encode
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import NODES_MAX, Commit
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from assay.verifier.audit.drift import BUCKETS, Drift, observe
from assay.verifier.audit.limits import Limit
from assay.verifier.audit.tolerance import Measured

log = logging.getLogger(__name__)
ROUNDS_KEPT = 256  # of a node's audits, so that none counts twice; disputes end long before
FILE_BYTES_MAX = 1 << 24  # 7 KiB a node


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """The record of one node. sums: 512 float64, then weight and level, little-endian."""

    TAG: ClassVar[bytes] = b"assay/remembered/1"
    node: PeerId
    exec_class: Digest
    sums: Annotated[bytes, Max(8 * (BUCKETS + 2))]
    rounds: Annotated[tuple[RoundId, ...], Max(ROUNDS_KEPT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The file's content: the records of one run."""

    TAG: ClassVar[bytes] = b"assay/memory/1"
    spec: Digest
    nodes: Annotated[tuple[Remembered, ...], Max(NODES_MAX)]


class BiasMemory:
    """Drift statistics by node, whatever execution class it declares; each step counts once."""

    def __init__(self, path: Path | None = None, spec: Digest = NO_DIGEST) -> None:
        """
        Args:
            path: The file; None keeps nothing.
            spec: Digest of the run's; a file of another run is not read.
        """
        self._path, self._spec = path, spec
        self._drifts: dict[PeerId, tuple[Digest, Drift]] = {}
        self._rounds: dict[PeerId, tuple[RoundId, ...]] = {}
        if path is not None and path.exists():
            try:
                self._read(path)
            except (OSError, MalformedMessage, ValueError) as error:
                log.warning("bias memory is lost", extra={"reason": str(error)})
                self._drifts, self._rounds = {}, {}

    def is_biased(self, commit: Commit, measured: Measured, blocks: Sequence[int], limit: Limit) -> bool:
        """Whether the node is biased, given this matching audit as well; its record then starts again."""
        node, rounds = commit.node, self._rounds.get(commit.node, ())
        if commit.round in rounds:
            return False  # of a dispute, or of a second try
        self._rounds[node] = (*rounds, commit.round)[-ROUNDS_KEPT:]
        known, before = self._drifts.get(node, (commit.exec_class, Drift()))
        if known != commit.exec_class:  # honest noise has another direction there; a lie would keep its own
            before = replace(before, level=0.0)
        drift, is_leaning = observe(before, measured, blocks, limit)
        self._drifts[node] = commit.exec_class, Drift() if is_leaning else drift
        self._write()
        return is_leaning

    def _read(self, path: Path) -> None:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ValueError(f"{path}: more than {FILE_BYTES_MAX} bytes")
        memory = decode(Memory, path.read_bytes(), FILE_BYTES_MAX)
        if memory.spec != self._spec:
            raise ValueError(f"{path}: of another run")
        for one in memory.nodes:
            sums = np.frombuffer(one.sums, "<f8")
            if len(sums) != BUCKETS + 2 or not np.isfinite(sums).all() or sums[BUCKETS] < 0:
                raise ValueError(f"{path}: sums that are none")
            drift = Drift(sums[:BUCKETS].copy(), float(sums[BUCKETS]), float(sums[BUCKETS + 1]))
            self._drifts[one.node] = one.exec_class, drift
            self._rounds[one.node] = one.rounds

    def _write(self) -> None:
        if self._path is None:
            return
        nodes = tuple(
            Remembered(
                node=node,
                exec_class=exec_class,
                sums=np.concatenate([drift.sum_J, [drift.weight, drift.level]]).astype("<f8").tobytes(),
                rounds=self._rounds.get(node, ()),
            )
            for node, (exec_class, drift) in sorted(self._drifts.items())
        )
        partial = self._path.with_name(self._path.name + ".partial")
        try:
            partial.write_bytes(encode(Memory(spec=self._spec, nodes=nodes)))
            os.replace(partial, self._path)
        except OSError as error:  # a full disk must not stop an audit
            log.warning("bias memory is not kept", extra={"reason": str(error)})
