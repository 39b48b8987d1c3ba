"""Switch: an Ethernet switch in user space, whose lines have a rate, a delay and losses.

    python -m tests.wan.switch --mbit 100 --delay-ms 25 --loss 0 PORT=MAC ...

Room: tests (edge: AF_PACKET sockets; needs root). Each PORT is the near end of a veth pair whose far end has
this MAC. A frame leaves the sender's line at its rate, waits for both lines' delays, and enters the
receiver's line at its rate; what a line would hold longer than `QUEUE_S` is dropped, as a router drops it.
The delay belongs to frames, so TCP, UDP and ARP see a real distance, and kernels without a delaying queue do.

On standard input, one command a line: `cut PORT ...` and `heal PORT ...`, and `loss SHARE`.
"""

from __future__ import annotations

import argparse
import heapq
import random
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field

FRAME_BYTES_MAX = 65_536
QUEUE_S = 0.5  # of a line
ETH_P_ALL = 3
BROADCAST = b"\xff" * 6


@dataclass(eq=False, slots=True)
class Line:
    """One participant's line: when each direction is free again, and whether it is cut."""

    name: str
    mac: bytes
    socket: socket.socket
    up_free_s: float = 0.0
    down_free_s: float = 0.0
    is_cut: bool = False


@dataclass
class Switch:
    """The lines, and the frames under way."""

    lines: list[Line]
    bytes_per_s: float
    delay_s: float
    loss: float
    chance: random.Random
    dropped: int = 0
    _under_way: list[tuple[float, int, bytes, Line]] = field(default_factory=list)
    _count: int = 0

    def take(self, sender: Line, frame: bytes, now_s: float) -> None:
        """A frame has left a participant."""
        for receiver in self.lines:
            if receiver is sender or (frame[:6] not in (receiver.mac, BROADCAST) and not frame[0] & 1):
                continue
            is_lost = sender.is_cut or receiver.is_cut or self.chance.random() < self.loss
            took_s = len(frame) / self.bytes_per_s
            left_s = max(sender.up_free_s, now_s) + took_s
            arrives_s = max(receiver.down_free_s, left_s + 2 * self.delay_s) + took_s
            is_full = left_s > now_s + QUEUE_S or arrives_s > left_s + 2 * self.delay_s + QUEUE_S
            if is_lost or is_full:
                self.dropped += 1
                continue
            sender.up_free_s, receiver.down_free_s = left_s, arrives_s
            self._count += 1
            heapq.heappush(self._under_way, (arrives_s, self._count, frame, receiver))

    def deliver(self, now_s: float) -> float | None:
        """Deliver what is due; seconds until the next frame is, or None."""
        while self._under_way and self._under_way[0][0] <= now_s:
            _, _, frame, receiver = heapq.heappop(self._under_way)
            try:
                receiver.socket.send(frame)
            except OSError:  # the interface is gone, or its queue is full: a line loses frames
                self.dropped += 1
        return self._under_way[0][0] - now_s if self._under_way else None

    def obey(self, command: str) -> None:
        """One line of standard input."""
        verb, *rest = command.split()
        if verb == "loss":
            self.loss = float(rest[0])
        for line in self.lines:
            if verb in ("cut", "heal") and line.name in rest:
                line.is_cut = verb == "cut"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=float, required=True)
    parser.add_argument("--delay-ms", type=float, required=True, help="of each line, in each direction")
    parser.add_argument("--loss", type=float, default=0.0, help="share of frames that are lost")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("port", nargs="+")
    given = parser.parse_args()
    switch = Switch(
        [_line(port) for port in given.port],
        given.mbit * 1e6 / 8,
        given.delay_ms / 1000,
        given.loss,
        random.Random(given.seed),
    )
    selector = selectors.DefaultSelector()
    for line in switch.lines:
        selector.register(line.socket, selectors.EVENT_READ, line)
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    print("ready", flush=True)
    wait_s: float | None = None
    while True:
        for key, _ in selector.select(wait_s):
            if key.data is None:
                command = sys.stdin.readline()
                if not command:
                    return  # whoever started us has ended
                switch.obey(command)
            else:
                _drain(switch, key.data)
        wait_s = switch.deliver(time.monotonic())


def _drain(switch: Switch, line: Line) -> None:
    for _ in range(64):  # then the others have their turn
        try:
            frame, address = line.socket.recvfrom(FRAME_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:  # the interface is gone
            return
        if address[2] != socket.PACKET_OUTGOING:  # type: ignore[attr-defined]  # ours come back otherwise
            switch.take(line, frame, time.monotonic())


def _line(port: str) -> Line:
    name, mac = port.split("=")
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    one.bind((name, 0))
    one.setblocking(False)
    return Line(name=name, mac=bytes.fromhex(mac.replace(":", "")), socket=one)


if __name__ == "__main__":
    main()
