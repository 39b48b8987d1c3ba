"""Calibration rows: parses and checks the fields of one row of a calibration file.

Room: verifier (pure).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from assay.protocol.types import Digest

COUNT_MAX = 2**53
_NAME_MAX = 64
T = TypeVar("T")


def checked_fields(row: Any, names: set[str], where: str) -> dict[str, Any]:
    """The object, if it has exactly these fields.

    Raises:
        ValueError: it has others.
    """
    if not isinstance(row, dict) or set(row) != names:
        raise ValueError(f"{where}: expected exactly the fields {', '.join(sorted(names))}")
    return row


def one_of(value: Any, kinds: Mapping[str, T], where: str) -> T:
    """The value that a name stands for.

    Raises:
        ValueError: no such name.
    """
    if not isinstance(value, str) or value not in kinds:
        raise ValueError(f"{where} must be one of {', '.join(kinds)}")
    return kinds[value]


def count(value: Any, where: str) -> int:
    """An integer that every JSON reader represents exactly.

    Raises:
        ValueError: it is not.
    """
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise ValueError(f"{where} must be a whole number from 0 to 2^53")
    return value


def name(value: Any, where: str) -> str:
    """A short printable name.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(value, str) or not 0 < len(value) <= _NAME_MAX or not value.isascii():
        raise ValueError(f"{where}: names must be 1 to {_NAME_MAX} ASCII characters")
    if not value.isprintable():
        raise ValueError(f"{where}: names must be printable")
    return value


def execution_class(value: Any, where: str) -> Digest:
    """An execution class in hexadecimal.

    Raises:
        ValueError: it is not.
    """
    try:
        found = bytes.fromhex(value) if isinstance(value, str) and len(value) == 64 else b""
    except ValueError:
        found = b""
    if len(found) != 32:
        raise ValueError(f"{where}: a class must be 64 hexadecimal digits")
    return Digest(found)


def check_order(median: int, p99: int, most: int, profile: int, where: str) -> None:
    """Do nothing if these can be statistics of one sample: median, percentile and maximum in order.

    Raises:
        ValueError: they cannot.
    """
    if not median <= p99 <= most:
        raise ValueError(f"{where}: expected samples with median <= p99 <= most")
    if profile > most:
        raise ValueError(f"{where}: an audit's median above the largest distance")
