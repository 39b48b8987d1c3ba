"""[[data]]: texts that people have, as an order names them, become one stream of tokens."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc

import pytest

from assay.orders.data import tokenise
from assay.orders.data.tokenise import collect_data, collect_tokens, make_data
from assay.orders.load import load_order
from assay.protocol.errors import ConfigError
from assay.training.data import bounded
from assay.training.data.shards import read_manifest
from assay.training.data.tokenizer import load_tokenizer
from assay.training.model.hugging_face import export_config
from assay.training.model.initial import state_digest
from tests.orders.test_model import LLAMA, a_base
from tests.training.data.test_tokenizer import a_bomb, a_tokenizer


def an_order(*sources, model=None):
    return load_order(None, {"data": list(sources), **{f"model.{k}": v for k, v in (model or {}).items()}})


def test_files_of_every_kind_in_one_folder_become_one_stream(tmp_path):
    (tmp_path / "a.txt").write_text("plain")
    (tmp_path / "b.jsonl").write_text('{"body": "one"}\n{"body": "two"}\n')
    order = an_order({"source": str(tmp_path), "field": "body", "licence": "CC0-1.0"})

    manifest, tokens = collect_tokens(order)

    assert tokens.tobytes() == b"plain\0one\0two\0"
    (source,) = manifest.sources
    assert (source.files, source.documents, source.bytes, source.tokens) == (2, 3, 11, 14)
    assert (source.source, source.licence) == (tmp_path.name, "CC0-1.0")


def test_a_file_that_is_gone_after_its_folder_was_listed_is_named(tmp_path, monkeypatch):
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.txt").write_text("something")
    listed = tokenise._place

    def listed_and_gone(*given):
        place = listed(*given)
        (source / "a.txt").unlink()
        return place

    monkeypatch.setattr(tokenise, "_place", listed_and_gone)
    with pytest.raises(ConfigError, match=r"data .*a\.txt: cannot be read \(No such file"):
        collect_data(an_order({"source": str(source)}), None)


def test_a_bad_line_is_named_from_the_order_on(tmp_path):
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{"text": "tw\n')

    with pytest.raises(ConfigError, match=r"b.jsonl, line 2: is not JSON"):
        collect_data(an_order({"source": str(tmp_path / "b.jsonl")}), None)


def test_a_tokenizers_tokens_and_separators_make_the_stream_and_travel_with_it(tmp_path):
    path = a_tokenizer(tmp_path / "tokenizer.json", "<|endoftext|>")
    (tmp_path / "b.jsonl").write_text('{"text": "the cat"}\n{"text": "the hat"}\n')
    order = an_order({"source": str(tmp_path / "b.jsonl")}, model={"tokenizer": str(path)})

    manifest = collect_data(order, tmp_path / "data")
    _, tokens = collect_tokens(order)

    library = load_tokenizer(path)
    one, two = (library.encode(text).tolist() for text in (b"the cat", b"the hat"))
    assert tokens.tolist() == [*one, library.separator, *two, library.separator]
    assert (manifest.tokenizer, manifest.separator) == (library.digest, library.separator)
    assert (tmp_path / "data" / "tokenizer.json").read_bytes() == path.read_bytes()
    assert order.sizes.vocabulary == manifest.vocabulary == library.vocabulary


def test_a_text_of_which_a_tokenizer_makes_too_much_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded, "MEMORY_BYTES", 1 << 29)
    bomb = tmp_path / "tokenizer.json"
    bomb.write_bytes(a_bomb("normalizer", is_added=False))
    (tmp_path / "a.txt").write_text("a")
    order = an_order({"source": str(tmp_path / "a.txt")}, model={"tokenizer": str(bomb)})

    with pytest.raises(ConfigError, match=r"a\.txt: the process that reads the tokenizer ended"):
        collect_data(order, None)


def test_documents_are_separated_by_what_ends_a_text_of_the_base(tmp_path):
    path = a_tokenizer(tmp_path / "tokenizer.json", "<|endoftext|>", "<|im_end|>")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(export_config(LLAMA, None)))
    base = {"base": str(tmp_path)}

    def separator(**model) -> int | None:
        return load_order(None, {f"model.{key}": value for key, value in model.items()}).tokenizer.separator

    numbers = [load_tokenizer(path, name).separator for name in ("<|endoftext|>", "<|im_end|>")]
    assert separator(**base) == numbers[0]
    config.write_text(json.dumps(export_config(LLAMA, numbers[1])))
    assert separator(**base) == numbers[1]
    config.write_text(json.dumps(export_config(LLAMA, 399)))  # which the tokenizer does not know
    assert separator(**base) == numbers[0]
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|im_end|>"}}')
    assert separator(**base) == separator(tokenizer=str(path)) == numbers[1]
    assert separator(**base, separator="") is None


def test_the_same_folder_gives_the_same_data_twice_and_another_order_of_names_another(tmp_path):
    for name, body in (("a", "one "), ("b", "two ")):
        (tmp_path / name).write_text(body * 1000)
    order = an_order({"source": str(tmp_path)})
    first = collect_data(order, None)
    assert first == collect_data(order, None)

    (tmp_path / "a").rename(tmp_path / "c")

    assert collect_data(order, None).root != first.root


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bytes", "tokenizer"])
def test_a_file_is_tokenised_in_the_memory_of_a_piece_not_of_the_file(tmp_path, kind):
    """Python's own memory; the library's, outside it, is that of one piece too."""
    path = a_tokenizer(tmp_path / "tokenizer.json")
    line = b"the cat sat on the mat and the hat sat on the cat\n"
    size = (48 if kind == "bytes" else 6) << 20
    with open(tmp_path / "large.txt", "wb") as file:
        for _ in range(size // len(line) // 1024):
            file.write(line * 1024)
    source = {"source": str(tmp_path / "large.txt")}
    order = an_order(source, model={"tokenizer": str(path)} if kind == "tokenizer" else None)
    bound = 16 << 20 if kind == "bytes" else 48 << 20  # a million tokens as a list of Python's integers

    tracemalloc.start()
    try:
        manifest = collect_data(order, tmp_path / "data")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert manifest.sources[0].bytes == (tmp_path / "large.txt").stat().st_size
    assert peak < bound
    assert kind == "tokenizer" or peak < size / 3


# ---- at the edge ----


def test_data_are_made_once_for_everybody_and_the_same_as_a_local_network_makes(tmp_path):
    theta = a_base(tmp_path / "hf")
    (tmp_path / "text").write_text("some words " * 5000)
    path = tmp_path / "run.toml"
    path.write_text('[model]\nbase = "hf"\n[[data]]\nsource = "text"\n')

    words = make_data(path, tmp_path / "out").lines

    manifest = read_manifest(tmp_path / "out")
    assert manifest == collect_data(load_order(path), None)
    assert words[0].endswith(manifest.digest().hex())
    assert words[-1].endswith(state_digest(theta).hex())
    with pytest.raises(ConfigError, match="is not an empty folder"):
        make_data(path, tmp_path / "out")


@pytest.mark.slow
def test_making_data_is_one_command(tmp_path):
    (tmp_path / "text").write_text("some words " * 5000)
    (tmp_path / "run.toml").write_text('[[data]]\nsource = "text"\n')

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "assay.cli.main",
            "order",
            "data",
            str(tmp_path / "run.toml"),
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "tokens    55,001 in 1 shards" in done.stdout
