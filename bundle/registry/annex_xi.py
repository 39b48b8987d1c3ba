"""Annex XI: the EU AI Act's technical documentation of a model, as far as a run knows it.

Room: bundle (pure). Markdown. What a run cannot know is left to the provider.

Reference:
    Regulation (EU) 2024/1689, Art. 53(1)(a) and Annex XI, section 1.
"""

from __future__ import annotations

from assay.bundle.registry.document import Entry
from assay.bundle.registry.text import TO_BE_FILLED, table
from assay.bundle.report.loss_kind import DPO, GRPO, NEXT_TOKEN
from assay.protocol.auditing.audits import AuditStatus
from assay.training.data.shards import PREFERENCES, TASKS


def technical_documentation(entry: Entry) -> str:
    """The Markdown text, from a registry entry."""
    record = entry.record
    evidence = "no record on chain" if record is None else f"record `{record.record_id.hex()}` on chain"
    return f"""# Technical documentation

Made from the run's record after Annex XI, section 1, of Regulation (EU) 2024/1689. Entries in italics are the
provider's to fill. Evidence: run `{entry.run.id}`, {evidence}; `assay run verify` checks every figure
that follows from the run.

## 1. General description

{_description(entry)}

## 2. Elements of the model and of its development

{_elements(entry)}

### Compute (2d)

{_compute(entry)}

Method: `{entry.flop.formula}`; {entry.flop.method} ({"; ".join(entry.flop.references)}).
Nothing was metered.

### Energy (2e)

{_energy(entry)}

### Checks during training

{_checks(entry)}
"""


def _description(entry: Entry) -> str:
    model = entry.model
    return table(
        ("Item", "Entry"),
        [
            ("(a) Intended tasks, systems it can be integrated in", TO_BE_FILLED),
            ("(b) Acceptable use policies", TO_BE_FILLED),
            ("(c) Date of release, methods of distribution", TO_BE_FILLED),
            ("(d) Architecture", model.architecture),
            ("(d) Parameters", f"{model.parameters:,}"),
            ("(d) Of which trained", "all" if model.adapter is None else model.adapter.text),
            ("(e) Modality", f"text in, text out; at most {model.context_tokens:,} tokens"),
            ("(f) Licence", model.licence or TO_BE_FILLED),
        ],
    )


def _elements(entry: Entry) -> str:
    data, tokens, run = entry.data, entry.tokens, entry.run
    licences = ", ".join(sorted({source.licence for source in data.sources}))
    kinds = {source.kind for source in data.sources}
    loss = DPO if PREFERENCES in kinds else GRPO if TASKS in kinds else NEXT_TOKEN  # none trains on another's
    return table(
        ("Item", "Entry"),
        [
            ("(a) Technical means for integration", "the folder model loads with Hugging Face transformers"),
            (
                "(b) Design and training process",
                f"{run.rounds} rounds, spec {run.spec}, {run.precision}",
            ),
            ("(b) Objective", loss.objective),
            ("(b) Rationale of design choices", TO_BE_FILLED),
            ("(c) Data: sources", f"{len(data.sources)}, listed in training-content-summary.md"),
            ("(c) Data: licences", licences),
            ("(c) Data: size", f"{data.tokens:,} tokens, {data.held_out_tokens:,} of them held out"),
            ("(c) Data: processed", f"{tokens.processed:,} tokens, the training data {tokens.epochs_text}"),
            ("(c) Data: how obtained, selected, cleaned; biases", TO_BE_FILLED),
        ],
    )


def _compute(entry: Entry) -> str:
    flop, limits = entry.flop, entry.thresholds
    base = "unknown" if limits.base_flop is None else f"{limits.base_flop:,} (stated)"
    return table(
        ("Figure", "Value"),
        [
            ("FLOP accepted (steps that were paid)", f"{flop.accepted:,}"),
            ("FLOP discarded (steps that were not)", f"{flop.discarded:,}"),
            ("FLOP verification (steps recomputed)", f"{flop.verification:,}"),
            ("FLOP of the base model", "none" if entry.model.base is None else base),
            ("Share of 10^23 FLOP", limits.share_of_1e23),
            ("Share of 10^25 FLOP", limits.share_of_1e25),
            ("Alerts", "; ".join(limits.alerts) or "none"),
            ("Training time", TO_BE_FILLED),
        ],
    )


def _energy(entry: Entry) -> str:
    energy = entry.energy
    return table(
        ("Item", "Entry"),
        [
            ("Estimate, not measured", f"{energy.kwh} kWh"),
            ("Method", energy.method),
            ("FLOP per joule", f"{energy.flop_per_joule:,}"),
            ("Source of that figure", energy.flop_per_joule_source),
            ("Nodes metered", f"{energy.nodes_metered} of {energy.nodes}"),
        ],
    )


def _checks(entry: Entry) -> str:
    audits, people = entry.audits, entry.participants
    return table(
        ("Item", "Entry"),
        [
            ("Operators", str(len(people.operators))),
            ("of them banned", str(sum(one.banned is not None for one in people.operators))),
            ("Verifiers", str(len(people.verifiers))),
            ("Steps drawn for recomputation", f"{audits.drawn:,}"),
            ("Faults confirmed", str(audits.rulings[AuditStatus.CONFIRMED.value])),
            (
                "Known-answer tasks found, missed",
                f"{audits.known_answers.found}, {audits.known_answers.missed}",
            ),
        ],
    )
