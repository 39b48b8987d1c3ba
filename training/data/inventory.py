"""Inventory: a canonical value that lists the data a model was trained on.

Room: training (pure). It follows from the run's spec and the data's manifest, which the spec names by hash,
so buyer and verifiers compute the same; its own hash is `dataInventoryHash` in a model's record on chain.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from assay.protocol.encoding.json_text import canonical_json, plain
from assay.protocol.params import DataSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.data.shards import DataManifest, Source

FORMAT = "assay/data-inventory/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Every source with its licence and size, and the kind of tokens. Digests in hexadecimal."""

    format: str = FORMAT
    sources: tuple[Source, ...]
    tokens: int
    held_out_tokens: int
    vocabulary: int
    token_bytes: int
    tokenizer: str | None  # None: tokens are bytes
    manifest: str
    merkle_root: str
    shards: int

    def sha256(self) -> Digest:
        """Of the canonical JSON."""
        return Digest(hashlib.sha256(canonical_json(plain(self))).digest())


def inventory(data: DataSpec, manifest: DataManifest) -> Inventory:
    """The inventory of a run's data.

    Args:
        data: The run's.
        manifest: The manifest that `data` names.

    Raises:
        ValueError: `data` names another manifest.
    """
    if manifest.digest() != data.manifest:
        raise ValueError(f"manifest {manifest.digest().hex()}, the run spec has {data.manifest.hex()}")
    return Inventory(
        sources=manifest.sources,
        tokens=data.tokens,
        held_out_tokens=data.validation_tokens,
        vocabulary=data.vocabulary,
        token_bytes=data.token_bytes,
        tokenizer=None if data.tokenizer == NO_DIGEST else f"sha256:{data.tokenizer.hex()}",
        manifest=f"sha256:{data.manifest.hex()}",
        merkle_root=data.root.hex(),
        shards=len(manifest.shards),
    )
