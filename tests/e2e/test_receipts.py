"""Receipts, reports and replays of one real run, by somebody who has nothing but its folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from eth_utils.crypto import keccak

from assay.node.messages import StepRecord
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.messages import CertifiedManifest
from assay.protocol.types import NO_DIGEST
from tests.a_drand import a_network, a_signature, info, serving
from tests.e2e.nets import SPARSELOCO, localnet, need_anvil, summary_of, write_order

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_anvil()
    folder = tmp_path_factory.mktemp("net")
    with localnet(folder, write_order(folder, rounds=13)) as process:
        summary_of(process)
    return folder / "run"


@pytest.fixture(scope="module")
def inner_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a method with inner steps and a lie in them, and draws that a drand network has a part in."""
    need_anvil()
    folder = tmp_path_factory.mktemp("inner")
    order = write_order(folder, rounds=5, cheat="wrong-data@2", train=SPARSELOCO)
    network = a_network(period_s=1)
    (folder / "info.json").write_text(json.dumps(info(network)))
    with serving(network) as url:
        told = f'[verify]\ndrand = "info.json"\ndrand_urls = ["{url}"]\n'
        order.write_text(order.read_text().replace("[verify]\n", told))
        with localnet(folder, order) as process:
            summary_of(process)
    return folder / "run"


def assay(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "assay.cli.main", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


def nodes_of(run: Path) -> dict[str, str]:
    """Peers by behaviour; of the honest ones, the first."""
    told: list[dict[str, Any]] = json.loads((run / "summary.json").read_text())["nodes"]
    return {one["behaviour"]: one["peer"] for one in reversed(told)}


def test_a_receipt_made_from_a_run_is_checked_without_it(run: Path, tmp_path: Path) -> None:
    run_id = json.loads((run / "summary.json").read_text())["run_id"]
    node = nodes_of(run)["honest"]
    path = tmp_path / "receipt.json"

    made = assay("receipt", "make", run, "2", node[:8], "--out", path)
    assert made.returncode == 0, made.stderr
    good = assay("receipt", "verify", path, "--run-id", run_id, cwd=tmp_path)
    assert good.returncode == 0, good.stderr
    assert "PASSED" in good.stdout
    assert "a leaf under the root" in good.stdout
    told = json.loads(path.read_text())["pay"]["anchor"]
    assert f"hash 0x{keccak(bytes.fromhex(told['header'])).hex()}: compare" in good.stdout

    keys = [one["peer"] for one in json.loads((run / "summary.json").read_text())["verifiers"]]
    known = [word for key in keys for word in ("--verifier", key)]
    assert assay("receipt", "verify", path, *known).returncode == 0
    other = assay("receipt", "verify", path, *known[2:])
    assert (other.returncode, other.stdout) == (1, "")

    told = json.loads(path.read_text())
    told["pay"]["row"]["amount"] += 1
    path.write_text(json.dumps(told))
    bad = assay("receipt", "verify", path)
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr == "assay: pay: the row is not under the signed root\n"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("receipt", "make", "{run}", "2", "zz"), 2),
        (("receipt", "make", "{run}", "99", "{node}"), 2),
        (("receipt", "make", "{run}", "12", "{liar}"), 2),
        (("receipt", "make", "nowhere", "2", "{node}"), 2),
        (("receipt", "verify", "nowhere.json"), 2),
        (("receipt", "verify", "{run}/summary.json"), 1),
        (("receipt", "verify", "{run}/bundle/receipts/round-000002.json", "--run-id", "12"), 2),
        (("receipt", "verify", "{run}/bundle/receipts/round-000002.json", "--run-id", "12" * 32), 1),
        (("audit", "report", "nowhere"), 2),
        (("audit", "report", "{run}", "--html", "no/such/folder/page.html"), 2),
        (("audit", "replay", "{run}:2"), 2),
        (("audit", "replay", "{run}:99:{node}"), 2),
        (("audit", "replay", "{run}:2:zz"), 2),
        (("audit", "odds", "--rate", "3"), 2),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_status(
    run: Path, tmp_path: Path, words: tuple[str, ...], status: int
) -> None:
    nodes = nodes_of(run)
    filled = [w.format(run=run, node=nodes["honest"], liar=nodes["stale-parameters"]) for w in words]
    done = assay(*filled, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith("assay: ")
    assert done.stderr.count("\n") == 1


def test_a_rounds_summary_is_checked_where_it_lies_and_refused_when_altered(
    run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run / "bundle", copy / "bundle")
    path = copy / "bundle" / "receipts" / "round-000003.json"
    good = assay("receipt", "verify", path)
    assert good.returncode == 0, good.stderr

    told = json.loads(path.read_text())
    told["contributions"][0]["audit"] = None if told["contributions"][0]["audit"] else {}
    path.write_text(json.dumps(told))
    bad = assay("receipt", "verify", path)
    assert bad.returncode == 1
    assert "round-000003.json: differs" in bad.stderr

    alone = tmp_path / "round-000003.json"
    shutil.copy(run / "bundle" / "receipts" / "round-000003.json", alone)
    assert assay("receipt", "verify", alone).returncode == 2


def test_the_report_names_the_planted_liar_and_writes_a_page(run: Path, tmp_path: Path) -> None:
    done = assay("audit", "report", run, "--json", "--html", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)

    assert told["cheats"]["caught"] == [nodes_of(run)["stale-parameters"]]
    # On a slow machine an honest opening may come late, and be accused; it is never confirmed.
    assert (told["cheats"]["power"], told["false_alarms"]["confirmed"]) == (1.0, 0)
    summary = json.loads((run / "summary.json").read_text())
    assert told["all"]["drawn"] == summary["audits"]["drawn"]
    assert "<script" not in (tmp_path / "page.html").read_text()
    assert "stale-parameters@2" in assay("audit", "report", run).stdout


def test_an_altered_link_ends_a_report(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "bundle", tmp_path / "run" / "bundle")
    path = tmp_path / "run" / "bundle" / "links" / "000004.cbor"
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(bytes(body))

    done = assay("audit", "report", tmp_path / "run")

    assert done.returncode == 1
    assert done.stderr.startswith("assay: bundle/links/000004.cbor: ")


@pytest.mark.parametrize(
    ("options", "how"), [((), "opened blocks"), (("--no-opening", "--from-start"), "made again")]
)
def test_a_replay_says_of_truth_and_lie_what_the_chain_said(
    run: Path, options: tuple[str, ...], how: str
) -> None:
    nodes = nodes_of(run)
    good = assay("audit", "replay", f"{run}:3:{nodes['honest']}", *options)
    bad = assay("audit", "replay", f"{run}:2:{nodes['stale-parameters']}", *options)

    assert good.returncode == 0, good.stderr
    assert "verdict     MATCH" in good.stdout
    assert how in good.stdout
    assert bad.returncode == 1, bad.stderr
    assert "verdict     MISMATCH" in bad.stdout
    assert "MISMATCH by" in bad.stdout  # whether this step or the next was upheld first


def test_a_replay_finds_the_distance_and_block_that_the_auditors_signed(run: Path) -> None:
    done = assay("audit", "replay", f"{run}:2:{nodes_of(run)['stale-parameters']}")
    signed = done.stdout.split("MISMATCH by ")[1].split("(")[1].split(")")[0]
    distance, _, block = signed.partition(" at block ")
    assert f"distance    {distance} of the gradient's norm, most in block {block};" in done.stdout


def test_without_an_opening_there_is_evidence_and_no_verdict(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"  # as a stranger gets it: no participants
    shutil.copytree(run / "bundle", copy / "bundle")
    shutil.copytree(run / "data", copy / "data")
    node = nodes_of(run)["honest"]

    done = assay("audit", "replay", f"{copy}:4:{node}")
    assert done.returncode == 0, done.stderr
    assert "verdict     none: evidence" in done.stdout
    assert "opening     none at hand" in done.stdout
    first = assay("audit", "replay", f"{copy}:0:{node}")  # began afresh: nothing about it is private
    assert "verdict     MATCH: the whole private state" in first.stdout


def test_a_record_that_the_commit_does_not_bind_is_no_verdict(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    node = nodes_of(run)["honest"]
    for path in copy.glob("participants/node-*/steps/00000004.cbor"):
        record = decode(StepRecord, path.read_bytes())
        path.write_bytes(encode(replace(record, salt=NO_DIGEST)))

    done = assay("audit", "replay", f"{copy}:4:{node}")

    assert done.returncode == 0, done.stderr
    assert (
        "none that the commit binds: sketch opening: salt and sketch do not open the commitment"
        in done.stdout
    )
    assert "verdict     none: evidence" in done.stdout


@pytest.mark.parametrize(
    ("who", "verdict", "status"), [("honest", "MATCH", 0), ("stale-parameters", "MISMATCH", 1)]
)
def test_another_execution_class_is_judged_by_the_runs_limits(
    run: Path, who: str, verdict: str, status: int
) -> None:
    done = assay("audit", "replay", f"{run}:2:{nodes_of(run)[who]}", "--threads", "2")
    assert done.returncode == status, done.stderr
    assert f"verdict     {verdict}: the opened blocks, by the run's limits" in done.stdout


def test_inner_steps_are_replayed_too(inner_run: Path) -> None:
    nodes = nodes_of(inner_run)
    for options in ((), ("--no-opening", "--from-start")):
        good = assay("audit", "replay", f"{inner_run}:2:{nodes['honest']}", *options)
        bad = assay("audit", "replay", f"{inner_run}:2:{nodes['wrong-data']}", *options)
        assert "verdict     MATCH" in good.stdout, good.stdout + good.stderr
        assert "verdict     MISMATCH" in bad.stdout, bad.stdout + bad.stderr


def test_what_drand_said_has_a_part_in_draws_and_is_in_the_receipt(inner_run: Path, tmp_path: Path) -> None:
    links = [
        decode(CertifiedManifest, path.read_bytes()).manifest
        for path in sorted((inner_run / "bundle" / "links").iterdir())
    ]
    carried = {
        before.drand_next: after.drand for before, after in pairwise(links) if after.drand
    }  # a leader after an iteration that was given up may leave it out
    assert carried and carried == {number: a_signature(number) for number in carried}

    step = next(int(m.round) for m, after in pairwise(links) if m.commits and after.drand)
    path = tmp_path / "receipt.json"
    made = assay("receipt", "make", inner_run, str(step), nodes_of(inner_run)["honest"], "--out", path)
    assert made.returncode == 0, made.stderr
    done = assay("receipt", "verify", path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"and drand round {links[step].drand_next}, all of them checked" in done.stdout


def test_looking_changes_nothing_in_the_run(run: Path) -> None:
    """The buyer's signed index covers every file of the folder."""
    done = assay("run", "verify", run)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 results are final on chain" in done.stdout
