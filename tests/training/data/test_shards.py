"""Shards: a data set is what its names say, whatever its size, and nothing else is trained on."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.errors import ConfigError
from assay.training.data.batches import describe, read_tokens
from assay.training.data.shards import (
    SHARD_BYTES,
    ShardedTokens,
    Source,
    checked_shards,
    read_manifest,
    shard_path,
    shard_root,
    token_bytes_for,
    write_tokens,
)

VOCABULARIES = {1: 256, 2: 40_000, 4: 100_000}
COUNT = 700_000  # crosses a shard at every width but one byte


def some_tokens(vocabulary: int, count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(vocabulary).integers(0, vocabulary, count)


def spec_of(manifest):
    return describe(manifest, validation_tokens=100, source="x", licence="y")


@pytest.mark.parametrize("width", VOCABULARIES)
def test_what_is_written_is_read_at_every_width(tmp_path, width):
    tokens = some_tokens(VOCABULARIES[width])

    manifest = write_tokens(tmp_path, [tokens], vocabulary=VOCABULARIES[width])
    stream = read_tokens(tmp_path, spec_of(manifest))

    assert manifest.token_bytes == width
    assert len(stream) == len(tokens)
    assert len(manifest.shards) == -(-len(tokens) * width // SHARD_BYTES)
    assert np.array_equal(np.concatenate(list(checked_shards(tmp_path, manifest))), tokens)
    edge = SHARD_BYTES // width
    for start, stop in ((0, 9), (edge - 5, edge + 5), (COUNT - 3, COUNT + 9), (7, 7), (0, COUNT)):
        assert np.array_equal(stream[start:stop], tokens[start:stop])


def test_the_width_is_the_smallest_that_holds_every_token():
    widths = {256: 1, 257: 2, 1 << 16: 2, (1 << 16) + 1: 4}

    assert {vocabulary: token_bytes_for(vocabulary) for vocabulary in widths} == widths


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40_000), max_size=12))
def test_the_same_tokens_have_the_same_name_however_they_arrive(sizes):
    tokens = some_tokens(256, sum(sizes))
    parts = np.split(tokens, np.cumsum(sizes)[:-1]) if sizes else []

    assert write_tokens(None, parts) == write_tokens(None, [tokens])


@settings(deadline=None, max_examples=20)
@given(st.integers(0, SHARD_BYTES + 99), st.integers(1, 255))
def test_any_changed_token_changes_root_and_manifest(at, change):
    tokens = np.zeros(SHARD_BYTES + 100, np.uint8)
    before = write_tokens(None, [tokens])
    tokens[at] = change
    after = write_tokens(None, [tokens])

    assert before.root != after.root
    assert before.digest() != after.digest()


def test_length_and_order_change_the_root():
    one = np.arange(256, dtype=np.uint8)
    two = np.concatenate([np.zeros(SHARD_BYTES, np.uint8), np.ones(SHARD_BYTES, np.uint8)])
    roots = [
        write_tokens(None, [tokens]).root for tokens in (one, one[:-1], np.append(one, 0), two, two[::-1])
    ]

    assert len(set(roots)) == len(roots)


def test_the_manifests_digest_binds_the_licence_of_every_source():
    manifest = write_tokens(None, [some_tokens(256, 100)])
    told = replace(manifest, sources=(replace(manifest.sources[0], licence="CC0-1.0"),))

    assert told.root == manifest.root
    assert told.digest() != manifest.digest()


def test_a_manifest_survives_its_file(tmp_path):
    source = Source(source="naïve “texts”", licence="CC", files=1, documents=2, bytes=3, tokens=COUNT)
    manifest = replace(write_tokens(tmp_path, [some_tokens(256)]), sources=(source,), separator=7)
    (tmp_path / "manifest.json").write_bytes(manifest.to_json())

    assert read_manifest(tmp_path) == manifest
    assert json.loads(manifest.to_json())["root"] == shard_root(manifest.shards).hex()


def test_a_shard_that_is_missing_altered_or_cut_is_named(tmp_path):
    manifest = write_tokens(tmp_path, [some_tokens(40_000)], vocabulary=40_000)
    path = shard_path(tmp_path, manifest.shards[1])
    body = path.read_bytes()
    flipped = bytes([body[0] ^ 1]) + body[1:]
    for damage, words in (
        (flipped, "shard 1 was altered"),
        (body[:-1], f"{len(body) - 1} bytes, expected {len(body)}"),
        (body + b"\0", f"{len(body) + 1} bytes, expected {len(body)}"),
    ):
        path.write_bytes(damage)
        with pytest.raises(ConfigError, match=f"{path.name}: {words}"):
            read_tokens(tmp_path, spec_of(manifest))
    path.unlink()
    with pytest.raises(ConfigError, match=f"{path.name}: cannot be read"):
        read_tokens(tmp_path, spec_of(manifest))


def test_data_of_another_run_are_refused(tmp_path):
    manifest = write_tokens(tmp_path, [some_tokens(256)])
    other = write_tokens(None, [some_tokens(256)[::-1]])

    with pytest.raises(ConfigError, match="not the data that this run committed to"):
        read_tokens(tmp_path, spec_of(other))
    with pytest.raises(ConfigError, match="not the data that this run committed to"):
        read_tokens(tmp_path, replace(spec_of(manifest), tokens=manifest.tokens - 1))


def test_a_token_out_of_range_is_refused_before_it_reaches_an_embedding(tmp_path):
    write_tokens(tmp_path, [np.array([3, 5, 99])], vocabulary=256)
    low = replace(read_manifest(tmp_path), vocabulary=99)
    (tmp_path / "manifest.json").write_bytes(low.to_json())

    with pytest.raises(ConfigError, match="token 99, expected under 99"):
        read_tokens(tmp_path, spec_of(low))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', "[" * 100_000, '{"tokenizer": 5}'])
def test_what_is_no_manifest_is_refused_in_words(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)

    with pytest.raises(ConfigError, match=r"manifest.json: is not a manifest"):
        read_manifest(tmp_path)


def test_a_manifest_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"manifest.json: cannot be read"):
        read_manifest(tmp_path / "nowhere")


def test_writing_checking_and_reading_take_the_memory_of_a_shard_not_of_the_data(tmp_path):
    part = some_tokens(256, 1 << 20).astype(np.uint8)
    tracemalloc.start()
    try:
        manifest = write_tokens(tmp_path, (part ^ np.uint8(i) for i in range(40)))
        stream = read_tokens(tmp_path, spec_of(manifest))
        for at in range(0, len(stream), 1 << 20):
            stream[at : at + 1000]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert isinstance(stream, ShardedTokens)
    assert len(stream) == 40 << 20
    assert peak < 8 << 20
