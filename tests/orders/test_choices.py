"""Order choices: an item a line becomes tokens, and every line that is none is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.orders.check import check_order
from assay.orders.choices import choices_in
from assay.orders.data.tokenise import make_data
from assay.orders.load import load_order
from assay.orders.price.quote import check_spec_keeps, quote_of, terms_of
from assay.orders.spec import choices_spec
from assay.protocol.errors import ConfigError
from assay.protocol.params import ITEMS_MAX, NO_CHOICES
from assay.training.data.choices import CHOICES, read_choices
from assay.training.data.tokenizer import byte_tokenizer
from assay.training.model.presets import PRESETS
from tests.orders.test_spec import a_spec

GOOD = {"query": "2 + 3 =", "choices": ["4", "five"], "gold": 1, "label": "not read"}
MODEL = PRESETS["gpt-1m"]


def written(folder: Path, *lines: object) -> Path:
    path = folder / "items.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def an_order(folder: Path, more: str = "") -> Path:
    written(folder, GOOD, {**GOOD, "query": "1 + 1 ="})
    (folder / "text.txt").write_text("one and one is two; " * 2000)
    path = folder / "run.toml"
    path.write_text(f'[[data]]\nsource = "text.txt"\n[evaluate]\nchoices = "items.jsonl"\n{more}')
    return path


def test_a_line_is_an_item_and_a_lone_surrogate_becomes_a_question_mark(tmp_path):
    lone = json.dumps({**GOOD, "query": "\ud800"})

    first, second = choices_in(written(tmp_path, GOOD, "", lone), byte_tokenizer(), MODEL).items

    assert (first.query, first.choices, first.gold) == ("2 + 3 =", ("4", "five"), 1)
    assert bytes(first.choice_tokens[1]) == b" five"
    assert second.query == "?"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nothing", "line 2: is not JSON"),
        ([1], 'line 2: expected an object with "query", "choices" and "gold", found list'),
        ({"question": "a", "answer": 1}, "found question, answer"),
        ({**GOOD, "query": 1}, "line 2: query is 1, expected text"),
        ({**GOOD, "choices": "ab"}, "line 2: choices are 'ab', expected a list of texts"),
        ({**GOOD, "choices": ["a", 1]}, "line 2: choices are ['a', 1], expected a list of texts"),
        ({**GOOD, "gold": "B"}, "line 2: gold is 'B', expected the index of the right choice"),
        ({**GOOD, "gold": True}, "line 2: gold is True, expected the index"),
        ({**GOOD, "gold": 2}, "line 2: gold is 2, expected the index of a choice: 0 to 1"),
        ({**GOOD, "query": "a" * 124}, "item 1: 129 tokens with its longest choice"),
        ({**GOOD, "query": "a" * 125}, "item 1: 130 tokens with its longest choice, expected at most 129"),
    ],
)
def test_a_line_that_is_no_item_is_named(tmp_path, line, reason):
    path = written(tmp_path, GOOD, line)
    if "129 tokens" in reason:  # just inside
        assert len(choices_in(path, byte_tokenizer(), MODEL).items) == 2
        return
    with pytest.raises(ConfigError) as found:
        choices_in(path, byte_tokenizer(), MODEL)
    assert reason in str(found.value)


def test_one_item_too_many_is_named(tmp_path):
    assert len(choices_in(written(tmp_path, *[GOOD] * ITEMS_MAX), byte_tokenizer(), MODEL).items) == ITEMS_MAX
    with pytest.raises(ConfigError, match="line 1025: an item too many, expected at most 1024"):
        choices_in(written(tmp_path, *[GOOD] * (ITEMS_MAX + 1)), byte_tokenizer(), MODEL)


def test_an_order_writes_its_items_beside_the_data_and_names_them_in_spec_and_quote(tmp_path):
    path = an_order(tmp_path, "[accept]\nshare = 0.1\nacc = { 0 = 0.5 }\nacc_norm = { 0 = 0.25, 1 = 1.0 }\n")
    order = load_order(path)
    make_data(path, tmp_path / "data")
    spec = a_spec({"evaluate.choices": str(tmp_path / "items.jsonl")})

    assert read_choices(tmp_path / "data", spec) == order.choices
    assert spec.choices == quote_of(order).terms.choices == choices_spec(order) != NO_CHOICES
    assert terms_of(spec).choices == spec.choices
    rows = check_order(path).rows
    assert rows["choices"].startswith(
        "2 items of items.jsonl, 4 choices, 42 tokens with their queries; a guess"
    )
    assert rows["accept"] == (
        "10% of an epoch's price only if acc is at least 0.5 after epoch 0, and acc_norm is at least "
        "0.25 after epoch 0, 1 after epoch 1: each verifier measures 32 sequences and 2 items"
    )


def test_a_run_of_other_items_is_not_the_quoted_one(tmp_path):
    quote = quote_of(load_order(an_order(tmp_path)))

    with pytest.raises(
        ConfigError, match=r"choices\.digest: 0000000000000000 in the spec, [0-9a-f]{16} was ordered"
    ):
        check_spec_keeps(quote, a_spec())


def test_without_items_nothing_is_written(tmp_path):
    path = an_order(tmp_path)
    path.write_text('[[data]]\nsource = "text.txt"\n')
    make_data(path, tmp_path / "data")
    assert not (tmp_path / "data" / CHOICES).exists()
    assert "choices" not in check_order(path).rows
