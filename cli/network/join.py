"""Join: `assay join` makes a participant's configuration for a network, and checks what it needs.

Room: cli (edge). The checks are participant/checks.py's; `assay doctor` repeats them at any time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.account.key import ROLES, Password, own_record, password_of
from assay.cli.account.spending import ConfigFile
from assay.cli.network.commands import InvitationText, read_given
from assay.cli.result import AsJson, Step, done, show_each, stepwise, told
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:
    from assay.participant.checks import Check

CONFIG, NETWORK = "config.toml", "network.txt"


@stepwise
def join(
    invitation: InvitationText,
    keys: Annotated[Path, typer.Option("--keys", metavar="FOLDER", help="Made by `assay key new`.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="For the configuration.")] = Path("."),
    role: Annotated[str | None, typer.Option(help=f"Sign a new record: {ROLES}.")] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Of the new record; [IPV6]:PORT, or a DNS name.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="A run's id: its file comes from the directory on chain."),
    ] = None,
    rpc: Annotated[str | None, typer.Option(metavar="URL", help="A chain endpoint of your own.")] = None,
    password_file: Password = None,
) -> Iterator[Step]:
    """Check an invitation and this machine, and write a configuration with what is needed to take part.

    Example: assay join network.txt --keys keys --role node --address 203.0.113.7:4001
    """
    from assay.chain.reader import ChainReader
    from assay.cli.process import read_process_file
    from assay.participant.checks import check_participant
    from assay.participant.files.armour import write_text
    from assay.participant.files.invitation import check_network, spoken_digest, write_invitation
    from assay.participant.files.record import OWN_RECORD
    from assay.participant.files.run_file import read_run_id

    file = out / CONFIG
    if file.exists():
        raise ConfigError(f"{file} is there already: see `assay doctor {file}`")
    found = read_given(invitation)
    url = rpc or found.first_endpoint
    text = f"network  {found.name}; compare its digest with the founder's: {spoken_digest(found)}"
    yield told("network", text)
    check_network(found, ChainReader(url, found.deployment))
    if run is not None and read_run_id(run) is None:
        raise ConfigError(f"--run {run[:80]!a}: expected a run's id, 64 hexadecimal digits")
    if (role is None) != (address is None):
        raise ConfigError("expected --role and --address together")
    if role is not None and address is not None:
        own_record(keys, password_of(keys, password_file)[0], role, address)
    elif not (keys / OWN_RECORD).exists():
        raise ConfigError(f"no record yet: assay key card {keys} --role ROLE --address HOST:PORT")
    write_invitation(out / NETWORK, found)
    lines = {"keys": os.path.relpath(keys, out), "network": NETWORK}
    if run is not None:
        lines["run"] = run
    if rpc is not None:
        lines["rpc_url"] = rpc
    if password_file is not None:
        lines["password_file"] = os.path.relpath(password_file, out)
    write_text(file, "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items()))
    for check in check_participant(read_process_file(file)[0], file):
        yield told(check.name, check.line)
    missing = "" if run is not None else "the buyer's run file beside it as run.assay, and "
    text = f"written to {file}; put {missing}the data beside it as data/"
    yield done("configuration", text)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Every check of a participant, in order."""

    is_ready: bool
    checks: tuple[Check, ...]


def doctor(file: ConfigFile, as_json: AsJson = False) -> None:
    """Check everything that a participant needs; exit status 1 if something is missing.

    Example: assay doctor config.toml
    """
    from assay.cli.process import read_process_file
    from assay.participant.checks import check_participant

    config, _ = read_process_file(file)
    checks = show_each(check_participant(config, file), lambda one: one.line, diagnosis, as_json=as_json)
    raise typer.Exit(0 if diagnosis(checks).is_ready else 1)


def diagnosis(checks: Sequence[Check]) -> Diagnosis:
    """The checks, and whether all are good."""
    return Diagnosis(all(one.fault is None for one in checks), tuple(checks))
