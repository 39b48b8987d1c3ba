"""Pushed blobs: what comes whole and in time is used, and nothing else is waited for long."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from assay.participant.pushes import BEGUN_S, MISTRUSTED, WHOLE_S, Pushes, push
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode
from assay.protocol.errors import PeerFault, Unavailable
from assay.protocol.messages import PIECE_BYTES_MAX, BlobPiece
from assay.testing.members import peer

SENDER, OTHER = peer("vera"), peer("viktor")
BODY = bytes(range(256)) * 600  # three pieces
NAME = blob_digest(BODY)


def pieces(body=BODY, name=NAME):
    return [
        BlobPiece(blob=name, size=len(body), offset=at, piece=body[at : at + PIECE_BYTES_MAX])
        for at in range(0, len(body), PIECE_BYTES_MAX)
    ]


def got(*given, senders=None, every_s=0.01):
    """What `whole` returns while these pieces come, and after how many seconds."""

    async def main():
        received = Pushes(len(BODY))

        async def send():
            for at, piece in enumerate(given):
                await trio.sleep(every_s)
                received.take(SENDER if senders is None else senders[at], piece)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            found = await received.whole(NAME)
            took_s = trio.current_time()
            nursery.cancel_scope.cancel()
        return found, took_s

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_blob_that_comes_in_pieces_is_given_as_soon_as_it_is_whole():
    assert len(pieces()) == 3
    found, took_s = got(*pieces())
    assert found == BODY
    assert took_s == pytest.approx(0.03)


def test_nobody_waits_for_a_blob_that_nobody_sends():
    assert got() == (None, pytest.approx(BEGUN_S))
    other = pieces(b"another", blob_digest(b"another"))
    assert got(*other) == (None, pytest.approx(BEGUN_S))


def test_a_blob_that_stops_half_way_is_waited_for_a_bounded_time():
    found, took_s = got(*pieces()[:2])
    assert found is None
    assert took_s == pytest.approx(0.01 + WHOLE_S)


def test_a_slow_sender_gains_no_more_time_with_each_piece():
    found, took_s = got(*pieces(), every_s=WHOLE_S * 0.4)
    assert found is None
    assert took_s <= WHOLE_S + BEGUN_S


@pytest.mark.parametrize("order", [(0, 2, 1), (1, 0, 2), (0, 0, 2)])
def test_pieces_out_of_order_make_no_blob(order):
    given = pieces()
    assert got(*(given[at] for at in order))[0] is None


def test_a_blob_that_begins_anew_is_taken_from_its_beginning():
    first, *rest = pieces()
    assert got(first, rest[0], first, *rest)[0] == BODY


def test_a_piece_that_came_twice_ends_the_blob_and_a_new_beginning_mends_it():
    first, second, third = pieces()
    assert got(first, second, second, third)[0] is None

    received = Pushes(len(BODY))
    for piece in (first, second, second, first, second, third):
        received.take(SENDER, piece)
    assert trio.run(received.whole, NAME) == BODY


def test_two_senders_do_not_disturb_each_other():
    false = bytes(len(BODY))
    given = [piece for pair in zip(pieces(), pieces(false), strict=True) for piece in pair]
    assert got(*given, senders=[SENDER, OTHER] * 3)[0] == BODY


@pytest.mark.parametrize("size", [0, len(BODY) + 1])
def test_a_blob_larger_than_any_that_is_needed_is_the_senders_fault(size):
    piece = BlobPiece(blob=NAME, size=size, offset=0, piece=b"x")
    with pytest.raises(PeerFault, match=f"{size} bytes"):
        Pushes(len(BODY)).take(SENDER, piece)


def test_a_piece_beyond_the_end_is_not_kept():
    received = Pushes(len(BODY))
    received.take(SENDER, BlobPiece(blob=NAME, size=4, offset=0, piece=b"abc"))
    received.take(SENDER, BlobPiece(blob=NAME, size=4, offset=3, piece=b"defg"))
    assert not received._incoming


def test_who_pushed_false_bytes_is_not_waited_for_again_for_a_while():
    async def main():
        received = Pushes(len(BODY))
        for piece in pieces(bytes(len(BODY))):
            received.take(SENDER, piece)
        before_s = trio.current_time()
        assert await received.whole(NAME) is None
        assert trio.current_time() == before_s  # nothing more is waited for
        for piece in pieces():
            received.take(SENDER, piece)
        for _ in range(MISTRUSTED - 1):
            before_s = trio.current_time()
            assert await received.whole(NAME) is None
            assert trio.current_time() - before_s <= BEGUN_S + 1e-6
        return await received.whole(NAME)

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) == BODY


def test_a_push_sends_all_in_order_and_gives_up_on_a_peer_that_does_not_take_it():
    class Host:
        def __init__(self, takes):
            self.takes, self.sent = takes, []

        async def send(self, to, payload):
            if len(self.sent) == self.takes:
                raise Unavailable("gone")
            self.sent.append((to, decode(BlobPiece, payload)))

    for takes in (3, 1):
        host = Host(takes)
        trio.run(push, host, OTHER, NAME, BODY)
        assert host.sent == [(OTHER, piece) for piece in pieces()[:takes]]
