"""Mask: it is in the shards, so nobody chooses it, and it changes no token."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from assay.protocol.errors import ConfigError
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.data.batches import describe, read_tokens
from assay.training.data.mask import from_stored, to_stored
from assay.training.data.shards import (
    MANIFEST,
    SHARD_BYTES,
    ChatData,
    DataManifest,
    ShardWriter,
    Source,
    checked_shards,
    read_manifest,
    token_bytes_for,
    token_type,
)

CHAT = ChatData(
    template=Digest(bytes(range(32))), sequence=17, conversations=3, cut=1, dropped=0, targets=9, padding=4
)


def masked_data(folder, tokens, vocabulary: int) -> DataManifest:
    """A data set of these tokens, however wrong they are."""
    width = token_bytes_for(2 * vocabulary)
    writer = ShardWriter(folder, width, is_masked=True)
    writer.add(tokens)
    writer.close()
    only = Source(
        source="x", licence="y", files=1, documents=3, bytes=9, tokens=len(tokens), kind="conversations"
    )
    manifest = DataManifest(
        tokenizer=NO_DIGEST, separator=0, vocabulary=vocabulary, token_bytes=width, tokens=len(tokens),
        sources=(only,), shards=tuple(writer.shards), chat=CHAT,
    )  # fmt: skip
    (folder / MANIFEST).write_bytes(manifest.to_json())
    return manifest


def spec_of(manifest):
    return describe(manifest, validation_tokens=100, source="x", licence="y")


@pytest.mark.parametrize(("vocabulary", "width"), [(128, 1), (256, 2), (1 << 15, 2), (100_000, 4)])
def test_masked_tokens_are_read_as_they_were_written(tmp_path, vocabulary, width):
    draw = np.random.default_rng(1)
    tokens = draw.integers(0, vocabulary, 300_000 if width > 1 else SHARD_BYTES + 9)
    tokens = np.where(draw.random(len(tokens)) < 0.5, ~tokens, tokens)
    tokens[:4] = [0, ~0, vocabulary - 1, ~(vocabulary - 1)]

    manifest = masked_data(tmp_path, tokens, vocabulary)
    stream = read_tokens(tmp_path, spec_of(manifest))

    assert manifest.token_bytes == width and read_manifest(tmp_path) == manifest
    assert np.array_equal(np.concatenate(list(checked_shards(tmp_path, manifest))), tokens)
    assert np.array_equal(stream[0 : len(tokens)], tokens)
    assert np.array_equal(from_stored(to_stored(tokens, token_type(width))), tokens)


@pytest.mark.parametrize("token", [200, ~200, 32_767, ~32_767])
def test_a_token_beyond_the_vocabulary_is_refused_masked_or_not(tmp_path, token):
    manifest = masked_data(tmp_path, np.array([1, ~2, token]), 200)

    with pytest.raises(ConfigError, match=f"token {max(token, ~token)}, expected under 200"):
        read_tokens(tmp_path, spec_of(manifest))


def test_the_spec_commits_to_whether_a_data_set_is_masked(tmp_path):
    manifest = masked_data(tmp_path, np.array([1, ~2, 3]), 200)
    body = json.loads((tmp_path / MANIFEST).read_text())
    assert body["format"] == "assay/data/3" and body["masked"] is True

    for key in ("masked", "chat"):
        del body[key]
    body["format"] = "assay/data/2"
    (tmp_path / MANIFEST).write_text(json.dumps(body))

    with pytest.raises(ConfigError, match="not the data that this run committed to"):
        read_tokens(tmp_path, spec_of(manifest))
    assert manifest.digest() != replace(manifest, chat=replace(CHAT, template=NO_DIGEST)).digest()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("masked", False),
        ("masked", 1),
        ("format", "assay/data/2"),
        ("chat", None),
        ("chat", {"template": "00"}),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(tmp_path, key, value):
    masked_data(tmp_path, np.array([1, ~2, 3]), 200)
    body = json.loads((tmp_path / MANIFEST).read_text()) | {key: value}
    (tmp_path / MANIFEST).write_text(json.dumps(body))

    with pytest.raises(ConfigError, match="is not a manifest of a data set"):
        read_manifest(tmp_path)
