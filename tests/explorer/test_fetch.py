"""An explorer serves what a run's index lists, and `assay run fetch` makes a copy of it that verifies."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import pytest

from assay.bundle.read import read
from assay.cli.main import run as assay
from assay.explorer.catalogue import open_runs
from assay.participant.files.index import INDEX
from tests.explorer.an_explorer import asking, served
from tests.test_golden_run import ARCHIVE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "golden"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    (folder / "participants").mkdir()
    (folder / "participants" / "keys").write_text("secret")
    (folder / "bundle" / "note").write_text("not part of what was delivered")
    return folder


def called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["assay", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        assay()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out or err


def test_only_what_the_index_lists_is_served(folder: Path) -> None:
    client = asking(*open_runs([folder], lambda _: None).values())

    for name in (INDEX, "bundle/spec.cbor", "ledger.db"):
        found = client.get(f"/runs/golden/files/{name}")
        assert (found.status_code, found.content) == (200, (folder / name).read_bytes()), name
    for name in ("participants/keys", "bundle/note", "bundle/..%2findex.json", "bundle", ""):
        assert client.get(f"/runs/golden/files/{name}").status_code == 404, name
    part = client.get("/runs/golden/files/bundle/spec.cbor", headers={"Range": "bytes=10-"})
    assert (part.status_code, part.content) == (206, (folder / "bundle/spec.cbor").read_bytes()[10:])


def test_a_fetched_proof_verifies_and_a_part_of_a_run_is_no_whole_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(*open_runs([folder], lambda _: None).values()) as url:
        words = (
            "run",
            "fetch",
            f"{url}/runs/golden/files",
            "--out",
            tmp_path / "copy",
            "--only",
            "proof",
            "--json",
        )
        code, out = called(monkeypatch, capsys, *words)

    assert code == 0 and json.loads(out)["run_id"] == read(folder).run_id.hex()
    whole = asking(*open_runs([folder], lambda _: None).values()).get("/runs/golden").text
    assert "as its bundle states them" not in whole
    code, out = called(monkeypatch, capsys, "run", "verify", tmp_path / "copy", "--only", "proof")
    assert code == 0 and "not recomputed" in out
    page = asking(*open_runs([tmp_path / "copy"], lambda _: None).values()).get("/runs/copy")
    assert page.status_code == 200 and "as its bundle states them" in page.text
    code, out = called(monkeypatch, capsys, "run", "verify", tmp_path / "copy")
    assert code == 1 and "missing" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "weights"), "proof, model, all"),
        (("--run-id", "12"), "64 hexadecimal digits"),
        (("--most", "0"), "more than 0 bytes"),
    ],
)
def test_what_is_asked_for_wrongly_is_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...], said: str,
) -> None:  # fmt: skip
    with served(*open_runs([folder], lambda _: None).values()) as url:
        code, out = called(
            monkeypatch, capsys, "run", "fetch", f"{url}/runs/golden/files", "--out", tmp_path, *words
        )

    assert code == 2 and said in out and len(out.splitlines()) == 1
