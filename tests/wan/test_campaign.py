"""The campaign's own parts: scenarios as files, what is checked after each, and lines that carry nothing."""

from __future__ import annotations

import json
import random
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from assay.devnet.summary import summary_json
from assay.protocol.errors import ConfigError
from tests.devnet.test_summary import a_summary
from tests.wan import campaign, lines
from tests.wan.faults import NOT_ITS_OWN, files_of, flip
from tests.wan.scenario import Fault, Scenario, planned, read, written

FIXED = sorted((Path(__file__).parent / "scenarios").glob("*.toml"))


@pytest.mark.parametrize("seed", range(40))
def test_a_drawn_scenario_is_kept_as_a_file(seed: int, tmp_path: Path):
    path = tmp_path / "one.toml"
    path.write_text(written(planned(seed)))
    assert read(path) == planned(seed)


def test_the_fixed_scenarios_have_every_fault_and_kill_every_role():
    scenarios = [read(path) for path in FIXED]
    faults = [fault for scenario in scenarios for fault in scenario.faults]

    assert len(scenarios) == 5
    assert {fault.kind for fault in faults} == {
        "kill", "kill worker", "freeze", "reorganise", "rot", "rot down", "fill disk", "partition", "flood"
    }  # fmt: skip
    killed = {fault.whom.split("-")[0] for fault in faults if fault.kind == "kill"}
    assert killed == {"node", "verifier", "ledger", "buyer"}
    frozen = {fault.whom.split("-")[0] for fault in faults if fault.kind == "freeze"}
    assert frozen == {"node", "chain"}
    assert any(scenario.clocks for scenario in scenarios)
    liars = {one.startswith("v") for scenario in scenarios for one in scenario.behaviours}
    assert liars == {True, False}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node = 3", "unknown"),
        ('[[faults]]\nkind = "explode"\nwhom = "node-0"\nround = 1', "is not one of"),
        ('[[faults]]\nkind = "kill"\nwho = "node-0"\nround = 1', "unknown key"),
        ('[[faults]]\nkind = "kill"\nwhom = "node-3"\nround = 1', "node-3 is not one of verifier-0"),
        ('[[faults]]\nkind = "kill"\nwhom = "node-0 node-1"\nround = 1', "names 2"),
        ('[[faults]]\nkind = "kill"\nwhom = "node-0"\nround = 1\nseconds = 2.0', "neither"),
        ('[[faults]]\nkind = "freeze"\nwhom = "node-0"\nround = 1', "expected seconds"),
        ('[[faults]]\nkind = "freeze"\nwhom = "node-0"\nround = 3\nuntil = 3', "expected seconds"),
        ('[[faults]]\nkind = "reorganise"\nwhom = "node-0"\nround = 1', "not one of chain"),
        ('[[faults]]\nkind = "kill"\nwhom = "node-0"\nround = 25', "24 rounds"),
        ("[clocks]\nnode-9 = 1.0", "node-9 is nobody"),
    ],
)
def test_what_no_network_can_play_is_one_line(text: str, said: str, tmp_path: Path):
    path = tmp_path / "one.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read(path)
    assert said in str(refused.value) and str(path) in str(refused.value)
    assert len(str(refused.value).splitlines()) in (
        1,
        2,
    )  # a wrong key is unknown, and the right one is missing


def test_an_honest_nodes_loss_of_stake_breaks_a_promise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(campaign, "read_run", lambda _run: None)
    monkeypatch.setattr(campaign, "verify", lambda _delivered: None)
    summary = json.loads(summary_json(a_summary()))
    assert campaign.broken_promises(summary, tmp_path) == []

    honest = next(one for one in summary["nodes"] if one["behaviour"] == "honest")
    honest["slashed"] = 5
    for key in ("slashed", "burnt"):
        summary["money"][key] += 5

    (broken,) = campaign.broken_promises(summary, tmp_path)
    assert "did not cheat and was slashed 5 units" in broken


def test_a_run_that_does_not_verify_breaks_a_promise(tmp_path: Path):
    (broken,) = campaign.broken_promises(json.loads(summary_json(a_summary())), tmp_path)
    assert broken.startswith("it does not verify")


def test_bits_rot_in_whatever_a_participant_keeps_but_its_keys(tmp_path: Path):
    for name in ("keys/peer.key", "config.toml", "store.db", "signed.mark", "blobs/aa.blob", "new/deep/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"kept")
    (tmp_path / "empty").touch()

    found = [path.relative_to(tmp_path).as_posix() for path in files_of(tmp_path)]
    assert found == ["blobs/aa.blob", "new/deep/file", "signed.mark", "store.db"]
    assert [path.name for path in files_of(tmp_path, "blobs")] == ["aa.blob"]
    assert not set(NOT_ITS_OWN) & {name.split("/")[0] for name in found}

    flip(tmp_path / "store.db", random.Random(1))
    was, is_now = (int.from_bytes(body) for body in (b"kept", (tmp_path / "store.db").read_bytes()))
    assert (was ^ is_now).bit_count() == 1


def test_a_side_reaches_itself_alone():
    groups = [("verifier-3", "node-1")]
    assert lines.are_apart(groups, "node-1", "verifier-0")
    assert lines.are_apart(groups, "verifier-0", "node-1")
    assert not lines.are_apart(groups, "node-1", "verifier-3")
    assert not lines.are_apart(groups, "node-0", "verifier-0")


ECHO = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as line:
    for word in sys.stdin:
        line.sendall(word.encode())
        print(line.recv(100).decode(), end="", flush=True)
"""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="who dials is read from /proc")
def test_a_line_between_two_that_are_apart_carries_nothing_until_they_meet(tmp_path: Path):
    run = tmp_path / "run"
    for name in ("logs", "participants/node-0"):
        (run / name).mkdir(parents=True)
    (run / "participants" / "node-0" / "config.toml").write_text("")
    places = lines.Lines(run)
    _, port = places.addresses(["node-0"])["node-0"]
    assert places.prefix("node-0") == ()
    assert lines.WITHIN in (run / "participants" / "node-0" / "config.toml").read_text()
    with (
        socket.create_server((lines.WITHIN, port)) as door,
        open(run / "logs" / "node-1.log", "w") as log,
        subprocess.Popen(
            [sys.executable, "-c", ECHO, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as dialler,
    ):
        try:
            door.settimeout(30)
            line, _ = door.accept()
            line.settimeout(30)
            say(dialler, "one")
            assert line.recv(100) == b"one\n"
            line.sendall(b"heard\n")
            assert is_answered(dialler, 30) and dialler.stdout.readline() == "heard\n"

            part(run, ["node-1"])
            say(dialler, "two")
            assert not select.select([line], [], [], 0.5)[0]
            part(run)
            assert line.recv(100) == b"two\n"

            part(run, ["node-0"])
            line.sendall(b"late\n")
            assert not is_answered(dialler, 0.5)
            part(run)
            assert is_answered(dialler, 30) and dialler.stdout.readline() == "late\n"
            line.close()
        finally:
            dialler.kill()


def say(dialler: subprocess.Popen[str], word: str) -> None:
    assert dialler.stdin is not None
    dialler.stdin.write(f"{word}\n")
    dialler.stdin.flush()


def is_answered(dialler: subprocess.Popen[str], within_s: float) -> bool:
    return bool(select.select([dialler.stdout], [], [], within_s)[0])


def part(run: Path, *groups: list[str]) -> None:
    lines.apart(run).with_suffix(".new").write_text(json.dumps(groups))
    lines.apart(run).with_suffix(".new").replace(lines.apart(run))


def test_a_fault_says_who_when_and_how_long():
    assert str(Fault("kill", "ledger", 4)) == "kill ledger at 4"
    assert str(Fault("freeze", "node-0", 2, until=12)) == "freeze node-0 at 2 until 12"
    assert "3 nodes; 0=slow; clock of buyer -1.5 s" in str(
        Scenario(behaviours=("0=slow",), clocks=(("buyer", -1.5),))
    )
