"""CycloneDX: ML-BOM of the model and its data.

Room: bundle (pure).

Reference:
    CycloneDX v1.6 JSON (ECMA-424), component type machine-learning-model with a model card, and type data.
"""

from __future__ import annotations

import uuid
from typing import Any

from assay.bundle.registry.document import Base, Entry

SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
SPEC_VERSION = "1.6"


def ml_bom(entry: Entry) -> dict[str, Any]:
    """The ML-BOM of a registry entry."""
    model_ref = f"urn:assay:model:{entry.model.weights.sha256}"
    sources = [_source(entry, index) for index in range(len(entry.data.sources))]
    refs = [source["bom-ref"] for source in sources]
    base = entry.model.base
    bases = [] if base is None else [_base(base)]
    below = [*refs, *(one["bom-ref"] for one in bases)]
    return {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"urn:assay:run:{entry.run.id}").urn,
        "version": 1,
        "metadata": {"component": _model(entry, model_ref, refs)},
        "components": [*sources, *bases],
        "dependencies": [{"ref": model_ref, "dependsOn": below}, *({"ref": ref} for ref in below)],
    }


def _model(entry: Entry, ref: str, datasets: list[str]) -> dict[str, Any]:
    model, licence = entry.model, entry.model.licence
    found = {
        "type": "machine-learning-model",
        "bom-ref": ref,
        "name": model.name,
        "version": entry.run.id,
        "description": model.architecture,
        "hashes": [{"alg": "SHA-256", "content": model.weights.sha256}],
        "modelCard": {
            "modelParameters": {
                "approach": {"type": "self-supervised"},
                "task": "text-generation",
                "architectureFamily": "transformer",
                "modelArchitecture": model.family,
                "datasets": [{"ref": dataset} for dataset in datasets],
                "inputs": [{"format": "text"}],
                "outputs": [{"format": "text"}],
            }
        },
        "properties": [
            {"name": f"assay:{name}", "value": str(value)} for name, value in _facts(entry).items()
        ],
    }
    return found if licence is None else {**found, "licenses": [{"license": {"name": licence}}]}


def _facts(entry: Entry) -> dict[str, object]:
    record = entry.record
    return {
        "parameters": entry.model.parameters,
        "adapter": "none" if entry.model.adapter is None else entry.model.adapter.text,
        "tokens:accepted": entry.tokens.accepted,
        "flop:accepted": entry.flop.accepted,
        "flop:discarded": entry.flop.discarded,
        "flop:verification": entry.flop.verification,
        "energy:kwh-estimated": entry.energy.kwh,
        "run": entry.run.id,
        "spec": entry.run.spec,
        "record": "none" if record is None else record.record_id.hex(),
    }


def _source(entry: Entry, index: int) -> dict[str, Any]:
    source = entry.data.sources[index]
    return {
        "type": "data",
        "bom-ref": f"urn:assay:data:{entry.data.merkle_root}:{index}",
        "name": source.source,
        "licenses": [{"license": {"name": source.licence}}],
        "data": [{"type": "dataset", "name": source.source}],
        "properties": [
            {"name": f"assay:{name}", "value": str(getattr(source, name))}
            for name in ("files", "documents", "bytes", "tokens")
        ],
    }


def _base(base: Base) -> dict[str, Any]:
    return {
        "type": "machine-learning-model",
        "bom-ref": f"urn:assay:state:{base.state.removeprefix('blake3:')}",
        "name": "imported parameters",
        "hashes": [{"alg": "BLAKE3", "content": base.state.removeprefix("blake3:")}],
    }
