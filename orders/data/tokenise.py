"""Order data: tokenises the sources that an order names.

Room: orders (edge: reads and writes files). Equal files give equal tokens: sources are read in the order of
relative paths, and nothing outside a named folder is followed. Memory does not grow with the corpus.
"""

from __future__ import annotations

import os
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.orders.data.conversations import ConversationWriter
from assay.orders.data.preferences import PreferenceWriter
from assay.orders.data.tasks import TaskWriter
from assay.orders.data.templated import TemplatedWriter
from assay.orders.load import load_order
from assay.orders.model import base_folder
from assay.orders.order import Order
from assay.orders.sections import DataSection
from assay.protocol.errors import ConfigError
from assay.protocol.types import NO_DIGEST, Digest
from assay.training.data.chat_template import ChatTemplate
from assay.training.data.choices import CHOICES
from assay.training.data.documents import SUFFIXES, Document, documents_in, format_of, is_text
from assay.training.data.shards import (
    CHAT,
    CONVERSATIONS,
    MANIFEST,
    PREFERENCES,
    TASKS,
    TEXT,
    TOKENIZER,
    DataManifest,
    ShardWriter,
    Source,
    checked_shards,
    token_bytes_for,
)
from assay.training.data.tokenizer import Tokenizer, pieces
from assay.training.frozen import Frozen
from assay.training.layout import layout_of
from assay.training.model.hugging_face import read_theta
from assay.training.model.initial import BASE, digest_of
from assay.training.rounded import encode

OnBytes = Callable[[int, int], None]  # how many bytes are read, and how many there are
_KINDS = {"chat": CONVERSATIONS, "preferences": PREFERENCES, "tasks": TASKS}
_NOTHING = {
    "chat": "no conversation that is trained on, expected JSON Lines with messages",
    "preferences": "no preference pair, expected JSON Lines of them",
    "tasks": "no task, expected JSON Lines of prompts with answers",
}
_NOT_SOURCES = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def nobody(_done: int, _of: int) -> None:
    """Whom progress is told where nobody waits for it."""


def collect_data(
    order: Order,
    folder: Path | None,
    on_bytes: OnBytes = nobody,
    on_left_out: Callable[[Path], object] = lambda _: None,
) -> DataManifest:
    """Tokenise all of an order's data, source after source.

    Args:
        order: What is bought.
        folder: Receives shards, manifest, tokenizer and the choices that the model is scored on; None writes
            nothing, to count and hash only.
        on_bytes: Called with how many bytes were read, and how many there are to read, by the files' sizes.
        on_left_out: Called with each file of a folder that is no text, because it holds a zero byte.

    Raises:
        ConfigError: a source is missing, unreadable, empty or not of the declared kind.
    """
    tokenizer, template = order.tokenizer, order.chat
    width = token_bytes_for(tokenizer.vocabulary * (1 if template is None else 2))  # a bit for the mask
    writer = ShardWriter(folder, width, is_masked=template is not None)
    chat = None if template is None else _chat_writer(order, template, writer)
    places = [_place(source, order.folder) for source in order.data]
    sizes = [sum(map(_size, paths)) for _, paths in places]
    of = sum(min(source.bytes_max, size) for source, size in zip(order.data, sizes, strict=True))
    read = 0

    def tell(taken: int) -> None:
        nonlocal read
        read += taken
        on_bytes(min(read, of), of)

    sources = tuple(
        _collect(source, *place, tokenizer, writer, chat, tell, on_left_out)
        for source, place in zip(order.data, places, strict=True)
    )
    writer.close()
    manifest = DataManifest(
        tokenizer=tokenizer.digest,
        separator=tokenizer.separator,
        vocabulary=tokenizer.vocabulary,
        token_bytes=width,
        tokens=writer.tokens,
        sources=sources,
        shards=tuple(writer.shards),
        chat=None if chat is None else chat.facts(),
    )
    if folder is not None:
        if template is not None:
            (folder / CHAT).write_bytes(template.to_json())
        if tokenizer.body:
            (folder / TOKENIZER).write_bytes(tokenizer.body)
        if order.choices is not None:
            (folder / CHOICES).write_bytes(order.choices.to_json())
        (folder / MANIFEST).write_bytes(manifest.to_json())
    return manifest


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise ConfigError(f"data {path}: cannot be read ({error.strerror})") from None


def _chat_writer(order: Order, template: ChatTemplate, writer: ShardWriter) -> TemplatedWriter:
    """What writes the order's conversations, pairs or tasks, each sequence as long as the model's context."""
    common = (template, order.tokenizer, writer, order.sizes.context + 1)
    if order.is_dpo:
        whole = order.sizes.whole
        theta_P = read_theta(base_folder(order.model, order.folder), whole)
        return PreferenceWriter(*common, reference=whole, theta_P=theta_P)
    return TaskWriter(*common, grpo=order.grpo) if order.is_grpo else ConversationWriter(*common)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeData:
    """An order's data, as written."""

    manifest: Digest
    root: Digest
    tokens: int
    shards: int
    base: Digest  # of imported parameters; zero if there are none
    chat: str  # what became of conversations, in words; empty without any

    @property
    def lines(self) -> list[str]:
        """One line for each fact."""
        return [
            f"manifest  {self.manifest.hex()}",
            f"root      {self.root.hex()}",
            f"tokens    {self.tokens:,} in {self.shards:,} shards",
            *([f"chat      {self.chat}"] if self.chat else []),
            *([f"base      {self.base.hex()}"] if self.base != NO_DIGEST else []),
        ]


def make_data(file: Path, folder: Path, on_bytes: OnBytes = nobody) -> MadeData:
    """Write an order's data as `localnet` does, for participants on other machines; see `collect_data`.

    Raises:
        ConfigError: the order or its data are not sound, or the folder is not empty.
    """
    order = load_order(file)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: is not an empty folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be created ({error.strerror})") from None
    manifest = collect_data(order, folder, on_bytes)
    base = write_base(order, folder)
    return MadeData(
        manifest=manifest.digest(),
        root=manifest.root,
        tokens=manifest.tokens,
        shards=len(manifest.shards),
        base=base,
        chat=manifest.chat_words,
    )


def collect_tokens(order: Order) -> tuple[DataManifest, NDArray[Any]]:
    """An order's data in memory, for small experiments.

    Raises:
        ConfigError: as `collect_data`.
    """
    with tempfile.TemporaryDirectory() as folder:
        manifest = collect_data(order, Path(folder))
        return manifest, np.concatenate(list(checked_shards(Path(folder), manifest)))


def source_name(source: DataSection) -> str:
    """A source's public name: the last part of a local path, since its location is private."""
    return source.source if source.is_stdlib else Path(source.source).name or "."


def _place(source: DataSection, folder: Path) -> tuple[Path, list[Path]]:
    """Where a source is, and its files."""
    if source.is_stdlib:
        root = Path(sysconfig.get_path("stdlib"))
        return root, list(_files_below(root, lambda name: name in _NOT_SOURCES, suffix=".py"))
    root = folder / Path(source.source).expanduser()
    return root, list(_files_of(root))


def _collect(
    source: DataSection,
    root: Path,
    paths: Sequence[Path],
    tokenizer: Tokenizer,
    writer: ShardWriter,
    chat: TemplatedWriter | None,
    tell: Callable[[int], None],
    on_left_out: Callable[[Path], object],
) -> Source:
    if source.is_templated:
        assert chat is not None, "an order with conversations has a chat template"
        return _collect_conversations(source, root, paths, writer, chat, tell)
    before, left = writer.tokens, source.bytes_max
    files = documents = 0
    for path in paths:
        kind = format_of(path, source.format)
        if kind == "text" and path != root and not is_text(path, left):
            on_left_out(path)
            continue
        taken = 0
        for document in documents_in(path, kind, source.field):
            try:
                size = _add(document, left - taken, tokenizer, writer)
            except ValueError as cause:
                raise ConfigError(f"data {path}: {cause}") from None
            documents += size > 0
            taken += size
            tell(size)
            if taken >= left:
                break
        files += taken > 0
        left -= taken
        if not left:
            break
    if left == source.bytes_max:
        raise ConfigError(
            f"data {root}: holds no text, expected a text file or a folder with some (without zero bytes)"
        )
    return Source(
        source=source_name(source),
        licence=source.licence_text,
        files=files,
        documents=documents,
        bytes=source.bytes_max - left,
        tokens=writer.tokens - before,
        kind=TEXT,
    )


def _collect_conversations(
    source: DataSection,
    root: Path,
    paths: Sequence[Path],
    writer: ShardWriter,
    chat: TemplatedWriter,
    tell: Callable[[int], None],
) -> Source:
    chat.begin()
    before, left = writer.tokens, source.bytes_max
    files = documents = 0
    for path in paths:
        if path != root and SUFFIXES.get(path.suffix.lower()) != "jsonl":
            continue
        count, taken, is_all = chat.add(path, left)
        files, documents, left = files + (count > 0), documents + count, left - taken
        tell(taken)
        if not is_all:
            break
    chat.end()
    if writer.tokens == before:
        raise ConfigError(f"data {root}: holds {_NOTHING[source.format]}")
    return Source(
        source=source_name(source),
        licence=source.licence_text,
        files=files,
        documents=documents,
        bytes=source.bytes_max - left,
        tokens=writer.tokens - before,
        kind=_KINDS[source.format],
    )


def _add(document: Document, bytes_max: int, tokenizer: Tokenizer, writer: ShardWriter) -> int:
    """Append a document, up to the limit, and its separator; returns the bytes read."""
    size = 0

    def bounded() -> Iterator[bytes]:
        nonlocal size
        for chunk in document:
            part = chunk[: bytes_max - size]
            size += len(part)
            yield part
            if size == bytes_max:
                return

    for piece in pieces(bounded()):
        writer.add(tokenizer.encode(piece))
    if size and tokenizer.separator is not None:
        writer.add(np.array([tokenizer.separator], np.uint32))
    return size


def _files_of(root: Path) -> Iterator[Path]:
    if not os.path.lexists(root):
        raise ConfigError(f'data {root}: does not exist; expected "stdlib", a file or a folder')
    if root.is_dir():
        return _files_below(root, lambda name: name.startswith("."))
    if not root.is_file():
        raise ConfigError(f"data {root}: is neither a file nor a folder")
    return iter((root,))


def _files_below(root: Path, is_left_out: Callable[[str], bool], suffix: str = "") -> Iterator[Path]:
    """Regular files by relative path; linked folders and links that lead outside are skipped.

    Raises:
        ConfigError: a folder cannot be listed.
    """

    def refuse(cause: OSError) -> None:
        raise ConfigError(f"data {cause.filename}: cannot be listed ({cause.strerror})")

    home = root.resolve()
    found = []
    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not is_left_out(name)]
        found += [Path(folder, name) for name in names if name.endswith(suffix) and not is_left_out(name)]
    for path in sorted(found, key=lambda path: path.relative_to(root).as_posix()):
        if path.is_file() and path.resolve().is_relative_to(home):
            yield path


def write_base(order: Order, folder: Path) -> Digest:
    """Import the starting parameters into `folder`; returns their state digest, zero if the order names none.

    Raises:
        ConfigError: the base's weights cannot be read, do not fit its config, or have no such few bits.
    """
    if order.model.base is None:
        return NO_DIGEST
    whole, bits = order.sizes.whole, order.sizes.adapter.base_bits
    path, layout = base_folder(order.model, order.folder), layout_of(whole)
    stored = read_theta(path, whole)
    try:
        base = Frozen(layout, encode(layout, stored, bits) if bits else stored, bits)
    except ValueError as cause:
        raise ConfigError(f"base {path}: {cause}") from None
    np.save(folder / BASE, base.stored, allow_pickle=False)
    return digest_of(base)
