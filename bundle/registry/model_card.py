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
from assay.training.layout import layout_of

_ADAPTER_USE = """
The adapter alone: `peft.PeftModel.from_pretrained(base, "adapter")`, with `base` loaded from its own folder.
"""


def model_card(spec: RunSpec, run_id: Digest, facts: Sequence[RoundFacts], state: Digest, rounds: str) -> str:
    """The text of README.md beside the weights.

    Args:
        spec: The run.
        run_id: Its id on chain.
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
        "Parameters": f"{layout_of(model.whole).parameters:,}",
        "Of which trained": _trained(spec) or "all",
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
    made = f"Starting from {start} and\napplying the aggregates in order gives these weights, bit for bit."
    if model.is_adapted:
        made = (
            "Starting from factors\ndrawn from the seed in the spec and applying the aggregates in order "
            "gives the adapter;\nmerged into `base.npy`, which the spec names, it gives these weights, "
            "bit for bit."
        )
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
of, with its record on chain where there is one. {made} `data/manifest.json` names every
source with its licence and every shard of the data by its hash.

## Use it

`transformers.AutoModelForCausalLM.from_pretrained("model")` and `AutoTokenizer.from_pretrained("model")`.
{_ADAPTER_USE if model.is_adapted else ""}
## Limits

The model has seen nothing but the data named above and repeats what it holds. Nobody has tested it for
any use.
"""


def _trained(spec: RunSpec) -> str:
    """What an adapter is, in one line; empty without one."""
    model, adapter = spec.model, spec.model.adapter
    if not model.is_adapted:
        return ""
    targets = ", ".join(one.name.lower() for one in adapter.targets)
    return (
        f"an adapter (LoRA) of rank {adapter.rank} and alpha {adapter.alpha} on {targets}, "
        f"{layout_of(model).parameters:,} parameters; the base stays as it was imported"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
