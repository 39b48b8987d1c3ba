"""Order commands: check, quote and fund a buyer's order.

Room: cli (edge). Check, data and quote need no chain; the others act on the escrow of the run that FILE.toml
names, by orders/purchase.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.spending import ConfigFile, DryRun, show

OrderFile = Annotated[Path, typer.Argument(metavar="RUN.toml", help="What is ordered.")]


def add_order_commands(app: typer.Typer) -> None:
    """Add the commands below to `assay order`."""
    for command in (check, data, quote, place, status, topup, cancel, refund):
        app.command()(command)


def check(file: Annotated[Path, typer.Argument(metavar="RUN.toml")]) -> None:
    """Say what a run file asks for, and what it can cost at most."""
    from assay.orders.check import check_order

    typer.echo("\n".join(check_order(file)))


def data(
    file: Annotated[Path, typer.Argument(metavar="RUN.toml")],
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made new; every participant needs a copy.")],
) -> None:
    """Tokenise a run's data into shards, with its manifest and any imported parameters."""
    from assay.orders.data import make_data

    typer.echo("\n".join(make_data(file, out)))


def quote(
    file: OrderFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")] = False,
) -> None:
    """Say what a run costs at most, what it is expected to cost, and who gets it; without a chain."""
    from assay.cli.orders.money import quote_json, quote_lines
    from assay.orders.order import load_order

    order = load_order(file)
    if as_json:
        typer.echo(quote_json(order))
    else:
        show(quote_lines(order))


def place(
    file: ConfigFile,
    order: OrderFile,
    quote: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="Only if the quote has this digest.")
    ] = None,
    days: Annotated[int, typer.Option(help="The run closes by itself after so many.")] = 30,
    dry_run: DryRun = False,
) -> None:
    """Open the run with the quoted escrow, if spec, contracts and order agree; repeated, find it open."""
    from assay.cli.orders.money import place_lines

    show(place_lines(file, order, quote, days, is_dry=dry_run))


def status(file: ConfigFile) -> None:
    """Say where the money of a run is, and how each epoch's settlement stands."""
    from assay.cli.orders.money import status_lines

    show(status_lines(file))


def topup(
    file: ConfigFile,
    amount: Annotated[str | None, typer.Argument(metavar="[AMOUNT]", help="Tokens to add.")] = None,
    to: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Only what the budget lacks to it.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Add AMOUNT to the escrow, each time; or, with --to, what it lacks, which may be repeated."""
    from assay.cli.orders.money import topup_lines

    show(topup_lines(file, amount, to, is_dry=dry_run))


def cancel(file: ConfigFile, dry_run: DryRun = False) -> None:
    """Ask the run to stop; results of work already done are paid until the close delay is over."""
    from assay.cli.orders.money import cancel_lines

    show(cancel_lines(file, is_dry=dry_run))


def refund(file: ConfigFile, dry_run: DryRun = False) -> None:
    """Take back what a closed run did not spend; or say how long that has to wait."""
    from assay.cli.orders.money import refund_lines

    show(refund_lines(file, is_dry=dry_run))
