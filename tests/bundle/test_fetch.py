"""A run comes from servers that lie, break off or send without end, and is then as its buyer signed it."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from assay.bundle.fetch import PARTIAL, PIECE_BYTES, SPEC, Client, Part, Progress, fetch
from assay.bundle.proof import proof_lines, verify_proof
from assay.bundle.read import read
from assay.bundle.verify import verify
from assay.chain.commit_statement import evm_address
from assay.chain.statements import address_of
from assay.cli.fetch import fetched_lines
from assay.participant.files.index import INDEX, IntegrityError, write_index
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import ConfigError, Unavailable
from assay.protocol.types import Address, Digest
from assay.testing.members import an_account_key
from tests.bundle.a_file_server import Serve, serving
from tests.test_golden_run import ARCHIVE

pytestmark = pytest.mark.slow

UPDATE = "bundle/updates/"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def serve(run: Path) -> Iterator[Serve]:
    with serving(run) as start:
        yield start


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[None]:
    with pytest.raises(kind) as caught:
        yield
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_whole_run_is_fetched_byte_for_byte(run: Path, serve: Serve, tmp_path: Path) -> None:
    told: list[Progress] = []

    fetched = fetch([serve().url], tmp_path / "copy", on_progress=told.append)

    listed = set(json.loads((run / INDEX).read_bytes())["files"]) | {INDEX}
    assert names(tmp_path / "copy") == listed
    assert all((run / name).read_bytes() == (tmp_path / "copy" / name).read_bytes() for name in listed)
    assert (fetched.run_id, fetched.files_kept) == (read(run).run_id, 0)
    assert (told[-1].files_done, told[-1].files, fetched.files) == (len(listed) - 1,) * 3


def test_the_proof_alone_is_checked_without_updates_and_weights(
    run: Path, serve: Serve, tmp_path: Path
) -> None:
    server = serve()

    fetch([f"{server.url}/{INDEX}"], tmp_path, part=Part.PROOF)

    proved, whole = verify_proof(read(tmp_path)), read(run)
    assert not any(name.startswith((UPDATE, "bundle/model")) for name in names(tmp_path))
    assert (proved.run_id, proved.manifests) == (whole.run_id, len(whole.links))
    assert proved.paid == sum(table.total for table in whole.tables.values()) > 0
    assert proved.files == len(names(tmp_path)) - 1
    receipt = min((tmp_path / "bundle/receipts").iterdir())
    receipt.write_bytes(receipt.read_bytes() + b" ")
    with refused(IntegrityError, receipt.name, "altered"):
        verify_proof(read(tmp_path))


def test_the_key_that_a_spec_names_signs_the_index_and_the_buyers_account_does_not(
    run: Path, serve: Serve, tmp_path: Path
) -> None:
    folder, key, whole = tmp_path / "run", an_account_key("hot"), read(run)
    shutil.copytree(run, folder)
    spec = replace(whole.spec, buyer_key=Address(bytes.fromhex(address_of(key)[2:])))
    (folder / SPEC).write_bytes(encode(spec))
    delivered = replace(whole, root=folder, spec=spec)
    write_index(folder, key)

    fetched = fetch([serve(folder).url], tmp_path / "copy", part=Part.PROOF)
    proved = verify_proof(delivered)

    assert (fetched.buyer, fetched.signed_by) == (evm_address(spec.buyer), address_of(key))
    assert (proved.buyer, proved.signed_by) == (fetched.buyer, fetched.signed_by)
    words = f"the key {address_of(key)} that the spec names for the buyer {evm_address(spec.buyer)} signed"
    for lines in (fetched_lines(fetched), proof_lines(proved)):
        assert any(words in line for line in lines)
    with refused(IntegrityError, "record.json"):  # of another spec; the index before it passed
        verify(delivered)
    write_index(folder, an_account_key("owner"))
    with refused(IntegrityError, "not by the key", address_of(key)):
        fetch([serve(folder).url], tmp_path / "other", part=Part.PROOF)
    for check in (verify_proof, verify):
        with refused(IntegrityError, INDEX, "not signed by the buyer"):
            check(delivered)
    write_index(folder, key)
    with refused(IntegrityError, "not signed by the buyer"):  # where the spec names nobody
        verify(replace(delivered, spec=whole.spec))


def test_the_model_comes_with_the_proof(serve: Serve, tmp_path: Path) -> None:
    fetch([serve().url], tmp_path, part=Part.MODEL)

    assert "bundle/model/model.safetensors" in names(tmp_path)
    assert not any(name.startswith(UPDATE) for name in names(tmp_path))


def test_what_is_there_is_kept_and_what_broke_off_goes_on(run: Path, serve: Serve, tmp_path: Path) -> None:
    server, name = serve(), "bundle/model/model.safetensors"
    server.cut_at[name] = PIECE_BYTES + 1000
    with refused(Unavailable, name, "broke off"):
        fetch([server.url], tmp_path, part=Part.MODEL)
    server.asked.clear()

    fetched = fetch([server.url], tmp_path, part=Part.MODEL)

    assert (name, f"bytes={PIECE_BYTES + 1000}-") in server.asked
    assert (tmp_path / name).read_bytes() == (run / name).read_bytes()
    assert fetched.files_kept > 0
    assert not (tmp_path / PARTIAL).exists()


def test_a_server_that_cannot_send_a_part_sends_all_of_it(run: Path, serve: Serve, tmp_path: Path) -> None:
    server, name = serve(ranges=False), "bundle/model/model.safetensors"
    server.cut_at[name] = PIECE_BYTES + 1000
    with pytest.raises(Unavailable):
        fetch([server.url], tmp_path, part=Part.MODEL)

    fetch([server.url], tmp_path, part=Part.MODEL)

    assert (tmp_path / name).read_bytes() == (run / name).read_bytes()


@pytest.mark.parametrize("body", [None, b"another file", b""], ids=["none", "another", "empty"])
def test_a_file_that_one_source_lacks_or_falsifies_comes_from_the_next(
    body: bytes | None, run: Path, serve: Serve, tmp_path: Path
) -> None:
    liar, name = serve(), "bundle/deployment.json"
    liar.bodies[name] = body

    fetch([liar.url, serve().url], tmp_path, part=Part.PROOF)

    assert (tmp_path / name).read_bytes() == (run / name).read_bytes()


def test_what_a_liar_began_is_fetched_anew_from_the_next(run: Path, serve: Serve, tmp_path: Path) -> None:
    liar, name = serve(), "bundle/model/model.safetensors"
    liar.bodies[name] = b"x" * 4 * PIECE_BYTES
    liar.cut_at[name] = 2 * PIECE_BYTES  # and then nothing: what came stays, to go on with

    fetch([liar.url, serve().url], tmp_path)

    assert (tmp_path / name).read_bytes() == (run / name).read_bytes()


def test_a_falsified_file_that_nobody_has_right_is_named(serve: Serve, tmp_path: Path) -> None:
    liar, name = serve(), "bundle/deployment.json"
    liar.bodies[name] = b"another file"

    with refused(IntegrityError, name, "another file than the run's"):
        fetch([liar.url], tmp_path, part=Part.PROOF)

    assert not (tmp_path / name).exists()


def test_a_file_without_end_stops_the_fetch(serve: Serve, tmp_path: Path) -> None:
    liar = serve()
    liar.bodies["bundle/deployment.json"] = bytes(10_000_000)

    with refused(ConfigError, "more than 5000000 bytes"):
        fetch([liar.url], tmp_path, part=Part.PROOF, bytes_max=5_000_000)


def test_a_source_that_sends_without_end_is_left_at_its_share_and_the_next_is_asked(
    run: Path, serve: Serve, tmp_path: Path
) -> None:
    liar, name, told = serve(), "bundle/deployment.json", list[str]()
    liar.bodies[name] = bytes(10_000_000)

    fetched = fetch(
        [liar.url, serve().url], tmp_path, part=Part.PROOF, bytes_max=8_000_000, on_slow=told.append
    )

    assert (tmp_path / name).read_bytes() == (run / name).read_bytes()
    assert fetched.bytes_fetched < 8_000_000
    assert len(told) == 1 and told[0].startswith(liar.url) and "its share of 4000000 bytes" in told[0]


def test_a_source_that_never_answered_is_not_waited_for_once_all_others_have_sent_their_shares(
    serve: Serve, tmp_path: Path
) -> None:
    liar, gone = serve(), "http://127.0.0.1:9/"
    liar.bodies["bundle/deployment.json"] = bytes(10_000_000)

    with refused(ConfigError, "more than 8000000 bytes"):
        fetch([liar.url, gone], tmp_path, part=Part.PROOF, bytes_max=8_000_000)


@pytest.mark.parametrize("is_up", [False, True], ids=["down", "lacks all"])
def test_sources_that_have_nothing_leave_their_shares_to_the_one_that_has_all(
    is_up: bool, run: Path, serve: Serve, tmp_path: Path
) -> None:
    needed = fetch([serve().url], tmp_path / "one", part=Part.PROOF).bytes_fetched
    others = [serve(tmp_path / "none").url if is_up else f"http://127.0.0.1:9/{at}" for at in range(5)]

    fetched = fetch([serve().url, *others], tmp_path / "two", part=Part.PROOF, bytes_max=2 * needed)

    assert read(tmp_path / "two").run_id == read(run).run_id
    assert fetched.bytes_fetched <= 2 * needed
    with refused(ConfigError, f"more than {needed // 2} bytes"):
        fetch([serve().url, *others], tmp_path / "three", part=Part.PROOF, bytes_max=needed // 2)


def test_a_source_from_which_a_file_came_keeps_its_share_and_one_that_sent_its_own_is_named(
    serve: Serve, tmp_path: Path
) -> None:
    liar, honest = serve(tmp_path), serve(tmp_path)
    liar.bodies |= {"a": None, "b": bytes(10_000_000), "c": None}
    honest.bodies |= {"a": b"a", "b": None, "c": bytes(3_000_000)}
    client = Client([liar.url, honest.url], 8_000_000, gives_back=True)
    client.file("a", lambda path: path.read_bytes() == b"a", tmp_path)

    with refused(Unavailable, liar.url, "has sent its share of 4000000 bytes"):
        client.file("b", lambda path: False, tmp_path)

    assert client.received <= 4_000_000 + 1 + PIECE_BYTES
    client.file("c", lambda path: path.stat().st_size == 3_000_000, tmp_path)


def test_what_idle_sources_leave_goes_to_whom_a_right_file_came_from(serve: Serve, tmp_path: Path) -> None:
    liar, honest = serve(tmp_path), serve(tmp_path)
    liar.bodies |= {"a": None, "b": bytes(10_000_000)}
    honest.bodies |= {"a": b"a", "b": bytes(3_000_000)}
    idle = [f"http://127.0.0.1:9/{at}" for at in range(4)]
    client = Client([liar.url, honest.url, *idle], 6_000_000, gives_back=True)
    client.file("a", lambda path: path.read_bytes() == b"a", tmp_path)

    client.file("b", lambda path: path.stat().st_size == 3_000_000, tmp_path)


def test_what_a_source_lacks_for_now_does_not_take_its_share(serve: Serve, tmp_path: Path) -> None:
    liar, honest = serve(tmp_path), serve(tmp_path)
    liar.bodies["a"], honest.bodies["a"] = bytes(10_000_000), None
    client = Client([liar.url, honest.url, "http://127.0.0.1:9/"], 9_000_000)
    with refused(Unavailable, "has sent its share of 3000000 bytes"):
        client.file("a", lambda path: path.read_bytes() == b"a", tmp_path)

    honest.bodies["a"] = b"a"

    client.file("a", lambda path: path.read_bytes() == b"a", tmp_path)


def test_that_more_is_needed_is_not_said_while_a_source_is_down(serve: Serve, tmp_path: Path) -> None:
    liar = serve(tmp_path)
    liar.bodies["a"] = bytes(10_000_000)
    client = Client([liar.url, "http://127.0.0.1:9/"], 8_000_000)

    with refused(ConfigError, "all that answered have sent their shares of 8000000 bytes"):
        client.file("a", lambda path: False, tmp_path)


def test_a_source_that_is_named_twice_has_one_share(run: Path, serve: Serve, tmp_path: Path) -> None:
    source = serve()
    needed = fetch([source.url], tmp_path / "one", part=Part.PROOF).bytes_fetched

    fetch([source.url, source.url + "/"], tmp_path / "two", part=Part.PROOF, bytes_max=needed)

    assert read(tmp_path / "two").run_id == read(run).run_id


def test_an_index_of_somebody_else_is_refused_and_the_next_source_is_asked(
    run: Path, serve: Serve, tmp_path: Path
) -> None:
    forged = tmp_path / "forged"
    forged.mkdir()
    for name in ("spec.cbor", "deployment.json"):
        (forged / "bundle").mkdir(exist_ok=True)
        (forged / "bundle" / name).write_bytes((run / "bundle" / name).read_bytes())
    write_index(forged, b"\x07" * 32)
    liar = serve(forged)

    with refused(IntegrityError, "not by the buyer"):
        fetch([liar.url], tmp_path / "one", part=Part.PROOF)
    fetch([liar.url, serve().url], tmp_path / "two", part=Part.PROOF)

    assert read(tmp_path / "two").run_id == read(run).run_id


def test_another_run_than_the_expected_one_is_refused(serve: Serve, tmp_path: Path) -> None:
    with refused(IntegrityError, "expected " + "07" * 32):
        fetch([serve().url], tmp_path, run_id=Digest(b"\x07" * 32))
    assert not names(tmp_path)


def test_the_index_of_a_fetch_that_was_stopped_is_not_there_and_another_run_does_not_go_on_with_it(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve()
    server.bodies["bundle/report.html"] = None
    with refused(Unavailable, "bundle/report.html"):
        fetch([server.url], tmp_path)

    assert not (tmp_path / INDEX).exists()  # an explorer of this folder would call the run damaged
    (tmp_path / PARTIAL / INDEX).write_text("{}")
    with refused(ConfigError, "another run"):
        fetch([serve().url], tmp_path)


def test_a_folder_with_another_run_is_left_alone(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("{}")

    with refused(ConfigError, "another run"):
        fetch([serve().url], tmp_path)
    assert (tmp_path / INDEX).read_text() == "{}"


def test_a_link_that_leads_out_of_the_folder_is_not_written_through(serve: Serve, tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (inside / "bundle").symlink_to(outside)

    with refused(ConfigError, "leads out"):
        fetch([serve().url], inside, part=Part.PROOF)
    assert not names(outside)


@pytest.mark.parametrize("source", ["runs/mine", "ftp://example.org/run", "http://", "http://x/?a=b"])
def test_what_is_no_address_is_refused(source: str, tmp_path: Path) -> None:
    with refused(ConfigError, "expected an address"):
        fetch([source], tmp_path)


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with refused(IntegrityError, "no answer"):
        fetch(["http://127.0.0.1:9/run"], tmp_path)


def test_a_source_that_sends_on_to_another_place_is_not_followed(tmp_path: Path, serve: Serve) -> None:
    there, moved = serve(), serve()
    moved.moved_to = there.url + "/"

    with pytest.raises(IntegrityError, match="answered with status 302"):
        fetch([moved.url], tmp_path)

    assert not there.asked
