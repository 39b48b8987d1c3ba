"""The home of an auditor lists what waits for it, how its verdicts held, and the replay of every step."""

from __future__ import annotations

import html
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from assay.bundle.read import find_node
from assay.bundle.replay.step import parse_step
from assay.bundle.report.auditors import Accuracy, accuracy_of, found_of
from assay.chain.commit_statement import evm_address
from assay.explorer.explored import Explored, explore
from assay.explorer.pages.auditor import STEPS_MAX, AuditorPage, auditor_page
from assay.explorer.pages.paging import NoSuchPage
from assay.protocol.auditing.audits import Audit, AuditStatus
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import Outcome
from assay.protocol.types import PeerId
from tests.explorer.an_explorer import asking, golden, golden_explored
from tests.explorer.test_homes import as_far_as, live
from tests.test_guides import parsed

RUN = golden_explored()
VERIFIERS = golden().spec.verifiers
ACCOUNTS = {member.peer: member.account for member in VERIFIERS}


def page_of(*runs: Explored, peer: PeerId = VERIFIERS[0].peer, page: int = 1) -> AuditorPage:
    return auditor_page(runs, ACCOUNTS[peer], page)


def test_an_auditor_sees_every_verdict_it_gave_the_newest_first_and_whether_it_held():
    for member in VERIFIERS:
        found = page_of(RUN, peer=member.peer)
        judged = RUN.judged[member.peer]

        assert found.paging.rows == len(judged) > 0
        assert [one.carried_round for one in found.verdicts] == [one.round for one in judged][::-1]
        assert False not in {one.is_upheld for one in found.verdicts}
        (seat,) = found.seats
        assert (found.paid, seat.paid) == (sum(one.row.amount for one in RUN.pay[member.peer]),) * 2
        assert (seat.is_locked, seat.verdicts, found.duties, found.disputes) == (False, len(judged), [], [])
        assert seat.accuracy == found.accuracy and seat.accuracy.false_alarms == seat.accuracy.missed == 0
        assert seat.accuracy.judged_true > 0


ANY = next(iter(RUN.audits.values()))
FALSE_STEP = next(one for one in RUN.audits.values() if one.is_false)
MATCH = replace(FALSE_STEP.verdicts[0], outcome=Outcome.MATCH)
MISMATCH = replace(MATCH, outcome=Outcome.MISMATCH)
WITHHELD = replace(MATCH, outcome=Outcome.WITHHELD)
FOUND = {
    AuditStatus.PASSED: True, AuditStatus.DISMISSED: True, AuditStatus.LATE: True,
    AuditStatus.CONFIRMED: False, AuditStatus.KNOWN_ANSWER: False,
}  # fmt: skip


@pytest.mark.parametrize("ruling", AuditStatus)
def test_a_verdict_is_a_false_alarm_only_on_a_step_that_was_found_true(ruling: AuditStatus):
    audit = replace(FALSE_STEP, ruling=ruling)
    found = accuracy_of((audit, one) for one in (MATCH, MISMATCH, WITHHELD))

    is_true, is_false = FOUND.get(ruling) is True, FOUND.get(ruling) is False
    assert found_of(audit) is FOUND.get(ruling)
    assert found == Accuracy(
        judged_true=2 * is_true, false_alarms=int(is_true), judged_false=2 * is_false, missed=int(is_false)
    )
    assert found.false_alarm_ppm == (500_000 if is_true else None)


def test_an_opening_that_never_came_says_nothing_about_its_step():
    audit = replace(ANY, ruling=AuditStatus.CONFIRMED, verdicts=())

    assert not audit.is_false and found_of(audit) is None


def with_audit(audit: Audit) -> Explored:
    return replace(RUN, audits={**RUN.audits, (audit.round, audit.node): audit})


def test_a_verdict_that_was_refuted_is_told_and_counts_as_a_false_alarm():
    against = next(one for one in FALSE_STEP.verdicts if one.outcome is Outcome.MISMATCH)
    wrong = with_audit(replace(FALSE_STEP, ruling=AuditStatus.DISMISSED))

    found = page_of(wrong, peer=against.verifier)

    assert [one.is_upheld for one in found.verdicts if one.status == "dismissed"] == [False]
    assert found.accuracy.false_alarms == 1
    text = asking(wrong).get(f"/verifiers/{evm_address(ACCOUNTS[against.verifier])}").text
    assert "✕ no" in text and f"1 of {found.accuracy.judged_true}, " in text


def test_whoever_commits_or_reveals_next_was_told_so_before():
    told: set[str] = set()
    for at, link in enumerate(golden().links):
        run, manifest = live(at) if at else explore("live", as_far_as(0)), link.manifest
        duties = {
            (one.peer, one.round, one.node): one for member in VERIFIERS
            for one in page_of(run, peer=member.peer).duties
        }  # fmt: skip
        names = {digest(one.verdict): one.verdict for carried in RUN.verdicts.values() for one in carried}
        for seal in manifest.commitments:
            verdict = names.get(seal.commitment.verdict)
            if verdict is not None:
                duty = duties[verdict.verifier, int(verdict.round), verdict.node]
                assert "recompute" in duty.text and duty.until_round >= at
                told.add("commit")
        for opened in manifest.verdicts:
            verdict = opened.verdict
            duty = duties[verdict.verifier, int(verdict.round), verdict.node]
            assert duty.text == "reveal the verdict" and duty.until_round >= at
            told.add("reveal")
    assert told == {"commit", "reveal"}


def disputed() -> Explored:
    """The recorded run while its false step was disputed."""
    step = FALSE_STEP.round, FALSE_STEP.node
    states = (state.audits.get(step) for state in golden().run_states)
    return live(next(at for at, one in enumerate(states) if one and one.ruling is AuditStatus.DISPUTED))


def test_open_disputes_are_listed_with_their_deadline_and_replay():
    run = disputed()
    found = page_of(run)

    open_steps = run.delivered.run_states[-1].audits.items()
    assert {(one.round, one.node) for one in found.disputes} == {
        step for step, audit in open_steps if audit.ruling is AuditStatus.DISPUTED
    }
    one = next(one for one in found.disputes if (one.round, one.node) == (FALSE_STEP.round, FALSE_STEP.node))
    audit = run.audits[FALSE_STEP.round, FALSE_STEP.node]
    assert one.until_round == audit.dispute_opened_round + golden().spec.audit.dispute_rounds
    assert (
        f"of {len(audit.committee)} verdicts" in one.text
        and f"{len(audit.adverse)} against the step" in one.text
    )
    assert found.seats[0].is_locked
    assert page_of(RUN).disputes == []
    page = asking(run).get(f"/verifiers/{evm_address(VERIFIERS[0].account)}").text
    assert one.replay in page and "None in its runs" not in page


def with_verifier(**changes: Any) -> Explored:
    peer, verifiers = VERIFIERS[0].peer, as_far_as(8).run_states[-1].verifiers
    return live(verifiers={**verifiers, peer: replace(verifiers[peer], **changes)})


def silent() -> Explored:
    run = live(8)
    links = [
        replace(link, certificate=replace(link.certificate, verifiers=link.certificate.verifiers[1:]))
        if VERIFIERS[0].peer in link.certificate.verifiers else link for link in run.delivered.links
    ]  # fmt: skip
    return replace(run, delivered=replace(run.delivered, links=tuple(links)))


ADVICE = {
    "a proved fault": (with_verifier(fault_round=3), "assay stake show FILE.toml"),
    "silence": (silent(), "assay doctor FILE.toml"),
    "a missed share": (live(away={VERIFIERS[0].peer: 99}), "assay verifier run FILE.toml"),
    "settled pay": (RUN, "assay claim FILE.toml"),
    "the end": (RUN, "assay stake release FILE.toml"),
}


@pytest.mark.parametrize("case", ADVICE)
def test_an_auditor_is_told_what_to_do_now(case: str):
    run, command = ADVICE[case]

    assert command in {one.command for one in page_of(run).advice}
    assert command in asking(run).get(f"/verifiers/{evm_address(VERIFIERS[0].account)}").text


def test_an_auditor_without_a_duty_is_told_of_none():
    quiet = live(audits={})
    assert page_of(quiet).advice == [] and page_of(quiet).duties == []
    assert page_of(with_verifier(fault_round=3)).seats[0].fault_round == 3


def test_every_command_is_taken_by_the_command_line_and_every_replay_names_one_step():
    pages = [asking(run).get(f"/verifiers/{evm_address(VERIFIERS[0].account)}").text
             for run in (RUN, disputed(), with_verifier(fault_round=3), silent())]  # fmt: skip
    node = FALSE_STEP.node
    pages.append(asking().get(f"/runs/golden/audits/{FALSE_STEP.round}/{node.hex()}").text)
    found = {
        html.unescape(one) for page in pages
        for one in re.findall(r'(?:<code[^>]*>|data-copy=")(assay [^<"]*)', page)
    } - {"assay run verify"}  # fmt: skip

    replays = {one for one in found if one.startswith("assay audit replay ")}
    for command in replays:
        run, round_id, peer = parse_step(shlex.split(command)[3])
        step = round_id, find_node(list(RUN.commits), peer)
        assert step in RUN.audits and str(run) in ("golden", "live")
    assert f"assay audit replay golden:{FALSE_STEP.round}:{node.hex()}" in replays
    assert {parsed(shlex.split(one)[1:]) for one in found} >= {"audit replay", "stake show", "verifier run"}


def test_the_page_of_an_auditor_with_seats_in_many_runs_stays_small():
    many = [replace(disputed(), name=f"run-{at}") for at in range(60)]
    many += [replace(RUN, name=f"done-{at}") for at in range(4)]

    found = page_of(*many)
    page = asking(*many).get(f"/verifiers/{evm_address(VERIFIERS[0].account)}")

    assert (found.seat_count, len(found.seats)) == (64, 50)
    assert (found.dispute_count, len(found.disputes)) == (60 * len(page_of(disputed()).disputes), STEPS_MAX)
    assert found.paging.pages > 1 and len(page.content) < 300_000
    with pytest.raises(NoSuchPage, match="that are served"):
        auditor_page(many, bytes(20), 1)
    with pytest.raises(NoSuchPage):
        page_of(RUN, page=99)
