"""Reads: what is served is what the commands print, and no name of a stranger becomes a path."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock, Thread
from types import SimpleNamespace
from typing import Any, get_type_hints

import httpx
import pytest
from pydantic import BaseModel
from sqlalchemy import Connection, select

from assay.api import catalogue, quoting
from assay.api.app import make_app
from assay.api.catalogue import Head, ServedRun
from assay.api.quoting import FILE_KEYS, read_order
from assay.api.routes import books
from assay.bundle.books import find_books, opened
from assay.chain.commit_statement import evm_address
from assay.chain.events import BondReleased, Challenged
from assay.chain.proofs.payout_tree import leaf, root_of_proof
from assay.ledger.books import document_hash
from assay.ledger.invoices.store import issue
from assay.ledger.journal.database import open_engine
from assay.ledger.journal.reader import read_journal
from assay.ledger.journal.store import BookStore
from assay.ledger.journal.tables import TABLES as TABLES_OF_BOOKS
from assay.ledger.log.audit import audit
from assay.ledger.log.note import read_checkpoint
from assay.ledger.merkle_log import leaf_hash, verify_inclusion
from assay.ledger.queries.export import Language, export_lines
from assay.ledger.queries.lookup import EntryPage, entry_page, log_edge
from assay.orders.sections import RunFile
from assay.protocol.errors import ConfigError
from assay.protocol.types import NO_DIGEST
from tests.api.a_books import grow
from tests.api.a_server import ApiWorld, is_problem
from tests.ledger.a_database import edit
from tests.ledger.a_run import EventStream, a_member, account, wallet
from tests.ledger.an_invoiced_run import KEY, NOW_MS, RUN, SELLER, SPEC, TABLES
from tests.ledger.invoices.test_credits import ACCOUNT, PARTIES

pytestmark = pytest.mark.slow

BUYER = evm_address(SPEC.buyer)


def the_books(world_api: ApiWorld) -> Path:
    return world_api.folder / "paper" / "participants" / "ledger" / "ledger.db"


@pytest.fixture
def reader(world_api: ApiWorld) -> str:
    return world_api.token("read")


def test_pages_of_entries_are_the_journal(world_api: ApiWorld, reader: str):
    with opened(find_books(world_api.folder / "paper")) as db:
        whole = list(read_journal(db))
    found, after = [], 0
    while after is not None:
        page = world_api.get(f"/v1/runs/paper/entries?limit=7&after={after}", reader).json()
        found += page["entries"]
        after = page["next"]

    assert [one["key"] for one in found] == [one.entry.key for one in whole]
    assert [int(p["amount"]) for one in found for p in one["postings"]] == [
        posting.amount for one in whole for posting in one.entry.postings
    ]
    exported = "/v1/runs/paper/export"
    assert world_api.get(exported, reader).text == "".join(
        export_lines(Language.CSV, lambda: whole, "Assay, paper")
    )
    for language in Language:
        assert world_api.get(f"{exported}?language={language.value}", reader).text == "".join(
            export_lines(language, lambda: whole, "Assay, paper")
        )
    refused = world_api.get(f"{exported}?language=datev", reader)
    assert refused.status_code == 422 and "hledger" in refused.text


def test_a_proof_and_a_settlements_rows_can_be_checked_by_their_reader(world_api: ApiWorld, reader: str):
    told = world_api.get("/v1/runs/paper/proof?entry=3", reader).json()
    origin = told["checkpoint"].split("\n")[0]
    checkpoint = read_checkpoint(told["checkpoint"], origin, bytes(KEY.verify_key))
    path = [bytes.fromhex(one) for one in told["proof"]]
    verify_inclusion(leaf_hash(bytes.fromhex(told["leaf"])), 2, checkpoint.size, path, checkpoint.root)

    table = world_api.get("/v1/runs/paper/settlements/0", reader).json()
    assert table["root"] == TABLES[0].tree().root.hex()
    for row in table["rows"]:
        start = leaf(RUN, 0, row["index"], row["account"], int(row["amount"]))
        proof = [bytes.fromhex(one[2:]) for one in row["proof"]]
        assert root_of_proof(start, proof).hex() == table["root"]


def test_an_answer_that_the_caller_has_is_not_sent_again(world_api: ApiWorld, reader: str):
    for path in ("/v1/runs/paper/balances", "/v1/runs/paper/entries", "/v1/runs/paper/proof?entry=1"):
        tag = world_api.get(path, reader).headers["etag"]
        again = world_api.ask("GET", path, reader, headers={"If-None-Match": f'"x", W/{tag}'})
        assert (again.status_code, again.content) == (304, b"")
        assert world_api.ask("GET", path, reader, headers={"If-None-Match": '"x"'}).status_code == 200
        assert world_api.ask("GET", path, headers={"If-None-Match": tag}).status_code == 401


def test_a_page_is_read_once_for_everybody_until_the_books_grow(
    world_api: ApiWorld, reader: str, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    def counted(db: Connection, **given: Any) -> EntryPage:
        asked.append(given)
        return entry_page(db, **given)

    monkeypatch.setattr(books, "entry_page", counted)
    path = "/v1/runs/paper/entries?limit=2"

    first, again = (world_api.get(path, who) for who in (reader, world_api.token("read")))

    assert again.content == first.content and len(asked) == 1
    assert world_api.get(f"{path}&after=2", reader).json() != first.json() and len(asked) == 2
    assert world_api.ask("GET", path).status_code == 401  # who may not read gets nothing kept either
    grow(world_api.folder, 1)
    assert world_api.get(path, reader).status_code == 200 and len(asked) == 3


@pytest.mark.parametrize("path", ["entries?after=10", "proof?entry=1"])
def test_closed_books_are_opened_again_only_once_they_have_changed(
    world_api: ApiWorld, reader: str, monkeypatch: pytest.MonkeyPatch, path: str
):
    opened_to_read, own = list[str](), ServedRun.opened

    def counted(run: ServedRun) -> AbstractContextManager[Connection]:
        opened_to_read.append(run.name)
        return own(run)

    monkeypatch.setattr(ServedRun, "opened", counted)

    def answers() -> tuple[set[bytes], int]:
        """The different answers to three requests, and how often the books were opened for them."""
        opened_to_read.clear()
        given = {world_api.get(f"/v1/runs/paper/{path}", reader).content for _ in range(3)}
        return given, len(opened_to_read)

    (first,), times = answers()
    assert times == 1
    grow(world_api.folder, 1)
    (second,), times = answers()
    assert times == 1
    with closing(BookStore(the_books(world_api), RUN)):
        assert answers() == ({second}, 3)
    assert answers() == ({second}, 0)  # nothing was written
    assert (first != second) == path.startswith("entries")  # a proof is to the checkpoint, which is as before


def test_books_of_another_schema_in_the_place_of_open_ones_cannot_be_read_and_say_so(
    world_api: ApiWorld, reader: str
):
    books = the_books(world_api)
    assert world_api.get("/v1/runs/paper/entries", reader).status_code == 200
    other = books.with_name("other.db")
    shutil.copy(books, other)
    edit(other, "PRAGMA user_version = 1")
    own = books.rename(books.with_name("own.db"))
    other.rename(books)

    answer = world_api.get("/v1/runs/paper/entries?after=1", reader)

    assert answer.status_code == 503 and "the books of run paper cannot be opened now" in answer.text
    own.rename(books)
    assert world_api.get("/v1/runs/paper/entries", reader).status_code == 200


def test_a_head_that_may_be_newer_than_the_closed_books_is_not_known_as_theirs(world_api: ApiWorld):
    run = ServedRun("paper", world_api.folder / "paper")

    def read(db: Connection) -> Head:
        return log_edge(db), ""

    state = run.state()
    with closing(BookStore(the_books(world_api), RUN)), run.opened() as db:
        run.head(read, state, db)  # there may be more in the write-ahead log by now
    assert (run.state(), run.known_head(read, state)) == (state, None)
    with run.opened() as db:
        head = run.head(read, state, db)

    assert run.known_head(read, state) == head


def test_altered_books_are_an_incident_and_the_audit_says_which_entry(world_api: ApiWorld, reader: str):
    world_api.get("/v1/runs/paper/audit", reader)
    edit(the_books(world_api), "UPDATE journal_entry SET block_number = block_number + 1 WHERE id = 2")
    for leftover in the_books(world_api).parent.glob("ledger.db-*"):
        leftover.unlink()

    answer = world_api.get("/v1/runs/paper/entries", reader)
    assert is_problem(answer, 500, "incident")
    assert "entry" not in answer.text
    assert set(answer.json()) == {"type", "title", "status", "detail", "incident"}
    fresh = ApiWorld(world_api.folder)
    told = fresh.get("/v1/runs/paper/audit", fresh.token("read")).json()
    assert (told["ok"], "entry 2 " in told["difference"]) == (False, True)


@pytest.mark.parametrize(
    ("path", "function"), [("/v1/runs/paper/audit", "audit"), ("/v1/runs/paper/balances", "add_up")]
)
def test_one_request_at_a_time_reads_the_whole_journal_and_none_waits_long_for_it(
    world_api: ApiWorld, reader: str, monkeypatch: pytest.MonkeyPatch, path: str, function: str
):
    begun, may_end, read, first = Event(), Event(), getattr(catalogue, function), list[int]()

    def slow(*given: Any, **more: Any) -> Any:
        assert not begun.is_set(), "a second one at once"
        begun.set()
        assert may_end.wait(20)
        return read(*given, **more)

    monkeypatch.setattr(catalogue, function, slow)
    monkeypatch.setattr(catalogue, "WAIT_S", 0.05)
    asking = Thread(target=lambda: first.append(world_api.get(path, reader).status_code))
    asking.start()
    try:
        assert begun.wait(60)
        other = world_api.get(path, reader)
    finally:
        may_end.set()
        asking.join(60)

    assert is_problem(other, 503, "of run paper") and other.headers["retry-after"] == "5"
    assert first == [200]
    monkeypatch.setattr(catalogue, function, read)
    assert world_api.get(path, reader).status_code == 200


def test_an_audit_counts_from_its_end_and_the_last_one_is_the_answer_meanwhile(
    world_api: ApiWorld, monkeypatch: pytest.MonkeyPatch
):
    run, now_s = world_api.server.catalogue.find("paper"), 1000.0
    monkeypatch.setattr(catalogue, "time", SimpleNamespace(monotonic=lambda: now_s))
    made_count, meanwhile = 0, list[catalogue.AuditAnswer]()

    def slow(*given: Any, **more: Any) -> Any:
        nonlocal now_s, made_count
        made_count += 1
        if made_count == 2:
            asking = Thread(target=lambda: meanwhile.append(run.audited(60)), daemon=True)
            asking.start()
            asking.join(20)
        now_s += 100
        return audit(*given, **more)

    monkeypatch.setattr(catalogue, "audit", slow)
    first = run.audited(60)
    now_s += 59
    assert run.audited(60) is first
    now_s += 1
    assert run.audited(60) is not first
    assert (meanwhile, made_count) == ([first], 2)


@pytest.mark.parametrize(
    "name",
    ["..", "%2e%2e", "..%2f..%2fetc", "paper%2f..%2fpaper", "paper%00", "/etc/passwd", "Paper", "x" * 65, ""],
)
def test_a_runs_name_is_never_a_path(world_api: ApiWorld, reader: str, name: str):
    answer = world_api.get(f"/v1/runs/{name}/balances", reader)
    assert answer.status_code in (404, 422)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/runs/paper/entries?after=-1", 422),
        ("/v1/runs/paper/entries?after=9223372036854775808", 422),
        ("/v1/runs/paper/entries?limit=501", 422),
        ("/v1/runs/paper/entries?limit=NaN", 422),
        ("/v1/runs/paper/proof?entry=999", 404),
        ("/v1/runs/paper/proof", 422),
        ("/v1/runs/paper/settlements/9", 404),
        ("/v1/runs/paper/settlements/x", 422),
        ("/v1/runs/paper/earnings/zz", 422),
        ("/v1/runs/paper/earnings/ff", 404),
        ("/v1/runs/paper/invoices/invoice/1", 403),
        ("/v1/runs/paper/export?language=sql", 422),
        ("/v1/stakes/operator/0x12", 422),
        ("/docs", 404),
        ("/v1/../v1/nothing", 404),
    ],
)
def test_a_mistake_is_a_problem_in_words(world_api: ApiWorld, reader: str, path: str, status: int):
    assert is_problem(world_api.get(path, reader), status)


def test_another_method_is_told_which_there_are(world_api: ApiWorld, reader: str):
    answer = world_api.ask("DELETE", "/v1/runs", reader)
    assert is_problem(answer, 405)
    assert answer.headers["allow"] == "GET"


def test_who_may_read(folder: Path):
    closed, open_ = ApiWorld(folder), ApiWorld(folder, public_read=True)

    assert is_problem(closed.get("/v1/runs"), 401, "sign in")
    assert closed.get("/v1/runs").headers["www-authenticate"] == "Bearer"
    assert open_.get("/v1/runs").status_code == 200
    assert is_problem(open_.get("/v1/runs/paper/invoices"), 401)
    assert is_problem(open_.get("/v1/runs", "assay_" + "x" * 43), 401)
    assert is_problem(closed.get("/v1/runs", closed.token("quote")), 403, "no scope 'read'")
    assert is_problem(closed.ask("GET", "/v1/runs", headers={"Authorization": "Basic eDp5"}), 401)
    assert is_problem(closed.ask("GET", "/v1/runs", headers={"Cookie": f"token={closed.token('read')}"}), 401)


def test_exports_take_one_thread_at_a_time(world_api: ApiWorld, reader: str, monkeypatch: pytest.MonkeyPatch):
    """32 of them held all threads but eight, for minutes."""
    making, most, lock = 0, 0, Lock()

    def slow(*_: Any) -> Iterator[str]:
        nonlocal making, most
        for _ in range(3):
            with lock:
                making += 1
                most = max(most, making)
            Event().wait(0.02)
            with lock:
                making -= 1
            yield "x" * books.PIECE_CHARS

    monkeypatch.setattr(books, "export_lines", slow)

    async def export(client: httpx.AsyncClient) -> int:
        answer = await client.get("/v1/runs/paper/export", headers={"authorization": f"Bearer {reader}"})
        return len(answer.content)

    async def run() -> list[int]:
        transport = httpx.ASGITransport(app=world_api.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await asyncio.gather(*(export(client) for _ in range(4)))

    assert asyncio.run(run()) == [3 * books.PIECE_CHARS] * 4
    assert most == 1


READS = ("", "/balances", "/entries", "/checkpoints", "/audit", "/settlements/0", "/export?format=csv")


def test_a_session_proves_an_account_and_reads_only_the_runs_that_it_takes_part_in(folder: Path):
    stranger, reader = "0x" + "33" * 20, "0x" + "aB" * 20
    closed, open_ = ApiWorld(folder, readers=(reader,)), ApiWorld(folder, public_read=True)
    parties = (BUYER, wallet("node-0"), wallet("verifier-0"))

    for path in READS:
        assert is_problem(closed.get(f"/v1/runs/paper{path}", closed.session(stranger)), 403, "parties")
    assert closed.get("/v1/runs", closed.session(stranger)).json() == []
    for who in (*map(closed.session, parties), closed.session(reader.lower()), closed.token("read")):
        for path in READS:
            assert closed.get(f"/v1/runs/paper{path}", who).status_code == 200, path
        assert [one["name"] for one in closed.get("/v1/runs", who).json()] == ["paper"]
    assert open_.get("/v1/runs/paper/balances", open_.session(stranger)).status_code == 200


def test_a_part_in_the_network_is_no_part_in_its_runs(folder: Path):
    world, stranger = ApiWorld(folder), wallet("stranger")
    with closing(BookStore(the_books(world), RUN, now_ms=lambda: NOW_MS)) as store:
        first = store.next_block
        more = EventStream("more", first)
        more.staked("stranger", 1_000)
        more.staked("elsewhere", 1_000)
        more.slashed("elsewhere", 1_000, challenger="stranger")
        bond = {"run_id": b"o" * 32, "epoch": 0}
        more.emit(Challenged, **bond, challenger=stranger, reason_hash=NO_DIGEST, bond=5)
        more.emit(BondReleased, **bond, account=stranger, amount=5)
        store.take_blocks(more.events, first, more.height, TABLES)
    owned = TABLES_OF_BOOKS["account"].c
    with world.server.catalogue.find("paper").opened() as db:
        kinds = db.execute(select(owned.kind).where(owned.owner == stranger).order_by(owned.kind))
        assert kinds.scalars().all() == ["bondowed", "rewards", "stake"]

    for path in READS:
        assert is_problem(world.get(f"/v1/runs/paper{path}", world.session(stranger)), 403, "parties")


def test_who_is_in_the_spec_or_was_paid_is_a_party_of_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch):
    money = replace(SPEC.money, treasury=account("treasury"))
    members = {"verifiers": (a_member("verifier"),), "reserves": (a_member("reserve"),)}
    named = replace(SPEC, money=money, nodes=SPEC.nodes[:1], **members)
    monkeypatch.setattr("assay.bundle.books.read_spec", lambda _: named)
    world = ApiWorld(folder)

    joined = "node-1"  # is in payout tables alone
    for who in (BUYER, *map(wallet, ("treasury", "node-0", "verifier", "reserve", joined))):
        assert world.get("/v1/runs/paper/balances", world.session(who)).status_code == 200, who
    assert is_problem(world.get("/v1/runs/paper/balances", world.session(wallet("node-3"))), 403)


def test_entries_that_come_after_the_first_answer_are_served_while_they_are_written(world_api: ApiWorld):
    who, path = world_api.token("read"), "/v1/runs/paper"
    before = world_api.get(path, who).json()["entries"]
    with closing(BookStore(the_books(world_api), RUN)) as store:  # open: its newest entry is in the WAL
        more = EventStream("more", store.next_block)
        more.staked("node-0", 5)
        store.take_blocks(more.events, store.next_block, more.height, TABLES)

        assert world_api.get(path, who).json()["entries"] == before + 1


def test_books_that_are_delivered_take_the_place_of_those_that_were_read_before(world_api: ApiWorld):
    who, path = world_api.token("read"), "/v1/runs/paper"
    before = world_api.get(path, who).json()["entries"]
    shutil.copy(the_books(world_api), world_api.folder / "paper" / "ledger.db")
    grow(world_api.folder, 1)  # in the ledger service's own books

    assert world_api.get(path, who).json()["entries"] == before


def test_invoices_are_the_buyers_and_the_operators(world_api: ApiWorld):
    engine = open_engine(the_books(world_api))
    made = issue(engine, SPEC, RUN, 0, 1, SELLER, NOW_MS)
    engine.dispose()

    for who in (world_api.session(BUYER), world_api.token("invoice")):
        heads = world_api.get("/v1/runs/paper/invoices", who).json()
        assert [(one["name"], one["total"]) for one in heads] == [(made.name, str(made.total))]
        body = world_api.get("/v1/runs/paper/invoices/invoice/1", who)
        assert body.json()["supplier"]["vat_id"] == "DE123456789"
        assert document_hash(body.text)
        assert world_api.get("/v1/runs/paper/invoices/invoice/1/pdf", who).content.startswith(b"%PDF")
        assert is_problem(world_api.get("/v1/runs/paper/invoices/invoice/2", who), 404)
    for who in (world_api.session("0x" + "33" * 20), world_api.token("invoice", account="0x" + "33" * 20)):
        assert is_problem(world_api.get("/v1/runs/paper/invoices", who), 403)
        for form in ("pdf", "ubl", "facturx"):
            assert is_problem(world_api.get(f"/v1/runs/paper/invoices/invoice/1/{form}", who), 403)


def test_an_invoice_with_vat_is_served_as_ubl_and_factur_x(world_api: ApiWorld):
    engine = open_engine(the_books(world_api))
    issue(engine, SPEC, RUN, 0, 0, PARTIES, NOW_MS)
    issue(engine, SPEC, RUN, 1, 1, SELLER, NOW_MS)
    issue(engine, SPEC, RUN, 0, 1, PARTIES, NOW_MS, ACCOUNT)
    engine.dispose()
    who = world_api.session(BUYER)

    ubl = world_api.get("/v1/runs/paper/invoices/invoice/1/ubl", who)
    assert (ubl.headers["content-type"], b"<cbc:CustomizationID>" in ubl.content) == ("application/xml", True)
    facturx = world_api.get("/v1/runs/paper/invoices/invoice/1/facturx", who)
    assert (facturx.headers["content-type"], b"factur-x.xml" in facturx.content) == ("application/pdf", True)
    for form in ("ubl", "facturx"):
        assert is_problem(world_api.get(f"/v1/runs/paper/invoices/invoice/2/{form}", who), 409)
    heads = world_api.get("/v1/runs/paper/invoices", who).json()
    assert [one["number"] for one in heads] == [1, 2]  # an operator's own is not the buyer's to see


# ---- quotes


def quote(world_api: ApiWorld, text: str | bytes, kind: str = "application/toml") -> Any:
    body = text.encode() if isinstance(text, str) else text
    return world_api.ask(
        "POST", "/v1/quotes", world_api.token("quote"), headers={"content-type": kind}, content=body
    )


def test_a_quote_is_the_commands(world_api: ApiWorld):
    from assay.orders.price.quote import quote_of

    text = "[run]\nrounds = 10\nnodes = 5\n"
    told = quote(world_api, text).json()

    assert told["quote"] == quote_of(read_order(text)).name.hex()
    assert int(told["at_most"]["gross"]) >= int(told["expected"]["gross"]) > 0


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ('[[data]]\nsource = "/etc/passwd"\n', 422, "[data] source names a file"),
        ('data = [{source = "stdlib"}, {source = "../x"}]\n', 422, "[data] source names a file"),
        ('[model]\nbase = "/root"\n', 422, "[model] base names a file"),
        ('[model]\ntokenizer = "t.json"\n', 422, "[model] tokenizer names a file"),
        ('[evaluate]\nchoices = "/etc/passwd"\n', 422, "[evaluate] choices names a file"),
        ('[model]\nchat_template = "/etc/passwd"\n', 422, "[model] chat_template names a file"),
        ('[verify]\nlimits = "/etc/passwd"\n', 422, "[verify] limits names a file"),
        ('[verify]\nattestation = "p.toml"\n', 422, "[verify] attestation names a file"),
        ('[verify]\ndrand = "info.json"\n', 422, "[verify] drand names a file"),
        ('[run]\nattesters = {0 = "k.pem"}\n', 422, "[run] attesters names a file"),
        ("[run]\nrounds = 1000000\n", 422, "at most 100000"),
        ("[run]\nrounds = 100000\n[budget]\nepoch_rounds = 1\n", 422, "at most 10000"),
        ("[run]\nrounds = nan\n", 422, "rounds"),
        ("x = " + "[" * 60_000, 422, "nested"),
        ("a" + ".a" * 30_000 + " = 1", 422, "nested"),
        ("#" * 70_000, 422, "at most 65536"),
        ("a" + ".a" * 30 + " = 1", 422, "nested"),
        ("[[[", 422, "not TOML"),
        (b"\xff\xfe", 422, "UTF-8"),
        ("[nothing]\n", 422, "unknown table"),
    ],
)
def test_a_run_file_that_names_a_file_or_is_none_is_refused(
    world_api: ApiWorld, text: str | bytes, status: int, words: str
):
    assert is_problem(quote(world_api, text), status, words)


def test_a_run_file_is_sent_as_toml(world_api: ApiWorld):
    assert is_problem(quote(world_api, "[run]\n", "text/plain"), 415, "application/toml")


def test_every_key_of_an_order_that_is_text_was_looked_at():
    """A new key that names a file must be refused on a server; this list is what was looked at."""
    harmless = {
        ("run", "name"), ("run", "audit"), ("model", "separator"), ("data", "licence"),
        ("model", "lora_targets"),
        ("data", "field"), ("comm", "aggregation"), ("comm", "method"), ("verify", "code"),
        ("accept", "held_out"), ("accept", "acc"), ("accept", "acc_norm"),  # their keys are numbers of epochs
        ("verify", "drand_urls"),  # verifiers ask there, nobody who reads an order does
    }  # fmt: skip
    textual = set()
    for table, section in get_type_hints(RunFile).items():
        inner = section.__args__[0] if table == "data" else section
        inner = getattr(inner, "__args__", [inner])[0]
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            for key, field in inner.model_fields.items():
                kind = str(field.annotation)
                if "str" in kind or "Path" in kind:
                    textual.add((table, key))
    assert textual - harmless <= set(FILE_KEYS), textual - harmless - set(FILE_KEYS)
    assert set(FILE_KEYS) <= textual


def test_a_quote_opens_no_file(monkeypatch: pytest.MonkeyPatch):
    read_order("[run]\nrounds = 5\n")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    for text in ('[model]\nbase = "x"\n', '[[data]]\nsource = "x"\n', '[verify]\nlimits = "x"\n'):
        with pytest.raises(ConfigError, match="names a file"):
            read_order(text)
    assert quoting.NOWHERE.exists() is False


# ---- the documentation


def test_the_documentation_names_every_route_with_schemas_and_errors():
    told = make_app().openapi()

    assert {"/v1/moves/prepare", "/v1/runs/{run}/proof", "/v1/quotes", "/v1/signin"} <= set(told["paths"])
    for path, methods in told["paths"].items():
        for method, one in methods.items():
            assert one["summary"] or one.get("description"), (path, method)
            assert "application/problem+json" in one["responses"]["404"]["content"]
            good = next(
                one["responses"][code] for code in ("200", "201", "202", "204") if code in one["responses"]
            )
            assert good.get("content") or "204" in one["responses"], (path, method)
    assert told["components"]["schemas"]["PreparedAnswer"]["properties"]["typed_data"]
    assert told["components"]["schemas"]["PrepareAsked"]["properties"]["action"]["examples"] == ["stake.add"]
