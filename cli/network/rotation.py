"""Rotation: `assay network sign-rotation` and `assay network rotate` hand over to the next verifier set.

Room: cli (edge). The rules are participant/wallet/rotation.py's.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.account.spending import ConfigFile, account_of, given_signatures, sent_text
from assay.cli.result import Step, done, stepwise, told
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:
    from assay.chain.reader import ChainReader
    from assay.chain.statements import Address
    from assay.participant.wallet.rotation import DrawnSet

Records = Annotated[
    list[Path] | None, typer.Argument(metavar="[RECORD...]", help="Of each verifier of the next set.")
]
Drawn = Annotated[
    bool, typer.Option("--drawn", help="The next set is the one drawn by stake and the chain's randomness.")
]


def add_rotation_commands(app: typer.Typer) -> None:
    """Register the two commands."""
    app.command("sign-rotation")(sign_rotation)
    app.command()(rotate)


@stepwise
def sign_rotation(file: ConfigFile, records: Records = None, drawn: Drawn = False) -> Iterator[Step]:
    """Sign, as a verifier of the present set, that the verifiers of these RECORDs, or those drawn, are next.

    Example: assay network sign-rotation config.toml --drawn
    """
    from assay.participant.wallet.rotation import sign_rotation as sign

    account = account_of(file)
    members = yield from _next_members(account.chain, records, drawn=drawn)
    yield done("signature", sign(account, members).hex())


@stepwise
def rotate(
    file: ConfigFile,
    records: Records = None,
    *,
    signature: Annotated[list[str], typer.Option(metavar="HEX", help="From sign-rotation; a quorum's.")],
    drawn: Drawn = False,
) -> Iterator[Step]:
    """Install the verifiers of these RECORDs, or those drawn, as the next set; anybody may send it.

    Example: assay network rotate config.toml --drawn --signature 0011 --signature 2233
    """
    from assay.participant.wallet.rotation import rotate as hand_over

    given = given_signatures(signature)
    account = account_of(file)
    members = yield from _next_members(account.chain, records, drawn=drawn)
    sent = hand_over(account, members, given)
    version = account.chain.set_version()
    yield told("set", f"verifier set {version} is the present one; open runs keep theirs")
    yield done("rotate", sent_text(sent), sent=sent)


def _next_members(
    chain: ChainReader, records: list[Path] | None, *, drawn: bool
) -> Generator[Step, None, tuple[Address, ...]]:
    """The next set as it was asked for; of a drawn one it tells how."""
    from assay.participant.files.record import read_record
    from assay.participant.wallet.rotation import draw_set, named_members

    if drawn is bool(records):
        raise ConfigError("the next set is either that of RECORDs or `--drawn`")
    if not drawn:
        now_s = int(time.time())
        return named_members([read_record(one, now_s) for one in records or ()])
    found = draw_set(chain)
    yield from _draw_told(found)
    return found.members


def _draw_told(found: DrawnSet) -> Iterator[Step]:
    from assay.chain.text.times import time_text
    from assay.chain.text.units import token_text

    yield told(
        "draw",
        f"verifier set {found.version}: {found.seats} seats, drawn {time_text(found.drawn_s)} "
        f"by block {found.block}, randomness 0x{found.randomness.hex()}",
    )
    seats_left = found.seats
    for one in found.candidates:
        seated = one.lacks is None and seats_left > 0
        seats_left -= seated
        outcome = "seated" if seated else one.lacks or "no seat left"
        yield told("candidate", f"{one.account}  {token_text(one.locked)}: {outcome}", one.locked)
