"""A delivered run that was recorded once verifies today, with the same chain digests and payouts.

`python -m tests.test_golden_run RUN` records another run's folder, after a change of messages or rules that
changes these bytes on purpose. It has no openings in it, which are ten times as much: they are removed first,
and `write_index` signs the rest.
"""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from assay.bundle.finished import Anchored
from assay.bundle.read import read
from assay.bundle.receipts.rounds import RoundReceipt
from assay.bundle.registry.document import CertifiedRecord, entry_json, read_entry
from assay.bundle.settlement_file import SettlementFile
from assay.bundle.verify import report_lines, verify
from assay.chain.addresses import Deployment
from assay.chain.proofs.event_proof import EventProof
from assay.cli.audit.receipt import ProvedRound, verify_receipt
from assay.devnet.summary import read_summary, summary_json
from assay.participant.files.index import IntegrityError
from assay.protocol.encoding.json_text import plain, read_plain

VECTORS = Path(__file__).parent / "vectors"
ARCHIVE, EXPECTED = VECTORS / "golden_run.tar.xz", VECTORS / "golden_run.json"


@pytest.fixture
def golden_run(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def figures_of(run: Path) -> dict[str, Any]:
    """What must not change: the fold's digest after every round, and who is paid what for every epoch."""
    delivered = read(run)
    return {
        "run_id": delivered.run_id.hex(),
        "chain": [run_state.chain.hex() for run_state in delivered.run_states],
        "payouts": {
            str(epoch): {
                "root": table.tree().root.hex(),
                "table_hash": table.table_hash.hex(),
                "rows": [[row.role, row.peer.hex(), row.amount] for row in table.rows],
            }
            for epoch, table in delivered.tables.items()
        },
    }


def test_the_recorded_run_has_the_recorded_digests_and_payouts(golden_run: Path) -> None:
    assert figures_of(golden_run) == json.loads(EXPECTED.read_text())


def test_the_recorded_run_verifies(golden_run: Path) -> None:
    lines = list(report_lines(verify(read(golden_run))))

    assert any(line.startswith("bundle: written again") for line in lines)


def test_the_recorded_summary_is_read_and_written_byte_for_byte(golden_run: Path) -> None:
    text = (golden_run / "summary.json").read_text()

    assert summary_json(read_summary(text)) + "\n" == text


def test_the_recorded_registry_entry_is_read_and_written_byte_for_byte(golden_run: Path) -> None:
    body = (golden_run / "bundle" / "registry" / "entry.json").read_bytes()

    assert entry_json(read_entry(body)) == body


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ("receipts/*.json", RoundReceipt),
        ("settlements/*.json", SettlementFile),
        ("anchors/*.json", EventProof),
        ("anchor.json", Anchored),
        ("deployment.json", Deployment),
        ("registry/record.json", CertifiedRecord),
    ],
)
def test_the_recorded_documents_are_read_whole(golden_run: Path, names: str, kind: type) -> None:
    paths = list((golden_run / "bundle").glob(names))
    documents = [json.loads(path.read_bytes()) for path in paths]

    assert documents
    assert [plain(read_plain(kind, one)) for one in documents] == documents


def test_a_recorded_round_receipt_is_compared_with_the_chain(golden_run: Path) -> None:
    path = golden_run / "bundle" / "receipts" / "round-000002.json"
    receipt = json.loads(path.read_bytes())
    proved = verify_receipt(path, None, ())
    assert isinstance(proved, ProvedRound) and proved.contributions == len(receipt["contributions"])

    for changes, words in (
        ({"aggregate": "00" * 32}, "differs from the certified chain"),
        ({"round": 99}, "its round is not in this run"),
        ({"signers": 4}, "signers: 4, expected a list"),
    ):
        path.write_text(json.dumps({**receipt, **changes}))
        with pytest.raises(IntegrityError, match=f"^round-000002.json: {words}"):
            verify_receipt(path, None, ())


def test_one_flipped_bit_of_the_recorded_run_is_named(golden_run: Path) -> None:
    link = golden_run / "bundle" / "links" / "000003.cbor"
    data = bytearray(link.read_bytes())
    data[len(data) // 2] ^= 1
    link.write_bytes(bytes(data))

    with pytest.raises(IntegrityError, match="links/000003"):
        verify(read(golden_run))


if __name__ == "__main__":
    run = Path(sys.argv[1])
    with tarfile.open(ARCHIVE, "w:xz") as archive:
        for name in sorted(path.name for path in run.iterdir() if path.name != "participants"):
            archive.add(run / name, arcname=name)
    EXPECTED.write_text(json.dumps(figures_of(run), indent=1) + "\n")
