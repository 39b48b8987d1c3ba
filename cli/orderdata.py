"""Order data: the bytes that an order's sources stand for.

Room: cli (edge: reads files). Same files, same bytes: everything is taken in the
order of relative paths, and nothing outside a named folder is followed.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from cli.order import DataSection, Order
from protocol.errors import ConfigError

_NOT_SOURCES = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def collect_data(order: Order) -> bytes:
    """All of an order's data, source after source.

    Raises:
        ConfigError: a source is missing, unreadable or empty.
    """
    return b"".join(_collect(source, order.folder) for source in order.data)


def _collect(source: DataSection, folder: Path) -> bytes:
    if source.is_stdlib:
        root = Path(sysconfig.get_path("stdlib"))
        files = _files_below(root, lambda name: name in _NOT_SOURCES, suffix=".py")
    else:
        root = folder / Path(source.source).expanduser()
        files = _files_of(root)
    parts, left = [], source.max_bytes
    for path in files:
        body = _read(path, left)
        if path != root and b"\0" in body:
            continue  # no text
        parts.append(body)
        left -= len(body)
        if not left:
            break
    if left == source.max_bytes:
        raise ConfigError(f"data {root}: holds no text, expected a text file or a folder with some")
    return b"".join(parts)


def _files_of(root: Path) -> Iterator[Path]:
    if not os.path.lexists(root):
        raise ConfigError(f'data {root}: does not exist; expected "stdlib", a text file or a folder')
    if root.is_dir():
        return _files_below(root, lambda name: name.startswith("."))
    if not root.is_file():
        raise ConfigError(f"data {root}: is neither a file nor a folder")
    return iter((root,))


def _files_below(root: Path, is_left_out: Callable[[str], bool], suffix: str = "") -> Iterator[Path]:
    """Regular files by relative path; linked folders are not entered, links that lead outside not read.

    Raises:
        ConfigError: a folder cannot be listed.
    """

    def refuse(cause: OSError) -> None:
        raise ConfigError(f"data {cause.filename}: cannot be listed ({cause.strerror})")

    home = root.resolve()
    found = []
    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not is_left_out(name)]
        found += [Path(folder, name) for name in names if name.endswith(suffix) and not is_left_out(name)]
    for path in sorted(found, key=lambda path: path.relative_to(root).as_posix()):
        if path.is_file() and path.resolve().is_relative_to(home):
            yield path


def _read(path: Path, count: int) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(count)
    except OSError as cause:
        raise ConfigError(f"data {path}: cannot be read ({cause.strerror or cause})") from None
