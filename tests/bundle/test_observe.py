"""A run is copied while it goes on, from servers that lie, and is then the delivered one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from assay.bundle.fetch import Part
from assay.bundle.follow import OBSERVED, STORE, read_any
from assay.bundle.observe import observe
from assay.bundle.read import BUNDLE, link_name, read
from assay.bundle.replay.spot_check import spot_check
from assay.explorer.catalogue import open_runs
from assay.participant.files.index import INDEX, IntegrityError
from assay.participant.store import Store
from assay.protocol.errors import ConfigError, Unavailable
from assay.protocol.types import Digest
from tests.bundle.a_file_server import Serve, serving
from tests.bundle.a_participant import a_participant
from tests.explorer.an_explorer import served

pytestmark = pytest.mark.slow

FIRST = f"{BUNDLE}/{link_name(0)}"


@pytest.fixture
def serve(recorded_run: Path) -> Iterator[Serve]:
    with serving(recorded_run) as start:
        yield start


def never() -> None:
    pytest.fail("it waits for more")


def after(times: int, what: Callable[[], None]) -> Callable[[], None]:
    """A pause that does something at its last call of so many."""
    left = times

    def pause() -> None:
        nonlocal left
        left -= 1
        time.sleep(0.05)
        if not left:
            what()

    return pause


def stop() -> None:
    raise KeyboardInterrupt


def test_an_explorers_live_run_is_followed_spot_checked_meanwhile_and_then_fetched(
    recorded_run: Path, tmp_path: Path
) -> None:
    run, folder, copy = (
        read(recorded_run),
        a_participant(recorded_run, tmp_path / "buyer", rounds=3),
        tmp_path / "copy",
    )
    checked, seen = [], list[int]()

    def grow() -> None:
        """Once: three rounds are here. Then the run goes on to its end and is delivered."""
        if not checked:
            assert len(read_any(copy).links) == 3
            (copy / "data").symlink_to(recorded_run / "data")
            checked.append(spot_check(copy, 1.0, 7))
            store = Store(folder / STORE)
            for link in run.links[3:]:
                store.add_link(link)
            store.close()
        elif len(seen) == len(run.links) and not (folder / BUNDLE).exists():
            assert read_any(copy).run_states[-1] == run.run_states[-1]
            shutil.copytree(recorded_run, folder, dirs_exist_ok=True)
        time.sleep(0.05)

    with served(*open_runs([folder], lambda _: None).values()) as url:
        fetched = observe([f"{url}/runs/buyer/files"], run.run_id, copy, pause=grow, on_round=seen.append)

    (check,) = checked
    assert check.steps_here == sum(len(link.manifest.commits) for link in run.links[:2]) and check.is_ok
    assert seen == list(range(len(run.links)))
    again = read(copy)
    assert (again.links, again.settled, again.sizes) == (run.links, run.settled, run.sizes)
    # Nothing is fetched twice: spec, deployment, chain, updates, aggregates and the reader's data were there.
    data = sum(path.is_file() for path in (recorded_run / "data").rglob("*"))
    assert fetched.files_kept == 2 + len(run.links) + len(run.sizes) + data
    assert not (copy / OBSERVED).exists()


def test_what_the_chain_does_not_name_is_not_served(recorded_run: Path, tmp_path: Path) -> None:
    run, folder = read(recorded_run), a_participant(recorded_run, tmp_path / "buyer", rounds=3)
    shutil.copy(folder / "network.txt", folder / "blobs" / f"{'ab' * 32}.blob")  # such as an opening
    late = run.links[3].manifest.commits[0].commit.update.hex()  # of a round that is not certified yet

    with served(*open_runs([folder], lambda _: None).values()) as url:
        for name in (
            f"updates/{'ab' * 32}.bin",
            f"updates/{late}.bin",
            link_name(3),
            "../store.db",
            "spec.cbo",
        ):
            assert status_of(f"{url}/runs/buyer/files/{BUNDLE}/{name}") == 404, name
        assert status_of(f"{url}/runs/buyer/files/{BUNDLE}/{link_name(2)}") == 200


def status_of(url: str) -> int:
    """The status of an answer."""
    return requests.get(url, timeout=10).status_code


def test_a_fetch_that_was_stopped_asks_for_nothing_twice(
    recorded_run: Path, tmp_path: Path, serve: Serve
) -> None:
    run, server = read(recorded_run), serve()
    server.bodies[f"{BUNDLE}/{link_name(4)}"] = None
    server.bodies[INDEX] = None
    with pytest.raises(KeyboardInterrupt):
        observe([server.url], run.run_id, tmp_path, pause=after(1, stop))
    assert len(read_any(tmp_path).links) == 4
    del server.bodies[f"{BUNDLE}/{link_name(4)}"], server.bodies[INDEX]
    before = {name for name, _ in server.asked if name.startswith(f"{BUNDLE}/links") or name.endswith(".bin")}
    server.asked.clear()

    observe([server.url], run.run_id, tmp_path, pause=never)

    assert before and not (before - {f"{BUNDLE}/{link_name(4)}"}) & {name for name, _ in server.asked}
    assert read(tmp_path).links == run.links
    assert observe([server.url], run.run_id, tmp_path, pause=never).bytes_fetched < 10**5  # its index alone


def test_a_proof_has_no_updates(recorded_run: Path, tmp_path: Path, serve: Serve) -> None:
    server = serve()

    observe([server.url], read(recorded_run).run_id, tmp_path, part=Part.PROOF, pause=never)

    assert not [name for name, _ in server.asked if "/updates/" in name or "/aggregates/" in name]
    (tmp_path / "data").symlink_to(recorded_run / "data")
    with pytest.raises(IntegrityError, match="missing"):
        spot_check(tmp_path, 1.0, 1)


@pytest.mark.parametrize("kind", ["links", "updates", "aggregates"])
def test_a_source_that_lies_is_named_and_another_that_does_not_suffices(
    kind: str, recorded_run: Path, tmp_path: Path, serve: Serve
) -> None:
    run, liar, honest = read(recorded_run), serve(), serve()
    manifest = run.links[1].manifest
    name = {
        "links": link_name(1),
        "updates": f"updates/{manifest.commits[0].commit.update.hex()}.bin",
        "aggregates": f"aggregates/{manifest.aggregate.hex()}.bin",
    }[kind]
    # Another valid manifest, or other bytes: what a quorum signed for another place, or nobody.
    liar.bodies[f"{BUNDLE}/{name}"] = (recorded_run / FIRST).read_bytes()

    with pytest.raises(IntegrityError, match=liar.url) as told:
        observe([liar.url], run.run_id, tmp_path / "one", pause=never)

    assert name in str(told.value) and len(read_any(tmp_path / "one").links) == 1
    observe([liar.url, honest.url], run.run_id, tmp_path / "two", pause=never)
    assert read(tmp_path / "two").links == run.links


@pytest.mark.parametrize("kind", ["updates", "aggregates"])
def test_what_is_longer_than_a_manifest_says_is_broken_off(
    kind: str, recorded_run: Path, tmp_path: Path, serve: Serve
) -> None:
    run, liar = read(recorded_run), serve()
    manifest = run.links[1].manifest
    digest = manifest.commits[0].commit.update if kind == "updates" else manifest.aggregate
    liar.bodies[f"{BUNDLE}/{kind}/{digest.hex()}.bin"] = bytes(40_000_000)

    with pytest.raises(IntegrityError, match=digest.hex()):  # and not that more was received than is allowed
        observe([liar.url], run.run_id, tmp_path, bytes_max=10_000_000, pause=never)


def test_a_deployment_that_is_another_is_not_kept_and_the_next_source_is_asked(
    recorded_run: Path, tmp_path: Path, serve: Serve
) -> None:
    run_id, liar = read(recorded_run).run_id, serve()
    liar.bodies[f"{BUNDLE}/deployment.json"] = b"{}"

    with pytest.raises(Unavailable, match="no source has it"):
        observe([liar.url], run_id, tmp_path, pause=never)
    observe([liar.url, serve().url], run_id, tmp_path, pause=never)

    assert read(tmp_path).run_id == run_id


def test_what_a_crash_left_of_a_file_is_fetched_again(
    recorded_run: Path, tmp_path: Path, serve: Serve
) -> None:
    run, server = read(recorded_run), serve()
    server.bodies[f"{BUNDLE}/{link_name(3)}"] = server.bodies[INDEX] = None
    with pytest.raises(KeyboardInterrupt):
        observe([server.url], run.run_id, tmp_path, pause=after(1, stop))
    update = run.links[2].manifest.commits[0].commit.update.hex()
    for name in (link_name(2), f"updates/{update}.bin"):
        (tmp_path / OBSERVED / name).write_bytes(b"")

    with pytest.raises(KeyboardInterrupt):
        observe([server.url], run.run_id, tmp_path, pause=after(1, stop))

    followed = read_any(tmp_path)
    assert followed.links == run.links[:3]
    assert followed.update(run.links[2].manifest.commits[0].commit)


def test_an_index_that_the_buyer_did_not_sign_ends_nothing(
    recorded_run: Path, tmp_path: Path, serve: Serve
) -> None:
    server = serve()
    server.bodies[f"{BUNDLE}/{link_name(2)}"] = None
    index = (recorded_run / INDEX).read_bytes()
    server.bodies[INDEX] = index.replace(b"bundle/model/README.md", b"bundle/model/README.mx")

    with pytest.raises(KeyboardInterrupt):
        observe([server.url], read(recorded_run).run_id, tmp_path, pause=after(2, stop))

    assert not (tmp_path / BUNDLE).exists()


def test_another_run_and_another_folder_are_refused(recorded_run: Path, tmp_path: Path, serve: Serve) -> None:
    server, run_id = serve(), read(recorded_run).run_id
    with pytest.raises(Unavailable, match=f"no source has it.*{run_id.hex()}"):
        observe([server.url], Digest(bytes(32)), tmp_path / "other", pause=never)
    assert not (tmp_path / "other").exists()

    server.bodies[FIRST] = server.bodies[INDEX] = None
    with pytest.raises(KeyboardInterrupt):
        observe([server.url], run_id, tmp_path / "mine", pause=after(1, stop))
    with pytest.raises(ConfigError, match="expected 0000"):
        observe([server.url], Digest(bytes(32)), tmp_path / "mine", pause=never)


def test_more_than_the_reader_allows_is_not_received(
    recorded_run: Path, tmp_path: Path, serve: Serve
) -> None:
    with pytest.raises(ConfigError, match="more than 100000 bytes"):
        observe([serve().url], read(recorded_run).run_id, tmp_path, bytes_max=100_000, pause=never)
