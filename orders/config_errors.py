"""Config errors: turns the problems in a hand-written file into one-line messages.

Room: orders (pure). Pydantic finds the problems; here each becomes one line with the key path as written in
TOML, the value found and what was expected.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_SHOWN_MAX = 60  # characters of a value in a message
_NOTHING = object()  # for a problem without a value worth showing

_EXPECTED = {
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "int_parsing": "expected a whole number",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
    "string_type": "expected text",
    "bool_type": "expected true or false",
    "model_type": "expected a table",
    "model_attributes_type": "expected a table",
    "dict_type": "expected a table",
    "tuple_type": "expected a list of tables, each under a [[data]] line",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "string_too_short": "expected some text",
    "string_too_long": "expected at most {max_length} characters",
    "string_pattern_mismatch": "expected letters, digits, dots, dashes and underscores",
    "too_short": "expected at least {min_length}",
    "too_long": "expected at most {max_length}",
    "literal_error": "is not one of {expected}",
    "value_error": "{error}",
}


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One problem: its key, the value found, and what was expected."""

    place: tuple[str | int, ...]
    value: object
    words: str

    def text(self) -> str:
        """`[train] lr = "fast": expected a number`."""
        key = key_text(self.place)
        if self.value is _NOTHING:
            return f"{key}: {self.words}"
        return f"{key} = {_shown(self.value)}: {self.words}"


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[ConfigProblem]:
    """Every problem that validation found, table by table."""
    found = []
    for detail in error.errors(include_url=False):
        kind, place, value = detail["type"], detail["loc"], detail["input"]
        if kind == "extra_forbidden":
            what = "table" if len(place) == 1 and isinstance(value, dict | list) else "key"
            found.append(ConfigProblem(place, _NOTHING, f"unknown {what}{_did_you_mean(place, model)}"))
        elif kind == "missing":
            found.append(ConfigProblem(place, _NOTHING, "is missing"))
        else:
            expected = _EXPECTED.get(kind, detail["msg"]).format_map(_plain(detail.get("ctx", {})))
            found.append(ConfigProblem(place, value, expected))
    return found


def key_text(place: tuple[str | int, ...]) -> str:
    """A key as TOML writes it: `[train] lr`, `[[data]] max_bytes`, `[run.behave] 4`."""
    match place:
        case (str(table), int(index)):
            return f"[[{table}]]" if index == 0 else f"[[{table}]] number {index + 1}"
        case (str(table), int(index), str(key)):
            return f"{key_text((table, index))} {one_line(key)}"
        case (*tables, last) if tables:
            return f"[{one_line('.'.join(map(str, tables)))}] {one_line(str(last))}"
        case _:
            return one_line(f"[{place[0]}]") if place else "the file"


def _did_you_mean(place: tuple[str | int, ...], model: type[BaseModel]) -> str:
    """The known key nearest to an unknown one, its own table first."""
    wrong = str(place[-1])
    tables = {name: _keys(field.annotation) for name, field in model.model_fields.items()}
    if len(place) == 1:
        near = difflib.get_close_matches(wrong, tables, n=1)
        homes = [key_text((name, wrong)) for name, keys in tables.items() if wrong in keys]
        known = [f"[{name}]" if name != "data" else "[[data]]" for name in near] or homes[:1]
        return f"; did you mean {known[0]}?" if known else f"; expected one of {', '.join(tables)}"
    table = str(place[0])
    own = tables.get(table, ())
    if near := difflib.get_close_matches(wrong, own, n=1):
        return f"; did you mean {key_text((*place[:-1], near[0]))}?"
    elsewhere = {key: name for name, keys in tables.items() for key in keys}
    if near := difflib.get_close_matches(wrong, elsewhere, n=1, cutoff=0.8):
        home = elsewhere[near[0]]
        return f"; did you mean {key_text((home, 0, near[0]) if home == 'data' else (home, near[0]))}?"
    return f"; expected one of {', '.join(own)}"


def _keys(annotation: Any) -> tuple[str, ...]:
    """Keys of the table a field denotes; of its items if it is a list of tables."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return tuple(candidate.model_fields)
    return ()


def _plain(context: Mapping[str, Any]) -> dict[str, Any]:
    """A literal's quoted alternatives without quotes, for an error message."""
    return {key: value.replace("'", "") if key == "expected" else value for key, value in context.items()}


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return one_line(text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}...")


def printable(text: str) -> str:
    """The text with its line breaks, each line as `one_line` has it."""
    return "\n".join(one_line(line) for line in text.split("\n"))


def one_line(text: str) -> str:
    """The text without line breaks or characters that would move a terminal's cursor."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
