"""JSON log: no peer can make a process write without end, nor hide what another one causes."""

from __future__ import annotations

import logging

from assay.participant.telemetry.json_log import BURST, KINDS_MAX, BoundedByPeer


def said(log: BoundedByPeer, event: str, at_s: float = 0.0, **fields: str) -> logging.LogRecord | None:
    """The record of an event if it is written."""
    record = logging.makeLogRecord({"msg": event, "created": at_s, **fields})
    return record if log.filter(record) else None


def test_of_an_event_about_one_peer_a_burst_is_written_and_then_a_line_each_second_that_counts_the_rest():
    log = BoundedByPeer()
    assert all(said(log, "peer fault", peer="mallory") for _ in range(BURST))
    assert not any(said(log, "peer fault", 0.9, peer="mallory") for _ in range(500))
    line = said(log, "peer fault", 1.1, peer="mallory")
    assert line is not None and vars(line)["left_out"] == 500
    assert not said(log, "peer fault", 1.9, peer="mallory")
    line = said(log, "peer fault", 3.0, peer="mallory")
    assert line is not None and vars(line)["left_out"] == 1
    line = said(log, "peer fault", 3.0, peer="mallory")
    assert line is not None and not hasattr(line, "left_out")


def test_neither_another_event_nor_another_peer_nor_what_no_peer_causes_waits_for_it():
    log = BoundedByPeer()
    for _ in range(2 * BURST):
        said(log, "peer fault", peer="mallory")
    assert said(log, "commit refused", node="mallory")
    assert said(log, "peer fault", peer="bob")
    assert all(said(log, "round finalised") for _ in range(2 * BURST))


def test_strangers_count_as_one_and_what_is_remembered_is_bounded():
    log = BoundedByPeer()
    assert sum(said(log, "non-member refused", stranger=str(n)) is not None for n in range(500)) == BURST
    for number in range(2 * KINDS_MAX):
        assert said(log, "peer fault", peer=str(number))
    assert len(log._lines) == KINDS_MAX
