"""What a stranger types becomes an order's file with the command line's quote, or an error at a field."""

from __future__ import annotations

import builtins
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay.orders.amounts import DECIMALS
from assay.orders.form import FIELDS, NOWHERE, ROUNDS_MAX, START, TYPED_CHARS_MAX, draft_of
from assay.orders.load import load_order
from assay.orders.order import Order
from assay.orders.price.quoted import quoted
from assay.orders.sections import RunFile
from assay.orders.toml import read_toml
from assay.protocol.errors import ConfigError


def typed(**changes: str) -> dict[str, str]:
    return {**START, **changes}


def read(tmp_path: Path, toml: str | None) -> Order:
    assert toml is not None
    (tmp_path / "run.toml").write_text(toml)
    return load_order(tmp_path / "run.toml")


CHANGES: dict[str, dict[str, str]] = {
    "as it begins": {},
    "a name alone": {**dict.fromkeys(START, ""), "name": "mine"},
    "data elsewhere": {"source": "../my data/a\"b\\c.jsonl", "licence": "CC0 é", "max_bytes": "1000"},
    "nodes of the network": {"nodes": "0", "least_nodes": "3", "seats": "7", "start_within_s": "600"},
    "another model": {"preset": "llama-15m", "method": "muloco", "sequences": ""},
    "steps of many sizes": {"sequences_max": "16", "micro_sequences": "2"},
    "an escrow": {"amount": "100.5", "price": "0.5", "rounds": "20000"},
    "shares": {"floor": "1", "replicated": "0.00001", "operator_stake": "0.5", "epoch_rounds": "1"},
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_the_quote_is_the_one_that_the_command_line_gives_for_the_file(case: str, tmp_path: Path):
    draft = draft_of(typed(**CHANGES[case]))

    assert (draft.errors, draft.problems) == ({}, [])
    assert draft.quoted == quoted(read(tmp_path, draft.toml))


def test_every_field_is_written_as_the_key_it_names(tmp_path: Path):
    given = typed(
        source="text.txt", licence="MIT", max_bytes="9", least_nodes="6", seats="8", price="1.5",
        amount="1000", preset="llama-15m", method="muloco", rounds="12", name="a.b", sequences="2", nodes="1",
        verifiers="7", start_within_s="77", epoch_rounds="3", operator_stake="12.25",
        floor="0.5", replicated="0.25", sequences_max="4", micro_sequences="1",
    )  # fmt: skip
    order = read(tmp_path, draft_of(given).toml)

    (source,) = order.data
    assert (source.source, source.licence, source.max_bytes) == ("text.txt", "MIT", 9)
    assert (order.run.name, order.run.rounds, order.run.nodes, order.run.least_nodes) == ("a.b", 12, 1, 6)
    assert (order.run.seats, order.run.verifiers, order.run.start_within_s) == (8, 7, 77)
    assert (order.model.preset, order.comm.method, order.train.sequences) == ("llama-15m", "muloco", 2)
    assert (order.train.sequences_max, order.compute.micro_sequences) == (4, 1)
    assert (order.budget.price_per_mtoken, order.budget.amount) == (1_500_000, 1000 * 10**DECIMALS)
    assert (order.budget.epoch_rounds, order.budget.operator_stake) == (3, 12.25)
    assert (order.verify.floor, order.verify.replicated) == (0.5, 0.25)
    written = read_toml(tmp_path / "run.toml")
    tables = {table: one[0] if table == "data" else one for table, one in written.items()}
    assert {(table, key) for table, keys in tables.items() for key in keys} == {
        (one.table, one.key) for one in FIELDS.values() if one.table
    }


def test_the_form_begins_with_an_orders_defaults():
    order = RunFile()
    assert START["rounds"] == str(order.run.rounds) and START["nodes"] == str(order.run.nodes)
    assert START["verifiers"] == str(order.run.verifiers) and START["floor"] == str(order.verify.floor)
    assert START["replicated"] == str(order.verify.replicated) and START["method"] == order.comm.method
    assert START["price"] == str(order.budget.price_per_mtoken // 10**DECIMALS)
    assert START["operator_stake"] == f"{order.budget.operator_stake:g}"
    assert START["epoch_rounds"] == str(order.budget.epoch_rounds) and START["amount"] == "auto"
    assert START["start_within_s"] == str(order.run.start_within_s)


WRONG = [
    ("rounds", "0", "expected at least 1"), ("rounds", "x", "expected a whole number"),
    ("rounds", "٣", "expected a whole number"), ("rounds", "1_0", "expected a whole number"),
    ("rounds", "9" * 16, "expected a whole number"), ("rounds", "1.5", "expected a whole number"),
    ("rounds", str(ROUNDS_MAX + 1), "at most 20,000"), ("nodes", "99999", "expected at most"),
    ("seats", "2", "expected at least as many as nodes"), ("least_nodes", "3", "as the buyer names: 5"),
    ("name", "no spaces", "expected letters"), ("name", "", "expected a name"),
    ("preset", "gpt-5", "expected one of gpt-1m"),
    ("method", "prayer", "expected one of demo"), ("source", "x" * 301, "301 characters"),
    ("source", "a\nb", "one line"), ("source", "a\u202eb", "one line"), ("licence", "\x7f", "one line"),
    ("licence", "x" * 129, "at most 128"), ("price", "-1", "is not an amount"), ("price", "0", "at least 1"),
    ("price", "1e9", "is not an amount"), ("price", "0.0000001", "decimals"),
    ("amount", "1", "this pays for"),
    ("amount", "Auto", "is not an amount"), ("floor", "0", "more than 0"),
    ("floor", "nan", "expected a number"),
    ("floor", "1e-3", "expected a number"), ("floor", "0.0000001", "at most 6 decimals"),
    ("replicated", "1.1", "at most 1"), ("operator_stake", "inf", "expected a number"),
    ("days", "0", "expected 1 to 366"), ("days", "367", "expected 1 to 366"), ("days", "-1", "expected 1 to"),
    ("verifiers", "0", "at least 1"), ("max_bytes", "0", "at least 1"), ("sequences", "0", "at least 1"),
    ("sequences_max", "8", "expected micro_sequences above 0"), ("sequences_max", "0", "at least 1"),
    ("micro_sequences", "-1", "expected"),
    ("start_within_s", "0", "at least 1"), ("epoch_rounds", "0", "at least 1"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "text", "words"), WRONG)
def test_what_is_wrong_is_told_at_its_field_and_nothing_is_quoted(field: str, text: str, words: str):
    draft = draft_of(typed(**{field: text}))

    assert list(draft.errors) == [field] and words in draft.errors[field], draft.errors
    assert (draft.toml, draft.quoted, draft.problems) == (None, None, [])
    assert len(draft.typed[field]) <= TYPED_CHARS_MAX


def test_every_wrong_field_is_told_at_once_and_an_unknown_one_too():
    draft = draft_of(typed(rounds="x", price="y", floor="z"))
    assert set(draft.errors) == {"rounds", "price", "floor"}
    assert draft_of(typed(base="/etc/passwd")).problems == ["there is no field 'base'"]
    assert draft_of(typed(base="/etc/passwd")).quoted is None


@pytest.mark.parametrize("source", ["/etc/passwd", "run.toml", "../..", "stdlib", "~/.ssh/id_ed25519"])
def test_no_file_is_opened_or_looked_for(source: str, monkeypatch: pytest.MonkeyPatch):
    draft_of(START)

    asked: list[str] = []

    def noting(real: Callable[..., Any]) -> Callable[..., Any]:
        def note(*given: Any, **named: Any) -> Any:
            asked.append(str(given[0]))
            return real(*given, **named)

        return note

    with monkeypatch.context() as patched:
        for module, name in ((builtins, "open"), (io, "open"), (os, "stat"), (os, "open"), (os, "scandir")):
            patched.setattr(module, name, noting(getattr(module, name)))
        draft = draft_of(typed(source=source))
        Path("noted").exists()

    assert draft.quoted is not None
    assert "noted" in asked and not any(source in one or str(NOWHERE) in one for one in asked), asked


def test_the_longest_run_is_quoted_quickly():
    draft_of(START)
    longest = typed(rounds=str(ROUNDS_MAX), epoch_rounds="1", nodes="64", preset="llama-1b", floor="1")
    begun = time.process_time()

    draft = draft_of(longest)

    assert draft.quoted is not None, draft.errors
    assert time.process_time() - begun < 1.0


def test_a_path_cannot_break_out_of_its_text(tmp_path: Path):
    hostile = 'x"\\" ] \\u0041 # [run] rounds = 1'
    order = read(tmp_path, draft_of(typed(source=hostile)).toml)

    assert order.data[0].source == hostile and order.run.rounds == 70
    with pytest.raises(ConfigError):
        read(tmp_path, (draft_of(typed(source=hostile)).toml or "").replace("rounds = 70", "rounds = 0"))
