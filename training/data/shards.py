"""Shards: tokens on disk, in files named by their hash, under one manifest and one root.

Room: training (edge: files of one folder). The buyer tokenises the text once; every other participant
receives this folder and checks it. Writing and checking hold one shard in memory, whatever the size of the
whole.

    DATA/manifest.json   sources with licence, files, documents, bytes, tokens; shards; root
    DATA/shards/HASH.bin tokens, little-endian, 1 MiB each but the last
    DATA/tokenizer.json  if tokens are not bytes
    DATA/chat_template.json  if some sources are conversations; for who uses the model, not to train it

Rules: docs/protocol.md, "Data".
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.encoding import merkle
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.json_text import parse_json, plain, read_plain
from assay.protocol.errors import ConfigError
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.data.mask import from_stored, to_stored, visible

FORMAT, MASKED_FORMAT = "assay/data/2", "assay/data/3"
MANIFEST, SHARDS, TOKENIZER, CHAT = "manifest.json", "shards", "tokenizer.json", "chat_template.json"
TEXT, CONVERSATIONS, PREFERENCES, TASKS = "text", "conversations", "preferences", "tasks"
SHARD_BYTES = 1 << 20
MANIFEST_BYTES_MAX = 1 << 28  # four million shards: 4 TiB of tokens
OPEN_MAX = 256  # shards mapped at once; an open one costs a file handle, not memory
_DOMAIN = hashlib.sha256(b"assay/data/2").digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of text. bytes: of text, before it was tokenised. kind: of its content."""

    source: str
    licence: str
    files: int
    documents: int
    bytes: int
    tokens: int
    kind: str = TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatData:
    """How conversations became tokens, of all sources of them together; a preference pair has two.

    template: SHA-256 of `chat_template.json`. sequence: tokens of a packed sequence. conversations: in these.
    cut: those longer than a sequence, which lost their end. dropped: others of which nothing to train on was
    left. targets: tokens of sequences that are predicted. padding: masked separators.
    """

    template: Digest
    sequence: int
    conversations: int
    cut: int
    dropped: int
    targets: int
    padding: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataManifest:
    """The manifest of a data set: every shard, and the source it is from.

    tokenizer: SHA-256 of its file; zero for bytes. separator: the token after each document, if any.
    chat: if some sources are conversations. Then the top bit of a stored token says that it is masked.
    """

    tokenizer: Digest
    separator: int | None
    vocabulary: int
    token_bytes: int
    tokens: int
    sources: tuple[Source, ...]
    shards: tuple[Digest, ...]
    chat: ChatData | None = None

    @property
    def chat_words(self) -> str:
        """What became of conversations, in one line; empty without any."""
        if (chat := self.chat) is None:
            return ""
        if self.is_preferences:
            return (
                f"{chat.conversations // 2:,} preference pairs in sequences of {chat.sequence:,} tokens; "
                f"{chat.targets:,} targets are trained on, "
                f"{chat.padding / max(self.tokens, 1):.0%} of tokens are padding"
            )
        if self.is_tasks:
            return (
                f"{chat.conversations:,} tasks in sequences of {chat.sequence:,} tokens, "
                f"answers of {chat.targets / max(chat.conversations, 1):.1f} tokens in the mean"
            )
        tokens = sum(source.tokens for source in self.sources if source.kind == CONVERSATIONS)
        sequences, wide = tokens // chat.sequence, f"{chat.sequence:,} tokens"
        share = chat.targets / max(sequences * (chat.sequence - 1), 1)
        return (
            f"{chat.conversations:,} conversations in {sequences:,} sequences of {wide}, {chat.cut:,} cut, "
            f"{chat.dropped:,} left out; {share:.0%} of targets are trained on, "
            f"{chat.padding / max(tokens, 1):.0%} of tokens are padding"
        )

    @property
    def is_preferences(self) -> bool:
        """Whether the data are preference pairs, which DPO alone trains on: sources of them are not mixed."""
        return any(source.kind == PREFERENCES for source in self.sources)

    @property
    def is_tasks(self) -> bool:
        """Whether the data are tasks with answers, which GRPO alone trains on."""
        return any(source.kind == TASKS for source in self.sources)

    @property
    def root(self) -> Digest:
        """Merkle root over the shards' names in order."""
        return shard_root(self.shards)

    def to_json(self) -> bytes:
        """The canonical bytes whose SHA-256 is the manifest's digest."""
        sources = [asdict(source) for source in self.sources]
        if self.chat is None:
            for source in sources:
                del source["kind"]  # all are text
        body = {
            "format": FORMAT if self.chat is None else MASKED_FORMAT,
            "tokenizer": self.tokenizer.hex(),
            "separator": self.separator,
            "vocabulary": self.vocabulary,
            "token_bytes": self.token_bytes,
            "tokens": self.tokens,
            **({} if self.chat is None else {"masked": True, "chat": plain(self.chat)}),
            "sources": sources,
            "root": self.root.hex(),
            "shards": [shard.hex() for shard in self.shards],
        }
        return (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()

    def digest(self) -> Digest:
        """SHA-256 of `to_json()`."""
        return Digest(hashlib.sha256(self.to_json()).digest())


def _chat_of(body: dict[str, Any]) -> ChatData | None:
    """What a manifest says of conversations.

    Raises:
        ValueError: it is malformed, or does not fit the manifest's format.
    """
    is_masked = body.get("format") == MASKED_FORMAT
    if is_masked != ("chat" in body) or body.get("masked", False) is not is_masked:
        raise ValueError(f'"masked" and "chat" belong to {MASKED_FORMAT}, found {body.get("format")}')
    return read_plain(ChatData, body["chat"], "chat") if is_masked else None


def shard_root(shards: Sequence[Digest]) -> Digest:
    """Merkle root over shards' names."""
    return merkle.root([merkle.leaf_hash(_DOMAIN, i, shard) for i, shard in enumerate(shards)])


def token_type(token_bytes: int) -> np.dtype[Any]:
    """Unsigned little-endian integers of 1, 2 or 4 bytes."""
    return np.dtype({1: "<u1", 2: "<u2", 4: "<u4"}[token_bytes])


def token_bytes_for(vocabulary: int) -> int:
    """The smallest width that holds every token."""
    return 1 if vocabulary <= 1 << 8 else 2 if vocabulary <= 1 << 16 else 4


class ShardWriter:
    """Cuts a stream of tokens into shards. With no folder it only counts and hashes."""

    def __init__(self, folder: Path | None, token_bytes: int, *, is_masked: bool = False) -> None:
        """Start an empty data set; `folder` must not hold another one."""
        self.shards: list[Digest] = []
        self.tokens = 0
        self._folder, self._is_masked = folder, is_masked
        kind = token_type(token_bytes)
        self._shard = np.empty(SHARD_BYTES // kind.itemsize, kind)
        self._filled = 0
        if folder is not None:
            (folder / SHARDS).mkdir(parents=True, exist_ok=True)

    def add(self, tokens: NDArray[Any]) -> None:
        """Append tokens; they must fit the width, and none may be masked unless the data set is."""
        self.tokens += len(tokens)
        if self._is_masked:
            tokens = to_stored(tokens.astype(np.int64), self._shard.dtype)
        while len(tokens):
            part = tokens[: len(self._shard) - self._filled]
            self._shard[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            tokens = tokens[len(part) :]
            if self._filled == len(self._shard):
                self._flush()

    def close(self) -> None:
        """Write what is left as the last shard."""
        if self._filled:
            self._flush()

    def _flush(self) -> None:
        body = self._shard[: self._filled].tobytes()
        self._filled = 0
        name = blob_digest(body)
        self.shards.append(name)
        if self._folder is not None:
            path = shard_path(self._folder, name)
            partial = path.with_suffix(".partial")
            partial.write_bytes(body)
            os.replace(partial, path)


def shard_path(folder: Path, name: Digest) -> Path:
    """Path of a shard's file."""
    return folder / SHARDS / f"{name.hex()}.bin"


def read_manifest(folder: Path) -> DataManifest:
    """The manifest in a folder.

    Raises:
        ConfigError: it is missing or malformed.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            raise ConfigError(f"data {path}: more than {MANIFEST_BYTES_MAX} bytes")
        body = parse_json(path.read_bytes())
        manifest = DataManifest(
            tokenizer=Digest(bytes.fromhex(body["tokenizer"])),
            separator=None if body["separator"] is None else int(body["separator"]),
            vocabulary=int(body["vocabulary"]),
            token_bytes=int(body["token_bytes"]),
            tokens=int(body["tokens"]),
            sources=tuple(Source(**source) for source in body["sources"]),
            shards=tuple(Digest(bytes.fromhex(shard)) for shard in body["shards"]),
            chat=_chat_of(body),
        )
    except OSError as cause:
        raise ConfigError(f"data {path}: cannot be read ({cause.strerror or cause})") from None
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise ConfigError(f"data {path}: is not a manifest of a data set ({cause})") from None
    if manifest.token_bytes not in (1, 2, 4):
        raise ConfigError(f"data {path}: tokens of {manifest.token_bytes} bytes, expected 1, 2 or 4")
    return manifest


def checked_shards(folder: Path, manifest: DataManifest) -> Iterator[NDArray[Any]]:
    """Every shard in order, read and compared with its name, one at a time; a masked token t is ~t.

    Raises:
        ConfigError: which shard is missing, modified, of another length or holds a token out of range.
    """
    kind = token_type(manifest.token_bytes)
    per_shard = SHARD_BYTES // kind.itemsize
    if len(manifest.shards) != -(-manifest.tokens // per_shard):
        raise ConfigError(
            f"data {folder}: {len(manifest.shards)} shards cannot hold {manifest.tokens} tokens"
        )
    for index, name in enumerate(manifest.shards):
        path = shard_path(folder, name)
        try:
            with open(path, "rb") as file:
                body = file.read(SHARD_BYTES + 1)
        except OSError as cause:
            raise ConfigError(f"data {path}: cannot be read ({cause.strerror or cause})") from None
        count = min(per_shard, manifest.tokens - index * per_shard)
        if len(body) != count * kind.itemsize:
            raise ConfigError(f"data {path}: {len(body)} bytes, expected {count * kind.itemsize}")
        if blob_digest(body) != name:
            raise ConfigError(
                f"data {path}: shard {index} was altered: its bytes do not have the hash in its name"
            )
        tokens = np.frombuffer(body, kind)
        if manifest.chat is not None:
            tokens = from_stored(tokens)
        largest = int(tokens.max() if manifest.chat is None else visible(tokens).max())
        if largest >= manifest.vocabulary:
            raise ConfigError(f"data {path}: token {largest}, expected under {manifest.vocabulary}")
        yield tokens


class ShardedTokens:
    """A token stream over shards, mapped read-only; a slice copies only its own tokens.

    A masked token t is ~t.
    """

    def __init__(self, folder: Path, manifest: DataManifest) -> None:
        """Opens no file. The shards must have been checked."""
        self._folder, self._manifest = folder, manifest
        self._type = token_type(manifest.token_bytes)
        self._open: OrderedDict[int, NDArray[Any]] = OrderedDict()

    def __len__(self) -> int:
        return self._manifest.tokens

    def __getitem__(self, span: slice) -> NDArray[Any]:
        start, stop, step = span.indices(len(self))
        assert step == 1, "a stream can only be read forwards"
        per_shard = SHARD_BYTES // self._type.itemsize
        parts = []
        while start < stop:
            index, at = divmod(start, per_shard)
            part = self._shard(index)[at : at + stop - start]
            parts.append(part)
            start += len(part)
        stored = np.concatenate(parts) if parts else np.empty(0, self._type)
        return stored if self._manifest.chat is None else from_stored(stored)

    def _shard(self, index: int) -> NDArray[Any]:
        if index not in self._open:
            path = shard_path(self._folder, self._manifest.shards[index])
            self._open[index] = np.memmap(path, self._type, "r")
            if len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)
        self._open.move_to_end(index)
        return self._open[index]


def write_tokens(
    folder: Path | None,
    tokens: Iterable[NDArray[Any]],
    *,
    vocabulary: int = 256,
    source: str = "made up",
    licence: str = "none",
    tokenizer: Digest = NO_DIGEST,
) -> DataManifest:
    """Write tokens that exist already as a data set: one source, one document, no separator.

    Without a folder nothing is written.

    Raises:
        OSError: disk refused.
    """
    writer = ShardWriter(folder, token_bytes_for(vocabulary))
    for part in tokens:
        writer.add(part)
    writer.close()
    only = Source(
        source=source, licence=licence, files=1, documents=1, bytes=writer.tokens, tokens=writer.tokens
    )
    manifest = DataManifest(
        tokenizer=tokenizer,
        separator=None,
        vocabulary=vocabulary,
        token_bytes=token_bytes_for(vocabulary),
        tokens=writer.tokens,
        sources=(only,),
        shards=tuple(writer.shards),
    )
    if folder is not None:
        (folder / MANIFEST).write_bytes(manifest.to_json())
    return manifest
