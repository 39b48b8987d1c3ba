"""Ledger commands: query, prove, audit and invoice the books of a run.

Room: cli (edge). All but `invoice` only read. RUN is a run's folder or a ledger.db.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from assay.protocol.errors import ConfigError

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or a ledger.db.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands below to `assay ledger`."""
    for command in (balance, entries, export, prove, audit, faults, settle):
        app.command()(command)


def balance(run: Run) -> None:
    """Print the balance of every account that is not zero."""
    from assay.cli.ledger.lines import balance_lines

    _show(balance_lines(run))


def entries(
    run: Run,
    account: Annotated[
        str | None, typer.Option(help="Only accounts whose code begins with this text.")
    ] = None,
) -> None:
    """Print the journal, oldest entry first."""
    from assay.cli.ledger.lines import entry_lines

    _show(entry_lines(run, account))


def export(
    run: Run,
    csv: Annotated[bool, typer.Option("--csv", help="CSV, one line per posting.")] = False,
    beancount: Annotated[
        bool, typer.Option("--beancount", help="Beancount, with balance assertions.")
    ] = False,
) -> None:
    """Print the whole journal as CSV or for beancount."""
    from assay.cli.ledger.lines import export_text

    typer.echo(export_text(run, is_csv=csv, is_beancount=beancount), nl=False)


def prove(
    run: Run, entry: Annotated[str, typer.Argument(metavar="ENTRY", help="Number or key of the entry.")]
) -> None:
    """Print an entry and its inclusion proof in the signed log, as JSON."""
    from assay.cli.ledger.lines import proof_text

    typer.echo(proof_text(run, entry))


def audit(
    run: Run,
    key: Annotated[str | None, typer.Option(help="The ledger service's public key, if you know it.")] = None,
    witnessed: Annotated[
        bool, typer.Option("--witnessed", help="Require cosignatures of a quorum of verifiers.")
    ] = False,
    rpc: Annotated[
        str | None,
        typer.Option(metavar="URL|FILE", help="Compare with the anchor on chain, read at this endpoint."),
    ] = None,
    ledger_service: Annotated[
        str | None,
        typer.Option(
            metavar="ACCOUNT", help="Account of the anchor; default: the account that receives the fee."
        ),
    ] = None,
) -> None:
    """Recompute every leaf, root and balance of the books, and verify every signed checkpoint."""
    from assay.cli.ledger.lines import audit_lines

    _show(audit_lines(run, key, must_be_witnessed=witnessed))
    if rpc is not None:
        from assay.bundle.check_anchor import chain_line
        from assay.cli.process import read_process_file

        url = rpc if "://" in rpc else read_process_file(Path(rpc))[0].rpc_url
        _show([chain_line(run, url, ledger_service)])


def faults(
    run: Run,
    verifier: Annotated[
        str,
        typer.Option(
            metavar="PEER", help="Only faults of this verifier: its peer id, or the beginning of it."
        ),
    ] = "",
) -> None:
    """Print the proved faults of verifiers and the contradictions of nodes."""
    from assay.cli.ledger.faults import fault_lines

    _show(fault_lines(run, verifier))


def settle(
    check: Annotated[str, typer.Option(metavar="RUN:EPOCH", help="Folder of a run, and the epoch.")],
) -> None:
    """Recompute an epoch's payout table from the certified chain, and compare it with the books."""
    from assay.bundle.check_settlement import check_epoch
    from assay.bundle.read import read

    name, _, number = check.rpartition(":")
    if not name or not number.isdecimal() or not number.isascii():
        raise ConfigError(f"{check!r}: expected RUN:EPOCH, such as runs/quickstart:0")
    _show(check_epoch(read(Path(name)), int(number)))


def earnings(
    run: Run,
    node: Annotated[str, typer.Option(metavar="PEER", help="The node's peer id, or its beginning.")],
    why: Annotated[
        int | None,
        typer.Option(metavar="EPOCH", help="Print every unpaid step of this epoch, with evidence."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml",
            help="With --why: configuration whose chain gives the end of the challenge window.",
        ),
    ] = None,
) -> None:
    """Print what a node earned in each epoch, and its unpaid steps."""
    from assay.cli.ledger.earnings import earning_lines, reason_lines

    if why is None and config is not None:
        raise ConfigError("--config goes with --why EPOCH")
    _show(earning_lines(run, node) if why is None else reason_lines(run, node, why, config))


def invoice(
    run: Run,
    epoch: Annotated[int | None, typer.Option(help="Invoice only this epoch; default: all epochs.")] = None,
    pdf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the document to this PDF file.")
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the document to this CSV file, one line per item."),
    ] = None,
    supplier: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="The supplier; default: supplier.toml beside the books."),
    ] = None,
    credit: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Cancel this invoice with a credit note.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Reason printed on the credit note.")] = "",
    font: Annotated[Path | None, typer.Option(metavar="FILE.ttf", help="TrueType font of the PDF.")] = None,
) -> None:
    """Write the invoice for settled epochs; without a supplier's file, a pro forma invoice."""
    from assay.cli.ledger.invoice import InvoiceOptions, invoice_lines

    options = InvoiceOptions(
        epoch=epoch, pdf=pdf, csv=csv, supplier=supplier, credit=credit, reason=reason, font=font
    )
    _show(invoice_lines(run, options))


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)
