"""Schemas of documents: from the types of fields, so that what lacks one or has another is refused."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, NewType

import jsonschema
import pytest

from assay.cli.result import document
from assay.cli.schema import documents, schema_of
from tests.conftest import Assay

Id = NewType("Id", bytes)


class Level(IntEnum):
    LOW = 1


class Word(str, Enum):
    YES = "yes"


@dataclass(frozen=True)
class Inner:
    inner: Inner | None
    text: str


@dataclass(frozen=True)
class Everything:
    """All that a document may hold."""

    id: Id
    share: float
    is_so: bool
    level: Level
    word: Word
    path: Path
    inner: Inner
    many: tuple[Inner, ...]
    pair: tuple[int, str]
    names: frozenset[str]
    by_name: Mapping[bytes, int | None]
    bounded: Annotated[int, "at most 3"]
    anything: Any


VALUE = Everything(
    id=Id(b"\x01\xff"),
    share=0.5,
    is_so=True,
    level=Level.LOW,
    word=Word.YES,
    path=Path("a/b"),
    inner=Inner(Inner(None, "b"), "a"),
    many=(Inner(None, "c"),),
    pair=(1, "d"),
    names=frozenset({"e", "f"}),
    by_name={b"\x02": 3, b"\x03": None},
    bounded=3,
    anything={"g": [1]},
)
SCHEMA = schema_of(Everything)


def printed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(document(VALUE))
    return found


def test_what_is_printed_is_as_its_schema_says():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(printed(), SCHEMA)
    assert SCHEMA["title"] == printed()["schema"] == "assay/everything/1"
    assert SCHEMA["description"] == "All that a document may hold."


@pytest.mark.parametrize("name", [*Everything.__dataclass_fields__, "schema"])
def test_no_field_may_be_missing(name: str):
    given = printed()
    del given[name]
    with pytest.raises(jsonschema.ValidationError, match=name):
        jsonschema.validate(given, SCHEMA)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("schema", "assay/everything/2"),
        ("id", "0"),
        ("id", "0G"),
        ("share", "0.5"),
        ("is_so", 1),
        ("level", 1),
        ("word", "no"),
        ("path", None),
        ("inner", {"inner": {"inner": None}, "text": "a"}),
        ("many", [{"inner": None, "text": 1}]),
        ("pair", ["d", 1]),
        ("pair", [1, "d", 2]),
        ("names", [1]),
        ("by_name", {"02": "3"}),
        ("bounded", 1.5),
    ],
)
def test_nothing_of_another_type_is_accepted(name: str, value: object):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**printed(), name: value}, SCHEMA)


def test_fields_may_be_added():
    jsonschema.validate({**printed(), "new": 1}, SCHEMA)


@pytest.mark.parametrize("name", documents())
def test_every_document_has_a_schema(name: str):
    found = schema_of(pkgutil.resolve_name(documents()[name]))
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["properties"]["schema"] == {"const": name}


def test_schemas_are_listed_and_printed(assay: Assay):
    assert assay("schema").out.split() == sorted(documents())
    found = assay("schema", "assay/steps/1")
    assert found.status == 0 and json.loads(found.out)["title"] == "assay/steps/1"


def test_a_name_that_no_document_has_is_refused(assay: Assay):
    found = assay("schema", "assay/step/1")
    assert (found.status, found.out) == (2, "") and "assay/step/1" in found.err
