"""The index of a delivered run: any later change of any file is seen, and the file is named."""

from __future__ import annotations

import hashlib
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.participant.files.index import INDEX, IntegrityError, check_index, write_index
from assay.testing.members import a_hot_key
from assay.testing.signed import a_member

BUYER, SIGNER = a_hot_key("buyer"), a_member("buyer").hot
FILES = {"summary.json": b"{}", "model/weights.bin": bytes(range(256)) * 20, "empty": b""}


@pytest.fixture
def folder(tmp_path):
    return delivered(tmp_path / "run")


def delivered(folder):
    for name, body in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    write_index(folder, BUYER)
    return folder


def refused(folder, name):
    with pytest.raises(IntegrityError) as caught:
        check_index(folder, SIGNER)
    assert str(caught.value).startswith(f"{name}: ")
    return str(caught.value)


def test_an_untouched_folder_passes_and_its_files_are_counted(folder):
    assert check_index(folder, SIGNER) == len(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_file_is_named(folder, name):
    (folder / name).write_bytes(FILES[name] + b"x")

    assert "altered" in refused(folder, name)


@pytest.mark.parametrize("at", [0, 1, 2559, 5119])
def test_one_flipped_bit_is_seen(folder, at):
    body = bytearray(FILES["model/weights.bin"])
    body[at] ^= 1
    (folder / "model/weights.bin").write_bytes(body)

    refused(folder, "model/weights.bin")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()

    assert "missing" in refused(folder, name)


def test_what_is_a_participants_own_may_change_after_the_delivery(folder):
    own = folder / "participants" / "ledger" / "ledger.db"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"more entries")

    assert check_index(folder, SIGNER) == len(FILES)


@pytest.mark.parametrize(
    "name", ["extra", "model/extra", "index.json.bak", "participants-2", "model/participants"]
)
def test_an_extra_file_is_named(folder, name):
    (folder / name).write_bytes(b"")

    assert "not part" in refused(folder, name)


@pytest.mark.parametrize("name", ["model/adapter", "empty", "data"])
@pytest.mark.parametrize("target", ["participants/a", "participants/a/weights", "nowhere"])
def test_a_link_is_named_and_not_followed(folder, name, target):
    (folder / "participants" / "a").mkdir(parents=True)
    (folder / "participants" / "a" / "weights").write_bytes(FILES["empty"])
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(folder / target)

    assert "a link or a device" in refused(folder, name)
    with pytest.raises(IntegrityError, match=rf"^{name}: a link"):
        write_index(folder, BUYER)


def test_a_link_in_place_of_the_participants_folder_is_named(folder):
    (folder / "participants").symlink_to(folder / "model", target_is_directory=True)

    refused(folder, "participants")


def test_a_pipe_is_named_and_one_of_a_participant_is_not(folder):
    (folder / "participants").mkdir()
    os.mkfifo(folder / "participants" / "pipe")
    assert check_index(folder, SIGNER) == len(FILES)
    os.mkfifo(folder / "model" / "pipe")

    refused(folder, "model/pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_that_cannot_be_read_is_named(folder):
    (folder / "model" / "more").mkdir(mode=0)

    assert "cannot be read" in refused(folder, "model/more")


def test_a_renamed_file_is_named(folder):
    (folder / "summary.json").rename(folder / "zummary.json")

    refused(folder, "summary.json")


def test_two_files_that_changed_places_are_seen(folder):
    (folder / "summary.json").rename(folder / "other")
    (folder / "empty").rename(folder / "summary.json")
    (folder / "other").rename(folder / "empty")

    refused(folder, "empty")


def test_an_index_signed_by_another_key_is_refused(folder):
    write_index(folder, a_hot_key("mallory"))

    assert "not signed by the buyer" in refused(folder, INDEX)


def test_an_index_adapted_to_an_altered_file_is_refused(folder):
    (folder / "empty").write_bytes(b"no longer")
    body = json.loads((folder / INDEX).read_text())
    body["files"]["empty"] = hashlib.sha256(b"no longer").hexdigest()
    (folder / INDEX).write_text(json.dumps(body, indent=1, sort_keys=True) + "\n")

    refused(folder, INDEX)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "5",
        "null",
        '{"files": 5}',
        "[" * 3000 + "]" * 3000,
        '{"files": {}, "signature": "zz"}',
        "\0",
    ],
)
def test_an_index_that_is_none_is_refused(folder, text):
    (folder / INDEX).write_text(text)

    refused(folder, INDEX)


def test_a_missing_index_is_refused(folder):
    (folder / INDEX).unlink()

    refused(folder, INDEX)


def in_capitals(body):
    return {**body, "signature": body["signature"].upper()}


def in_pairs(body):
    return {**body, "files": sorted(body["files"].items())}


def with_spaces(body):
    return {**body, "signature": " ".join(body["signature"][i : i + 2] for i in range(0, 130, 2))}


def with_more(body):
    return {**body, "note": "harmless"}


@pytest.mark.parametrize("respell", [in_capitals, in_pairs, with_spaces, with_more])
def test_an_index_that_only_means_the_same_is_refused(folder, respell):
    body = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps(respell(body), indent=1, sort_keys=True) + "\n")

    refused(folder, INDEX)


def test_one_file_whose_name_looks_like_two_lines_does_not_stand_for_two_files(folder):
    """Signed as lines, `a`, newline, `<hash> b` would read as the files `a` and `b`."""
    body = json.loads((folder / INDEX).read_text())
    files = body["files"]
    merged = f"empty\n{files['model/weights.bin']} model/weights.bin"
    forged = {"summary.json": files["summary.json"], merged: files["empty"]}
    (folder / "model/weights.bin").unlink()
    (folder / merged).parent.mkdir()
    (folder / "empty").rename(folder / merged)
    text = json.dumps({**body, "files": forged}, indent=1, sort_keys=True) + "\n"
    (folder / INDEX).write_text(text)

    refused(folder, INDEX)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_single_byte_of_the_index_can_change(tmp_path_factory, data):
    folder = delivered(tmp_path_factory.mktemp("run"))
    text = bytearray((folder / INDEX).read_bytes())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] ^= data.draw(st.integers(1, 255))
    (folder / INDEX).write_bytes(text)

    refused(folder, INDEX)
