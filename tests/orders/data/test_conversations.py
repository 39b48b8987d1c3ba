"""Conversations of an order: whole in their sequences, under the template that the buyer's model has."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from assay.orders.check import check_order
from assay.orders.data.tokenise import collect_data, collect_tokens, make_data
from assay.orders.load import load_order
from assay.protocol.errors import ConfigError
from assay.training.data.chat_template import ChatTemplate, read_chat_template
from assay.training.data.mask import visible
from assay.training.data.shards import read_manifest
from assay.training.data.tokenizer import byte_tokenizer_json
from assay.training.model.hugging_face import export_config
from assay.training.model.presets import PRESETS

EXAMPLES = Path(__file__).parents[3] / "examples"
SEQUENCE = 65  # tokens, of llama-130k


def a_line(answer: str = "4", question: str = "2 + 2?") -> str:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages}) + "\n"


def chat_order(*sources, **model):
    data = [{"format": "chat", **source} for source in sources]
    return load_order(
        None, {"data": data, **{f"model.{k}": v for k, v in {"preset": "llama-130k", **model}.items()}}
    )


def texts_of(order) -> list[tuple[str, str]]:
    """Every sequence: its text, and what of it is trained on, with a dot in place of each other byte."""
    _, tokens = collect_tokens(order)
    length = order.sizes.context + 1
    rows = [tokens[at : at + length] for at in range(0, len(tokens), length)]
    return [
        tuple(bytes(part.astype(np.uint8)).decode() for part in (visible(row), np.where(row < 0, 46, row)))
        for row in rows
    ]


def a_base(folder: Path, **tokenizer_config) -> str:
    """A base with a byte tokenizer, whose zero byte ends a text."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(export_config(PRESETS["llama-130k"], 0)))
    (folder / "tokenizer.json").write_bytes(byte_tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return str(folder)


def test_whole_conversations_are_packed_and_only_answers_are_trained_on(tmp_path):
    (tmp_path / "a.jsonl").write_text(a_line("4") + a_line("5 €", "2 + 3?"))
    order = chat_order({"source": str(tmp_path / "a.jsonl"), "licence": "CC0-1.0"})

    (first, second), manifest = texts_of(order), collect_data(order, None)

    assert first[0] == "<|user|>\n2 + 2?\0\n<|assistant|>\n4\0\n".ljust(SEQUENCE, "\0")
    assert first[1] == (31 * "." + "4\0\n").ljust(SEQUENCE, ".")
    assert second[1].strip(".") == "5 €\0\n" and "2 + 3?" in second[0]
    assert manifest.token_bytes == 2  # a byte, and the mask
    (source,) = manifest.sources
    assert (source.kind, source.files, source.documents, source.bytes) == ("conversations", 1, 2, 18)
    assert source.tokens == 2 * SEQUENCE
    assert (manifest.chat.targets, manifest.chat.padding) == (3 + 7, 2 * SEQUENCE - 34 - 38)


def test_text_beside_conversations_is_trained_on_whole_and_ends_with_its_sequence(tmp_path):
    (tmp_path / "a.txt").write_text("plain text")
    (tmp_path / "b.jsonl").write_text(a_line())
    sources = [{"source": str(tmp_path / "a.txt"), "format": "text"}, {"source": str(tmp_path / "b.jsonl")}]

    (text, talk), (again, after) = texts_of(chat_order(*sources)), texts_of(chat_order(*sources[::-1]))

    assert text[1] == "plain text\0".ljust(SEQUENCE, ".")
    assert (talk, "plain text\0") == (again, after[1])
    kinds = [one.kind for one in collect_data(chat_order(*sources), None).sources]
    assert kinds == ["text", "conversations"]


def test_the_template_is_the_named_one_else_the_bases_else_the_default(tmp_path):
    (tmp_path / "a.jsonl").write_text(a_line())
    (tmp_path / "own.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    source = {"source": str(tmp_path / "a.jsonl")}
    named = {
        "name": "default",
        "template": "{% for m in messages %}({{ m.content }}{{ sep_token }}{% endfor %}",
    }
    base = a_base(tmp_path / "base", chat_template=[named], sep_token={"content": ")"})

    def text(**model) -> str:
        order = chat_order(source, **model)
        return texts_of(order)[0][0].rstrip("\0")

    from_base = {"preset": None, "base": base}
    assert text(chat_template=str(tmp_path / "own.jinja")) == "[2 + 2?][4]"
    assert text(**from_base, chat_template=str(tmp_path / "own.jinja")) == "[2 + 2?][4]"
    assert text(**from_base) == "(2 + 2?)(4)"
    (tmp_path / "base" / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    )
    assert text(**from_base) == "<2 + 2?><4>"
    bare = a_base(tmp_path / "bare")
    assert text(preset=None, base=bare) == "<|user|>\n2 + 2?\0\n<|assistant|>\n4\0\n"  # its end is the base's


def test_the_template_travels_with_the_data_and_the_manifest_names_it(tmp_path):
    (tmp_path / "a.jsonl").write_text(a_line())
    order = chat_order({"source": str(tmp_path / "a.jsonl")})

    manifest = collect_data(order, tmp_path / "data")

    body = (tmp_path / "data" / "chat_template.json").read_bytes()
    assert hashlib.sha256(body).digest() == read_manifest(tmp_path / "data").chat.template
    assert read_chat_template(body) == order.chat == ChatTemplate(order.chat.text, {})
    assert manifest == read_manifest(tmp_path / "data") == collect_data(order, None)


def test_what_does_not_fit_a_sequence_is_cut_or_left_out_and_counted(tmp_path):
    long = a_line("4 " * 80) + a_line("4", "2 + " * 80) + a_line()
    (tmp_path / "a.jsonl").write_text(long)
    order = chat_order({"source": str(tmp_path / "a.jsonl")})

    manifest = collect_data(order, None)

    assert (manifest.chat.conversations, manifest.chat.cut, manifest.chat.dropped) == (2, 1, 1)
    assert manifest.chat_words == (
        "2 conversations in 2 sequences of 65 tokens, 1 cut, 1 left out; 29% of targets are trained on, "
        "24% of tokens are padding"
    )


def test_no_more_text_is_read_than_was_ordered_and_no_conversation_in_part(tmp_path):
    (tmp_path / "a.jsonl").write_text(3 * a_line())
    (tmp_path / "b.jsonl").write_text(a_line("4", "?"))
    (tmp_path / "readme.md").write_text("no conversation")
    counted = [
        collect_data(chat_order({"source": str(tmp_path), "max_bytes": most}), None).sources[0]
        for most in (14, 20, 21, 23, 50)
    ]

    assert [one.documents for one in counted] == [2, 2, 3, 4, 4]
    assert [one.files for one in counted] == [1, 1, 1, 2, 2]
    with pytest.raises(ConfigError, match="holds no conversation that is trained on"):
        collect_data(chat_order({"source": str(tmp_path), "max_bytes": 6}), None)


def test_a_conversation_that_the_template_refuses_is_named_with_its_line(tmp_path):
    (tmp_path / "a.jsonl").write_text(a_line() + a_line("x", "bad"))
    (tmp_path / "t.jinja").write_text(
        "{% if messages[0].content == 'bad' %}{{ raise_exception('no') }}{% endif %}x"
    )
    order = chat_order({"source": str(tmp_path / "a.jsonl")}, chat_template=str(tmp_path / "t.jinja"))

    with pytest.raises(ConfigError, match=r"a.jsonl, line 1: the chat template does not write message 2"):
        collect_data(order, None)
    (tmp_path / "a.jsonl").write_text(a_line("x", "bad"))
    with pytest.raises(ConfigError, match=r"a.jsonl, line 1: the chat template refuses it \(no\)"):
        collect_data(order, None)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model.chat_template": "x.jinja"}, "no source has conversations"),
        ({"data": [{"format": "chat"}]}, "the standard library has no conversations"),
        (
            {"data": [{"source": "x", "format": "chat"}], "model.chat_template": "none.jinja"},
            "cannot be read",
        ),
    ],
)
def test_an_order_that_contradicts_itself_about_conversations_is_refused(keys, words):
    with pytest.raises(ConfigError, match=words):
        load_order(None, keys)


def test_the_example_is_short_conversations_of_which_every_answer_fits(tmp_path):
    base = a_base(tmp_path / "base")
    overrides = {"model.base": base}
    manifest = collect_data(load_order(EXAMPLES / "chat.toml", overrides), None)

    assert (manifest.chat.conversations, manifest.chat.cut, manifest.chat.dropped) == (160, 0, 0)
    assert manifest.sources[0].tokens < 160 * SEQUENCE * 0.6  # packed


def test_the_check_and_the_command_say_what_became_of_conversations(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(a_line(str(number)) for number in range(700)))
    order = tmp_path / "run.toml"
    order.write_text('[model]\npreset = "llama-130k"\n[[data]]\nsource = "a.jsonl"\nformat = "chat"\n')

    words = check_order(order).rows["chat"]
    made = make_data(order, tmp_path / "data")

    assert words.startswith("700 conversations in 700 sequences of 65 tokens, 0 cut, 0 left out; ")
    assert f"chat      {words}" in made.lines
    assert "chat" not in check_order(None).rows
