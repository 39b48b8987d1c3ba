"""Order commands: check, quote and fund a buyer's order.

Room: cli (edge). Check, data and quote need no chain; the others act on the escrow of the run that FILE.toml
names, by orders/purchase.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.spending import ConfigFile, DryRun, PayTo, show

OrderFile = Annotated[Path, typer.Argument(metavar="RUN.toml", help="The order.")]


def add_order_commands(app: typer.Typer) -> None:
    """Add the commands below to `assay order`."""
    for command in (check, data, quote, place, status, topup, cancel, refund):
        app.command()(command)


def check(file: Annotated[Path, typer.Argument(metavar="RUN.toml")]) -> None:
    """Check a run file, and print what it orders and its largest cost."""
    from assay.orders.check import check_order

    typer.echo("\n".join(check_order(file)))


def data(
    file: Annotated[Path, typer.Argument(metavar="RUN.toml")],
    out: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="New folder for the shards; every participant needs a copy."),
    ],
) -> None:
    """Tokenise a run's data into shards, with its manifest and any imported parameters."""
    from assay.orders.data import make_data

    typer.echo("\n".join(make_data(file, out)))


def quote(
    file: OrderFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False,
) -> None:
    """Print the largest and the expected cost of a run, and how it is shared; needs no chain."""
    from assay.cli.orders.money import quote_json, quote_lines
    from assay.orders.load import load_order

    order = load_order(file)
    if as_json:
        typer.echo(quote_json(order))
    else:
        show(quote_lines(order))


def place(
    file: ConfigFile,
    order: OrderFile,
    quote: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="Refuse a quote with another digest.")
    ] = None,
    members: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Records of all members: nodes, verifiers, ledger.")
    ] = None,
    days: Annotated[int, typer.Option(help="Days after which the run closes by itself.")] = 30,
    dry_run: DryRun = False,
) -> None:
    """Make an order's run, open it with the quoted escrow, and write its run file; repeating does nothing."""
    from assay.cli.orders.money import place_lines

    show(place_lines(file, order, members, quote, days, is_dry=dry_run))


def status(file: ConfigFile) -> None:
    """Print the escrow of a run and the state of each epoch's settlement."""
    from assay.cli.orders.money import status_lines

    show(status_lines(file))


def topup(
    file: ConfigFile,
    amount: Annotated[str | None, typer.Argument(metavar="[AMOUNT]", help="Tokens to add.")] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="AMOUNT", help="Add only what the budget lacks to reach this amount."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Add AMOUNT to the escrow; or, with --to, only what it lacks, so that repeating it adds nothing."""
    from assay.cli.orders.money import topup_lines

    show(topup_lines(file, amount, to, is_dry=dry_run))


def cancel(file: ConfigFile, dry_run: DryRun = False) -> None:
    """Request the end of the run; finished work is still paid until the close delay is over."""
    from assay.cli.orders.money import cancel_lines

    show(cancel_lines(file, is_dry=dry_run))


def refund(file: ConfigFile, to: PayTo = None, dry_run: DryRun = False) -> None:
    """Return the unspent escrow of a closed run to the buyer, or print when that becomes possible."""
    from assay.cli.orders.money import refund_lines

    show(refund_lines(file, to, is_dry=dry_run))
