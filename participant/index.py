"""Index: signed SHA-256 list of all files of a delivered run, for detecting later changes.

Room: participant (edge: reads a folder). The index shows which file was changed; that
the contents were right in the first place is shown by the certificates. Signed with the
buyer's account, which the spec names. The participants' own folders, which a run on one
machine has beside the bundle, are excluded: their stores and the books keep changing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from assay.chain.commit_statement import evm_address
from assay.chain.statements import BadSignatureError, recover, sign_digest
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import AssayError

INDEX = "index.json"
PARTICIPANTS = "participants"
_PIECE = 1 << 20


class IntegrityError(AssayError):
    """A delivered file was changed. The message begins with its name."""


def write_index(folder: Path, key: bytes) -> None:
    """Hash every file under `folder` and sign the list with an account's key."""
    files = {name: _sha256(folder / name) for name in _names(folder)}
    signature = sign_digest(_digest(files), key)
    (folder / INDEX).write_bytes(_spelled(files, signature))


def check_index(folder: Path, signer: bytes) -> int:
    """Check every file against the index; returns their number.

    Args:
        folder: The run's folder.
        signer: Address that must have signed the index, 20 bytes.

    Raises:
        IntegrityError: a file, or the index itself, is missing, new or different.
    """
    text = (folder / INDEX).read_bytes() if (folder / INDEX).is_file() else b""
    try:
        body = parse_json(text)
        files, signature = dict(body["files"]), bytes.fromhex(body["signature"])
        author = recover(_digest(files), signature)
    except (ValueError, KeyError, TypeError, RecursionError, BadSignatureError) as error:
        raise IntegrityError(f"{INDEX}: missing or not an index ({error})") from None
    # The list is canonical: an equivalent index in another form was altered too.
    if author != evm_address(signer) or text != _spelled(files, signature):
        # The spec names the buyer; if it was altered, the index may be valid.
        others = [name for name in sorted(files) if not _is_listed(folder, name, files[name])]
        beside = f"; beside it, altered since delivery: {', '.join(others[:3])}" if others else ""
        raise IntegrityError(f"{INDEX}: not signed by the buyer as it stands{beside}")
    present = set(_names(folder))
    listed = {name for name in files if not _is_participants(name)}  # older indexes include them
    for name in sorted(listed | present):
        if name not in present:
            raise IntegrityError(f"{name}: missing")
        if name not in files:
            raise IntegrityError(f"{name}: not part of what was delivered")
        if not _is_listed(folder, name, files[name]):
            raise IntegrityError(f"{name}: altered since delivery")
    return len(listed)


def _is_listed(folder: Path, name: str, digest: object) -> bool:
    path = folder / name
    return path.is_file() and path.resolve().is_relative_to(folder.resolve()) and _sha256(path) == digest


def _names(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != INDEX and not _is_participants(name):
            yield name


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
