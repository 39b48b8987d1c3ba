"""A node's private half, on a real tiny model: durable steps, openings, and lies that are found out."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from assay.devnet.faults.behaviours import NODE_BEHAVIOURS, NODE_CHEATS
from assay.node import trainer as trainers
from assay.node.messages import RepeatStep, TakeStep, WorkAhead
from assay.node.service import Service
from assay.node.trainer import Trainer
from assay.protocol.auditing.commitments import check_sketch_opening
from assay.protocol.auditing.draws import opened_blocks
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import Diverged, MalformedMessage, Unavailable
from assay.protocol.messages import Outcome
from assay.protocol.openings import Opening
from assay.protocol.types import NO_DIGEST, RoundId
from assay.testing.members import DOMAIN, RUN_ID, a_deployment, a_digest, a_hot_key, a_peer_key, peer
from assay.testing.signed import a_spec
from assay.testing.specs import a_data_folder
from assay.training.codec.wire import decode_update, encode_aggregate
from assay.training.model.loss import loss_and_gradient
from assay.training.optimiser import step as rules
from assay.training.optimiser.momentum_root import zero_root as start_root
from assay.training.optimiser.public_state import state_digest
from assay.training.transform.compress import transition
from assay.verifier.aggregation.mean import mean_over_senders
from assay.verifier.audit import worker as examiners
from assay.verifier.audit.exact import DISTANCE_PPB_MAX, check_opening
from assay.verifier.audit.worker import RecomputeWorker
from tests.faulty import a_faulty_trainer

pytestmark = pytest.mark.slow

SPEC = a_spec(rounds=40)
NODE = peer("nora")
SALT_KEY = b"k" * 32
LIES_ELSEWHERE = ("withhold-opening", "two-commits")  # the step itself is true; its node lies
KEEP = SPEC.audit.audit_rounds + SPEC.audit.dispute_rounds + 2


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return a_data_folder(tmp_path_factory.mktemp("data"))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "node"


def a_trainer(data, folder, name="honest", start=0, **more):
    return a_faulty_trainer(
        name, start, spec=SPEC, run_id=RUN_ID, node=NODE, data=data, folder=folder, salt_key=SALT_KEY, **more
    )


def parent_of(round_id):
    return a_digest(f"manifest before {round_id}")


def step(trainer, round_id, base=None):
    """This round's step on top of a record, or of zero momentum."""
    last, root = (0, NO_DIGEST) if base is None else (base.commit.round + 1, base.commit.momentum_after)
    return trainer.step(round_id, parent_of(round_id), last, root)


def aggregate_of(trainer, record):
    blocks = trainer.layout.blocks
    return encode_aggregate(mean_over_senders({NODE: sent_by(trainer, record)}, blocks), blocks)


def sent_by(trainer, record):
    return decode_update(record.update, trainer.layout.blocks, SPEC.rule.compress.k)


def trained(trainer, count):
    """So many accepted steps, each with the parameters that follow from it."""
    record, found = None, []
    for round_id in range(count):
        record = step(trainer, round_id, record)
        trainer.apply(round_id, aggregate_of(trainer, record))
        found.append(record)
    return found


def skip(trainer, count):
    """Rounds that end without a commit of anybody."""
    for _ in range(count):
        trainer.apply(trainer.parameters.round, b"")


def blocks_drawn(trainer, record):
    live = [int(b) for b in sent_by(trainer, record).blocks_B]
    return list(
        opened_blocks(a_digest("seed"), NODE, SPEC.audit, SPEC.audit.floor_ppm, trainer.layout.blocks, live)
    )


def opens(trainer, record):
    """Return only if the node can open this step so that every auditor takes it for an opening."""
    blocks = blocks_drawn(trainer, record)
    opening = decode(Opening, trainer.steps.opening(record.commit.round, blocks))
    check_opening(opening, record.commit, blocks, SPEC.rule, trainer.layout.blocks)


def zero_root(trainer):
    return start_root(RUN_ID, SPEC.rule, trainer.layout.blocks)


# ---- one step per round


def test_asked_again_for_a_round_a_trainer_returns_the_same_bytes(data, folder):
    trainer = a_trainer(data, folder)

    assert step(trainer, 0) == step(trainer, 0)


def test_asked_again_after_a_restart_it_returns_the_same_bytes(data, folder):
    first = step(a_trainer(data, folder), 0)

    assert step(a_trainer(data, folder), 0) == first


def test_a_node_restored_from_a_snapshot_signs_the_same_bytes_for_the_same_step(data, folder, tmp_path):
    """Another commit for the round would be equivocation, and cost an honest node its whole stake."""
    trainer = a_trainer(data, folder)
    base = step(trainer, 0)
    aggregate = aggregate_of(trainer, base)
    snapshot = tmp_path / "snapshot"
    shutil.copytree(folder, snapshot)
    me = SimpleNamespace(
        spec=SPEC,
        deployment=a_deployment(),
        domain=DOMAIN,
        keys=SimpleNamespace(peer=a_peer_key("nora"), hot=a_hot_key("nora")),
    )

    signed = []
    for disk in (folder, snapshot):
        trainer = a_trainer(data, disk)
        trainer.apply(0, aggregate)
        record = step(trainer, 1, base)
        signed.append(encode(Service._signed(SimpleNamespace(me=me), record.commit)))

    assert signed[0] == signed[1]


def test_salts_differ_by_key_and_parent(data, folder, tmp_path):
    first = step(a_trainer(data, folder), 0)
    other = Trainer(
        spec=SPEC, run_id=RUN_ID, node=NODE, data=data, folder=tmp_path / "other",
        salt_key=b"another secret of 32 bytes......",
    )  # fmt: skip
    again = a_trainer(data, folder).step(0, a_digest("another parent"), 0, NO_DIGEST)

    assert len({first.salt, step(other, 0).salt, again.salt}) == 3


def test_a_step_stays_the_same_when_the_parameters_have_moved_on(data, folder):
    trainer = a_trainer(data, folder)
    first = step(trainer, 0)
    trainer.apply(0, aggregate_of(trainer, first))

    assert step(trainer, 0) == first


def test_on_another_parent_it_is_another_step(data, folder):
    trainer = a_trainer(data, folder)
    first = step(trainer, 0)

    second = trainer.step(0, a_digest("another parent"), 0, NO_DIGEST)

    assert second.commit.commitment != first.commit.commitment
    assert second.update == first.update  # same parameters, same batch


def test_a_round_whose_parameters_are_not_here_is_refused(data, folder):
    with pytest.raises(Diverged, match="round 1 while at round 0"):
        step(a_trainer(data, folder), 1)


def test_a_crash_between_momentum_and_record_leaves_the_round_to_be_done_again(data, folder):
    trainer = a_trainer(data, folder)
    first = step(trainer, 0)
    (folder / "steps" / "00000000.cbor").unlink()

    again = step(a_trainer(data, folder), 0)

    assert again.commit.momentum_after == first.commit.momentum_after
    opens(trainer, again)


@pytest.mark.parametrize("body", [b"", b"\x80", b"\xff" * 100, b"\xa0"])
def test_a_record_that_disk_has_damaged_is_made_again(data, folder, body):
    trainer = a_trainer(data, folder)
    step(trainer, 0)
    (folder / "steps" / "00000000.cbor").write_bytes(body)

    opens(trainer, step(trainer, 0))


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_step_whose_loss_is_not_finite_is_no_step(data, folder, monkeypatch, loss):
    trainer = a_trainer(data, folder)
    true = loss_and_gradient
    monkeypatch.setattr(trainers, "loss_and_gradient", lambda *a, **k: (loss, true(*a, **k)[1]))

    with pytest.raises(Unavailable, match="not finite"):
        step(trainer, 0)
    assert list((folder / "steps").iterdir()) == []


def test_a_step_whose_gradient_is_not_finite_is_no_step(data, folder, monkeypatch):
    """Its opening would be discarded and the node slashed for withholding it."""
    trainer = a_trainer(data, folder)
    true = loss_and_gradient
    monkeypatch.setattr(
        trainers, "loss_and_gradient", lambda *a, **k: (1.0, true(*a, **k)[1] * np.float32("nan"))
    )

    with pytest.raises(Unavailable, match="not finite"):
        step(trainer, 0)


# ---- momentum


def test_the_first_step_starts_from_zero_and_the_next_from_the_one_before(data, folder):
    trainer = a_trainer(data, folder)
    first, second = trained(trainer, 2)

    assert first.commit.momentum_before == zero_root(trainer)
    assert second.commit.momentum_before == first.commit.momentum_after != zero_root(trainer)


def test_the_state_that_a_step_starts_from_is_read_and_hashed_beside_its_gradient(data, folder, monkeypatch):
    trainer = a_trainer(data, folder)
    has_begun = threading.Event()
    before, gradient = trainer._before, trainer._gradient

    def late(*base):
        assert has_begun.wait(60), "the gradient waits for the root"
        return before(*base)

    def begun(*arguments):
        has_begun.set()
        return gradient(*arguments)

    monkeypatch.setattr(trainer, "_before", late)
    monkeypatch.setattr(trainer, "_gradient", begun)

    assert step(trainer, 0) == step(a_trainer(data, folder), 0)


def test_momentum_that_is_missing_damaged_or_not_the_chains_is_not_used(data, folder):
    trainer = a_trainer(data, folder)
    (first,) = trained(trainer, 1)
    path = folder / "steps" / "momentum-00000000.npy"
    whole = path.read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])

    for number, body in enumerate([b"", whole[:100], whole[:-4], flipped, b"no array"]):
        path.write_bytes(body)
        record = trainer.step(1, a_digest(f"parent {number}"), 1, first.commit.momentum_after)
        assert record.commit.momentum_before == zero_root(trainer) and record.commit.base == 0
        opens(trainer, record)
    path.unlink()
    record = trainer.step(1, a_digest("no file"), 1, first.commit.momentum_after)
    assert record.commit.momentum_before == zero_root(trainer)
    path.write_bytes(whole)
    other_root = trainer.step(1, a_digest("other root"), 1, a_digest("what the chain says"))
    assert other_root.commit.momentum_before == zero_root(trainer)


# ---- openings


def test_every_recent_step_opens_its_commit(data, folder):
    trainer = a_trainer(data, folder)

    for record in trained(trainer, 3):
        opens(trainer, record)


def test_a_step_opens_after_a_restart(data, folder):
    records = trained(a_trainer(data, folder), 2)

    for record in records:
        opens(a_trainer(data, folder), record)


@pytest.mark.parametrize("gap", [1, KEEP - 1, KEEP])
def test_a_step_on_an_old_momentum_can_be_opened_for_as_long_as_it_can_be_drawn(data, folder, gap):
    """A node that missed rounds goes on from an old step; forgetting that one would look like a fault."""
    trainer = a_trainer(data, folder)
    (old,) = trained(trainer, 1)
    skip(trainer, gap - 1)
    record = step(trainer, gap, old)
    assert record.commit.base == 1
    trainer.apply(gap, aggregate_of(trainer, record))

    latest = record
    for round_id in range(gap + 1, gap + KEEP):
        opens(trainer, record)
        latest = step(trainer, round_id, latest)
        trainer.apply(round_id, aggregate_of(trainer, latest))
    opens(trainer, record)


def test_after_a_reset_accepted_steps_can_still_be_opened(data, folder):
    """Else one liar who says "diverged" would have an honest node slashed for withholding."""
    trainer = a_trainer(data, folder)
    records = trained(trainer, 2)

    trainer.reset()

    assert trainer.parameters.round == 0
    for record in records:
        opens(trainer, record)
        opens(a_trainer(data, folder), record)


def test_after_a_reset_training_goes_on_from_the_momentum_that_the_chain_knows(data, folder):
    trainer = a_trainer(data, folder)
    first, second = trained(trainer, 2)
    trainer.reset()
    for record in (first, second):
        trainer.apply(record.commit.round, aggregate_of(trainer, record))

    third = step(trainer, 2, second)

    assert third.commit.momentum_before == second.commit.momentum_after
    assert step(trainer, 1, first) == second


def test_a_step_that_is_gone_or_damaged_is_said_to_be(data, folder):
    trainer = a_trainer(data, folder)
    first, second = trained(trainer, 2)

    with pytest.raises(Diverged, match="round 7"):
        trainer.steps.opening(7, [0])
    (folder / "steps" / "momentum-00000000.npy").write_bytes(b"")
    for record in (first, second):
        with pytest.raises(Diverged, match=f"round {record.commit.round}"):
            trainer.steps.opening(record.commit.round, [0])


def shown(trainer, record):
    """What a node shows of a step: the opening and the sketch, which its commit binds."""
    sketch = trainer.steps.sketch_openings(record.commit, 0)
    check_sketch_opening(sketch, record.commit, 0)
    return trainer.steps.opening(record.commit.round, [0, 1, 2]), sketch


@pytest.mark.parametrize("damage", ["a flipped bit", "gone"])
@pytest.mark.parametrize(
    "names", [("00000002.cbor",), ("momentum-00000002.npy",), ("momentum-00000001.npy",),
              ("momentum-00000000.npy", "momentum-00000001.npy", "momentum-00000002.npy", "00000002.cbor")],
)  # fmt: skip
def test_a_step_whose_files_are_damaged_is_repeated_bit_for_bit(data, folder, names, damage):
    trainer = a_trainer(data, folder)
    records = trained(trainer, 4)
    opened = [shown(trainer, record) for record in records]
    for name in names:
        path = folder / "steps" / name
        body = bytearray(path.read_bytes())
        path.unlink()
        if damage == "a flipped bit":
            body[-1 if name.endswith("cbor") else 200] ^= 1  # of a sketch, or of the first block
            path.write_bytes(body)
    with pytest.raises((Diverged, MalformedMessage)):
        shown(trainer, records[2])

    assert trainer.answer(RepeatStep(commit=records[2].commit, tasks_from=0)) == records[2]

    assert [shown(trainer, record) for record in records] == opened
    assert step(trainer, 4, records[3]) == step(a_trainer(data, folder), 4, records[3])


def test_a_step_that_cannot_be_repeated_is_said_to_be_and_no_file_changes(data, folder):
    trainer = a_trainer(data, folder)
    records = trained(trainer, 3)
    before = {path: path.read_bytes() for path in (folder / "steps").iterdir()}
    with pytest.raises(Diverged, match="another commit"):
        trainer.repeat(replace(records[2].commit, loss_micro=1))
    assert {path: path.read_bytes() for path in (folder / "steps").iterdir()} == before

    for name in ("momentum-00000001.npy", "00000001.cbor"):
        (folder / "steps" / name).unlink()
    with pytest.raises(Diverged, match="before round 2"):
        trainer.repeat(records[2].commit)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("place", [None, 0, 40, -1])
def test_a_tree_that_is_gone_or_damaged_is_made_again_from_the_state(data, folder, number, place):
    trainer = a_trainer(data, folder)
    records = trained(trainer, 2)
    opened = [trainer.steps.opening(record.commit.round, [0, 1, 2]) for record in records]
    path = folder / "steps" / f"tree-{number:08d}.bin"
    body = bytearray(path.read_bytes())
    if place is None:
        path.unlink()
    else:
        body[place] ^= 1
        path.write_bytes(body)

    assert [trainer.steps.opening(record.commit.round, [0, 1, 2]) for record in records] == opened


def test_an_opening_reads_only_the_drawn_blocks(data, folder):
    """So it costs the same for any model, and a bit flipped elsewhere makes nobody withhold."""
    trainer = a_trainer(data, folder)
    trained(trainer, 1)
    opened = trainer.steps.opening(0, [0, 1])
    path = folder / "steps" / "momentum-00000000.npy"
    body = bytearray(path.read_bytes())
    body[-1] ^= 1  # of the last block
    path.write_bytes(body)

    assert trainer.steps.opening(0, [0, 1]) == opened
    with pytest.raises(Diverged, match="round 0"):
        trainer.steps.opening(0, [trainer.layout.blocks - 1])


def test_what_is_kept_on_disk_stays_bounded_over_many_rounds(data, folder):
    trainer = a_trainer(data, folder)
    record, counts = None, []
    (folder / "steps").mkdir(parents=True, exist_ok=True)
    (folder / "steps" / "momentum-00000000.partial").write_bytes(b"of a killed process")
    for round_id in range(4 * KEEP):
        if round_id % 3 == 0:  # some rounds are missed
            record = step(trainer, round_id, record)
        trainer.apply(round_id, b"" if round_id % 3 else aggregate_of(trainer, record))
        counts.append(sum(1 for path in folder.rglob("*") if path.is_file()))

    assert max(counts[3 * KEEP :]) <= max(counts[2 * KEEP : 3 * KEEP])
    assert max(counts) <= 3 * (KEEP + 2) + 3  # a record, a state and its tree
    assert not list((folder / "steps").glob("*.partial"))


# ---- lies


def audited(data, tmp_path, trainer):
    """What an audit finds of each of four accepted steps."""
    recompute_worker = RecomputeWorker(spec=SPEC, data=data, folder=tmp_path / "recompute_worker")
    records = trained(trainer, 4)
    for record in records:
        recompute_worker.parameters.apply(record.commit.round, aggregate_of(trainer, record))

    def outcome(record):
        blocks = blocks_drawn(trainer, record)
        opening = trainer.steps.opening(record.commit.round, blocks)
        return recompute_worker.examine(record.commit, record.update, opening, blocks).outcome

    return [outcome(record) for record in records]


@pytest.mark.parametrize("name", NODE_BEHAVIOURS)
def test_an_audit_finds_every_cheat_that_opens_and_clears_everybody_else(data, folder, tmp_path, name):
    lies = name in NODE_CHEATS and name not in LIES_ELSEWHERE
    expected = [Outcome.MATCH] * 2 + [Outcome.MISMATCH if lies else Outcome.MATCH] * 2

    assert audited(data, tmp_path, a_trainer(data, folder, name, start=2)) == expected


@pytest.mark.parametrize("name", ["honest", "no-feedback"])
def test_a_known_answer_task_is_a_false_step_that_opens_and_the_rest_is_as_it_was(
    data, folder, tmp_path, name
):
    """Only from the round on in which the node's announcement counts."""
    trainer = a_trainer(data, folder, name, start=3, known_answers=frozenset({0, 1}))
    trainer._tasks_from = 1

    last = Outcome.MATCH if name == "honest" else Outcome.MISMATCH
    expected = [Outcome.MATCH, Outcome.MISMATCH, Outcome.MATCH, last]
    assert audited(data, tmp_path, trainer) == expected


@pytest.mark.parametrize("name", NODE_BEHAVIOURS)
def test_only_a_diverged_node_names_other_parameters_than_the_chains(data, folder, name):
    """A cheat lies about its step, not about what everybody can see."""
    trainer = a_trainer(data, folder, name, start=1)
    honest = a_trainer(data, folder.with_name("honest"), "honest")
    trained(trainer, 1)
    trained(honest, 1)

    says_the_truth = step(trainer, 1).commit.state == step(honest, 1).commit.state
    assert says_the_truth == (name != "diverge")


def test_a_diverged_node_is_honest_after_its_reset_and_after_a_restart(data, folder):
    trainer = a_trainer(data, folder, "diverge", start=0)
    wrong = step(trainer, 0)
    trainer.reset()

    for number, one in enumerate((trainer, a_trainer(data, folder, "diverge", start=0)), start=1):
        assert step(one, 0) == wrong  # the word of this round was given
        skip(one, number - one.parameters.round)
        right = step(one, number)
        assert right.commit.state == state_digest(one.parameters.at(number))


# ---- what an auditor does with it


def judged(data, tmp_path, trainer, record, **changes):
    recompute_worker = RecomputeWorker(spec=SPEC, data=data, folder=tmp_path / "recompute_worker")
    blocks = blocks_drawn(trainer, record)
    commit = replace(record.commit, **changes)
    return recompute_worker.examine(
        commit, record.update, trainer.steps.opening(record.commit.round, blocks), blocks
    )


def test_an_auditor_of_another_execution_class_finds_nothing(data, folder, tmp_path):
    trainer = a_trainer(data, folder)
    record = step(trainer, 0)

    assert judged(data, tmp_path, trainer, record).outcome is Outcome.MATCH
    other = judged(data, tmp_path, trainer, record, exec_class=a_digest("another class"))
    assert other.outcome is Outcome.INCONCLUSIVE


def test_a_commit_on_a_gradient_that_is_not_finite_is_a_lie(data, folder, tmp_path, monkeypatch):
    trainer = a_trainer(data, folder)
    record = step(trainer, 0)
    true = loss_and_gradient
    monkeypatch.setattr(
        examiners, "loss_and_gradient", lambda *a, **k: (1.0, true(*a, **k)[1] * np.float32("nan"))
    )

    assert judged(data, tmp_path, trainer, record).outcome is Outcome.MISMATCH


def test_the_largest_momenta_are_judged_like_any_others(data, folder, tmp_path, monkeypatch):
    """A difference beyond float32 must end in a verdict, not in an exception of the auditor."""
    trainer = a_trainer(data, folder)
    record = step(trainer, 0)
    huge = np.full((trainer.layout.blocks, 4096), np.finfo(np.float32).max, np.float32)
    true = transition
    monkeypatch.setattr(rules, "transition", lambda *a: replace(true(*a), after_BC=huge))
    lie = trainer.step(0, a_digest("for the lie"), 0, NO_DIGEST)

    found = judged(data, tmp_path, trainer, lie)

    assert (found.outcome, found.distance_ppb) == (Outcome.MISMATCH, DISTANCE_PPB_MAX)
    assert record.update == lie.update


@pytest.mark.parametrize("name", ["honest", "no-feedback"])
def test_memory_that_is_kept_between_steps_changes_no_byte(data, tmp_path, monkeypatch, name):
    keeps = a_trainer(data, tmp_path / "keeps", name)
    record, kept = None, []
    for round_id in range(3):
        record = step(keeps, round_id, record)
        kept.append(record)
        keeps.apply(round_id, aggregate_of(keeps, record))
    assert keeps._room is not None
    monkeypatch.setattr(trainers, "ROOM_BYTES_MAX", 0)
    plain, record = a_trainer(data, tmp_path / "plain", name), None
    for round_id in range(3):
        record = step(plain, round_id, record)
        assert record == kept[round_id]
        plain.apply(round_id, aggregate_of(plain, record))
    assert plain._room is None


def test_who_subtracts_nothing_keeps_all_of_its_work(data, folder):
    liar = a_trainer(data, folder, "no-feedback")
    step(liar, 0)
    state = liar.steps.private(1)

    assert liar._room is not None and state is not None
    assert np.array_equal(state.error_NC, liar._room)  # on top of a momentum of zeros


# ---- work ahead of the manifest


OLD = replace(SPEC, rule=replace(SPEC.rule, read_lag=1))


@pytest.fixture
def counted(data, folder, monkeypatch):
    """A trainer whose rule reads old parameters, and how many gradients it has made."""
    trainer = Trainer(spec=OLD, run_id=RUN_ID, node=NODE, data=data, folder=folder, salt_key=SALT_KEY)
    made = []
    gradient = trainer._gradient

    def counted_gradient(*seen):
        made.append(1)
        return gradient(*seen)

    monkeypatch.setattr(trainer, "_gradient", counted_gradient)
    return trainer, made


def test_work_done_ahead_is_the_step_that_would_have_been_made_then(counted, data, tmp_path):
    trainer, made = counted
    plain = Trainer(
        spec=OLD,
        run_id=RUN_ID,
        node=NODE,
        data=data,
        folder=tmp_path / "other",
        salt_key=SALT_KEY,
    )
    record = other = None
    for round_id in range(4):
        record, other = step(trainer, round_id, record), step(plain, round_id, other)
        assert record == other
        assert trainer.ahead(round_id + 1, round_id + 1, record.commit.momentum_after)
        count = len(made)
        for one, its in ((trainer, record), (plain, other)):
            one.apply(round_id, aggregate_of(one, its))
        assert len(made) == count == round_id + 2  # one gradient a round, and one ahead


def test_work_on_a_contribution_that_was_not_accepted_is_done_again(counted, data, tmp_path):
    trainer, made = counted
    first = step(trainer, 0)
    assert trainer.ahead(1, 1, first.commit.momentum_after)
    trainer.apply(0, b"")

    again = step(trainer, 1, None)

    assert len(made) == 3
    assert again.commit.momentum_before == zero_root(trainer)


def test_work_ahead_is_forgotten_with_the_parameters(counted):
    trainer, made = counted
    first = step(trainer, 0)
    assert trainer.ahead(1, 1, first.commit.momentum_after)
    trainer.reset()
    trainer.apply(0, aggregate_of(trainer, first))

    step(trainer, 1, first)

    assert len(made) == 3


def test_nothing_is_done_ahead_that_is_not_one_round_ahead_or_needs_new_parameters(counted, data, folder):
    trainer, made = counted
    first = step(trainer, 0)
    root = first.commit.momentum_after
    assert not trainer.ahead(0, 0, NO_DIGEST)  # the present round is `step`'s
    assert not trainer.ahead(2, 1, root)
    plain = a_trainer(data, folder)
    assert not plain.ahead(1, 1, root)
    assert len(made) == 1


def test_a_known_answer_task_is_not_begun_ahead_before_it_is_known_whether_it_counts(counted):
    """The manifest that is being agreed on may carry the node's announcement."""
    trainer, made = counted
    trainer.known_answers = frozenset({1})
    first = step(trainer, 0)
    ahead = WorkAhead(round=RoundId(1), tasks_from=0, base=1, base_root=first.commit.momentum_after)
    trainer.answer(ahead)
    assert len(made) == 1
    trainer.answer(replace(ahead, tasks_from=1))
    assert len(made) == 2
    trainer.apply(0, aggregate_of(trainer, first))
    false = trainer.answer(
        TakeStep(round=RoundId(1), tasks_from=1, parent=parent_of(1), base=1,
                 base_root=first.commit.momentum_after)
    )  # fmt: skip
    assert len(made) == 2
    assert trainer.answer(RepeatStep(commit=false.commit, tasks_from=1)) == false
    with pytest.raises(Diverged, match="another commit"):
        trainer.answer(RepeatStep(commit=false.commit, tasks_from=2))
