"""Operator: `assay operator` runs one process that takes runs of a network by itself, and shows what it has.

Room: cli (edge). What it does is package `fleet`'s; the keys of `[operator]` are process.py's.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from assay.cli.result import AsJson, show
from assay.cli.spending import ConfigFile
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
    runs = table.runs or max((os.cpu_count() or 1) // max(config.threads, 1), 1)
    bounds = Bounds(
        reserve=reserve,
        lots_most=lots,
        runs_most=runs,
        memory_bytes=memory if table.memory_gb is None else int(table.memory_gb * 1e9),
        disk_bytes=disk if table.disk_gb is None else int(table.disk_gb * 1e9),
        days_most=table.days,
        hours_least=table.hours,
        takes_per_day=table.takes,
        poor_s=table.patience_s,
    )
    lines = {
        "device": given.device,
        "threads": given.threads,
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
        node_lines=tuple((name, value) for name, value in lines.items() if value is not None),
    )
