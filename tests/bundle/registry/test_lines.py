"""`assay registry show`: the entry for people, and words for what is no entry."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.bundle.registry.document import entry_json
from assay.bundle.registry.lines import entry_lines, find_entry
from assay.bundle.write import write_bundle
from assay.cli.main import app
from assay.protocol.errors import ConfigError
from tests.bundle.test_write import finished


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_bundle(folder / "bundle", finished())
    return folder


@pytest.mark.parametrize("place", [".", "bundle"])
def test_a_run_and_its_bundle_are_shown_alike(run: Path, place: str) -> None:
    shown = CliRunner().invoke(app, ["registry", "show", str(run / place)])

    assert shown.exit_code == 0
    registered = finished().registered
    assert registered is not None and registered.record_id.hex() in shown.stdout
    assert "made up (none): 40,000 tokens" in shown.stdout
    assert "FLOP verification" in shown.stdout
    assert "6 of 6 contributions accepted" in shown.stdout


def test_json_is_the_file_byte_for_byte(run: Path) -> None:
    shown = CliRunner().invoke(app, ["registry", "show", str(run), "--json"])

    assert shown.stdout.encode() == (run / "bundle" / "registry" / "entry.json").read_bytes()


def test_what_a_source_is_called_cannot_steer_a_terminal(run: Path) -> None:
    _, entry = find_entry(run)
    source = replace(entry.data.sources[0], source="\x1b[2Jnice\nrecord on chain  forged")

    lines = entry_lines(replace(entry, data=replace(entry.data, sources=(source,))))

    assert not any("\x1b" in line or "\n" in line for line in lines)
    assert sum(line.startswith("record on chain") for line in lines) == 1


def test_the_document_cannot_steer_a_terminal_either_and_says_the_same(run: Path, tmp_path: Path) -> None:
    _, entry = find_entry(run)
    steering = replace(entry.model, licence="MIT Zürich \x9b2J\u202e\x7f\U000e0001")
    body = entry_json(replace(entry, model=steering))
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry" / "entry.json").write_bytes(body)

    shown = CliRunner().invoke(app, ["registry", "show", str(tmp_path), "--json"]).stdout

    assert shown.removesuffix("\n").isprintable() and "MIT Zürich" in shown
    assert json.loads(shown) == json.loads(body)


def test_no_number_is_too_large_to_show(run: Path) -> None:
    _, entry = find_entry(run)
    tokens = replace(entry.tokens, epochs_over_data_milli=10**400 + 7)

    (line,) = (one for one in entry_lines(replace(entry, tokens=tokens)) if "tokens processed" in one)

    assert line.endswith("00.007 times")


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 1000])
def test_what_is_no_entry_is_refused_in_words(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry" / "entry.json").write_bytes(body)

    with pytest.raises(ConfigError, match="not a registry entry"):
        find_entry(tmp_path)


def test_an_entry_of_another_form_is_refused_in_words(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no delivered run"):
        find_entry(tmp_path)
    (tmp_path / "registry").mkdir()
    entry = json.loads((run / "bundle" / "registry" / "entry.json").read_bytes())
    (tmp_path / "registry" / "entry.json").write_text(json.dumps({**entry, "flop": {"accepted": 1}}))
    with pytest.raises(ConfigError, match=r"not a registry entry \(flop\.discarded: missing\)"):
        find_entry(tmp_path)
