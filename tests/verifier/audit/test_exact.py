"""An audit: an honest step matches to the bit, every cheat we know does not, and bad openings are refused."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import pytest

from assay.devnet.faults.behaviours import NODE_CHEATS
from assay.participant.compute import Workplace
from assay.protocol.auditing.audits import REFERENCE
from assay.protocol.auditing.commitments import commitment_of, sketch_digest
from assay.protocol.encoding import merkle
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Commit, Outcome
from assay.protocol.openings import Opening, Path
from assay.protocol.params import BLOCK_SIZE, RunSpec
from assay.protocol.types import NO_DIGEST, Digest, RoundId
from assay.testing.members import NODES, RUN_ID
from assay.testing.messages import a_commit
from assay.testing.run import a_spec
from assay.testing.specs import a_rule
from assay.training.codec.wire import Update, decode_update, encode_aggregate
from assay.training.data.batches import describe
from assay.training.data.shards import write_tokens
from assay.training.model.loss import use_one_thread
from assay.training.model.presets import gpt_spec
from assay.training.optimiser.momentum_root import momentum_leaves
from assay.training.transform.compress import transition, work_sketch
from assay.verifier.aggregation.mean import mean_over_senders
from assay.verifier.audit.exact import check_opening, compare
from assay.verifier.audit.messages import Examine, Examined, Finding, RecomputeStart
from assay.verifier.audit.worker import MEMORY, RecomputeWorker, open_worker
from tests.faulty import a_faulty_trainer

# ---- one step made by hand, all of it in view ----

BLOCKS, OPENED, LR = 9, (0, 3, 4, 8), np.float32(0.002)
RULE = a_rule(k=32, clip_micro=0)
SALT, PARENT = Digest(b"s" * 32), Digest(b"p" * 32)


@dataclass(frozen=True)
class Step:
    """What a node did, and what its auditor computed."""

    before: np.ndarray
    after: np.ndarray
    update: Update
    spectrum: np.ndarray  # the auditor's, times the learning rate
    sketch: bytes  # the node's

    @property
    def commit(self) -> Commit:
        """What the node signed."""
        return a_commit(
            5,
            NODES[0],
            parent=PARENT,
            base=1,
            momentum_before=merkle.root(momentum_leaves(RUN_ID, self.before)),
            momentum_after=merkle.root(momentum_leaves(RUN_ID, self.after)),
            commitment=commitment_of(SALT, [sketch_digest(self.sketch)]),
        )

    @property
    def opening(self) -> Opening:
        """What the node shows when drawn."""
        rows = list(OPENED)
        leaves_before, leaves_after = (
            momentum_leaves(RUN_ID, self.before),
            momentum_leaves(RUN_ID, self.after),
        )
        return Opening(
            run_id=RUN_ID,
            round=RoundId(5),
            node=NODES[0],
            blocks=OPENED,
            before=self.before[rows].tobytes(),
            after=self.after[rows].tobytes(),
            paths_before=tuple(Path(hashes=merkle.proof(leaves_before, b)) for b in OPENED),
            paths_after=tuple(Path(hashes=merkle.proof(leaves_after, b)) for b in OPENED),
        )

    def judge(self) -> Finding:
        """What an auditor finds once the node has shown its sketch, as in a dispute."""
        opening = decode(Opening, encode(self.opening))
        before, after = check_opening(opening, self.commit, OPENED, RULE, BLOCKS)
        sketch = sketch_digest(work_sketch(PARENT, self.spectrum))
        return compare(
            RULE.compress,
            OPENED,
            np.ones(len(OPENED), bool),
            before,
            after,
            self.update,
            self.spectrum[list(OPENED)],
            recomputed=sketch,
            is_work_equal=sketch == sketch_digest(self.sketch),
        )


def random_blocks(seed: int, scale: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((BLOCKS, BLOCK_SIZE)) * scale).astype(np.float32)


def a_step(spectrum: np.ndarray | None = None, **changes) -> Step:
    """An honest step; `spectrum` is what the node says its gradient was."""
    before, true = random_blocks(1, 0.01), random_blocks(2) * LR
    true[4] = before[4] = 0  # a block without gradient sends nothing
    used = true if spectrum is None else spectrum
    moved = transition(RULE.compress, before, used)
    step = Step(before, moved.after_BC, moved.sent, true, work_sketch(PARENT, used))
    return replace(step, **changes)


def test_an_honest_step_matches():
    finding = a_step().judge()

    assert finding.outcome is Outcome.MATCH
    assert finding.distance_ppb == 0
    assert finding.recomputed == sketch_digest(work_sketch(PARENT, a_step().spectrum))


def test_another_gradient_does_not_match():
    assert a_step(random_blocks(3) * LR).judge().outcome is Outcome.MISMATCH


@pytest.mark.parametrize("block", OPENED)
def test_one_bit_of_the_gradient_of_one_opened_block_does_not_match(block):
    other = a_step().spectrum.copy()
    other[block, 100] = np.nextafter(other[block, 100], np.float32(9))

    assert a_step(other).judge().outcome is Outcome.MISMATCH


def test_a_lie_in_a_block_that_is_not_opened_is_seen_by_the_sketch():
    other = a_step().spectrum.copy()
    other[1] = random_blocks(9)[1] * LR

    assert a_step(other).judge().outcome is Outcome.MISMATCH


@pytest.mark.parametrize("block", [0, 3, 8])
def test_one_flipped_bit_of_the_momentum_after_does_not_match(block):
    honest = a_step()
    after = honest.after.copy()
    after.view(np.uint32)[block, 4095] ^= 1

    finding = replace(honest, after=after).judge()

    assert finding.outcome is Outcome.MISMATCH


def test_keeping_what_was_sent_does_not_match_and_the_worst_block_is_named():
    honest = a_step()
    after = honest.after.copy()
    after[3] = honest.before[3] * np.float32(0.95) + honest.spectrum[3]

    finding = replace(honest, after=after).judge()

    assert finding.outcome is Outcome.MISMATCH
    assert finding.block == 3
    assert finding.distance_ppb > 10**6


@pytest.mark.parametrize("change", ["sign", "index", "missing block", "additional block"])
def test_a_message_other_than_what_was_subtracted_does_not_match(change):
    honest = a_step()
    update = honest.update
    blocks, index, sign = update.blocks_B.copy(), update.index_BK.copy(), update.value_BK.copy()
    at = blocks.tolist().index(3)
    if change == "sign":
        sign[at, 5] *= -1
    if change == "index":
        free = sorted(set(range(BLOCK_SIZE)) - set(index[at].tolist()))
        index[at, 5] = free[0]
        index[at].sort()
    if change == "missing block":
        keep = blocks != 3
        blocks, index, sign = blocks[keep], index[keep], sign[keep]
    if change == "additional block":
        order = np.argsort([*blocks, 4])
        blocks = np.append(blocks, 4)[order]
        index, sign = np.vstack([index, index[:1]])[order], np.vstack([sign, sign[:1]])[order]

    assert replace(honest, update=Update(blocks, index, sign)).judge().outcome is Outcome.MISMATCH


def test_a_sketch_of_another_gradient_does_not_match_though_all_opened_blocks_do():
    finding = a_step(sketch=work_sketch(PARENT, random_blocks(7) * LR)).judge()

    assert finding.outcome is Outcome.MISMATCH
    assert finding.distance_ppb == 0


def test_a_sketch_of_the_manifest_before_cannot_be_prepared():
    finding = a_step(sketch=work_sketch(Digest(b"q" * 32), a_step().spectrum)).judge()

    assert finding.outcome is Outcome.MISMATCH


@pytest.mark.parametrize("size", [3e38, 1e-45, -3e38])
def test_momentum_of_any_finite_size_is_judged_not_crashed_on(size):
    before = a_step().before.copy()
    before[0, :2000] = np.float32(size)
    with np.errstate(all="ignore"):
        finding = a_step(before=before).judge()

    assert finding.outcome is Outcome.MISMATCH
    assert 0 <= finding.distance_ppb <= 10**12


# ---- openings that are no openings ----


def refused(opening: Opening, match: str, commit: Commit | None = None, blocks=OPENED) -> None:
    with pytest.raises(MalformedMessage, match=match):
        check_opening(opening, commit or a_step().commit, blocks, RULE, BLOCKS)


@pytest.mark.parametrize("change", [{"round": RoundId(6)}, {"node": NODES[1]}, {"run_id": Digest(bytes(32))}])
def test_an_opening_of_another_step_is_refused(change):
    refused(replace(a_step().opening, **change), "of another step")


def test_other_blocks_than_the_drawn_ones_are_refused():
    refused(a_step().opening, "expected the drawn", blocks=(0, 3, 5, 8))
    refused(a_step().opening, "expected the drawn", blocks=OPENED[:3])


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("at", [0, 16384 * 2 + 77, 16384 * 4 - 1])
def test_one_changed_byte_of_an_opened_block_is_refused(side, at):
    opening = a_step().opening
    body = bytearray(getattr(opening, side))
    body[at] ^= 1

    refused(replace(opening, **{side: bytes(body)}), "is not under root")


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_path_that_is_altered_swapped_cut_or_lengthened_is_refused(side):
    opening = a_step().opening
    paths = getattr(opening, f"paths_{side}")
    wrong = [
        (Path(hashes=(Digest(bytes(32)), *paths[0].hashes[1:])), *paths[1:]),
        (paths[1], paths[0], *paths[2:]),
        (Path(hashes=paths[0].hashes[:-1]), *paths[1:]),
        (Path(hashes=(*paths[0].hashes, NO_DIGEST)), *paths[1:]),
        paths[:-1],
        (*paths, paths[0]),
    ]
    for one in wrong:
        refused(replace(opening, **{f"paths_{side}": one}), "leaf|proof|paths")


@pytest.mark.parametrize("count", [0, 1, 16384 * 4 - 1, 16384 * 4 + 1, 16384 * 5])
def test_too_few_or_too_many_bytes_are_refused(count):
    body = (a_step().opening.before * 2)[:count]

    refused(replace(a_step().opening, before=body), "bytes")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["before", "after"])
def test_momentum_that_is_not_finite_is_refused_even_if_the_node_committed_to_it(value, side):
    body = getattr(a_step(), side).copy()
    body[3, 9] = value
    step = a_step(**{side: body})

    refused(step.opening, "not finite", step.commit)


# ---- the real thing: a node that trains, and an auditor that recomputes ----

MODEL = gpt_spec(layers=1, width=64, heads=2, context=16)
TEXT = np.frombuffer(b"".join(b"line %d of a text to train on\n" % n for n in range(400)), np.uint8)
CHEAT_ROUND = 3
# Lies that are not in the step itself: no recompute can see them, other rules do.
ELSEWHERE = {"withhold-opening", "two-commits"}
DRAWN = [0, 2, 5, 9, 14, 21]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    use_one_thread()


def a_run() -> RunSpec:
    base = a_spec()
    data = describe(write_tokens(None, [TEXT]), validation_tokens=500, source="lines", licence="none")
    rule = a_rule(k=32, lr_nano=2_000_000, floor_ppm=0)
    return replace(base, model=MODEL, data=data, rule=rule)


def test_a_worker_is_the_one_its_start_describes(tmp_path, caplog):
    (tmp_path / MEMORY).write_bytes(b"of no run")
    write_tokens(tmp_path / "data", [TEXT])
    place = Workplace(data=str(tmp_path / "data"), folder=str(tmp_path), base="", device="cpu", threads=1)

    worker = open_worker(RecomputeStart(spec=a_run(), workplace=place, limits=""))

    assert (worker.spec, worker.device, worker.limits) == (a_run(), "cpu", None)
    assert "bias memory is lost" in caplog.text  # it looked for one where it keeps its own


def trained_and_audited(folder, behaviour: str, rounds: int = CHEAT_ROUND + 1) -> list[Finding]:
    """What an auditor finds in each round of a node with this behaviour, all rounds audited."""
    spec, node = a_run(), NODES[0]
    write_tokens(folder / "data", [TEXT])
    trainer = a_faulty_trainer(
        behaviour,
        CHEAT_ROUND,
        spec=spec,
        run_id=RUN_ID,
        node=node,
        data=folder / "data",
        folder=folder / "node",
        salt_key=bytes(32),
    )
    recompute_worker = RecomputeWorker(spec=spec, data=folder / "data", folder=folder / "verifier")
    blocks, findings = trainer.layout.blocks, []
    base, base_root = 0, NO_DIGEST
    for number in range(rounds):
        parent = Digest(hashlib.sha256(b"manifest %d" % number).digest())
        step = trainer.step(number, parent, base, base_root)
        findings.append(
            recompute_worker.examine(step.commit, step.update, trainer.steps.opening(number, DRAWN), DRAWN)
        )
        update = decode_update(step.update, blocks, spec.rule.compress.k)
        aggregate = encode_aggregate(mean_over_senders({node: update}, blocks), blocks)
        assert trainer.apply(number, aggregate) == recompute_worker.parameters.apply(number, aggregate)
        base, base_root = number + 1, step.commit.momentum_after
    return findings


def test_an_honest_node_matches_in_every_round(tmp_path):
    findings = trained_and_audited(tmp_path, "honest")

    assert [finding.outcome for finding in findings] == [Outcome.MATCH] * len(findings)


@pytest.mark.parametrize("cheat", sorted(set(NODE_CHEATS) - {"withhold-opening", "two-commits"}))
def test_every_lie_in_a_step_is_found_in_the_round_it_begins_and_not_before(tmp_path, cheat):
    findings = trained_and_audited(tmp_path, cheat)

    assert [finding.outcome for finding in findings] == [Outcome.MATCH] * CHEAT_ROUND + [Outcome.MISMATCH]


def test_a_step_of_another_execution_class_is_not_judged(tmp_path, monkeypatch):
    monkeypatch.setattr("assay.verifier.audit.worker.execution_class", lambda *_: Digest(b"x" * 32))

    findings = trained_and_audited(tmp_path, "honest", rounds=1)

    assert findings == [Finding(Outcome.INCONCLUSIVE, NO_DIGEST, 0, 0)]


def an_audit(folder: Path) -> tuple[RecomputeWorker, Examine]:
    """A worker, and a request of its own class whose opening is empty."""
    write_tokens(folder / "data", [TEXT])
    worker = RecomputeWorker(spec=a_run(), data=folder / "data", folder=folder)
    (folder / "opening").write_bytes(b"")
    return worker, Examine(
        commit=replace(a_commit(0, NODES[0]), exec_class=worker.exec_class), update=b"",
        opening=str(folder / "opening"), blocks=(), segment=0, committed=NO_DIGEST, pattern=NO_DIGEST,
        drawn_by=NO_DIGEST, in_reference=False,
    )  # fmt: skip


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("in_reference", [True, False])
def test_an_answer_names_the_class_that_recomputed(tmp_path, monkeypatch, is_own, in_reference):
    worker, request = an_audit(tmp_path)
    finding = Finding(Outcome.MATCH, NO_DIGEST, 0, 0)
    monkeypatch.setattr(
        worker, "examine", lambda *_, **asked: replace(finding, is_biased=asked["in_reference"])
    )
    of_class = worker.exec_class if is_own else Digest(b"x" * 32)
    commit = replace(request.commit, exec_class=of_class)
    request = replace(request, commit=commit, in_reference=in_reference)

    answer = worker.answer(request)

    assert answer == Examined(
        finding=replace(finding, is_biased=in_reference),
        exec_class=worker.exec_class if is_own and not in_reference else REFERENCE,
    )


@pytest.mark.parametrize("error", [ZeroDivisionError, OverflowError, ValueError, IndexError])
def test_an_audit_whose_program_errs_is_inconclusive_and_kills_no_process(tmp_path, monkeypatch, error):
    """Else a node with such numbers would keep everybody from judging its steps, which are then paid."""
    worker, request = an_audit(tmp_path)

    def errs(*_, **__):
        raise error("of a node's numbers")

    monkeypatch.setattr(worker, "examine", errs)

    found = Finding(Outcome.INCONCLUSIVE, NO_DIGEST, 0, 0)
    assert worker.answer(request) == Examined(finding=found, exec_class=worker.exec_class)


@pytest.mark.parametrize("error", [MemoryError, OSError, RuntimeError, MalformedMessage])
def test_what_our_own_machine_may_have_caused_is_no_verdict(tmp_path, monkeypatch, error):
    worker, request = an_audit(tmp_path)

    def errs(*_, **__):
        raise error("of ours")

    monkeypatch.setattr(worker, "examine", errs)

    with pytest.raises(error):
        worker.answer(request)
