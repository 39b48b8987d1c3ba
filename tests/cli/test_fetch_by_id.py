"""A run is fetched by its id alone: its members say where, and only the id is believed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from assay.bundle.fetch import Part
from assay.bundle.read import read
from assay.cli.fetch import Sources, fetch_run, found_sources
from assay.explorer.catalogue import open_runs
from assay.participant.directory.explorers import is_local
from assay.participant.files.index import IntegrityError
from assay.participant.files.record import Role
from assay.protocol.errors import ConfigError
from assay.testing.signed import VERIFIERS
from tests.a_network import NOW, a_record, a_run_file
from tests.bundle.conftest import recorded_run as recorded_run
from tests.explorer.an_explorer import served
from tests.participant.directory.a_directory import ADirectory

RUN = a_run_file()


def announced(
    monkeypatch: pytest.MonkeyPatch, *explorers: str, endpoints: Sequence[str] = ("http://127.0.0.1:1",)
) -> None:
    """A network in whose directory the run's verifiers name these explorers."""
    there = ADirectory()
    for name, url in zip(VERIFIERS, explorers, strict=False):
        there.announce(a_record(name, Role.VERIFIER, now_s=NOW + 9, explorer=url), 5)
    monkeypatch.setattr("assay.cli.network.directory.chain_of", lambda *_: there)
    monkeypatch.setattr(
        "assay.cli.network.commands.read_given", lambda _: SimpleNamespace(endpoints=endpoints)
    )
    monkeypatch.setattr("assay.participant.directory.listing.read_listed_run", lambda *_: (None, RUN))


def test_the_explorers_of_a_runs_members_are_asked_for_it_by_its_id(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    announced(monkeypatch, "http://127.0.0.1:8600", "https://b.example.org/x")

    found = found_sources([RUN.run_id.hex()], None, "network.txt", None)

    assert set(found.addresses) == {
        f"{url}/runs/{RUN.run_id.hex()}/files" for url in ("http://127.0.0.1:8600", "https://b.example.org/x")
    }
    assert (found.run_id, found.is_public) == (RUN.run_id.hex(), False)
    assert "from http://127.0.0.1:8600" in capsys.readouterr().err


def test_addresses_are_taken_as_given_and_another_id_beside_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = found_sources(["https://a.org/x"], "ab", "network.txt", None)
    assert given == Sources(["https://a.org/x"], "ab", is_public=False)
    announced(monkeypatch, "http://127.0.0.1:8600")
    assert found_sources([RUN.run_id.hex()], RUN.run_id.hex(), "network.txt", None).run_id == RUN.run_id.hex()
    with pytest.raises(ConfigError, match="expected one of them"):
        found_sources([RUN.run_id.hex()], "ab" * 32, "network.txt", None)


def test_a_public_networks_members_send_nobody_into_the_readers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    announced(monkeypatch, "http://127.0.0.1:8600", endpoints=("https://rpc.example.org",))

    with pytest.raises(ConfigError, match="none of its 7 members announced an explorer that can be asked"):
        found_sources([RUN.run_id.hex()], None, "network.txt", None)

    announced(monkeypatch, "http://8.8.8.8:8600", endpoints=("https://rpc.example.org",))
    assert found_sources([RUN.run_id.hex()], None, "network.txt", None).is_public


@pytest.mark.parametrize(
    ("endpoints", "local"),
    [
        ([], False), (["http://127.0.0.1:8545"], True), (["http://localhost:1", "http://[::1]:2"], True),
        (["http://127.0.0.1:1", "https://a.org"], False), (["http://127.0.0.1.evil.org"], False),
    ],
)  # fmt: skip
def test_a_network_is_local_if_its_invitation_names_this_machine_alone(
    endpoints: list[str], local: bool
) -> None:
    assert is_local(endpoints) is local


def test_an_explorer_serves_a_run_by_its_id_and_what_is_another_run_is_not_taken(
    recorded_run: Path, tmp_path: Path
) -> None:
    run_id = read(recorded_run).run_id.hex()
    with served(*open_runs([recorded_run], lambda _: None).values()) as url:

        def fetched(expected: str, named: str) -> Path:
            source = f"{url}/runs/{named}/files"
            sources = Sources([source], expected, is_public=False)
            found = fetch_run(sources, tmp_path / expected, Part.PROOF.value, 1, openings=False, follow=False)
            return Path(found.folder)

        assert read(fetched(run_id, run_id)).run_id.hex() == run_id
        with pytest.raises(IntegrityError):
            fetched("ab" * 32, run_id)
        with pytest.raises(IntegrityError, match="404"):
            fetched("ab" * 32, "ab" * 32)
