"""Armour: a message as a small text file, or as one URL-safe line, and back.

Room: participant (pure; `read_text` and `write_text` touch one file). The text is a prefix that names the
kind and its version, and the message's canonical encoding in base64url. Lines that begin with # are for
people and are not read; white space is ignored, so that mail programs may wrap the text.

    # Assay network "tiny" on chain 31337
    assay-network-1.
    AYL0kOEx...
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from assay.protocol.encoding.codec import Message, decode, encode
from assay.protocol.errors import ConfigError, MalformedMessage

M = TypeVar("M", bound=Message)

LINE = 76
_BODY = re.compile(r"[A-Za-z0-9_-]*")


def to_line(prefix: str, message: Message) -> str:
    """The message as one URL-safe line."""
    return f"{prefix}.{base64.urlsafe_b64encode(encode(message)).decode().rstrip('=')}"


def to_text(prefix: str, message: Message, notes: Sequence[str]) -> str:
    """The message as a text file; `notes` are comments for people."""
    head, body = to_line(prefix, message).split(".")
    comments = [f"# {' '.join(note.split())}" for note in notes]
    return "\n".join([*comments, f"{head}.", *textwrap.wrap(body, LINE, break_on_hyphens=False)]) + "\n"


def from_text(prefix: str, kind: type[M], text: str) -> M:
    """Inverts `to_line` and `to_text`.

    Raises:
        MalformedMessage: another kind or version, or not the one encoding of such a message.
    """
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    head, dot, body = "".join("".join(lines).split()).partition(".")
    if head != prefix or not dot:
        raise MalformedMessage(f"begins with {head[:40]!a}, expected {prefix + '.'!r}")
    if not _BODY.fullmatch(body):
        raise MalformedMessage(f"{prefix}: a character that base64url does not have")
    try:
        raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
    except (binascii.Error, ValueError) as error:
        raise MalformedMessage(f"{prefix}: {error}") from None
    if base64.urlsafe_b64encode(raw).decode().rstrip("=") != body:
        raise MalformedMessage(f"{prefix}: not the shortest base64url of its bytes")
    return decode(kind, raw)


def read_text(path: Path, what: str, bytes_max: int) -> str:
    """The text of a small file that somebody else made.

    Raises:
        ConfigError: it cannot be read, is no regular file, is too large or not text.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{what} {path}: is not a file")
        with open(path, "rb") as file:
            body = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigError(f"{what} {path}: cannot be read ({error.strerror})") from None
    if len(body) > bytes_max:
        raise ConfigError(f"{what} {path}: more than {bytes_max} bytes")
    try:
        return body.decode("ascii")
    except UnicodeDecodeError:
        raise ConfigError(f"{what} {path}: not a text file, expected ASCII") from None


def write_text(path: Path, text: str) -> None:
    """Write a public file whole or not at all, in place of an earlier one.

    Raises:
        ConfigError: it cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text)
        os.replace(partial, path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
