"""Model card: the README.md beside a model's weights, for people and hubs.

Room: bundle (pure). Markdown with YAML front matter; text by the spec's author is quoted as JSON strings,
which YAML reads unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from assay.ledger.journal.round_facts import RoundFacts
from assay.protocol.audits import AuditStatus
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.layout import Layout


def model_card(
    spec: RunSpec, run_id: Digest, layout: Layout, facts: Sequence[RoundFacts], state: Digest, rounds: str
) -> str:
    """The text of README.md beside the weights.

    Args:
        spec: The run.
        run_id: Its id on chain.
        layout: Of the parameters.
        facts: Of the whole chain.
        state: Digest of the delivered parameters.
        rounds: How many it trained for, and why not for more.
    """
    commits = [commit for one in facts for commit in one.commits]
    rulings = [audit.ruling for one in facts for audit in one.ruled]
    passed = sum(ruling in (AuditStatus.PASSED, AuditStatus.DISMISSED) for ruling in rulings)
    name = json.dumps(spec.name)
    model, count = spec.model, len({commit.node for commit in commits})
    is_drawn = spec.model.base == NO_DIGEST
    rows = {
        "Run": f"`{run_id.hex()}`",
        "Final state digest (BLAKE3)": f"`{state.hex()}`",
        "Parameters": f"{layout.parameters:,}",
        "Architecture": f"{model.family.name.lower()}, {model.layers} layers of {model.width}, "
        f"{model.heads} heads ({model.kv_heads} keys and values), context {model.context:,}",
        "Started from": "the seed" if is_drawn else f"imported parameters `{spec.model.base.hex()}`",
        "Rounds": rounds,
        "Tokens processed": f"{sum(commit.tokens for commit in commits):,}",
        "Contributions accepted": str(len(commits)),
        "Nodes": str(count),
        "Verifiers": str(len(spec.verifiers)),
        "Audits drawn": str(sum(len(one.drawn) for one in facts)),
        "Audits passed": str(passed),
        "Faults confirmed": str(sum(ruling is AuditStatus.CONFIRMED for ruling in rulings)),
        "Data": spec.data.source,
        "Data licence": spec.data.licence,
        "Data Merkle root": f"`{spec.data.root.hex()}`",
        "Tokenizer": "bytes"
        if spec.data.tokenizer == NO_DIGEST
        else f"SHA-256 `{spec.data.tokenizer.hex()}`",
        "Validation tokens (never trained on)": f"{spec.data.validation_tokens:,}",
    }
    table = "\n".join(f"| {what} | {_cell(value)} |" for what, value in rows.items())
    start = "the seed in the spec" if is_drawn else "`base.npy`, which the spec names,"
    return f"""---
model_name: {name}
license: other
license_name: {json.dumps(spec.data.licence)}
pipeline_tag: text-generation
tags:
- assay
- demo-optimizer
- verifiable-training
training_data: {json.dumps(spec.data.source)}
---

# {spec.name}

A decoder-only transformer trained by {count} independent nodes with DeMo. Every update that
counts is signed, every aggregate is certified by a quorum of verifiers, and steps drawn at random were
recomputed.

| | |
|---|---|
{table}

## Check it

Everything needed is in this bundle: `spec.cbor` (what was agreed), `links/` (the certified chain),
`updates/` and `aggregates/` (the bytes it names), `receipts/` (what became of each contribution) and
`settlements/` (who was paid what, with the verifiers' signatures). `registry/` says what the model is made
of, with its record on chain where there is one. Starting from {start} and
applying the aggregates in order gives these weights, bit for bit. `data/manifest.json` names every
source with its licence and every shard of the data by its hash.

## Use it

`transformers.AutoModelForCausalLM.from_pretrained("model")` and `AutoTokenizer.from_pretrained("model")`.

## Limits

The model has seen nothing but the data named above and repeats what it holds. Nobody has tested it for
any use.
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
