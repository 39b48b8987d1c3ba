"""Sign: `assay key sign` shows a transaction that was written for this key, and signs it, without a network.

Room: cli (edge: two files). The files are chain/signing/unsigned.py's, what a call says is read by
chain/calls.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.account.key import Password, password_of
from assay.cli.result import AsJson, say, show
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:
    from assay.chain.signing.unsigned import Unsigned

WEI = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedTransaction:
    """A transaction that was shown and signed."""

    action: str  # in the words of who wrote the file
    account: str
    chain_id: int
    nonce: int
    to: str
    contract: str | None  # None: no invitation was given, which says what is at this address
    function: str
    arguments: Mapping[str, str]
    value_wei: int
    fee_wei_max: int
    signed: Path  # the file with the signed bytes


def add_sign_command(app: typer.Typer) -> None:
    """Add `sign` to `assay key`."""
    app.command()(sign)


def sign(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written where the account is used.")],
    keys: Annotated[Path, typer.Option(metavar="FOLDER", help="The folder with the account's key.")],
    network: Annotated[
        Path | None,
        typer.Option(metavar="INVITATION", help="Sign only for this network's contracts, and name them."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask whether to sign.")] = False,
    password_file: Password = None,
    as_json: AsJson = False,
) -> None:
    """Show what a transaction does, and sign it, on a machine that needs no network.

    Example: assay key sign 0x7099...-31337-4.json --keys keys --network network.txt
    """
    from assay.chain.signing.signer import KeyHere
    from assay.chain.signing.unsigned import read_unsigned, signed_path
    from assay.participant.keys.keyring import load_keys
    from assay.participant.keys.private_files import write_private

    asked = read_unsigned(file)
    key = KeyHere(load_keys(keys, password_of(keys, password_file)[0]).account_key)
    if key.address != asked.transaction.account:
        raise ConfigError(f"{file} is for {asked.transaction.account}, {keys} has the key of {key.address}")
    found = described(asked, network, signed_path(file))
    if not as_json:
        for line in transaction_lines(found):
            say(line)
    if not yes:
        if as_json or not sys.stdin.isatty():
            raise ConfigError("nobody is asked here: read what is signed, and give --yes")
        typer.confirm("sign it?", abort=True)
    raw, tx_hash = key.sign(asked.action, asked.transaction.fields)
    write_private(found.signed, f"0x{raw.hex()}\n".encode())
    done = f"signed: {found.signed}, transaction 0x{tx_hash.hex()}; put it beside the file it was made from"
    show(found, [done], as_json=as_json)


def described(asked: Unsigned, network: Path | None, signed: Path) -> SignedTransaction:
    """What a transaction does.

    Args:
        asked: The transaction to sign.
        network: An invitation: it has to call one of its contracts, on its chain.
        signed: Where the signed bytes will go.

    Raises:
        ConfigError: it does something that cannot be shown in full, or it is not for this network.
    """
    from assay.chain.calls import read_call
    from assay.participant.files.invitation import read_invitation

    one = asked.transaction
    deployment = None if network is None else read_invitation(network).deployment
    if deployment is not None and deployment.chain_id != one.chain_id:
        raise ConfigError(
            f"a transaction of chain {one.chain_id}, the network is on chain {deployment.chain_id}"
        )
    call = read_call(one.to, one.data, deployment)
    return SignedTransaction(
        action=asked.action,
        account=one.account,
        chain_id=one.chain_id,
        nonce=one.nonce,
        to=one.to,
        contract=call.contract,
        function=call.function,
        arguments=call.arguments,
        value_wei=one.value_wei,
        fee_wei_max=one.fee_wei_max,
        signed=signed,
    )


def transaction_lines(found: SignedTransaction) -> Iterator[str]:
    """What a transaction does, for the person who is to sign it."""
    yield f"account   {found.account}"
    yield f"chain     {found.chain_id}, nonce {found.nonce}"
    yield f"to        {found.to}, {found.contract or 'compared with no network: give --network'}"
    yield f"calls     {found.function}"
    for name, text in found.arguments.items():
        yield f"          {name} = {text}"
    yield f"sends     {_coins(found.value_wei)}"
    yield f"costs     {_coins(found.fee_wei_max)} at most, beside what it sends"
    yield f"asked as  {found.action!a}"


def _coins(wei: int) -> str:
    whole, part = divmod(wei, WEI)
    return f"{whole:,}.{part:018d}".rstrip("0").rstrip(".") + " of the chain's coin"
