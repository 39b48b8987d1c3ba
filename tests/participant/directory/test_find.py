"""What the directory holds is a stranger's until it verifies, and then only what it proves itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.participant.directory.find import RECORD_BYTES_MAX, RUN_BYTES_MAX, announced_run, record_in
from assay.participant.files.record import sign_record
from assay.participant.files.run_file import run_file_of
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import ConfigError, MalformedMessage, PeerFault
from assay.testing.members import an_account_key
from assay.testing.signed import a_spec
from tests.a_network import NOW, a_record, a_run_file, bought, keys_of, records_of
from tests.participant.directory.a_directory import ADirectory

RUN = a_run_file()


def test_an_announced_run_is_found_by_its_id_alone():
    there = ADirectory(runs={RUN.run_id: encode(RUN)})

    assert announced_run(there, RUN.run_id, NOW) == RUN
    assert announced_run(there, a_run_file(a_spec(seed=8)).run_id, NOW) is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "in the directory: "),
        (b"\xff" * 100, "in the directory: "),
        (encode(RUN)[:-1], "in the directory: "),
        (encode(RUN) + b"\0", "after the end"),
        (encode(RUN) + bytes(RUN_BYTES_MAX), f"at most {RUN_BYTES_MAX} expected"),
        (encode(a_run_file(a_spec(seed=8))), "the file of run"),
        (encode(run_file_of(bought(), records_of(), an_account_key("mallory"))), "signed by"),
    ],
    ids=["empty", "noise", "cut", "longer", "huge", "another run", "another signer"],
)
def test_whatever_else_is_announced_under_its_id_is_refused(body: bytes, words: str):
    with pytest.raises(ConfigError, match=words):
        announced_run(ADirectory(runs={RUN.run_id: body}), RUN.run_id, NOW)


def test_one_flipped_byte_of_an_announced_run_is_refused():
    good = encode(RUN)
    for at in range(0, len(good), 97):
        body = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        with pytest.raises(ConfigError):
            announced_run(ADirectory(runs={RUN.run_id: body}), RUN.run_id, NOW)


def test_the_longest_record_fits_the_bound():
    longest = a_record("nora", host=".".join(["a" * 63] * 3 + ["b" * 61]), port=65535, now_s=2**33)

    assert record_in(encode(longest), longest.record.account, 2**33) == longest
    assert len(encode(longest)) < RECORD_BYTES_MAX


def test_an_announced_record_is_its_accounts_and_signed():
    mine = a_record("nora")
    lent = sign_record(
        replace(keys_of("nora"), account=keys_of("x").account), mine.record.role, "::1", 1, NOW
    )

    assert record_in(encode(mine), mine.record.account, NOW) == mine
    with pytest.raises(PeerFault, match="another account"):
        record_in(encode(lent), mine.record.account, NOW)
    with pytest.raises(PeerFault):
        record_in(encode(replace(mine, by_hot=a_record("x").by_hot)), mine.record.account, NOW)
    with pytest.raises(MalformedMessage, match=f"at most {RECORD_BYTES_MAX}"):
        record_in(encode(mine) + bytes(RECORD_BYTES_MAX), mine.record.account, NOW)
