"""Ledger commands: query, prove, audit and invoice the books of a run.

Room: cli (edge). All but `invoice` only read the books. RUN is a run's folder or a ledger.db.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.result import AsJson, show, show_each
from assay.orders.config_errors import printable
from assay.protocol.errors import ConfigError

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or a ledger.db.")]


def add_commands(app: typer.Typer) -> None:
    """Add the commands below to `assay ledger`."""
    for command in (balance, entries, statement, export, prove, audit, faults, settle, rebuild, yearly):
        app.command()(command)


def balance(run: Run, as_json: AsJson = False) -> None:
    """Print the balance of every account that is not zero.

    Example: assay ledger balance runs/quickstart
    """
    from assay.cli.ledger.lines import balance_lines, read_balance

    found = read_balance(run)
    show(found, balance_lines(found), as_json=as_json)


def entries(
    run: Run,
    account: Annotated[
        str | None, typer.Option(help="Only accounts whose code begins with this text.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the journal, oldest entry first.

    Example: assay ledger entries runs/quickstart --account payable
    """
    from assay.cli.ledger.lines import Entries, entry_text, read_entries

    show_each(read_entries(run, account), entry_text, Entries, as_json=as_json)


def statement(
    run: Run,
    party: Annotated[
        str, typer.Argument(metavar="PARTY", help="An address, or `buyer` or `treasury` of the run.")
    ],
    since: Annotated[
        str | None, typer.Option(metavar="DAY", help="First day, UTC; default: the first entry's.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="DAY", help="Last day, UTC; default: the last entry's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what a party earned, paid, paid in and took out, by the days of the chain's blocks.

    Example: assay ledger statement runs/quickstart buyer --since 2026-01-01 --until 2026-12-31
    """
    from assay.cli.ledger.statement import read_statement, statement_lines

    found = read_statement(run, party, since, until)
    show(found, statement_lines(found), as_json=as_json)


def export(
    run: Run,
    csv: Annotated[bool, typer.Option("--csv", help="CSV, one line per posting.")] = False,
    beancount: Annotated[
        bool, typer.Option("--beancount", help="Beancount, with balance assertions.")
    ] = False,
    hledger: Annotated[bool, typer.Option("--hledger", help="hledger, with balance assertions.")] = False,
    datev: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="A DATEV posting batch of a month, in euros, by this file."),
    ] = None,
    month: Annotated[
        str | None, typer.Option(metavar="MONTH", help="With --datev: the month in UTC, such as 2026-11.")
    ] = None,
) -> None:
    """Print the whole journal as CSV, or for beancount or hledger; or a month of it for DATEV.

    Example: assay ledger export runs/quickstart --csv
    """
    from assay.cli.ledger.lines import export_text
    from assay.ledger.queries.export import Language

    if (datev is None) != (month is None) or (datev is not None and (csv or beancount or hledger)):
        raise ConfigError("--datev FILE.toml goes with --month MONTH, and with nothing else")
    if datev is not None:
        from assay.cli.ledger.datev import datev_export

        typer.echo(datev_export(run, datev, month), nl=False)
        return
    chosen = {Language.CSV: csv, Language.BEANCOUNT: beancount, Language.HLEDGER: hledger}
    text = export_text(run, [language for language, is_wanted in chosen.items() if is_wanted])
    typer.echo(printable(text), nl=False)


def prove(
    run: Run,
    entry: Annotated[str, typer.Argument(metavar="ENTRY", help="Number or key of the entry.")],
    as_json: AsJson = True,
) -> None:
    """Print an entry and its inclusion proof in the signed log: always a JSON document.

    Example: assay ledger prove runs/quickstart 12
    """
    from assay.cli.ledger.lines import proof_of

    show(proof_of(run, entry), (), as_json=as_json)


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
    as_json: AsJson = False,
) -> None:
    """Recompute every leaf, root and balance of the books, and verify every signed checkpoint.

    Example: assay ledger audit runs/quickstart --witnessed
    """
    from assay.cli.ledger.lines import audit_books, audit_lines

    found = audit_books(run, key, must_be_witnessed=witnessed)
    if rpc is not None:
        from assay.bundle.check.anchor import chain_line
        from assay.cli.process import read_process_file

        url = rpc if "://" in rpc else read_process_file(Path(rpc))[0].rpc_url
        found = replace(found, anchor=chain_line(run, url, ledger_service))
    show(found, audit_lines(found), as_json=as_json)


def faults(
    run: Run,
    verifier: Annotated[
        str,
        typer.Option(
            metavar="PEER", help="Only faults of this verifier: its peer id, or the beginning of it."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Print the proved faults of verifiers and the contradictions of nodes.

    Example: assay ledger faults runs/quickstart
    """
    from assay.bundle.books import find_books, opened
    from assay.cli.ledger.faults import fault_lines
    from assay.ledger.queries.faults import read_faults

    with opened(find_books(run)) as db:
        found = read_faults(db, verifier)
    show(found, fault_lines(found, verifier), as_json=as_json)


def settle(
    check: Annotated[str, typer.Option(metavar="RUN:EPOCH", help="Folder of a run, and the epoch.")],
    as_json: AsJson = False,
) -> None:
    """Recompute an epoch's payout table from the certified chain, and compare it with the books.

    Example: assay ledger settle --check runs/quickstart:0
    """
    from assay.bundle.check.settlement import check_epoch
    from assay.bundle.read import read

    name, _, number = check.rpartition(":")
    if not name or not number.isdecimal() or not number.isascii():
        raise ConfigError(f"{check!r}: expected RUN:EPOCH, such as runs/quickstart:0")
    found = check_epoch(read(Path(name)), int(number))
    show(found, found.lines, as_json=as_json)


def rebuild(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's folder, or a participant's while it goes on.")
    ],
    rpc: Annotated[
        list[str], typer.Option(metavar="URL", help="An endpoint of the run's chain; repeat for several.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The new database.")],
    as_json: AsJson = False,
) -> None:
    """Remake a run's books from its certified chain and the contracts' events; compare those that are there.

    Exit status 1 if an account differs. Times of writing are new, so nobody has signed the new log.

    Example: assay ledger rebuild participants/ledger --rpc http://127.0.0.1:8545 --out rebuilt.db
    """
    from assay.bundle.follow import read_any
    from assay.cli.ledger.rebuild import rebuilt_lines
    from assay.cli.progress import progress
    from assay.observer.ledger_service.rebuild import rebuild as remake

    with progress("rounds") as tell:
        found = remake(read_any(run), rpc, out, tell)
    show(found, rebuilt_lines(found), as_json=as_json)
    if found.differences:
        raise typer.Exit(1)


def yearly(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs' folders, or ledger.db files.")],
    year: Annotated[int, typer.Option(min=2020, max=9998, help="Calendar year, in UTC.")],
    supplier: Annotated[
        Path, typer.Option(metavar="FILE.toml", help="The supplier's file: currency, rates, operators.")
    ],
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Report what each operator earned and was paid in a year, by quarter, for tax reports.

    Example: assay ledger yearly runs/quickstart --year 2026 --supplier supplier.toml
    """
    from assay.cli.ledger.yearly import write_yearly, yearly_lines

    made = write_yearly(runs, year, supplier, csv)
    show(made, yearly_lines(made), as_json=as_json)


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
    as_json: AsJson = False,
) -> None:
    """Print what a node earned in each epoch, and its unpaid steps.

    Example: assay earnings runs/quickstart --node 3fa1 --why 0
    """
    from assay.bundle.books import find_books, opened
    from assay.cli.ledger.earnings import earning_lines, read_reasons, reason_lines
    from assay.ledger.queries.earned import read_earned

    if why is None and config is not None:
        raise ConfigError("--config goes with --why EPOCH")
    if why is None:
        with opened(find_books(run)) as db:
            earned = read_earned(db, node)
        show(earned, earning_lines(earned), as_json=as_json)
    else:
        reasons = read_reasons(run, node, why, config)
        show(reasons, reason_lines(reasons), as_json=as_json)


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
    ubl: Annotated[
        Path | None, typer.Option(metavar="FILE.xml", help="Write the document as UBL 2.1 of EN 16931.")
    ] = None,
    facturx: Annotated[
        Path | None,
        typer.Option(metavar="FILE.pdf", help="Write the document as Factur-X: PDF/A-3 with its CII."),
    ] = None,
    supplier: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="The supplier; default: supplier.toml beside the books."),
    ] = None,
    credit: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="Take this invoice back by a credit note; --epoch: only a part."),
    ] = None,
    amount: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="Credit only this amount of the epoch, such as 12.5."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Reason printed on the credit note.")] = "",
    operator: Annotated[
        str | None,
        typer.Option(metavar="ACCOUNT", help="Self-billing: the invoice of this operator's pay."),
    ] = None,
    font: Annotated[Path | None, typer.Option(metavar="FILE.ttf", help="TrueType font of the PDF.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the invoice for settled epochs; without a supplier's file, a pro forma invoice.

    Example: assay invoice runs/quickstart --pdf invoice.pdf
    """
    from assay.cli.ledger.invoice import InvoiceOptions, invoice_lines, write_invoice

    options = InvoiceOptions(
        epoch=epoch,
        pdf=pdf,
        csv=csv,
        ubl=ubl,
        facturx=facturx,
        supplier=supplier,
        credit=credit,
        amount=amount,
        reason=reason,
        operator=operator,
        font=font,
    )
    made = write_invoice(run, options)
    show(made, invoice_lines(made), as_json=as_json)
