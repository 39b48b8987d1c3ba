"""Replay of a recorded run's steps, without an opening. In another execution class its bits differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assay.bundle.read import Delivered, read
from assay.bundle.replay import step as replay_step
from assay.bundle.replay.step import Replayed, ReplayReport, parse_step, replay, replay_lines
from assay.bundle.report.audits import final_audits
from assay.devnet.summary import read_summary
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import ConfigError
from assay.protocol.messages import Commit, Outcome
from assay.protocol.types import Digest

OTHER = Digest(b"x" * 32)


def named(run: Path, behaviour: str) -> str:
    """The first node of the run that behaved so."""
    nodes = read_summary((run / "summary.json").read_text()).nodes
    return next(node.peer for node in nodes if node.behaviour == behaviour)


@pytest.fixture
def honest(recorded_run: Path) -> str:
    """An honest node whose step that is false on order is a later one than those that are made again here."""
    audits = final_audits(read(recorded_run).run_states).values()
    late = {one.node.hex() for one in audits if one.ruling is AuditStatus.KNOWN_ANSWER and one.round > 3}
    nodes = read_summary((recorded_run / "summary.json").read_text()).nodes
    return next(one.peer for one in nodes if one.behaviour == "honest" and one.peer in late)


@pytest.fixture
def liar(recorded_run: Path) -> str:
    return named(recorded_run, "stale-parameters")


def commit_of(run: Path, round_id: int, node: str) -> Commit:
    commits = read(run).links[round_id].manifest.commits
    return next(signed.commit for signed in commits if signed.commit.node.hex() == node)


def shown(done: Replayed) -> dict[str, str]:
    """The lines by their first word."""
    return {line.split(" ", 1)[0]: line.split(" ", 1)[1].strip() for line in replay_lines(done)}


def verdict_here(done: Replayed, verdict: Outcome | None) -> Outcome | None:
    """What a remade state shows on this machine, if it shows this in the run's own class."""
    return verdict if done.is_same_class else Outcome.INCONCLUSIVE


def with_commit(delivered: Delivered, round_id: int, node: str, **changes: object) -> Delivered:
    """The run in which a node committed to something else in a round."""
    links = list(delivered.links)
    manifest = links[round_id].manifest
    commits = tuple(
        replace(signed, commit=replace(signed.commit, **changes))
        if signed.commit.node.hex().startswith(node)
        else signed
        for signed in manifest.commits
    )
    links[round_id] = replace(links[round_id], manifest=replace(manifest, commits=commits))
    return replace(delivered, links=links)


def test_a_first_step_has_no_private_past_and_is_remade_without_being_asked(
    recorded_run: Path, honest: str
) -> None:
    done, commit = replay(recorded_run, 0, honest), commit_of(recorded_run, 0, honest)
    lines = shown(done)

    assert (done.is_ok, done.verdict) == (True, verdict_here(done, Outcome.MATCH))
    assert done.remade.startswith("1 step from a fresh state: ")
    assert lines["batch"].startswith("2 sequences, tokens ")
    assert lines["batch"].endswith(f"; root {commit.batch_root.hex()[:8]}")
    roots = f"{commit.momentum_before.hex()[:16]} -> {commit.momentum_after.hex()[:16]}"
    assert lines["roots"] == f"{roots}, continues a fresh state"
    verifiers = {one.peer.hex()[:8] for one in read(recorded_run).spec.verifiers}
    rate, auditors = lines["draw"].split("; auditors in order ")
    assert rate == "drawn at a rate of 100.0%"
    assert set(auditors.split(", ")) == verifiers
    assert lines["evidence"].startswith("100.0% of sent signs are the gradient's own, cosine +0.")
    assert lines["the"].startswith(f"chain   PASSED: MATCH by {auditors[:8]} (0 at block ")
    assert lines["opening"] == "none at hand"
    share, cosine = done.agreement
    assert (share, done.others) == (1.0, pytest.approx(0.97, abs=0.03))
    assert cosine == pytest.approx(0.874, abs=0.03)


def test_a_later_step_is_evidence_until_its_past_is_remade(recorded_run: Path, honest: str) -> None:
    alone, remade = (replay(recorded_run, 3, honest, from_start=asked) for asked in (False, True))

    assert (alone.is_ok, alone.verdict, alone.remade) == (True, None, "")
    assert shown(alone)["verdict"].startswith("none: evidence")
    assert remade.verdict is verdict_here(remade, Outcome.MATCH)
    if remade.is_same_class:
        assert remade.remade == "4 steps from a fresh state: both roots and the update of every one agree"
    assert shown(remade)["parameters"].endswith(", replayed from the aggregates, as committed")
    assert shown(remade)["roots"].endswith(", continues round 2")
    own = replace(remade, is_same_class=True, verdict=Outcome.MATCH)
    assert shown(own)["verdict"] == "MATCH: the whole private state, made again, bit for bit"


def test_a_lie_is_shown_at_its_round_and_what_follows_it_is_not_known(recorded_run: Path, liar: str) -> None:
    first, later = (replay(recorded_run, number, liar, from_start=True) for number in (2, 3))

    assert first.verdict is verdict_here(first, Outcome.MISMATCH)
    assert first.is_ok is not first.is_same_class
    assert later.verdict is verdict_here(later, None)
    assert shown(first)["the"].startswith("chain   CONFIRMED: MISMATCH by ")
    if first.is_same_class:
        update = commit_of(recorded_run, 2, liar).update.hex()
        assert first.remade.startswith(f"3 steps from a fresh state: round 2 differs: update {update[:8]}")
        assert later.remade.endswith(": what the node held is not known")
        assert (later.is_ok, later.first_false) == (False, 2)


def test_what_is_false_by_public_data_alone_is_a_fault(
    recorded_run: Path, honest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered = with_commit(read(recorded_run), 3, honest, state=OTHER, batch_root=OTHER)
    monkeypatch.setattr(replay_step, "read_any", lambda _: delivered)

    done = replay(recorded_run, 3, honest)

    assert [fault.split(" committed, ")[0] for fault in done.faults] == [
        f"state {OTHER.hex()[:16]}", f"batch root {OTHER.hex()[:16]}"
    ]  # fmt: skip
    assert not done.is_ok
    assert "by public data alone" in shown(done)["verdict"]
    assert ReplayReport.of(done).faults == tuple(done.faults)


def test_a_node_that_joined_after_the_first_round_is_found(
    recorded_run: Path, honest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered = read(recorded_run)
    first, *later = delivered.run_states
    without = {peer: record for peer, record in first.nodes.items() if peer.hex() != honest}
    delivered = replace(delivered, run_states=[replace(first, nodes=without), *later])
    monkeypatch.setattr(replay_step, "read_any", lambda _: delivered)

    assert replay(recorded_run, 3, honest).is_ok


def test_a_report_has_the_figures_of_its_replay(recorded_run: Path, liar: str) -> None:
    done = replay(recorded_run, 2, liar)
    report = ReplayReport.of(done)

    assert (report.round, report.node.hex()) == (2, liar)
    assert report.commit == digest(commit_of(recorded_run, 2, liar))
    assert (report.is_drawn, report.rate_ppm, report.ruling) == (True, 1_000_000, "confirmed")
    assert (report.equal_signs, report.cosine) == done.agreement
    assert (report.verdict, report.distance_ppb, report.faults) == (None, None, ())


@pytest.mark.parametrize("text", ["run:3", "3:4a", ":3:4a", "run:x:4a", "run:\u0663:4a", "run:-1:4a"])
def test_what_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected RUN:ROUND:NODE"):
        parse_step(text)


def test_a_step_is_read_from_the_right() -> None:
    assert parse_step("runs:old/one:12:4a02") == (Path("runs:old/one"), 12, "4a02")


def test_a_step_that_is_not_there_is_refused_with_those_that_are(recorded_run: Path, honest: str) -> None:
    with pytest.raises(ConfigError, match="in round 20; there are 20 from 0 to 19"):
        replay(recorded_run, 20, honest)


def test_a_step_that_was_false_on_order_is_made_again_as_ordered(recorded_run: Path) -> None:
    audits = final_audits(read(recorded_run).run_states).values()
    task = next(one for one in audits if one.ruling is AuditStatus.KNOWN_ANSWER)
    number, node = int(task.round), task.node.hex()

    done = replay(recorded_run, number, node, from_start=True)
    after = replay(recorded_run, number + 1, node, from_start=True)

    assert (done.is_task, after.is_task) == (True, False)
    assert (done.is_ok, done.verdict) == (True, verdict_here(done, Outcome.MATCH))
    assert (after.is_ok, after.verdict) == (True, verdict_here(after, Outcome.MATCH))
    assert shown(done)["task"].startswith("a known-answer task, false on order")
    assert shown(done)["opening"].startswith("not looked at")
    assert shown(done)["evidence"].startswith("9") or shown(done)["evidence"].startswith("100")
    assert shown(after)["task"].startswith("perhaps: the node announced known-answer tasks")
