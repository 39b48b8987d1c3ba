"""Registry document: an entry is read back whole, or refused with the name of its first wrong field."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from assay.bundle.registry.document import entry_json, read_entry
from tests.bundle.registry.test_entry import entry_of
from tests.bundle.test_write import finished

ENTRY = json.loads(entry_json(entry_of(finished())))
MAPPINGS = (
    "run.execution_classes",
    "tokens.discarded_steps_by_reason",
    "attestation.by_discount",
    "audits.verdicts",
    "audits.rulings",
    "settlement.paid",
)


def written(value: Any) -> bytes:
    return (json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n").encode()


def objects(value: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object in an entry that has fixed fields, by its name."""
    if isinstance(value, dict) and name not in MAPPINGS:
        yield name, value
        for key, inner in value.items():
            yield from objects(inner, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from objects(inner, f"{name}[{index}]")


OBJECTS = [name for name, _ in objects(ENTRY)]


def refusal(entry: dict[str, Any]) -> str:
    with pytest.raises(ValueError) as refused:
        read_entry(written(entry))
    return str(refused.value)


@pytest.mark.parametrize("name", OBJECTS)
def test_every_missing_field_is_named(name: str) -> None:
    for key in dict(objects(ENTRY))[name]:
        entry = copy.deepcopy(ENTRY)
        del dict(objects(entry))[name][key]
        assert refusal(entry) == f"{name}.{key}".lstrip(".") + ": missing"


@pytest.mark.parametrize("name", OBJECTS)
def test_an_unknown_field_is_named_wherever_it_is(name: str) -> None:
    entry = copy.deepcopy(ENTRY)
    dict(objects(entry))[name]["more"] = 1
    assert refusal(entry).startswith(f"{name}.'more': unknown, expected one of ".lstrip("."))


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("wrong", [1.0, [[]], {"x": "y"}])
def test_every_field_of_another_type_is_named(name: str, wrong: object) -> None:
    for key in dict(objects(ENTRY))[name]:
        entry = copy.deepcopy(ENTRY)
        dict(objects(entry))[name][key] = wrong
        assert refusal(entry).startswith(f"{name}.{key}".lstrip("."))


@pytest.mark.parametrize(
    ("part", "key", "wrong", "words"),
    [
        ("tokens", "accepted", True, "tokens.accepted: True, expected a whole number"),
        ("flop", "is_measured", 0, "flop.is_measured: 0, expected true or false"),
        ("model", "licence", 7, "model.licence: 7, expected text"),
        ("model", "supersedes", "ab", "model.supersedes: 'ab', expected null"),
        ("record", "record_id", "AB", "record.record_id: 'AB', expected bytes in lower-case hexadecimal"),
        ("record", "record_id", "a b", "record.record_id: 'a b', expected bytes in lower-case hexadecimal"),
        ("audits", "rulings", {"\x1b[2J": ""}, r"audits.rulings['\x1b[2J']: '', expected a whole number"),
        ("declared", "flop_per_joule", 0, "declared.flop_per_joule is 0, expected a whole number above 0"),
    ],
)
def test_nothing_is_converted_and_what_arrived_is_shown(
    part: str, key: str, wrong: object, words: str
) -> None:
    entry = copy.deepcopy(ENTRY)
    entry[part][key] = wrong
    assert refusal(entry) == words


def test_an_entry_of_another_format_is_refused() -> None:
    assert refusal({**ENTRY, "format": "assay/registry/2"}).startswith("format: 'assay/registry/2'")


def test_an_entry_has_one_encoding() -> None:
    for body in (
        json.dumps(ENTRY).encode(),
        written(ENTRY) + b"\n",
        written(ENTRY).replace(b'"format":', b'"format":"first","format":'),
    ):
        with pytest.raises(ValueError, match="canonical"):
            read_entry(body)


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Entry: \[\], expected an object"):
        read_entry(b"[]")
