"""A whole network of real processes: trains, catches a cheater, pays, and proves it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from assay.devnet.summary import invariants, read_summary
from assay.participant.index import write_index
from assay.participant.keyring import load_keys
from tests.e2e.nets import (
    SPARSELOCO,
    kill,
    localnet,
    need_anvil,
    reports,
    summary_of,
    wait_for_round,
    write_order,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], int]:
    """One run, shared by the tests that only look at it."""
    need_anvil()
    folder = tmp_path_factory.mktemp("net")
    with localnet(folder, write_order(folder)) as process:
        summary = summary_of(process)
        return folder / "run", summary, process.returncode


def verify(run: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "assay.cli.main", "run", "verify", str(run)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_invariant_holds_and_the_exit_status_says_so(
    finished: tuple[Path, dict[str, Any], int],
) -> None:
    _, summary, status = finished
    assert invariants(read_summary(json.dumps(summary))) == []
    assert summary["ok"] is True
    assert status == 0


def test_the_cheater_and_nobody_else_is_slashed(finished: tuple[Path, dict[str, Any], int]) -> None:
    _, summary, _ = finished
    slashed = {node["behaviour"]: node["slashed"] for node in summary["nodes"] if node["slashed"]}
    assert list(slashed) == ["stale-parameters"]
    assert all(node["paid"] > 0 for node in summary["nodes"] if node["behaviour"] == "honest")


def test_validation_loss_falls(finished: tuple[Path, dict[str, Any], int]) -> None:
    _, summary, _ = finished
    assert summary["loss"]["validation_last"] < summary["loss"]["validation_first"] - 0.1


def test_a_delivered_run_verifies_offline(finished: tuple[Path, dict[str, Any], int]) -> None:
    run, _, _ = finished
    done = verify(run)
    assert done.returncode == 0, done.stderr
    assert "byte for byte" in done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "bundle/spec.cbor",
        "bundle/links/000003.cbor",
        "bundle/model/model.safetensors",
        "bundle/model/README.md",
        "bundle/settlements/epoch-000.json",
        "bundle/receipts/round-000001.json",
        "bundle/updates/*.bin",
        "bundle/aggregates/*.bin",
        "bundle/registry/entry.json",
        "bundle/registry/record.json",
        "bundle/registry/log-checkpoint.txt",
        "bundle/registry/provenance.json",
        "bundle/registry/release.pub",
        "bundle/registry/training-content-summary.md",
        "bundle/registry/technical-documentation.md",
        "bundle/registry/croissant.json",
        "bundle/registry/ml-bom.cdx.json",
        "summary.json",
        "index.json",
        "ledger.db",
        "data/manifest.json",
        "data/shards/*.bin",
        "logs/verifier-0.log",
    ],
)
def test_one_flipped_byte_anywhere_is_found_and_named(
    finished: tuple[Path, dict[str, Any], int], tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    path = sorted(run.glob(name))[0]
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)

    done = verify(run)

    assert done.returncode == 1
    assert path.relative_to(run).as_posix() in done.stderr


def test_the_model_is_on_record_and_the_entry_says_what_the_run_was(
    finished: tuple[Path, dict[str, Any], int],
) -> None:
    run, summary, _ = finished
    entry = json.loads((run / "bundle" / "registry" / "entry.json").read_text())

    assert entry["record"]["record_id"] == summary["record"]
    assert entry["flop"]["accepted"] > entry["flop"]["discarded"] > 0
    assert entry["flop"]["verification"] > 0
    assert entry["audits"]["rulings"]["confirmed"] == summary["audits"]["failed"]
    assert entry["settlement"]["paid"]["operator"] == summary["money"]["paid_operators"]
    banned = [one["peer"] for one in entry["participants"]["operators"] if one["banned"]]
    assert banned == [node["peer"] for node in summary["nodes"] if node["slashed"]]
    assert len(entry["log"]["cosigners"]) >= 3
    shown = subprocess.run(
        [sys.executable, "-m", "assay.cli.main", "registry", "show", str(run)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert summary["record"] in shown


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("entry.json", b'"provider":""', b'"provider":"X"'),
        ("entry.json", b'"discarded":', b'"discarded":1'),
        ("entry.json", b'"size":', b'"size":1'),
        ("record.json", b'"certificate": "', b'"certificate": "00'),
        ("record.json", b'"parent": "00', b'"parent": "01'),
        ("log-checkpoint.txt", b"\n\n", b"\n1\n"),
        ("provenance.json", b'"payload": "e', b'"payload": "f'),
        ("provenance.json", b'"sig": "M', b'"sig": "N'),
        ("training-content-summary.md", b"less than 1 billion", b"more than 10 trillion"),
        ("croissant.json", b'"none"', b'"CC0"'),
        ("ml-bom.cdx.json", b'"1.6"', b'"1.5"'),
    ],
)
def test_a_buyer_that_alters_the_registry_and_signs_the_index_again_is_found(
    finished: tuple[Path, dict[str, Any], int], tmp_path: Path, name: str, old: bytes, new: bytes
) -> None:
    """What the index cannot show: each file follows from the run or carries somebody else's signature."""
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    path = run / "bundle" / "registry" / name
    body = path.read_bytes()
    assert old in body
    path.write_bytes(body.replace(old, new))
    people = run / "participants"
    keys = load_keys(people / "buyer" / "keys", (people / "password").read_text())
    write_index(run, keys.account)

    done = verify(run)

    assert done.returncode == 1
    assert "bundle/registry/" in done.stderr


def test_a_run_that_was_indexed_again_by_a_stranger_is_refused(
    finished: tuple[Path, dict[str, Any], int], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished[0], run)
    (run / "summary.json").write_text(json.dumps({**finished[1], "wall_s": 1}))
    write_index(run, bytes(31) + b"\x01")

    done = verify(run)

    assert done.returncode == 1
    assert "index.json" in done.stderr


def test_killed_processes_come_back_and_nothing_is_lost_or_signed_twice(tmp_path: Path) -> None:
    need_anvil()
    order = write_order(tmp_path, rounds=12)
    run = tmp_path / "run"
    with localnet(tmp_path, order) as process:
        for round_id, victim in (
            (1, "verifier-1"),
            (3, "node-0"),
            (5, "verifier-2"),
            (6, "ledger"),
            (8, "node-1"),
        ):
            wait_for_round(process, run, round_id)
            kill(run, victim)
        wait_for_round(process, run, 12)
        kill(run, "buyer")
        summary = summary_of(process)

    assert invariants(read_summary(json.dumps(summary))) == []
    assert [r["round"] for r in reports(run) if r["kind"] == "round"] == list(range(12 + 10))
    assert verify(run).returncode == 0
    for log in (run / "logs").iterdir():
        assert "two things" not in log.read_text()
        assert "two updates" not in log.read_text()


@pytest.mark.parametrize("cheat", ["two-commits@2", "withhold-opening@2"])
def test_other_ways_to_cheat_cost_stake_too(tmp_path: Path, cheat: str) -> None:
    need_anvil()
    with localnet(tmp_path, write_order(tmp_path, rounds=8, cheat=cheat)) as process:
        summary = summary_of(process)

    assert invariants(read_summary(json.dumps(summary))) == []
    slashed = {node["behaviour"]: node["slashed"] for node in summary["nodes"] if node["slashed"]}
    assert list(slashed) == [cheat.split("@")[0]]


def test_an_auditor_who_recomputes_nothing_loses_stake_and_no_node_does_for_it(tmp_path: Path) -> None:
    need_anvil()
    order = write_order(tmp_path, rounds=10)
    with localnet(tmp_path, order, "--behave", "v1=pass-all", "--behave", "v2=honest") as process:
        summary = summary_of(process)

    assert invariants(read_summary(json.dumps(summary))) == []
    lazy = next(one for one in summary["verifiers"] if one["behaviour"] == "pass-all")
    assert lazy["audits"] > 0
    assert lazy["slashed"] > 0
    assert lazy["paid"] == 0
    slashed = [node["behaviour"] for node in summary["nodes"] if node["slashed"]]
    assert slashed == ["stale-parameters"]
    assert verify(tmp_path / "run").returncode == 0
    report = tell(tmp_path / "run")
    told = next(one for one in report["verifiers"] if one["behaviour"] == "pass-all")
    assert told["faults"]
    assert all(not one["faults"] for one in report["verifiers"] if one is not told)


def tell(run: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "assay.cli.main", "audit", "report", str(run), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("cheat", ["wrong-data@2"])
def test_nodes_that_take_steps_of_their_own_are_held_to_the_same(tmp_path: Path, cheat: str) -> None:
    """SparseLoCo: two segments a round, of which each audit repeats one."""
    need_anvil()
    with localnet(tmp_path, write_order(tmp_path, rounds=8, cheat=cheat, train=SPARSELOCO)) as process:
        summary = summary_of(process)
        status = process.returncode

    assert invariants(read_summary(json.dumps(summary))) == []
    assert (summary["ok"], status) == (True, 0)
    slashed = {node["behaviour"]: node["slashed"] for node in summary["nodes"] if node["slashed"]}
    assert list(slashed) == [cheat.split("@")[0]]
    assert all(node["paid"] > 0 for node in summary["nodes"] if node["behaviour"] == "honest")
    assert summary["loss"]["validation_last"] < summary["loss"]["validation_first"] - 0.1
    done = verify(tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "byte for byte" in done.stdout


def test_the_checkpoint_has_one_form(finished: tuple[Path, dict[str, Any], int]) -> None:
    """With two keys of metadata the library chooses their order, and bytes would not repeat."""
    from safetensors import safe_open

    with safe_open(finished[0] / "bundle" / "model" / "model.safetensors", "np") as checkpoint:
        assert checkpoint.metadata() == {"format": "pt"}
