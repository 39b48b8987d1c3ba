"""Status: a fact is told once, whole, however often the teller dies."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from assay.observer.ledger_service.status import LEDGER_SERVICE, EpochReport, StatusFile, read_report


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_fact_is_told_once_even_by_the_next_process(tmp_path: Path):
    path = tmp_path / "run" / "status.jsonl"
    first = StatusFile(path)
    first.write("up")
    first.write_once("round", "0", loss=1.5)
    first.write_once("round", "0", loss=1.5)

    second = StatusFile(path)
    second.write("up")
    second.write_once("round", "0", loss=1.5)
    second.write_once("round", "1", loss=None)

    assert [line["kind"] for line in lines(path)] == ["up", "round", "up", "round"]
    assert second.has("round", "0") and not second.has("round", "2")


def test_facts_of_different_kinds_do_not_hide_each_other(tmp_path: Path):
    status = StatusFile(tmp_path / "status.jsonl")
    status.write_once("epoch", "0/final")
    status.write_once("claimed", "0/final")
    status.write_once("settled", "")

    assert len(lines(tmp_path / "status.jsonl")) == 3


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_half_a_line_is_cut_off_and_told_again(tmp_path: Path, cut: int):
    path = tmp_path / "status.jsonl"
    status = StatusFile(path)
    status.write_once("round", "0", loss=1.5)
    status.write_once("round", "1", loss=1.5)
    path.write_bytes(path.read_bytes()[:-cut])

    again = StatusFile(path)
    assert not again.has("round", "1")
    again.write_once("round", "1", loss=1.5)

    assert [line["id"] for line in lines(path)] == ["round/0", "round/1"]


def test_a_reader_gets_the_reports_it_asks_for_and_no_other_line(tmp_path: Path):
    path, report = tmp_path / "status.jsonl", EpochReport(epoch=1, phase="final", total=9)
    status = StatusFile(path)
    status.write("up")
    status.write_once("epoch", "1/final", **asdict(report))

    assert [read_report(line, LEDGER_SERVICE) for line in path.read_bytes().splitlines()] == [None, report]
