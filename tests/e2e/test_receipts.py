"""Receipts, reports and replays of one real run, by somebody who has nothing but its folder."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partialmethod
from itertools import pairwise
from pathlib import Path

import pytest
from eth_utils.crypto import keccak

from assay.bundle.read import read
from assay.bundle.report.audits import final_audits
from assay.node.messages import StepRecord
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.messages import CertifiedManifest, Outcome
from assay.protocol.types import NO_DIGEST
from assay.verifier.audit.worker import RecomputeWorker
from tests.a_drand import a_signature
from tests.conftest import Assay
from tests.e2e.conftest import Finished

pytestmark = pytest.mark.slow


def _upheld(finished: Finished) -> Audit:
    """The audit that convicted the liar: of its first false step or of a later one, as the auditors came."""
    liar = bytes.fromhex(finished.peer("stale-parameters"))
    audits = final_audits(read(finished.run).run_states).values()
    return next(one for one in audits if one.node == liar and one.ruling is AuditStatus.CONFIRMED)


def _judged(finished: Finished) -> list[int]:
    """Rounds of the liar's audited steps, up to the one that was confirmed: the first lie is one of them."""
    upheld = _upheld(finished)
    audits = final_audits(read(finished.run).run_states).values()
    return sorted(int(one.round) for one in audits if one.node == upheld.node and one.round <= upheld.round)


def _upheld_step(finished: Finished) -> str:
    """Its step, as `assay audit replay` takes it."""
    upheld = _upheld(finished)
    return f"{finished.run}:{upheld.round}:{upheld.node.hex()}"


def test_a_receipt_made_from_a_run_is_checked_without_it(
    assay: Assay, finished: Finished, tmp_path: Path
) -> None:
    run_id = finished.summary["run_id"]
    node = finished.peer("honest")
    path = tmp_path / "receipt.json"

    made = assay("receipt", "make", finished.run, "2", node[:8], "--out", path)
    assert made.status == 0, made.err
    good = assay("receipt", "verify", path, "--run-id", run_id)
    assert good.status == 0, good.err
    assert "PASSED" in good.out
    assert "a leaf under the root" in good.out
    told = json.loads(path.read_text())["pay"]["anchor"]
    assert f"hash 0x{keccak(bytes.fromhex(told['header'])).hex()}: compare" in good.out

    keys = [one["peer"] for one in finished.summary["verifiers"]]
    known = [word for key in keys for word in ("--verifier", key)]
    assert assay("receipt", "verify", path, *known).status == 0
    other = assay("receipt", "verify", path, *known[2:])
    assert (other.status, other.out) == (1, "")

    told = json.loads(path.read_text())
    told["pay"]["row"]["amount"] += 1
    path.write_text(json.dumps(told))
    bad = assay("receipt", "verify", path)
    assert (bad.status, bad.out) == (1, "")
    assert bad.err == "assay: pay: the row is not under the signed root\n"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("receipt", "make", "{run}", "2", "zz"), 2),
        (("receipt", "make", "{run}", "99", "{node}"), 2),
        (("receipt", "make", "{run}", "2", "{verifier}"), 2),
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
    assay: Assay,
    finished: Finished,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, ...],
    status: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    verifier = finished.summary["verifiers"][0]["peer"]
    places = {"run": finished.run, "node": finished.peer("honest"), "verifier": verifier}
    filled = [word.format(**places) for word in words]
    done = assay(*filled)
    assert done.status == status, done.err
    assert done.err.startswith("assay: ")
    assert done.err.count("\n") == 1


def test_a_rounds_summary_is_checked_where_it_lies_and_refused_when_altered(
    assay: Assay, finished: Finished, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished.run / "bundle", copy / "bundle")
    path = copy / "bundle" / "receipts" / "round-000003.json"
    good = assay("receipt", "verify", path)
    assert good.status == 0, good.err

    told = json.loads(path.read_text())
    told["contributions"][0]["audit"] = None if told["contributions"][0]["audit"] else {}
    path.write_text(json.dumps(told))
    bad = assay("receipt", "verify", path)
    assert bad.status == 1
    assert "round-000003.json: differs" in bad.err

    alone = tmp_path / "round-000003.json"
    shutil.copy(finished.run / "bundle" / "receipts" / "round-000003.json", alone)
    assert assay("receipt", "verify", alone).status == 2


def test_the_report_names_the_planted_liar_and_writes_a_page(
    assay: Assay, finished: Finished, tmp_path: Path
) -> None:
    done = assay("audit", "report", finished.run, "--json", "--html", tmp_path / "page.html")
    assert done.status == 0, done.err
    told = json.loads(done.out)["audits"]

    assert told["cheats"]["caught"] == [finished.peer("stale-parameters")]
    # On a slow machine an honest opening may come late, and be accused; it is never confirmed.
    assert (told["cheats"]["power"], told["false_alarms"]["confirmed"]) == (1.0, 0)
    assert told["all"]["drawn"] == finished.summary["audits"]["drawn"]
    assert "<script" not in (tmp_path / "page.html").read_text()
    assert "stale-parameters@2" in assay("audit", "report", finished.run).out


def test_an_altered_link_ends_a_report(assay: Assay, finished: Finished, tmp_path: Path) -> None:
    shutil.copytree(finished.run / "bundle", tmp_path / "run" / "bundle")
    path = tmp_path / "run" / "bundle" / "links" / "000004.cbor"
    body = bytearray(path.read_bytes())
    body[-1] ^= 1
    path.write_bytes(bytes(body))

    done = assay("audit", "report", tmp_path / "run")

    assert done.status == 1
    assert done.err.startswith("assay: bundle/links/000004.cbor: ")


@pytest.mark.parametrize(
    ("options", "how"), [((), "opened blocks"), (("--no-opening", "--from-start"), "made again")]
)
def test_a_replay_says_of_truth_and_lie_what_the_chain_said(
    assay: Assay, finished: Finished, options: tuple[str, ...], how: str
) -> None:
    good = assay("audit", "replay", f"{finished.run}:3:{finished.peer('honest')}", *options)
    # A state made again tells the first lie alone, which a later step's conviction may have overtaken.
    rounds = _judged(finished) if options else [int(_upheld(finished).round)]
    steps = (f"{finished.run}:{at}:{_upheld(finished).node.hex()}" for at in rounds)
    bad = next(done for step in steps if (done := assay("audit", "replay", step, *options)).status)

    assert good.status == 0, good.err
    assert "verdict     MATCH" in good.out
    assert how in good.out
    assert bad.status == 1, bad.err
    assert "verdict     MISMATCH" in bad.out
    if not options:
        assert "the chain   CONFIRMED: " in bad.out
        assert "MISMATCH by" in bad.out


def test_a_replay_finds_the_distances_and_blocks_that_the_auditors_signed(
    assay: Assay, finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First looks are in the node's class, second ones in the reference class, which measures otherwise."""
    upheld = _upheld(finished)
    seen = [
        f"{verdict.distance_ppb / 1e9:.2e} of the gradient's norm, most in block {verdict.block};"
        for verdict in upheld.verdicts
        if verdict.outcome is Outcome.MISMATCH
    ]

    step = _upheld_step(finished)
    told = assay("audit", "replay", step).out
    in_reference = partialmethod(RecomputeWorker.examine, in_reference=True)
    monkeypatch.setattr(RecomputeWorker, "examine", in_reference)
    told += assay("audit", "replay", step).out

    assert seen
    assert all(f"distance    {one}" in told for one in seen)


def test_without_an_opening_there_is_evidence_and_no_verdict(
    assay: Assay, finished: Finished, tmp_path: Path
) -> None:
    copy = tmp_path / "run"  # as a stranger gets it: no participants
    shutil.copytree(finished.run / "bundle", copy / "bundle")
    shutil.copytree(finished.run / "data", copy / "data")
    node = finished.peer("honest")

    done = assay("audit", "replay", f"{copy}:4:{node}")
    assert done.status == 0, done.err
    assert "verdict     none: evidence" in done.out
    assert "opening     none at hand" in done.out
    first = assay("audit", "replay", f"{copy}:0:{node}")  # began afresh: nothing about it is private
    assert "verdict     MATCH: the whole private state" in first.out


def test_a_record_that_the_commit_does_not_bind_is_no_verdict(
    assay: Assay, finished: Finished, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished.run, copy)
    node = finished.peer("honest")
    for path in copy.glob("participants/node-*/steps/00000004.cbor"):
        record = decode(StepRecord, path.read_bytes())
        path.write_bytes(encode(replace(record, salt=NO_DIGEST)))

    done = assay("audit", "replay", f"{copy}:4:{node}")

    assert done.status == 0, done.err
    assert (
        "none that the commit binds: sketch opening: salt and sketch do not open the commitment" in done.out
    )
    assert "verdict     none: evidence" in done.out


@pytest.mark.parametrize(
    ("who", "verdict", "status"), [("honest", "MATCH", 0), ("stale-parameters", "MISMATCH", 1)]
)
def test_another_execution_class_is_judged_by_the_runs_limits(
    assay: Assay, finished: Finished, who: str, verdict: str, status: int
) -> None:
    done = assay("audit", "replay", f"{finished.run}:2:{finished.peer(who)}", "--threads", "2")
    assert done.status == status, done.err
    assert f"verdict     {verdict}: the opened blocks, by the run's limits" in done.out


def test_inner_steps_are_replayed_too(assay: Assay, inner: Finished) -> None:
    for options in ((), ("--no-opening", "--from-start")):
        good = assay("audit", "replay", f"{inner.run}:2:{inner.peer('honest')}", *options)
        bad = assay("audit", "replay", f"{inner.run}:2:{inner.peer('wrong-data')}", *options)
        assert "verdict     MATCH" in good.out, good.out + good.err
        assert "verdict     MISMATCH" in bad.out, bad.out + bad.err


def test_what_drand_said_has_a_part_in_draws_and_is_in_the_receipt(
    assay: Assay, inner: Finished, tmp_path: Path
) -> None:
    links = [
        decode(CertifiedManifest, path.read_bytes()).manifest
        for path in sorted((inner.run / "bundle" / "links").iterdir())
    ]
    carried = {
        before.drand_next: after.drand for before, after in pairwise(links) if after.drand
    }  # a leader after an iteration that was given up may leave it out
    assert carried and carried == {number: a_signature(number) for number in carried}

    step = next(int(m.round) for m, after in pairwise(links) if m.commits and after.drand)
    path = tmp_path / "receipt.json"
    made = assay("receipt", "make", inner.run, str(step), inner.peer("honest"), "--out", path)
    assert made.status == 0, made.err
    done = assay("receipt", "verify", path)
    assert done.status == 0, done.err
    assert f"and drand round {links[step].drand_next}, all of them checked" in done.out


def test_looking_changes_nothing_in_the_run(assay: Assay, finished: Finished) -> None:
    """The buyer's signed index covers every file of the folder."""
    done = assay("run", "verify", finished.run)
    assert done.status == 0, done.err
    assert "3 of 3 results are final on chain" in done.out
