"""Calibrate: real code paths of this machine, their limits, and lies that exceed them."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest
from rich.console import Console
from typer.testing import CliRunner

from assay.cli.main import app
from assay.cli.result import document
from assay.cli.schema import schema_of
from assay.protocol.errors import ConfigError
from assay.protocol.params import Precision
from assay.verifier.audit.limits import POLICIES, parse_limits
from assay.verifier.audit.segment_limits import SEGMENT_POLICIES, Regime
from assay.verifier.calibration import code_paths as codepaths
from assay.verifier.calibration.classes import Calibration, CalibrationReport, calibrate, calibration_group
from assay.verifier.calibration.code_paths import LEAD, CodePath

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"models": ["gpt-0m"]}, "gpt-0m"),
        ({"paths": ["abacus"]}, "abacus"),
        ({"steps": 1}, "at least 2"),
        ({"models": []}, "of 0 models"),
        ({"seeds": 0}, "and 0 seeds"),
        ({"segment": -1}, "expected 1 to"),
        ({"segment": 1001}, "expected 1 to"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_words(asked, words):
    with pytest.raises(ConfigError, match=words):
        calibrate(**asked)


def test_the_command_refuses_likewise():
    result = CliRunner().invoke(app, ["audit", "calibrate", "--model", "gpt-0m"])

    assert result.exit_code != 0
    assert isinstance(result.exception, ConfigError | SystemExit)


@pytest.fixture(scope="module")
def found() -> Calibration:
    """Three steps of one model on two paths, and one path that no machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(codepaths.PATHS, "abacus", CodePath())
        return calibrate(["llama-130k"], steps=3, paths=("micro-4", "abacus"), segment=2)


@pytest.mark.slow
def test_honest_audits_match_lies_do_not_and_paths_that_are_not_here_are_named(found):
    assert found.is_sound
    assert {path.split(",")[0] for path in found.missing} == {"abacus"}
    paths = {(row.measured.dtype, row.measured.path) for row in found.honest}
    assert paths == {(dtype, path) for dtype in POLICIES for path in (LEAD, "micro-4")}
    for row in found.honest:
        assert row.measured.blocks == 3 * 35 and row.audits == 3
        assert row.few_audits == row.few_matches == 25 * row.audits
        assert row.measured.most > 0 and row.limit.t1 <= POLICIES[row.measured.dtype].t1
    for lie in found.lies:
        assert lie.audits == 1 and lie.margin > 1
        if lie.dtype == Precision.FLOAT32.name.lower():
            assert lie.mismatches == lie.audits, lie


@pytest.mark.slow
def test_segments_of_every_kind_are_measured_and_every_lie_about_one_is_found(found):
    kinds = {(row.measured.dtype, row.measured.regime, row.measured.path) for row in found.segments}
    assert kinds == {(d, r, path) for d, r in SEGMENT_POLICIES for path in (LEAD, "micro-4")}
    for row in found.segments:
        segments = {Regime.SGD: 3, Regime.MUON: 3, Regime.FRESH: 1, Regime.ADAMW: 2}[row.measured.regime]
        assert row.measured.steps == 2 and row.audits == row.matches == 2 * segments  # after 1 and 2 steps
        assert row.measured.blocks == 2 * segments * 35
        assert row.few_audits == 25 * row.audits and row.few_false == 0
        # One block of a small model can be far from the median on a processor: a draw of it is borderline.
        assert row.few_matches >= 0.9 * row.few_audits
        # What SGD in float32 differs by here is all rounding of the parameters.
        is_quiet = (row.measured.dtype, row.measured.regime) == (Precision.FLOAT32, Regime.SGD)
        assert is_quiet or max(part.most for part in row.measured.seen) > 0
    lies = {(lie.dtype, lie.regime, lie.lie): lie for lie in found.segment_lies}
    assert len(lies) == len(found.segment_lies) == 9 + 3 * 14 + 8 + 2 * 13
    for lie in lies.values():
        assert lie.margin > 1 and lie.mismatches + lie.borderline == lie.audits > 0, lie
        if lie.dtype == Precision.FLOAT32.name.lower():
            assert lie.mismatches == lie.audits, lie


@pytest.mark.slow
def test_the_limits_it_writes_can_be_read_and_the_rows_are_json(found):
    assert parse_limits(found.limits.encode()) == found.limits
    told = json.loads(document(found.document))
    jsonschema.validate(told, schema_of(CalibrationReport))
    assert told["digest"] == found.limits.digest().hex() and told["is_sound"] is True
    assert len(told["measured"]["honest"]) == 4 and len(told["measured"]["segments"]) == 14


@pytest.mark.slow
def test_the_tables_say_so_when_an_honest_audit_fails_or_a_lie_passes(found):
    def text(one: Calibration) -> str:
        console = Console(width=200, no_color=True)
        with console.capture() as capture:
            console.print(calibration_group(one))
        return capture.get()

    assert "every honest audit matched, no lie did" in text(found)
    assert "not on this machine: abacus" in text(found)
    row, lie = found.honest[0], found.lies[0]
    segment, false = found.segments[0], found.segment_lies[0]
    for worse in (
        replace(found, segments=(replace(segment, matches=segment.audits - 1),)),
        replace(found, segment_lies=(replace(false, mismatches=false.audits - 1, borderline=0),)),
        replace(found, honest=(replace(row, matches=row.audits - 1),)),
        replace(found, honest=(replace(row, few_false=1),)),
        replace(found, segments=(replace(segment, few_false=1),)),
        replace(found, lies=(replace(lie, mismatches=lie.audits - 1, borderline=0),)),
    ):
        assert not worse.is_sound and "NOT SOUND" in text(worse)
