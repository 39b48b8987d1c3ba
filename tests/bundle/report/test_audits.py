"""Audit report: each drawn step counted once, under its ruling, and the page stands alone."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from assay.bundle.report.auditors import auditors_of
from assay.bundle.report.audits import CLASSES, audit_figures, final_audits, kind_of, node_reports
from assay.bundle.report.labels import Label, Labels, read_labels, write_labels
from assay.bundle.report.page import report_group, report_page
from assay.bundle.report.run import AuditReport
from assay.ledger.settlement.results import run_id_of
from assay.protocol.auditing.audits import AuditStatus, Fault, FaultKind
from assay.protocol.encoding.json_text import plain
from assay.protocol.messages import Outcome
from assay.protocol.run_state import start
from assay.protocol.state_transition import advance
from assay.testing.members import RUN_ID, name_of, peer
from assay.testing.signed import NODES, VERIFIERS, a_certified, a_history, a_manifest, a_spec, a_verdict
from tests.bundle.receipts.test_step import ROTATING, a_rotated_chain

pytestmark = pytest.mark.slow

SPEC = a_spec(rounds=12)
HONEST = Label(behaviour="honest", is_cheat=False, false_from=None)
LIE = Label(behaviour="wrong-data@2", is_cheat=True, false_from=2)


def a_run(says, nodes=NODES):
    """A whole chain; `says(audit, verifier)` is a verifier's outcome, None for silence."""
    run_states, links = [a_history(rounds=12)], []
    for _ in range(SPEC.ordered.last_round + 1):
        run_state = run_states[-1]
        votes = {
            step: {name: outcome for name in VERIFIERS if (outcome := says(audit, name))}
            for step, audit in run_state.audits.items()
        }
        active = [name for name in nodes if peer(name) in run_state.active]
        links.append(a_certified(a_manifest(run_state, active, votes)))
        run_states.append(advance(run_state, links[-1].manifest))
    return tuple(links), tuple(run_states)


def honestly(audit, _name):
    is_false = audit.node == peer("mallory") and audit.round >= 2
    return Outcome.MISMATCH if is_false else Outcome.MATCH


def found(says, mallory=LIE):
    links, run_states = a_run(says)
    labels = {**{peer(name): HONEST for name in NODES}, peer("mallory"): mallory}
    return AuditReport(
        audits=audit_figures(SPEC, RUN_ID, node_reports(links, run_states, labels)),
        auditors=auditors_of(run_states[-1], final_audits(run_states).values(), {}),
    )


def json_of(*said, **more):
    report = found(*said, **more)
    return plain(report.audits) | plain(report.auditors)


def test_a_planted_liar_is_found_and_honest_nodes_are_not_accused():
    told = json_of(honestly)

    assert told["cheats"]["caught"] == [peer("mallory").hex()]
    assert told["cheats"]["missed"] == []
    assert (told["cheats"]["steps_found"], told["cheats"]["power"]) == (1, 1.0)
    assert told["false_alarms"]["accused"] == 0
    assert told["false_alarms"]["rate_below"] == pytest.approx(
        1 - 0.05 ** (1 / told["false_alarms"]["judged"])
    )
    assert told["all"]["superseded"] > 0


def test_an_auditor_that_clears_a_lie_lowers_the_measured_power():
    told = json_of(lambda _audit, _name: Outcome.MATCH)

    assert told["cheats"]["missed"] == [peer("mallory").hex()]
    assert told["cheats"]["power"] == 0.0
    assert told["cheats"]["steps_missed"] > 0
    assert told["cheats"]["expected_by_audit"] > 0.9


def test_an_accused_honest_step_is_a_false_alarm_however_it_ends():
    def one_liar(audit, name):
        return Outcome.MISMATCH if name == name_of(audit.order[0]) else Outcome.MATCH

    told = json_of(one_liar, mallory=HONEST)

    assert told["false_alarms"]["accused"] > 0
    assert told["false_alarms"]["confirmed"] == 0
    assert told["all"]["dismissed"] > 0
    assert told["false_alarms"]["rate_below"] > 0.1


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        (lambda *_: Outcome.INCONCLUSIVE, "inconclusive"),
        (lambda *_: None, "expired"),
        (lambda *_: Outcome.WITHHELD, "withheld"),
    ],
)
def test_an_audit_is_counted_under_how_it_ended(says, kind):
    told = json_of(says, mallory=HONEST)
    assert told["all"][kind] > 0


@pytest.mark.parametrize("says", [honestly, lambda *_: None, lambda *_: Outcome.WITHHELD])
def test_every_drawn_step_is_in_exactly_one_class_and_the_rate_is_the_rules(says):
    links, run_states = a_run(says)
    told = json_of(says)
    audits = final_audits(run_states)

    assert told["all"]["drawn"] == sum(told["all"][kind] for kind in CLASSES) == len(audits)
    assert {kind_of(audit) for audit in audits.values()} == {k for k in CLASSES if told["all"][k]}
    assert told["all"]["steps"] == sum(len(link.manifest.commits) for link in links)
    # Who has no clean audit stays on probation, and there every step is drawn.
    if says is honestly:
        assert told["rate"]["expected"] < 1
    else:
        assert told["all"]["expected"] == told["all"]["drawn"] == told["all"]["steps"]


def test_who_sends_two_commits_is_not_held_against_the_audits():
    told = json_of(
        lambda *_: Outcome.MATCH, mallory=Label(behaviour="two-commits@0", is_cheat=True, false_from=None)
    )
    assert told["cheats"]["nodes"] == 1
    assert told["cheats"]["by_audit"] == 0
    assert told["cheats"]["power"] is None


def test_without_labels_the_report_says_so_and_counts_all_as_honest():
    links, run_states = a_run(honestly)
    told = audit_figures(SPEC, RUN_ID, node_reports(links, run_states, {}))
    assert told.unlabelled is True
    assert told.cheats.nodes == 0
    assert told.false_alarms.confirmed == 1


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict]] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_asks_for_nothing_and_escapes_what_it_shows():
    told = found(honestly)
    page = report_page(replace(told, audits=replace(told.audits, run="<script>alert(1)</script>")))

    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags.seen}
    assert not any({"src", "href", "onload"} & set(attrs) for _, attrs in tags.seen)
    assert not re.search(r"https?:|url\(|@import", page)
    auditors = 1 + len(SPEC.verifiers)
    assert page.count("<tr") == 1 + len(SPEC.nodes) + 1 + auditors + len(re.findall(r"<tr><td>", page))
    assert peer("mallory").hex()[:8] in page


def test_table_and_page_say_the_same_figures():
    told = found(honestly)
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report_group(told))
    text = " ".join(console.export_text().split())

    assert "1 of 1 nodes" in text
    assert "1 of 1 nodes" in report_page(told)
    assert "wrong-data@2" in text


def test_a_step_before_the_first_lie_is_honest():
    told = json_of(honestly)
    node = next(one for one in told["nodes"] if one["peer"] == peer("mallory").hex())["counts"]
    assert node["false_steps"] == node["steps"] - 2


def test_labels_are_read_as_they_were_written_and_damage_leaves_none(tmp_path):
    labels = Labels(nodes={peer("nora"): HONEST, peer("mallory"): LIE}, verifiers={peer("vera"): "pass-all"})
    none = Labels(nodes={}, verifiers={})
    assert read_labels(tmp_path) == none

    write_labels(tmp_path, labels)
    assert read_labels(tmp_path) == labels

    for body in (
        b"",
        b"[]",
        b'{"nodes": {"zz": {}}, "verifiers": {}}',
        b'{"nodes": {"00": {"behaviour": "x", "is_cheat": true, "false_from": "soon"}}, "verifiers": {}}',
    ):
        (tmp_path / "labels.json").write_bytes(body)
        assert read_labels(tmp_path) == none


# ---- auditors


def test_of_each_auditor_the_report_says_what_he_judged_and_where_he_failed():
    liar = VERIFIERS[0]

    def one_liar(_audit, name):
        return Outcome.MISMATCH if name == liar else Outcome.MATCH

    _, run_states = a_run(one_liar)
    told = auditors_of(run_states[-1], final_audits(run_states).values(), {peer(liar): "accuse-all"})

    records = {one.peer: one for one in told.verifiers}
    assert list(records[peer(liar).hex()].faults) == ["accused an honest step"]
    assert records[peer(liar).hex()].behaviour == "accuse-all"
    assert all(not one.faults for name, one in records.items() if name != peer(liar).hex())
    verdicts = sum(len(audit.verdicts) for audit in final_audits(run_states).values())
    assert sum(one.verdicts for one in records.values()) == verdicts > 0
    assert told.replicated_audits.drawn == 0 < told.replicated_audits.of
    assert asdict(told.known_answers) == {"ordered": 0, "judged": 0, "found": 0, "passed_first": 0}


def test_the_verdicts_of_a_seat_are_its_holders_of_the_time():
    links, _ = a_rotated_chain()
    run_states = [start(ROTATING, run_id_of(ROTATING))]
    for link in links:
        run_states.append(advance(run_states[-1], link.manifest))
    audits = final_audits(run_states).values()

    told = auditors_of(run_states[-1], audits, {})

    (given,) = run_states[-1].rotation.configuration.hand_overs
    handed = run_states[-1].rotation.handed[0]
    of_seat = [audit for audit in audits if any(one.verifier == given.seat for one in audit.verdicts)]
    before = sum(audit.closed_round <= handed for audit in of_seat)
    records = {one.peer: one.verdicts for one in told.verifiers}
    assert records.keys() == {peer.hex() for peer in (*ROTATING.verifier_peers, given.holder)}
    assert (records[given.seat.hex()], records[given.holder.hex()]) == (before, len(of_seat) - before)
    assert 0 < before < len(of_seat)


def test_planted_faults_are_counted_by_who_found_and_who_passed_them_first():
    verdict = a_verdict("vera", an_audit()).verdict
    found = replace(
        an_audit(), is_known_answer=True, ruling=AuditStatus.KNOWN_ANSWER,
        verdicts=(replace(verdict, outcome=Outcome.MISMATCH),),
    )  # fmt: skip
    passed = replace(found, verdicts=(verdict,), faults=(Fault(verdict, FaultKind.PASSED),))
    honest = replace(found, verdicts=(verdict,), ruling=AuditStatus.DISMISSED)  # a canary that did its step
    spec = replace(SPEC, audit=replace(SPEC.audit, known_answer_count=5))

    run_state = start(spec, RUN_ID)
    lists = {one: replace(run_state.nodes[one], tasks=run_state.parent) for one in run_state.active[:2]}
    run_state = replace(run_state, nodes={**run_state.nodes, **lists})

    told = auditors_of(run_state, [found, passed, honest], {})

    assert asdict(told.known_answers) == {"ordered": 10, "judged": 2, "found": 1, "passed_first": 1}
    vera = next(one for one in told.verifiers if one.peer == peer("vera").hex())
    assert (vera.known_answers_found, vera.known_answers_passed) == (1, 1)
    assert vera.faults == {"passed a false step": 1}


def an_audit():
    _, run_states = a_run(honestly)
    return next(audit for audit in final_audits(run_states).values() if audit.ruling is AuditStatus.PASSED)
