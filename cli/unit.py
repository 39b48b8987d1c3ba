"""Unit: `assay unit` prints a systemd unit that keeps a participant's process running.

Room: cli (pure, but for reading the participant's configuration). A process that ends with status 2 is not
started again: its operator has to mend something first. It may write where its configuration says, and
nowhere else.
"""

from __future__ import annotations

import getpass
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.account.spending import ConfigFile
from assay.protocol.errors import ConfigError

OPERATOR = "OPERATOR"  # a node's keys, and a table [operator]
COMMANDS = {
    "NODE": "node run",
    OPERATOR: "operator up",
    "VERIFIER": "verifier run",
    "LEDGER": "ledger serve",
    "BUYER": "buyer run",
}
STOP_S = 30
DRAIN_S = 600  # in which an operator's process leaves its runs; what is killed then goes on at the next start
TEMPLATE = """\
# {file}
# assay unit {file} | sudo tee /etc/systemd/system/assay-{role}.service
[Unit]
Description=Assay {role}, {file}
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
User={user}
ExecStart={command}
WorkingDirectory={folder}
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2
{stop}
UMask=0077
LimitNOFILE=8192
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
{devices}ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
RestrictSUIDSGID=yes
SystemCallArchitectures=native
ReadWritePaths={writes}

[Install]
WantedBy=multi-user.target
"""


def unit(
    file: ConfigFile,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="Who runs it; by default you.")] = None,
) -> None:
    """Print a systemd unit that runs a participant as a service.

    Which process follows from the role in its own record; with a table `operator` it is `assay operator up`.

    Example: assay unit config.toml --user assay
    """
    from assay.cli.process import read_process_file
    from assay.participant.files.record import OWN_RECORD, read_record

    path = file.resolve()
    config, given = read_process_file(path)
    role = read_record(config.keys / OWN_RECORD, int(time.time())).record.role.name
    writes = [config.folder]
    if given.operator is not None:
        role = OPERATOR
        writes.append(path.parent / given.operator.folder)
    if config.signed_mark is not None:
        writes.append(config.signed_mark.parent)
    if role in ("LEDGER", "BUYER"):
        writes.append((path.parent / (given.status or Path("status.jsonl"))).parent)
    if role == "BUYER":
        writes.append((path.parent / (given.bundle or Path("delivered/bundle"))).parent)
    typer.echo(
        unit_text(path, role, user or getpass.getuser(), writes, is_on_gpu=config.device != "cpu"), nl=False
    )


def unit_text(path: Path, role: str, user: str, writes: Sequence[Path], *, is_on_gpu: bool) -> str:
    """The unit of a participant's process.

    Args:
        path: Its configuration, absolute.
        role: One of `COMMANDS`.
        user: The account that runs it.
        writes: Folders that it writes to.
        is_on_gpu: Whether it needs devices.

    Raises:
        ConfigError: the role has no process, or a name does not fit into a unit.
    """
    if role not in COMMANDS:
        raise ConfigError(f"{path}: a {role} has no process of its own, expected {', '.join(COMMANDS)}")
    for text in (str(path), user, *map(str, writes)):
        if any(not letter.isprintable() or letter in "\"'\\$" for letter in text):
            raise ConfigError(f"{text!a}: quotes, backslashes, $ and control characters fit into no unit")
    program = [sys.executable, "-m", "assay.cli.main", *COMMANDS[role].split(), str(path)]
    return TEMPLATE.format(
        file=_escaped(str(path)),
        role=role.lower(),
        user=user,
        command=" ".join(_word(word) for word in program),
        folder=_escaped(str(path.parent)),
        stop=f"KillMode=mixed\nTimeoutStopSec={DRAIN_S}" if role == OPERATOR else f"TimeoutStopSec={STOP_S}",
        devices="" if is_on_gpu else "PrivateDevices=yes\n",
        writes=" ".join(dict.fromkeys(_word(str(one.resolve())) for one in writes)),
    )


def _word(text: str) -> str:
    return f'"{_escaped(text)}"' if " " in text else _escaped(text)


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
