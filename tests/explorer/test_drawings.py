"""Drawings have a bounded size, lose no extreme, and tell marks apart without their colour."""

from __future__ import annotations

from dataclasses import replace

from assay.explorer.drawings import (
    MAP_CELLS,
    MAP_COLUMNS,
    MAP_ROWS,
    MARK_TEXT,
    MARKS,
    SHAPES,
    audit_map,
    map_paths,
)
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.types import PeerId, RoundId
from tests.explorer.an_explorer import golden, golden_explored, rulings

RUN = golden_explored()


def test_the_map_of_the_recorded_run_shows_each_step():
    cells = {row.node: row.cells for row in RUN.map.rows}

    assert RUN.map.step == 1 and len(cells) == len(golden().spec.nodes)
    (cheat,) = (row for row in RUN.map.rows if "F" in row.cells)
    void = cheat.cells.count("S")
    assert cheat.cells.startswith("PPF") and {"S"} <= set(cheat.cells[3:].rstrip()) <= {"S", "K"}
    for words in ("2 audited, passed", f"{void} void after a fault of its node", "1 fault confirmed"):
        assert words in cheat.text
    every = "".join(cells.values())
    for mark, status in (("P", AuditStatus.PASSED), ("K", AuditStatus.KNOWN_ANSWER)):
        assert every.count(mark) == rulings().count(status) > 0


def test_of_several_steps_in_a_cell_the_worst_counts():
    audit = next(iter(RUN.audits.values()))
    node = audit.node
    accepted = {node: range(600)}
    audits = {
        (RoundId(at), node): replace(audit, ruling=AuditStatus.CONFIRMED if at == 77 else AuditStatus.PASSED)
        for at in range(0, 600, 7)
    }

    found = audit_map(600, accepted, audits)

    (row,) = found.rows
    assert found.step == 600 // MAP_COLUMNS and len(row.cells) == MAP_COLUMNS
    assert row.cells.count("F") == 1 and row.cells[77 // found.step] == "F"


def test_the_map_of_many_nodes_and_rounds_is_bounded():
    accepted = {PeerId(bytes([at]) * 32): range(10_000) for at in range(128)}

    found = audit_map(10_000, accepted, {})

    assert len(found.rows) == MAP_ROWS and found.omitted == 78
    assert sum(len(row.cells) for row in found.rows) <= MAP_CELLS


def test_every_status_has_a_mark_and_every_mark_a_shape_of_its_own():
    assert sorted(status.value for statuses in MARKS.values() for status in statuses) == sorted(
        status.value for status in AuditStatus
    )
    assert set(MARK_TEXT) == set(SHAPES) == {*MARKS, "."}
    assert len(set(SHAPES.values())) == len(SHAPES)
    assert len({map_paths(mark)[0][1] for mark in SHAPES}) == len(SHAPES)
