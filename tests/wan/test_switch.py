"""The test bed's switch: frames take the time that rates and delays say, and no cut line carries any."""

from __future__ import annotations

import random

import pytest

from tests.wan.switch import BROADCAST, QUEUE_S, Line, Switch

RATE, DELAY_S = 1_000_000.0, 0.025  # bytes a second
MACS = {name: bytes([2, 0, 0, 0, 0, at]) for at, name in enumerate("abc")}


class Socket:
    def __init__(self):
        self.sent = []

    def send(self, frame):
        self.sent.append(frame)


def a_switch(loss=0.0):
    lines = [Line(name=name, mac=mac, socket=Socket()) for name, mac in MACS.items()]
    return Switch(lines, RATE, DELAY_S, loss, random.Random(1))


def a_frame(to, size=1000):
    return MACS.get(to, to).ljust(size, b"\0")


def received(switch):
    return {line.name: len(line.socket.sent) for line in switch.lines}


def test_a_frame_takes_both_lines_delays_and_rates_and_reaches_its_receiver_alone():
    switch = a_switch()
    switch.take(switch.lines[0], a_frame("b"), 10.0)
    took_s = 2 * DELAY_S + 2 * 1000 / RATE

    assert switch.deliver(10.0) == pytest.approx(took_s)
    assert received(switch) == {"a": 0, "b": 0, "c": 0}
    assert switch.deliver(10.0 + took_s + 1e-9) is None
    assert received(switch) == {"a": 0, "b": 1, "c": 0}


def test_a_broadcast_reaches_all_others():
    switch = a_switch()
    switch.take(switch.lines[0], a_frame(BROADCAST), 0.0)
    switch.deliver(1.0)
    assert received(switch) == {"a": 0, "b": 1, "c": 1}


def test_frames_queue_on_a_line_and_those_beyond_its_queue_are_dropped():
    switch = a_switch()
    for _ in range(1000):  # a second's worth
        switch.take(switch.lines[0], a_frame("b"), 0.0)
    assert switch.dropped == pytest.approx(1000 * (1 - QUEUE_S), abs=2)
    switch.deliver(2 * DELAY_S + 0.1 + 2e-3)
    assert received(switch)["b"] == pytest.approx(100, abs=2)


def test_two_senders_share_the_receivers_line():
    switch = a_switch()
    for at in (0, 1):
        for _ in range(100):
            switch.take(switch.lines[at], a_frame("c"), 0.0)
    switch.deliver(2 * DELAY_S + 0.1 + 2e-3)
    assert received(switch)["c"] == pytest.approx(100, abs=3)


def test_a_cut_line_carries_nothing_either_way_until_it_is_healed():
    switch = a_switch()
    switch.obey("cut b")
    switch.take(switch.lines[0], a_frame("b"), 0.0)
    switch.take(switch.lines[1], a_frame("a"), 0.0)
    switch.take(switch.lines[0], a_frame("c"), 0.0)
    switch.deliver(1.0)
    assert received(switch) == {"a": 0, "b": 0, "c": 1}

    switch.obey("heal b")
    switch.take(switch.lines[0], a_frame("b"), 2.0)
    switch.deliver(3.0)
    assert received(switch)["b"] == 1


def test_losses_are_as_many_as_were_asked_for():
    switch = a_switch()
    switch.obey("loss 0.1")
    for at in range(5000):
        switch.take(switch.lines[0], a_frame("b"), float(at))
        switch.deliver(at + 0.9)
    assert received(switch)["b"] == pytest.approx(4500, abs=80)
