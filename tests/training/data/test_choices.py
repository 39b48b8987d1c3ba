"""Choices: items become tokens once, and whoever reads them checks them against the run's spec."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from assay.protocol.errors import ConfigError
from assay.protocol.params import NO_CHOICES, ChoicesSpec
from assay.testing.run import a_spec
from assay.training.data import choices as choices_file
from assay.training.data.choices import CHOICES, Choices, check_choices, check_texts, read_choices, tokenised
from assay.training.data.tokenizer import byte_tokenizer, byte_tokenizer_json, load_tokenizer

BYTES = byte_tokenizer()
BOUNDS = {"context": 64, "vocabulary": 256}


def an_item(query="2 + 3 =", choices=("4", "five"), gold=1, tokenizer=BYTES):
    return tokenised(query, choices, gold, tokenizer)


def of(*items, name="sums.jsonl"):
    return Choices(name=name, items=items)


def test_a_choice_is_scored_on_the_space_and_its_own_text_behind_a_masked_query():
    item = an_item()

    first, second = item.sequences()

    assert (first < 0).tolist() == [[True] * 7 + [False] * 2]
    assert bytes((~first[0, :7]).tolist() + first[0, 7:].tolist()) == b"2 + 3 = 4"
    assert bytes(second[0, 7:].tolist()) == b" five"
    assert item.tokens == 9 + 12


def test_any_tokenizer_splits_query_and_choice_where_the_query_ends(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(byte_tokenizer_json())
    assert an_item("ä ö", ("ü", "ß"), 0, load_tokenizer(path)) == an_item("ä ö", ("ü", "ß"), 0)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"query": ""}, "the query is '', expected text"),
        ({"query": "2 + 3 = "}, "does not end in white space"),
        ({"choices": ("4",)}, "1 choices, expected 2 to 16"),
        ({"choices": tuple(map(str, range(17)))}, "17 choices, expected 2 to 16"),
        ({"gold": 2}, "gold is 2, expected the index of a choice: 0 to 1"),
        ({"gold": -1}, "gold is -1"),
        ({"choices": ("4", "")}, "a choice is empty or there twice"),
        ({"choices": ("4", "4")}, "a choice is empty or there twice"),
    ],
)
def test_text_that_is_no_item_is_refused(parts, reason):
    with pytest.raises(ValueError, match=reason):
        an_item(**parts)


@pytest.mark.parametrize(
    ("changes", "bounds", "reason"),
    [
        ({}, {"context": 10}, "item 1: 12 tokens with its longest choice, expected at most 11"),
        ({}, {"vocabulary": 118}, "item 1: tokens 32 to 118, expected 0 to 117"),
        ({"query_tokens": (-1,)}, {}, "item 1: tokens -1 to 118, expected 0 to 255"),
        ({"query_tokens": ()}, {}, "item 1: the query or a choice has no tokens of its own"),
        ({"choice_tokens": ((1,), ())}, {}, "item 1: the query or a choice has no tokens of its own"),
        ({"choice_tokens": ((1,),)}, {}, "item 1: 2 choices, 1 tokenised, expected 2 to 16 of both"),
        ({"gold": 2}, {}, "item 1: gold is 2, expected 0 to 1"),
        ({"choices": ("", "five")}, {}, "item 1: the query or a choice has no tokens of its own"),
    ],
)
def test_an_item_that_the_model_cannot_be_scored_on_is_named(changes, bounds, reason):
    good = an_item()
    check_choices(of(good, good), context=11, vocabulary=119)

    with pytest.raises(ValueError, match=reason):
        check_choices(of(an_item("a", ("b", "c")), replace(good, **changes)), **{**BOUNDS, **bounds})


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        (of(), "0 items, expected 1 to 1024"),
        (of(*[an_item()] * 1025), "1025 items, expected 1 to 1024"),
        (of(an_item(), name=""), "expected assay/choices/1 with a name"),
        (replace(of(an_item()), format="assay/choices/2"), "'assay/choices/2' of"),
    ],
)
def test_too_many_items_none_or_another_format_are_refused(choices, reason):
    check_choices(of(*[an_item()] * 1024), **BOUNDS)
    with pytest.raises(ValueError, match=reason):
        check_choices(choices, **BOUNDS)


def test_the_tokens_of_all_items_are_bounded_a_query_counted_with_each_choice(monkeypatch):
    items = of(an_item(), an_item())
    monkeypatch.setattr(choices_file, "TOKENS_MAX", 42)
    check_choices(items, **BOUNDS)
    monkeypatch.setattr(choices_file, "TOKENS_MAX", 41)
    with pytest.raises(ValueError, match=r"42 tokens in all, .* expected at most 41"):
        check_choices(items, **BOUNDS)


def test_tokens_that_are_not_of_the_text_are_told():
    good = of(an_item(), an_item("a", ("b", "c")))
    check_texts(good, None)
    easy = replace(good.items[1], choice_tokens=((32, 99), (32, 98)))  # shown as hard, scored as easy
    with pytest.raises(ValueError, match="item 1: its tokens are not those of its text"):
        check_texts(of(good.items[0], easy), None)


def test_a_run_reads_the_items_that_its_spec_names_and_no_others(tmp_path):
    items = of(an_item())
    plain = a_spec()
    spec = replace(plain, choices=items.spec(), model=replace(plain.model, context=64))
    assert read_choices(tmp_path, plain) is None and plain.choices == NO_CHOICES
    with pytest.raises(ConfigError, match=r"choices\.json: cannot be read"):
        read_choices(tmp_path, spec)
    (tmp_path / CHOICES).write_bytes(items.to_json())

    assert read_choices(tmp_path, spec) == items

    with pytest.raises(ConfigError, match="1 items, the run's spec has 2"):
        read_choices(tmp_path, replace(spec, choices=replace(items.spec(), items=2)))
    with pytest.raises(ConfigError, match="item 0: 12 tokens with its longest choice, expected at most 9"):
        read_choices(tmp_path, replace(spec, model=replace(spec.model, context=8)))
    (tmp_path / CHOICES).write_bytes(items.to_json().replace(b"five", b"Five"))
    with pytest.raises(ConfigError, match="not the choices this run committed to"):
        read_choices(tmp_path, spec)


@pytest.mark.parametrize("body", [b"{}", b"[" * 300, b'{"format":1}', b"\xff"])
def test_a_committed_file_that_is_no_items_is_refused(tmp_path, body):
    spec = replace(a_spec(), choices=ChoicesSpec(digest=hashlib.sha256(body).digest(), items=1))
    (tmp_path / CHOICES).write_bytes(body)
    with pytest.raises(ConfigError, match=r"choices\.json: "):
        read_choices(tmp_path, spec)
