"""The public state on disk: after any restart the same bits, whatever a rule carries between rounds."""

from __future__ import annotations

import numpy as np
import pytest

from assay.protocol.errors import Diverged
from assay.protocol.params import RunSpec
from assay.protocol.update_rule import Outer
from assay.training.model.initial import starting_parameters
from assay.training.optimiser.outer import apply, public_digest, start_public
from assay.training.optimiser.public_state import PublicState, kept_rounds
from tests.builders import a_spec
from tests.specs import a_rule
from tests.training.optimiser.test_outer import LAYOUT, a_distance, aggregate_of, signs_of

pytestmark = pytest.mark.slow

KEEP, ROUNDS = 4, 11
CASES = {
    "demo": ("demo", {}),
    "nesterov": ("diloco", {}),
    "adaptive": ("fedavg", {"outer": Outer.YOGI}),
    "late": ("diloco", {"apply_lag": 2, "read_lag": 2, "momentum_micro": 200_000}),
    "adaptive, as late as can be": ("fedavg", {"outer": Outer.ADAM, "apply_lag": 4}),
    "streaming": ("streaming-diloco", {"fragments": 2}),
}
every_rule = pytest.mark.parametrize("name", CASES)


def a_run(name: str) -> RunSpec:
    method, choices = CASES[name]
    return a_spec(rule=a_rule(method, **choices), rounds=ROUNDS)


def bodies_of(spec: RunSpec) -> list[bytes]:
    """What the rounds of a run end with; some end with nothing."""
    write = aggregate_of if spec.rule.has_scale else signs_of
    return [b"" if n % 3 == 2 else write(a_distance(n)) for n in range(ROUNDS)]


def expected(spec: RunSpec) -> list[bytes]:
    """The digest before every round, and after the last, computed without files."""
    public = start_public(spec, starting_parameters(spec, None))
    found = [public_digest(public)]
    for round_id, body in enumerate(bodies_of(spec)):
        public = apply(spec, LAYOUT, public, round_id, body)
        found.append(public_digest(public))
    return found


@every_rule
def test_a_restart_at_any_round_leads_to_the_same_digests(tmp_path, name):
    spec = a_run(name)
    digests, bodies = expected(spec), bodies_of(spec)
    resumed = []
    for end in range(ROUNDS + 1):
        parameters = PublicState(spec, tmp_path, KEEP)  # a new process each round, on the folder of the last
        resumed.append(parameters.round)
        assert parameters.round <= end
        assert parameters.digest() == digests[parameters.round]
        while parameters.round < end:
            at = parameters.round
            assert parameters.apply(at, bodies[at]) == digests[at + 1]
    assert max(resumed) > 0, "no checkpoint was ever resumed from"
    assert len(set(digests)) > ROUNDS // 2


@every_rule
def test_after_a_restart_the_rounds_that_audits_look_back_to_are_there_again(tmp_path, name):
    spec = a_run(name)
    bodies, first = bodies_of(spec), PublicState(spec, tmp_path, KEEP)
    for round_id in range(ROUNDS):
        first.apply(round_id, bodies[round_id])

    second = PublicState(spec, tmp_path, KEEP)
    while second.round < ROUNDS:
        second.apply(second.round, bodies[second.round])

    for round_id in range(ROUNDS - KEEP, ROUNDS + 1):
        assert np.array_equal(second.at(round_id), first.at(round_id))
    for round_id in (ROUNDS - KEEP - 1, ROUNDS + 1):
        with pytest.raises(Diverged, match=f"no parameters of round {round_id}"):
            first.at(round_id)


@pytest.mark.parametrize("name", ["demo", "late"])
def test_what_is_held_outlives_rounds_and_restarts_until_it_is_let_go(tmp_path, name):
    spec = a_run(name)
    bodies, parameters = bodies_of(spec), PublicState(spec, tmp_path, KEEP)
    for round_id in range(3):
        parameters.apply(round_id, bodies[round_id])
    wanted = parameters.read(3).copy()

    parameters.hold([3])
    for round_id in range(3, ROUNDS):
        parameters.apply(round_id, bodies[round_id])
    assert np.array_equal(parameters.read(3), wanted)
    again = PublicState(spec, tmp_path, KEEP)
    again.hold([3])  # too old to be written now, but it is there
    assert np.array_equal(again.read(3), wanted)

    again.hold([])
    with pytest.raises(Diverged, match="no parameters of round"):
        again.read(3)


def test_local_work_reads_parameters_as_old_as_the_rule_says_and_never_older_than_the_start(tmp_path):
    spec = a_run("late")
    bodies, parameters = bodies_of(spec), PublicState(spec, tmp_path, KEEP)
    for round_id in range(6):
        assert parameters.read(round_id) is parameters.at(max(round_id - 2, 0))
        parameters.apply(round_id, bodies[round_id])

    assert kept_rounds(spec) == kept_rounds(a_run("demo")) + 2  # audits look back from there


@every_rule
def test_a_reset_forgets_parameters_buffers_and_what_waits(tmp_path, name):
    spec = a_run(name)
    bodies, parameters = bodies_of(spec), PublicState(spec, tmp_path, KEEP)
    for round_id in range(9):
        parameters.apply(round_id, bodies[round_id])

    parameters.reset()

    digests = expected(spec)
    assert parameters.round == 0
    assert parameters.digest() == digests[0] == PublicState(spec, tmp_path, KEEP).digest()
    for round_id in range(5):
        assert parameters.apply(round_id, bodies[round_id]) == digests[round_id + 1]


def test_a_round_out_of_order_is_refused_and_changes_nothing(tmp_path):
    spec = a_run("nesterov")
    parameters = PublicState(spec, tmp_path, KEEP)
    before = parameters.digest()

    with pytest.raises(Diverged, match="round 1 arrived at round 0"):
        parameters.apply(1, bodies_of(spec)[1])
    assert parameters.digest() == before
