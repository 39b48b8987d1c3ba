"""What speaks for a machine: a program of the operator's, or a key in tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from nacl.signing import SigningKey

from assay.attestation.binding import report_data
from assay.attestation.evidence import DeviceFamily, Evidence, Report
from assay.node.attesters import CommandAttester, command_attester, software_attester
from assay.protocol.errors import ConfigError, Unavailable
from assay.protocol.types import Digest
from tests.attestation.authorities import a_binding
from tests.attestation.evidence_file import write_evidence

CODE = Digest(b"c" * 32)


def a_program(folder: Path, body: str, family: str = "tdx") -> CommandAttester:
    path = folder / "attester.py"
    path.write_text("import json, sys\nasked = json.load(sys.stdin)\n" + body)
    return command_attester([family, sys.executable, str(path)])


def test_a_program_is_asked_with_the_binding_and_answers_with_evidence(tmp_path: Path) -> None:
    main = Report(family=DeviceFamily.TDX, body=b"quote", certificates=())
    (tmp_path / "evidence.json").write_text(write_evidence(Evidence(main=main, gpus=())))
    attester = a_program(
        tmp_path,
        f"json.dump(asked, open({str(tmp_path / 'asked.json')!r}, 'w'))\n"
        f"print(open({str(tmp_path / 'evidence.json')!r}).read())\n",
    )

    found = attester.evidence(a_binding())

    assert found.main == main
    asked = json.loads((tmp_path / "asked.json").read_text())
    assert asked["report_data"] == report_data(a_binding(), ()).hex()
    assert asked["nonce"] == a_binding().nonce.hex()
    assert set(asked) == {"context", "gpu_nonce", "nonce", "report_data"}


@pytest.mark.parametrize(
    ("body", "family", "words"),
    [
        ("sys.exit('no device')", "tdx", "exit status 1, 'no device'"),
        ("print('nonsense')", "tdx", "is not JSON"),
        ("", "tdx", "is not JSON"),
        ("print('x' * 5_000_000)", "tdx", "at most"),
        (
            "print(json.dumps({'family': 'sgx', 'report': 'cQ=='}))",
            "tdx",
            "sgx, expected tdx",
        ),
    ],
    ids=["fails", "nonsense", "nothing", "too much", "another family"],
)
def test_a_program_that_does_not_answer_with_its_evidence_is_no_evidence(
    tmp_path: Path, body: str, family: str, words: str
) -> None:
    with pytest.raises(Unavailable, match=words):
        a_program(tmp_path, body, family).evidence(a_binding())


def test_a_program_that_is_not_there_is_no_evidence(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file"):
        command_attester(["tdx", str(tmp_path / "nothing")]).evidence(a_binding())


@pytest.mark.parametrize("words", [[], ["tdx"], ["software", "x"], ["nvidia-cc", "x"], ["vax", "x"]], ids=str)
def test_a_command_names_a_processors_family_and_a_program(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="expected a processor's family"):
        command_attester(words)


def test_a_software_attester_has_the_key_in_its_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("6b" * 32 + "\n")

    assert bytes(software_attester(path, CODE).key) == bytes(SigningKey(b"k" * 32))
    for text in ("6b" * 31, "6b" * 33, "no key", ""):
        path.write_text(text)
        with pytest.raises(ConfigError, match="attester key"):
            software_attester(path, CODE)
    with pytest.raises(ConfigError, match="attester key"):
        software_attester(tmp_path / "nothing", CODE)
