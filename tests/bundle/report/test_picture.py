"""Picture: one report has the same bytes, and another version is told from another report."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from assay.bundle.read import read
from assay.bundle.report.loss_kind import GRPO
from assay.bundle.report.picture import PICTURE_BYTES_MAX, SIZE_MAX, check_other_version, picture
from assay.bundle.report.training import TrainingReport, training_report
from assay.protocol.messages import Score

DIGEST = "ab" * 32


@pytest.fixture(scope="module")
def report(recorded_run: Path) -> TrainingReport:
    return training_report(read(recorded_run))


def a_png(software: str | None, digest: str, size: tuple[int, int] = (8, 8)) -> bytes:
    told = PngInfo()
    if software is not None:
        told.add_text("Software", software)
    told.add_text("Report", digest)
    file = io.BytesIO()
    Image.new("RGB", size).save(file, "PNG", pnginfo=told)
    return file.getvalue()


def test_a_report_has_one_picture_whatever_the_users_settings_are(report: TrainingReport) -> None:
    first = picture(report, DIGEST)
    with matplotlib.rc_context({"lines.linewidth": 9, "figure.dpi": 33, "font.size": 20}):
        second = picture(report, DIGEST)

    assert first == second and len(first) < PICTURE_BYTES_MAX
    image = Image.open(io.BytesIO(first))
    assert image.size[0] <= SIZE_MAX[0] and image.size[1] <= SIZE_MAX[1]
    assert (image.info["Report"], image.info["Software"]) == (DIGEST, f"matplotlib {matplotlib.__version__}")


def test_a_picture_shows_the_held_out_loss_that_verifiers_agreed_on(report: TrainingReport) -> None:
    first, *others = report.epochs
    agreed = replace(first, score=Score(loss_micro=5_000_000, acc_count=0, acc_norm_count=0))
    measured = replace(report, epochs=(agreed, *others))

    assert picture(measured, DIGEST) != picture(report, DIGEST)
    assert picture(measured, DIGEST, GRPO) == picture(report, DIGEST, GRPO)


def test_a_picture_by_another_version_says_so() -> None:
    assert check_other_version(a_png("matplotlib 2.0.0", DIGEST), DIGEST) == "matplotlib 2.0.0"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (a_png(f"matplotlib {matplotlib.__version__}", DIGEST), "differs"),
        (a_png("matplotlib 2.0.0", "cd" * 32), "another report"),
        (a_png("GIMP", DIGEST), "which matplotlib"),
        (a_png(None, DIGEST), "which matplotlib"),
        (a_png("matplotlib 2.0.0", DIGEST, (SIZE_MAX[0] + 1, 8)), "pixels, expected"),
        (a_png("matplotlib 2.0.0", DIGEST, (8, SIZE_MAX[1] + 1)), "pixels, expected"),
        (b"GIF89a", "not a PNG file"),
        (a_png("matplotlib 2.0.0", DIGEST)[:40], "not a PNG|which matplotlib"),
        (b"", "not a PNG file"),
    ],
)
def test_a_picture_that_should_be_ours_or_is_of_another_report_is_refused(body: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_other_version(body, DIGEST)
