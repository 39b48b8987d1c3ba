"""Look back: what the benchmark counts, on cases whose answer is known."""

import pytest

from assay.protocol.params import PPM
from benchmarks.look_back import NEVER, Fate, Way, audited, is_replayed, lasting, lied, lived

BACK = 4
ROUNDS = 64


def test_a_renewed_state_lasts_one_step_less_than_its_life_and_another_for_all_of_a_run():
    assert [lasting(128), lasting(16), lasting(NEVER)] == [127, 15, NEVER - 1]


def test_a_draw_of_the_last_step_finds_a_lie_at_once_or_never():
    assert lived(Way("", 1, NEVER), 0, ROUNDS, 0, PPM).found == 0
    fates = [lived(Way("", 1, NEVER), life, ROUNDS, 0, PPM // 2) for life in range(20)]
    assert {fate.found for fate in fates} == {0, None}


def test_a_draw_that_looks_back_finds_a_lie_of_its_window_alone_and_counts_the_steps_until_then():
    fates = [lived(Way("", BACK, NEVER), life, ROUNDS, 0, PPM) for life in range(50)]
    found = [fate for fate in fates if fate.found is not None]
    assert {fate.found for fate in found} == set(range(BACK))
    assert all(fate.later == fate.found for fate in found)
    assert 0 < len(fates) - len(found) < len(found)  # a draw may fall on others in every round


def test_a_lie_that_nobody_finds_ends_by_renewal_or_with_the_run():
    renewed, kept = (lived(Way("", 1, reset), 5, ROUNDS, 0, 0) for reset in (BACK, NEVER))
    assert renewed == Fate(None, BACK - 1, 0)
    assert kept.later > ROUNDS // 2 - 1


def test_a_replay_of_a_window_finds_each_lie_in_it():
    fates = [lived(Way("", 1, NEVER, BACK), life, ROUNDS, 0, PPM * BACK) for life in range(20)]
    assert {fate.found for fate in fates} == {0}
    seldom = [lived(Way("", 1, NEVER, BACK), life, ROUNDS, 0, PPM) for life in range(200)]
    assert {fate.found for fate in seldom} == {*range(BACK), None}


@pytest.mark.parametrize("reset", [BACK, NEVER])
def test_a_real_lie_is_found_in_its_own_step_alone_and_by_a_replay_that_begins_before_it(tmp_path, reset):
    bed, shares = lied(tmp_path, reset=reset, rounds=BACK, back=BACK)

    assert audited(bed, BACK)[0] == [BACK]
    assert not is_replayed(bed, BACK) and is_replayed(bed, BACK - 1)
    assert all(by_age[1] > 0.2 for by_age in shares.values())


def test_files_for_a_look_back_change_no_bit_of_the_training(tmp_path):
    usual, looked = (lied(tmp_path / f"{back}", reset=BACK, rounds=BACK, back=back)[0] for back in (0, 16))

    assert usual.recompute_worker.parameters.digest() == looked.recompute_worker.parameters.digest()
    assert usual.trainer.parameters.digest() == looked.trainer.parameters.digest()
