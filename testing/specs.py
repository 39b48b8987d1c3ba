"""Specs: a small run's terms, and the parts of them that most tests are not about.

Room: testing.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.encoding.blob import blob_digest
from assay.protocol.params import (
    AuditSpec,
    ComputeSpec,
    DataSpec,
    ModelSpec,
    MoneySpec,
    Precision,
    RunSpec,
    TimingSpec,
    check_spec,
)
from assay.protocol.types import NO_DIGEST, Address
from assay.protocol.update_rule import RuleSpec
from assay.testing.members import DEPLOYMENT_ID, NODES, VERIFIERS, a_member
from assay.training.data.batches import describe
from assay.training.data.shards import DataManifest, Source, write_tokens
from assay.training.methods.choices import Choices, method_rule
from assay.training.model.presets import gpt_spec

FLOAT32_WHOLE = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=0)
TEXT = np.frombuffer(hashlib.shake_256(b"text").digest(40_000), np.uint8) % 64 + 32
MANIFEST = write_tokens(None, [TEXT])


def a_model(**sizes: Any) -> ModelSpec:
    """A GPT of one layer, 64 wide, over 16 bytes."""
    return gpt_spec(**{"layers": 1, "width": 64, "heads": 2, "context": 16, **sizes})


def a_rule(method: str = "demo", **choices: Any) -> RuleSpec:
    """A method with two sequences a step and no warm-up, unless said otherwise."""
    return method_rule(method, Choices(**{"sequences": 2, "warmup_rounds": 0, **choices}))


def data_of(tokens: NDArray[np.uint8], **changes: Any) -> DataSpec:
    """These bytes, as `write_tokens` puts them into a folder; less than one shard."""
    shard = blob_digest(tokens.astype(np.uint8).tobytes())
    count = len(tokens)
    source = Source(source="made up", licence="none", files=1, documents=1, bytes=count, tokens=count)
    manifest = DataManifest(
        tokenizer=NO_DIGEST, separator=None, vocabulary=256, token_bytes=1, tokens=count,
        sources=(source,), shards=(shard,),
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


def an_audit_spec(**changes: Any) -> AuditSpec:
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


def a_money_spec(**changes: Any) -> MoneySpec:
    """A price and shares; epochs of three rounds."""
    money = MoneySpec(
        price_per_mtoken=10**9,
        operators_ppm=870_000,
        verifiers_ppm=80_000,
        treasury=Address(bytes(19) + b"\x07"),
        slash_ppm=500_000,
        withheld_ppm=500_000,
        verifier_slash_ppm=100_000,
        epoch_rounds=3,
    )
    return replace(money, **changes)


def a_spec(**changes: Any) -> RunSpec:
    """A run of six rounds over `TEXT`, by the nodes and verifiers of `members`."""
    nodes = changes.get("nodes", NODES)
    spec = RunSpec(
        deployment_id=DEPLOYMENT_ID,
        name="tiny",
        seed=7,
        rounds=6,
        state_every=1,
        model=a_model(),
        compute=FLOAT32_WHOLE,
        data=data_of(TEXT),
        rule=a_rule(warmup_rounds=2),
        audit=an_audit_spec(probation=2, blocks=8),
        money=a_money_spec(),
        timing=TimingSpec(collect_ms=5000, ready_ms=1000, iteration_ms=10_000, resend_ms=500),
        buyer=Address(bytes(19) + b"\x09"),
        seats=len(nodes),
        least_nodes=len(nodes),
        start_by_s=0,
        nodes=tuple(map(a_member, NODES)),
        verifiers=tuple(map(a_member, VERIFIERS)),
    )
    spec = replace(spec, **changes)
    check_spec(spec)
    return spec


def a_data_folder(folder: Path) -> Path:
    """The data of `a_spec` on disk."""
    write_tokens(folder, [TEXT])
    return folder
