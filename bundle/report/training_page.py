"""Training page: a training report as lines for a terminal or as one self-contained HTML page.

Room: bundle (pure). The page loads nothing: no script, no style sheet, no picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from assay.bundle.finished import Energy
from assay.bundle.report.charts import FIGURE_STYLE, MICRO, charts_of, figure_html
from assay.bundle.report.loss_kind import NEXT_TOKEN, LossKind
from assay.bundle.report.training import TrainingReport
from assay.chain.text.units import UNIT, money_text
from assay.orders.config_errors import one_line

_STYLE = (
    """
:root { color-scheme: light dark; --paper: #fbfaf7; --ink: #1d2327; --soft: #565d63; --line: #dedad1;
  --accent: #0b5d5a; --warn: #7a5200 }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181b; --ink: #e8e5de; --soft: #a3abb0; --line: #333b40; --accent: #74cabf;
  --warn: #e9bb66 }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1rem/1.55 system-ui, sans-serif }
main { max-width: 66rem; margin: 0 auto; padding: .5rem 1.25rem 2rem }
h1 { font-size: clamp(1.5rem, 4.5vw, 2.1rem); font-weight: 600; margin: 1rem 0 .2rem;
  overflow-wrap: anywhere }
h2 { font-size: 1.15rem; font-weight: 600; margin: 1.6rem 0 .5rem }
.lead { color: var(--soft); overflow-wrap: anywhere; margin: 0 }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 0 2.5rem }
.charts section:first-child { grid-column: 1 / -1 }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: 1rem 1.25rem;
  margin: 1.2rem 0; padding: 0 }
.figures div { display: flex; flex-direction: column-reverse; justify-content: flex-end;
  border-top: 1px solid var(--line); padding-top: .4rem }
.figures dt { color: var(--soft); font-size: .85rem }
.figures dd { margin: 0; font-size: 1.2rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border-left: 2px solid var(--line); margin: .8rem 0;
  padding-left: .8rem; font-size: .875rem }
footer { color: var(--soft); font-size: .875rem; border-top: 1px solid var(--line); margin-top: 2rem;
  padding-top: .8rem }
"""
    + FIGURE_STYLE
)


def figures_of(report: TrainingReport, kind: LossKind = NEXT_TOKEN) -> Iterator[tuple[str, str]]:
    """The run's figures for people, name and value."""
    totals, held_out = report.totals, report.held_out
    yield "rounds of training", f"{totals.rounds:,}"
    yield "tokens trained on", f"{totals.tokens:,}"
    if totals.loss_micro is not None:
        first, last = (loss_text(one) for one in totals.loss_micro)
        yield f"{kind.name}, first and last round", f"{first} to {last}"
    if held_out is not None:
        yield (
            f"held-out {kind.held_out.name}, before and after",
            " to ".join(loss_text(one) for one in (held_out.first_micro, held_out.last_micro)),
        )
    if held_out is not None and (found := held_out.accuracy) is not None:
        for metric, counts in (
            ("acc", (found.acc_first, found.acc_last)),
            ("acc_norm", (found.acc_norm_first, found.acc_norm_last)),
        ):
            yield f"{metric}, before and after", " to ".join(share_text(one, found.items) for one in counts)
    yield "nodes that contributed", f"{totals.nodes:,}"
    yield "steps accepted", f"{totals.accepted:,}"
    yield "of them not paid", f"{totals.unpaid:,}"
    yield "steps audited", f"{totals.audited:,}"
    yield "faults confirmed", f"{totals.faults:,}"
    yield "updates of all nodes", bytes_text(totals.sent_bytes)
    yield "aggregates", bytes_text(totals.aggregate_bytes)
    yield "from first to last round", _duration(totals.seconds)
    if report.energy is not None:
        yield "energy, estimated", _energy_text(report.energy)
    yield f"paid, {UNIT}", money_text(totals.spent)


def report_lines(report: TrainingReport, kind: LossKind = NEXT_TOKEN) -> Iterator[str]:
    """The totals for a terminal, one a line."""
    yield f"run {one_line(report.run)}  {report.run_id}"
    for name, value in figures_of(report, kind):
        yield f"{name:<33}{value}"
    for sample in report.samples:
        yield f"{'sampled text':<33}{one_line(sample)}"


def training_page(report: TrainingReport, kind: LossKind = NEXT_TOKEN, *, has_agreed: bool = True) -> str:
    """The report as one HTML page. has_agreed: as `write_bundle`'s."""
    title = f"Training of {escape(one_line(report.run))}"
    figures = "\n".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in figures_of(report, kind)
    )
    charts = "\n".join(
        f"<section><h2>{escape(chart.title)}</h2>\n{figure_html(chart)}</section>"
        for chart in charts_of(report, kind, has_agreed=has_agreed)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style></head>\n<body><main>\n<h1>{title}</h1>\n"
        f'<p class="lead">Run {escape(report.run_id)}</p>\n<dl class="figures">\n{figures}\n</dl>\n'
        f'<div class="charts">\n{charts or "<p>No round was trained.</p>"}\n</div>\n{_samples_html(report)}'
        "<footer>Computed from the certified chain, the payout tables and the sizes of the delivered files; "
        "<code>report.json</code> beside this page has every figure. <code>assay run verify</code> computes "
        "both again and compares them byte for byte. It compares <code>model/training.png</code> only where "
        "its own version of matplotlib drew it. Energy is an estimate by the efficiency that the buyer "
        "declares. A step's loss is what its node states and signs; "
        f"{_held_out_text(report)}</footer>\n</main></body></html>\n"
    )


def _samples_html(report: TrainingReport) -> str:
    if not report.samples:
        return ""
    texts = "\n".join(f"<pre>{escape(one)}</pre>" for one in report.samples)
    return (
        "<h2>Sampled text</h2>\n<p>Documents that the model makes up, at temperature 1 in the reference "
        f"class, with noise that follows from the run's id: nobody chose among them.</p>\n{texts}\n"
    )


def _held_out_text(report: TrainingReport) -> str:
    if report.held_out is None:
        return "none was measured on the held-out data."
    items = ""
    if report.held_out.accuracy is not None:
        items = f", and so are acc and acc_norm, on the {report.held_out.accuracy.items:,} items of the order"
    return (
        f"the held-out loss is the buyer's measurement, on {report.held_out.tokens:,} tokens that nobody "
        f"trained on{items}; <code>assay run verify --data</code> repeats it."
    )


def loss_text(micro: int) -> str:
    """A loss in nats, with four decimals."""
    return f"{micro / MICRO:,.4f}"


def share_text(count: int, items: int) -> str:
    """Items answered right, as an accuracy and as they were counted: 0.7500 (15 of 20)."""
    return f"{count / items:.4f} ({count:,} of {items:,})"


def bytes_text(count: int) -> str:
    """A number of bytes with three digits, such as 1.25 MB."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 1000)):
        if count >= size:
            return f"{count / size:,.2f} {unit}"
    return f"{count} B"


def _energy_text(energy: Energy) -> str:
    return f"{energy.joules:,} J" if energy.joules < 3_600 else f"{one_line(energy.kwh)} kWh"


def _duration(seconds: int) -> str:
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s"
