"""JSON text: parses untrusted JSON with bounded nesting, turns values into JSON, canonical or not, and back.

Room: protocol (pure). Python's parser recurses in C. Its guard is the recursion limit, which py_ecc,
part of every chain client, raises to 100,000: far above what the stack holds.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum, EnumMeta
from pathlib import PurePath
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
NESTED_MAX = 200
_KINDS = {
    int: "a whole number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    NoneType: "null",
}
_hints = functools.cache(get_type_hints)  # of one class after the other, thousands of times
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


def read_plain(kind: type[T], given: Any, name: str = "") -> T:
    """The value from which `plain` makes this JSON value: exactly its fields, nothing converted or defaulted.

    Args:
        kind: A dataclass, or what its fields may be: another, `int`, `str`, `bool`, `bytes`, None, an enum, a
            tuple, a mapping by text or bytes, or one of these or None.
        given: Parsed JSON.
        name: Of the value, for errors.

    Raises:
        ValueError: what arrived and was expected; the message begins with the name of the first wrong field.
    """
    value: T = _read(kind, given, name)
    return value


def _read(kind: Any, given: Any, name: str) -> Any:
    kind = getattr(kind, "__supertype__", kind)  # of a NewType
    parts = get_args(kind)
    if NoneType in parts:
        return None if given is None else _read(parts[0], given, name)
    if is_dataclass(kind):
        return _read_fields(kind, given, name)
    if get_origin(kind) is Mapping:
        named = ((key, one, f"{name}[{key!r:.60}]") for key, one in _of(dict, given, name).items())
        return {_read(parts[0], key, at): _read(parts[1], one, at) for key, one, at in named}
    if get_origin(kind) is tuple:
        items = _of(list, given, name)
        kinds = parts[:1] * len(items) if parts[-1] is ... else parts
        if len(items) != len(kinds):
            raise ValueError(f"{name}: {len(items)} items, expected {len(kinds)}")
        pairs = enumerate(zip(kinds, items, strict=True))
        return tuple(_read(part, one, f"{name}[{index}]") for index, (part, one) in pairs)
    if kind is bytes:
        return _read_bytes(given, name)
    if isinstance(kind, EnumMeta):
        members: dict[str, Any] = {plain(one): one for one in list[Any](kind)}
        if _of(str, given, name) not in members:
            raise ValueError(f"{name}: {given!r:.60}, expected one of {', '.join(members)}")
        return members[given]
    return _of(kind, given, name)


def _read_fields(kind: Any, given: Any, name: str) -> Any:
    prefix, hints = f"{name}." if name else "", _hints(kind)
    names = [field.name for field in fields(kind)]
    found = _of(dict, given, name or kind.__name__)
    if missing := [f"{prefix}{one}" for one in names if one not in found]:
        raise ValueError(f"{missing[0]}: missing")
    if unknown := [one for one in found if one not in names]:
        raise ValueError(f"{prefix}{unknown[0]!r:.60}: unknown, expected one of {', '.join(names)}")
    values = {one: _read(hints[one], found[one], f"{prefix}{one}") for one in names}
    try:
        return kind(**values)
    except ValueError as error:  # a rule of the type
        raise ValueError(f"{prefix}{error}") from None


def _read_bytes(given: Any, name: str) -> bytes:
    text: str = _of(str, given, name)
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if found.hex() != text:
        raise ValueError(f"{name}: {text!r:.60}, expected bytes in lower-case hexadecimal")
    return found


def _of(kind: type, given: Any, name: str) -> Any:
    if type(given) is not kind:
        raise ValueError(f"{name}: {given!r:.60}, expected {_KINDS[kind]}")
    return given


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
