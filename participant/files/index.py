"""Index: signed SHA-256 list of all files of a delivered run, for detecting later changes.

Room: participant (edge: reads a folder). The index shows which file was changed; that
the contents were right in the first place is shown by the certificates. Signed by the buyer,
with the key of the spec's `signer`. The participants' own folders, which a run on one
machine has beside the bundle, are excluded: their stores and the books keep changing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.chain.commit_statement import evm_address
from assay.chain.statements import Address, BadSignatureError, recover, sign_digest
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import AssayError

INDEX = "index.json"
PARTICIPANTS = "participants"
OPENINGS = "openings"  # of drawn steps; a copy may lack them, for nothing but a replay needs them
_PIECE = 1 << 20
_PART = re.compile(r"(?!\.\.?$)[^/\\:\x00-\x1f]{1,200}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class IntegrityError(AssayError):
    """A delivered file was changed. The message begins with its name."""


def write_index(folder: Path, key: bytes) -> None:
    """Hash every file under `folder` and sign the list with the key of the spec's signer.

    Raises:
        IntegrityError: as `files_in`.
    """
    files = {name: _sha256(folder / name) for name in files_in(folder, PARTICIPANTS) if name != INDEX}
    signature = sign_digest(_digest(files), key)
    (folder / INDEX).write_bytes(_spelled(files, signature))


@dataclass(frozen=True, slots=True)
class Index:
    """A signed list of files. files: SHA-256 in hexadecimal, by name. signer: address of its key."""

    files: Mapping[str, str]
    signer: Address


def read_index(text: bytes) -> Index:
    """The index in these bytes.

    Raises:
        IntegrityError: not an index in its canonical form, or a name in it that leads out of a folder.
    """
    try:
        body = parse_json(text)
        files, signature = dict(body["files"]), bytes.fromhex(body["signature"])
        author = recover(_digest(files), signature)
    except (ValueError, KeyError, TypeError, RecursionError, BadSignatureError) as error:
        raise IntegrityError(f"{INDEX}: missing or not an index ({error})") from None
    if text != _spelled(files, signature):  # an equivalent index in another form was altered too
        raise IntegrityError(f"{INDEX}: not in its canonical form")
    for name, digest in files.items():
        if not _is_name(name) or not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise IntegrityError(f"{INDEX}: {name!r} is no file's name with its SHA-256")
    return Index(files, author)


def signer_text(buyer: str, signer: str) -> str:
    """Who signs for a run's buyer, as text. Whether the account agreed to another key, its chain says.

    Args:
        buyer: Address of the account.
        signer: Address of the key that signs, `RunSpec.signer`.
    """
    account = f"the buyer {buyer}"
    return account if signer == buyer else f"the key {signer} that the spec names for {account}"


def check_index(folder: Path, signer: bytes, *, is_whole: bool = True) -> int:
    """Check every file against the index; returns the number of those that are there.

    Args:
        folder: The run's folder.
        signer: Address that must have signed the index, 20 bytes.
        is_whole: Whether a file that is missing is an error.

    Raises:
        IntegrityError: a file, or the index itself, is missing, new or different.
    """
    index = read_index((folder / INDEX).read_bytes() if (folder / INDEX).is_file() else b"")
    if index.signer != evm_address(signer):
        # The spec names the buyer; if it was altered, the index may be valid.
        others = [
            name for name, digest in sorted(index.files.items()) if not _is_listed(folder, name, digest)
        ]
        beside = f"; beside it, altered since delivery: {', '.join(others[:3])}" if others else ""
        raise IntegrityError(f"{INDEX}: not signed by the buyer as it stands{beside}")
    present = {name for name in files_in(folder, PARTICIPANTS) if name != INDEX}
    # Older indexes include participants' folders.
    listed = {
        name for name in index.files if not _is_participants(name) and not name.startswith(f"{OPENINGS}/")
    }
    for name in sorted(listed | present if is_whole else present):
        if name not in present:
            raise IntegrityError(f"{name}: missing")
        if name not in index.files:
            raise IntegrityError(f"{name}: not part of what was delivered")
        if not _is_listed(folder, name, index.files[name]):
            raise IntegrityError(f"{name}: altered since delivery")
    return len(present)


def files_in(folder: Path, skipped: str = "") -> Iterator[str]:
    """Names of all files under a folder, but for those in the folder of this name in it.

    No link is followed: what it leads to may lie outside, and change after the check.

    Raises:
        IntegrityError: something there is neither a file nor a folder, or a folder that cannot be read.
    """
    pending = [folder]
    while pending:
        parent = pending.pop()
        try:
            entries = list(os.scandir(parent))
        except OSError as error:
            name = parent.relative_to(folder).as_posix()
            raise IntegrityError(f"{name}: cannot be read ({error.strerror})") from None
        for entry in entries:
            name = Path(entry.path).relative_to(folder).as_posix()
            if entry.is_file(follow_symlinks=False):
                yield name
            elif not entry.is_dir(follow_symlinks=False):
                raise IntegrityError(f"{name}: a link or a device, expected a file or a folder")
            elif name != skipped:
                pending.append(Path(entry.path))


def _is_listed(folder: Path, name: str, digest: str) -> bool:
    path = folder / name
    return path.is_file() and path.resolve().is_relative_to(folder.resolve()) and _sha256(path) == digest


def _is_name(name: object) -> bool:
    """Whether this is a path inside a folder, in one spelling, on every system."""
    return isinstance(name, str) and all(_PART.fullmatch(part) for part in name.split("/"))


def _is_participants(name: str) -> bool:
    return name.startswith(f"{PARTICIPANTS}/")


def _sha256(path: Path) -> str:
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            hasher.update(piece)
    return hasher.hexdigest()


def _digest(files: dict[str, str]) -> bytes:
    # JSON quotes names: in plain lines, one name could look like two files.
    return hashlib.sha256(b"assay/index/1\n" + json.dumps(files, sort_keys=True).encode()).digest()


def _spelled(files: dict[str, str], signature: bytes) -> bytes:
    body = {"files": files, "signature": signature.hex()}
    return (json.dumps(body, indent=1, sort_keys=True) + "\n").encode()
