"""Rotation: `assay network sign-rotation` and `assay network rotate` hand over to the next verifier set.

Room: cli (edge). The rules are participant/wallet/rotation.py's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.account.spending import ConfigFile, account_of, given_signatures, sent_text
from assay.cli.result import AsJson, Step, done, show_steps, stepwise, told

if TYPE_CHECKING:
    from assay.participant.files.record import SignedRecord

Records = Annotated[list[Path], typer.Argument(metavar="RECORD...", help="Of each verifier of the next set.")]


def add_rotation_commands(app: typer.Typer) -> None:
    """Register the two commands."""
    app.command("sign-rotation")(sign_rotation)
    app.command()(rotate)


def sign_rotation(file: ConfigFile, records: Records, as_json: AsJson = False) -> None:
    """Sign, as a verifier of the present set, that the verifiers of these RECORDs are the next.

    Example: assay network sign-rotation config.toml next-1.txt next-2.txt
    """
    from assay.participant.wallet.rotation import sign_rotation as sign

    signature = sign(account_of(file), _read(records)).hex()
    show_steps([done("signature", signature)], as_json=as_json)


@stepwise
def rotate(
    file: ConfigFile,
    records: Records,
    signature: Annotated[list[str], typer.Option(metavar="HEX", help="From sign-rotation; a quorum's.")],
) -> Iterator[Step]:
    """Install the verifiers of these RECORDs as the next set; anybody may send it.

    Example: assay network rotate config.toml next-1.txt next-2.txt --signature 0011 --signature 2233
    """
    from assay.participant.wallet.rotation import rotate as hand_over

    given = given_signatures(signature)
    account = account_of(file)
    sent = hand_over(account, _read(records), given)
    version = account.chain.set_version()
    yield told("set", f"verifier set {version} is the present one; open runs keep theirs")
    yield done("rotate", sent_text(sent), sent=sent)


def _read(records: list[Path]) -> list[SignedRecord]:
    from assay.participant.files.record import read_record

    now_s = int(time.time())
    return [read_record(one, now_s) for one in records]
