"""Check anchor: books of a recorded run are compared with what a chain says that their account anchored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from assay.bundle.books import find_books, opened
from assay.bundle.check.anchor import chain_line
from assay.ledger.journal.log_store import read_notes
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.protocol.errors import ConfigError


class AChain:
    """A chain that holds one anchor."""

    anchor: tuple[int, bytes] | None
    asked: list[tuple[str, bytes]]
    is_other = False

    def __init__(self, rpc, deployment):
        self.deployment = deployment

    def check_deployment(self):
        if self.is_other:
            raise ConfigError("wrong chain")

    def log_anchor(self, account, run_id):
        self.asked.append((account, bytes(run_id)))
        return self.anchor


@pytest.fixture
def told(recorded_run: Path) -> dict:
    return json.loads((recorded_run / "bundle" / "anchor.json").read_text())


@pytest.fixture
def chain(told: dict, monkeypatch: pytest.MonkeyPatch) -> type[AChain]:
    root = told["root"].removeprefix("0x")
    monkeypatch.setattr(AChain, "anchor", (told["size"], bytes.fromhex(root)), raising=False)
    monkeypatch.setattr(AChain, "asked", [], raising=False)
    monkeypatch.setattr("assay.chain.reader.ChainReader", AChain)
    return AChain


def test_the_anchored_root_is_one_of_the_books_by_the_account_that_gets_the_fee(recorded_run, told, chain):
    line = chain_line(recorded_run, "http://nowhere", None)

    deployment = json.loads((recorded_run / "bundle" / "deployment.json").read_text())
    account = told["ledger_service"]
    assert line.startswith(f"anchored: {told['size']} of ")
    assert line.endswith(f" by {account} on chain {deployment['chain_id']}")
    assert [one for one, _ in chain.asked] == [account]
    assert chain_line(recorded_run, "http://nowhere", "0xother").count(" by 0xother ") == 1


def test_books_that_lack_what_is_anchored_are_refused(recorded_run, told, chain, monkeypatch):
    size, root = chain.anchor
    monkeypatch.setattr(chain, "anchor", (10**6, root))
    with pytest.raises(LedgerIntegrityError, match="rolled back: 1000000 entries are anchored"):
        chain_line(recorded_run, "http://nowhere", None)
    monkeypatch.setattr(chain, "anchor", (size, bytes(32)))
    with pytest.raises(LedgerIntegrityError, match="root 0000000000000000 of"):
        chain_line(recorded_run, "http://nowhere", None)
    monkeypatch.setattr(chain, "is_other", True)
    with pytest.raises(ConfigError, match="wrong chain"):
        chain_line(recorded_run, "http://nowhere", None)


def test_an_account_that_signed_a_checkpoint_and_anchored_nothing_is_refused(
    recorded_run, chain, monkeypatch
):
    monkeypatch.setattr(chain, "anchor", None)
    with opened(find_books(recorded_run)) as db:
        newest = max(note.size for note in read_notes(db))

    with pytest.raises(LedgerIntegrityError, match=f"nothing of this run, and signed {newest} entries"):
        chain_line(recorded_run, "http://nowhere", None)


def test_books_without_a_spec_name_no_run(recorded_run, chain, tmp_path):
    shutil.copyfile(recorded_run / "ledger.db", tmp_path / "ledger.db")

    with pytest.raises(ConfigError, match=r"no spec\.cbor"):
        chain_line(tmp_path, "http://nowhere", None)
