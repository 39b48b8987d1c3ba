"""Registry commands: a delivered model's entry, and its record on chain, which verifiers can take back.

Room: cli (edge). `show` reads without verifying: `assay run verify` checks the entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.account.spending import ConfigFile, account_of, given_signatures, sent_text
from assay.cli.network.commands import InvitationText
from assay.cli.network.directory import Rpc, chain_of
from assay.cli.result import AsJson, Step, done, escaped, say, show_steps, stepwise
from assay.cli.result import show as show_value
from assay.protocol.errors import ConfigError

registry_app = typer.Typer(
    no_args_is_help=True, help="Show the registry entry of a delivered model, and whether its record stands."
)
RECORD_CHARS = 64
Record = Annotated[
    str, typer.Argument(metavar="RECORD", help="Id of the record on chain, or the folder of its run.")
]
Reason = Annotated[str, typer.Option("--reason", help="Why: the chain keeps the hash of this text.")]
Successor = Annotated[
    str | None, typer.Option("--by", metavar="RECORD", help="The record that takes its place.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordStanding:
    """What the chain says of a model's record. successor: all zero if it was withdrawn, null if it stands."""

    record: str
    model: str
    successor: str | None


@registry_app.callback()
def registry() -> None:
    """Show the registry entry of a delivered model, and whether its record stands."""


@registry_app.command()
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder, or its bundle.")],
    as_json: AsJson = False,
) -> None:
    """Print the registry entry of a model: data, work, energy, participants, audits, payments, record.

    Example: assay registry show runs/quickstart
    """
    from assay.bundle.registry.lines import entry_lines, find_entry

    text, entry = find_entry(run)
    if as_json:
        typer.echo(escaped(text), nl=False)
        return
    for line in entry_lines(entry):
        say(line)


@registry_app.command()
def check(invitation: InvitationText, record: Record, rpc: Rpc = None, as_json: AsJson = False) -> None:
    """Ask a network's chain whether a model's record stands; exit status 1 if it was withdrawn or replaced.

    Example: assay registry check network.txt runs/quickstart
    """
    from assay.participant.wallet.withdrawal import standing_text

    chain, record_id = chain_of(invitation, rpc), _record_id(record)
    model = chain.model_of(record_id)
    if model is None:
        raise ConfigError(f"no record {record_id.hex()} on this chain")
    successor = chain.successor_of(record_id)
    standing = RecordStanding(
        record=record_id.hex(), model=model.hex(), successor=None if successor is None else successor.hex()
    )
    lines = [f"record {record_id.hex()} {standing_text(successor)}", f"model {model.hex()}"]
    show_value(standing, lines, as_json=as_json)
    raise typer.Exit(0 if successor is None else 1)


@registry_app.command("sign-withdrawal")
def sign_withdrawal(
    file: ConfigFile, record: Record, reason: Reason, by: Successor = None, as_json: AsJson = False
) -> None:
    """Sign, as a verifier of the present set, that a model's record is withdrawn, or replaced.

    Example: assay registry sign-withdrawal config.toml runs/quickstart --reason "no licence"
    """
    from assay.participant.wallet.withdrawal import sign_withdrawal as sign

    signature = sign(account_of(file), _record_id(record), _successor(by), reason).hex()
    show_steps([done("signature", signature)], as_json=as_json)


@registry_app.command()
@stepwise
def withdraw(
    file: ConfigFile,
    record: Record,
    reason: Reason,
    signature: Annotated[list[str], typer.Option(metavar="HEX", help="From sign-withdrawal; a quorum's.")],
    by: Successor = None,
) -> Iterator[Step]:
    """Withdraw or replace a model's record with a quorum's signatures; anybody may send it.

    Example: assay registry withdraw config.toml runs/quickstart --reason "no licence" --signature 0011
    """
    from assay.participant.wallet.withdrawal import standing_text
    from assay.participant.wallet.withdrawal import withdraw as take_back

    record_id, successor = _record_id(record), _successor(by)
    sent = take_back(account_of(file), record_id, successor, reason, given_signatures(signature))
    text = f"record {record_id.hex()} {standing_text(successor)}: {sent_text(sent)}"
    yield done("withdraw", text, sent=sent)


def _successor(by: str | None) -> bytes:
    from assay.participant.wallet.withdrawal import WITHDRAWN

    return WITHDRAWN if by is None else _record_id(by)


def _record_id(given: str) -> bytes:
    """The id that was given, or that the entry of a delivered run names."""
    if len(given) == RECORD_CHARS and not Path(given).exists():
        try:
            return bytes.fromhex(given)
        except ValueError:
            raise ConfigError(f"{given}: expected the 64 hexadecimal digits of a record, or a run") from None
    from assay.bundle.registry.lines import find_entry

    _, entry = find_entry(Path(given))
    if entry.record is None:
        raise ConfigError(f"{given}: this model has no record on chain")
    return bytes(entry.record.record_id)
