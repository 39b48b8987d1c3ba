"""Data: a committed token stream, and who trains on which part of it in which round.

Room: training (pure, but for `read_tokens`, which maps a file). The batch of a
node is a function of the run's seed, the round and the node: no choice is left
to anybody. Tokens are bytes here; the last part is held out.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol import merkle
from protocol.errors import ConfigError
from protocol.params import DataSpec, RunSpec
from protocol.types import Digest, PeerId

SHARD_BYTES = 1 << 20
_DOMAIN = hashlib.sha256(b"assay/data/1").digest()


def data_root(tokens: NDArray[np.uint8]) -> Digest:
    """Merkle root over the stream's 1 MiB shards."""
    shards = range(0, len(tokens), SHARD_BYTES)
    return merkle.root(
        [merkle.leaf_hash(_DOMAIN, i, tokens[at : at + SHARD_BYTES].tobytes()) for i, at in enumerate(shards)]
    )


def read_tokens(path: Path, spec: DataSpec) -> NDArray[np.uint8]:
    """The training stream from disk, read-only and memory-mapped.

    Raises:
        ConfigError: the file is missing, or is not the data this run committed to.
    """
    try:
        tokens = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as cause:
        raise ConfigError(f"data {path}: cannot be read ({cause})") from None
    if len(tokens) != spec.tokens or data_root(tokens) != spec.root:
        raise ConfigError(f"data {path}: {len(tokens)} bytes that are not the data this run committed to")
    return tokens


def batch_positions(spec: RunSpec, node: PeerId, round_id: int) -> tuple[int, ...]:
    """Starts of the sequences a node trains on in a round: distinct, uniform, from a PRF."""
    window = spec.model.context + 1
    windows = (spec.data.tokens - spec.data.validation_tokens) // window
    head = b"assay/batch/1" + spec.seed.to_bytes(8, "big") + round_id.to_bytes(8, "big") + node
    chosen: list[int] = []
    counter = 0
    while len(chosen) < spec.rule.sequences:
        block = hashlib.sha256(head + counter.to_bytes(8, "big")).digest()
        number = int.from_bytes(block[:16], "big") % windows  # 128 bits: bias below 2^-64
        counter += 1
        if number not in chosen:
            chosen.append(number)
    return tuple(number * window for number in chosen)


def batch_root(spec: RunSpec, positions: tuple[int, ...]) -> Digest:
    """What a commit says about its batch: the data root and the positions."""
    body = spec.data.root + b"".join(at.to_bytes(8, "big") for at in positions)
    return Digest(hashlib.sha256(b"assay/batch-root/1" + body).digest())


def batch_tokens(tokens: NDArray[np.uint8], positions: tuple[int, ...], context: int) -> NDArray[np.int64]:
    """Input and target tokens together. Shape (sequences, context + 1), int64."""
    return np.stack([tokens[at : at + context + 1] for at in positions]).astype(np.int64)


def validation_tokens(tokens: NDArray[np.uint8], spec: RunSpec, sequences: int) -> NDArray[np.int64]:
    """Evenly spaced sequences of the held-out part. Shape (<= sequences, context + 1), int64."""
    window, held = spec.model.context + 1, spec.data.validation_tokens
    start = spec.data.tokens - held
    count = min(sequences, held // window)
    step = (held // window) // count
    return batch_tokens(tokens, tuple(start + i * step * window for i in range(count)), spec.model.context)
