"""Remembered: what a dozen processes would each make of the same bytes is made once.

Messages cannot be changed, so one object may serve all processes: bytes are decoded once, and an object is
encoded once. What is refused is looked at each time. Addresses are written with their checksum once.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from assay.chain import commit_statement
from assay.protocol.encoding import codec

REMEMBERED = 1 << 12  # messages of each kind


def _by_identity(make: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """`make`, once for each object; these are kept, so that no other takes the identity of one."""
    made: dict[int, tuple[object, bytes]] = {}

    def remembered(message: Any) -> bytes:
        found = made.get(id(message))
        if found is None:
            if len(made) >= REMEMBERED:
                made.clear()
            found = made[id(message)] = message, make(message)
        return found[1]

    return remembered


@contextmanager
def made_once() -> Iterator[None]:
    """While this lasts, all modules that are loaded share what they decode and encode."""
    decode, decode_any, evm_address = codec.decode, codec.decode_any, commit_statement.evm_address
    tables: dict[int, Any] = {}

    @functools.lru_cache(REMEMBERED)
    def by_table(table: int, data: bytes, *bound: int) -> Any:
        return decode_any(tables[table], data, *bound)

    def any_decoded(kinds: Any, data: bytes, *bound: int) -> Any:
        tables[id(kinds)] = kinds
        return by_table(id(kinds), bytes(data), *bound)

    shared: dict[str, tuple[Any, Any]] = {
        "decode": (decode, functools.lru_cache(REMEMBERED)(decode)),
        "decode_any": (decode_any, any_decoded),
        "encode": (codec.encode, _by_identity(codec.encode)),
        "digest": (codec.digest, _by_identity(codec.digest)),
        "evm_address": (evm_address, functools.lru_cache(REMEMBERED)(evm_address)),
    }
    with ExitStack() as stack:
        ours = ("assay.", "tests.simulation.")
        for module in [one for name, one in sys.modules.items() if name.startswith(ours)]:
            for name, (real, one) in shared.items():
                if vars(module).get(name) is real:
                    stack.enter_context(mock.patch.object(module, name, one))
        yield
