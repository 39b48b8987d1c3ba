"""Model card: the README.md beside a model's weights, for people and hubs.

Room: bundle (pure). Markdown with YAML front matter; text by the spec's author is quoted as JSON strings,
which YAML reads unchanged.
"""

from __future__ import annotations

import json

from assay.bundle.finished import Accuracy, Finished
from assay.bundle.registry.entry import in_bits
from assay.bundle.report.charts import MICRO
from assay.bundle.report.loss_kind import LossKind, loss_kind
from assay.bundle.report.training import TrainingReport
from assay.bundle.report.training_page import figures_of
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST
from assay.training.layout import layout_of
from assay.training.methods.presets import method_name

PICTURE = "training.png"
# Licences that the hub knows by these names; any other is `other` there, with its name.
HUB_LICENCES = frozenset((
    "afl-3.0", "agpl-3.0", "apache-2.0", "artistic-2.0", "bsd-2-clause", "bsd-3-clause", "bsl-1.0",
    "cc-by-4.0", "cc-by-nc-4.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0", "cc-by-sa-4.0",
    "cc0-1.0", "ecl-2.0", "epl-2.0", "eupl-1.1", "eupl-1.2", "gpl-2.0", "gpl-3.0", "isc", "lgpl-2.1",
    "lgpl-3.0", "mit", "mpl-2.0", "ms-pl", "ncsa", "odbl", "ofl-1.1", "osl-3.0", "unlicense", "wtfpl", "zlib",
))  # fmt: skip
_ADAPTER_USE = """
The adapter alone: `peft.PeftModel.from_pretrained(base, "adapter")`, with `base` loaded from its own folder.
"""


def model_card(run: Finished, report: TrainingReport) -> str:
    """The text of README.md beside the weights, and beside an adapter's.

    Args:
        run: The run.
        report: Of its training.
    """
    spec, run_id, state, rounds = run.spec, run.run_id, run.state, run.ending.text
    name = json.dumps(spec.name)
    model, count = spec.model, report.totals.nodes
    is_drawn = spec.model.base == NO_DIGEST
    rows = {
        "Run": f"`{run_id.hex()}`",
        "Final state digest (BLAKE3)": f"`{state.hex()}`",
        "Parameters": f"{layout_of(model.whole).parameters:,}",
        "Of which trained": _trained(spec) or "all",
        "Architecture": f"{model.family.name.lower()}, {model.layers} layers of {model.width}, "
        f"{model.heads} heads ({model.kv_heads} keys and values), context {model.context:,}",
        "Started from": "the seed" if is_drawn else f"imported parameters `{spec.model.base.hex()}`",
        **({"Continues": _continues(spec)} if spec.is_continued else {}),
        "Rounds": rounds,
        "Verifiers": str(len(spec.verifiers)),
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
    method = method_name(spec.rule)
    tag = method.partition(",")[0].replace(" ", "-")
    if method == "demo":
        method, tag = "DeMo", "demo-optimizer"
    return f"""---
model_name: {name}
{_licence(run.declarations.licence)}pipeline_tag: text-generation
tags:
- assay
- {tag}
- verifiable-training
training_data: {json.dumps(spec.data.source)}
{_model_index(run, report)}---

# {spec.name}

A decoder-only transformer trained by {count} independent nodes with {method}. Every update that
counts is signed, every aggregate is certified by a quorum of verifiers, and steps drawn at random were
recomputed.

| | |
|---|---|
{table}

{_training(report, loss_kind(spec))}## Check it

Everything needed is in this bundle: `spec.cbor` (what was agreed), `links/` (the certified chain),
`updates/` and `aggregates/` (the bytes it names), `receipts/` (what became of each contribution) and
`settlements/` (who was paid what, with the verifiers' signatures). `report.html` shows the training round
by round. `registry/` says what the model is made
of, with its record on chain where there is one. {made} `data/manifest.json` names every
source with its licence and every shard of the data by its hash.

## Use it

`transformers.AutoModelForCausalLM.from_pretrained("model")` and `AutoTokenizer.from_pretrained("model")`.
{_ADAPTER_USE if model.is_adapted else ""}
## Limits

{_seen(spec)} Nobody has tested it for
any use.
"""


def _seen(spec: RunSpec) -> str:
    """What the model may repeat."""
    own = len(spec.bringing_nodes)
    if not own:
        return "The model has seen nothing but the data named above and repeats what it holds."
    return (
        f"{own} of its nodes trained on data that only they have, bound by Merkle roots in `links/`. The\n"
        "model repeats what it holds of these too, and nobody else can say what they are."
    )


def _licence(declared: str) -> str:
    """Lines of the front matter; none where the buyer chose no licence for the model."""
    if not declared:
        return ""
    known = declared.lower()
    if known in HUB_LICENCES:
        return f"license: {known}\n"
    return f"license: other\nlicense_name: {json.dumps(declared)}\n"


def _model_index(run: Finished, report: TrainingReport) -> str:
    """Lines of the front matter with held-out loss and accuracy; none where nobody measured them."""
    spec = run.spec
    held_out, kind = report.held_out, loss_kind(spec).held_out
    if held_out is None:
        return ""
    return f"""model-index:
- name: {json.dumps(spec.name)}
  results:
  - task:
      type: text-generation
    dataset:
      name: {json.dumps(spec.data.source)}
      type: {json.dumps(f"assay:{spec.data.root.hex()}")}
      split: held out
    metrics:
    - type: loss
      name: {kind.name[0].upper() + kind.name[1:]} in {kind.unit} on {held_out.tokens} held-out tokens
      value: {held_out.last_micro / MICRO:.4f}
      verified: false
{_choices_result(run, held_out.accuracy)}"""


def _choices_result(run: Finished, found: Accuracy | None) -> str:
    """Lines of the model index with the accuracies; none without."""
    choices = run.inputs.choices
    if found is None or choices is None:
        return ""
    return f"""  - task:
      type: text-generation
    dataset:
      name: {json.dumps(choices.name)}
      type: {json.dumps(f"assay:{run.spec.choices.digest.hex()}")}
      split: test
    metrics:
    - type: acc
      name: acc on {found.items} items of multiple choice
      value: {found.acc_last / found.items:.4f}
      verified: false
    - type: acc_norm
      name: acc_norm on {found.items} items of multiple choice
      value: {found.acc_norm_last / found.items:.4f}
      verified: false
"""


def _training(report: TrainingReport, kind: LossKind) -> str:
    if report.totals.loss_micro is None:
        return ""
    held_out = "Nothing was measured on the held-out tokens."
    if report.held_out is not None:
        held_out = (
            f"The held-out loss is the buyer's measurement, on {report.held_out.tokens:,} tokens\nthat "
            "nobody trained on; `assay run verify --data` repeats it."
        )
        if report.held_out.accuracy is not None:
            held_out += (
                f"\nSo are acc and acc_norm, on the {report.held_out.accuracy.items:,} items of "
                "`data/choices.json`, by the log-likelihood of\neach choice, and by it per character."
            )
    rows = "\n".join(f"| {name} | {_cell(value)} |" for name, value in figures_of(report, kind))
    return f"""## Training

![Loss by round: the median of the nodes, and the band from the lowest to the highest]({PICTURE})

| | |
|---|---|
{rows}

The {kind.name} is in {kind.unit}, as nodes state and sign it of their own steps, before each is applied: the
median of a round's nodes. {held_out}

{_samples(report)}"""


def _samples(report: TrainingReport) -> str:
    """Sampled text, each document as a JSON string; nothing without samples."""
    if not report.samples:
        return ""
    texts = "\n".join(json.dumps(one) for one in report.samples)
    return f"""Documents that the model makes up, sampled at temperature 1 with noise that follows from the
run's id:

```json
{texts}
```

"""


def _continues(spec: RunSpec) -> str:
    named = spec.predecessor
    return f"run `{named.run_id.hex()}` after manifest `{named.manifest.hex()}`, {named.rounds} rounds in all"


def _trained(spec: RunSpec) -> str:
    """What an adapter is, in one line; empty without one."""
    model, adapter = spec.model, spec.model.adapter
    if not model.is_adapted:
        return ""
    targets = ", ".join(one.name.lower() for one in adapter.targets)
    return (
        f"an adapter (LoRA) of rank {adapter.rank} and alpha {adapter.alpha} on {targets}, "
        f"{layout_of(model).parameters:,} parameters; the base stays as it was imported{in_bits(model)}"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
