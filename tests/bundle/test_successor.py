"""A successor begins with the parameters, rounds, rates and data at which a stopped run's chain ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from assay.bundle.follow import Followed
from assay.bundle.inputs import read_inputs
from assay.bundle.read import Delivered, read
from assay.bundle.successor import Stop, check_predecessor, stop_of, successor_spec, write_start
from assay.bundle.verify import predecessor_line, replay, verify
from assay.ledger.settlement.results import run_id_of
from assay.participant.files.index import IntegrityError
from assay.participant.following.sync import certified_state
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import decode, digest, encode
from assay.protocol.errors import ConfigError
from assay.protocol.params import (
    NO_PREDECESSOR,
    AcceptSpec,
    AdapterSpec,
    Milestone,
    Predecessor,
    RunSpec,
    Target,
    check_spec,
)
from assay.protocol.types import NO_DIGEST, Address, Digest
from assay.protocol.update_rule import Outer
from assay.testing.signed import VERIFIERS, a_member
from assay.training.data.batches import batch_positions
from assay.training.layout import layout_of
from assay.training.model.initial import BASE, OUTER, starting_parameters
from assay.training.optimiser.outer import apply, start_public
from assay.training.optimiser.public_state import THETA, PublicState
from assay.training.optimiser.schedule import rate
from tests.bundle.a_participant import a_participant
from tests.training.optimiser.test_outer import a_distance, a_run, aggregate_of

STOPPED = 6  # manifests that were certified
NOW_S = 1_800_000_000


@pytest.fixture
def stopped(recorded_run: Path, tmp_path: Path) -> Delivered:
    """A buyer's copy of the recorded run, as if nothing had been certified after round 5."""
    return Followed(a_participant(recorded_run, tmp_path / "buyer", STOPPED)).read()


@pytest.fixture(scope="module")
def theta(recorded_run: Path) -> dict[int, np.ndarray]:
    """Parameters by the round that begins with them, recomputed from all updates."""
    delivered, found = read(recorded_run), {}
    inputs = read_inputs(delivered.spec, delivered.bundle / "data", None)
    replay(delivered, inputs, lambda _: None, lambda round_id, theta_P: found.update({round_id: theta_P}))
    return found


def the_successor(stop: Stop, **changes) -> RunSpec:
    spec = successor_spec(
        stop,
        **{
            "deployment_id": stop.spec.deployment_id,
            "buyer": stop.spec.buyer,
            "treasury": stop.spec.money.treasury,
            "nodes": stop.spec.nodes,
            "verifiers": [a_member(name) for name in VERIFIERS],
            "now_s": NOW_S,
            **changes,
        },
    )
    return spec


# ---- the state


def test_the_parameters_are_those_after_the_last_certified_manifest(stopped, theta):
    stop = stop_of([stopped])
    assert stop.round == STOPPED - 1
    np.testing.assert_array_equal(stop.theta_P, theta[STOPPED])
    assert not np.array_equal(stop.theta_P, theta[STOPPED - 1])


def test_an_earlier_round_can_be_gone_back_to_and_none_beyond_the_chain(stopped, theta):
    np.testing.assert_array_equal(stop_of([stopped], 2).theta_P, theta[3])
    for beyond in (STOPPED, -1):
        with pytest.raises(ConfigError, match="trained up to 5"):
            stop_of([stopped], beyond)


def aggregates(run: Delivered, rounds: range) -> list[Path]:
    return [run.file("aggregates", run.links[at].manifest.aggregate) for at in rounds]


def test_a_checkpoint_stands_in_for_aggregates_that_a_participant_let_go(stopped, theta):
    folder = stopped.held.store.parent / THETA
    every, kept = stopped.spec.state_every, PublicState(stopped.spec, folder, 1, save_every=1)
    for at in range(STOPPED - 1):
        kept.apply(at, stopped.aggregate(at))
    assert kept.round >= every
    for path in aggregates(stopped, range(every)):
        path.unlink()
    np.testing.assert_array_equal(stop_of([stopped]).theta_P, theta[STOPPED])


def test_a_checkpoint_that_nobody_certified_is_not_believed(stopped, theta):
    folder = stopped.held.store.parent / THETA
    kept = PublicState(stopped.spec, folder, 1, save_every=1)
    for _ in range(STOPPED - 1):
        kept.apply(kept.round, stopped.aggregate(0))
    np.testing.assert_array_equal(stop_of([stopped]).theta_P, theta[STOPPED])


def test_a_state_that_a_commit_contradicts_is_no_start(stopped):
    at = next(at for at in range(1, STOPPED) if certified_state(stopped.links[at]) is not None)
    link = stopped.links[at]
    commits = tuple(
        replace(signed, commit=replace(signed.commit, state=Digest(b"o" * 32)))
        for signed in link.manifest.commits
    )
    forged = replace(link, manifest=replace(link.manifest, commits=commits))
    with pytest.raises(IntegrityError, match="other parameters than certified"):
        stop_of([replace(stopped, links=(*stopped.links[:at], forged, *stopped.links[at + 1 :]))])


def test_an_outer_momentum_goes_on_and_what_waits_is_applied(stopped, tmp_path):
    """Of a chain with the rounds of the recorded run and the aggregates of another rule."""
    ours = a_run(Outer.NESTEROV, momentum_micro=500_000, lr_nano=700_000_000, apply_lag=1)
    spec = replace(stopped.spec, rule=ours.rule, model=ours.model)
    bodies, links = [aggregate_of(a_distance(at)) for at in range(STOPPED)], []
    public = start_public(spec, starting_parameters(spec, None))
    for at, (link, body) in enumerate(zip(stopped.links, bodies, strict=True)):
        manifest = replace(link.manifest, commits=(), aggregate=blob_digest(body))
        links.append(replace(link, manifest=manifest))
        stopped.file("aggregates", blob_digest(body)).write_bytes(body)
        public = apply(spec, layout_of(spec.model), public, at, body)
    public = apply(spec, layout_of(spec.model), public, STOPPED, b"")

    stop = stop_of([replace(stopped, spec=spec, links=tuple(links))])

    base = tmp_path / "data" / BASE
    write_start(stop, base.parent)
    model = replace(spec.model, base=stop.base)
    successor = replace(the_successor(replace(stop, spec=stopped.spec)), rule=spec.rule, model=model)
    begun = PublicState(successor, tmp_path / "theta", 1, base).public
    np.testing.assert_array_equal(begun.theta_P, public.theta_P)
    np.testing.assert_array_equal(begun.buffers[0], public.buffers[0])
    assert np.any(begun.buffers[0]) and begun.pending == ()
    np.save(base.with_name(OUTER), np.zeros((1, len(public.theta_P)), np.float32))
    with pytest.raises(ConfigError, match="1 buffers to go on with, this run's outer optimiser has 0"):
        start_public(replace(successor, rule=stopped.spec.rule), begun.theta_P, begun.buffers)
    with pytest.raises(ConfigError, match="not the buffers"):
        PublicState(successor, tmp_path / "other", 1, base)


def test_a_successor_that_stops_is_continued_from_the_copy_that_has_its_base(stopped, tmp_path):
    first = stop_of([stopped])
    write_start(first, tmp_path / "data")
    spec = replace(stopped.spec, model=replace(stopped.spec.model, base=first.base))
    unsaid = tuple(replace(link, manifest=replace(link.manifest, commits=())) for link in stopped.links)
    run = replace(stopped, spec=spec, links=unsaid)
    ours, bare = (replace(run, held=replace(stopped.held, data=tmp_path / name)) for name in ("data", "none"))
    public = start_public(spec, first.theta_P)
    for at in range(STOPPED):
        public = apply(spec, layout_of(spec.model), public, at, stopped.aggregate(at))
    np.testing.assert_array_equal(stop_of([bare, ours]).theta_P, public.theta_P)
    with pytest.raises(ConfigError, match="cannot be read"):
        stop_of([bare])


def test_an_aggregate_that_was_altered_or_is_missing_is_named(stopped):
    (path,) = aggregates(stopped, range(3, 4))
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with pytest.raises(IntegrityError, match="altered"):
        stop_of([stopped])
    path.unlink()
    with pytest.raises(IntegrityError, match="missing"):
        stop_of([stopped])


def test_a_run_that_trained_all_its_rounds_has_no_successor(recorded_run):
    with pytest.raises(ConfigError, match="nothing is left"):
        stop_of([read(recorded_run)])


def test_an_adapter_on_a_base_in_few_bits_has_no_successor(stopped):
    adapter = AdapterSpec(rank=2, alpha=4, targets=(Target.Q,), base_bits=8)
    run = replace(stopped, spec=replace(stopped.spec, model=replace(stopped.spec.model, adapter=adapter)))
    with pytest.raises(ConfigError, match="on a base in 8 bits: merged it needs more"):
        stop_of([run])


def test_the_longest_copy_counts_and_each_may_lack_something(recorded_run, stopped, theta, tmp_path):
    longer = Followed(a_participant(recorded_run, tmp_path / "other", STOPPED + 1)).read()
    for copy, at in ((longer, 0), (stopped, 1)):
        (path,) = aggregates(copy, range(at, at + 1))
        path.unlink()
    for copies in ([stopped, longer], [longer, stopped]):
        stop = stop_of(copies)
        assert stop.round == STOPPED
        np.testing.assert_array_equal(stop.theta_P, theta[STOPPED + 1])


def test_two_chains_of_one_run_are_told_and_none_is_chosen(stopped):
    last = stopped.links[-1]
    other = replace(last, manifest=replace(last.manifest, time_s=last.manifest.time_s + 1))
    forked = replace(stopped, links=(*stopped.links[:-1], other))
    for copies in ([stopped, forked], [forked, stopped]):
        with pytest.raises(IntegrityError, match="two manifests of round 5"):
            stop_of(copies)


# ---- the spec


def test_a_run_that_continues_none_has_the_bytes_of_before(stopped):
    assert stopped.spec.predecessor == NO_PREDECESSOR and NO_PREDECESSOR.TAG not in encode(stopped.spec)
    assert run_id_of(stopped.spec) == stopped.run_id


def test_the_successor_names_its_predecessor_and_has_what_is_left(stopped):
    stop = stop_of([stopped])
    spec = the_successor(stop)
    manifest = digest(stopped.links[STOPPED - 1].manifest)
    assert spec.predecessor == Predecessor(
        run_id=stopped.run_id, manifest=manifest, rounds=STOPPED, outer=NO_DIGEST
    )
    assert spec.rounds == stopped.spec.rounds - STOPPED and spec.model.base == stop.base
    assert decode(RunSpec, encode(spec)) == spec and run_id_of(spec) != stopped.run_id
    same = ("name", "seed", "data", "rule", "timing", "seats", "compute")
    assert all(getattr(spec, key) == getattr(stopped.spec, key) for key in same)


def test_a_predecessor_is_named_in_full(stopped):
    spec = the_successor(stop_of([stopped]))
    check_spec(spec)
    named = spec.predecessor
    for false in (
        replace(spec, predecessor=replace(named, run_id=NO_DIGEST)),
        replace(spec, predecessor=replace(named, manifest=NO_DIGEST)),
        replace(spec, predecessor=replace(named, rounds=0)),
        replace(spec, predecessor=replace(named, rounds=2**64 - 1)),
        replace(spec, model=replace(spec.model, base=NO_DIGEST)),
    ):
        with pytest.raises(ValueError, match="continues another"):
            check_spec(false)


def test_batches_and_learning_rates_go_on_where_the_stopped_run_was(stopped):
    old, spec = stopped.spec, the_successor(stop_of([stopped]))
    node, tokens = old.nodes[0].peer, old.tokens_per_step
    for at in range(spec.rounds):
        ahead = batch_positions(old, node, STOPPED + at, tokens)
        assert batch_positions(spec, node, at, tokens) == ahead
        schedule = old.rule.outer.schedule
        assert rate(schedule, *spec.in_line(at)) == rate(schedule, *old.in_line(STOPPED + at))


def test_a_second_successor_counts_all_rounds_before_it(stopped):
    spec = the_successor(stop_of([stopped]))
    again = replace(
        stop_of([stopped], 0), spec=spec, predecessor=replace(spec.predecessor, rounds=STOPPED + 1)
    )
    assert the_successor(again).in_line(0) == (stopped.spec.rounds, STOPPED + 1)


def test_fewer_nodes_than_the_run_had_are_waited_for(stopped):
    stop = stop_of([stopped])
    assert the_successor(stop).start_by_s == 0
    fewer = the_successor(stop, nodes=stop.spec.nodes[1:])
    assert fewer.start_by_s > NOW_S and fewer.least_nodes == stop.spec.least_nodes


def test_members_that_make_no_run_are_refused(stopped):
    with pytest.raises(ConfigError, match="do not make a run"):
        the_successor(stop_of([stopped]), verifiers=[])


@pytest.mark.parametrize(
    ("length", "rounds", "asked", "left"),
    [
        (2, 20, {0: 9, 2: 8, 3: 7, 5: 6}, {0: 7, 2: 6}),  # round 6 begins an epoch: the ends are the same
        (
            4,
            20,
            {0: 9, 1: 8, 4: 7},
            {0: 8, 3: 7},
        ),  # after 8 rounds of training, and now after 10
        (4, 12, {1: 8, 2: 7}, {0: 8, 1: 7}),
        (5, 11, {1: 8, 2: 7}, {0: 7}),  # both fall into the only epoch that is left: the later stays
        (2, 20, {0: 9}, {}),
    ],
)
def test_milestones_keep_their_rounds(stopped, length, rounds, asked, left):
    stop = stop_of([stopped])
    milestones = tuple(Milestone(epoch=at, most_loss_micro=loss) for at, loss in asked.items())
    accept = AcceptSpec(share_ppm=1, sequences=1, milestones=milestones)
    money = replace(stop.spec.money, epoch_rounds=length, accept=accept)
    audit = replace(stop.spec.audit, audit_rounds=12)
    old = replace(stop.spec, rounds=rounds, money=money, audit=audit)
    found = the_successor(replace(stop, spec=old)).money.accept
    assert {one.epoch: one.most_loss_micro for one in found.milestones} == left


# ---- what others check


def test_a_successor_is_compared_with_the_chain_that_it_continues(stopped):
    spec = the_successor(stop_of([stopped]))
    check_predecessor(spec, stopped)
    with pytest.raises(ConfigError, match="continues no run"):
        check_predecessor(stopped.spec, stopped)
    other = replace(spec, predecessor=replace(spec.predecessor, run_id=Digest(b"o" * 32)))
    with pytest.raises(ConfigError, match="continues run 6f6f"):
        check_predecessor(other, stopped)


CHANGED = {
    "root": Digest(b"o" * 32),
    "manifest": Digest(b"o" * 32),
    "tokenizer": Digest(b"o" * 32),
    "licence": "another",
}


@pytest.mark.parametrize("name", [*CHANGED, "validation_tokens"])
def test_a_successor_holds_out_nothing_that_was_trained_on_and_has_the_same_data(stopped, name):
    spec = the_successor(stop_of([stopped]))
    change = {name: CHANGED.get(name, spec.data.validation_tokens * 2)}
    other = replace(spec, data=replace(spec.data, **change))
    check_spec(other)

    with pytest.raises(IntegrityError, match="spec: data "):
        check_predecessor(other, stopped)


def test_a_successor_with_another_architecture_or_other_windows_is_found(stopped):
    spec = the_successor(stop_of([stopped]))
    heads = replace(spec, model=replace(spec.model, heads=2 * spec.model.heads))
    with pytest.raises(IntegrityError, match="spec: model "):
        check_predecessor(heads, stopped)
    pairs = replace(spec, compute=replace(spec.compute, beta_micro=100_000))
    with pytest.raises(IntegrityError, match="spec: window "):
        check_predecessor(pairs, stopped)
    adapted = replace(
        spec, model=replace(spec.model, adapter=AdapterSpec(rank=1, alpha=1, targets=(Target.Q,)))
    )
    check_predecessor(adapted, stopped)  # merged into the same model in the end


@pytest.mark.parametrize("what", ["manifest", "parameters", "outer buffers", "seed"])
def test_a_start_that_the_stopped_run_did_not_certify_is_found(stopped, what):
    spec, other = the_successor(stop_of([stopped])), Digest(b"o" * 32)
    false = {
        "manifest": lambda: replace(spec, predecessor=replace(spec.predecessor, manifest=other)),
        "parameters": lambda: replace(spec, model=replace(spec.model, base=other)),
        "outer buffers": lambda: replace(spec, predecessor=replace(spec.predecessor, outer=other)),
        "seed": lambda: replace(spec, seed=spec.seed + 1),
    }[what]()
    with pytest.raises(IntegrityError, match=f"spec: {what} "):
        check_predecessor(false, stopped)


def test_rounds_that_were_trained_are_not_counted_twice_or_left_out(stopped):
    spec = the_successor(stop_of([stopped]))
    for rounds in (STOPPED - 1, STOPPED + 1):
        with pytest.raises((ConfigError, IntegrityError)):
            check_predecessor(replace(spec, predecessor=replace(spec.predecessor, rounds=rounds)), stopped)


def test_the_start_is_written_beside_the_data_and_never_over_another(stopped, tmp_path):
    stop = stop_of([stopped])
    write_start(stop, tmp_path / "data")
    np.testing.assert_array_equal(np.load(tmp_path / "data" / BASE), stop.theta_P)
    write_start(stop, tmp_path / "data")
    with pytest.raises(ConfigError, match="other parameters"):
        write_start(stop_of([stopped], 1), tmp_path / "data")
    np.testing.assert_array_equal(np.load(tmp_path / "data" / BASE), stop.theta_P)


def test_a_buyer_without_a_key_names_another_for_the_successor_or_none(stopped):
    stop, key = stop_of([stopped]), Address(b"k" * 20)
    named = the_successor(stop, buyer_key=key)
    assert named.signer == key and named.buyer == stop.spec.buyer
    again = replace(stop, spec=named)
    assert the_successor(again).signer == the_successor(again, buyer_key=named.buyer).signer == named.buyer


def test_verification_says_what_a_run_continues_and_compares_it_where_that_run_is_there(
    recorded_run, stopped
):
    with pytest.raises(ConfigError, match="continues no run"):
        verify(read(recorded_run), predecessor=stopped)
    spec = the_successor(stop_of([stopped]))
    line = predecessor_line(spec, is_checked=False)
    assert stopped.run_id.hex() in line and f"after {STOPPED} rounds" in line and "--predecessor" in line
    assert "--predecessor" not in predecessor_line(spec, is_checked=True)
