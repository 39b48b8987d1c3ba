"""Documents: each is read once, in order, and a bad one is named by file and line."""

from __future__ import annotations

import importlib
import json
import tracemalloc

import pytest

from assay.protocol.errors import ConfigError
from assay.training.data import documents
from assay.training.data.documents import documents_in, format_of, is_text


def texts_in(path, kind="auto", field="text") -> list[bytes]:
    return [b"".join(document) for document in documents_in(path, format_of(path, kind), field)]


def a_file(folder, name, body):
    path = folder / name
    path.write_bytes(body if isinstance(body, bytes) else body.encode())
    return path


def test_the_format_follows_the_suffix_unless_it_is_told(tmp_path):
    line = '{"text": "one"}\n'

    assert texts_in(a_file(tmp_path, "a.jsonl", line)) == [b"one"]
    assert texts_in(a_file(tmp_path, "a.NDJSON", line)) == [b"one"]
    assert texts_in(a_file(tmp_path, "a.txt", line)) == [line.encode()]
    assert texts_in(a_file(tmp_path, "a.log", line), "jsonl") == [b"one"]
    assert texts_in(a_file(tmp_path, "b.jsonl", line), "text") == [line.encode()]


def test_every_line_of_json_is_a_document_and_empty_lines_are_none(tmp_path):
    lines = [json.dumps({"body": text, "n": 1}) for text in ("one", "two\nlines", "źdźbło", "")]
    path = a_file(tmp_path, "a.jsonl", "\n\n".join(lines))  # no newline at the end

    assert texts_in(path, field="body") == [b"one", b"two\nlines", "źdźbło".encode(), b""]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "is not JSON"),
        ('"text"', 'expected an object with the key "text", found str'),
        ('{"body": "x", "id": 1}', 'expected an object with the key "text", found body, id'),
        ("{}", 'expected an object with the key "text", found none'),
        ('{"text": 5}', 'key "text": expected text, found int'),
        ('{"text": null}', 'key "text": expected text, found NoneType'),
        ("[" * 100_000, "is not JSON .nested more than 200 deep"),
        ("[" * 200 + "]" * 200, "expected an object"),
        ('{"text": ' + "[" * 200 + "]" * 200 + "}", "is not JSON .nested more than 200 deep"),
        (b"\xff{}", "is not JSON"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line, words):
    body = line if isinstance(line, bytes) else line.encode()
    path = a_file(tmp_path, "a.jsonl", b'{"text": "fine"}\n\n' + body + b'\n{"text": "fine"}\n')

    with pytest.raises(ConfigError, match=rf"a.jsonl, line 3.*{words}"):
        texts_in(path)


def test_brackets_in_a_text_are_text(tmp_path):
    text = '[{"' * 500 + "\\" + "]" * 300 + '{[\\"'

    assert texts_in(a_file(tmp_path, "a.jsonl", json.dumps({"text": text}))) == [text.encode()]


def test_a_line_longer_than_memory_is_named_and_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LINE_BYTES_MAX", 100)
    path = a_file(tmp_path, "a.jsonl", '{"text": "short"}\n{"text": "' + "x" * 200 + '"}\n')

    with pytest.raises(ConfigError, match=r"a.jsonl, line 2: longer than 100 bytes"):
        texts_in(path)


def test_a_lone_surrogate_in_json_does_not_stop_a_corpus(tmp_path):
    assert texts_in(a_file(tmp_path, "a.jsonl", '{"text": "a\\ud800b"}\n')) == [b"a?b"]


def test_text_is_what_holds_no_zero_byte_where_it_is_read(tmp_path):
    path = a_file(tmp_path, "a", b"a" * 50 + b"\0")

    assert is_text(path, 50)
    assert not is_text(path, 51)


def test_rows_of_parquet_are_documents_in_order(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow (pip install 'assay[parquet]')")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [f"row {n}" for n in range(1000)]
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": rows, "n": list(range(1000))}), path, row_group_size=300)

    assert texts_in(path) == [row.encode() for row in rows]
    with pytest.raises(ConfigError, match='expected one column "body", found text, n'):
        texts_in(path, field="body")
    parquet.write_table(arrow.Table.from_arrays([arrow.array(["a"])] * 2, ["text", "text"]), path)
    with pytest.raises(ConfigError, match=r'a\.parquet: expected one column "text", found text, text'):
        texts_in(path)
    parquet.write_table(arrow.table({"text": ["a", None]}), path)
    with pytest.raises(ConfigError, match='row 2, column "text": expected text, found NoneType'):
        texts_in(path)
    path.write_bytes(b"PAR1 no more than the name")
    with pytest.raises(ConfigError, match="is not Parquet that can be read"):
        texts_in(path)


def test_one_value_of_a_parquet_file_is_in_memory_at_once(tmp_path):
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow (pip install 'assay[parquet]')")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, value = tmp_path / "a.parquet", "the quick brown fox. " * 50_000
    once = arrow.array([value] * 128)
    distinct = arrow.array([f"{n} {value}" for n in range(128)])
    for column in (once, once.cast(arrow.large_string()), distinct, once.cast(arrow.string_view())):
        pages = {"use_dictionary": column is not distinct, "dictionary_pagesize_limit": 1 << 24}
        parquet.write_table(arrow.table({"text": column}), path, write_batch_size=1, **pages)
        before, most = arrow.total_allocated_bytes(), 0
        tracemalloc.start()

        for document, expected in zip(documents_in(path, "parquet", "text"), column, strict=True):
            most = max(most, arrow.total_allocated_bytes() - before)
            assert b"".join(document) == expected.as_py().encode()

        assert most < 8 * len(value)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(value)
        tracemalloc.stop()


def test_a_value_of_parquet_that_is_no_text_or_too_long_is_named_and_not_converted(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow (pip install 'assay[parquet]')")
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(documents, "LINE_BYTES_MAX", 100)
    path = tmp_path / "a.parquet"
    invalid = arrow.array([b"fine", b"\xff"]).buffers()[1:]
    for column, words in (
        (["x" * 100, "x" * 101], "row 2.*: longer than 100 bytes"),
        (arrow.array(["x"] * 2).dictionary_encode(), 'column "text": expected text, found dictionary'),
        (arrow.StringArray.from_buffers(2, *invalid), 'a.parquet, row 2, column "text": is not UTF-8'),
        ([["a"], ["b"]], 'column "text": expected text, found list'),
        ([1, 2], 'column "text": expected text, found int64'),
        (["fine", None], "row 2.*: expected text, found NoneType"),
    ):
        parquet.write_table(arrow.table({"text": column}), path)
        with pytest.raises(ConfigError, match=words):
            texts_in(path)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)

    with pytest.raises(ConfigError, match=r"pip install 'assay\[parquet\]'"):
        texts_in(a_file(tmp_path, "a.parquet", b""))
