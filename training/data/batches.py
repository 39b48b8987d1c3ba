"""Batches: which part of the committed token stream each node trains on in each round.

Room: training (pure, but for `read_tokens`, which opens a folder). The batch of a node is a function of the
run's seed, the round and the node, or its seat: nobody can choose it. Held out are stretches spread evenly
over the whole stream, so that every source, and every part of it, is in the validation loss by its share of
the tokens.
"""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import ConfigError
from assay.protocol.messages import NO_OWN_DATA, OwnData
from assay.protocol.params import DataSpec, Portion, RunSpec, SourceShare, Stratum
from assay.protocol.types import Digest, PeerId
from assay.training.data.permutation import permuted
from assay.training.data.shards import DataManifest, ShardedTokens, checked_shards, read_manifest

Tokens = ShardedTokens | NDArray[Any]  # any sliceable sequence of tokens
BLOCKS_KEPT = 128  # of a thousand draws each: more than the largest step spans


def describe(
    manifest: DataManifest,
    *,
    validation_tokens: int,
    source: str,
    licence: str,
    strata: tuple[Stratum, ...] = (),
    mixture: tuple[SourceShare, ...] = (),
    replaces: bool = True,
) -> DataSpec:
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
        strata=strata,
        mixture=mixture,
        replaces=replaces,
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


def read_own_tokens(folder: Path, spec: DataSpec) -> ShardedTokens:
    """A node's own token stream from disk, as `read_tokens` reads the run's, if it may train on it.

    Raises:
        ConfigError: something is missing or modified, or the tokens are none that this run can train on.
    """
    manifest = read_manifest(folder)
    if (manifest.tokenizer, manifest.vocabulary) != (spec.tokenizer, spec.vocabulary):
        raise ConfigError(
            f"own data {folder}: {manifest.vocabulary} different tokens by tokenizer "
            f"{manifest.tokenizer.hex()[:8]}, this run has {spec.vocabulary} by {spec.tokenizer.hex()[:8]}"
        )
    if manifest.chat is not None:
        raise ConfigError(f"own data {folder}: has masked tokens, and every token of them is trained on")
    for _ in checked_shards(folder, manifest):
        pass
    return ShardedTokens(folder, manifest)


def _starts(spec: RunSpec, windows: Iterable[int]) -> tuple[int, ...]:
    """Where the sequences of these windows begin."""
    length = spec.model.context + 1
    return tuple(
        w * spec.window_tokens + part * length
        for w in windows
        for part in range(spec.compute.drawn_sequences)
    )


def batch_positions(
    spec: RunSpec, node: PeerId, round_id: int, tokens: int, own: OwnData = NO_OWN_DATA, seat: int = 0
) -> tuple[int, ...]:
    """Starts of the sequences a node trains on in a round, which nobody can choose.

    With replacement they are distinct, and uniform in its stratum, or in each source that has a weight.
    Without, all nodes together draw a window again only once they have been over all windows of its source.
    Those of a larger step begin with those of a smaller one. They are starts in the run's stream, or in the
    node's own.

    Args:
        spec: The run.
        node: Whose step it is.
        round_id: The round; of a run that continues another, what its runs trained is counted with it.
        tokens: That the step counts for.
        own: What binds the node to data of its own, if the spec says that it brings some. The draws follow
            from the root, so that nobody can put the windows of a round where it will be drawn.
        seat: The number of the node's seat, which the draws without replacement follow from.

    Raises:
        ValueError: no step counts for these tokens, the training part has fewer windows than it needs, or
            the node brings data and is not bound to any.
    """
    is_own = spec.brings_data(node)
    if is_own != (own != NO_OWN_DATA):
        raise ValueError(
            "its batch is of data that only its node has, which has announced none"
            if is_own
            else "its node brings no data"
        )
    split = spec.split
    portions = (Portion(1, range(own.windows)),) if is_own else spec.portions(node)
    count = spec.step_sequences(tokens) * spec.rule.local.steps // spec.compute.trained_per_window
    least = min(len(one.numbers) for one in portions)
    if least < count:
        kind = "pairs" if spec.compute.is_dpo else "sequences"
        raise ValueError(f"{least} {kind} of {spec.window_tokens} tokens to train on, a step needs {count}")
    chosen = (
        _drawn_with_replacement(spec, node, round_id, count, portions, own)
        if spec.data.replaces
        else _drawn_without(spec, spec.first_draw(node, round_id, seat), count, portions, own)
    )
    return _starts(spec, chosen if is_own else (split.training(number) for number in chosen))


def _drawn_with_replacement(
    spec: RunSpec, node: PeerId, round_id: int, count: int, portions: Sequence[Portion], own: OwnData
) -> Iterable[int]:
    """As many different numbers of windows, drawn for this node and round."""
    ends = list(itertools.accumulate(one.weight for one in portions))
    _, in_line = spec.in_line(round_id)
    head = b"assay/batch/1" + spec.seed.to_bytes(8, "big") + in_line.to_bytes(8, "big") + node
    if own != NO_OWN_DATA:
        head += own.root
    chosen: dict[int, None] = {}  # a set that keeps its order
    counter = 0
    while len(chosen) < count:
        block = hashlib.sha256(head + counter.to_bytes(8, "big")).digest()
        numbers = portions[bisect_right(ends, int.from_bytes(block[16:], "big") % ends[-1])].numbers
        chosen[numbers[int.from_bytes(block[:16], "big") % len(numbers)]] = None  # 128 bits: bias below 2^-64
        counter += 1
    return chosen


def _drawn_without(
    spec: RunSpec, first: int, count: int, portions: Sequence[Portion], own: OwnData
) -> Iterator[int]:
    """The numbers of the windows at these draws, which no two steps share.

    Of as many draws as all weights together, as many as its weight are a source's; its passes follow each
    other, each in an order of its own.
    """
    weights = tuple(one.weight for one in portions)
    head = spec.seed.to_bytes(8, "big") + (b"" if own == NO_OWN_DATA else own.root)
    for draw in range(first, first + count):
        block, at = divmod(draw, sum(weights))
        source, before = 0, at
        if len(weights) > 1:
            source, before = _interleaved(weights, b"assay/mixture/1" + head + block.to_bytes(8, "big"))[at]
        numbers = portions[source].numbers
        turn, place = divmod(block * weights[source] + before, len(numbers))
        key = b"assay/pass/1" + head + source.to_bytes(8, "big") + turn.to_bytes(8, "big")
        yield numbers[permuted(place, len(numbers), key)]


@lru_cache(maxsize=BLOCKS_KEPT)
def _interleaved(weights: tuple[int, ...], key: bytes) -> tuple[tuple[int, int], ...]:
    """Of each draw of a block, in a key's order: its source, and how many of the source come before it."""
    ends, counts = list(itertools.accumulate(weights)), [0] * len(weights)
    found = []
    for at in range(ends[-1]):
        source = bisect_right(ends, permuted(at, ends[-1], key))
        found.append((source, counts[source]))
        counts[source] += 1
    return tuple(found)


def batch_root(spec: RunSpec, positions: tuple[int, ...], own: OwnData = NO_OWN_DATA) -> Digest:
    """The digest in a commit that binds its batch: of the data's root, or its node's, and the positions."""
    root = spec.data.root if own == NO_OWN_DATA else own.root
    body = root + b"".join(at.to_bytes(8, "big") for at in positions)
    return Digest(hashlib.sha256(b"assay/batch-root/1" + body).digest())


def batch_tokens(tokens: Tokens, positions: tuple[int, ...], context: int) -> NDArray[np.int64]:
    """Input and target tokens together; a masked token t is ~t. Shape (sequences, context + 1), int64."""
    rows = [tokens[at : at + context + 1] for at in positions]
    return np.array(rows, np.int64).reshape(len(rows), context + 1)


def validation_tokens(
    tokens: Tokens,
    spec: RunSpec,
    sequences: int,
    stratum: int | None = None,
    units: slice = slice(None),
) -> NDArray[np.int64]:
    """Evenly spaced sequences of what is held out, in whole pairs with DPO, and at least one.

    Of one stratum, or of everything; no others are read than those of the units, each a sequence or a pair.
    Shape (<= sequences, context + 1), int64.
    """
    if stratum is None:
        held = range(spec.split.held)
    else:
        held = spec.data.held_out_windows(stratum, spec.window_tokens)
    count = min(max(sequences // spec.compute.drawn_sequences, 1), len(held))
    drawn = (held[i * len(held) // count] for i in range(count)[units])
    starts = _starts(spec, map(spec.split.held_out, drawn))
    return batch_tokens(tokens, starts, spec.model.context)
