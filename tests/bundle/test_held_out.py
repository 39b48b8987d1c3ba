"""Held out: the loss is that of the held-out tokens alone, and a claim of another is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.bundle.finished import Accuracy, HeldOut
from assay.bundle.held_out import (
    SEQUENCES_MAX,
    check_held_out,
    check_milestone,
    held_out_loss,
    held_out_tokens,
)
from assay.bundle.inputs import read_inputs
from assay.bundle.read import read
from assay.bundle.verify import milestone_lines, report_lines, verify
from assay.participant.files.index import IntegrityError
from assay.protocol.errors import ConfigError
from assay.training.model.hugging_face import read_theta

RIGHT = Accuracy(items=4, acc_first=1, acc_last=3, acc_norm_first=0, acc_norm_last=1)
CLAIM = HeldOut(first_micro=5_000_000, last_micro=4_000_000, tokens=64, accuracy=RIGHT)


def test_the_recorded_loss_is_measured_again_from_the_recorded_data(recorded_run: Path) -> None:
    report = verify(read(recorded_run), data=recorded_run / "data")

    assert report.held_out is not None and report.held_out.last_micro < report.held_out.first_micro - 100_000
    (line,) = (one for one in report_lines(report) if one.startswith("held-out"))
    assert line.endswith("measured here again")


def test_the_recorded_milestone_was_missed_and_is_measured_again_exactly(
    recorded_run: Path,
) -> None:
    delivered = read(recorded_run)
    report = verify(delivered, data=recorded_run / "data")
    agreed = delivered.tables[1].score
    assert agreed is not None

    (line,) = (one for one in report_lines(report) if one.startswith("milestone"))

    assert line == (
        f"milestone of epoch 1: held-out loss {agreed.loss_micro / 10**6:.4f}, at most 1.0000 asked: missed, "
        "20 % of the price are not owed; measured here again"
    )
    theta = read_theta(recorded_run / "bundle" / "model", delivered.spec.model)
    measured = (delivered.spec, report.inputs, theta, recorded_run / "data", 1)
    check_milestone(*measured, agreed)
    for name, unit in (
        ("loss_micro", "millionths of a nat"),
        ("acc_count", "items"),
        ("acc_norm_count", "items"),
    ):
        truth = getattr(agreed, name)
        words = f"{name} after epoch 1: verifiers agreed on {truth + 1} {unit}, measured here {truth}"
        with pytest.raises(IntegrityError, match=words):
            check_milestone(*measured, replace(agreed, **{name: truth + 1}))


def test_a_milestone_that_nobody_measured_costs_nothing_and_is_told(recorded_run: Path) -> None:
    delivered = read(recorded_run)
    silent = replace(delivered.tables[1], score=None)
    delivered = replace(delivered, tables={**delivered.tables, 1: silent})

    assert list(milestone_lines(delivered, is_measured=False)) == [
        "milestone of epoch 1: held-out loss, at most 1.0000 asked, no score was agreed: "
        "all of the price is owed"
    ]


def test_other_data_give_no_loss(recorded_run: Path, tmp_path: Path) -> None:
    shutil.copytree(recorded_run / "data", tmp_path / "data")
    shard = next((tmp_path / "data" / "shards").iterdir())
    body = bytearray(shard.read_bytes())
    body[7] ^= 1
    shard.write_bytes(bytes(body))

    with pytest.raises(ConfigError, match="shard"):
        verify(read(recorded_run), data=tmp_path / "data")


def test_it_is_measured_on_as_many_tokens_as_the_spec_says(recorded_run: Path) -> None:
    spec = read(recorded_run).spec
    inputs = read_inputs(spec, recorded_run / "bundle" / "data", None)
    theta = read_theta(recorded_run / "bundle" / "model", spec.model)

    found = held_out_loss(spec, inputs, theta, recorded_run / "data")

    windows = min(SEQUENCES_MAX, spec.split.held)
    assert found is not None and found.tokens == held_out_tokens(spec) == windows * spec.model.context
    wide = replace(spec, model=replace(spec.model, width=spec.model.width * 10**4))
    assert held_out_tokens(wide) == spec.model.context  # not for ever: one sequence


def test_parameters_that_are_not_finite_or_far_off_have_no_loss(recorded_run: Path) -> None:
    spec = read(recorded_run).spec
    inputs = read_inputs(spec, recorded_run / "bundle" / "data", None)
    theta = read_theta(recorded_run / "bundle" / "model", spec.model)
    assert held_out_loss(spec, inputs, theta, recorded_run / "data") is not None

    for factor in ("nan", "1e4"):
        assert held_out_loss(spec, inputs, theta * np.float32(factor), recorded_run / "data") is None


def test_a_claim_within_the_tolerance_stands_and_one_beyond_it_is_refused() -> None:
    check_held_out(CLAIM, replace(CLAIM, last_micro=4_003_999))
    for measured in (
        replace(CLAIM, last_micro=4_004_100),
        replace(CLAIM, last_micro=3_995_900),
        replace(CLAIM, first_micro=5_006_000),
        replace(
            CLAIM, accuracy=Accuracy(items=1, acc_first=0, acc_last=1, acc_norm_first=0, acc_norm_last=0)
        ),
        None,
    ):
        with pytest.raises(IntegrityError, match=r"^bundle/report\.json: (held-out loss: |accuracy )"):
            check_held_out(CLAIM, measured)
