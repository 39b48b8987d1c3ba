"""Operator: `assay operator` runs one process that takes runs of a network by itself, and shows what it has.

Room: cli (edge). What it does is package `fleet`'s; the keys of `[operator]` are process.py's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.account.spending import ConfigFile, DryRun, account_of, sent_text
from assay.cli.result import AsJson, Step, done, dry, nothing, show, stepwise, told
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:
    from assay.cli.process import OperatorSection, ProcessFile
    from assay.fleet.config import FleetConfig

operator_app = typer.Typer(
    no_args_is_help=True, help="Take runs of a network by itself: the best that this machine can serve."
)


@operator_app.command()
def up(file: ConfigFile) -> None:
    """Take the runs that pay best, and keep a node up in each; SIGTERM leaves them all, a second one ends.

    Example: assay operator up config.toml
    """
    from assay.cli.process import run_process
    from assay.fleet.service import Fleet

    fleet = Fleet(fleet_config(file))
    run_process(fleet.run, first_signal=fleet.drain)


@operator_app.command("show")
def show_runs(file: ConfigFile, as_json: AsJson = False) -> None:
    """Print one line for each run that `operator up` has taken: state, round, pay, earned, lot.

    Example: assay operator show config.toml
    """
    from assay.fleet.status import read_status, status_lines

    found = read_status(file.parent / operator_table(file)[1].folder)
    show(found, status_lines(found), as_json=as_json)


@operator_app.command()
@stepwise
def offer(
    file: ConfigFile,
    days: Annotated[int, typer.Option(min=1, max=90, help="For which the offer stands.")] = 30,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take back what was offered.")] = False,
    dry_run: DryRun = False,
) -> Iterator[Step]:
    """Offer buyers, on chain, the seats that `operator up` would fill, from its reserve price on.

    Repeating does nothing while the offer is the same and half of its time is left.

    Example: assay operator offer config.toml --dry-run
    """
    import trio

    from assay.chain.statements import OPERATOR
    from assay.chain.text.times import time_text
    from assay.chain.text.units import token_text
    from assay.cli.network.offers import class_text
    from assay.fleet.offer import own_offer, withdrawal
    from assay.fleet.speed import kept_flop_per_s
    from assay.participant.market.standing import announce_offer, last_offer, says_the_same

    config, account = fleet_config(file), account_of(file)
    chain, now = account.chain, account.chain.timestamp()
    before = last_offer(chain, account.address)
    if withdraw:
        if before is None or not before.seats:
            yield nothing("offer", "nothing is offered; nothing was sent")
            return
        signed, text = withdrawal(account.keys, before, now), "nothing any more"
    else:
        speed = trio.run(kept_flop_per_s, config)
        signed = own_offer(
            account.keys, account.deployment.deployment_id, config.bounds, speed, now, days, before
        )
        text = f"{signed.offer.seats} seats, each {class_text(signed.offer.seat_class)}, "
        text += (
            f"from {token_text(signed.offer.least_price)} an hour, until {time_text(signed.offer.until_s)}"
        )
        # an offer of before there was stake is on no list
        is_listed = chain.staker_block(account.address) > 0
        if before is not None and is_listed and says_the_same(before, signed.offer, now):
            yield nothing("offer", f"offered already until {time_text(before.until_s)}; nothing was sent")
            return
        free = chain.stake_of(account.address, OPERATOR).free
        covered = free >> signed.offer.seat_class.lot
        if covered < signed.offer.seats:
            yield told(
                "stake", f"the free stake, {token_text(free)}, is for {covered} seats: no more count", free
            )
    if dry_run:
        yield dry("offer", f"would announce in Directory {account.deployment.directory}: {text}")
        return
    sent = announce_offer(chain, signed)
    yield done("offer", f"offered {text}: {sent_text(sent)}", sent=sent)


def operator_table(file: Path) -> tuple[ProcessFile, OperatorSection]:
    """What a configuration says, and its table `[operator]`.

    Raises:
        ConfigError: it has none, or something in the file is wrong.
    """
    from assay.cli.process import ProcessFile
    from assay.orders.toml import read_tables

    given = read_tables(file, ProcessFile)
    if given.operator is None:
        raise ConfigError(f"{file}: no table [operator], expected at least its reserve and lots")
    return given, given.operator


def fleet_config(file: Path) -> FleetConfig:
    """What an operator allows, from its configuration.

    Raises:
        ConfigError: there is no table `[operator]`, or something in the file is wrong.
    """
    from assay.cli.process import password_path, read_process_file
    from assay.fleet.config import FleetConfig, default_bytes
    from assay.fleet.plan import Bounds
    from assay.orders.amounts import DECIMALS, scaled
    from assay.participant.files.record import OWN_RECORD, Role, read_record

    given, table = operator_table(file)
    config, _ = read_process_file(file)
    record = read_record(config.keys / OWN_RECORD, int(time.time())).record
    if record.role is not Role.NODE:
        raise ConfigError(f"{file}: its keys are a {record.role.name.lower()}'s, expected a node's")
    folder = file.parent / table.folder
    try:
        reserve, lots = scaled(table.reserve, DECIMALS), scaled(table.lots, DECIMALS)
    except ValueError as error:
        raise ConfigError(f"{file}: [operator] {error} in reserve and lots") from None
    memory, disk = default_bytes(folder)
    runs = table.runs or max(
        (os.cpu_count() or 1) // (max(config.threads, 1) * config.replicas * config.processes), 1
    )
    bounds = Bounds(
        reserve=reserve,
        lots_most=lots,
        runs_most=runs,
        memory_bytes=memory if table.memory_gb is None else int(table.memory_gb * 1e9),
        disk_bytes=disk if table.disk_gb is None else int(table.disk_gb * 1e9),
        days_most=table.days,
        hours_least=table.hours,
        wait_s=table.wait_s,
        absence_s=table.absence_s,
        takes_per_day=table.takes,
        poor_s=table.patience_s,
        upload_bytes_s=int(table.upload_mbit * 125_000),
    )
    lines = {
        "device": given.device,
        "threads": given.threads,
        "replicas": given.replicas,
        "processes": given.processes,
        "gradient_checkpointing": given.gradient_checkpointing or None,
        "blob_gb": given.blob_gb,
        "attester_command": list(given.attester_command) or None,
        "traces": given.traces,
    }
    return FleetConfig(
        base=config,
        password_file=password_path(file, given),
        folder=folder,
        data=tuple(file.parent / one for one in table.data),
        host=record.host,
        ports=table.ports or record.port,
        bounds=bounds,
        look_s=table.look_s,
        offers=table.offer,
        node_lines=tuple((name, value) for name, value in lines.items() if value is not None),
    )
