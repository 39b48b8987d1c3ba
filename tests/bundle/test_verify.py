"""Verify: a recorded run passes with its own figures, and each part that is altered is named."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from assay.bundle import verify as verifying
from assay.bundle.books import find_books, opened
from assay.bundle.check.anchor import check_books
from assay.bundle.finished import Anchored
from assay.bundle.read import Delivered, find_node, read
from assay.bundle.report.picture import PICTURE_BYTES_MAX
from assay.bundle.verify import Report, Verified, report_lines, verify
from assay.chain.events import EVENTS, ChainEvent, Gifted, Refunded, RunOpened
from assay.ledger.books import book
from assay.ledger.journal import store
from assay.ledger.journal.log_store import read_edge
from assay.ledger.journal.reader import read_events
from assay.ledger.journal.store import BookStore
from assay.ledger.merkle_log import Edge
from assay.observer.ledger_service.bookkeeper import Recorder
from assay.participant.files.index import IntegrityError
from assay.protocol.encoding.codec import encode
from assay.protocol.encoding.json_text import canonical_json, read_plain
from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest
from tests.bundle.report.test_picture import a_png


@pytest.fixture(scope="module")
def report(recorded_run: Path) -> Report:
    rounds: list[int] = []
    found = verify(read(recorded_run), on_round=rounds.append)
    assert rounds == list(range(len(found.delivered.links)))
    return found


@pytest.fixture
def run(recorded_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that may be altered: whoever delivers it has signed its index himself."""
    copy = tmp_path / "run"
    shutil.copytree(recorded_run, copy)
    monkeypatch.setattr(verifying, "check_index", lambda root, buyer: 1)
    return copy


def test_the_figures_are_those_of_the_recorded_run(report: Report, recorded_run: Path) -> None:
    found, run = Verified.of(report), report.delivered
    tables = json.loads((Path(__file__).parents[1] / "vectors" / "golden_run.json").read_text())["payouts"]
    listed = [path for path in recorded_run.rglob("*") if path.is_file()]
    summary = json.loads((recorded_run / "summary.json").read_text())

    assert (found.verifiers, found.epochs, found.final_epochs) == (4, 2, 2)
    assert found.manifests == len(list((recorded_run / "bundle" / "links").iterdir()))
    assert found.signers == min(len(link.certificate.verifiers) for link in run.links) >= 3
    assert found.updates == sum(len(link.manifest.commits) for link in run.links)
    assert found.paid == sum(amount for table in tables.values() for *_, amount in table["rows"])
    assert found.bundle_files == sum((recorded_run / "bundle") in path.parents for path in listed)
    assert found.bundle_files < found.files <= len(listed)
    assert found.tokens == run.spec.data.tokens
    assert found.record is not None and found.record.hex() == summary["record"]
    assert found.final_block == max(block.number for block in report.final)
    anchor = json.loads((recorded_run / "bundle" / "anchor.json").read_text())
    assert found.anchor_block == anchor["block_number"]
    assert report.log_point is not None and found.books_size == report.log_point.size


def test_the_lines_say_the_figures(report: Report) -> None:
    found, lines = Verified.of(report), list(report_lines(report))
    by_name = {line.split(": ", 1)[0]: line for line in lines}

    assert f"{found.files} files as the buyer {found.buyer}" in by_name["index"]
    assert (
        f"{found.manifests} manifests, each certified by at least {found.signers} of 4 verifiers"
        in by_name["chain"]
    )
    assert f"{found.updates} signed contributions" in by_name["updates"]
    assert "replayed from the seed" in by_name["parameters"]
    assert f"2 epochs, {found.paid} units" in by_name["settlements"]
    assert f"2 of 2 results are final on chain, the last in block {found.final_block} " in by_name["finality"]
    assert found.record is not None and f"record {found.record.hex()}" in by_name["registry"]
    assert f"books: {found.books_size} leaves" in by_name["books"]
    assert by_name["books"].endswith("with the root that ledger.db has")
    assert f"all {found.bundle_files} files equal" in by_name["bundle"]
    assert by_name["summary"] and "entries, root" in by_name["anchor"]
    assert f"block {found.anchor_block} (" in by_name["anchor"]
    assert "block and transaction as the buyer states them" in by_name["anchor"]


def test_what_was_not_delivered_is_said_and_not_claimed(report: Report) -> None:
    bare = replace(report, final=(), registered=None, log_point=None, anchor=None, anchored="")
    text = "\n".join(report_lines(bare))

    assert "finality: no proof" in text and "registry: the model was not on record" in text
    assert "books: not checked against a checkpoint" in text and "anchor:" not in text
    assert "books elsewhere" in "\n".join(report_lines(replace(report, anchored="")))
    found = Verified.of(bare)
    assert (found.final_epochs, found.final_block, found.record) == (0, None, None)
    assert (found.books_size, found.anchor_block) == (None, None)
    alone = replace(report, delivered=replace(report.delivered, root=Path("/nowhere")))
    assert "summary:" not in "\n".join(report_lines(alone))
    assert "ledger.db" not in "\n".join(report_lines(alone))
    assert "books:" not in "\n".join(report_lines(replace(alone, log_point=None)))


def edit(path: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.update(run_id="00" * 32),
        lambda told: told.update(rounds_finalised=9),
        lambda told: told.update(record=None),
        lambda told: told["money"].update(paid_operators=told["money"]["paid_operators"] + 1),
        lambda told: told["money"].update(paid_verifiers=told["money"]["paid_verifiers"] + 1),
        lambda told: told["money"].update(fees=told["money"]["fees"] + 1),
        lambda told: told.pop("money"),
    ],
    ids=["run", "rounds", "record", "operators", "verifiers", "fees", "no money"],
)
def test_a_summary_that_says_other_money_or_another_model_is_refused(
    report: Report, run: Path, change
) -> None:
    delivered = replace(report.delivered, root=run)
    verifying._check_summary(delivered, report.registered)  # as it was delivered
    edit(run / "summary.json", change)

    with pytest.raises(IntegrityError, match=r"^summary\.json: "):
        verifying._check_summary(delivered, report.registered)


def test_a_summary_of_a_model_that_is_not_on_record_names_none(report: Report, run: Path) -> None:
    delivered = replace(report.delivered, root=run)
    edit(run / "summary.json", lambda told: told.update(record=None))

    verifying._check_summary(delivered, None)


def test_files_that_are_altered_missing_or_too_many_are_named(run: Path) -> None:
    card = run / "bundle" / "model" / "README.md"
    text = card.read_bytes()
    for body in (text + b" ", None):
        card.unlink()
        if body is not None:
            card.write_bytes(body)
        with pytest.raises(IntegrityError, match=r"^bundle/model/README\.md: (differs|missing)"):
            verify(read(run))
        card.write_bytes(text)
    (run / "bundle" / "more").write_bytes(b"")
    with pytest.raises(IntegrityError, match=r"^bundle/more: does not belong"):
        verify(read(run))
    (run / "bundle" / "more").unlink()
    (run / "bundle" / "participants").mkdir()
    (run / "bundle" / "participants" / "more").write_bytes(b"")
    with pytest.raises(IntegrityError, match=r"^bundle/participants/more: does not belong"):
        verify(read(run))


@pytest.mark.parametrize("name", ["adapter", "model/generation_config.json"])
def test_a_link_in_the_bundle_is_named_even_where_it_leads_nowhere_yet(run: Path, name: str) -> None:
    (run / "bundle" / name).symlink_to(run / "participants" / "later")

    with pytest.raises(IntegrityError, match=rf"^bundle/{name}: a link"):
        verify(read(run))


def test_a_report_that_differs_is_refused_wherever_it_differs(run: Path) -> None:
    bundle = run / "bundle"
    told = json.loads((bundle / "report.json").read_text())
    told["rounds"][3]["loss_micro"]["median"] -= 1
    for name, body in (
        ("report.json", canonical_json(told)),
        ("report.html", (bundle / "report.html").read_bytes().replace(b"Loss", b"Gain")),
        ("model/training.png", (bundle / "model" / "training.png").read_bytes() + b"\0"),
    ):
        kept = (bundle / name).read_bytes()
        assert body != kept
        (bundle / name).write_bytes(body)
        with pytest.raises(IntegrityError, match=rf"^bundle/{name}: differs"):
            verify(read(run))
        (bundle / name).write_bytes(kept)


def test_a_bundle_from_before_there_were_reports_is_refused_with_a_word(run: Path) -> None:
    (run / "bundle" / "report.json").unlink()

    with pytest.raises(
        IntegrityError, match=r"^bundle/report\.json: missing; .* version of Assay that wrote it"
    ):
        verify(read(run))


def test_a_picture_by_another_matplotlib_is_not_compared_and_the_lines_say_so(run: Path) -> None:
    path = run / "bundle" / "model" / "training.png"
    report = hashlib.sha256((run / "bundle" / "report.json").read_bytes()).hexdigest()
    path.write_bytes(a_png("matplotlib 2.0.0", report))

    lines = [line for line in report_lines(verify(read(run))) if line.startswith("bundle: ")]

    assert lines and lines[0].endswith("but pictures by matplotlib 2.0.0, which were not compared")
    path.write_bytes(a_png("matplotlib 2.0.0", "00" * 32))
    with pytest.raises(IntegrityError, match=r"^bundle/model/training\.png: drawn from another report"):
        verify(read(run))
    path.write_bytes(b"\x89PNG" + bytes(PICTURE_BYTES_MAX))
    with pytest.raises(IntegrityError, match=r"^bundle/model/training\.png: .* bytes, expected at most"):
        verify(read(run))


def test_an_altered_run_without_summary_books_and_anchor_has_no_such_lines(run: Path) -> None:
    for name in ("summary.json", "ledger.db"):
        (run / name).unlink()
    found = verify(read(run))

    assert found.anchored == "" and found.anchor is not None
    assert not any(line.startswith("summary") for line in report_lines(found))


def test_an_anchor_of_another_account_is_refused(run: Path) -> None:
    edit(run / "bundle" / "anchor.json", lambda told: told.update(ledger_service="0x" + "11" * 20))

    with pytest.raises(IntegrityError, match=r"^bundle/anchor\.json: .*not the run's ledger service"):
        verify(read(run))


def test_books_that_hold_less_than_or_other_than_the_anchored_root_are_refused(run: Path) -> None:
    told = json.loads((run / "bundle" / "anchor.json").read_text())
    anchor = read_plain(Anchored, told)

    assert f"{anchor.size} of " in check_books(run, None, anchor)
    with pytest.raises(IntegrityError, match=r"^ledger\.db: the books were rolled back"):
        check_books(run, None, replace(anchor, size=10**6))
    with pytest.raises(IntegrityError, match=r"^ledger\.db: root 0000"):
        check_books(run, None, replace(anchor, root=bytes(32)))
    (run / "ledger.db").unlink()
    with pytest.raises(IntegrityError, match=r"^ledger\.db: .*no ledger\.db here"):
        check_books(run, None, anchor)


def one_more(event: ChainEvent) -> ChainEvent:
    """A buyer that is said to have put in a unit more, and to have had it back."""
    if isinstance(event, RunOpened):
        return replace(event, budget=event.budget + 1)
    return replace(event, amount=event.amount + 1) if isinstance(event, Refunded) else event


def book_again(delivered: Delivered, run: Path, change: Callable[[ChainEvent], ChainEvent]) -> Edge:
    """Write the run's books anew, from changed events."""
    with opened(find_books(run)) as db:
        events = [change(event) for event in read_events(db, *EVENTS, Gifted)]
    (run / "ledger.db").unlink()
    begin, end = delivered.deployment.block, events[-1].block_number + 1
    books = BookStore(run / "ledger.db", delivered.run_id, first_block=begin)
    Recorder(delivered.spec, delivered.run_id, books).book_rounds(delivered.links, delivered.tables)
    books.take_blocks(events, begin, end, delivered.tables)
    with books.reading() as db:
        edge = read_edge(db)
    books.close()
    return edge


def test_books_that_a_quorum_did_not_cosign_are_refused_whatever_the_buyer_says_is_anchored(
    report: Report, run: Path
) -> None:
    edge, point = book_again(report.delivered, run, one_more), report.log_point
    assert point is not None and report.anchor is not None
    stated = replace(report.anchor, size=edge.size, root=edge.root)

    assert check_books(run, None, stated).startswith(f"{edge.size} of {edge.size} entries")
    for anchor in (stated, None):
        with pytest.raises(IntegrityError, match=r"^ledger\.db: root .* is cosigned by a quorum"):
            check_books(run, point, anchor)
    with pytest.raises(IntegrityError, match=r"^ledger\.db: root .* is cosigned by a quorum"):
        verify(read(run))


def test_books_whose_amounts_are_not_those_of_their_events_are_refused(
    report: Report, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "book", lambda books, event, *told: book(books, one_more(event), *told))
    book_again(report.delivered, run, lambda event: event)

    with pytest.raises(IntegrityError, match=r"^ledger\.db: entry event/.* what its RunOpened leads to"):
        check_books(run, None, None)


def test_a_spec_beside_the_index_names_no_other_log_to_check_the_books_by(report: Report, run: Path) -> None:
    spec = report.delivered.spec
    (run / "spec.cbor").write_bytes(encode(replace(spec, verifiers=spec.verifiers[::-1])))

    with pytest.raises(IntegrityError, match=r"^ledger\.db: .*/spec\.cbor: differs from"):
        verify(read(run))


def test_an_altered_update_aggregate_or_result_is_named(run: Path) -> None:
    delivered = read(run)
    inputs, links = verifying._inputs(delivered), list(delivered.links)
    signed, *rest = links[1].manifest.commits
    false = replace(signed, commit=replace(signed.commit, state=Digest(b"x" * 32)))
    links[1] = replace(links[1], manifest=replace(links[1].manifest, commits=(false, *rest)))
    with pytest.raises(IntegrityError, match="a commit on other parameters"):
        verifying.replay(replace(delivered, links=tuple(links)), inputs, lambda _: None)
    links = list(delivered.links)
    links[0] = replace(links[0], manifest=replace(links[0].manifest, aggregate=Digest(b"x" * 32)))
    with pytest.raises(IntegrityError, match=r"000000\.cbor: its aggregate does not follow"):
        verifying.replay(replace(delivered, links=tuple(links)), inputs, lambda _: None)
    one = delivered.settled[0]
    false = replace(one, result=replace(one.result, model_hash=bytes(32)))
    with pytest.raises(IntegrityError, match="the updates lead to"):
        verifying.replay(replace(delivered, settled={**delivered.settled, 0: false}), inputs, lambda _: None)


# ---- reading


@pytest.mark.parametrize(
    "name", ["spec.cbor", "deployment.json", "links/000003.cbor", "settlements/epoch-001.json"]
)
def test_a_file_that_is_missing_or_torn_is_named(run: Path, name: str) -> None:
    path = run / "bundle" / name
    body = path.read_bytes()
    path.write_bytes(body[:-2])
    with pytest.raises(IntegrityError, match=f"^bundle/{name}: "):
        read(run)
    path.unlink()
    with pytest.raises(IntegrityError, match=f"^bundle/{name}: missing"):
        read(run)


def test_a_folder_without_a_bundle_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no delivered run"):
        read(tmp_path)


def test_a_blob_that_is_altered_is_named(run: Path) -> None:
    delivered = read(run)
    commit = delivered.links[0].manifest.commits[0].commit
    aggregate = delivered.links[0].manifest.aggregate
    assert delivered.load(commit.update) == delivered.update(commit)
    assert delivered.load(aggregate) == delivered.aggregate(0) != b""
    for folder, name in (("updates", commit.update), ("aggregates", aggregate)):
        (run / "bundle" / folder / f"{name.hex()}.bin").write_bytes(b"else")
        with pytest.raises(IntegrityError, match=f"^bundle/{folder}/{name.hex()}.bin: altered"):
            delivered.load(name)


def test_a_node_is_found_by_the_only_prefix_that_fits(recorded_run: Path) -> None:
    peers = [member.peer for member in read(recorded_run).spec.nodes]
    name = peers[0].hex()

    assert find_node(peers, name) == find_node(peers, name.upper()) == peers[0]
    for text, words in (("", "no node"), ("zz", f"there are {name[:8]},"), (name + "0", "no node")):
        with pytest.raises(ConfigError, match=words):
            find_node(peers, text)
    with pytest.raises(ConfigError, match="several nodes begin"):
        find_node([peers[0], type(peers[0])(peers[0][:31] + bytes([peers[0][31] ^ 1]))], name[:8])
