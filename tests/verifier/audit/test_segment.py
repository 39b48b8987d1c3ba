"""An audit of inner steps: honest segments match, lies are found where they lie, bad openings are refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path as FilePath

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.node.messages import StepRecord
from assay.protocol.auditing.draws import opened_blocks, opened_segment
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import MalformedMessage, Unavailable
from assay.protocol.messages import Outcome
from assay.protocol.openings import InnerBlocks, InnerOpening, Path
from assay.protocol.params import ComputeSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.protocol.update_rule import Outer, Transform, Values
from assay.testing.members import RUN_ID, a_digest, peer
from assay.testing.messages import a_commit
from assay.testing.signed import a_spec
from assay.testing.specs import FLOAT32_WHOLE, a_data_folder, a_rule
from assay.training.codec.contribution import decode_contribution
from assay.training.layout import layout_of
from assay.training.model.loss import use_one_thread
from assay.training.optimiser import muon
from assay.training.optimiser import step as rules
from assay.training.optimiser.aggregate import encode_round
from assay.training.optimiser.inner import InnerRoots, InnerState, fresh, inner_step
from assay.training.optimiser.momentum_root import zero_root
from assay.training.optimiser.node_state import start_private
from assay.training.transform.compress import distance_blocks
from assay.verifier.aggregation.registry import rule_of
from assay.verifier.audit.messages import Finding, opening_bytes_max
from assay.verifier.audit.segment import check_reached
from assay.verifier.audit.worker import RecomputeWorker
from tests.faulty import a_faulty_trainer

pytestmark = pytest.mark.slow

NODE = peer("nora")
SEED = Digest(hashlib.sha256(b"seed").digest())  # of a draw with which noise in tests stays in the limits
MATCH, MISMATCH = Outcome.MATCH, Outcome.MISMATCH

# Five steps in segments of two: the last one is short.
CASES = {
    "sparseloco": ("sparseloco", {}),
    "sparseloco, moments dropped": ("sparseloco", {"keeps_moments": False}),
    "sparseloco, late": ("sparseloco", {"read_lag": 1, "apply_lag": 1}),
    "sparseloco, of the transform": ("sparseloco", {"transform": Transform.DCT, "values": Values.INT8}),
    "diloco": ("diloco", {}),
    "muloco": ("muloco", {}),
    "muloco, of the transform": ("muloco", {"transform": Transform.DCT, "k": 64, "keeps_moments": False}),
    "diloco, rank 2": ("diloco", {"rank": 2, "feedback_micro": 900_000}),
    "streaming": ("streaming-diloco", {}),
    "streaming, at once": ("streaming-diloco", {"fragments": 2, "apply_lag": 0, "merge_ppm": 250_000}),
    "elastic": ("diloco", {"merge_ppm": 900_000, "outer": Outer.SGD}),
    "streaming, of the transform": ("streaming-diloco", {"fragments": 2, "transform": Transform.DCT}),
    "fedavg": ("fedavg", {}),
    "fedprox, adaptive": ("fedavg", {"proximal_micro": 10_000, "outer": Outer.ADAM}),
}
PUBLIC = {  # a round is one segment, and nothing of its inner state outlives it
    f"{method}, public start": (method, {"keeps_moments": False, "segment": 5})
    for method in ("sparseloco", "diloco", "muloco")
}
METHODS = ("sparseloco", "diloco", "muloco", "streaming", "fedavg")
every_case = pytest.mark.parametrize("name", CASES)
each_method = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FilePath:
    return a_data_folder(tmp_path_factory.mktemp("data"))


class Pair:
    """A node that trains, and an auditor that follows; every round is accepted unless told otherwise."""

    def __init__(
        self,
        data: FilePath,
        folder: FilePath,
        name: str,
        cheat: str = "honest",
        start: int = 0,
        *,
        compute: ComputeSpec = FLOAT32_WHOLE,
        **more: int,
    ) -> None:
        method, choices = (CASES | PUBLIC)[name]
        usual = {"steps": 5, "segment": 2, "sequences": 1, "inner_lr_nano": 2_000_000}
        rule = a_rule(method, **usual | choices | more)
        self.spec, self._folder, self._data = a_spec(rule=rule, rounds=20, compute=compute), folder, data
        self._cheat = cheat, start
        self.reopen()
        self.recompute_worker = RecomputeWorker(spec=self.spec, data=data, folder=folder / "auditor")
        self.base = (0, NO_DIGEST)

    def reopen(self) -> None:
        """The node's process starts again."""
        self.trainer = a_faulty_trainer(
            *self._cheat, spec=self.spec, run_id=RUN_ID, node=NODE, data=self._data,
            folder=self._folder / "node", salt_key=bytes(32),
        )  # fmt: skip

    @property
    def round(self) -> int:
        return self.trainer.parameters.round

    def step(self) -> StepRecord:
        return self.trainer.step(self.round, a_digest(f"manifest before {self.round}"), *self.base)

    def accept(self, record: StepRecord) -> None:
        self.base = (record.commit.round + 1, record.commit.momentum_after)
        layout, named = self.trainer.layout, self.spec.rule.aggregation
        update = decode_contribution(self.spec, layout, self.round, record.update)
        mean = rule_of(named.name, named.f, bytes(32))({NODE: update}, layout.blocks)
        self.pass_by(encode_round(self.spec.rule, mean, layout.blocks))

    def pass_by(self, aggregate: bytes = b"") -> None:
        round_id = self.round
        assert self.trainer.apply(round_id, aggregate) == self.recompute_worker.parameters.apply(
            round_id, aggregate
        )

    def drawn(self, record: StepRecord) -> list[int]:
        layout = self.trainer.layout
        live = decode_contribution(self.spec, layout, record.commit.round, record.update).blocks_B.tolist()
        return list(
            opened_blocks(SEED, NODE, self.spec.audit, self.spec.audit.floor_ppm, layout.blocks, live)
        )

    def opening(self, record: StepRecord, segment: int) -> InnerOpening:
        blocks = self.drawn(record)
        body = self.trainer.steps.opening(record.commit.round, blocks, segment)
        bound = opening_bytes_max(self.spec.rule, self.trainer.layout, len(blocks))
        return decode(InnerOpening, body, bound)

    def judge(
        self, record: StepRecord, segment: int, opening: InnerOpening | None = None, **changes
    ) -> Finding:
        shown = opening or self.opening(record, segment)
        commit = replace(record.commit, **changes)
        return self.recompute_worker.examine(
            commit, record.update, encode(shown), self.drawn(record), segment
        )

    def outcomes(self, record: StepRecord) -> list[Outcome]:
        return [self.judge(record, segment).outcome for segment in range(self.spec.rule.segments)]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    use_one_thread()


# ---- the truth


@every_case
def test_an_honest_step_matches_in_every_segment_of_every_round(data, tmp_path, name):
    pair = Pair(data, tmp_path, name)
    for _ in range(4):
        record = pair.step()
        assert pair.outcomes(record) == [MATCH] * 3
        pair.accept(record)


@every_case
def test_honest_steps_match_in_rounds_that_begin_anew(data, tmp_path, name):
    """The state that the node opens is not carried there; in the rounds between it is."""
    pair = Pair(data, tmp_path, name, reset_rounds=2)
    for _ in range(5):
        record = pair.step()
        assert pair.outcomes(record) == [MATCH] * 3
        pair.accept(record)


@every_case
def test_a_node_that_missed_the_round_in_which_its_state_begins_anew_matches_in_the_next(
    data, tmp_path, name
):
    """In the round's fragment, and in others, whose blocks are not sent in it."""
    pair = Pair(data, tmp_path, name, reset_rounds=2, feedback_micro=950_000)
    for number in range(9):
        if number in {4, 5, 6}:
            pair.pass_by()
            continue
        record = pair.step()
        assert pair.outcomes(record) == [MATCH] * 3
        pair.accept(record)


@every_case
def test_a_node_that_missed_rounds_or_lost_its_state_matches_too(data, tmp_path, name):
    pair = Pair(data, tmp_path, name)
    pair.accept(pair.step())
    pair.pass_by()  # nobody's commit counted
    pair.step()  # this one is not accepted, and must leave no trace
    pair.pass_by()
    record = pair.step()
    assert record.commit.base == 1
    assert pair.outcomes(record) == [MATCH] * 3
    pair.accept(record)

    (tmp_path / "node" / "steps" / "momentum-00000003.npy").unlink()
    fresh = pair.step()
    assert fresh.commit.base == 0
    assert fresh.commit.momentum_before == zero_root(RUN_ID, pair.spec.rule, pair.trainer.layout.blocks)
    assert pair.outcomes(fresh) == [MATCH] * 3
    pair.accept(fresh)
    assert pair.outcomes(pair.step()) == [MATCH] * 3


@each_method
def test_a_step_opens_after_a_restart_and_after_rounds_went_by(data, tmp_path, name):
    pair = Pair(data, tmp_path, name)
    first = pair.step()
    pair.accept(first)
    second = pair.step()
    pair.accept(second)
    pair.pass_by()
    pair.reopen()

    assert pair.outcomes(first) == pair.outcomes(second) == [MATCH] * 3


def test_an_inner_state_that_is_lost_or_damaged_makes_a_node_start_afresh(data, tmp_path):
    """As with its momentum: what it cannot show as the chain knows it, it must not use."""
    pair = Pair(data, tmp_path, "streaming")
    pair.accept(pair.step())
    path = tmp_path / "node" / "steps" / "inner-00000000-02.npz"
    whole = path.read_bytes()
    for body in (b"", whole[: len(whole) // 2], whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]):
        path.write_bytes(body)
        record = pair.trainer.step(1, a_digest(f"parent {len(body)}"), *pair.base)
        assert record.commit.base == 0


def test_moments_that_overflow_are_no_step_though_the_distance_is_finite(data, tmp_path, monkeypatch):
    """Infinite moments could not be opened; their node would be slashed for withholding them."""
    pair = Pair(data, tmp_path, "sparseloco", clip_micro=0)
    true = pair.trainer._gradient
    monkeypatch.setattr(pair.trainer, "_gradient", lambda *a: (1.0, true(*a)[1] * np.float32(1e30)))

    with pytest.raises(Unavailable, match="not finite"):
        pair.step()


# ---- rounds that start from public parameters alone


@pytest.mark.parametrize("name", PUBLIC)
def test_a_round_with_a_public_start_matches_and_its_opening_shows_blocks_alone(data, tmp_path, name):
    pair = Pair(data, tmp_path, name)
    for _ in range(3):
        record = pair.step()
        shown = pair.opening(record, 0)
        assert pair.outcomes(record) == [MATCH]
        assert (shown.start_theta, shown.start_moments, shown.last) == (b"", b"", ())
        pair.accept(record)


@pytest.mark.parametrize("name", PUBLIC)
@pytest.mark.parametrize("step", [0, 4])
def test_with_a_public_start_one_audit_finds_a_lie_in_any_inner_step(data, tmp_path, monkeypatch, name, step):
    pair = Pair(data, tmp_path, name)
    pair.accept(pair.step())
    count, true = 0, pair.trainer._gradient

    def sometimes(theta, tokens):
        nonlocal count
        count += 1
        loss, slope = true(theta, tokens)
        return loss, -slope if count - 1 == step else slope

    monkeypatch.setattr(pair.trainer, "_gradient", sometimes)

    assert pair.outcomes(pair.step()) == [MISMATCH]


@pytest.mark.parametrize("name", PUBLIC)
def test_with_a_public_start_false_moments_are_gone_after_their_round(data, tmp_path, monkeypatch, name):
    pair = Pair(data, tmp_path, name)
    true = pair.trainer._work

    def lying(round_id, before, tokens):
        work = true(round_id, before, tokens)
        false = tuple(moment + np.float32(1) for moment in work.ends[-1].moments)
        return replace(work, ends=(replace(work.ends[-1], moments=false),))

    monkeypatch.setattr(pair.trainer, "_work", lying)
    lie = pair.step()
    assert pair.outcomes(lie) == [MISMATCH]
    pair.accept(lie)  # it was not drawn
    monkeypatch.undo()
    of_nobody = true(pair.round, start_private(pair.trainer.layout), pair.spec.tokens_per_step)

    assert pair.step().commit.inner == pair.trainer.steps.inner_digests(of_nobody.ends)


# ---- lies. What the node computed goes into its states and into its message; one audit sees both.


@each_method
@pytest.mark.parametrize("cheat", ["stale-parameters", "wrong-data", "random-update", "no-feedback"])
def test_a_cheat_is_found_in_the_round_it_begins_in_whichever_segment_is_drawn(data, tmp_path, name, cheat):
    """No-feedback is told by the opened blocks alone, stale parameters by the start and by the distance sent.

    Streaming nodes send the fragment that has not moved since: stale parameters enter its step only
    where another fragment is merged, at the start.
    """
    pair = Pair(data, tmp_path, name, cheat, start=2)
    for _ in range(2):
        record = pair.step()
        assert pair.outcomes(record) == [MATCH] * 3
        pair.accept(record)

    record = pair.step()

    shows_in = (0,) if (name, cheat) == ("streaming", "stale-parameters") else (0, 1, 2)
    assert pair.outcomes(record) == [MISMATCH if s in shows_in else MATCH for s in range(3)]


@each_method
@pytest.mark.parametrize("segment", [0, 1, 2])
def test_a_lie_inside_one_segment_is_found_when_that_segment_is_drawn_and_in_no_other(
    data, tmp_path, monkeypatch, name, segment
):
    """One gradient is made up; all that follows is computed truly from there, and committed to."""
    pair = Pair(data, tmp_path, name)
    pair.accept(pair.step())
    count, true = 0, pair.trainer._gradient

    def sometimes(theta, tokens):
        nonlocal count
        count += 1
        loss, slope = true(theta, tokens)
        return loss, -slope if (count - 1) // 2 == segment else slope

    monkeypatch.setattr(pair.trainer, "_gradient", sometimes)
    record = pair.step()

    assert pair.outcomes(record) == [MISMATCH if s == segment else MATCH for s in range(3)]


@each_method
def test_a_node_that_sends_another_distance_than_it_went_is_found_in_every_segment(
    data, tmp_path, monkeypatch, name
):
    pair = Pair(data, tmp_path, name)
    true = distance_blocks
    monkeypatch.setattr(rules, "distance_blocks", lambda *a: true(*a) * np.float32(1.5))
    record = pair.step()
    monkeypatch.undo()

    assert pair.outcomes(record) == [MISMATCH] * 3


def test_a_node_that_makes_its_momentum_less_orthogonal_is_found_in_every_segment(
    data, tmp_path, monkeypatch
):
    pair = Pair(data, tmp_path, "muloco")
    pair.accept(pair.step())
    monkeypatch.setattr(muon, "NEWTON_SCHULZ_STEPS", 4)
    record = pair.step()
    monkeypatch.undo()

    assert pair.outcomes(record) == [MISMATCH] * 3


def test_a_false_momentum_is_found_where_it_enters_and_frees_no_later_step_from_its_gradient(
    data, tmp_path, monkeypatch
):
    """Without the bound of its moments a false 1e30 would leave no bit of them to any later gradient."""
    pair = Pair(data, tmp_path, "muloco", "random-update", start=2)
    true = pair.trainer._work

    def lying(round_id, before, tokens):
        work = true(round_id, before, tokens)
        huge = tuple(np.where(moment, np.float32(1e30), 0) for moment in work.ends[-1].moments)
        return replace(work, ends=(*work.ends[:-1], replace(work.ends[-1], moments=huge)))

    monkeypatch.setattr(pair.trainer, "_work", lying)
    lie = pair.step()
    assert pair.outcomes(lie) == [MATCH, MATCH, MISMATCH]
    pair.accept(lie)  # it was not drawn
    monkeypatch.undo()
    honest = pair.step()
    assert pair.outcomes(honest) == [MATCH] * 3
    pair.accept(honest)

    assert pair.outcomes(pair.step()) == [MISMATCH] * 3  # its gradients are noise from this round on


def test_a_carried_second_moment_of_matrices_cannot_be_opened(data, tmp_path, monkeypatch):
    """The rule keeps none there, and an opening shows none: such a state is not the committed one."""
    pair = Pair(data, tmp_path, "muloco")
    true = pair.trainer._work

    def lying(round_id, before, tokens):
        work = true(round_id, before, tokens)
        first_P, second_P = work.ends[-1].moments
        end = replace(work.ends[-1], moments=(first_P, second_P + np.float32(1e-3)))
        return replace(work, ends=(*work.ends[:-1], end))

    monkeypatch.setattr(pair.trainer, "_work", lying)
    pair.accept(pair.step())
    monkeypatch.undo()
    honest = pair.step()

    with pytest.raises(MalformedMessage, match=r"proof|leaf|committed"):
        pair.judge(honest, 0)


def test_a_start_at_the_nodes_own_parameters_is_found_where_the_rule_says_the_networks(
    data, tmp_path, monkeypatch
):
    """SparseLoCo carries moments, not parameters."""
    pair = Pair(data, tmp_path, "sparseloco")
    pair.accept(pair.step())
    true = rules.begin

    def own(spec, layout, theta, private, round_id):
        return replace(true(spec, layout, theta, private, round_id), theta_P=private.inner.theta_P)

    monkeypatch.setattr(rules, "begin", own)
    record = pair.step()
    monkeypatch.undo()

    assert pair.outcomes(record) == [MISMATCH, MATCH, MATCH]


def test_a_streaming_node_that_forgets_to_merge_is_found_in_the_first_segment(data, tmp_path, monkeypatch):
    pair = Pair(data, tmp_path, "streaming, at once")
    pair.accept(pair.step())
    monkeypatch.setattr(rules, "begin", lambda _spec, _layout, _theta, private, _round: private.inner)
    record = pair.step()
    monkeypatch.undo()

    assert pair.outcomes(record) == [MISMATCH, MATCH, MATCH]


def test_which_segment_is_drawn_follows_from_the_seed_and_every_one_comes_up():
    draws = [opened_segment(a_digest(f"seed {n}"), NODE, 3) for n in range(300)]

    assert {draws.count(segment) > 60 for segment in range(3)} == {True}
    assert set(draws) == {0, 1, 2}
    assert opened_segment(a_digest("seed"), NODE, 0) == 0


# ---- openings that are no openings


def refused(
    pair: Pair, record: StepRecord, segment: int, opening: InnerOpening, words: str, **changes
) -> None:
    with pytest.raises(MalformedMessage, match=words):
        pair.judge(record, segment, opening, **changes)


@pytest.fixture(scope="module", params=["sparseloco", "streaming", "fedavg"])
def third(request, data, tmp_path_factory) -> tuple[Pair, dict]:
    """A node's second step, with a state carried in where the rule carries one."""
    pair = Pair(data, tmp_path_factory.mktemp("third"), request.param)
    pair.accept(pair.step())
    return pair, pair.step()


def states_of(shown: InnerOpening) -> list[tuple[str, InnerBlocks]]:
    return [("end", shown.end), *(("last", state) for state in shown.last)]


def with_state(shown: InnerOpening, which: str, state: InnerBlocks) -> InnerOpening:
    return replace(shown, **{which: state if which == "end" else (state,)})


def spoiled(body: bytes) -> list[bytes]:
    if not body:
        return [bytes(4), bytes(16384)]
    ends = [body[:-1], body + b"\0", body[:-4], body + bytes(4)]
    return ends + [flipped(body, at) for at in (0, len(body) // 2, len(body) - 1)]


def flipped(body: bytes, at: int) -> bytes:
    changed = bytearray(body)
    changed[at] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("segment", [0, 1, 2])
def test_an_opening_of_another_segment_is_refused(third, segment):
    pair, record = third
    for other in {0, 1, 2} - {segment}:
        shown = pair.opening(record, other)
        refused(pair, record, segment, shown, f"segment {other}, expected the drawn {segment}")
        moved = replace(shown, segment=segment)
        refused(pair, record, segment, moved, "opening|leaf|proof")


@pytest.mark.parametrize("segment", [0, 1, 2])
@pytest.mark.parametrize("field", ["start_theta", "start_moments"])
def test_one_flipped_bit_cut_or_added_byte_of_the_start_is_refused(third, segment, field):
    pair, record = third
    shown = pair.opening(record, segment)
    for other in spoiled(getattr(shown, field)):
        refused(pair, record, segment, replace(shown, **{field: other}), "opening|not|root")


@pytest.mark.parametrize("segment", [0, 1, 2])
@pytest.mark.parametrize("field", ["theta", "moments"])
def test_one_flipped_bit_cut_or_added_byte_of_opened_blocks_is_refused(third, segment, field):
    """Of the state the segment ends in, and of the last one; what nobody asked for must be empty."""
    pair, record = third
    shown = pair.opening(record, segment)
    for which, state in states_of(shown):
        for other in spoiled(getattr(state, field)):
            lie = with_state(shown, which, replace(state, **{field: other}))
            refused(pair, record, segment, lie, "opening|not|root")


@pytest.mark.parametrize("segment", [0, 1, 2])
def test_counts_roots_and_paths_that_are_not_the_committed_ones_are_refused(third, segment):
    pair, record = third
    shown = pair.opening(record, segment)
    lies = [
        replace(shown, start_count=shown.start_count + 1),
        replace(shown, start_theta_root=a_digest("another start")),
        replace(shown, start_path=Path(hashes=(*shown.start_path.hashes, NO_DIGEST))),
        replace(shown, last_path=Path(hashes=(*shown.last_path.hashes, NO_DIGEST))),
    ]
    for which, state in states_of(shown):
        lies += [
            with_state(shown, which, replace(state, **lie))
            for lie in (
                {"count": state.count + 1},
                {"theta_root": a_digest("another root")},
                {"moments_root": a_digest("other moments")},
                {"theta_paths": state.theta_paths[::-1]},
                {"theta_paths": state.theta_paths[:-1]},
                {"moments_paths": state.moments_paths[::-1] or state.theta_paths},
                {"moments_paths": state.moments_paths[:-1] or state.theta_paths},
            )
        ]
    for lie in lies:
        refused(pair, record, segment, lie, "opening|not|root|proof|leaf|paths for")


def test_the_last_state_is_shown_once_and_the_moments_of_the_drawn_segment_alone(third):
    pair, record = third
    rule, blocks = pair.spec.rule, len(pair.drawn(record))
    moments = 2 * rule.carries_inner  # of these rules, those with moments carry them
    for segment in range(3):
        shown = pair.opening(record, segment)
        assert [len(state.theta) for _, state in states_of(shown)] == [blocks * 16384] * (1 + (segment < 2))
        assert len(shown.end.moments) == moments * blocks * 16384
        assert not any(state.moments or state.moments_paths for state in shown.last)


def test_a_last_state_too_many_or_too_few_is_refused(third):
    pair, record = third
    early, late = pair.opening(record, 1), pair.opening(record, 2)

    refused(pair, record, 1, replace(early, last=()), "0 last states beside that of segment 1 of 3")
    refused(pair, record, 2, replace(late, last=early.last), "1 last states beside that of segment 2 of 3")


def test_a_root_of_moments_is_refused_where_the_optimiser_has_none_even_if_it_is_committed(data, tmp_path):
    pair = Pair(data, tmp_path, "fedavg")
    record = pair.step()
    shown = pair.opening(record, 2)
    state = replace(shown.end, moments_root=a_digest("a root"))
    entry = InnerRoots(state.count, state.theta_root, state.moments_root).digest

    lie = replace(shown, end=state)
    refused(pair, record, 2, lie, "optimiser has none", inner=(*record.commit.inner[:2], entry))


def test_moments_in_the_place_of_parameters_and_of_one_another_are_refused(data, tmp_path):
    """Same values, same roots, other domain; or the same leaf with its halves exchanged."""
    pair = Pair(data, tmp_path, "sparseloco")
    pair.accept(pair.step())
    record = pair.step()
    shown = pair.opening(record, 1)
    end, size = shown.end, 16384
    halves = [end.moments[at : at + size] for at in range(0, len(end.moments), size)]
    swapped = b"".join(second + first for first, second in zip(halves[::2], halves[1::2], strict=True))

    for lie in (
        replace(end, theta=b"".join(halves[::2])),
        replace(end, moments=swapped),
        replace(end, theta_root=end.moments_root, moments_root=end.theta_root),
    ):
        refused(pair, record, 1, replace(shown, end=lie), "not")


@settings(max_examples=60)
@given(
    segment=st.integers(0, 2),
    is_last=st.booleans(),
    kind=st.sampled_from([field.name for field in fields(InnerBlocks)]),
    number=st.integers(0, 2**64 - 1),
    put=st.binary(max_size=40),
    taken=st.integers(0, 40),
)
def test_no_field_of_an_opening_can_be_exchanged_for_any_other_bytes(
    third, segment, is_last, kind, number, put, taken
):
    """Whatever the field and whatever is put there: refused in words, or it is what was there."""
    pair, record = third
    shown = pair.opening(record, segment)
    which, state = states_of(shown)[is_last and segment < 2]
    was = getattr(state, kind)
    if isinstance(was, int):
        other: object = number
    elif kind.endswith("_root"):
        other = Digest((put + was)[:32])
    elif isinstance(was, bytes):
        at = number % max(len(was), 1)
        other = was[:at] + put + was[at + taken :]
    else:
        paths = was or state.theta_paths
        other = (*paths[number % len(paths) :], *paths[: number % len(paths)])
    lie = with_state(shown, which, replace(state, **{kind: other}))
    if lie != shown:
        refused(pair, record, segment, lie, ".")


@pytest.mark.parametrize("side", ["start_path", "last_path"])
def test_a_missing_shortened_or_altered_path_of_the_carried_state_is_refused(third, side):
    pair, record = third
    shown = pair.opening(record, 0)
    hashes = getattr(shown, side).hashes
    others = [(*hashes, NO_DIGEST)]
    if hashes:
        others += [(), hashes[:-1], (a_digest("sibling"), *hashes[1:])]

    for other in others:
        refused(
            pair, record, 0, replace(shown, **{side: Path(hashes=other)}), "leaf|proof|path|none is carried"
        )


def test_end_blocks_of_another_state_or_with_other_paths_are_refused(third):
    pair, record = third
    shown = pair.opening(record, 1)
    earlier = pair.opening(pair.trainer.steps.record(0), 1)  # of the step before

    for (which, was), (_, state) in zip(states_of(earlier), states_of(shown), strict=True):
        for lie in (was, replace(state, theta=was.theta[: len(state.theta)])):
            refused(pair, record, 1, with_state(shown, which, lie), "opening|not|root")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_state_that_is_not_finite_is_refused_even_if_the_node_committed_to_it(data, tmp_path, value):
    """An auditor must not be made to compute on it; the honest never send such a step."""
    pair = Pair(data, tmp_path, "sparseloco")
    record = pair.step()
    steps, layout = pair.trainer.steps, pair.trainer.layout
    states = [steps._inner(0, segment) for segment in range(3)]
    for part in ("theta", "moment"):
        bad = states[0].theta_P.copy() if part == "theta" else states[0].moments[0].copy()
        bad[7] = value
        state = (
            replace(states[0], theta_P=bad)
            if part == "theta"
            else replace(states[0], moments=(bad, states[0].moments[1]))
        )
        inner = (steps.inner_digests([state])[0], *record.commit.inner[1:])
        shown = replace(
            pair.opening(record, 1),
            start_theta=state.theta_P.tobytes(),
            start_moments=b"".join(one.tobytes() for one in state.moments),
        )
        refused(pair, record, 1, shown, "not finite", inner=inner)
    assert layout.parameters == len(states[0].theta_P)


def committing(pair: Pair, segment: int, change: Callable[[InnerState], InnerState]) -> StepRecord:
    """A step whose node commits to another state after this segment than the one it reached."""
    true = pair.trainer._work

    def lying(round_id, before, tokens):
        work = true(round_id, before, tokens)
        ends = [change(end) if at == segment else end for at, end in enumerate(work.ends)]
        return replace(work, ends=tuple(ends))

    pair.trainer._work = lying
    try:
        return pair.step()
    finally:
        pair.trainer._work = true


IMPOSSIBLE = {
    "steps": lambda one: replace(one, count=2**62),
    "moments that no gradients have": lambda one: replace(
        one, moments=(one.moments[0] * np.float32(30), one.moments[1])
    ),
    "a negative mean of squares": lambda one: replace(
        one, moments=(one.moments[0] * 0, one.moments[1] - np.float32(1))
    ),
    "from where the round began": lambda one: replace(one, theta_P=one.theta_P * np.float32(30)),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_start_that_no_steps_lead_to_opens_nothing_though_its_node_committed_to_it(data, tmp_path, what):
    """From it the next segments may need no work, end the auditor, or be what a rounding explains."""
    pair = Pair(data, tmp_path, "sparseloco")
    pair.accept(pair.step())
    record = committing(pair, 0, IMPOSSIBLE[what])

    assert pair.judge(record, 0).outcome is MISMATCH
    with pytest.raises(MalformedMessage, match=what):
        pair.judge(record, 1)


@pytest.mark.parametrize("what", list(IMPOSSIBLE)[:2])
def test_nor_does_one_that_is_carried_into_the_next_round(data, tmp_path, what):
    pair = Pair(data, tmp_path, "sparseloco")
    pair.accept(committing(pair, 2, IMPOSSIBLE[what]))
    record = pair.step()

    with pytest.raises(MalformedMessage, match=what):
        pair.judge(record, 0)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["sparseloco", "diloco", "muloco", "clipped SGD"]),
    st.integers(0, 2**32),
    st.lists(st.floats(-30, 15), min_size=1, max_size=8),
    st.booleans(),
)
def test_whatever_gradients_a_node_has_they_lead_to_a_start_that_it_may_open(method, seed, scales, turns):
    rng, layout = np.random.default_rng(seed), layout_of(a_spec().model)
    rule = a_rule("fedavg" if method == "clipped SGD" else method)
    if method == "clipped SGD":
        rule = replace(rule, local=replace(rule.local, clip_micro=1_000_000))
    local = rule.local
    lr = np.float32(local.schedule.peak_nano / 1e9)
    theta_P = rng.standard_normal(layout.parameters).astype(np.float32) * np.float32(0.02)
    state, slope_P = fresh(local, theta_P), rng.standard_normal(layout.parameters).astype(np.float32)
    with np.errstate(all="ignore"):
        for scale in scales:
            slope_P = -slope_P if turns else rng.standard_normal(layout.parameters).astype(np.float32)
            state = inner_step(local, layout, lr, state, theta_P, slope_P * np.float32(10.0**scale))
        if state.is_finite:
            check_reached(rule, a_commit(0, NODE), theta_P, state, len(scales))


def test_a_start_shown_where_none_is_carried_is_refused(data, tmp_path):
    pair = Pair(data, tmp_path, "sparseloco")
    record = pair.step()  # the first: nothing is carried into it
    shown, size = pair.opening(record, 0), 4 * pair.trainer.layout.parameters

    for lie in (
        {"start_theta": bytes(size)},
        {"start_moments": bytes(2 * size)},
        {"start_count": 5},
        {"start_theta_root": a_digest("a root")},
        {"start_path": Path(hashes=(NO_DIGEST,))},
    ):
        refused(pair, record, 0, replace(shown, **lie), "where none is carried")


def test_an_opening_larger_than_any_message_is_taken_and_one_above_its_own_bound_is_not(
    data, tmp_path, monkeypatch
):
    """What a segment opens grows with the model; the bound of messages does not."""
    pair = Pair(data, tmp_path, "sparseloco")
    record = pair.step()
    body = encode(pair.opening(record, 1))
    bound = opening_bytes_max(pair.spec.rule, pair.trainer.layout, len(pair.drawn(record)))
    assert len(body) <= bound
    monkeypatch.setattr("assay.protocol.encoding.codec.MESSAGE_BYTES_MAX", len(body) - 1)

    assert pair.judge(record, 1).outcome is MATCH
    monkeypatch.setattr("assay.verifier.audit.worker.opening_bytes_max", lambda *_: len(body) - 1)
    with pytest.raises(MalformedMessage, match=f"at most {len(body) - 1} expected"):
        pair.judge(record, 1)


def test_a_step_of_another_execution_class_is_not_judged(third):
    pair, record = third

    assert pair.judge(record, 1, exec_class=Digest(b"x" * 32)).outcome is Outcome.INCONCLUSIVE
