"""Appeals in runs whose public state is more than parameters: outer optimisers with buffers, late aggregates.

A commit names the digest of the whole state; evidence shows the parameters and the bytes behind them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from assay.protocol.auditing.audits import case_id_of
from assay.protocol.errors import ConfigError, MalformedMessage
from assay.protocol.update_rule import Outer
from assay.testing.specs import a_rule
from assay.training.frozen import ALL_TRAINED
from assay.training.layout import layout_of
from assay.training.model.loss import use_one_thread
from assay.training.reference.narrowing import START
from assay.verifier.appeal.accused import step_of
from assay.verifier.appeal.answers import positions_of
from assay.verifier.appeal.evidence import evidence_of, holds, parse_evidence
from assay.verifier.appeal.fetch import evidence_bytes_max
from assay.verifier.appeal.program import why_not
from tests.verifier.appeal.test_appeal import Party, a_party
from tests.verifier.appeal.test_inner_steps import LIES, a_node, towards
from tests.verifier.appeal.test_kept_moments import LIES as KEPT_LIES
from tests.verifier.appeal.test_kept_moments import a_keeper
from tests.verifier.audit.test_exact import CHEAT_ROUND

pytestmark = pytest.mark.slow

LATE = 2  # rounds
CASES = {
    "diloco": lambda folder, *lie: a_keeper(folder, "honest", "diloco", *lie),
    "diloco, moments not kept": lambda folder, *lie: a_node(folder, "honest", "diloco", *lie),
    "adam": lambda folder, *lie: a_node(folder, "honest", "fedavg", *lie, choices={"outer": Outer.ADAM}),
    "yogi": lambda folder, *lie: a_node(folder, "honest", "fedavg", *lie, choices={"outer": Outer.YOGI}),
    "late": lambda folder, *lie: a_node(folder, "honest", "fedavg", *lie, choices={"apply_lag": LATE}),
    "nesterov, late": lambda folder, *lie: a_node(
        folder, "honest", "diloco", *lie, choices={"apply_lag": LATE, "momentum_micro": 200_000}
    ),
}
BUFFERS = {"adam": 2, "yogi": 2, "late": 0}  # others: 1


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    use_one_thread()


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory) -> tuple[str, Party]:
    return request.param, CASES[request.param](tmp_path_factory.mktemp("honest"))


def index_of(party: Party) -> int:
    """The first operator that reads parameters."""
    names = [operator.name for operator in party.program]
    return names.index("step0/0/forward/embed") if len(names) > 1 else 0


def shown(party: Party, index: int, **changes):
    body = evidence_of(party.commit, party.program, party.sources, party.told, party.trace, index)
    return replace(parse_evidence(body, case_id_of(party.commit)), **changes)


def judged(party: Party, **changes) -> bool:
    index = index_of(party)
    positions = party.trace.positions[index], party.trace.positions[index + 1]
    return holds(party.spec, party.program, shown(party, index, **changes), positions, party.tokens)


def test_the_evidence_is_the_whole_public_state(case):
    name, party = case
    spec, rest = party.spec, party.sources.rest
    late = 32 * spec.rule.apply_lag
    assert len(rest) == 4 * BUFFERS.get(name, 1) * layout_of(spec.model).parameters + late
    assert rest.strip(b"\0")  # rounds have passed: it is not what it began as

    assert why_not(spec, party.limits, party.commit) is None
    assert judged(party)
    sizes = [
        len(evidence_of(party.commit, party.program, party.sources, party.told, party.trace, index))
        for index in {0, index_of(party), len(party.program) - 1}
    ]
    assert max(sizes) <= evidence_bytes_max(spec)
    outer = replace(spec.rule.outer, kind=Outer.SGD)
    plain = replace(spec, rule=replace(spec.rule, outer=outer, apply_lag=0))
    assert evidence_bytes_max(spec) - evidence_bytes_max(plain) == len(rest)


def test_an_honest_node_wins_whatever_a_lying_quorum_names(case):
    _, party = case
    count = len(party.program)
    for target in {*range(0, count, 37), index_of(party), count - 1}:
        assert party.verdict(towards(target)) == (target, True)
    assert party.doubted() == (count - 1, True)


def test_a_signer_needs_the_parameters_alone(case):
    _, party = case
    theta_P = party.sources.theta_P
    body = positions_of(party.spec, party.limits, party.commit, theta_P, party.tokens, ALL_TRAINED)

    assert body == (bytes(START) if len(party.program) == 1 else b"".join(party.known.positions))


def test_the_accused_claims_its_step_from_the_whole_state(case):
    _, party = case
    step = step_of(party.spec, party.limits, party.commit, party.sources)
    assert step.trace == party.trace

    for rest in (b"", party.sources.rest[:-1] + b"\1", party.sources.rest + bytes(32)):
        with pytest.raises(ConfigError, match="not on this disk"):
            step_of(party.spec, party.limits, party.commit, replace(party.sources, rest=rest))


def test_parameters_or_a_rest_that_the_commit_does_not_bind_show_nothing(case):
    """Nor does a cut between the two at another place, which leads to the same digest but for its sizes."""
    _, party = case
    theta, rest = party.sources.theta_P.tobytes(), party.sources.rest
    other = (party.sources.theta_P + np.float32(1)).tobytes()
    for changes in (
        {"theta": other},
        {"rest": bytes(len(rest))},
        {"rest": bytes([rest[0] ^ 1]) + rest[1:]},
        {"rest": rest[:-1] + bytes([rest[-1] ^ 1])},
    ):
        with pytest.raises(MalformedMessage, match="parameters that are not the commit's"):
            judged(party, **changes)
    for changes in (
        {"theta": theta + rest[:4], "rest": rest[4:]},
        {"theta": theta[:-4], "rest": theta[-4:] + rest},
        {"rest": b""},
        {"rest": rest + bytes(32)},
    ):
        with pytest.raises(MalformedMessage, match=r"bytes of (theta|rest), expected \d+"):
            judged(party, **changes)


def test_rounds_before_aggregates_wait_show_fewer_of_them(tmp_path):
    """As many as rounds have passed wait, at most `apply_lag`."""
    late = CHEAT_ROUND + 1
    party = a_node(tmp_path, "honest", "fedavg", choices={"apply_lag": late})

    assert len(party.sources.rest) == 32 * CHEAT_ROUND
    assert judged(party)


def test_a_gradients_step_is_appealed_in_runs_with_an_outer_optimiser_too(tmp_path):
    for behaviour in ("honest", "random-update"):
        rule = a_rule("demo", apply_lag=1)
        party = a_party(tmp_path / behaviour, behaviour, rule=rule)

        assert len(party.sources.rest) == 32
        assert party.doubted() == (len(party.program) - 1, behaviour == "honest")


@pytest.mark.parametrize("lie", ["noise as message", "noise throughout", "another end"])
@pytest.mark.parametrize("name", CASES)
def test_a_lie_loses(tmp_path, name, lie):
    lies = KEPT_LIES if name == "diloco" else LIES
    party = CASES[name](tmp_path, lies[lie])

    assert party.doubted() == (len(party.program) - 1, False)
