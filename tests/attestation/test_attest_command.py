"""`assay attest appraise`: files in, a verdict and an exit status out."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.attestation.binding import report_data
from assay.attestation.evidence import Evidence
from assay.cli.attest import attest_app
from assay.protocol.errors import ConfigError
from tests.attestation.authorities import a_binding
from tests.attestation.evidence_file import write_evidence
from tests.attestation.fake_devices import MEASUREMENT, amd_collateral, amd_root, an_snp_report

AT = "2026-11-20T12:00:00Z"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    collateral = amd_collateral()
    report = an_snp_report(report_data(a_binding(), ()))
    (tmp_path / "evidence.json").write_text(write_evidence(Evidence(main=report, gpus=())))
    (tmp_path / "collateral.json").write_text(
        json.dumps(
            {
                "fetched_at": "2026-11-19T12:00:00Z",
                "certificates": [base64.b64encode(der).decode() for der in collateral.certificates],
                "crls": [base64.b64encode(der).decode() for der in collateral.crls],
            }
        )
    )
    (tmp_path / "policy.toml").write_text(
        f"""
        name = "tests"
        families = ["sev-snp"]
        [snp_tcb_min]
        bootloader = 3
        tee = 0
        snp = 8
        microcode = 115
        [[root]]
        family = "sev-snp"
        sha256 = "{amd_root().sha256.hex()}"
        [[measurement]]
        name = "good"
        family = "sev-snp"
        not_before = 2026-11-01T00:00:00Z
        not_after = 2027-05-01T00:00:00Z
        values = {{ measurement = "{MEASUREMENT.hex()}" }}
        """
    )
    return tmp_path


def arguments(folder: Path, *more: str, at: str = AT, node: bytes = a_binding().node) -> list[str]:
    binding = a_binding()
    return [
        "appraise", str(folder / "evidence.json"),
        "--policy", str(folder / "policy.toml"),
        "--collateral", str(folder / "collateral.json"),
        "--at", at,
        "--binding-deployment", binding.deployment_id.hex(),
        "--binding-node", node.hex(),
        "--binding-run", binding.run_id.hex(),
        "--binding-epoch", str(binding.epoch),
        "--binding-code", binding.code_digest.hex(),
        "--binding-nonce", binding.nonce.hex(),
        "--binding-nonce-at", "2026-11-20T11:59:00Z",
        *more,
    ]  # fmt: skip


def test_good_evidence_prints_its_verdict_and_ends_with_0(folder):
    done = CliRunner().invoke(attest_app, arguments(folder))

    assert done.exit_code == 0, done.output
    assert "verdict     affirming" in done.stdout
    assert "reasons     -" in done.stdout
    for name in ("evidence", "collateral", "policy"):
        (line,) = (line for line in done.stdout.splitlines() if line.startswith(name))
        assert len(bytes.fromhex(line.split()[1])) == 32


def test_anything_else_ends_with_1_and_says_why(folder):
    other = CliRunner().invoke(attest_app, arguments(folder, node=b"n" * 32))
    late = CliRunner().invoke(attest_app, arguments(folder, at="2026-11-22T12:00:00Z"))

    assert (other.exit_code, late.exit_code) == (1, 1)
    assert "verdict     contraindicated" in other.stdout
    assert "reasons     binding" in other.stdout
    assert "reasons     evidence-too-old" in late.stdout


def test_json_says_the_same(folder):
    done = CliRunner().invoke(attest_app, arguments(folder, "--json"))

    said = json.loads(done.stdout)
    assert said["assay_verdict"] == "affirming"
    assert said["dbgstat"] == "disabled-since-boot"


def test_a_policy_may_be_json(folder):
    policy = {
        "name": "nothing",
        "families": [],
        "root": [],
        "measurement": [],
    }
    (folder / "policy.json").write_text(json.dumps(policy))
    given = [part.replace("policy.toml", "policy.json") for part in arguments(folder)]

    done = CliRunner().invoke(attest_app, given)

    assert done.exit_code == 1
    assert "family-refused" in done.stdout


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--at", "yesterday", "--at is 'yesterday', expected the form"),
        ("--binding-node", "00", "--binding-node is '00', expected 64"),
        ("--policy", "/nowhere.toml", "cannot be read"),
        ("--collateral", "/nowhere.json", "cannot be read"),
    ],
)
def test_a_mistake_of_the_operator_is_one_line(folder, option, value, words):
    given = arguments(folder)
    given[given.index(option) + 1] = value

    done = CliRunner().invoke(attest_app, given)

    assert isinstance(done.exception, ConfigError)
    assert words in str(done.exception)


def test_assay_knows_the_command(folder):
    command = [sys.executable, "-m", "assay.cli.main", "attest", *arguments(folder, node=b"n" * 32)]

    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])

    assert done.returncode == 1
    assert "contraindicated" in done.stdout
