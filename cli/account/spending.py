"""Spending: helpers shared by all commands that send transactions.

Room: cli (edge). Nothing asks for confirmation, so that a script can run them; `--dry-run` prints what would
be sent and sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.result import Step, done, dry
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:
    from assay.chain.client import Sent
    from assay.participant.wallet.account import Account

ConfigFile = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The participant's configuration.")]
PayTo = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="0x...",
        help="Address that gets this account's money from now on: a lasting setting, on chain.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the transactions, and send none.")]


def account_of(file: Path) -> Account:
    """The account of a participant's configuration file.

    Raises:
        ConfigError: the file, its keys, its run or its endpoint is invalid.
    """
    from assay.cli.process import read_process_file
    from assay.participant.wallet.account import open_account

    config, _ = read_process_file(file)
    return open_account(config)


def approval(account: Account, contract: str, amount: int) -> Iterator[Step]:
    """The transaction before one that pays, if it takes one, as a step that is not done."""
    from assay.chain.text.units import token_text

    if account.chain.needs_approval(contract, amount):
        text = f"and before it, to the token: approve({contract}, {token_text(amount)})"
        yield dry("approve", text, amount)


def name_payee(account: Account, to: str, *, is_dry: bool) -> Iterator[Step]:
    """Have all that is owed to an account paid to this address from now on; one step.

    Raises:
        ConfigError: it is no address. ChainRefused, Unavailable: of the transaction.
    """
    from assay.chain.deployment.coin import address_given

    payee = address_given(to)
    if is_dry:
        where = f"RunEscrow {account.deployment.run_escrow}"
        yield dry("name-payee", f"would send to {where}: namePayee({payee})")
    else:
        sent = account.chain.name_payee(payee)
        text = f"what is owed to {account.address} goes to {payee} from now on: {sent_text(sent)}"
        yield done("name-payee", text, sent=sent)


def given_signatures(texts: list[str]) -> list[bytes]:
    """What `--signature` was given.

    Raises:
        ConfigError: one is not hexadecimal.
    """
    try:
        return [bytes.fromhex(text) for text in texts]
    except ValueError:
        raise ConfigError("--signature: expected what the command that signs prints") from None


def sent_text(sent: Sent) -> str:
    """The transaction's place on chain, as text."""
    if sent.tx_hash is None:
        return "already done; nothing was sent"
    return f"block {sent.block_number}, transaction 0x{sent.tx_hash.hex()}"
