"""JSON text: parses untrusted JSON with bounded nesting, and turns values into JSON, canonical or not.

Room: protocol (pure). Python's parser recurses in C. Its guard is the recursion limit, which py_ecc,
part of every chain client, raises to 100,000: far above what the stack holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

NESTED_MAX = 200
_MARK = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)


def parse_json(body: bytes | str) -> Any:
    """The value of an untrusted JSON text in UTF-8.

    Raises:
        ValueError: it is not JSON, or is nested more than `NESTED_MAX` deep.
    """
    text = body.decode() if isinstance(body, bytes) else body
    if text.count("[") + text.count("{") > NESTED_MAX and _depth(text) > NESTED_MAX:
        raise ValueError(f"nested more than {NESTED_MAX} deep")
    return json.loads(text)


def plain(value: Any) -> Any:
    """A value as JSON holds it: a dataclass as an object of its fields, bytes in hexadecimal, sets sorted."""
    match value:
        case _ if is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        case Mapping():
            return {_key(name): plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case set() | frozenset():
            return sorted(plain(one) for one in value)
        case bytes():
            return value.hex()
        case Enum():
            return value.value if isinstance(value.value, str) else value.name.lower()
        case PurePath():
            return str(value)
        case _:
            return value


def _key(name: Any) -> str:
    return name.hex() if isinstance(name, bytes) else str(name)


def canonical_json(value: Any) -> bytes:
    """The canonical JSON of a value: keys ascending, no spaces, UTF-8, a final newline. Floats have none.

    Raises:
        TypeError: the value holds what JSON cannot express, or a float.
    """
    _refuse_floats(value)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def _refuse_floats(value: Any) -> None:
    if isinstance(value, float):
        raise TypeError(f"the float {value}, expected integers and text")
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise TypeError(f"the key {name!r}, expected text")
            _refuse_floats(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _refuse_floats(inner)


def _depth(text: str) -> int:
    """Nesting depth of brackets outside of strings; counting stops above the bound."""
    depth = most = 0
    for mark in _MARK.finditer(text):
        if mark[0] in "[{":
            depth += 1
            most = max(most, depth)
            if most > NESTED_MAX:
                break
        elif mark[0] in "]}":
            depth -= 1
    return most
