"""Tokenizer: text to tokens, by bytes or by any `tokenizer.json`.

Room: training (edge: reads one file, in a child process). Bytes are the default: 256 tokens, nothing to
train. Everything else is a file of the `tokenizers` library, named by the SHA-256 of
its bytes. A document is cut into pieces before it is tokenised, so that a text of any
size takes the same memory and the same text gives the same tokens.

Rules: docs/protocol.md, "Data".
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import ConfigError
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.data.bounded import BoundedProcess, bounded

PIECE_BYTES = 1 << 20
FILE_BYTES_MAX = 1 << 28
BYTE_VOCABULARY = 256
BYTE_SEPARATOR = 0
READING = "the tokenizer"  # what a bounded process reads
# Default separators: the first of these that the tokenizer knows follows each document.
SEPARATORS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eot_id|>", "[SEP]")

Located = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Converts pieces of text to tokens.

    digest: SHA-256 of the file; zero for bytes. separator: the token after each document, if any.
    body: the file, or nothing for bytes. encode: one piece of UTF-8 text to token numbers. located: a text to
    token numbers, and of each the first character and the one behind its last. Both raise ValueError where a
    file refuses a text, or takes more than `bounded` allows. end: the text that becomes the separator and
    nothing else; empty if there is none.
    """

    digest: Digest
    vocabulary: int
    separator: int | None
    body: bytes
    encode: Callable[[bytes], NDArray[Any]] = field(compare=False)
    located: Callable[[str], Located] = field(compare=False)
    end: str = ""


def byte_tokenizer() -> Tokenizer:
    """Every byte is a token; a zero byte follows each document."""
    return Tokenizer(
        digest=NO_DIGEST,
        vocabulary=BYTE_VOCABULARY,
        separator=BYTE_SEPARATOR,
        body=b"",
        encode=lambda piece: np.frombuffer(piece, np.uint8),
        located=_located_bytes,
        end=chr(BYTE_SEPARATOR),
    )


def _located_bytes(text: str) -> Located:
    ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    first = np.cumsum((ids & 0xC0) != 0x80) - 1  # every byte but those that continue a character begins one
    return ids, first, first + 1


def load_tokenizer(
    path: Path,
    separator: str | None = None,
    end: str | int | None = None,
    call: Callable[..., Any] | None = None,
) -> Tokenizer:
    """The tokenizer in a `tokenizer.json`, perhaps a stranger's: a child process reads it and tokenises.

    Args:
        path: The file.
        separator: The token that follows each document, as it is written in the vocabulary; "" for
            none. Left out: `end` if the tokenizer knows it, else the first of `SEPARATORS` that it knows.
        end: The token that ends a text of the model that the tokenizer comes with, by name or number.
        call: Calls a function that reads the file; left out: that of a `BoundedProcess`, which it starts.

    Raises:
        ConfigError: the file cannot be read, is no tokenizer, takes more than `bounded` allows, or does not
            know the separator.
    """
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"tokenizer {path}: more than {FILE_BYTES_MAX} bytes")
        body = path.read_bytes()
    except OSError as cause:
        raise ConfigError(f"tokenizer {path}: cannot be read ({cause.strerror or cause})") from None
    call = call or BoundedProcess(READING).call
    digest = hashlib.sha256(body).digest()
    try:
        vocabulary, after, text = call(_open, digest, body, separator, end)
    except ValueError as cause:
        raise ConfigError(f"tokenizer {path}: {cause}") from None

    def encode(piece: bytes) -> NDArray[Any]:
        return np.frombuffer(b64decode(call(_encode, digest, piece)), np.uint32)

    def located(text: str) -> Located:
        packed = np.frombuffer(b64decode(call(_located, digest, text)), np.uint32)
        ids, first, last = packed.reshape(3, -1).astype(np.int64)
        return ids, first, last

    return Tokenizer(
        digest=Digest(digest),
        vocabulary=vocabulary,
        separator=after,
        body=body,
        encode=encode,
        located=located,
        end=text,
    )


# What follows runs where `call` does; `_opened` are the tokenizers there, by the digest of their file.
_opened: dict[bytes, Any] = {}


def _open(
    digest: bytes, body: bytes, separator: str | None, end: str | int | None
) -> tuple[int, int | None, str]:
    """Read a file: the size of its vocabulary, the separator, and the text that becomes it."""
    from tokenizers import Tokenizer as Library

    try:
        library = Library.from_buffer(body)
    except Exception as cause:  # the library raises a bare Exception
        raise ValueError(f"is not a tokenizer.json ({cause})") from None
    library.no_truncation()
    library.no_padding()
    numbers = library.get_vocab(with_added_tokens=True)
    if not numbers:
        raise ValueError("its vocabulary is empty")
    if separator is None:
        names = [one for one, number in numbers.items() if number == end] if isinstance(end, int) else [end]
        after = next((numbers[name] for name in (*names, *SEPARATORS) if name in numbers), None)
    elif separator and separator not in numbers:
        raise ValueError(f'has no token "{separator}" to separate documents')
    else:
        after = numbers.get(separator) if separator else None
    _opened[digest] = library
    return max(numbers.values()) + 1, after, "" if after is None else _text_of(digest, after)


def _text_of(digest: bytes, token: int) -> str:
    """The text that becomes this token: its name, or what it is decoded to."""
    library = _opened[digest]
    tried = (library.id_to_token(token), library.decode([token], skip_special_tokens=False))
    return next((one for one in tried if one and _encode(digest, one.encode()) == _packed([token])), "")


def _encode(digest: bytes, piece: bytes) -> str:
    return _packed(_encoding(digest, piece.decode("utf-8", "replace")).ids)


def _located(digest: bytes, text: str) -> str:
    found = _encoding(digest, text)
    first, last = np.asarray(found.offsets, np.int64).reshape(-1, 2).T
    # Some tokenizers trim spaces off their spans: a token of spaces alone then ends where it begins.
    first = np.where(first == last, np.maximum(last - 1, 0), first)
    return _packed([found.ids, first, last])


def _packed(numbers: Any) -> str:
    """As text that takes less time than numbers in JSON."""
    return b64encode(np.asarray(numbers, np.uint32).tobytes()).decode()


def _encoding(digest: bytes, text: str) -> Any:
    try:
        return _opened[digest].encode(text, add_special_tokens=False)
    except Exception as cause:  # the library raises a bare Exception
        raise ValueError(f"the tokenizer refuses it ({cause})") from None


def decoded(body: bytes, texts: Sequence[Sequence[int]], characters_max: int) -> tuple[str, ...]:
    """Texts of tokens, by a `tokenizer.json` or, without one, of bytes; what is no UTF-8 is replaced.

    Args:
        body: The file that `load_tokenizer` read, perhaps a stranger's, or nothing.
        texts: The tokens of each; those outside its vocabulary are replaced or left out.
        characters_max: Of each text no more are returned.

    Raises:
        ValueError: the file is no tokenizer, or takes more than `bounded` allows.
    """
    if not body:  # 0xFF is no UTF-8
        found = [bytes(min(token, 0xFF) for token in one).decode("utf-8", "replace") for one in texts]
        return tuple(text[:characters_max] for text in found)
    return tuple(bounded(READING, _decoded, body, [list(map(int, one)) for one in texts], characters_max))


def _decoded(body: bytes, texts: list[list[int]], characters_max: int) -> list[str]:
    from tokenizers import Tokenizer as Library

    try:
        library = Library.from_buffer(body)
        return [str(library.decode(one, skip_special_tokens=False))[:characters_max] for one in texts]
    except Exception as cause:  # the library raises a bare Exception
        raise ValueError(f"is not a tokenizer.json ({cause})") from None


def special_name(body: bytes, token: int | None) -> str:
    """The text of a special token: one that is itself wherever a text has it. Empty if this is none.

    Args:
        body: The file that `load_tokenizer` read, perhaps a stranger's, or nothing.
        token: Its number.
    """
    if not body or token is None:
        return ""
    try:
        return str(bounded(READING, _special_name, body, token))
    except ValueError:
        return ""


def _special_name(body: bytes, token: int) -> str:
    from tokenizers import Tokenizer as Library

    try:
        found = Library.from_buffer(body).get_added_tokens_decoder().get(token)
    except Exception:  # the library raises a bare Exception where the file is no tokenizer
        return ""
    return "" if found is None else str(found.content)


def pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A document cut into pieces of at most `PIECE_BYTES`, the same whatever the chunks it arrives in.

    A piece ends with the last newline that fits; without one, before the last UTF-8 character
    that would be cut in two.
    """
    held = b""
    for chunk in chunks:
        held += chunk
        while len(held) > PIECE_BYTES:
            end = _cut(held)
            yield held[:end]
            held = held[end:]
    if held:
        yield held


def _cut(held: bytes) -> int:
    newline = held.rfind(b"\n", 0, PIECE_BYTES)
    if newline >= 0:
        return newline + 1
    end = PIECE_BYTES
    while end > PIECE_BYTES - 4 and held[end] & 0xC0 == 0x80:
        end -= 1
    return end


def byte_tokenizer_json() -> bytes:
    """The byte tokenizer as a `tokenizer.json`, for other programs: token n is byte n."""
    # Byte-level BPE without merges. Its alphabet writes each byte as a visible character: bytes
    # that are printable stand for themselves, the others for code points from 256 on (GPT-2).
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(visible)]
    letter = {byte: chr(byte) for byte in visible} | {
        byte: chr(256 + rank) for rank, byte in enumerate(others)
    }
    body: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": False,
            "use_regex": False,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter[byte]: byte for byte in range(256)},
            "merges": [],
        },
    }
    return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()
