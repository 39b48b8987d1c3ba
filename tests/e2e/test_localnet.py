"""A whole network of real processes: trains, catches a cheater, pays, and proves it."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from assay.participant.files.index import write_index
from assay.participant.keys.keyring import load_keys
from assay.participant.telemetry import round_trips
from assay.participant.telemetry.figures import BY_NAME
from tests.conftest import Assay
from tests.e2e.conftest import KILLED, PARTED, Finished
from tests.e2e.nets import reports, slashed
from tests.e2e.scraped import COUNTED, OWN

pytestmark = pytest.mark.slow


def test_every_promise_holds_whoever_is_killed_and_the_exit_status_says_so(finished: Finished) -> None:
    assert finished.broken_promises() == []
    assert finished.summary["ok"] is True
    assert finished.status == 0


def test_the_cheater_and_nobody_else_is_slashed(finished: Finished) -> None:
    assert slashed(finished.summary) == ["stale-parameters"]
    assert all(node["paid"] > 0 for node in finished.summary["nodes"] if node["behaviour"] == "honest")


def test_validation_loss_falls(finished: Finished) -> None:
    loss = finished.summary["loss"]
    assert loss["validation_last"] < loss["validation_first"] - 0.1


def test_a_delivered_run_verifies_offline(assay: Assay, finished: Finished) -> None:
    status, out, err = assay("run", "verify", finished.run)
    assert status == 0, err
    assert "byte for byte" in out


def test_what_the_model_answers_is_agreed_delivered_and_measured_again(
    assay: Assay, finished: Finished
) -> None:
    report = json.loads((finished.run / "bundle" / "report.json").read_text())
    score, right = report["epochs"][1]["score"], report["held_out"]["accuracy"]
    _, out, _ = assay("run", "verify", "--data", finished.run / "data", finished.run)

    assert right["items"] == right["acc_last"] == 2
    assert f"choices: acc 1.0000 (2 of 2), acc_norm {right['acc_norm_last'] / 2:.4f}" in out
    agreed = f"held-out loss {score['loss_micro'] / 10**6:.4f}; acc {score['acc_count'] / 2:.4f}"
    assert f"milestone of epoch 1: {agreed} ({score['acc_count']} of 2), at least 0.5 asked" in out
    assert out.count("measured here again") == 3
    receipts = [json.loads(one.read_text()) for one in (finished.run / "bundle" / "receipts").iterdir()]
    told = [one["score"] for receipt in receipts for one in receipt["evaluations"]]
    assert len(told) >= 2 and all(one == score for one in told)


@pytest.mark.parametrize(
    "name",
    [
        "bundle/spec.cbor",
        "bundle/data/choices.json",
        "bundle/links/000003.cbor",
        "bundle/model/model.safetensors",
        "bundle/model/README.md",
        "bundle/model/training.png",
        "bundle/report.json",
        "bundle/report.html",
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
    assay: Assay, finished: Finished, tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished.run, run)
    path = sorted(run.glob(name))[0]
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)

    status, _, err = assay("run", "verify", run)

    assert status == 1
    assert path.relative_to(run).as_posix() in err


def test_the_model_is_on_record_and_the_entry_says_what_the_run_was(assay: Assay, finished: Finished) -> None:
    run, summary = finished.run, finished.summary
    entry = json.loads((run / "bundle" / "registry" / "entry.json").read_text())

    assert entry["record"]["record_id"] == summary["record"]
    assert entry["flop"]["accepted"] > entry["flop"]["discarded"] > 0
    assert entry["flop"]["verification"] > 0
    assert entry["audits"]["rulings"]["confirmed"] == summary["audits"]["failed"]
    assert entry["settlement"]["paid"]["operator"] == summary["money"]["paid_operators"]
    banned = [one["peer"] for one in entry["participants"]["operators"] if one["banned"]]
    assert banned == [node["peer"] for node in summary["nodes"] if node["slashed"]]
    assert len(entry["log"]["cosigners"]) >= 3
    _, shown, _ = assay("registry", "show", run)
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
    assay: Assay, finished: Finished, tmp_path: Path, name: str, old: bytes, new: bytes
) -> None:
    """What the index cannot show: each file follows from the run or carries somebody else's signature."""
    run = tmp_path / "run"
    shutil.copytree(finished.run, run)
    path = run / "bundle" / "registry" / name
    body = path.read_bytes()
    assert old in body
    path.write_bytes(body.replace(old, new))
    people = run / "participants"
    keys = load_keys(people / "buyer" / "keys", (people / "password").read_text())
    write_index(run, keys.account_key)

    status, _, err = assay("run", "verify", run)

    assert status == 1
    assert "bundle/registry/" in err


def test_a_run_that_was_indexed_again_by_a_stranger_is_refused(
    assay: Assay, finished: Finished, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished.run, run)
    (run / "summary.json").write_text(json.dumps({**finished.summary, "wall_s": 1}))
    write_index(run, bytes(31) + b"\x01")

    status, _, err = assay("run", "verify", run)

    assert status == 1
    assert "index.json" in err


def test_killed_processes_come_back_and_nothing_is_lost_or_signed_twice(finished: Finished) -> None:
    """`tests/wan/scenarios/kills.toml` says who and when."""
    rounds = [r["round"] for r in reports(finished.run) if r["kind"] == "round"]

    assert rounds == list(range(len(rounds)))
    assert len(rounds) >= 13 + 7 + 4  # more if an opening was overdue at the end
    for name in KILLED:
        assert (finished.run / "logs" / f"{name}.log").read_text().count(' is up"') == 2
    for log in (finished.run / "logs").iterdir():
        assert "two things" not in log.read_text()
        assert "two updates" not in log.read_text()


def test_processes_that_are_asked_for_metrics_answer_with_those_of_their_role(finished: Finished) -> None:
    assert set(finished.metrics) == set(OWN)
    for name, values in finished.metrics.items():
        assert {one for one in values if one.startswith("assay_")} <= set(BY_NAME), name
        assert values["assay_training_rounds"] == [13.0]
        assert values["assay_peers"][0] >= 1 and values["assay_sent_bytes_total"][0] > 0
        others = set[str]().union(*OWN.values()) - OWN[name] - ({COUNTED} if name == "node-1" else set())
        assert not others & set(values), name
    for name in ("node-1", "verifier-1"):
        values = finished.metrics[name]
        assert values["assay_stake_tokens"][0] > 0 and values["assay_banned"] == [0.0]
        assert values["assay_lot_end_timestamp_seconds"][0] > time.time()
    assert sum(finished.metrics["verifier-1"][COUNTED]) > 0
    assert len(finished.metrics["ledger"]["assay_results"]) == 4


def test_every_process_leaves_the_round_trips_that_it_measured(finished: Finished) -> None:
    files = sorted(finished.run.glob("participants/*/" + round_trips.FILE))
    assert len(files) == len(list(finished.run.glob("participants/*/config.toml")))
    found = [json.loads(one.read_text()) for one in files]
    peers = set[str]().union(*(one["us"] for one in found))
    assert all(0 < us < 10**7 for one in found for us in one["us"].values())
    assert len(peers) >= len(finished.summary["nodes"])
    assert all(abs(one["at_s"] - file.stat().st_mtime) < 60 for one, file in zip(found, files, strict=True))


def test_processes_that_were_started_again_add_to_one_trace_a_round(finished: Finished) -> None:
    """Work and what became of it: of a node, a verifier, the ledger, and of the buyer if it is up in time."""
    traces = {trace for trace, _, _ in finished.spans}
    processes = [{process for other, process, _ in finished.spans if other == trace} for trace in traces]

    assert max(map(len, processes)) >= 3 and len(set[str]().union(*processes)) == len(OWN)
    assert {"manifest", "apply", "claim"} <= {name for _, _, name in finished.spans}


def test_nodes_that_take_steps_of_their_own_are_held_to_the_same_through_a_partition_and_a_flood(
    assay: Assay, inner: Finished
) -> None:
    """SparseLoCo: two segments a round, of which each audit repeats one."""
    summary = inner.summary

    assert inner.broken_promises() == []
    assert (summary["ok"], inner.status) == (True, 0)
    assert slashed(summary) == ["wrong-data"]
    assert all(node["paid"] > 0 for node in summary["nodes"] if node["behaviour"] == "honest")
    assert summary["loss"]["validation_last"] < summary["loss"]["validation_first"] - 0.1
    status, out, err = assay("run", "verify", inner.run)
    assert status == 0, err
    assert "byte for byte" in out


def test_a_node_on_the_smaller_side_of_a_partition_misses_its_rounds_and_comes_back(inner: Finished) -> None:
    healed = next(fault.until for fault in PARTED.faults if fault.kind == "partition")

    assert healed in inner.rounds_of("node-0")
    assert healed not in inner.rounds_of("node-1")
    assert max(inner.rounds_of("node-1")) > healed


def test_the_checkpoint_has_one_form(finished: Finished) -> None:
    """With two keys of metadata the library chooses their order, and bytes would not repeat."""
    from safetensors import safe_open

    with safe_open(finished.run / "bundle" / "model" / "model.safetensors", "np") as checkpoint:
        assert checkpoint.metadata() == {"format": "pt"}
