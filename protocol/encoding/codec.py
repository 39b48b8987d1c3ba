"""Codec: canonical CBOR encoding and digest of messages, and a bounded decoder for untrusted bytes.

Room: protocol (pure). A message is a frozen dataclass with a `TAG`; its encoding,
digest, bounds and random test values all derive from its fields, listed once.

    encode(message) = deterministic CBOR (RFC 8949, 4.2) of [TAG, field, field, ...]

The reader below accepts only that: shortest integers, definite lengths, no
maps, floats or CBOR tags (a bignum or a decimal tag would let ten bytes ask for
gigabytes), no trailing bytes. It allocates a small multiple of what it was sent:
items are counted, because 4 MiB of one-byte items cost 270 MB and seconds.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import cbor2

from assay.protocol.errors import MalformedMessage
from assay.protocol.types import FIXED_BYTES, Digest

MESSAGE_BYTES_MAX = 4 << 20  # a manifest of 1,000 commits is 0.6 MB
DEPTH_MAX = 10  # manifest range, certified manifest, manifest, contradictions, pair, commit, inner states
ITEMS_MIN = 4096  # a message may hold this many items, and one more for every 8 bytes;
ITEM_BYTES = 8  # the densest that repeat, inside Opening, Manifest and Links, are far under that
INT_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Max:
    """Bound of a variable-length field: bytes, characters or items."""

    count: int


@dataclass(frozen=True, slots=True)
class Later:
    """Mark of a field at a message's end that was added later: encoded unless it has its default.

    Messages from before the field keep their bytes. The default is never written, so one value still has one
    encoding.
    """


class Message(Protocol):
    """Any dataclass declared with a TAG; see the module text."""

    TAG: ClassVar[bytes]
    __dataclass_fields__: ClassVar[dict[str, Any]]


M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """The canonical encoding of this message.

    Raises:
        ValueError: a field is outside its declared type or bound (our own mistake).
    """
    return cbor2.dumps(_to_plain(message), canonical=True)


def encode_list(kind: type[Message], bodies: Sequence[bytes]) -> bytes:
    """The encoding of a message whose only field is a tuple of messages, from their encodings."""
    return cbor2.dumps([kind.TAG, None])[:-1] + _array_head(len(bodies)) + b"".join(bodies)


def _array_head(count: int) -> bytes:
    """The CBOR head of an array of this length."""
    return cbor2.dumps([0] * count)[: -count or None]


def decode(kind: type[M], data: bytes, bytes_max: int = MESSAGE_BYTES_MAX) -> M:
    """The message that `data` encodes.

    Args:
        kind: The expected message type.
        data: Untrusted.
        bytes_max: Largest size; only an opening, which travels as a blob, has another than messages.

    Raises:
        MalformedMessage: anything but the one canonical encoding of a `kind`.
    """
    if len(data) > bytes_max:
        raise MalformedMessage(f"{kind.__name__}: {len(data)} bytes, at most {bytes_max} expected")
    value, end = _read(data, 0, 0, [ITEMS_MIN + len(data) // ITEM_BYTES])
    if end != len(data):
        raise MalformedMessage(f"{kind.__name__}: {len(data) - end} bytes after the end")
    return typing.cast(M, _from_plain(kind, value))


def decode_any(kinds: Mapping[bytes, type[M]], data: bytes, bytes_max: int = MESSAGE_BYTES_MAX) -> M:
    """The message that `data` encodes, its type chosen by its TAG among `kinds`.

    Raises:
        MalformedMessage: unknown TAG, or not the canonical encoding.
    """
    if len(data) > bytes_max:
        raise MalformedMessage(f"message: {len(data)} bytes, at most {bytes_max} expected")
    value, end = _read(data, 0, 0, [ITEMS_MIN + len(data) // ITEM_BYTES])
    if end != len(data):
        raise MalformedMessage(f"message: {len(data) - end} bytes after the end")
    if not isinstance(value, list) or not value or not isinstance(value[0], bytes):
        raise MalformedMessage("message: expected an array that starts with a tag")
    kind = kinds.get(value[0])
    if kind is None:
        raise MalformedMessage(f"unknown message tag {value[0][:40]!r}")
    return typing.cast(M, _from_plain(kind, value))


def digest(message: Message) -> Digest:
    """SHA-256 of the encoding, which covers every field."""
    return Digest(hashlib.sha256(encode(message)).digest())


@functools.cache
def field_types(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Names and resolved types of a message's fields, in declaration order."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(kind))


def split_bound(hint: Any) -> tuple[Any, int]:
    """A field's bare type and its bound (0 where none was declared)."""
    if typing.get_origin(hint) is typing.Annotated:
        bare, *marks = typing.get_args(hint)
        return bare, next((m.count for m in marks if isinstance(m, Max)), 0)
    return hint, 0


def is_later(hint: Any) -> bool:
    """Whether a field is marked `Later`."""
    return any(isinstance(mark, Later) for mark in getattr(hint, "__metadata__", ()))


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a message, or an item of a field: its declared type, taken apart once."""

    name: str
    where: str  # for errors
    bare: Any
    bound: int
    item: _Field | None  # of a tuple
    is_message: bool
    fixed: int | None  # length in bytes
    supertype: Any
    values: frozenset[int] | None  # of an enumeration
    is_later: bool


@functools.cache
def _fields(kind: Any) -> tuple[_Field, ...]:
    return tuple(_field(name, f"{kind.__name__}.{name}", hint) for name, hint in field_types(kind))


def _field(name: str, where: str, hint: Any) -> _Field:
    bare, bound = split_bound(hint)
    supertype = getattr(bare, "__supertype__", bare)
    is_enum = isinstance(supertype, type) and issubclass(supertype, enum.IntEnum)
    return _Field(
        name=name,
        where=where,
        bare=bare,
        bound=bound,
        item=_field(name, where, typing.get_args(bare)[0]) if typing.get_origin(bare) is tuple else None,
        is_message=dataclasses.is_dataclass(bare),
        fixed=FIXED_BYTES.get(bare),
        supertype=supertype,
        values=frozenset(map(int, supertype)) if is_enum else None,
        is_later=is_later(hint),
    )


def _to_plain(message: Any) -> list[Any]:
    kind: Any = type(message)
    fields = _fields(kind)
    while fields and fields[-1].is_later and getattr(message, fields[-1].name) == _default(kind, fields[-1]):
        fields = fields[:-1]
    return [kind.TAG, *(_field_to_plain(field, getattr(message, field.name)) for field in fields)]


def _default(kind: Any, field: _Field) -> Any:
    return kind.__dataclass_fields__[field.name].default


def _field_to_plain(field: _Field, value: Any) -> Any:
    if field.item is not None:
        if not isinstance(value, tuple) or len(value) > field.bound:
            raise ValueError(f"{field.where}: expected a tuple of at most {field.bound} items")
        return [_field_to_plain(field.item, item) for item in value]
    if field.is_message:
        if type(value) is not field.bare:
            raise ValueError(f"{field.where}: expected {field.bare}, not {type(value).__name__}")
        return _to_plain(value)
    plain = int(value) if isinstance(value, enum.IntEnum) else value
    try:
        _check_scalar(field, plain)
    except MalformedMessage as fault:
        raise ValueError(str(fault)) from None
    return plain


def _tag_words(value: Any) -> str:
    """The tag of another message or version, for an error: a run of before is told from damage."""
    found = value[0] if isinstance(value, list) and value else None
    if not isinstance(found, bytes) or not re.fullmatch(rb"assay/[a-z-]{1,40}/[0-9]{1,4}", found):
        return ""
    return f"starts with {found.decode()}, "


def _from_plain(kind: type, value: Any) -> Any:
    name = kind.__name__
    tag: bytes = kind.TAG  # type: ignore[attr-defined]
    if not isinstance(value, list) or not value or value[0] != tag:
        raise MalformedMessage(
            f"{name}: {_tag_words(value)}expected an array that starts with {tag.decode()}"
        )
    fields = _fields(kind)
    given, least = len(value) - 1, sum(not field.is_later for field in fields)
    if not least <= given <= len(fields):
        expected = len(fields) if least == len(fields) else f"{least} to {len(fields)}"
        raise MalformedMessage(f"{name}: {given} fields, expected {expected}")
    fields = fields[:given]
    found = {
        field.name: _field_from_plain(field, item) for field, item in zip(fields, value[1:], strict=True)
    }
    if given > least and found[fields[-1].name] == _default(kind, fields[-1]):
        raise MalformedMessage(f"{fields[-1].where}: {value[-1]!r} is written, which is left out")
    return kind(**found)


def _field_from_plain(field: _Field, value: Any) -> Any:
    if field.item is not None:
        if not isinstance(value, list) or len(value) > field.bound:
            raise MalformedMessage(f"{field.where}: expected an array of at most {field.bound} items")
        return tuple([_field_from_plain(field.item, item) for item in value])
    if field.is_message:
        return _from_plain(field.bare, value)
    _check_scalar(field, value)
    return value if field.values is None else field.bare(value)


def _check_scalar(field: _Field, value: Any) -> None:
    where, bound, supertype = field.where, field.bound, field.supertype
    if field.fixed is not None:
        if not isinstance(value, bytes) or len(value) != field.fixed:
            got = len(value) if isinstance(value, bytes) else type(value).__name__
            raise MalformedMessage(f"{where}: expected {field.fixed} bytes, got {got}")
    elif supertype is bool:
        if not isinstance(value, bool):
            raise MalformedMessage(f"{where}: expected a boolean")
    elif field.values is not None:
        if isinstance(value, bool) or not isinstance(value, int) or value not in field.values:
            raise MalformedMessage(f"{where}: {value!r} is no {supertype.__name__}")
    elif supertype is int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= (bound or INT_MAX):
            raise MalformedMessage(f"{where}: expected an integer from 0 to {bound or INT_MAX}")
    elif supertype is bytes or supertype is str:
        if not isinstance(value, supertype) or len(value) > bound:
            raise MalformedMessage(f"{where}: expected {supertype.__name__} of at most {bound}")
    else:
        raise TypeError(f"{where}: {field.bare!r} has no encoding")


_SHORTEST = {24: 24, 25: 1 << 8, 26: 1 << 16, 27: 1 << 32}  # smallest value each length may carry


def _read(data: bytes, at: int, depth: int, left: list[int]) -> tuple[Any, int]:
    """Reads one CBOR item of the accepted subset at offset `at`; returns it and the offset of its end.

    `left` holds one number, the count of items still allowed; it is decremented.
    """
    if depth > DEPTH_MAX:
        raise MalformedMessage(f"nested deeper than {DEPTH_MAX}")
    left[0] -= 1
    if left[0] < 0:
        raise MalformedMessage("holds more items than a message of its length can")
    if at >= len(data):
        raise MalformedMessage("ends in the middle of an item")
    major, minor = data[at] >> 5, data[at] & 31
    at += 1
    if major == 7:
        if minor in (20, 21):
            return minor == 21, at
        raise MalformedMessage("holds a float, null or undefined value")
    if minor < 24:
        number = minor
    elif minor in _SHORTEST:
        width = 1 << (minor - 24)
        if at + width > len(data):
            raise MalformedMessage("ends in the middle of a length")
        number = int.from_bytes(data[at : at + width], "big")
        at += width
        if number < _SHORTEST[minor]:
            raise MalformedMessage("holds a length or integer that is not in its shortest form")
    else:
        raise MalformedMessage("holds an indefinite or reserved length")
    if major == 0:
        return number, at
    if major in (2, 3):
        if number > len(data) - at:
            raise MalformedMessage("holds a string longer than the message")
        raw = data[at : at + number]
        try:
            return (raw if major == 2 else raw.decode("utf-8")), at + number
        except UnicodeDecodeError:
            raise MalformedMessage("holds text that is not UTF-8") from None
    if major == 4:
        if number > min(len(data) - at, left[0]):
            raise MalformedMessage("holds an array longer than the message")
        items = []
        for _ in range(number):
            item, at = _read(data, at, depth + 1, left)
            items.append(item)
        return items, at
    raise MalformedMessage(f"holds a CBOR item of major type {major}, which no message uses")
