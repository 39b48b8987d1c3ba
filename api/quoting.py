"""Quoting: parses an untrusted run file for a quote, without access to this machine's disk.

Room: api (pure). An order may name files: data, a model to start from, a tokenizer, limits,
policies, keys. On a server every such key is refused before it is used, so the
quote follows from the file alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.orders.load import order_of
from assay.orders.order import Order
from assay.orders.toml import tomllib
from assay.protocol.errors import ConfigError

TEXT_CHARS_MAX = 65_536
NESTED_MAX = 12
DOTS_MAX = 64  # in one line: the parser's work grows with the square of a dotted key's parts
ROUNDS_MAX, EPOCHS_MAX = 100_000, 10_000  # longer runs are quoted by the buyer's own command
NOWHERE = Path("/nonexistent")
# Keys that may name a file, with the values allowed here.
FILE_KEYS: dict[tuple[str, str], tuple[str, ...]] = {
    ("data", "source"): ("stdlib",),
    ("model", "base"): (),
    ("model", "tokenizer"): (),
    ("model", "chat_template"): (),
    ("evaluate", "choices"): (),
    ("verify", "limits"): ("shipped", "none"),
    ("verify", "attestation"): (),
    ("verify", "drand"): ("quicknet",),
    ("run", "attesters"): (),
}


def read_order(text: str) -> Order:
    """The order in a run file's text.

    Raises:
        ConfigError: it is not TOML, names a file, is too long a run, or is no valid order.
    """
    raw = _tables(text)
    for problem in _file_problems(raw):
        raise ConfigError(problem)
    order = order_of(raw, NOWHERE)
    if order.run.rounds > ROUNDS_MAX:
        raise ConfigError(f"[run] rounds = {order.run.rounds}: at most {ROUNDS_MAX} are quoted here")
    if order.epochs > EPOCHS_MAX:
        raise ConfigError(f"the run has {order.epochs} epochs: at most {EPOCHS_MAX} are quoted here")
    return order


def _tables(text: str) -> dict[str, Any]:
    if len(text) > TEXT_CHARS_MAX:
        raise ConfigError(f"the run file has {len(text)} characters, at most {TEXT_CHARS_MAX} expected")
    if any(line.count(".") > DOTS_MAX for line in text.splitlines()):
        raise ConfigError(f"a line of the run file has more than {DOTS_MAX} dots: a key is nested too deep")
    depth = 0
    for mark in text:
        depth += (mark in "[{") - (mark in "]}")
        if depth > NESTED_MAX:  # the parser recurses; brackets in strings count too, which is harmless
            raise ConfigError(f"the run file is nested more than {NESTED_MAX} deep")
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as cause:
        raise ConfigError(f"the run file is not TOML: {str(cause)[:200]}") from None
    waiting: list[tuple[Any, int]] = [(raw, 0)]
    while waiting:  # dotted keys nest without a bracket
        value, level = waiting.pop()
        if level > NESTED_MAX:
            raise ConfigError(f"the run file is nested more than {NESTED_MAX} deep")
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting += [(one, level + 1) for one in inner]
    return raw


def _file_problems(raw: Mapping[str, Any]) -> Iterator[str]:
    for (table, key), allowed in FILE_KEYS.items():
        found = raw.get(table)
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, dict) and key in one and one[key] not in allowed:
                choices = " or ".join(f'"{choice}"' for choice in allowed)
                expected = f"expected {choices}" if choices else "leave it out"
                yield f"[{table}] {key} names a file, which this server does not read: {expected}"
