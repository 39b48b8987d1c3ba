"""Inventory: a canonical value that lists the data a model was trained on.

Room: training (pure). It follows from the run's spec and the data's manifest, which the spec names by hash,
so buyer and verifiers compute the same; its own hash is `dataInventoryHash` in a model's record on chain.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

from assay.protocol.encoding.json_text import canonical_json
from assay.protocol.params import DataSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.data.shards import DataManifest

FORMAT = "assay/data-inventory/1"


def inventory(data: DataSpec, manifest: DataManifest) -> dict[str, Any]:
    """Every source with its licence and size, and the kind of tokens.

    Args:
        data: The run's.
        manifest: The manifest that `data` names.

    Raises:
        ValueError: `data` names another manifest.
    """
    if manifest.digest() != data.manifest:
        raise ValueError(f"manifest {manifest.digest().hex()}, the run spec has {data.manifest.hex()}")
    return {
        "format": FORMAT,
        "sources": [{**asdict(source), "kind": "text"} for source in manifest.sources],
        "tokens": data.tokens,
        "held_out_tokens": data.validation_tokens,
        "vocabulary": data.vocabulary,
        "token_bytes": data.token_bytes,
        "tokenizer": None if data.tokenizer == NO_DIGEST else f"sha256:{data.tokenizer.hex()}",
        "manifest": f"sha256:{data.manifest.hex()}",
        "merkle_root": data.root.hex(),
        "shards": len(manifest.shards),
    }


def inventory_digest(inventory: dict[str, Any]) -> Digest:
    """SHA-256 of an inventory's canonical JSON."""
    return Digest(hashlib.sha256(canonical_json(inventory)).digest())
