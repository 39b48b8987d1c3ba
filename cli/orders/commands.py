"""Order commands: check, quote and fund a buyer's order.

Room: cli (edge). Check, data, quote and examples need no chain; the others act on the escrow of the run that
FILE.toml names, by orders/purchase.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from assay.cli.account.spending import ConfigFile, DryRun, PayTo, account_of
from assay.cli.result import AsJson, show, show_steps

OrderFile = Annotated[Path, typer.Argument(metavar="RUN.toml", help="The order.")]


def add_order_commands(app: typer.Typer) -> None:
    """Add the commands below to `assay order`."""
    for command in (check, data, quote, place, topup, cancel, refund):
        app.command()(command)
    app.command("show")(show_order)
    app.command("continue")(continue_order)
    app.command()(examples)


def check(file: OrderFile, as_json: AsJson = False) -> None:
    """Check a run file, and print what it orders and its largest cost.

    Example: assay order check run.toml
    """
    from assay.cli.progress import progress
    from assay.orders.check import check_order

    with progress("bytes") as tell:
        found = check_order(file, tell)
    show(found, found.lines, as_json=as_json)


def examples(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or an empty folder.")],
    as_json: AsJson = False,
) -> None:
    """Write the example orders, with their scenarios and data, into a folder.

    Example: assay order examples examples
    """
    from assay.orders.examples import write_examples

    found = write_examples(folder)
    show(found, found.lines, as_json=as_json)


def data(
    file: OrderFile,
    out: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="New folder for the shards; every participant needs a copy."),
    ],
    as_json: AsJson = False,
) -> None:
    """Tokenise a run's data into shards, with its manifest and any imported parameters.

    Example: assay order data run.toml data
    """
    from assay.cli.progress import progress
    from assay.orders.data.tokenise import make_data

    with progress("bytes") as tell:
        found = make_data(file, out, tell)
    show(found, found.lines, as_json=as_json)


def quote(
    file: OrderFile,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="INVITATION", help="Also the price at which the offers of this network would fill it."
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="With --network: until the run closes by itself.")] = 30,
    rpc: Annotated[str | None, typer.Option("--rpc", metavar="URL", help="An endpoint of your own.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the largest and the expected cost of a run, and how it is shared; needs no chain by itself.

    Example: assay order quote run.toml
    """
    from assay.cli.orders.money import quote_lines
    from assay.orders.load import load_order
    from assay.orders.price.quoted import quoted

    order = load_order(file)
    if network is None:
        found = quoted(order)
        show(found, quote_lines(found), as_json=as_json)
        return
    from assay.cli.network.directory import chain_of
    from assay.cli.orders.market import market_lines
    from assay.orders.price.market import market_quote
    from assay.participant.market.standing import read_standing

    priced = market_quote(order, read_standing(chain_of(network, rpc)), days)
    show(priced, market_lines(priced), as_json=as_json)


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
    as_json: AsJson = False,
) -> None:
    """Make an order's run, open it with the quoted escrow, and write its run file; repeating does nothing.

    Example: assay order place config.toml run.toml --members records --dry-run
    """
    from assay.cli.orders.money import place_steps

    show_steps(place_steps(file, order, members, quote, days, is_dry=dry_run), as_json=as_json)


def show_order(file: ConfigFile, as_json: AsJson = False) -> None:
    """Print the escrow of a run and the state of each epoch's settlement.

    Example: assay order show config.toml
    """
    from assay.cli.orders.money import status_lines
    from assay.orders.purchase import need_escrow

    escrow = need_escrow(account_of(file))
    show(escrow, status_lines(escrow), as_json=as_json)


def topup(
    file: ConfigFile,
    amount: Annotated[str | None, typer.Argument(metavar="[AMOUNT]", help="Tokens to add.")] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="AMOUNT", help="Add only what the budget lacks to reach this amount."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Add AMOUNT to the escrow; or, with --to, only what it lacks, so that repeating it adds nothing.

    Example: assay order topup config.toml --to 5000
    """
    from assay.cli.orders.money import topup_steps

    show_steps(topup_steps(file, amount, to, is_dry=dry_run), as_json=as_json)


def cancel(file: ConfigFile, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Request the end of the run; finished work is still paid until the close delay is over.

    Example: assay order cancel config.toml
    """
    from assay.cli.orders.money import cancel_steps

    show_steps(cancel_steps(file, is_dry=dry_run), as_json=as_json)


def refund(file: ConfigFile, to: PayTo = None, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Return the unspent escrow of a closed run to the buyer, or print when that becomes possible.

    Example: assay order refund config.toml
    """
    from assay.cli.orders.money import refund_steps

    show_steps(refund_steps(file, to, is_dry=dry_run), as_json=as_json)


def continue_order(
    file: ConfigFile,
    stopped: Annotated[
        Path,
        typer.Argument(metavar="STOPPED.toml", help="The buyer's configuration of the run that stopped."),
    ],
    members: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Records of the successor's members, as for `place`."),
    ] = None,
    copy: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER", help="Another copy of the run, fetched or a participant's; may repeat."
        ),
    ] = None,
    round_id: Annotated[
        int | None, typer.Option("--round", min=0, help="Go back to this round; default the last certified.")
    ] = None,
    days: Annotated[int, typer.Option(help="Days after which the successor closes by itself.")] = 30,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """End a run whose verifiers are gone, and open its successor from the last certified parameters.

    The successor has the rounds that are left, the same terms and other members. Repeating does what is
    missing: the rest of the stopped run's escrow returns after the close delay.

    Example: assay order continue next/config.toml config.toml --members records --dry-run
    """
    from assay.cli.orders.successor import continue_steps

    steps = continue_steps(file, stopped, copy or (), members, round_id=round_id, days=days, is_dry=dry_run)
    show_steps(steps, as_json=as_json)
