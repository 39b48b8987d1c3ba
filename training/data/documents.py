"""Documents: reads text out of plain files, JSON Lines and Parquet in bounded memory.

Room: training (edge: reads files). A document is an iterator of chunks of UTF-8 bytes, so a file may be
larger than memory. An error names the file, and the line or row in it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import ConfigError

Format = Literal["auto", "text", "jsonl", "parquet", "chat", "preferences", "tasks"]
CHUNK_BYTES = 1 << 20
LINE_BYTES_MAX = 1 << 26  # one JSON line or Parquet value is held in memory, twice
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}

Document = Iterator[bytes]
T = TypeVar("T")


def format_of(path: Path, given: Format) -> str:
    """The format of a file: as given, else by its suffix, else text."""
    return SUFFIXES.get(path.suffix.lower(), "text") if given == "auto" else given


def documents_in(path: Path, kind: str, field: str) -> Iterator[Document]:
    """The documents of one file, in its order. Each must be read before the next is requested.

    Args:
        path: The file.
        kind: "text" (the file is one document), "jsonl" (every line is one) or "parquet" (every row).
        field: The key or column that holds the text.

    Raises:
        ConfigError: the file cannot be read or is not of this kind.
    """
    match kind:
        case "jsonl":
            return _json_lines(path, field)
        case "parquet":
            return _parquet_rows(path, field)
        case _:
            return iter((_chunks(path),))


def is_text(path: Path, bytes_max: int) -> bool:
    """Whether the first `bytes_max` bytes hold no zero byte.

    Raises:
        ConfigError: the file cannot be read.
    """
    left = bytes_max
    for chunk in _chunks(path):
        if b"\0" in chunk[:left]:
            return False
        left -= len(chunk)
        if left <= 0:
            break
    return True


def _chunks(path: Path) -> Document:
    try:
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as cause:
        raise ConfigError(f"data {path}: cannot be read ({cause.strerror or cause})") from None


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """The value of every line of a JSON Lines file that is not empty, with where it stands, for errors.

    Raises:
        ConfigError: the file cannot be read, or a line is too long or no JSON.
    """
    try:
        with open(path, "rb") as file:
            number = 0
            while line := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                where = f"data {path}, line {number}"
                if len(line) > LINE_BYTES_MAX:
                    raise ConfigError(f"{where}: longer than {LINE_BYTES_MAX} bytes")
                if line.strip():
                    yield where, _parsed(line, where)
    except OSError as cause:
        raise ConfigError(f"data {path}: cannot be read ({cause.strerror or cause})") from None


def parsed_lines(path: Path, parse: Callable[[Any], T]) -> Iterator[tuple[str, T]]:
    """What each line of a JSON Lines file describes, with where it stands, for errors.

    Raises:
        ConfigError: the file cannot be read, or a line of it is refused by `parse`; with its number.
    """
    for where, value in json_lines(path):
        try:
            yield where, parse(value)
        except ValueError as cause:
            raise ConfigError(f"{where}: {cause}") from None


def _json_lines(path: Path, field: str) -> Iterator[Document]:
    for where, value in json_lines(path):
        yield iter((_json_text(value, field, where),))


def _parsed(line: bytes, where: str) -> Any:
    try:
        return parse_json(line)
    except ValueError as cause:
        raise ConfigError(f"{where}: is not JSON ({cause})") from None


def _json_text(value: Any, field: str, where: str) -> bytes:
    if not isinstance(value, dict) or field not in value:
        known = ", ".join(sorted(map(str, value))[:8]) if isinstance(value, dict) else type(value).__name__
        hint = '; conversations are read with format = "chat"' if "messages" in known else ""
        raise ConfigError(
            f'{where}: expected an object with the key "{field}", found {known or "none"}{hint}'
        )
    return _utf8(value[field], f'{where}, key "{field}"')


def _parquet_rows(path: Path, field: str) -> Iterator[Document]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ConfigError(
            f"data {path}: Parquet needs pyarrow, which is not installed (pip install 'assay[parquet]')"
        ) from None
    arrow: Any = importlib.import_module("pyarrow")
    try:
        schema = parquet.read_schema(path)
        if schema.names.count(field) != 1:
            raise ConfigError(
                f'data {path}: expected one column "{field}", found {", ".join(schema.names[:8])}'
            )
        kind, types = schema.field(field).type, arrow.types
        # Not a dictionary: a reader holds all that its row group has, and copies it for each batch.
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
            raise ConfigError(f'data {path}, column "{field}": expected text, found {kind}')
        with parquet.ParquetFile(path, pre_buffer=False, buffer_size=CHUNK_BYTES) as file:
            # Row by row: a value that the file holds once may be that of every row, and is copied for each.
            batches = file.iter_batches(1, columns=[field], use_threads=False)
            for number, row in enumerate((row for batch in batches for row in batch.column(field)), 1):
                where = f'data {path}, row {number}, column "{field}"'
                if row.is_valid and row.as_buffer().size > LINE_BYTES_MAX:
                    raise ConfigError(f"{where}: longer than {LINE_BYTES_MAX} bytes")
                try:
                    text = row.as_py()
                except UnicodeDecodeError:
                    raise ConfigError(f"{where}: is not UTF-8") from None
                yield iter((_utf8(text, where),))
    except OSError as cause:
        raise ConfigError(f"data {path}: cannot be read ({cause})") from None
    except arrow.ArrowException as cause:
        raise ConfigError(f"data {path}: is not Parquet that can be read ({cause})") from None


def _utf8(value: object, where: str) -> bytes:
    if not isinstance(value, str):
        raise ConfigError(f"{where}: expected text, found {type(value).__name__}")
    return value.encode("utf-8", "replace")  # a lone surrogate has no UTF-8
