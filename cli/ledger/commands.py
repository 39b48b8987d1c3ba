"""Ledger commands: query, prove, audit and invoice the books of a run.

Room: cli (edge). All of them only read. RUN is a run's folder or a ledger.db.
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
    """Every account that is not at zero."""
    from assay.cli.ledger.lines import balance_lines

    _show(balance_lines(run))


def entries(
    run: Run,
    account: Annotated[str | None, typer.Option(help="Only accounts whose code begins so.")] = None,
) -> None:
    """The journal, oldest entry first."""
    from assay.cli.ledger.lines import entry_lines

    _show(entry_lines(run, account))


def export(
    run: Run,
    csv: Annotated[bool, typer.Option("--csv", help="One line per posting.")] = False,
    beancount: Annotated[bool, typer.Option("--beancount", help="For beancount, with assertions.")] = False,
) -> None:
    """The journal for other tools, on standard output."""
    from assay.cli.ledger.lines import export_text

    typer.echo(export_text(run, is_csv=csv, is_beancount=beancount), nl=False)


def prove(
    run: Run, entry: Annotated[str, typer.Argument(metavar="ENTRY", help="Its number or its key.")]
) -> None:
    """An entry with the proof that the signed log holds it, as JSON."""
    from assay.cli.ledger.lines import proof_text

    typer.echo(proof_text(run, entry))


def audit(
    run: Run,
    key: Annotated[str | None, typer.Option(help="The keeper's public key, if you know it.")] = None,
    witnessed: Annotated[
        bool, typer.Option("--witnessed", help="Require that a quorum of verifiers cosigned.")
    ] = False,
    rpc: Annotated[
        str | None,
        typer.Option(metavar="URL|FILE", help="Compare with what is anchored on chain, at this endpoint."),
    ] = None,
    ledger_service: Annotated[
        str | None, typer.Option(metavar="ACCOUNT", help="Who anchored; default: whom the run's fee goes to.")
    ] = None,
) -> None:
    """Make every leaf, root and sum again, and check every signed checkpoint."""
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
        str, typer.Option(metavar="PEER", help="Only of this verifier: its peer id, or the beginning of it.")
    ] = "",
) -> None:
    """What was proved of verifiers, and which nodes contradicted themselves."""
    from assay.cli.ledger.faults import fault_lines

    _show(fault_lines(run, verifier))


def settle(
    check: Annotated[str, typer.Option(metavar="RUN:EPOCH", help="Which epoch of which run.")],
) -> None:
    """Compute an epoch's payout table again from the certified chain, and compare."""
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
        int | None, typer.Option(metavar="EPOCH", help="Every unpaid step, with evidence.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="With --why: ask this one's chain until when to object."),
    ] = None,
) -> None:
    """What a node earned in each epoch, and what it did not."""
    from assay.cli.ledger.earnings import earning_lines, reason_lines

    if why is None and config is not None:
        raise ConfigError("--config goes with --why EPOCH")
    _show(earning_lines(run, node) if why is None else reason_lines(run, node, why, config))


def invoice(
    run: Run,
    epoch: Annotated[int | None, typer.Option(help="Only this epoch; default: all of the run's.")] = None,
    pdf: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it on paper.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one line per item.")] = None,
    supplier: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml", help="Who sells; default: supplier.toml beside the keeper's books."
        ),
    ] = None,
    credit: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Take this invoice back by a credit note.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Of the credit note.")] = "",
    font: Annotated[Path | None, typer.Option(metavar="FILE.ttf", help="Of the PDF.")] = None,
) -> None:
    """Invoice settled epochs to the buyer; without a supplier's file, pro forma."""
    from assay.cli.ledger.invoice import Wanted, invoice_lines

    wanted = Wanted(epoch=epoch, pdf=pdf, csv=csv, supplier=supplier, credit=credit, reason=reason, font=font)
    _show(invoice_lines(run, wanted))


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)
