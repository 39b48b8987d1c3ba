"""Ledger commands: what a stranger sees of a run's books, and that no altered byte is shown as good."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from nacl.signing import SigningKey

from assay.bundle import books, read
from assay.bundle.check import anchor as check_anchor
from assay.bundle.finished import Anchored, Settled
from assay.bundle.write import write_bundle
from assay.chain import reader
from assay.chain.commit_statement import evm_address
from assay.chain.events import ResultFinalized, ResultProposed
from assay.chain.statements import certificate, sign_digest
from assay.cli.main import run
from assay.ledger.accounts import ESCROW, gift
from assay.ledger.books import Entry, Posting
from assay.ledger.journal.database import open_engine, open_engine_to_read, reading, writing
from assay.ledger.journal.log_store import read_root
from assay.ledger.journal.store import BookStore
from assay.ledger.journal.writer import write_entries
from assay.ledger.log.cosignature import cosign
from assay.ledger.log.note import Checkpoint, origin_of, read_checkpoint, verifier_key
from assay.ledger.log.signer import CheckpointSigner
from assay.ledger.merkle_log import leaf_hash, verify_inclusion
from assay.ledger.settlement.results import epoch_result
from assay.participant.files.index import IntegrityError
from assay.protocol.identity import peer_of
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.members import RUN_ID, a_digest, a_hot_key, a_peer_key, peer
from assay.testing.signed import STATE, VERIFIERS
from tests.bundle.test_write import DEPLOYMENT, SPEC, finished
from tests.ledger.a_database import edit
from tests.observer.ledger_service.test_bookkeeper import LINKS, TABLES, Blocks, Rig, a_whole_stream

pytestmark = pytest.mark.slow

KEY = SigningKey(b"k" * 32)
NAMED = verifier_key(origin_of(RUN_ID), bytes(KEY.verify_key))
Assay = Callable[..., tuple[int, str, str]]


def settled() -> dict[int, Settled]:
    found, previous = {}, NO_DIGEST
    for epoch, table in TABLES.items():
        result = epoch_result(SPEC, table, STATE, previous, 1)
        previous = Digest(DEPLOYMENT.digest(result))
        signed = certificate(previous, [sign_digest(previous, a_hot_key(name)) for name in VERIFIERS])
        found[epoch] = Settled(settlement=table, result=result, digest=previous, certificate=signed)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run's folder: bundle, books, checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "paper"
    ledger_service = folder / "participants" / "ledger"
    ledger_service.mkdir(parents=True)
    results = settled()
    write_bundle(folder / "bundle", replace(finished(), settled=results))
    shutil.copy(folder / "bundle" / "spec.cbor", folder / "spec.cbor")
    stream = a_whole_stream()
    stream.events = [
        replace(event, digest=results[event.epoch].digest, model_hash=STATE)
        if isinstance(event, ResultProposed)
        else replace(event, digest=results[event.epoch].digest)
        if isinstance(event, ResultFinalized)
        else event
        for event in stream.events
    ]
    rig = Rig(ledger_service)
    rig.ledger_service.book_rounds(LINKS, TABLES)
    rig.ledger_service.book_blocks(Blocks().tell(stream), TABLES)
    CheckpointSigner(rig.books, KEY, ledger_service / "checkpoints").sign_last()
    rig.books.close()
    shutil.copy(ledger_service / "ledger.db", folder / "ledger.db")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(made, tmp_path / "paper"))


@pytest.fixture
def assay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Assay:
    """The command line: exit status, standard output, standard error."""
    for module in (
        books,
        read,
    ):  # the builders' run has a name of its own
        monkeypatch.setattr(module, "run_id_of", lambda _: RUN_ID)

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            run()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def journal(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "ledger.db")) as db:
        return [number for (number,) in db.execute("SELECT id FROM journal_entry")]


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- what is there


def test_every_command_leaves_every_file_as_it_is(assay: Assay, made: Path):
    before = content(made)
    node = SPEC.nodes[0].peer.hex()
    for words in (
        ["ledger", "balance", made],
        ["ledger", "entries", made],
        ["ledger", "entries", made, "--account", "payable:operator"],
        ["ledger", "export", made, "--csv"],
        ["ledger", "export", made, "--beancount"],
        ["ledger", "export", made, "--hledger"],
        ["ledger", "prove", made, 1],
        ["ledger", "audit", made],
        ["ledger", "audit", made / "ledger.db"],
        ["ledger", "settle", "--check", f"{made}:0"],
        ["ledger", "settle", "--check", f"{made}:1"],
        ["earnings", made, "--node", node],
        ["earnings", made, "--node", node, "--why", 0],
    ):
        code, out, err = assay(*words)
        assert (code, err) == (0, ""), words
        assert out
    assert content(made) == before


def cosign_all(folder: Path, names: Iterable[str]) -> None:
    """As if these verifiers had cosigned the newest checkpoint; in the keeper's books."""
    ledger_service = folder / "participants" / "ledger"
    books = BookStore(ledger_service / "ledger.db", RUN_ID)
    log = CheckpointSigner(books, KEY, ledger_service / "checkpoints")
    note = log.newest()
    assert note is not None
    checkpoint = read_checkpoint(note.text, log.origin, note.signer)
    for name in names:
        key = a_peer_key(name)
        log.add_cosignature(checkpoint.size, peer_of(key), cosign(checkpoint, key, 1_700_000_000))
    books.close()
    shutil.copy(ledger_service / "ledger.db", folder / "ledger.db")


def test_a_quorum_of_cosignatures_is_told_and_required_only_when_asked_for(assay: Assay, folder: Path):
    code, out, _ = assay("ledger", "audit", folder)
    assert (code, "cosigned by 0 of 4 verifiers; a quorum is 3" in out) == (0, True)
    code, _, err = assay("ledger", "audit", folder, "--witnessed")
    assert (code, "cosigned by 0 of 4 verifiers, 3 expected" in err) == (1, True)

    cosign_all(folder, VERIFIERS[:2])
    assert assay("ledger", "audit", folder, "--witnessed")[0] == 1
    cosign_all(folder, VERIFIERS[2:3])
    code, out, err = assay("ledger", "audit", folder, "--witnessed")
    assert (code, err) == (0, "")
    assert "cosigned by 3 of 4 verifiers, a quorum by 2023-11-14 22:13:20 UTC" in out
    code, _, err = assay("ledger", "audit", folder / "ledger.db", "--witnessed")
    assert (code, "no spec.cbor" in err) == (2, True)  # who the verifiers are is not known there


def test_a_forged_cosignature_is_an_error_and_a_strangers_counts_nothing(assay: Assay, folder: Path):
    cosign_all(folder, [*VERIFIERS[:2], "a stranger"])
    assert "cosigned by 2 of 4" in assay("ledger", "audit", folder)[1]

    edit(folder / "ledger.db", "UPDATE cosignature SET line = replace(line, '— assay', '- assay')")
    code, _, err = assay("ledger", "audit", folder)
    assert (code, "not a signature line" in err) == (1, True)


def test_a_cosignature_of_another_checkpoint_is_an_error(assay: Assay, folder: Path):
    cosign_all(folder, VERIFIERS[:1])
    other = cosign(Checkpoint(origin=origin_of(RUN_ID), size=1, root=bytes(32)), a_peer_key(VERIFIERS[0]), 1)
    edit(folder / "ledger.db", f"UPDATE cosignature SET line = '{other.text()}'")

    code, _, err = assay("ledger", "audit", folder)
    assert (code, "does not cover the checkpoint" in err) == (1, True)


# ---- what is on chain


class Contract:
    """An endpoint that has one anchor, and was asked whose."""

    anchor: tuple[int, bytes] | None = None
    asked: ClassVar[list[tuple[str, bytes]]] = []

    def __init__(self, url: str, deployment: object) -> None:
        assert (url, deployment) == ("http://chain", DEPLOYMENT)

    def check_deployment(self) -> None:
        """This is the chain."""

    def log_anchor(self, ledger_service: str, run_id: bytes) -> tuple[int, bytes] | None:
        self.asked.append((ledger_service, run_id))
        return self.anchor


@pytest.fixture
def contract(monkeypatch: pytest.MonkeyPatch) -> type[Contract]:
    monkeypatch.setattr(check_anchor, "run_id_of", lambda _: RUN_ID)
    monkeypatch.setattr(reader, "ChainReader", Contract)
    monkeypatch.setattr(Contract, "asked", [])
    return Contract


def root_at(folder: Path, size: int) -> bytes:
    with reading(open_engine_to_read(folder / "ledger.db")) as db:
        return read_root(db, size)


def test_the_audit_compares_with_the_anchor_of_whom_the_fee_goes_to(
    assay: Assay, folder: Path, contract: type[Contract]
):
    shutil.copy(folder / "bundle" / "deployment.json", folder / "deployment.json")
    asked = ("ledger", "audit", folder, "--rpc", "http://chain")
    newest = len(list(journal(folder)))

    code, _, err = assay(*asked)
    assert (code, "anchored nothing of this run" in err) == (1, True)
    for size in (1, 5, newest):
        contract.anchor = (size, root_at(folder, size))
        code, out, err = assay(*asked)
        assert (code, err, f"anchored: {size} of {newest} entries" in out) == (0, "", True)
    for anchor, words in (
        (
            (newest + 1, bytes(32)),
            f"the books were rolled back: {newest + 1} entries are anchored, {newest} are here",
        ),
        ((5, bytes(32)), "root 0000000000000000 of 5 entries is anchored"),
    ):
        contract.anchor = anchor
        code, _, err = assay(*asked)
        assert (code, words in err) == (1, True), err
    contract.anchor = (1, root_at(folder, 1))
    assert assay(*asked, "--ledger-service", "0x" + "2" * 40)[0] == 0
    treasury = evm_address(SPEC.money.treasury)
    assert set(contract.asked) == {(treasury, RUN_ID), ("0x" + "2" * 40, RUN_ID)}


def test_the_delivered_books_are_held_against_the_anchor_in_the_bundle(folder: Path, assay: Assay):
    anchor = Anchored(
        ledger_service="0x" + "1" * 40, size=5, root=root_at(folder, 5), block_number=9,
        block_hash=b"b" * 32, tx_hash=b"t" * 32,
    )  # fmt: skip
    assert assay is not None
    assert check_anchor.check_books(folder, None, anchor).startswith("5 of")

    for wrong, words in ((replace(anchor, size=4), "is anchored"), (replace(anchor, size=99), "rolled back")):
        with pytest.raises(IntegrityError, match=words):
            check_anchor.check_books(folder, None, wrong)
    first = "entry = (SELECT min(entry) FROM posting)"
    edit(folder / "ledger.db", f"UPDATE posting SET amount = amount * 2 WHERE {first}")
    with pytest.raises(IntegrityError, match=r"entry \d"):
        check_anchor.check_books(folder, None, anchor)


def test_a_settled_run_has_a_trial_balance_of_zero_and_nothing_left(assay: Assay, made: Path):
    _, out, _ = assay("ledger", "balance", made)

    assert out.split() == ["trial", "balance", "0.000000", "aUSD"]


def test_entries_are_chosen_by_account(assay: Assay, made: Path):
    _, everything, _ = assay("ledger", "entries", made)
    _, some, _ = assay("ledger", "entries", made, "--account", "payable:verifier")
    code, _, err = assay("ledger", "entries", made, "--account", "wages")

    assert 0 < some.count("Claimed") < everything.count("Claimed")
    assert (code, "no account begins with 'wages'" in err, "payable" in err) == (2, True, True)


def test_a_statement_adds_up_from_its_opening_to_its_closing_balance(assay: Assay, made: Path):
    _, out, _ = assay("ledger", "statement", made, "buyer", "--json")
    _, text, _ = assay("ledger", "statement", made, "buyer")
    code, later, _ = assay("ledger", "statement", made, "buyer", "--since", "2200-01-01")

    found = json.loads(out)
    signs = {"paid in": 1, "bonds": 1, "income": 1, "expense": -1, "taken out": -1}
    moved = sum(signs[line["movement"]] * line["amount"] for line in found["lines"])
    assert found["is_buyer"] and found["opening"] == 0 and found["closing"] == moved
    assert {line["movement"] for line in found["lines"]} >= {"paid in", "expense", "taken out"}
    assert text.count("ResultFinalized") == len(TABLES) and "opening balance" in text
    assert code == 0 and "ResultFinalized" not in later


def test_a_proof_can_be_checked_with_nothing_but_the_key(assay: Assay, made: Path):
    with closing(sqlite3.connect(f"file:{made / 'ledger.db'}?immutable=1", uri=True)) as db:
        keys = dict(db.execute("SELECT id, key FROM journal_entry").fetchall())
    for number, key in keys.items():
        for name in (number, key):
            code, out, _ = assay("ledger", "prove", made, name)
            told: dict[str, Any] = json.loads(out)
            checkpoint = read_checkpoint(told["checkpoint"], origin_of(RUN_ID), bytes(KEY.verify_key))
            leaf = leaf_hash(bytes.fromhex(told["leaf"]))
            path = [bytes.fromhex(one) for one in told["proof"]]
            verify_inclusion(leaf, number - 1, checkpoint.size, path, checkpoint.root)
            assert (code, told["entry"], told["key"], told["verifier_key"]) == (0, number, key, NAMED)


def test_an_entry_that_no_checkpoint_covers_has_no_proof_yet(assay: Assay, tmp_path: Path):
    rig = Rig(tmp_path)
    rig.ledger_service.book_blocks(Blocks().tell(a_whole_stream()), TABLES)
    rig.books.close()

    code, out, err = assay("ledger", "prove", tmp_path, 1)
    assert (code, out, "newer than the last checkpoint" in err) == (2, "", True)
    audited = assay("ledger", "audit", tmp_path)[1]
    assert "none yet" in audited and "postings: not compared with the events" in audited


def test_the_audit_takes_the_keepers_key_and_no_other(assay: Assay, made: Path):
    own, other = bytes(KEY.verify_key).hex(), bytes(SigningKey(b"m" * 32).verify_key).hex()

    assert "postings: as the events and payout tables" in assay("ledger", "audit", made)[1]
    assert "the key you gave" in assay("ledger", "audit", made, "--key", own)[1]
    assert "the key you gave" in assay("ledger", "audit", made, "--key", NAMED)[1]
    code, _, err = assay("ledger", "audit", made, "--key", other)
    assert (code, "another key" in err) == (1, True)
    assert assay("ledger", "audit", made, "--key", "nonsense")[0] == 2


@pytest.mark.parametrize("language", ["csv", "beancount", "hledger"])
def test_an_export_of_a_strangers_books_cannot_steer_a_terminal(assay: Assay, folder: Path, language: str):
    place = folder / "ledger.db"
    steering = Entry(
        key="event/\x9b2J", kind="\x1b[2J\u202e", block_number=9, block_hash=bytes(32), block_time=9,
        postings=(Posting(account=ESCROW, amount=1), Posting(account=gift("\x9b8m"), amount=-1)),
    )  # fmt: skip
    engine = open_engine(place)
    with writing(engine) as db:
        write_entries(db, [steering], 1)
    engine.dispose()

    code, out, err = assay("ledger", "export", folder, f"--{language}")

    assert (code, err) == (0, "") and "?[2J?" in out
    assert all(line.isprintable() for line in out.split("\n"))


# ---- what was altered


def test_one_byte_of_the_journal_flipped_makes_the_audit_name_the_entry(assay: Assay, folder: Path):
    path = folder / "ledger.db"
    with closing(sqlite3.connect(path)) as db:
        (block,) = db.execute("SELECT block_hash FROM journal_entry WHERE id = 3").fetchone()
    flipped = bytes([block[0] ^ 1]) + block[1:]
    edit(path, f"UPDATE journal_entry SET block_hash = x'{flipped.hex()}' WHERE id = 3")
    for leftover in folder.glob("ledger.db-*"):
        leftover.unlink()

    for words in (["audit"], ["balance"], ["entries"], ["export", "--csv"]):
        code, _, err = assay("ledger", words[0], folder, *words[1:])
        assert (code, "entry 3 " in err) == (1, True), words


def test_books_that_are_older_than_a_checkpoint_on_disk_fail_the_audit(assay: Assay, folder: Path):
    (folder / "ledger.db").unlink()
    store = BookStore(folder / "ledger.db", RUN_ID)
    store.close()

    code, _, err = assay("ledger", "audit", folder)

    assert (code, "no checkpoint, so they are older" in err) == (1, True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: told["rows"][0].update(amount=told["rows"][0]["amount"] + 1), "rows[0].amount"),
        (lambda told: told["rows"].pop(), "rows: "),
        (lambda told: told["unpaid"].append({"round": 0, "node": "00", "reason": "fault"}), "unpaid: "),
        (lambda told: told["result"].update(root="00" * 32), "root"),
        (lambda told: told["result"].update(model_hash="00" * 32), "digest: "),
        (lambda told: told["result"].update(model_hash="00" * 33), "bytes32"),
        (lambda told: told.update(digest="00" * 32), "digest: "),
        (lambda told: told.update(certificate=""), "signatures"),
        (lambda told: told.pop("rows"), "rows"),
    ],
)
def test_a_settlement_that_the_chain_does_not_give_fails_the_check(
    assay: Assay, folder: Path, change: Callable[[dict[str, Any]], Any], words: str
):
    path = folder / "bundle" / "settlements" / "epoch-000.json"
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))

    code, _, err = assay("ledger", "settle", "--check", f"{folder}:0")

    assert (code, "epoch-000.json" in err, words in err) == (1, True, True), err


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE payout SET amount = amount + 1 WHERE epoch = 0 AND row_index = 1",
        "UPDATE payout SET account = 'me' WHERE epoch = 0 AND row_index = 0",
        "DELETE FROM payout WHERE epoch = 0 AND role = 'fee'",
        "UPDATE chain_event SET body = '{}' WHERE kind = 'ResultProposed'",
        "INSERT INTO payout VALUES (0, 99, 'fee', x'00', 'me', 5)",
        "UPDATE settlement SET total = total + 1 WHERE epoch = 0",
        "DELETE FROM settlement WHERE epoch = 0",
        "INSERT INTO unpaid VALUES (0, x'00', 0, 'because')",
        "DELETE FROM chain_event WHERE kind = 'ResultFinalized'",
        "UPDATE chain_event SET state = 'orphaned' WHERE kind = 'ResultProposed'",
        "UPDATE chain_event SET body = replace(body, '\"table_hash\": \"', '\"table_hash\": \"00') "
        "WHERE kind = 'ResultProposed'",
    ],
)  # fmt: skip
def test_a_ledger_that_the_chain_does_not_give_fails_the_check(assay: Assay, folder: Path, statement: str):
    edit(folder / "ledger.db", statement)
    for leftover in folder.glob("ledger.db-*"):
        leftover.unlink()

    code, _, err = assay("ledger", "settle", "--check", f"{folder}:0")

    assert (code, err.startswith("assay: ledger")) == (1, True), err


def test_a_result_on_other_parameters_than_nodes_committed_to_fails_although_a_quorum_signed(
    assay: Assay, folder: Path
):
    result = epoch_result(SPEC, TABLES[0], a_digest("other parameters"), NO_DIGEST, 1)
    digest = DEPLOYMENT.digest(result)
    signed = certificate(digest, [sign_digest(digest, a_hot_key(name)) for name in VERIFIERS])
    path = folder / "bundle" / "settlements" / "epoch-000.json"
    told = json.loads(path.read_text())
    told["result"]["model_hash"] = result.model_hash.hex()
    path.write_text(json.dumps({**told, "digest": digest.hex(), "certificate": signed.hex()}))

    code, _, err = assay("ledger", "settle", "--check", f"{folder}:0")

    assert (code, "nodes committed to" in err) == (1, True), err


def test_an_altered_link_fails_the_check(assay: Assay, folder: Path):
    path = folder / "bundle" / "links" / "000002.cbor"
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)

    code, _, err = assay("ledger", "settle", "--check", f"{folder}:0")

    assert (code, "links/000002.cbor" in err) == (1, True)


# ---- what the operator can get wrong


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ledger", "balance", "nowhere"], "no ledger.db here"),
        (["ledger", "audit", "{}/bundle"], "no ledger.db here"),
        (["ledger", "audit", "{}/spec.cbor"], "not a book of accounts"),
        (["ledger", "export", "{}"], "one of --csv, --beancount and --hledger"),
        (["ledger", "export", "{}", "--csv", "--hledger"], "one of --csv, --beancount and --hledger"),
        (["ledger", "statement", "{}", "0x12"], "expected an address"),
        (["ledger", "statement", "{}", "0x" + "0" * 40], "no account of this address"),
        (["ledger", "statement", "{}", "buyer", "--since", "today"], "expected a day"),
        (["ledger", "statement", "{}", "buyer", "--since", "2026-02-01", "--until", "2026-01-01"], "before"),
        (["ledger", "prove", "{}", "999"], "no entry '999'"),
        (["ledger", "settle", "--check", "{}"], "expected RUN:EPOCH"),
        (["ledger", "settle", "--check", "{}:two"], "expected RUN:EPOCH"),
        (["ledger", "settle", "--check", "{}:7"], "there is no epoch 7"),
        (["ledger", "settle", "--check", "nowhere:0"], "no delivered run"),
        (["earnings", "{}", "--node", "zz"], "no node with an accepted step begins with 'zz'"),
        (["earnings", "{}", "--node", ""], "no node"),
        (["earnings", "{}", "--node", peer("nora").hex(), "--why", "7"], "no accepted step in epoch 7"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(assay: Assay, made: Path, words: list[str], expected: str):
    code, out, err = assay(*(word.format(made) for word in words))

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err


# ---- earnings


def test_what_a_node_earned_is_what_the_tables_pay_it(assay: Assay, made: Path):
    for member in SPEC.nodes:
        _, out, _ = assay("earnings", made, "--node", member.peer.hex()[:10])
        due = sum(row.amount for table in TABLES.values() for row in table.rows if row.peer == member.peer)
        assert out.count("claimed") == len(TABLES)
        assert f"total {due // 10**6}.{due % 10**6:06d} aUSD" in out


def test_every_unpaid_step_has_its_reason_and_the_digests_that_show_it(assay: Assay, folder: Path):
    member = SPEC.nodes[0]
    edit(
        folder / "ledger.db",
        f"INSERT INTO unpaid VALUES (1, x'{member.peer.hex()}', 0, 'unjudged')",
    )
    for leftover in folder.glob("ledger.db-*"):
        leftover.unlink()
    with closing(sqlite3.connect(f"file:{folder / 'ledger.db'}?immutable=1", uri=True)) as db:
        ((commit,),) = db.execute(
            "SELECT commit_digest FROM contribution WHERE round = 1 AND node = ?", (member.peer,)
        )

    _, short, _ = assay("earnings", folder, "--node", member.peer.hex())
    _, out, _ = assay("earnings", folder, "--node", member.peer.hex(), "--why", 0)

    assert "1 unpaid, see --why 0" in short
    assert out.startswith("round 1: no auditor could judge it")
    for words in (commit.hex(), "verdict  match by", "ruling   passed in round", "1 of 3 steps in epoch 0"):
        assert words in out
