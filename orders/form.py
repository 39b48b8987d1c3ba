"""Form: the essentials of an order as somebody typed them; its file, its quote, and what is wrong with each.

Room: orders (pure). What is typed comes from strangers, and no file that it names is opened here: the path of
the data is written into the order's file only. The quote does not depend on it, so `assay order quote` gives
the same digest for that file, wherever its data are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_args

from assay.orders.amounts import UNIT, parse_money
from assay.orders.config_errors import ConfigProblem
from assay.orders.load import examined
from assay.orders.order import Order
from assay.orders.price.quoted import Quoted, quoted
from assay.orders.sections import RUN_DAYS_MAX, CommSection, Preset
from assay.orders.toml import tomllib
from assay.protocol.errors import ConfigError

TYPED_CHARS_MAX = 300  # in one field
ROUNDS_MAX = 20_000  # quoted in 40 ms; longer runs are quoted by the buyer's own command
NOWHERE = Path("/nonexistent")
ORDER_FILE = "run.toml"
Value = str | int | float


class Kind(Enum):
    """How a field's text is read; the value says what was expected."""

    TEXT = "text"
    WHOLE = "a whole number"
    NUMBER = "a number"
    MONEY = f"an amount of {UNIT} such as 12.5"
    BUDGET = f'an amount of {UNIT} such as 12.5, or "auto"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One key of an order that the form asks for. options: the texts allowed; none: any of the kind."""

    name: str
    table: str
    key: str
    label: str
    hint: str
    start: str  # what the form begins with; an empty field leaves the key out
    kind: Kind = Kind.TEXT
    options: tuple[str, ...] = ()


_METHODS: tuple[str, ...] = get_args(CommSection.model_fields["method"].annotation)
GROUPS: Mapping[str, tuple[Field, ...]] = {
    "Model and data": (
        Field(
            name="name", table="run", key="name", label="Name of the run", start="my-run",
            hint="Letters, digits, dots, dashes and underscores.",
        ),
        Field(
            name="preset", table="model", key="preset", label="Model", start="gpt-1m",
            hint="A base of your own goes into the file: [model] base.", options=get_args(Preset),
        ),
        Field(
            name="source", table="data", key="source", label="Text to train on", start="stdlib",
            hint="Path of a file or folder beside the order, or stdlib, Python's own. Never opened here.",
        ),
        Field(
            name="licence", table="data", key="licence", label="Licence of the text", start="PSF-2.0",
            hint="As it is to stand in the model's record.",
        ),
        Field(
            name="max_bytes", table="data", key="max_bytes", label="Bytes of it at most", start="",
            hint="Empty: all of it.", kind=Kind.WHOLE,
        ),
    ),
    "Work": (
        Field(
            name="rounds", table="run", key="rounds", label="Rounds", start="70", kind=Kind.WHOLE,
            hint=f"A longer run than {ROUNDS_MAX:,} rounds is quoted by your own command.",
        ),
        Field(
            name="method", table="comm", key="method", label="Method", start="demo", options=_METHODS,
            hint="What nodes send, and how it moves the parameters.",
        ),
        Field(
            name="sequences", table="train", key="sequences", label="Sequences in a step", start="4",
            hint="Empty: the method's own.", kind=Kind.WHOLE,
        ),
        Field(
            name="sequences_max", table="train", key="sequences_max", label="Sequences at most", start="",
            hint="A faster node takes more and is paid for them. Empty: all steps are of one size.",
            kind=Kind.WHOLE,
        ),
        Field(
            name="micro_sequences", table="compute", key="micro_sequences", label="Sequences in a pass",
            start="", hint="What a machine computes at a time. Empty: the whole step.", kind=Kind.WHOLE,
        ),
    ),
    "Seats and time": (
        Field(
            name="nodes", table="run", key="nodes", label="Nodes that you name", start="5", kind=Kind.WHOLE,
            hint="0: all of them come from the network.",
        ),
        Field(
            name="least_nodes", table="run", key="least_nodes", label="Nodes without which it does not start",
            start="", hint="Empty: those that you name.", kind=Kind.WHOLE,
        ),
        Field(
            name="seats", table="run", key="seats", label="Seats", start="", kind=Kind.WHOLE,
            hint="Nodes at a time. Empty: no more than it needs.",
        ),
        Field(
            name="verifiers", table="run", key="verifiers", label="Verifiers", start="4", kind=Kind.WHOLE,
            hint="Less than a third of them may lie.",
        ),
        Field(
            name="reserves", table="run", key="reserves", label="Verifiers in reserve", start="0",
            hint="Up to two, each of which takes over the seat of one that fails or leaves.", kind=Kind.WHOLE,
        ),
        Field(
            name="start_within_s", table="run", key="start_within_s", label="Seconds to wait for nodes",
            start="86400", hint="If too few come in this time, the run never starts, and costs nothing.",
            kind=Kind.WHOLE,
        ),
        Field(
            name="days", table="", key="days", label="Days until it closes by itself", start="30",
            hint="Not in the file: it goes into the command that places the order.", kind=Kind.WHOLE,
        ),
    ),
    "Money": (
        Field(
            name="price", table="budget", key="price_per_mtoken", label=f"Price of a million tokens, {UNIT}",
            start="20", hint="Of accepted work; what is late or false is not charged.", kind=Kind.MONEY,
        ),
        Field(
            name="amount", table="budget", key="amount", label=f"Escrow, {UNIT}", start="auto",
            hint="auto: the largest cost and 5 %. What is not earned returns.", kind=Kind.BUDGET,
        ),
        Field(
            name="epoch_rounds", table="budget", key="epoch_rounds", label="Rounds in an epoch", start="10",
            hint="Pay is settled by epochs.", kind=Kind.WHOLE,
        ),
        Field(
            name="operator_stake", table="budget", key="operator_stake", label=f"Lot of a node, {UNIT}",
            start="1000", hint="What each node has at stake in the run.", kind=Kind.NUMBER,
        ),
    ),
    "Audits": (
        Field(
            name="floor", table="verify", key="floor", label="Least share of steps that is audited",
            start="0.05", hint="Above 0, to 1. Audits are paid out of the verifiers' share.",
            kind=Kind.NUMBER,
        ),
        Field(
            name="replicated", table="verify", key="replicated", label="Share with a second auditor",
            start="0.2", hint="Of audits, 0 to 1.", kind=Kind.NUMBER,
        ),
    ),
}  # fmt: skip
FIELDS: Mapping[str, Field] = {field.name: field for group in GROUPS.values() for field in group}
START: Mapping[str, str] = {field.name: field.start for field in FIELDS.values()}
_PLACES = {(field.table, field.key): field.name for field in FIELDS.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What was typed, and what follows from it. toml, quoted: only of an order without a problem."""

    typed: Mapping[str, str]  # by field; empty where nothing was
    errors: Mapping[str, str]  # by field: what arrived, and what was expected
    problems: Sequence[str]  # of no single field
    toml: str | None
    quoted: Quoted | None
    days: int


def draft_of(typed: Mapping[str, str]) -> Draft:
    """The order that these texts describe, by field; a field that is not among them is empty."""
    known = {name: typed.get(name, "").strip() for name in FIELDS}
    errors, problems = (
        dict[str, str](),
        [f"there is no field {name[:40]!r}" for name in typed.keys() - FIELDS],
    )
    values: dict[str, Value] = {}
    for name, text in known.items():
        try:
            if text:
                values[name] = _value(FIELDS[name], text)
        except (ValueError, ConfigError) as fault:
            errors[name] = str(fault)
    if not known["name"]:
        errors["name"] = "left out: expected a name"
    days = int(values.pop("days", START["days"]))
    if not 1 <= days <= RUN_DAYS_MAX:
        errors["days"] = f"{known['days']}: expected 1 to {RUN_DAYS_MAX}"
    toml, found = _toml_of(values), None
    if not errors and not problems:
        try:
            found = _quoted(toml)
        except ConfigError as fault:
            problems.append(str(fault))
    if isinstance(found, list):
        for one in found:
            blamed = _PLACES.get((str(one.place[0]), str(one.place[-1]))) if one.place else None
            if blamed is None:
                problems.append(one.text())
            else:
                errors.setdefault(blamed, f"{known[blamed] or 'left out'}: {one.words}")
    order = found if isinstance(found, Quoted) else None
    return Draft(
        typed={name: text[:TYPED_CHARS_MAX] for name, text in known.items()},
        errors=errors,
        problems=sorted(problems),
        toml=None if order is None else toml,
        quoted=order,
        days=days,
    )


def _value(field: Field, text: str) -> Value:
    """What a text means as the field's kind.

    Raises:
        ValueError, ConfigError: what arrived, and what was expected.
    """
    if len(text) > TYPED_CHARS_MAX:
        raise ValueError(f"{len(text)} characters, expected at most {TYPED_CHARS_MAX}")
    if not text.isprintable():
        raise ValueError("has a character that cannot be shown, expected text on one line")
    if field.options and text not in field.options:
        raise ValueError(f"{text[:40]!r}: expected one of {', '.join(field.options)}")
    is_ascii, expected = text.isascii(), f"{text[:40]!r}: expected {field.kind.value}"
    match field.kind:
        case Kind.WHOLE:
            if not is_ascii or re.fullmatch(r"-?[0-9]{1,15}", text) is None:
                raise ValueError(expected)
            return int(text)
        case Kind.NUMBER:
            if not is_ascii or re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", text) is None:
                raise ValueError(expected)
            return float(text)
        case Kind.BUDGET if text == "auto":
            return text
        case Kind.MONEY | Kind.BUDGET:
            return parse_money(text)
        case _:
            return text


def _toml_of(values: Mapping[str, Value]) -> str:
    """The order's file: the keys that have a value, by table."""
    lines = ["# Check it: assay order check run.toml. All keys: docs/reference/order-file.md."]
    tables = dict.fromkeys(field.table for field in FIELDS.values() if field.table)
    for table in tables:
        keys = [
            f"{field.key} = {_literal(values[field.name])}"
            for field in FIELDS.values()
            if field.table == table and field.name in values
        ]
        if keys:
            lines += ["", "[[data]]" if table == "data" else f"[{table}]", *keys]
    return "\n".join(lines) + "\n"


def _literal(value: Value) -> str:
    """A value as TOML writes it. A text is printable, and then JSON's way is TOML's too."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _quoted(toml: str) -> Quoted | list[ConfigProblem]:
    """The quote of an order's text, or its problems.

    Raises:
        ConfigError: what no single key is to blame for.
    """
    raw: dict[str, Any] = tomllib.loads(toml)
    for source in raw.get("data", ()):
        source.pop("source", None)  # so that no path is looked at
    found = examined(raw, NOWHERE)
    if not isinstance(found, Order):
        return found
    if found.run.rounds > ROUNDS_MAX:
        reason = f"at most {ROUNDS_MAX:,} are quoted here; write them into the file"
        return [ConfigProblem(("run", "rounds"), found.run.rounds, reason)]
    return quoted(found)
