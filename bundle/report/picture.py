"""Picture: the loss of a training report as a PNG file, for a model card, drawn by matplotlib.

Room: bundle (pure). Its pixels may differ between versions of matplotlib. So the file names the version that
drew it and the SHA-256 of its report; a checker with the same version compares all bytes, another these two.
"""

from __future__ import annotations

import io
import re

import matplotlib
from matplotlib import style
from matplotlib.figure import Figure
from PIL import Image

from assay.bundle.report.charts import AGREED, MICRO, agreed_losses
from assay.bundle.report.loss_kind import NEXT_TOKEN, LossKind
from assay.bundle.report.training import TrainingReport

PICTURE_BYTES_MAX = 1 << 20
SIZE_MAX = (1100, 600)  # pixels
_DRAWN_BY = re.compile(r"matplotlib [0-9.a-z+]{1,40}")


def picture(
    report: TrainingReport, report_digest: str, kind: LossKind = NEXT_TOKEN, *, has_agreed: bool = True
) -> bytes:
    """The PNG file. report_digest: in hexadecimal, of the report's file. has_agreed: as `write_bundle`'s."""
    spreads = [(one.round, one.loss_micro) for one in report.rounds if one.loss_micro is not None]
    at = [round_id for round_id, _ in spreads]
    medians = [spread.median / MICRO for _, spread in spreads]
    with style.context("default", after_reset=True):  # whatever the user's matplotlibrc says
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.plot(at, medians, "-" if len(at) > 1 else "o", color="#0b5d5a", label="median of the nodes")
        if has_agreed and (agreed := agreed_losses(report, kind)):
            axes.plot([*agreed], [*agreed.values()], "o--", color="#9a3b12", label=AGREED)
        low, high = axes.get_ylim()
        axes.fill_between(
            at,
            [spread.lowest / MICRO for _, spread in spreads],
            [spread.highest / MICRO for _, spread in spreads],
            color="#0b5d5a",
            alpha=0.18,
            linewidth=0,
            label="lowest to highest",
        )
        # one liar sets no scale
        axes.set(xlabel="round", ylabel=f"{kind.name}, {kind.unit}", ylim=(low, high))
        axes.grid(alpha=0.3)
        if spreads:
            axes.legend()
        file = io.BytesIO()
        figure.savefig(file, dpi=110, metadata={"Software": _drawn_by(), "Report": report_digest})
    return file.getvalue()


def check_other_version(body: bytes, report_digest: str) -> str:
    """Who drew a picture whose bytes are not ours; the pixels are not checked.

    Raises:
        ValueError: our version of matplotlib drew it, and so its bytes should be ours; or it is no PNG file
            of bounded size, or of another report.
    """
    try:
        image = Image.open(io.BytesIO(body), formats=("PNG",))  # reads no pixels
        told, size = dict(image.info), image.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"not a PNG file ({error!s:.80})") from None
    drawn_by = told.get("Software")
    if not isinstance(drawn_by, str) or not _DRAWN_BY.fullmatch(drawn_by):
        raise ValueError("does not say which matplotlib drew it")
    if told.get("Report") != report_digest:
        raise ValueError("drawn from another report")
    if size[0] > SIZE_MAX[0] or size[1] > SIZE_MAX[1]:
        raise ValueError(f"{size[0]} x {size[1]} pixels, expected at most {SIZE_MAX[0]} x {SIZE_MAX[1]}")
    if drawn_by == _drawn_by():
        raise ValueError("differs from what the certified chain says")
    return drawn_by


def _drawn_by() -> str:
    return f"matplotlib {matplotlib.__version__}"
