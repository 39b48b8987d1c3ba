"""Model card: how the model came to be, for people and hubs.

Room: observer (pure). Markdown with YAML front matter; what the spec's author wrote
is quoted as JSON strings, which YAML reads as they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ledger.journal_facts import RoundFacts
from protocol.history import Ruling
from protocol.params import RunSpec
from protocol.types import Digest
from training.layout import Layout


def model_card(
    spec: RunSpec, run_id: Digest, layout: Layout, facts: Sequence[RoundFacts], state: Digest
) -> str:
    """The text of README.md beside the weights.

    Args:
        spec: The run.
        run_id: Its id on chain.
        layout: Of the parameters.
        facts: Of the whole chain.
        state: Digest of the delivered parameters.
    """
    commits = [commit for one in facts for commit in one.commits]
    rulings = [audit.ruling for one in facts for audit in one.ruled]
    passed = sum(ruling in (Ruling.CLEARED, Ruling.DISMISSED) for ruling in rulings)
    name = json.dumps(spec.name)
    rows = {
        "Run": f"`{run_id.hex()}`",
        "Final state digest (BLAKE3)": f"`{state.hex()}`",
        "Parameters": f"{layout.parameters:,}",
        "Rounds": str(spec.rounds),
        "Tokens accepted": f"{sum(commit.tokens for commit in commits):,}",
        "Contributions accepted": str(len(commits)),
        "Nodes": str(len(spec.nodes)),
        "Verifiers": str(len(spec.verifiers)),
        "Audits drawn": str(sum(len(one.drawn) for one in facts)),
        "Audits passed": str(passed),
        "Faults upheld": str(sum(ruling is Ruling.UPHELD for ruling in rulings)),
        "Data": spec.data.source,
        "Data licence": spec.data.licence,
        "Data Merkle root": f"`{spec.data.root.hex()}`",
        "Validation tokens (never trained on)": f"{spec.data.validation_tokens:,}",
    }
    table = "\n".join(f"| {what} | {_cell(value)} |" for what, value in rows.items())
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

A decoder-only transformer trained by {len(spec.nodes)} independent nodes with DeMo. Every update that
counts is signed, every aggregate is certified by a quorum of verifiers, and steps drawn at random were
recomputed.

| | |
|---|---|
{table}

## Check it

Everything needed is in this bundle: `spec.cbor` (what was agreed), `links/` (the certified chain),
`updates/` and `aggregates/` (the bytes it names), `receipts/` (what became of each contribution) and
`settlements/` (who was paid what, with the verifiers' signatures). Starting from the seed in the spec and
applying the aggregates in order gives these weights, bit for bit.

## Limits

The model has seen nothing but the data named above and repeats what it holds. Nobody has tested it for
any use.
"""


def model_config(spec: RunSpec, layout: Layout) -> dict[str, Any]:
    """The architecture, as config.json states it."""
    model = spec.model
    return {
        "architecture": "pre-norm GPT, learned positions, GELU, untied head",
        "vocabulary": model.vocabulary,
        "layers": model.layers,
        "width": model.width,
        "heads": model.heads,
        "context": model.context,
        "parameters": layout.parameters,
        "dtype": "float32",
    }


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
