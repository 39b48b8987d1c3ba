"""Batches: which part of the committed token stream each node trains on in each round.

Room: training (pure, but for `read_tokens`, which opens a folder). The batch of a node is a function of the
run's seed, the round and the node: nobody can choose it. Held out are stretches spread evenly over the whole
stream, so that every source, and every part of it, is in the validation loss by its share of the tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import ConfigError
from assay.protocol.params import DataSpec, RunSpec
from assay.protocol.types import Digest, PeerId
from assay.training.data.shards import DataManifest, ShardedTokens, checked_shards, read_manifest

STRETCH_WINDOWS = 32  # at most, held out in one place: about a page of bytes, a chapter of tokens
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


@dataclass(frozen=True, slots=True)
class Split:
    """The windows of context + 1 tokens of a stream, in strata; the last windows of each are held out.

    windows, held: of them all. strata: their number. Stratum k ends before window
    (k + 1) * windows // strata, and (k + 1) * held // strata windows are held out up to there.
    """

    windows: int
    held: int

    @property
    def strata(self) -> int:
        """As many as hold `STRETCH_WINDOWS` held-out windows each."""
        return -(-self.held // STRETCH_WINDOWS)

    def training(self, number: int) -> int:
        """The window that is number `number` of those trained on."""
        low, high = 0, self.strata - 1  # the last stratum that begins at this number or before
        while low < high:
            middle = (low + high + 1) // 2
            trained = middle * self.windows // self.strata - middle * self.held // self.strata
            low, high = (middle, high) if trained <= number else (low, middle - 1)
        return number + low * self.held // self.strata

    def held_out(self, number: int) -> int:
        """The window that is number `number` of those held out."""
        stratum = ((number + 1) * self.strata - 1) // self.held
        end, held = ((stratum + 1) * count // self.strata for count in (self.windows, self.held))
        return end - held + number


def split_of(spec: RunSpec) -> Split:
    """Which windows of a run's stream its nodes train on, and which nobody does.

    With DPO a window is a preference pair.
    """
    window = _window(spec)
    return Split(spec.data.tokens // window, spec.data.validation_tokens // window)


def _window(spec: RunSpec) -> int:
    """Tokens that are drawn, or held out, together."""
    return (spec.model.context + 1) * spec.compute.drawn_sequences


def _starts(spec: RunSpec, windows: Iterable[int]) -> tuple[int, ...]:
    """Where the sequences of these windows begin."""
    length = spec.model.context + 1
    return tuple(
        w * _window(spec) + part * length for w in windows for part in range(spec.compute.drawn_sequences)
    )


def batch_positions(spec: RunSpec, node: PeerId, round_id: int) -> tuple[int, ...]:
    """Starts of the sequences a node trains on in a round: distinct, uniform, from a PRF.

    Raises:
        ValueError: the training part has fewer windows than a step needs.
    """
    window, split = _window(spec), split_of(spec)
    windows = split.windows - split.held
    count = spec.rule.sequences_per_round // spec.compute.drawn_sequences
    if windows < count:
        kind = "pairs" if spec.compute.is_dpo else "sequences"
        raise ValueError(f"{windows} {kind} of {window} tokens to train on, a step needs {count}")
    head = b"assay/batch/1" + spec.seed.to_bytes(8, "big") + round_id.to_bytes(8, "big") + node
    chosen: dict[int, None] = {}  # a set that keeps its order
    counter = 0
    while len(chosen) < count:
        block = hashlib.sha256(head + counter.to_bytes(8, "big")).digest()
        chosen[int.from_bytes(block[:16], "big") % windows] = None  # 128 bits: bias below 2^-64
        counter += 1
    return _starts(spec, (split.training(number) for number in chosen))


def batch_root(spec: RunSpec, positions: tuple[int, ...]) -> Digest:
    """The digest in a commit that binds its batch: of the data root and the positions."""
    body = spec.data.root + b"".join(at.to_bytes(8, "big") for at in positions)
    return Digest(hashlib.sha256(b"assay/batch-root/1" + body).digest())


def batch_tokens(tokens: Tokens, positions: tuple[int, ...], context: int) -> NDArray[np.int64]:
    """Input and target tokens together; a masked token t is ~t. Shape (sequences, context + 1), int64."""
    return np.stack([tokens[at : at + context + 1] for at in positions]).astype(np.int64)


def validation_tokens(tokens: Tokens, spec: RunSpec, sequences: int) -> NDArray[np.int64]:
    """Evenly spaced sequences of what is held out, in whole pairs with DPO, and at least one.

    Shape (<= sequences, context + 1), int64.
    """
    split = split_of(spec)
    count = min(max(sequences // spec.compute.drawn_sequences, 1), split.held)
    numbers = (i * split.held // count for i in range(count))
    starts = _starts(spec, (split.held_out(number) for number in numbers))
    return batch_tokens(tokens, starts, spec.model.context)
