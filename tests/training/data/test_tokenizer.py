"""Tokenizer: the same text gives the same tokens, whatever its size and wherever it is cut."""

from __future__ import annotations

import hashlib
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from assay.protocol.errors import ConfigError
from assay.protocol.types import NO_DIGEST
from assay.training.data import bounded as process
from assay.training.data import tokenizer as module
from assay.training.data.choices import Choices, check_texts, tokenised
from assay.training.data.tokenizer import (
    byte_tokenizer,
    byte_tokenizer_json,
    decoded,
    load_tokenizer,
    pieces,
    special_name,
)


def a_tokenizer(path, *special: str, size: int = 320):
    """A byte-level BPE trained on a few lines."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["the cat sat on the mat and the hat\n"] * 20, trainer)
    made.enable_truncation(4)  # what a file says about lengths must not cut our text
    made.save(str(path))
    return path


def test_bytes_are_tokens_and_zero_ends_a_document():
    plain = byte_tokenizer()

    assert plain.encode(b"\x00a\xff").tolist() == [0, 97, 255]
    assert (plain.vocabulary, plain.separator, plain.digest) == (256, 0, NO_DIGEST)


def test_a_file_is_named_by_its_hash_and_encodes_all_of_a_text(tmp_path):
    path = a_tokenizer(tmp_path / "tokenizer.json", "<|endoftext|>")
    text = "the cat sat on the hat, źdźbło 𝄞\n" * 50

    made = load_tokenizer(path)

    ids = made.encode(text.encode())
    assert Tokenizer.from_file(str(path)).decode(ids.tolist(), skip_special_tokens=False) == text
    assert len(ids) < len(text.encode())
    assert made.digest == hashlib.sha256(path.read_bytes()).digest()
    assert made.body == path.read_bytes()
    assert made.vocabulary > ids.max()


def test_a_special_token_is_named_and_no_other(tmp_path):
    made = load_tokenizer(a_tokenizer(tmp_path / "tokenizer.json", "<x>", "<|endoftext|>"))

    assert special_name(made.body, made.separator) == "<|endoftext|>"
    for body, token in ((made.body, 5), (made.body, None), (b"", 0), (b"{}", 0)):
        assert special_name(body, token) == ""


def test_tokens_become_their_text_whatever_they_are(tmp_path):
    text = "the cat sat on the hat, źdźbło 𝄞\n"
    made = load_tokenizer(a_tokenizer(tmp_path / "tokenizer.json", "<|endoftext|>"))

    known = [*made.encode(text.encode()).tolist(), made.separator]
    assert decoded(made.body, [known, [made.vocabulary + 7]], 99) == (text + "<|endoftext|>", "")
    assert decoded(b"", [[*text.encode(), 0xC5, 300]], 99) == (text + "\ufffd\ufffd",)
    assert decoded(made.body, [known], 4) == decoded(b"", [text.encode()], 4) == ("the ",)
    with pytest.raises(ValueError, match="is not a tokenizer"):
        decoded(b"{}", [[1]], 99)


def a_bomb(part: str, *, is_added: bool = True) -> bytes:
    """A tokenizer of one word, of which a decoder or a normaliser makes 8 * 10^9 characters.

    is_added: The word is an added token, which is normalised when the file is read.
    """
    growing = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 2000}] * 3
    added = {"id": 0, "content": "a", "normalized": True, "special": False}
    made = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": []
        if not is_added
        else [added | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)],
        "normalizer": {"type": "Sequence", "normalizers": growing} if part == "normalizer" else None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": growing} if part == "decoder" else None,
        "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
    }
    return json.dumps(made).encode()


def test_a_tokenizer_that_takes_all_memory_ends_a_child_and_not_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "MEMORY_BYTES", 1 << 29)
    assert decoded(byte_tokenizer_json(), [[97]], 99) == ("a",)
    for part in ("decoder", "normalizer"):
        with pytest.raises(ValueError, match="reads the tokenizer ended"):
            decoded(a_bomb(part), [[0]], 99)
    assert special_name(a_bomb("normalizer"), 0) == ""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(a_bomb("normalizer"))
    item = tokenised("a", ("b", "c"), 0, byte_tokenizer())
    with pytest.raises(ValueError, match="reads the tokenizer ended"):
        check_texts(Choices(name="one", items=(item,)), path)


def test_whoever_tokenises_with_a_file_that_takes_all_memory_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "MEMORY_BYTES", 1 << 29)
    path = tmp_path / "tokenizer.json"
    for part in ("decoder", "normalizer"):
        path.write_bytes(a_bomb(part))
        with pytest.raises(ConfigError, match=r"tokenizer.json: the process that reads the tokenizer ended"):
            load_tokenizer(path, "a")
    path.write_bytes(a_bomb("normalizer", is_added=False))
    for tokenise in (lambda: load_tokenizer(path).encode(b"a"), lambda: load_tokenizer(path).located("a")):
        with pytest.raises(ValueError, match="the process that reads the tokenizer ended"):
            tokenise()
    path.write_bytes(a_bomb("normalizer", is_added=False).replace(b'"unk_token": "a"', b'"unk_token": "b"'))
    with pytest.raises(ValueError, match=r"the tokenizer refuses it .*UNK"):
        load_tokenizer(path).encode(b"x")


@pytest.mark.parametrize(
    ("special", "wanted", "expected"),
    [
        (("<|endoftext|>",), None, "<|endoftext|>"),
        (("<x>", "</s>"), None, "</s>"),
        (("<x>", "</s>"), "<x>", "<x>"),
        (("</s>",), "", None),
        ((), None, None),
    ],
)
def test_the_separator_is_the_one_that_is_asked_for_or_the_first_that_is_known(
    tmp_path, special, wanted, expected
):
    path = a_tokenizer(tmp_path / "tokenizer.json", *special)

    found = load_tokenizer(path, wanted).separator

    assert found == (None if expected is None else Tokenizer.from_file(str(path)).token_to_id(expected))


def test_a_tokenizer_that_cannot_be_used_is_named(tmp_path):
    path = a_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match='has no token "<end>"'):
        load_tokenizer(path, "<end>")
    with pytest.raises(ConfigError, match="nowhere: cannot be read"):
        load_tokenizer(tmp_path / "nowhere")
    for body in (b"", b"{}", b"\xff" * 40):
        path.write_bytes(body)
        with pytest.raises(ConfigError, match=r"is not a tokenizer.json"):
            load_tokenizer(path)


def test_the_byte_tokenizers_file_gives_bytes(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(byte_tokenizer_json())
    text = "".join(map(chr, range(0x20, 0x250))) + "\n\t\r\0 ﷽ 𝄞" * 3

    made = load_tokenizer(path)

    assert made.encode(text.encode()).tolist() == list(text.encode())
    assert (made.vocabulary, made.separator) == (256, None)


texts = st.text(alphabet=st.sampled_from("ab \nzł𝄞"), max_size=200).map(str.encode)


@settings(max_examples=200)
@given(texts, st.lists(st.integers(0, 800), max_size=6), st.integers(8, 40))
def test_pieces_are_the_document_and_do_not_depend_on_how_it_arrives(text, cuts, limit):
    edges = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    chunks = [text[a:b] for a, b in itertools.pairwise(edges)]
    before, module.PIECE_BYTES = module.PIECE_BYTES, limit
    try:
        found = list(pieces(chunks))
        assert found == list(pieces([text]))
    finally:
        module.PIECE_BYTES = before

    assert b"".join(found) == text
    assert all(0 < len(piece) <= limit for piece in found)
    assert all(piece.decode() is not None for piece in found)  # no character is cut in two
    for piece, following in itertools.pairwise(found):
        is_whole_line = piece.endswith(b"\n")
        assert is_whole_line or b"\n" not in piece, (piece, following)


def test_bytes_that_are_no_text_still_come_through():
    assert b"".join(pieces([b"\x80" * 3_000_000])) == b"\x80" * 3_000_000
    assert np.array_equal(byte_tokenizer().encode(b"\x80\x81"), [128, 129])
