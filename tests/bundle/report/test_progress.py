"""Progress: what is earned before an epoch is settled, and how long training goes on."""

from __future__ import annotations

from dataclasses import replace

from assay.bundle.report.progress import PACE_ROUNDS, drafts, left_s, phase_of, round_s, status_of
from tests.explorer.an_explorer import golden

RUN = golden()
STATES = RUN.run_states
EPOCH = RUN.spec.money.epoch_rounds


def test_a_draft_is_the_payout_table_once_nothing_can_be_found_any_more():
    for epoch, table in RUN.tables.items():
        settled_at = RUN.calendar.settled_at(epoch)
        assert drafts(STATES[settled_at + 1], epoch)[epoch] == table
        assert drafts(STATES[settled_at], epoch)[epoch] == table  # the last manifest adds no finding here


def test_every_epoch_that_has_begun_and_is_not_settled_has_a_draft():
    assert drafts(STATES[0], 0) == {}
    assert list(drafts(STATES[1], 0)) == [0] and list(drafts(STATES[EPOCH], 0)) == [0]
    assert list(drafts(STATES[EPOCH + 1], 0)) == [0, 1]
    assert list(drafts(STATES[EPOCH + 1], 1)) == [1]
    assert drafts(STATES[-1], len(RUN.tables)) == {}


def test_a_draft_pays_for_what_is_accepted_so_far_and_leaves_out_what_is_found_false():
    first = drafts(STATES[1], 0)[0]
    assert first.tokens_paid == sum(one.commit.tokens for one in RUN.links[0].manifest.commits)
    banned = next(peer for peer, record in STATES[-1].nodes.items() if record.banned)
    before, after = drafts(STATES[2], 0)[0], drafts(STATES[RUN.calendar.settled_at(0)], 0)[0]

    assert banned in {row.peer for row in before.rows} - {row.peer for row in after.rows}


def test_the_time_left_follows_from_the_newest_rounds():
    state = STATES[4]
    slow = [0, *(1000 + 10 * at for at in range(PACE_ROUNDS + 1))]

    assert round_s([]) is round_s([5]) is None and round_s([5, 8]) == 3
    assert round_s(slow) == 10  # the slow first round is no longer among them
    assert left_s(state, slow) == 10 * (RUN.calendar.rounds - 4)
    assert left_s(state, [5]) is None and left_s(STATES[RUN.calendar.rounds], slow) is None


def test_a_runs_phase_and_a_nodes_status_are_told():
    assert [phase_of(STATES[at]) for at in (0, 1, RUN.calendar.rounds, -1)] == [
        "waiting", "training", "closing", "over"
    ]  # fmt: skip
    record = next(record for record in STATES[4].nodes.values() if record.is_seated)
    peer = record.member.peer

    assert status_of(STATES[4], record, 3) == "training" and status_of(STATES[4], record, None) == "new"
    assert status_of(STATES[4], replace(record, missed=2), 1) == "away"
    assert status_of(STATES[4], replace(record, missed=1), 2) == "training"
    assert status_of(STATES[4], replace(record, is_suspect=True), 3) == "suspect"
    assert status_of(replace(STATES[4], late=frozenset({peer})), record, 3) == "late"
    assert status_of(STATES[4], replace(record, has_left=True), 3) == "left"
    assert status_of(STATES[4], replace(record, fault_round=1, has_left=True), 3) == "banned"
