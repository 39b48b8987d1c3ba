"""Training report: its figures are those of the chain and the tables, and one liar moves no curve."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.bundle.finished import Accuracy, HeldOut
from assay.bundle.held_out import held_out_tokens
from assay.bundle.read import Delivered, read
from assay.bundle.report.audits import final_audits, kind_of
from assay.bundle.report.training import (
    STATED_BYTES_MAX,
    RoundFigures,
    Spread,
    TrainingReport,
    _spread,
    claimed,
    report_json,
    training_report,
    with_stated_traffic,
)
from assay.bundle.report.training_page import figures_of, report_lines, training_page
from assay.bundle.samples import CHARACTERS_MAX, SAMPLES
from assay.participant.files.index import IntegrityError
from assay.protocol.encoding.json_text import parse_json, plain, read_plain
from assay.protocol.params import ChoicesSpec
from assay.protocol.types import NO_DIGEST


@pytest.fixture(scope="module")
def delivered(recorded_run: Path) -> Delivered:
    return read(recorded_run)


@pytest.fixture(scope="module")
def report(delivered: Delivered) -> TrainingReport:
    return training_report(delivered)


def test_each_round_has_the_sums_of_its_commits_and_the_sizes_of_its_files(
    delivered: Delivered, report: TrainingReport
) -> None:
    assert [one.round for one in report.rounds] == list(range(delivered.calendar.rounds))
    for one in report.rounds:
        manifest = delivered.links[one.round].manifest
        commits = [signed.commit for signed in manifest.commits]
        assert (one.accepted, one.time_s) == (len(commits), manifest.time_s)
        assert one.tokens == sum(commit.tokens for commit in commits)
        assert one.sent_bytes == sum(len(delivered.update(commit)) for commit in commits) > 0
        assert one.aggregate_bytes == len(delivered.aggregate(one.round)) > 0
        losses = [commit.loss_micro for commit in commits]
        assert one.loss_micro is not None
        assert (one.loss_micro.lowest, one.loss_micro.highest) == (min(losses), max(losses))


def test_every_audit_of_the_run_is_counted_once_under_its_final_outcome(
    delivered: Delivered, report: TrainingReport
) -> None:
    expected = Counter(
        (int(audit.round), kind_of(audit)) for audit in final_audits(delivered.run_states).values()
    )
    found = {(one.round, kind): count for one in report.rounds for kind, count in one.audits.items()}

    assert found == dict(expected)
    assert report.totals.audited == expected.total() > 0
    assert report.totals.faults == 1


def test_the_money_is_that_of_the_tables_and_adds_up(delivered: Delivered, report: TrainingReport) -> None:
    tables = delivered.tables

    assert report.totals.spent == sum(table.total for table in tables.values()) == report.epochs[-1].spent
    assert [one.operators + one.verifiers + one.fee for one in report.epochs] == [
        table.total for table in tables.values()
    ]
    assert [one.last_round for one in report.epochs] == [9, 19]
    assert report.totals.unpaid == sum(len(table.unpaid) for table in tables.values()) > 0


def test_the_median_is_between_the_two_in_the_middle_and_one_liar_does_not_move_it() -> None:
    honest = [4_000_001, 4_000_003, 4_000_005]

    for lie in (0, 10**9):
        spread = _spread([lie, *honest])
        assert spread is not None and min(honest) <= spread.median <= max(honest)
    assert (spread := _spread(honest)) is not None and spread.median == 4_000_003
    assert (spread := _spread([1, 4])) is not None and spread.median == 2
    assert _spread([]) is None


def test_the_file_is_read_and_written_byte_for_byte(report: TrainingReport) -> None:
    body = report_json(report)

    assert report_json(read_plain(TrainingReport, parse_json(body))) == body


def test_a_missing_update_is_named(delivered: Delivered) -> None:
    name = delivered.links[3].manifest.commits[0].commit.update
    sizes = {one: size for one, size in delivered.sizes.items() if one != name}

    with pytest.raises(IntegrityError, match=name.hex()):
        training_report(replace(delivered, sizes=sizes))


def test_of_a_copy_without_updates_the_bundle_states_sizes_and_nothing_else(
    delivered: Delivered, report: TrainingReport
) -> None:
    spread = Spread(median=1, lowest=0, highest=10**9)
    lies = [replace(one, accepted=0, tokens=-1, loss_micro=spread, time_s=0) for one in report.rounds]
    copy = replace(delivered, sizes={}, report=report_json(replace(report, rounds=tuple(lies))))

    assert with_stated_traffic(copy) == report


@pytest.mark.parametrize(
    "change",
    [
        lambda rounds: rounds[:-1],
        lambda rounds: (*rounds[1:], rounds[0]),
        lambda rounds: (replace(rounds[0], sent_bytes=-1), *rounds[1:]),
        lambda rounds: (*rounds[:-1], replace(rounds[-1], aggregate_bytes=STATED_BYTES_MAX + 1)),
        lambda rounds: (*rounds[:-1], replace(rounds[-1], sent_bytes=10**400)),
    ],
)
def test_a_bundle_that_states_other_rounds_or_no_sizes_is_refused(
    delivered: Delivered,
    report: TrainingReport,
    change: Callable[[tuple[RoundFigures, ...]], tuple[RoundFigures, ...]],
) -> None:
    most = replace(report.rounds[0], sent_bytes=STATED_BYTES_MAX, aggregate_bytes=0)
    body = report_json(replace(report, rounds=(most, *report.rounds[1:])))
    assert with_stated_traffic(replace(delivered, sizes={}, report=body)).rounds[0] == most

    body = report_json(replace(report, rounds=change(report.rounds)))
    with pytest.raises(IntegrityError, match=r"^bundle/report\.json: .*expected 0 to "):
        with_stated_traffic(replace(delivered, sizes={}, report=body))


def test_what_follows_from_no_chain_is_the_one_part_that_is_copied(
    delivered: Delivered, report: TrainingReport
) -> None:
    tokens = held_out_tokens(delivered.spec)
    held_out = HeldOut(first_micro=5_500_000, last_micro=4_400_000, tokens=tokens)
    body = report_json(replace(report, held_out=held_out, totals=replace(report.totals, accepted=10**6)))

    found = training_report(replace(delivered, report=body))

    assert found == replace(report, held_out=held_out)
    assert any("5.5000 to 4.4000" in line for line in report_lines(found))
    chain_alone = replace(report, held_out=None, energy=None, samples=())
    assert training_report(replace(delivered, report=None)) == chain_alone


def test_the_samples_are_as_many_and_as_long_as_they_may_be(
    delivered: Delivered, report: TrainingReport
) -> None:
    assert len(report.samples) == SAMPLES and report.energy is not None and report.energy.joules > 0
    for wrong in (("",) * (SAMPLES + 1), ("x" * (CHARACTERS_MAX + 1),)):
        with pytest.raises(IntegrityError, match=r"^bundle/report\.json: samples: "):
            claimed(report_json(replace(report, samples=wrong)), delivered.spec)


def test_energy_is_shown_in_the_unit_that_fits_it(report: TrainingReport) -> None:
    assert report.energy is not None
    for joules, shown in ((3_599, "3,599 J"), (3_600, "0.00100 kWh")):
        energy = replace(report.energy, joules=joules, kwh="0.00100")
        assert ("energy, estimated", shown) in figures_of(replace(report, energy=energy))


def test_what_the_model_makes_up_is_shown_as_text(report: TrainingReport) -> None:
    found = replace(report, samples=("<b>\x1b[2J\n```",))

    assert "<pre>&lt;b&gt;" in training_page(found)
    assert any(line.endswith("<b>?[2J?```") for line in report_lines(found))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": 0}, "0 tokens"),
        ({"tokens": 64}, "64 tokens, expected "),  # a part of them, which may be the best one
        ({"tokens": 10**9}, "1000000000 tokens, expected "),
        ({"last_micro": -1}, "no commit could state"),
        ({"first_micro": 10**9 + 1}, "no commit could state"),
        ({"last_micro": 1.5}, r"last_micro: 1\.5, expected"),
        ({"more": 1}, "more"),
    ],
)
def test_a_held_out_loss_that_cannot_be_is_refused(
    delivered: Delivered, report: TrainingReport, change: dict[str, Any], words: str
) -> None:
    tokens = held_out_tokens(delivered.spec)
    told = plain(replace(report, held_out=HeldOut(first_micro=1, last_micro=1, tokens=tokens)))
    told["held_out"] |= change

    with pytest.raises(IntegrityError, match=rf"^bundle/report\.json: .*{words}"):
        claimed(json.dumps(told).encode(), delivered.spec)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"items": 7}, "8 of 7 items, the run has 8"),
        ({"acc_last": 9}, "9 of 8 items"),
        ({"acc_norm_first": -1}, "8 of 8 items"),
        ({"items": 0}, "8 of 0 items"),
    ],
)
def test_an_accuracy_that_cannot_be_is_refused(
    delivered: Delivered, report: TrainingReport, changes: dict[str, int], words: str
) -> None:
    right = Accuracy(items=8, acc_first=0, acc_last=8, acc_norm_first=0, acc_norm_last=8)
    tokens = held_out_tokens(delivered.spec)
    held_out = HeldOut(first_micro=1, last_micro=1, tokens=tokens, accuracy=right)
    spec = replace(delivered.spec, choices=ChoicesSpec(digest=NO_DIGEST, items=8))
    assert claimed(report_json(replace(report, held_out=held_out)), spec).held_out == held_out
    with pytest.raises(IntegrityError, match=r"8 of 8 items, the run has 0"):
        claimed(report_json(replace(report, held_out=held_out)), delivered.spec)

    wrong = replace(held_out, accuracy=replace(right, **changes))
    with pytest.raises(IntegrityError, match=rf"^bundle/report\.json: accuracy: {words}"):
        claimed(report_json(replace(report, held_out=wrong)), spec)


def test_the_page_names_no_other_place_and_shows_a_strangers_text_as_text(report: TrainingReport) -> None:
    page = training_page(replace(report, run='<script src="https://example.org/x.js">\n'))

    assert "<script" not in page and "&lt;script" in page
    for loading in ("src=", "href=", "url(", "@import"):
        assert loading not in page.replace("src=&quot;", "")
    assert page.count("<svg viewBox") > 6


def test_a_run_without_a_round_has_a_page_without_charts(report: TrainingReport) -> None:
    nothing = replace(
        report, rounds=(), epochs=(), totals=replace(report.totals, rounds=0, loss_micro=None, seconds=0)
    )

    page = training_page(nothing)

    assert "No round was trained." in page and "<svg" not in page
    assert not any(line.startswith("loss") for line in report_lines(nothing))
