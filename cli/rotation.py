"""Rotation: `assay network sign-rotation` and `assay network rotate` hand over to the next verifier set.

Room: cli (edge). The rules are participant/wallet/rotation.py's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.spending import ConfigFile, account_of, sent_text, show
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:
    from assay.participant.files.record import SignedRecord

Records = Annotated[list[Path], typer.Argument(metavar="RECORD...", help="Of each verifier of the next set.")]


def add_rotation_commands(app: typer.Typer) -> None:
    """Register the two commands."""
    app.command("sign-rotation")(sign_rotation)
    app.command()(rotate)


def sign_rotation(file: ConfigFile, records: Records) -> None:
    """Sign, as a verifier of the present set, that the verifiers of these RECORDs are the next."""
    from assay.participant.wallet.rotation import sign_rotation as sign

    typer.echo(sign(account_of(file), _read(records)).hex())


def rotate(
    file: ConfigFile,
    records: Records,
    signature: Annotated[list[str], typer.Option(metavar="HEX", help="From sign-rotation; a quorum's.")],
) -> None:
    """Install the verifiers of these RECORDs as the next set; anybody may send it."""
    show(rotate_lines(file, records, signature))


def rotate_lines(file: Path, records: list[Path], signatures: list[str]) -> Iterator[str]:
    """Hand over; says which set is the present one then.

    Raises:
        ConfigError: a record or a signature is damaged, or a member cannot be seated.
        ChainRefused: the signatures are not a quorum of the present set.
    """
    from assay.participant.wallet.rotation import rotate as hand_over

    try:
        given = [bytes.fromhex(text) for text in signatures]
    except ValueError:
        raise ConfigError("--signature: expected what `assay network sign-rotation` prints") from None
    account = account_of(file)
    sent = hand_over(account, _read(records), given)
    yield f"verifier set {account.chain.set_version()} is the present one; open runs keep theirs"
    yield sent_text(sent)


def _read(records: list[Path]) -> list[SignedRecord]:
    from assay.participant.files.record import read_record

    now_s = int(time.time())
    return [read_record(one, now_s) for one in records]
