"""Specs: the parts of a run's spec that most tests are not about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.encoding.blob import blob_digest
from assay.protocol.params import AuditSpec, ComputeSpec, DataSpec, ModelSpec, Precision
from assay.protocol.types import NO_DIGEST
from assay.protocol.update_rule import RuleSpec
from assay.training.data.batches import describe
from assay.training.data.shards import DataManifest, Source
from assay.training.methods.choices import Choices, method_rule
from assay.training.model.presets import gpt_spec

FLOAT32_WHOLE = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=0)


def a_model(**sizes: Any) -> ModelSpec:
    """A GPT of one layer, 64 wide, over 16 bytes."""
    return gpt_spec(**{"layers": 1, "width": 64, "heads": 2, "context": 16, **sizes})


def a_rule(method: str = "demo", **choices: Any) -> RuleSpec:
    """A method with two sequences a step and no warm-up, unless said otherwise."""
    return method_rule(method, Choices(**{"sequences": 2, "warmup_rounds": 0, **choices}))


def data_of(tokens: NDArray[np.uint8], **changes: Any) -> DataSpec:
    """These bytes, as `write_tokens` puts them into a folder; less than one shard."""
    shard = blob_digest(tokens.astype(np.uint8).tobytes())
    counts = {"files": 1, "documents": 1, "bytes": len(tokens), "tokens": len(tokens)}
    manifest = DataManifest(
        tokenizer=NO_DIGEST, separator=None, vocabulary=256, token_bytes=1, tokens=len(tokens),
        sources=(Source(source="made up", licence="none", **counts),), shards=(shard,),
    )  # fmt: skip
    spec = describe(manifest, validation_tokens=2000, source="made up", licence="none")
    return replace(spec, **changes)


def some_data(**changes: Any) -> DataSpec:
    """A thousand bytes that nobody has."""
    facts = {
        "root": NO_DIGEST, "manifest": NO_DIGEST, "tokenizer": NO_DIGEST, "vocabulary": 256, "token_bytes": 1,
        "tokens": 1000, "validation_tokens": 100, "source": "made up", "licence": "none",
    }  # fmt: skip
    return DataSpec(**{**facts, **changes})


def an_audit_spec(**changes: object) -> AuditSpec:
    """Every step audited by one auditor, nothing planted, one execution class."""
    rules = AuditSpec(
        probation=100,
        floor_ppm=200_000,
        blocks=4,
        replication_ppm=0,
        takeover_rounds=1,
        audit_rounds=4,
        dispute_rounds=3,
    )
    return replace(rules, **changes)
