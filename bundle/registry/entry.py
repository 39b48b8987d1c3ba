"""Entry: the registry entry of a delivered model: data, work, energy, people, audits, money.

Room: bundle (pure). Everything follows from the spec, the certified chain, the data's manifest and the
settlements, or is copied from the buyer's declarations (`declarations`), so every holder of the bundle
computes the same bytes; bundle/registry/document.py writes and reads them.

Work has three figures, by one formula (training/model/flops.py):
    accepted      steps that were paid
    discarded     unpaid steps: faulty, unopened, known-answer. They are in the aggregates like the others
    verification  recomputed segments of all audits, replicated audits and disputes included
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from decimal import Context, Decimal

from assay.bundle.finished import Anchored, Energy, Finished, LogPoint, Registered
from assay.bundle.registry.document import (
    Adapter,
    Attestation,
    Audits,
    Base,
    Checkpoint,
    CheckpointAnchor,
    DeploymentId,
    Entry,
    Flop,
    KnownAnswers,
    ListedData,
    Modalities,
    Model,
    NamedRecord,
    Payments,
    SettledEpoch,
    Thresholds,
    Tokens,
    TrainingRun,
    Weights,
)
from assay.bundle.registry.people import people
from assay.chain.commit_statement import evm_address
from assay.ledger.journal.round_facts import RoundFacts
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import AttendanceKind, Discount, Outcome
from assay.protocol.params import ModelSpec, RunSpec
from assay.protocol.types import NO_DIGEST
from assay.training.data.inventory import inventory
from assay.training.layout import layout_of
from assay.training.model.flops import (
    FORMULA,
    NO_SAMPLING,
    REFERENCES,
    WORDS,
    flop_per_token,
    weights_per_token,
)

# Commission guidelines of July 2025: from here on a model that generates language is taken for GPAI.
INDICATIVE_FLOP = 10**23
SYSTEMIC_FLOP = 10**25  # Regulation (EU) 2024/1689, Art. 51(2): systemic risk is presumed
ALERTS_PERCENT = (50, 90)
JOULES_PER_KWH = 3_600_000


def registry_entry(run: Finished, facts: Sequence[RoundFacts], weights: bytes, adapter: bytes = b"") -> Entry:
    """The entry of a finished run.

    Args:
        run: The run.
        facts: Of its whole chain.
        weights: SHA-256 of the delivered file of weights.
        adapter: Of an adapter's, if one was trained.
    """
    spec = run.spec
    data = inventory(spec.data, run.inputs.manifest)
    tokens, flop = _work(run, facts)
    return Entry(
        model=_model(run, weights, adapter),
        run=_run(run, facts),
        data=ListedData(**{**asdict(data), "sources": data.sources}, digest=f"sha256:{data.sha256().hex()}"),
        tokens=tokens,
        flop=flop,
        energy=_energy(run, flop),
        participants=people(run, facts),
        attestation=_attestation(run),
        audits=_audits(run, facts),
        settlement=_settlement(run),
        log=_log(run.log_point),
        log_anchor=_anchor(run.anchor),
        record=None if run.registered is None else _record(run.registered),
        thresholds=_thresholds(run, flop),
        declared=run.declarations,
    )


def _model(run: Finished, weights: bytes, adapter: bytes) -> Model:
    model = run.spec.model
    is_drawn = model.base == NO_DIGEST
    base = Base(state=f"blake3:{model.base.hex()}", flop=run.declarations.base_flop)
    return Model(
        id=f"blake3:{run.state.hex()}",
        name=run.spec.name,
        weights=Weights(file="model/model.safetensors", sha256=weights.hex()),
        architecture=architecture(model),
        family=model.family.name.lower(),
        parameters=layout_of(model.whole).parameters,
        modalities=Modalities(input=("text",), output=("text",)),
        context_tokens=model.context,
        licence=run.declarations.licence or None,
        base=None if is_drawn else base,
        adapter=_adapter(model, adapter) if model.is_adapted else None,
        started_from=f"seed {run.spec.seed}" if is_drawn else f"imported parameters{in_bits(model)}",
    )


def in_bits(model: ModelSpec) -> str:
    """How the matrices of an adapter's base are held, to be read behind the base; empty for float32."""
    bits = model.adapter.base_bits
    return f", the layers' matrices rounded to {bits} bits" if bits else ""


def _adapter(model: ModelSpec, weights: bytes) -> Adapter:
    return Adapter(
        weights=Weights(file="adapter/adapter_model.safetensors", sha256=weights.hex()),
        rank=model.adapter.rank,
        alpha=model.adapter.alpha,
        targets=tuple(one.name.lower() for one in model.adapter.targets),
        parameters=layout_of(model).parameters,
    )


def architecture(model: ModelSpec) -> str:
    """The model's architecture in one line."""
    return (
        f"decoder-only transformer ({model.family.name.lower()}), {model.layers} layers of {model.width}, "
        f"{model.heads} heads ({model.kv_heads} keys and values), MLP of {model.hidden}, "
        f"vocabulary {model.vocabulary}"
    )


def _run(run: Finished, facts: Sequence[RoundFacts]) -> TrainingRun:
    return TrainingRun(
        id=run.run_id.hex(),
        spec=digest(run.spec).hex(),
        deployment=DeploymentId(
            id=run.deployment.deployment_id.hex(),
            chain_id=run.deployment.chain_id,
            registry=run.deployment.model_registry,
        ),
        buyer=evm_address(run.spec.buyer),
        rounds=run.ending.rounds,
        rounds_ordered=run.spec.rounds,
        closed_by=run.ending.closed_by,
        precision=run.spec.compute.dtype.name.lower(),
        seed=run.spec.seed,
        code_version=run.declarations.version or None,
        execution_classes=Counter(commit.exec_class.hex() for one in facts for commit in one.commits),
    )


# ---- work


def _work(run: Finished, facts: Sequence[RoundFacts]) -> tuple[Tokens, Flop]:
    spec, unit = run.spec, flop_per_token(run.spec.model)
    unpaid = {
        (step.round, step.node): step.reason for one in run.settled.values() for step in one.settlement.unpaid
    }
    accepted = discarded = 0
    reasons: Counter[str] = Counter()
    for one in facts:
        for commit in one.commits:
            reason = unpaid.get((int(commit.round), commit.node))
            if reason is None:
                accepted += commit.tokens
            else:
                discarded += commit.tokens
                reasons[reason.value] += 1
    recomputed = sum(
        _segment_tokens(spec, audit)
        for one in facts
        for audit in one.ruled
        for verdict in audit.verdicts
        if verdict.exec_class != NO_DIGEST  # zero where nothing was recomputed
    )
    training_tokens = spec.data.tokens - spec.data.validation_tokens
    tokens = Tokens(
        processed=accepted + discarded,
        accepted=accepted,
        discarded=discarded,
        discarded_steps_by_reason=reasons,
        recomputed_by_verifiers=recomputed,
        in_training_data=training_tokens,
        epochs_over_data_milli=(accepted + discarded) * 1000 // training_tokens,
    )
    return tokens, Flop(
        accepted=accepted * unit,
        discarded=discarded * unit,
        verification=recomputed * unit,
        per_token=unit,
        weights_per_token=weights_per_token(spec.model),
        formula=FORMULA,
        method=WORDS + (NO_SAMPLING if spec.compute.is_grpo else ""),
        references=REFERENCES,
    )


def _segment_tokens(spec: RunSpec, audit: Audit) -> int:
    """Tokens that one auditor of this step recomputed: of one segment, the last of which may be shorter."""
    local = spec.rule.local
    done = audit.segment * local.segment
    steps = min(local.segment, local.steps - done) if local.segment else local.steps
    return audit.commit.tokens * steps // local.steps


def _energy(run: Finished, flop: Flop) -> Energy:
    joules = -(-(flop.trained + flop.verification) // run.declarations.flop_per_joule)
    return Energy(
        joules=joules,
        kwh=_three_digits(Decimal(joules) / JOULES_PER_KWH),
        flop_per_joule=run.declarations.flop_per_joule,
        flop_per_joule_source=run.declarations.flop_source,
        nodes=len(run.nodes),
    )


def _thresholds(run: Finished, flop: Flop) -> Thresholds:
    is_imported = run.spec.model.base != NO_DIGEST
    base = run.declarations.base_flop
    total = flop.trained + (base or 0)
    alerts = (
        f"{percent} % of {name} reached"
        for name, bound in (("10^23 FLOP", INDICATIVE_FLOP), ("10^25 FLOP", SYSTEMIC_FLOP))
        for percent in ALERTS_PERCENT
        if total * 100 >= percent * bound
    )
    return Thresholds(
        training_flop=flop.trained,
        base_flop=base,
        base_is_known=not is_imported or base is not None,
        total_flop=total,
        is_lower_bound=is_imported and base is None,
        share_of_1e23=_three_digits(Decimal(total) / INDICATIVE_FLOP),
        share_of_1e25=_three_digits(Decimal(total) / SYSTEMIC_FLOP),
        # Commission guidelines of July 2025: who changes a model with a third of its compute provides it.
        exceeds_a_third_of_base=flop.trained * 3 > base if is_imported and base is not None else None,
        alerts=tuple(alerts),
    )


def _three_digits(value: Decimal) -> str:
    return format(value.normalize(Context(prec=3)), ".2E") if value else "0"


# ---- evidence


def _attestation(run: Finished) -> Attestation:
    appraisals = [signed.appraised for link in run.links for signed in link.manifest.appraised]
    return Attestation(
        policy=None if run.spec.audit.attestation == NO_DIGEST else run.spec.audit.attestation.hex(),
        words=len(appraisals),
        by_discount=Counter(Discount(appraisal.discount).name.lower() for appraisal in appraisals),
        nodes_appraised=len({appraisal.node for appraisal in appraisals}),
    )


def _audits(run: Finished, facts: Sequence[RoundFacts]) -> Audits:
    said = (one.attendance for link in run.links for one in link.manifest.attendance)
    lists = sum(one.kind is AttendanceKind.TASKS for one in said)
    ruled = [audit for one in facts for audit in one.ruled]
    rulings = Counter(audit.ruling for audit in ruled)
    outcomes = Counter(verdict.outcome for audit in ruled for verdict in audit.verdicts)
    passed = (AuditStatus.PASSED, AuditStatus.DISMISSED)
    return Audits(
        drawn=sum(len(one.drawn) for one in facts),
        verdicts={
            "matched": outcomes[Outcome.MATCH],
            "mismatched": outcomes[Outcome.MISMATCH],
            "withheld": outcomes[Outcome.WITHHELD],
            "inconclusive": outcomes[Outcome.INCONCLUSIVE],
            "borderline": outcomes[Outcome.BORDERLINE],
        },
        rulings={
            ruling.value: rulings[ruling]
            for ruling in AuditStatus
            if ruling not in (AuditStatus.OPEN, AuditStatus.DISPUTED, AuditStatus.OVERDUE)
        },
        known_answers=KnownAnswers(
            ordered=run.spec.audit.known_answer_count * lists,
            found=rulings[AuditStatus.KNOWN_ANSWER],
            missed=sum(audit.is_known_answer and audit.ruling in passed for audit in ruled),
        ),
        verifiers_at_fault=len({fault.verdict.verifier for audit in ruled for fault in audit.faults}),
    )


def _settlement(run: Finished) -> Payments:
    tables = sorted(run.settled.items())
    return Payments(
        epochs=tuple(
            SettledEpoch(
                epoch=epoch,
                root=one.result.root.hex(),
                table_hash=one.result.table_hash.hex(),
                total=one.result.total,
                result=one.digest.hex(),
            )
            for epoch, one in tables
        ),
        paid={
            role: sum(one.settlement.paid(role) for _, one in tables)
            for role in ("operator", "verifier", "fee")
        },
    )


def _log(point: LogPoint | None) -> Checkpoint | None:
    if point is None:
        return None
    return Checkpoint(
        size=point.size,
        root=point.root.hex(),
        ledger_service=point.ledger_service.hex(),
        cosigners=tuple(peer.hex() for peer in point.cosigners),
        note=f"sha256:{hashlib.sha256(point.note.encode()).hexdigest()}",
    )


def _anchor(anchor: Anchored | None) -> CheckpointAnchor | None:
    if anchor is None:
        return None
    return CheckpointAnchor(
        ledger_service=anchor.ledger_service,
        size=anchor.size,
        root=anchor.root.hex(),
        tx=anchor.tx_hash.hex(),
    )


def _record(registered: Registered) -> NamedRecord:
    return NamedRecord(record_id=registered.record_id, **asdict(registered.record))
