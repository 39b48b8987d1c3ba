"""Batches: which part of the committed token stream each node trains on in each round.

Room: training (pure, but for `read_tokens`, which opens a folder). The batch of a node is a function of the
run's seed, the round and the node: nobody can choose it. The last part of the stream is held out.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import ConfigError
from assay.protocol.params import DataSpec, RunSpec
from assay.protocol.types import Digest, PeerId
from assay.training.data.shards import DataManifest, ShardedTokens, checked_shards, read_manifest

Tokens = ShardedTokens | NDArray[Any]  # any sliceable sequence of tokens


def describe(manifest: DataManifest, *, validation_tokens: int, source: str, licence: str) -> DataSpec:
    """The `DataSpec` that a run's spec states about a data set."""
    return DataSpec(
        root=manifest.root,
        manifest=manifest.digest(),
        tokenizer=manifest.tokenizer,
        vocabulary=manifest.vocabulary,
        token_bytes=manifest.token_bytes,
        tokens=manifest.tokens,
        validation_tokens=validation_tokens,
        source=source,
        licence=licence,
    )


def read_tokens(folder: Path, spec: DataSpec) -> ShardedTokens:
    """The token stream from disk, read-only and memory-mapped, every byte of it checked once.

    Raises:
        ConfigError: something is missing, modified, or is not the data this run committed to.
    """
    manifest = read_manifest(folder)
    is_this = (
        manifest.digest() == spec.manifest
        and manifest.root == spec.root
        and manifest.tokens == spec.tokens
        and manifest.vocabulary == spec.vocabulary
        and manifest.token_bytes == spec.token_bytes
    )
    if not is_this:
        raise ConfigError(
            f"data {folder}: {manifest.tokens} tokens, which are not the data that this run committed to"
        )
    for _ in checked_shards(folder, manifest):
        pass
    return ShardedTokens(folder, manifest)


def batch_positions(spec: RunSpec, node: PeerId, round_id: int) -> tuple[int, ...]:
    """Starts of the sequences a node trains on in a round: distinct, uniform, from a PRF.

    Raises:
        ValueError: the training part has fewer windows than a step needs.
    """
    window = spec.model.context + 1
    windows = (spec.data.tokens - spec.data.validation_tokens) // window
    count = spec.rule.sequences_per_round
    if windows < count:
        raise ValueError(f"{windows} sequences of {window} tokens to train on, a step needs {count}")
    head = b"assay/batch/1" + spec.seed.to_bytes(8, "big") + round_id.to_bytes(8, "big") + node
    chosen: dict[int, None] = {}  # a set that keeps its order
    counter = 0
    while len(chosen) < count:
        block = hashlib.sha256(head + counter.to_bytes(8, "big")).digest()
        chosen[int.from_bytes(block[:16], "big") % windows] = None  # 128 bits: bias below 2^-64
        counter += 1
    return tuple(number * window for number in chosen)


def batch_root(spec: RunSpec, positions: tuple[int, ...]) -> Digest:
    """The digest in a commit that binds its batch: of the data root and the positions."""
    body = spec.data.root + b"".join(at.to_bytes(8, "big") for at in positions)
    return Digest(hashlib.sha256(b"assay/batch-root/1" + body).digest())


def batch_tokens(tokens: Tokens, positions: tuple[int, ...], context: int) -> NDArray[np.int64]:
    """Input and target tokens together. Shape (sequences, context + 1), int64."""
    return np.stack([tokens[at : at + context + 1] for at in positions]).astype(np.int64)


def validation_tokens(tokens: Tokens, spec: RunSpec, sequences: int) -> NDArray[np.int64]:
    """Evenly spaced sequences of the held-out part. Shape (<= sequences, context + 1), int64."""
    window, held = spec.model.context + 1, spec.data.validation_tokens
    start = spec.data.tokens - held
    count = min(sequences, held // window)
    step = (held // window) // count
    return batch_tokens(tokens, tuple(start + i * step * window for i in range(count)), spec.model.context)
