"""Registry files: writes every file of a bundle's `registry` folder as a function of the finished run.

Room: bundle (pure).

    entry.json            what the model is made of; bundle/registry/entry.py
    record.json           its record on chain, with the signatures of a quorum
    log-checkpoint.txt    the newest checkpoint of the books that a quorum cosigned
    release.pub           the buyer's release key
    provenance.json       in-toto Statement with SLSA provenance, signed with it
    training-content-summary.md, technical-documentation.md     after the EU AI Act
    croissant.json, ml-bom.cdx.json     the data for data-set tools, the inventory for CycloneDX
"""

from __future__ import annotations

import hashlib

from assay.bundle.finished import Finished
from assay.bundle.registry.annex_xi import technical_documentation
from assay.bundle.registry.croissant import croissant
from assay.bundle.registry.cyclonedx import ml_bom
from assay.bundle.registry.document import Entry, entry_json
from assay.bundle.registry.provenance import envelope, provenance
from assay.bundle.registry.text import spelled
from assay.bundle.registry.training_summary import training_summary
from assay.protocol.encoding.json_text import plain

FOLDER = "registry"
ENTRY, RECORD, CHECKPOINT = "entry.json", "record.json", "log-checkpoint.txt"
PROVENANCE, RELEASE = "provenance.json", "release.pub"


def registry_files(run: Finished, entry: Entry) -> dict[str, bytes]:
    """The files' contents by name, of a run and its entry."""
    text = entry_json(entry)
    files = {
        ENTRY: text,
        RELEASE: run.release.public_key,
        PROVENANCE: envelope(provenance(run, entry, hashlib.sha256(text).digest()), run.release),
        "training-content-summary.md": training_summary(entry).encode(),
        "technical-documentation.md": technical_documentation(entry).encode(),
        "croissant.json": spelled(croissant(entry)),
        "ml-bom.cdx.json": spelled(ml_bom(entry)),
    }
    if run.registered is not None:
        one = run.registered  # the fields of `CertifiedRecord`, the id first
        record = {"record_id": one.record_id.hex(), **plain(one.record), "certificate": one.certificate.hex()}
        files[RECORD] = spelled(record)
    if run.log_point is not None:
        files[CHECKPOINT] = run.log_point.note.encode()
    return files
