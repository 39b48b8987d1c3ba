"""Key: `assay key` makes, shows, rotates, backs up and delegates a participant's keys.

Room: cli (edge). The keys are participant/keys/keyring.py's, the record is participant/files/record.py's.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.account.spending import ConfigFile, account_of, sent_text
from assay.cli.result import AsJson, Step, done, show, show_steps, stepwise, told
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:
    from assay.participant.keys.keyring import Keys

key_app = typer.Typer(no_args_is_help=True, help="Make, show, rotate, back up and delegate keys.")
KeysFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the keys.")]
Password = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help="Default: `password` beside FOLDER."),
]
BackupPassword = Annotated[
    Path, typer.Option("--backup-password", metavar="FILE", help="File with the backup's own password.")
]
ROLES = "node, verifier, ledger, buyer or watchtower"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKeys:
    """The public side of a participant's keys, and what its owner should know."""

    peer: str
    account: str
    hot_key: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFacts:
    """What `assay key show` says: never a secret."""

    peer: str
    account: str
    hot_key: str
    modes: Mapping[str, str]  # of each file
    delegation: str | None = None  # None: no invitation was given
    expiry: int | None = None  # of the delegation, chain time


@key_app.command()
def new(
    folder: KeysFolder,
    password_file: Password = None,
    signer: Annotated[
        str | None,
        typer.Option(metavar="URL", help="clef or Web3Signer, which has the account's key; with --account."),
    ] = None,
    unsigned: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Instead of --signer: for the files that `assay key sign` signs on another machine.",
        ),
    ] = None,
    account: Annotated[
        str | None, typer.Option(metavar="0x...", help="The account whose key is elsewhere.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make fresh keys in FOLDER; a password is drawn where there is no file with one.

    Example: assay key new keys
    """
    from assay.participant.keys.keyring import AccountElsewhere, create_keys

    if signer is not None and unsigned is not None:
        raise ConfigError("either --signer or --unsigned: an account's key is in one place")
    url = signer if unsigned is None else f"file:{unsigned.absolute()}"
    if (url is None) != (account is None):
        raise ConfigError("--account goes with --signer or --unsigned: who signs, and for whom")
    elsewhere = None if url is None or account is None else AccountElsewhere(url=url, account=account)
    password, notes = password_of(folder, password_file, may_make=True)
    made = public_keys(create_keys(folder, password, elsewhere=elsewhere), notes)
    show(made, [*made.notes, *key_lines(made)], as_json=as_json)


@key_app.command("show")
def show_keys(
    folder: KeysFolder,
    password_file: Password = None,
    network: Annotated[
        Path | None, typer.Option(metavar="INVITATION", help="Also read the hot key's delegation on chain.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print peer id, account, hot key and the modes of the files; never a secret.

    Example: assay key show keys --network network.txt
    """
    found = key_facts(folder, password_of(folder, password_file)[0], network)
    show(found, fact_lines(found), as_json=as_json)


@key_app.command()
def rotate(
    folder: KeysFolder,
    password_file: Password = None,
    peer: Annotated[
        bool, typer.Option("--peer", help="Replace the peer key in place of the hot key: another identity.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replace the hot key, or with --peer the peer key; the old one is kept in FOLDER.

    Example: assay key rotate keys
    """
    rotated = rotated_keys(folder, password_of(folder, password_file)[0], is_peer=peer)
    show(rotated, [*key_lines(rotated), *rotated.notes], as_json=as_json)


@key_app.command()
def backup(
    folder: KeysFolder,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="New file, encrypted.")],
    backup_password: BackupPassword,
    password_file: Password = None,
    as_json: AsJson = False,
) -> None:
    """Write all keys, earlier hot keys too, to one new file, encrypted with a password of its own.

    Example: assay key backup keys keys.backup --backup-password backup-password
    """
    from assay.participant.keys.keyring import back_up_keys
    from assay.participant.keys.private_files import read_password

    back_up_keys(folder, password_of(folder, password_file)[0], out, read_password(backup_password))
    text = f"{out} holds all keys of {folder}; keep its password elsewhere"
    show_steps([done("backup", text)], as_json=as_json)


@key_app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written by `assay key backup`.")],
    folder: KeysFolder,
    backup_password: BackupPassword,
    password_file: Password = None,
    as_json: AsJson = False,
) -> None:
    """Write the keys of a backup to FOLDER, which has none; the record has to be made anew.

    Example: assay key restore keys.backup keys --backup-password backup-password
    """
    from assay.participant.keys.keyring import restore_keys
    from assay.participant.keys.private_files import read_password

    password, notes = password_of(folder, password_file, may_make=True)
    made = public_keys(restore_keys(file, read_password(backup_password), folder, password), notes)
    show(
        made,
        [
            *made.notes,
            *key_lines(made),
            "before a process starts with these keys, end whatever else runs with them, for good:",
            "two that sign different things for one round lose the stake.",
            "a verifier also needs its own folder, with signed.mark, from that machine",
        ],
        as_json=as_json,
    )


@key_app.command()
def card(
    folder: KeysFolder,
    role: Annotated[str, typer.Option(help=f"What this participant does: {ROLES}.")],
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where others reach it; [IPV6]:PORT, or a DNS name.")
    ],
    explorer: Annotated[
        str, typer.Option(metavar="URL", help="Of an explorer that you serve, where others fetch runs.")
    ] = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the record here.")] = None,
    password_file: Password = None,
    as_json: AsJson = False,
) -> None:
    """Sign the public record of these keys: peer id, account, hot key, role and address.

    Example: assay key card keys --role node --address 203.0.113.7:4001
    """
    from assay.participant.files.record import write_record

    signed = own_record(folder, password_of(folder, password_file)[0], role, address, explorer)
    if out is not None:
        write_record(out, signed)
    text = f"record {signed.record.sequence} of {signed.record.peer.hex()}: give it to whoever asks"
    show_steps([done("record", text)], as_json=as_json)


@key_app.command()
@stepwise
def delegate(
    file: ConfigFile,
    days: Annotated[
        int, typer.Option(help="Days until it ends, 0: at once; repeat the command to renew it.")
    ] = 90,
) -> Iterator[Step]:
    """Let the hot key sign for the account, on chain, for some days; with 0 the account gives up its seats.

    A verifier's seat whose account's delegation is over goes to a reserve of its run. Whoever has lost the
    keys of a seat delegates new ones for 0 days.

    Example: assay key delegate config.toml --days 90
    """
    from assay.chain.text.times import when_text
    from assay.participant.wallet.delegation import delegate as delegate_for

    account = account_of(file)
    now = account.chain.timestamp()
    sent, expiry = delegate_for(account.chain, account.keys, days, now)
    text = f"{account.hot_address} signs for {account.address} until {when_text(expiry, now)}"
    if expiry <= now:
        text = f"the delegation of {account.address} is over: verifiers' seats of it go to reserves"
    yield told("delegation", text)
    yield done("delegate", sent_text(sent), sent=sent)


def rotated_keys(folder: Path, password: str, *, is_peer: bool) -> PublicKeys:
    """Rotate one key, and say what has to follow.

    Raises:
        ConfigError: the keys cannot be opened.
    """
    from assay.participant.keys.keyring import rotate_hot, rotate_peer

    keys, kept = (rotate_peer if is_peer else rotate_hot)(folder, password)
    follows = (
        "to all peers this is another participant: no run, record or seat of the old one is its"
        if is_peer
        else "delegate to the new one: assay key delegate FILE.toml"
    )
    notes = (
        f"the old key is kept in {kept.name}; a run that names it goes on only with it",
        follows,
        f"then sign a new record: assay key card {folder} --role ROLE --address HOST:PORT",
    )
    return public_keys(keys, notes)


def public_keys(keys: Keys, notes: Sequence[str] = ()) -> PublicKeys:
    """The public side of these keys."""
    from assay.chain.commit_statement import evm_address
    from assay.protocol.identity import peer_of

    return PublicKeys(
        peer=peer_of(keys.peer).hex(),
        account=evm_address(keys.account_address),
        hot_key=evm_address(keys.hot_address),
        notes=tuple(notes),
    )


def key_lines(keys: PublicKeys) -> Iterator[str]:
    """The public keys, one line each."""
    yield f"peer    {keys.peer}"
    yield f"account {keys.account}"
    yield f"hot key {keys.hot_key}"


def key_facts(folder: Path, password: str, network: Path | None) -> KeyFacts:
    """What `assay key show` prints.

    Raises:
        ConfigError: the keys cannot be opened, or the invitation is not of its chain.
        Unavailable: the endpoint is gone.
    """
    from assay.participant.keys.keyring import load_keys

    keys = public_keys(load_keys(folder, password))
    files = [folder, *sorted(one for one in folder.iterdir() if one.is_file())]
    found = KeyFacts(
        peer=keys.peer,
        account=keys.account,
        hot_key=keys.hot_key,
        modes={one.name: f"{one.stat().st_mode & 0o777:04o}" for one in files},
    )
    if network is None:
        return found
    from assay.chain.reader import ChainReader
    from assay.chain.statements import Address
    from assay.participant.files.invitation import read_invitation
    from assay.participant.wallet.delegation import delegation_text

    invitation = read_invitation(network)
    chain = ChainReader(invitation.first_endpoint, invitation.deployment)
    chain.check_deployment()
    hot_key, account = Address(found.hot_key), Address(found.account)
    hot, now = chain.hot_key(hot_key), chain.timestamp()
    return replace(
        found,
        delegation=delegation_text(hot_key, hot, account, now),
        expiry=None if hot is None else hot.expiry,
    )


def fact_lines(found: KeyFacts) -> Iterator[str]:
    """The facts, one line each; a file's mode beside its name."""
    yield f"peer        {found.peer}"
    yield f"account     {found.account}"
    yield f"hot key     {found.hot_key}"
    for name, mode in found.modes.items():
        yield f"mode        {mode} {name}"
    if found.delegation is not None:
        yield f"delegation  {found.delegation}"


def own_record(folder: Path, password: str, role: str, address: str, explorer: str = "") -> Any:
    """The next signed record of the keys in a folder, kept there.

    Raises:
        ConfigError: an unknown role, no address, no explorer's address, or keys that cannot be opened.
    """
    from assay.participant.files.record import Role, renew_own, split_address
    from assay.participant.keys.keyring import load_keys

    if role.upper() not in Role.__members__:
        raise ConfigError(f"role {role[:40]!a}, expected {ROLES}")
    host, port = split_address(address)
    keys = load_keys(folder, password)
    return renew_own(folder, keys, Role[role.upper()], host, port, int(time.time()), explorer=explorer)


def password_of(folder: Path, file: Path | None, *, may_make: bool = False) -> tuple[str, list[str]]:
    """The password of a folder's keys; a fresh one in a new file where there is none, and a line about it."""
    from assay.participant.keys.keyring import PASSWORD
    from assay.participant.keys.private_files import read_password, write_private

    path = folder.parent / PASSWORD if file is None else file
    if not may_make and not folder.exists():
        raise ConfigError(f"{folder} is missing; keys are made by: assay key new {folder}")
    if not may_make or path.exists():
        return read_password(path), []
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{path} is missing, and {folder} is not empty: keys are never overwritten")
    path.parent.mkdir(parents=True, exist_ok=True)
    password = secrets.token_hex(16)
    write_private(path, password.encode())
    return password, [f"password in {path}, freshly drawn: keep a copy apart from the keys"]
