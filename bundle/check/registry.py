"""Check registry: verifies the signed parts of a bundle's registry folder.

Room: bundle (edge: reads a folder). The record needs signatures of a quorum of hot keys, the checkpoint those
of the ledger service and of a quorum of verifiers, the provenance that of the release key, which the buyer's
index covers. Everything else in the folder follows from the run, and `bundle/verify.py` recomputes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from assay.bundle.finished import LogPoint, Registered, Release
from assay.bundle.inputs import RunInputs
from assay.bundle.read import Delivered
from assay.bundle.registry.document import CertifiedRecord, read_entry
from assay.bundle.registry.files import CHECKPOINT, ENTRY, FOLDER, PROVENANCE, RECORD, RELEASE
from assay.bundle.registry.log_point import read_point
from assay.bundle.registry.provenance import signature_in
from assay.bundle.release import signed_already
from assay.chain.commit_statement import evm_address
from assay.chain.statements import BadSignatureError, verify_certificate
from assay.ledger.log.note import BadNoteError
from assay.ledger.settlement.results import model_record
from assay.participant.declarations import Declarations
from assay.participant.files.index import IntegrityError
from assay.protocol.encoding.json_text import parse_json, read_plain
from assay.protocol.errors import AssayError
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from assay.training.data.inventory import inventory

FILE_BYTES_MAX = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryClaims:
    """The parts of a registry folder that do not follow from the run."""

    registered: Registered | None
    declarations: Declarations
    log_point: LogPoint | None
    release: Release


def read_registry_claims(delivered: Delivered, inputs: RunInputs) -> RegistryClaims:
    """Everything in the folder that somebody signed or declared, checked.

    Args:
        delivered: The run.
        inputs: Checked against its spec.

    Raises:
        IntegrityError: the first invalid part; the message begins with the file's name.
    """
    bundle = delivered.bundle
    try:
        entry = read_entry(_read(bundle, ENTRY))
        ledger_service = None if entry.log is None else PeerId(bytes.fromhex(entry.log.ledger_service))
    except ValueError as error:
        raise _altered(ENTRY, error) from None
    return RegistryClaims(
        registered=_registered(delivered, inputs),
        declarations=entry.declared,
        log_point=_log_point(delivered, ledger_service),
        release=_release(bundle),
    )


def _registered(delivered: Delivered, inputs: RunInputs) -> Registered | None:
    bundle, spec = delivered.bundle, delivered.spec
    if not (bundle / FOLDER / RECORD).is_file():
        return None
    last = delivered.settled[delivered.calendar.epochs - 1]
    try:
        given = read_plain(CertifiedRecord, parse_json(_read(bundle, RECORD)))
        parent = Digest(given.parent)
        if len(parent) != len(NO_DIGEST):
            raise ValueError(f"parent: {len(parent)} bytes, expected {len(NO_DIGEST)}")
        trained_on = inventory(spec.data, inputs.manifest).sha256()
        record = model_record(spec, delivered.calendar, last.result, Digest(last.digest), trained_on, parent)
        record_id = delivered.deployment.digest(record)
        verify_certificate(record_id, given.certificate, [evm_address(member.hot) for member in spec.judges])
    except (ValueError, BadSignatureError, AssayError) as error:
        raise _altered(RECORD, error) from None
    return Registered(record=record, record_id=record_id, certificate=given.certificate)


def _log_point(delivered: Delivered, ledger_service: PeerId | None) -> LogPoint | None:
    if ledger_service is None:
        return None
    try:
        note = _read(delivered.bundle, CHECKPOINT).decode()
        return read_point(note, delivered.run_id, ledger_service, delivered.spec.seat_peers)
    except (UnicodeDecodeError, BadNoteError) as error:
        raise _altered(CHECKPOINT, error) from None


def _release(bundle: Path) -> Release:
    try:
        return signed_already(_read(bundle, RELEASE), signature_in(_read(bundle, PROVENANCE)))
    except ValueError as error:
        raise _altered(PROVENANCE, error) from None


def _read(bundle: Path, name: str) -> bytes:
    path = bundle / FOLDER / name
    try:
        with open(path, "rb") as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _altered(name, error.strerror) from None
    if len(body) > FILE_BYTES_MAX:
        raise _altered(name, f"more than {FILE_BYTES_MAX} bytes")
    return body


def _altered(name: str, why: object) -> IntegrityError:
    return IntegrityError(f"bundle/{FOLDER}/{name}: {why}")
