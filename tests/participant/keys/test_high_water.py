"""The high-water mark: a store that has gone back is found, and one that is whole never is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.participant.keys.high_water import HighWater
from assay.protocol.errors import ConfigError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "signed.mark"


def noted(path, *statements):
    mark = HighWater(path)
    for iteration, body in statements:
        mark.note(iteration, body, finalises=body.startswith(b"finalise"))
    mark.close()


def lost(path, journal=(), final=0):
    return lost_both(path, journal, final)[0]


def lost_both(path, journal=(), final=0):
    mark = HighWater(path)
    try:
        return mark.lost_through(journal, final)
    finally:
        mark.close()


def test_a_store_that_holds_the_last_statement_has_lost_nothing(path):
    assert lost(path) == 0  # never signed
    noted(path, (3, b"a"), (4, b"b"))
    assert lost(path, [b"a", b"b"], final=2) == 0


def test_a_store_that_lacks_the_last_statement_has_lost_what_was_signed(path):
    noted(path, (3, b"a"), (4, b"b"))
    assert lost(path, [b"a"], final=2) == 4
    assert lost(path, [], final=0) == 4


def test_statements_of_final_iterations_may_be_gone(path):
    noted(path, (3, b"a"), (4, b"b"))
    assert lost(path, [], final=4) == 0
    assert lost(path, [], final=9) == 0


def test_a_late_vote_for_an_earlier_iteration_that_became_final_is_no_loss(path):
    noted(path, (11, b"notarise"), (12, b"notarise next"), (11, b"finalise"))
    assert lost(path, [b"notarise next"], final=11) == 0
    assert lost(path, [b"notarise next"], final=10) == 12


def test_what_was_found_lost_stays_so_until_a_final_block_is_past_it(path):
    noted(path, (12, b"a"))
    assert lost(path, [], final=8) == 12
    noted(path, (13, b"b"))
    assert lost(path, [b"b"], final=11) == 12  # the store is whole again, what it lost is not
    assert lost(path, [b"b"], final=12) == 0


def test_how_far_votes_to_finalise_came_is_told_apart(path):
    noted(path, (11, b"notarise"), (11, b"finalise"), (10, b"finalise late"), (12, b"notarise next"))
    assert lost_both(path, [b"notarise"], final=9) == (12, 11)
    noted(path, (12, b"give up"))
    assert lost_both(path, [b"give up"], final=9) == (12, 11)  # also after the next restart
    noted(path, (13, b"finalise"))
    assert lost_both(path, [b"finalise"], final=12) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_life_of_a_store_that_forgets_the_latest_first_is_judged_rightly(tmp_path_factory, data):
    """A journal as SQLite's: records up to the final iteration are dropped, and damage cuts off its end."""
    path = tmp_path_factory.mktemp("life") / "signed.mark"
    now, final, log = 1, 0, []
    for at in range(data.draw(st.integers(1, 8), label="events")):
        move = data.draw(st.sampled_from(["sign", "sign an earlier one", "final"]))
        if move == "final":
            final = data.draw(st.integers(final, now))
            log.append(("final", final))
            now = max(now, final + 1)
        else:
            iteration = now if move == "sign" else data.draw(st.integers(final + 1, now))
            body = bytes([at])
            log.append((iteration, body))
            noted(path, (iteration, body))
            now = max(now, iteration + data.draw(st.integers(0, 1)))
    kept = data.draw(st.integers(0, len(log)), label="kept")
    held_final = max([entry[1] for entry in log[:kept] if entry[0] == "final"], default=0)
    journal = [b for i, b in log[:kept] if i != "final" and i > held_final]
    forgotten = [i for i, _ in log[kept:] if i != "final" and i > held_final]

    found = lost(path, journal, held_final)
    assert (found > 0) == bool(forgotten)
    assert found >= max(forgotten, default=0)


def test_a_write_that_was_cut_off_leaves_the_mark_before_it(path):
    noted(path, (3, b"a"), (4, b"b"))
    size = path.stat().st_size
    for at in range(size // 2):  # the older of the two slots is the one that is written next
        body = bytearray(path.read_bytes())
        body[size // 2 + at] ^= 1
        path.write_bytes(bytes(body))
        assert lost(path, [b"b"], final=2) == 0
        body[size // 2 + at] ^= 1
        path.write_bytes(bytes(body))


def test_a_first_write_that_was_cut_off_leaves_a_mark_of_nothing(path):
    noted(path)
    begun = path.read_bytes()
    noted(path, (3, b"a"))
    whole = path.read_bytes()
    for size in range(len(begun), len(whole)):
        path.write_bytes(whole[:size])
        assert lost(path) == 0
        noted(path, (3, b"a"))
        assert lost(path, [], final=2) == 3


def test_nobody_but_its_owner_may_write_a_mark(path):
    noted(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_only_made_is_begun(path):
    path.touch()
    noted(path, (3, b"a"))
    assert lost(path, [], final=2) == 3


def test_a_mark_without_a_whole_slot_is_refused_in_words(path):
    noted(path, (3, b"a"))
    path.write_bytes(bytes(len(path.read_bytes())))
    with pytest.raises(ConfigError, match="damaged"):
        HighWater(path)


def test_a_mark_that_cannot_be_opened_is_refused_in_words(path):
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot be opened"):
        HighWater(path)
