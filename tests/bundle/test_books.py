"""Where the books of a run are: beside what was delivered, with the ledger service, or alone."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from assay.bundle.books import find_books, find_keepers_books, log_origin, opened, run_of, spec_of
from assay.bundle.read import local_nodes, read
from assay.ledger.invoices.figures import read_facts
from assay.ledger.settlement.payouts import UnpaidReason
from assay.participant.files.record import OWN_RECORD, Role, sign_record, write_record
from assay.participant.keys.keyring import QUICK, create_keys
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import ConfigError
from assay.protocol.identity import peer_of


@pytest.fixture
def run(recorded_run: Path, tmp_path: Path) -> Path:
    """A run's folder with both copies of the books, and neither spec."""
    for place in ("run", "run/participants/ledger"):
        (tmp_path / place).mkdir(parents=True)
        shutil.copy(recorded_run / "ledger.db", tmp_path / place)
    return tmp_path / "run"


def test_the_delivered_copy_comes_first_and_the_ledger_services_own_otherwise(run: Path) -> None:
    own = run / "participants" / "ledger"

    assert find_books(run).books == run / "ledger.db"
    assert find_keepers_books(run).books == own / "ledger.db"
    (run / "ledger.db").unlink()
    assert find_books(run).books == own / "ledger.db"
    (own / "ledger.db").unlink()
    for find in (find_books, find_keepers_books):
        with pytest.raises(ConfigError, match=r"no ledger\.db here"):
            find(run)


def test_checkpoints_are_the_ledger_services_own_where_it_has_any(run: Path) -> None:
    assert find_books(run).checkpoints == run / "checkpoints"
    (run / "participants" / "ledger" / "checkpoints").mkdir()
    assert find_books(run).checkpoints == run / "participants" / "ledger" / "checkpoints"
    assert find_books(run / "ledger.db").checkpoints == run / "checkpoints"


def test_the_books_of_a_delivered_run_are_those_that_its_index_may_list(
    run: Path, recorded_run: Path
) -> None:
    shutil.copy(recorded_run / "index.json", run)
    assert find_books(run).books == run / "ledger.db"
    (run / "ledger.db").unlink()

    with pytest.raises(ConfigError, match=r"no ledger\.db here"):
        find_books(run)
    assert find_keepers_books(run).books == run / "participants" / "ledger" / "ledger.db"


def test_a_spec_is_the_bundles_and_beside_the_books_where_there_is_no_bundle(
    run: Path, recorded_run: Path
) -> None:
    assert find_books(run).spec is None
    with pytest.raises(ConfigError, match=r"no spec\.cbor beside the books"):
        spec_of(find_books(run))
    for folder in (run, run / "bundle"):
        folder.mkdir(exist_ok=True)
        shutil.copy(recorded_run / "bundle" / "spec.cbor", folder)
        assert find_books(run).spec == folder / "spec.cbor"
        assert find_keepers_books(run / "ledger.db").spec == folder / "spec.cbor"
    spec, run_id = run_of(find_books(run))
    assert (spec.rounds, run_id) == (20, read(recorded_run).run_id)


def test_another_spec_beside_a_bundle_is_refused(run: Path, recorded_run: Path) -> None:
    (run / "bundle").mkdir()
    spec = read(recorded_run).spec
    (run / "spec.cbor").write_bytes(encode(replace(spec, verifiers=spec.verifiers[::-1])))
    assert find_books(run).spec is None  # a bundle without a spec names no run

    shutil.copy(recorded_run / "bundle" / "spec.cbor", run / "bundle")
    for find, place in (
        (find_books, run),
        (find_keepers_books, run),
        (find_keepers_books, run / "ledger.db"),
    ):
        with pytest.raises(ConfigError, match=r"spec\.cbor: differs from .*bundle/spec\.cbor"):
            find(place)
    (run / "bundle" / "spec.cbor").unlink()
    (run / "bundle").rmdir()
    assert find_books(run).spec == run / "spec.cbor"
    shutil.copy(recorded_run / "index.json", run)
    assert find_books(run).spec is None


def test_what_was_delivered_is_nobodys_own_books(recorded_run: Path) -> None:
    with pytest.raises(ConfigError, match="part of what was delivered"):
        find_keepers_books(recorded_run / "ledger.db")


def test_books_alone_know_their_name_from_their_newest_checkpoint(run: Path, recorded_run: Path) -> None:
    alone, beside = find_books(run), find_books(recorded_run)
    with opened(alone) as db:
        assert log_origin(alone, db) == log_origin(beside, db) != ""


def test_the_folders_of_nodes_are_those_whose_record_can_be_read(tmp_path: Path) -> None:
    for name in ("node-0", "node-1", "verifier-0"):
        keys = create_keys(tmp_path / "participants" / name / "keys", "secret", QUICK)
        record = sign_record(keys, Role.NODE, "127.0.0.1", 4_000, int(time.time()))
        write_record(tmp_path / "participants" / name / "keys" / OWN_RECORD, record)
        if name == "node-0":
            peer = peer_of(keys.peer)
    (tmp_path / "participants" / "node-1" / "keys" / OWN_RECORD).write_text("none")

    found = local_nodes(tmp_path)

    assert {one: place.folder.name for one, place in found.items()} == {peer: "node-0"}
    assert local_nodes(tmp_path / "nowhere") == {}


def test_a_missed_milestone_is_not_charged_and_the_invoice_says_so(recorded_run: Path) -> None:
    run = read(recorded_run)
    with opened(find_books(recorded_run)) as db:
        before, after = (read_facts(db, run.spec, run.run_id, epoch, epoch) for epoch in (0, 1))

    (missed,) = (one for one in after.not_charged if one.reason is UnpaidReason.MILESTONE)
    assert (missed.epoch, missed.part) == (1, "a share of the price")
    assert after.total == run.tables[1].total
    price = run.tables[1].tokens_paid * run.spec.money.price_per_mtoken // 10**6
    assert missed.worth == price - after.total == price * 200_000 // 10**6 > 0
    assert all(one.reason is not UnpaidReason.MILESTONE for one in before.not_charged)
