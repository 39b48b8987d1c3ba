"""Claim: `assay claim` claims the pay of final epochs, from any available payout tables.

Room: cli (edge). The tables come from the participant's own chain, a delivered bundle or a run's books; the
contract decides which of them are right (participant/wallet/payouts.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.chain.text.units import token_text
from assay.cli.account.spending import DryRun, PayTo, account_of, name_payee, sent_text
from assay.cli.result import Step, done, dry, stepwise, told
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from assay.participant.wallet.account import Account
    from assay.participant.wallet.payouts import EpochPay, Table


@stepwise
def claim(
    what: Annotated[
        Path, typer.Argument(metavar="RUN|FILE.toml", help="A run's folder, or your configuration.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="With RUN: configuration of the account that sends."),
    ] = None,
    epoch: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Claim only this epoch.")] = None,
    payee_text: Annotated[
        str | None,
        typer.Option("--account", metavar="0x...", help="Account that is paid; default: your own."),
    ] = None,
    finalize: Annotated[
        bool, typer.Option("--finalize", help="First finalize the results whose challenge window is over.")
    ] = False,
    to: PayTo = None,
    dry_run: DryRun = False,
) -> Iterator[Step]:
    """Claim every unclaimed payout row of the final epochs that pays you, or --account.

    Example: assay claim config.toml --dry-run
    """
    from assay.chain.deployment.coin import address_given
    from assay.chain.text.settlement_phase import phase_text
    from assay.participant.wallet.payouts import finalize_ready, is_finalizable, read_pay

    payee = None if payee_text is None else address_given(payee_text)
    account, source = _opened(what, config)
    payee = payee or account.address
    if to is not None and payee != account.address:
        raise ConfigError("--to is for your own pay: only an account itself names where its money goes")
    if epoch is not None and epoch >= source.epochs:
        raise ConfigError(f"the run has {source.epochs} epochs, counted from 0; there is no epoch {epoch}")
    chosen = range(source.epochs) if epoch is None else (epoch,)
    chain, run_id = account.chain, source.run_id
    pays = read_pay(chain, run_id, source.tables, payee, chosen)
    if finalize and not dry_run:
        for number in finalize_ready(chain, run_id, pays):
            yield done("finalize", f"epoch {number}: finalized")
        pays = read_pay(chain, run_id, source.tables, payee, chosen)
    elif finalize:
        for pay in pays:
            if is_finalizable(pay):
                where = f"EpochSettlement {account.deployment.epoch_settlement}"
                yield dry("finalize", f"would send to {where}: finalize({run_id.hex()}, {pay.epoch})")
    if to is not None:
        yield from name_payee(account, to, is_dry=dry_run)
    yield told("payee", f"{payee}, run {run_id.hex()[:16]}")
    total = 0
    for pay in pays:
        if not pay.due:
            yield told("epoch", f"epoch {pay.epoch}: {_table_note(pay)}{phase_text(pay.state, pay.now)}")
        for row in pay.rows or ():
            name = f"epoch {pay.epoch} row {row.index}, {row.role}: {token_text(row.amount)}"
            if row not in pay.due:
                text = f"{name}, {'claimed before' if row.is_claimed else 'not claimed'}"
                yield told("row", text, row.amount)
            elif dry_run:
                where = f"EpochSettlement {account.deployment.epoch_settlement}"
                yield dry("claim", f"would send to {where}: claim, {name}", row.amount)
            else:
                sent = chain.claim(run_id, pay.epoch, source.tables[pay.epoch].tree, row.index)
                total += row.amount if sent.tx_hash is not None else 0
                yield done("claim", f"{name} claimed: {sent_text(sent)}", row.amount, sent)
    yield told("total", f"claimed now {token_text(total)}", total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Payout tables of one run, not verified yet."""

    run_id: bytes
    epochs: int
    tables: Mapping[int, Table]


def _table_note(pay: EpochPay) -> str:
    if pay.rows is None:
        return "its payout table is not here yet; "
    if pay.is_other:
        return "the chain has ANOTHER table than the one here: challenge it before the window ends; "
    return "" if pay.rows else "pays this account nothing; "


def _opened(what: Path, config: Path | None) -> tuple[Account, Source]:
    if what.suffix == ".toml" and not what.is_dir():
        if config is not None:
            raise ConfigError(
                "--config goes with a run's folder; FILE.toml already names the account that sends"
            )
        account = account_of(what)
        return account, _of_store(account)
    if config is None:
        raise ConfigError(
            f"{what}: expected also --config FILE.toml, which names the account that sends and its chain"
        )
    account = account_of(config)
    return account, _of_bundle(what, account) if (what / "bundle").is_dir() else _of_books(what, account)


def _of_store(account: Account) -> Source:
    """The tables of the participant's own chain."""
    from assay.participant.wallet.payouts import tables_in_store

    tables = tables_in_store(account.config.folder / "store.db", account.spec, account.run_id)
    return Source(run_id=account.run_id, epochs=account.spec.epochs, tables=tables)


def _of_bundle(run: Path, account: Account) -> Source:
    """The tables of a delivered run."""
    from assay.bundle.read import read
    from assay.participant.wallet.payouts import table_of

    found = read(run)
    _check_deployment(run, found.spec.deployment_id, account)
    tables = {epoch: table_of(settlement) for epoch, settlement in found.tables.items()}
    return Source(run_id=found.run_id, epochs=found.calendar.epochs, tables=tables)


def _of_books(run: Path, account: Account) -> Source:
    """The tables of a run's books; without its spec beside them, of the run that FILE.toml names."""
    from assay.bundle.books import find_books, opened, spec_of
    from assay.ledger.queries.settled import read_tables
    from assay.ledger.settlement.results import run_id_of
    from assay.participant.wallet.payouts import Table

    place = find_books(run)
    spec = account.spec if place.spec is None else spec_of(place)
    _check_deployment(run, spec.deployment_id, account)
    run_id = run_id_of(spec)
    with opened(place) as db:
        tables = {one.epoch: Table(tree=one.tree, roles=one.roles) for one in read_tables(db, run_id)}
    return Source(run_id=run_id, epochs=spec.epochs, tables=tables)


def _check_deployment(run: Path, deployment_id: bytes, account: Account) -> None:
    if deployment_id != account.deployment.deployment_id:
        raise ConfigError(
            f"{run} is of deployment {deployment_id.hex()[:8]}, "
            f"the configuration's is {account.deployment.deployment_id.hex()[:8]}"
        )
