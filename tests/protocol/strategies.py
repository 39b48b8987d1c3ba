"""Values of any message: random ones for properties, fixed ones for vectors.

Both derive from the declared fields, so a new message is covered without a word here.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import typing
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from assay.protocol.encoding.codec import INT_MAX, field_types, is_later, split_bound
from assay.protocol.messages import MESSAGES
from assay.protocol.params import RunSpec
from assay.protocol.types import FIXED_BYTES

KINDS: tuple[type[Any], ...] = (*MESSAGES.values(), RunSpec)
ITEMS_MAX = 3  # per tuple: enough for order and emptiness to matter
BYTES_MAX = 300  # crosses the one- and two-byte lengths of CBOR


def messages(kind: type) -> st.SearchStrategy[Any]:
    """Any value of this message within its bounds."""
    return st.builds(kind, **{name: _values(hint) for name, hint in field_types(kind)})


def any_message() -> st.SearchStrategy[Any]:
    """Any value of any message."""
    return st.sampled_from(KINDS).flatmap(messages)


def sample(kind: type, salt: str = "") -> Any:
    """One fixed value of this message; fields differ from each other, and a `Later` one has its default."""
    path = f"{salt}/{kind.__name__}"
    first = ((name, hint) for name, hint in field_types(kind) if not is_later(hint))
    return kind(**{name: _sample_of(hint, f"{path}.{name}") for name, hint in first})


def limits(kinds: Iterable[type[Any]]) -> dict[str, Any]:
    """The bound of every field, `[]` for that of its items, and the numbers of every enumeration, by name."""
    found: dict[str, Any] = {}

    def look(name: str, hint: Any) -> None:
        bare, bound = split_bound(hint)
        if bound:
            found[name] = bound
        if typing.get_origin(bare) is tuple:
            look(f"{name}[]", typing.get_args(bare)[0])
        elif dataclasses.is_dataclass(bare):
            for field, inner in field_types(bare):
                look(f"{getattr(bare, '__name__', bare)}.{field}", inner)
        elif isinstance(bare, type) and issubclass(bare, enum.IntEnum):
            found[bare.__name__] = {one.name: one.value for one in bare}

    for kind in kinds:
        look(kind.__name__, kind)
    return dict(sorted(found.items()))


def _values(hint: Any) -> st.SearchStrategy[Any]:
    bare, bound = split_bound(hint)
    if typing.get_origin(bare) is tuple:
        return st.lists(_values(typing.get_args(bare)[0]), max_size=min(bound, ITEMS_MAX)).map(tuple)
    if dataclasses.is_dataclass(bare):
        return messages(bare)
    plain = getattr(bare, "__supertype__", bare)
    if bare in FIXED_BYTES:
        return st.binary(min_size=FIXED_BYTES[bare], max_size=FIXED_BYTES[bare])
    if plain is bool:
        return st.booleans()
    if issubclass(plain, enum.IntEnum):
        return st.sampled_from(list(plain))
    if plain is int:
        edges = st.sampled_from([n for e in (24, 2**8, 2**16, 2**32) for n in (e - 1, e)] + [0, INT_MAX])
        return st.integers(0, bound or INT_MAX) | edges.filter(lambda n: n <= (bound or INT_MAX))
    if plain is bytes:
        return st.binary(max_size=min(bound, BYTES_MAX))
    assert plain is str
    return st.text(max_size=min(bound, BYTES_MAX))


def _sample_of(hint: Any, path: str) -> Any:
    bare, bound = split_bound(hint)
    stream = hashlib.shake_256(path.encode())
    if typing.get_origin(bare) is tuple:
        count = min(bound, 2)
        return tuple(_sample_of(typing.get_args(bare)[0], f"{path}[{i}]") for i in range(count))
    if dataclasses.is_dataclass(bare):
        return sample(typing.cast(type, bare), path)
    plain = getattr(bare, "__supertype__", bare)
    if bare in FIXED_BYTES:
        return stream.digest(FIXED_BYTES[bare])
    number = int.from_bytes(stream.digest(8), "big")
    if plain is bool:
        return bool(number % 2)
    if issubclass(plain, enum.IntEnum):
        return list(plain)[number % len(plain)]
    if plain is int:
        found = number >> number % 64
        return found % (bound + 1) if bound else found
    if plain is bytes:
        return stream.digest(min(bound, 40))
    assert plain is str
    return f"{path} é"[-min(bound, 40) :]
