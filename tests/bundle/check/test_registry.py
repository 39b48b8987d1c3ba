"""What of a registry somebody signed: each signature is checked, and what is wrong is named by its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.bundle.check.registry import RegistryClaims, read_registry_claims
from assay.bundle.finished import Finished, LogPoint
from assay.bundle.read import Delivered
from assay.bundle.registry.log_point import read_point
from assay.bundle.release import BadReleaseError
from assay.bundle.write import write_bundle
from assay.chain.statements import certificate, sign_digest
from assay.participant.files.index import IntegrityError
from assay.protocol.types import PeerId
from assay.testing.members import RUN_ID, a_digest, a_hot_key
from assay.testing.signed import VERIFIERS, a_history
from tests.bundle.test_write import finished
from tests.observer.buyer.test_registrar import LEDGER_SERVICE, a_note

pytestmark = pytest.mark.slow

LEDGER_SERVICE_PEER = PeerId(bytes(LEDGER_SERVICE.verify_key))


def a_point() -> LogPoint:
    note = a_note(5, *VERIFIERS[:3]).decode()
    return read_point(note, RUN_ID, LEDGER_SERVICE_PEER, finished().spec.verifier_peers)


def a_run() -> Finished:
    return replace(finished(), log_point=a_point())


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    write_bundle(tmp_path / "bundle", a_run())
    return tmp_path / "bundle"


def told(bundle: Path) -> RegistryClaims:
    run = finished()
    delivered = Delivered(
        root=bundle.parent,
        bundle=bundle,
        spec=run.spec,
        run_id=run.run_id,
        deployment=run.deployment,
        links=run.links,
        run_states=(a_history(),),
        tables={},
        settled=run.settled,
        sizes={},
        report=None,
    )
    return read_registry_claims(delivered, run.inputs)


def edit(bundle: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    path = bundle / "registry" / name
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_what_was_delivered_is_read_back_whole(bundle: Path) -> None:
    found, run = told(bundle), a_run()

    assert (found.registered, found.declarations, found.log_point) == (
        run.registered,
        run.declarations,
        run.log_point,
    )
    assert found.release.public_key == run.release.public_key
    with pytest.raises(BadReleaseError):
        found.release.sign(b"anything else")


def test_a_bundle_without_a_record_is_one_of_a_model_that_is_not_on_record(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", replace(finished(), registered=None))

    assert told(tmp_path / "bundle").registered is None
    assert told(tmp_path / "bundle").log_point is None


def test_a_record_needs_a_quorum_of_hot_keys(bundle: Path) -> None:
    registered = finished().registered
    assert registered is not None

    def signed_by(*names: str) -> str:
        signatures = [sign_digest(registered.record_id, a_hot_key(name)) for name in names]
        return certificate(registered.record_id, signatures).hex()

    edit(bundle, "record.json", lambda record: record.update(certificate=signed_by(*VERIFIERS[:3])))
    assert told(bundle).registered is not None
    for names in (VERIFIERS[:2], (*VERIFIERS[:2], "mallory"), ()):
        edit(bundle, "record.json", lambda record, names=names: record.update(certificate=signed_by(*names)))
        with pytest.raises(IntegrityError, match=r"^bundle/registry/record\.json: "):
            told(bundle)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(parent=a_digest("another").hex()),
        lambda record: record.update(parent="00"),
        lambda record: record.update(parent="zz"),
        lambda record: record.update(parent=7),
        lambda record: record.pop("certificate"),
    ],
)
def test_a_record_of_another_form_or_parent_is_refused(
    bundle: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    edit(bundle, "record.json", change)

    with pytest.raises(IntegrityError, match=r"^bundle/registry/record\.json: "):
        told(bundle)


@pytest.mark.parametrize(
    "note",
    [
        a_note(5, *VERIFIERS[:2]),
        a_note(5, *VERIFIERS[:3]).replace(b"\n5\n", b"\n6\n"),
        b"\xff",
        b"",
    ],
)
def test_a_checkpoint_needs_the_keeper_and_a_quorum_of_verifiers(bundle: Path, note: bytes) -> None:
    (bundle / "registry" / "log-checkpoint.txt").write_bytes(note)

    with pytest.raises(IntegrityError, match=r"^bundle/registry/log-checkpoint\.txt: "):
        told(bundle)


@pytest.mark.parametrize(
    ("name", "blamed"),
    [
        ("entry.json", "entry.json"),
        ("provenance.json", "provenance.json"),
        ("release.pub", "release.pub"),
        ("log-checkpoint.txt", "log-checkpoint.txt"),
    ],
)
def test_a_missing_file_is_named(bundle: Path, name: str, blamed: str) -> None:
    (bundle / "registry" / name).unlink()

    with pytest.raises(IntegrityError, match=f"^bundle/registry/{blamed}: No such file"):
        told(bundle)


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.pop("declared"),
        lambda entry: entry["declared"].update(flop_per_joule=0),
        lambda entry: entry["declared"].update(more=1),
        lambda entry: entry.pop("log"),
        lambda entry: entry["log"].update(ledger_service="zz"),
    ],
)
def test_an_entry_whose_statements_are_none_is_refused(
    bundle: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    edit(bundle, "entry.json", change)

    with pytest.raises(IntegrityError, match=r"^bundle/registry/entry\.json: "):
        told(bundle)
