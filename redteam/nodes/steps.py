"""Steps: attacks by a node in its own work, against an auditor that recomputes it.

Room: redteam. Every false step is written through the production node's files and judged by the production
`RecomputeWorker`. Where the auditor could trust the node's claim (batch, parameters, momentum), the defence
that is switched off is that it does not; where the lie is in no input at all, it is the recompute.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import assay.training.data.batches
import assay.training.optimiser.muon
import assay.training.optimiser.step
import assay.verifier.audit.carried
import assay.verifier.audit.tolerance
import assay.verifier.audit.worker
from assay.protocol.auditing.draws import opened_blocks
from assay.protocol.errors import ConfigError, MalformedMessage
from assay.protocol.messages import Outcome as Found
from assay.protocol.params import PPM, RunSpec
from assay.protocol.types import Digest
from assay.redteam.attack import Attacks, Outcome, Where, tallied, without
from assay.redteam.nodes.test_bed import (
    NODE,
    PEER,
    ROUNDS_BEFORE,
    StepClaim,
    TestBed,
    lab_between_classes,
    lab_of,
    lab_of_sizes,
)
from assay.simulation.attacks.catalogue import ATTACKS, FORESEEING, flipped_labels
from assay.simulation.attacks.scene import Scene
from assay.training.codec.contribution import decode_contribution
from assay.training.data.batches import read_tokens
from assay.training.model.sampling import step_batch
from assay.training.optimiser.node_state import start_private
from assay.training.optimiser.step import message
from assay.training.transform.compress import transition
from assay.verifier.audit.exact import check_opening, compare
from assay.verifier.audit.messages import Finding

NOBODYS = Digest(hashlib.sha256(b"a class that nobody has").digest())
AUDITS_OF_MANY = 250  # that a saboteur of one block of thousands wants to survive
BEACONS = 12  # audits that a campaign against few blocks meets
Off = Callable[[], AbstractContextManager[Any]]
_NONE = "none past the first audit"
_BITS = "recompute, bit for bit within a class"
STEP_ATTACKS = Attacks(Where.STEP)


@dataclass(frozen=True, slots=True)
class Trial:
    """A lie, how the auditor would have to be weakened to pass it, and the number of false steps."""

    told: StepClaim
    off: Off
    steps: int = 1
    predicted: Callable[[int], StepClaim] | None = (
        None  # undefended: the lie for each beacon, known beforehand
    )


Trials = Callable[[TestBed], list[Trial]]


def _recomputed(
    name: str,
    number: int,
    defence: str,
    harm: str = _NONE,
    lab_of_seed: Callable[[int], TestBed] = lab_of,
) -> Callable[[Trials], Trials]:
    """Add a row whose false steps, made by the function below, are each judged by the real auditor."""

    def add(trials: Trials) -> Trials:
        @STEP_ATTACKS.attack(name, number, defence)
        def run(is_defended: bool, seed: int) -> Outcome:
            lab = lab_of_seed(seed)
            tried = trials(lab)
            audits, caught = 0, 0
            for trial in tried:
                found, needed = _campaign(lab, trial, is_defended)
                caught += found
                audits += needed
            effect = harm.format(audits=audits / len(tried), blocks=lab.trainer.layout.blocks)
            return tallied(len(tried), caught, sum(trial.told.cost for trial in tried) / len(tried), effect)

        return trials

    return add


def _campaign(lab: TestBed, trial: Trial, is_defended: bool) -> tuple[bool, int]:
    """Whether the false steps are found, and after how many audits."""
    with nullcontext() if is_defended else trial.off():
        for beacon in range(trial.steps):
            claim = trial.told
            if not is_defended and trial.predicted is not None:
                claim = trial.predicted(beacon)
            try:
                if lab.is_caught(claim, beacon):
                    return True, beacon + 1
            except MalformedMessage:  # a message that no verifier decodes never enters an aggregate
                return True, beacon + 1
    return False, trial.steps


# ---- what is switched off


def _unseen(claim: StepClaim) -> Off:
    """Nobody recomputes: every claim of the node is trusted."""
    found = Finding(Found.MATCH, claim.sketches[0], 0, 0)
    return lambda: without(assay.verifier.audit.worker, "compare", lambda *_, **__: found)


def _nothing() -> AbstractContextManager[Any]:
    return nullcontext()


def _believed_batch(tokens: np.ndarray[Any, Any]) -> Off:
    """The auditor computes over the sequences that the node claims."""
    return lambda: without(assay.verifier.audit.worker, "step_batch", lambda *_, **__: tokens)


def _believed_spec(lab: TestBed, spec: RunSpec) -> Off:
    """The auditor computes with the precision and method that the node claims."""

    @contextmanager
    def off() -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(without(lab.recompute_worker, "spec", spec))
            stack.enter_context(without(lab, "spec", spec))
            yield

    return off


def _compare_without_state(*args: Any, **kwargs: Any) -> Finding:
    """`compare`, without checking the claimed momentum after the step."""
    compress, blocks, is_synced, before, _after, update, x = args
    after = before.copy()
    synced = np.flatnonzero(is_synced)
    after[synced] = transition(compress, before[synced], x[synced]).after_BC
    return compare(compress, blocks, is_synced, before, after, update, x, **kwargs)


# ---- the lies


@_recomputed("copy another's message", 1, f"{_BITS}; own batch")
def _copies(lab: TestBed) -> list[Trial]:
    peer = lab.step_of(PEER).update
    idle = lab.claim(np.zeros_like(lab.truth()), cost=0.0)
    claim = replace(idle, update=peer)
    return [Trial(claim, _unseen(claim))]


@_recomputed("replay an own old message", 2, _BITS)
def _replays(lab: TestBed) -> list[Trial]:
    record = lab.trainer.steps.record(lab.round - 1)
    assert record is not None
    claim = replace(lab.claim(np.zeros_like(lab.truth()), cost=0.0), update=record.update, after=lab.before)
    return [Trial(claim, _unseen(claim))]


@_recomputed("noise for a gradient", 1, _BITS)
def _noise(lab: TestBed) -> list[Trial]:
    true = lab.truth()
    noise = np.random.default_rng(lab.seed).standard_normal(true.shape).astype(np.float32)
    claim = lab.claim(noise * np.float32(np.linalg.norm(true) / np.linalg.norm(noise)), cost=0.0)
    return [Trial(claim, _unseen(claim))]


@_recomputed("chosen data shard", 4, "batch drawn from seed, round and node")
def _wrong_shard(lab: TestBed) -> list[Trial]:
    other = lab.batch(lab.round + 77), lab.batch(node=PEER)
    return [Trial(lab.claim(lab.x_of(batch)), _believed_batch(batch)) for batch in other]


@_recomputed("fewer tokens (1/8, 1/4, 1/2)", 5, "recompute over the whole batch")
def _fewer(lab: TestBed) -> list[Trial]:
    batch, trials = lab.batch(), []
    for kept in (7, 6, 4):
        part = batch[:kept]
        trials.append(Trial(lab.claim(lab.x_of(part), cost=kept / len(batch)), _believed_batch(part)))
    return trials


@_recomputed(
    "claim the most tokens, train fewer (1/4, 1/2)",
    5,
    "recompute over as many sequences as the commit counts",
    lab_of_seed=lab_of_sizes,
)
def _claims_more(lab: TestBed) -> list[Trial]:
    """A node is paid by the tokens of its commit: it says the most, and trains on the first of its batch."""
    most, trials = lab.spec.most_tokens_per_step, []
    whole = lab.batch(tokens=most)
    for kept in (len(whole) // 4, len(whole) // 2):
        part = whole[:kept]
        claim = lab.claim(lab.x_of(part, compute=lab.spec.compute), cost=kept / len(whole))
        trials.append(Trial(replace(claim, tokens=most), _believed_batch(part)))
    return trials


@_recomputed("skip one token of 128", 29, "exact class has no tolerance")
def _one_token(lab: TestBed) -> list[Trial]:
    batch = lab.batch().copy()
    batch[-1, -1] ^= 1
    claim = lab.claim(lab.x_of(batch), cost=1 - 1 / (batch.shape[0] * (batch.shape[1] - 1)))
    return [Trial(claim, _believed_batch(batch))]


@_recomputed("stale parameters", 6, "recompute at the chain's parameters")
def _stale(lab: TestBed) -> list[Trial]:
    read, trials = lab.recompute_worker.parameters.read, []
    for age in (1, 2):
        old = read(lab.round - age)
        claim = lab.claim(lab.x_of(lab.batch(), theta=old))

        def off(old: Any = old) -> AbstractContextManager[Any]:
            return without(lab.recompute_worker.parameters, "read", lambda _round: old)

        trials.append(Trial(claim, off))
    return trials


@_recomputed("lazy momentum (4 ways)", 7, "transition audit; strict decoder")
def _lazy_momentum(lab: TestBed) -> list[Trial]:
    x, compress, trials = lab.truth(), lab.spec.rule.compress, []
    # It starts from zero each time, and claims to continue.
    claim = lab.claim(x, before=start_private(lab.trainer.layout))

    def fresh(*args: Any) -> Any:
        before, after = check_opening(*args)
        return np.zeros_like(before), after

    trials.append(Trial(claim, lambda: without(assay.verifier.audit.worker, "check_opening", fresh)))
    # Another beta, or fewer coefficients, than ordered.
    for other_compress in (replace(compress, feedback_micro=900_000), replace(compress, k=compress.k // 2)):
        rule = replace(lab.spec.rule, compress=other_compress)
        other = replace(lab.spec, rule=rule)
        trials.append(Trial(lab.claim(x, spec=other), _believed_spec(lab, other)))
    # What was sent is not subtracted, so that it is sent again.
    true = lab.claim(x)
    kept = lab.before.error_NC * np.float32(compress.feedback_micro / PPM) + x
    claim = replace(true, after=replace(true.after, error_NC=kept))
    trials.append(
        Trial(claim, lambda: without(assay.verifier.audit.worker, "compare", _compare_without_state))
    )
    return trials


@_recomputed("lower precision", 9, "recompute in the ordered precision")
def _half_precision(lab: TestBed) -> list[Trial]:
    claim = lab.claim(lab.x_of(lab.batch(), compute=lab.bf16()), cost=0.5)
    return [Trial(claim, _believed_spec(lab, replace(lab.spec, compute=lab.bf16())))]


@_recomputed("flipped labels", 10, "recompute over the committed text")
def _flipped_labels(lab: TestBed) -> list[Trial]:
    batch = flipped_labels(lab.batch(), lab.spec.model.vocabulary)
    return [Trial(lab.claim(lab.x_of(batch)), _believed_batch(batch))]


@_recomputed(
    "crafted message (12 library attacks)",
    11,
    "recompute of what is sent",
    "bounded by the aggregate for {audits:.1f} audits on average",
)
def _crafted(lab: TestBed) -> list[Trial]:
    own, true, layout = lab.truth(), lab.claim(lab.truth()), lab.trainer.layout

    def decoded(body: bytes) -> Any:
        return decode_contribution(lab.spec, layout, lab.round, body)

    scene = Scene(
        honest=(decoded(lab.step_of(PEER).update),), own=(decoded(true.update),),
        block_count=layout.blocks, k=lab.spec.rule.compress.k, seed=lab.seed,
        direction_NC=lab.before.error_NC + own, round=30,
    )  # fmt: skip
    trials = []
    for name in sorted(set(ATTACKS) - {"none", "label-flip", "free-rider", "sleeper", *FORESEEING}):
        claim = replace(true, update=message(lab.spec, layout, ATTACKS[name](scene)[0]))
        trials.append(Trial(claim, _unseen(claim), BEACONS))
    return trials


@_recomputed("other coefficients, books kept", 7, "recompute of which are largest")
def _other_places(lab: TestBed) -> list[Trial]:
    """q' = q + e and m' = m - e: the implied gradient stays right, the choice of coefficients does not."""
    true, rng = lab.claim(lab.truth()), np.random.default_rng(lab.seed)
    update = decode_contribution(lab.spec, lab.trainer.layout, lab.round, true.update)
    index = np.sort(rng.permuted(np.tile(np.arange(4096), (len(update.blocks_B), 1)), axis=1)[:, :32], axis=1)
    after = true.after.error_NC.copy()
    rows = update.blocks_B[:, None]
    size = np.abs(after[update.blocks_B]).mean(axis=1, keepdims=True).astype(np.float32)
    after[rows, update.index_BK] += update.value_BK * size
    after[rows, index] -= update.value_BK * size
    moved = message(lab.spec, lab.trainer.layout, replace(update, index_BK=index))
    claim = replace(true, update=moved, after=replace(true.after, error_NC=after))
    return [Trial(claim, _unseen(claim))]


def _inject(lab: TestBed, blocks: list[int]) -> StepClaim:
    true = lab.claim(lab.truth())
    after, poison = true.after.error_NC.copy(), np.random.default_rng(lab.seed).standard_normal(4096)
    after[blocks] += poison.astype(np.float32) * np.float32(100 * np.abs(after).max())
    return replace(true, after=replace(true.after, error_NC=after))


@_recomputed("momentum injection, everywhere", 13, "transition audit")
def _injection(lab: TestBed) -> list[Trial]:
    claim = _inject(lab, list(range(lab.trainer.layout.blocks)))
    return [Trial(claim, lambda: without(assay.verifier.audit.worker, "compare", _compare_without_state))]


@_recomputed(
    "momentum injection, one block, once",
    13,
    "opened blocks: 16 of 22 here, by chance 64 of N in a large model",
    "a step that is drawn hides it with chance 1 - 16/22; then it leaks k signs of one block a round",
)
def _injection_once(lab: TestBed) -> list[Trial]:
    trials = []
    for beacon in range(8):
        claim = _inject(lab, [(lab.seed * 7 + beacon * 5) % lab.trainer.layout.blocks])
        off: Off = lambda: without(assay.verifier.audit.worker, "compare", _compare_without_state)  # noqa: E731
        trials.append(Trial(claim, off))
    return trials


def _poison(lab: TestBed, block: int) -> StepClaim:
    """An honest step, except that one block is sent with the opposite signs."""
    true = lab.claim(lab.truth())
    update = decode_contribution(lab.spec, lab.trainer.layout, lab.round, true.update)
    value = update.value_BK.copy()
    value[update.blocks_B == block] *= -1
    return replace(true, update=message(lab.spec, lab.trainer.layout, replace(update, value_BK=value)))


@_recomputed(
    "poison in one block",
    14,
    "blocks drawn after the commit",
    "one block of {blocks}: its signs, for {audits:.1f} audited steps",
)
def _poisoned_block(lab: TestBed) -> list[Trial]:
    true = lab.claim(lab.truth())
    live = decode_contribution(lab.spec, lab.trainer.layout, lab.round, true.update).blocks_B.tolist()

    def unopened(beacon: int) -> StepClaim:
        drawn = set(lab.drawn(true.update, beacon))
        return _poison(lab, next(block for block in live if block not in drawn))

    chosen = live[lab.seed % len(live)]
    return [Trial(_poison(lab, chosen), _nothing, BEACONS, unopened)]


@_recomputed("one bit of bias", 12, "committed sketch; bit for bit")
def _one_bit(lab: TestBed) -> list[Trial]:
    x = lab.truth().copy()
    at = (lab.seed * 5 % len(x), int(np.abs(x[lab.seed * 5 % len(x)]).argmax()))
    x[at] = np.nextafter(x[at], np.float32(9))
    claim = lab.claim(x)
    return [Trial(claim, _unseen(claim))]


@_recomputed("sketch of other work", 24, "sketch compared with a recompute's")
def _false_sketch(lab: TestBed) -> list[Trial]:
    claim = replace(lab.claim(lab.truth()), sketches=lab.sketch(lab.truth() * np.float32(2)))
    return [Trial(claim, _unseen(claim))]


@_recomputed("sketch prepared beforehand", 24, "pattern is the manifest before")
def _prepared_sketch(lab: TestBed) -> list[Trial]:
    """A sketch in the pattern of the manifest before: made once, to be reused."""
    x = lab.truth()
    claim = lab.claim(x)
    old = lab.trainer.steps.record(ROUNDS_BEFORE - 1)
    assert old is not None
    claim = replace(claim, sketches=old.sketches)
    return [Trial(claim, _unseen(claim))]


@STEP_ATTACKS.attack(
    "poison in one block of thousands", 14, "one of 32 audits is wide: it opens thousands of blocks"
)
def _poisoned_of_many(is_defended: bool, seed: int) -> Outcome:
    """One block of a large model is false in every step, audited a certain number of times.

    3,367 blocks of which 8 are opened stand for 26,938 (gpt-125m) of which 64 are. What the lab can hold is
    judged: a wide opening of every block of a step with one false block.
    """
    lab, blocks, poisoned = lab_of(seed), 3367, 1000
    rules = replace(lab.spec.audit, blocks=8, wide_ppm=PPM // 32 if is_defended else 0, wide_blocks=blocks)
    attempts, caught, audits = 5, 0, 0
    for number in range(attempts):
        for audit in range(AUDITS_OF_MANY):
            drawn = Digest(hashlib.sha256(b"many %d %d %d" % (seed, number, audit)).digest())
            opened = opened_blocks(drawn, NODE, rules, rules.floor_ppm, blocks, range(blocks))
            audits += 1
            if poisoned in opened:
                caught += 1
                break
    true = lab.claim(lab.truth())
    live = decode_contribution(lab.spec, lab.trainer.layout, lab.round, true.update).blocks_B.tolist()
    claim = _poison(lab, live[seed % len(live)])
    every = list(range(lab.trainer.layout.blocks))
    commit = lab.keep(claim)
    opening = lab.trainer.steps.opening(lab.round, every)
    found = lab.recompute_worker.examine(commit, claim.update, opening, every)
    assert found.outcome is Found.MISMATCH
    harm = f"k signs of one block of {8 * blocks:,} for {audits / attempts:.0f} audited steps"
    return tallied(attempts, caught, 1.0, harm)


@STEP_ATTACKS.attack(
    "write where no gradient reaches", 13, "nothing may be added where the reference class adds nothing"
)
def _untouched_block(is_defended: bool, seed: int) -> Outcome:
    """By a node of a class that nobody has, far below every limit; too few values to be sent at once."""
    lab = lab_between_classes(seed)
    true, k = lab.truth(), lab.spec.rule.compress.k
    block = int(np.flatnonzero(~true.any(axis=1))[-1])  # embeddings of tokens that no text has
    true[block, : k - 1] = np.abs(true).max() * np.float32(1e-9)
    claim = lab.claim(true)
    commit, every = replace(lab.keep(claim), exec_class=NOBODYS), list(range(lab.trainer.layout.blocks))
    opening = lab.trainer.steps.opening(lab.round, every)
    tolerance = assay.verifier.audit.tolerance
    with without(tolerance, "_is_untouched", lambda size_B: size_B < 0, unless=is_defended):
        found = lab.recompute_worker.examine(commit, claim.update, opening, every)
    harm = "none: undefended, the next steps send signs of its choice there, all paid"
    return tallied(1, found.outcome is Found.MISMATCH, 1.0, harm)


@STEP_ATTACKS.attack("poisoned documents", 10, "shards checked against the data root; recompute on them")
def _poisoned_document(is_defended: bool, seed: int) -> Outcome:
    """Text modified on the way to the participants, and a node that trains on its own version of it."""
    lab = lab_of(seed)
    folder = Path(shutil.copytree(lab.data, lab.folder / f"poisoned-{is_defended}", dirs_exist_ok=True))
    shard = next(folder.glob("shards/*"))
    poisoned = bytes(byte ^ 1 for byte in shard.read_bytes())
    shard.write_bytes(poisoned)
    caught = 0
    try:
        with without(assay.training.data.batches, "checked_shards", lambda *_: (), unless=is_defended):
            read_tokens(folder, lab.spec.data)
    except ConfigError:
        caught += 1
    tokens = np.frombuffer(poisoned, np.uint8)
    theta = lab.trainer.parameters.read(lab.round)
    batch = step_batch(lab.spec, lab.trainer.layout, theta, tokens, NODE, lab.round, lab.spec.tokens_per_step)
    claim = lab.claim(lab.x_of(batch))
    with without(lab.recompute_worker, "tokens", tokens, unless=is_defended):
        caught += lab.is_caught(claim)
    harm = "none: refused on the disk, and found out where a node used it"
    return tallied(2, caught, 1.0, harm)
