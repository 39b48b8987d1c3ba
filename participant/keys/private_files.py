"""Private files: files and folders that only their owner may read, refused as ssh does if others can.

Room: participant (edge: files). The mode is checked on the opened file, at every reading; the error names the
command that mends it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from assay.protocol.errors import ConfigError

PRIVATE_BYTES_MAX = 1 << 16


def read_private(path: Path) -> bytes:
    """The content of a file that nobody but its owner may read.

    Raises:
        ConfigError: it is missing, unreadable, no regular file, too large, or open to others.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{path} is not a regular file")
            _check_mode(path, found, "600")
            body = file.read(PRIVATE_BYTES_MAX + 1)
    except OSError as error:
        reason = (
            "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        )
        raise ConfigError(f"{path} {reason}") from None
    if len(body) > PRIVATE_BYTES_MAX:
        raise ConfigError(f"{path} has more than {PRIVATE_BYTES_MAX} bytes")
    return body


def read_password(path: Path) -> str:
    """The password in a file: its text without surrounding white space.

    Raises:
        ConfigError: as `read_private`, or the file is empty or not text.
    """
    try:
        found = read_private(path).decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text, expected a password") from None
    if not found:
        raise ConfigError(f"{path} is empty, expected a password")
    return found


def check_private_folder(path: Path) -> None:
    """Do nothing if nobody but its owner may open this folder.

    Raises:
        ConfigError: it is missing, no folder, or open to others.
    """
    try:
        found = path.stat()
    except OSError as error:
        reason = (
            "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        )
        raise ConfigError(f"{path} {reason}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{path} is not a folder")
    _check_mode(path, found, "700")


def make_private_folder(path: Path) -> None:
    """Create a folder for its owner only; one that is there must be private already.

    Raises:
        ConfigError: it cannot be created, or is open to others.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be created ({error.strerror})") from None
    check_private_folder(path)


def write_private(path: Path, body: bytes) -> None:
    """Write a new file that only its owner may read, durably.

    Raises:
        ConfigError: the file is there already, or cannot be written; nothing is overwritten.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise ConfigError(f"{path} is there already, and is never overwritten") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror})") from None


def replace_private(path: Path, body: bytes) -> None:
    """Write a private file in place of an earlier one; a crash leaves the one or the other."""
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    write_private(partial, body)
    os.replace(partial, path)


def _check_mode(path: Path, found: os.stat_result, mode: str) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{path} belongs to user {found.st_uid}, expected {os.geteuid()}")
    if found.st_mode & 0o077:
        shown = f"{stat.S_IMODE(found.st_mode):04o}"
        raise ConfigError(f"{path}: others may read or change it (mode {shown}): run `chmod {mode} {path}`")
