"""Look back: draws over the last steps, tried beside states that begin anew. For docs/odds.md, section 7.

    python -m benchmarks.look_back [--lives 40000] [--rounds 1024] [--back 128] [--floor 0.05] [--seeds 3]

The protocol draws the last step and renews states; draws among the last `--back` accepted ones are made here
alone. *Draws*: lives of a node at the floor of the rate, which lies once, or once in T rounds, by the draws
of `protocol/auditing`; as many audits each way. A *replay* repeats all steps of a window from the state
before it, and is drawn as many times less often: as much compute. *Trainers*: real ones, of which one lies
once; each of its last steps is opened and judged. *Bytes*: what both ways keep. *Loss*: of trainings with
and without renewal.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.node.steps import StepFiles
from assay.orders.data.tokenise import collect_tokens
from assay.orders.spec import data_spec
from assay.protocol.auditing.draws import is_drawn
from assay.protocol.messages import Outcome
from assay.protocol.params import PPM, RunSpec
from assay.protocol.types import Digest
from assay.protocol.update_rule import BLOCK_SIZE
from assay.redteam.nodes.test_bed import NODE, SEQUENCES, TestBed
from assay.simulation.spec import SimFile, SimSpec, sim_of, sim_run_spec
from assay.simulation.train import simulate
from assay.testing.members import RUN_ID
from assay.training.codec.contribution import decode_contribution
from assay.training.codec.wire import update_bytes_max
from assay.training.layout import layout_of
from assay.training.methods.choices import Choices, method_rule
from assay.training.model.loss import use_one_thread
from assay.training.model.presets import PRESETS
from assay.training.optimiser import step as rules
from assay.training.optimiser.carry import is_renewed
from assay.training.optimiser.node_state import commit
from assay.training.optimiser.public_state import THETA, PublicState, kept_rounds
from benchmarks.machine import machine
from benchmarks.texts import text_table

NEVER = 1024  # rounds until a state begins anew: longer than any run here
BLOCKS = 213  # of gpt-1m
MODELS = ("gpt-1m", "gpt-15m", "gpt-125m", "llama-1b")
AGES = (1, 4, 16, 32, 64, 96, 127)  # steps after a lie
LIE, SEED, OPENED = 3, 1, 16  # round of a trainer's lie; of its test bed; blocks of an opening
SIZES = {"layers": 2, "width": 64, "heads": 2, "context": 128}  # of trainings: 0.1 M parameters


@dataclass(frozen=True, slots=True)
class Way:
    """How steps are audited. back: accepted steps among which a draw falls. reset: T, or NEVER.

    window: steps that one audit repeats, the drawn one last.
    """

    name: str
    back: int
    reset: int
    window: int = 1


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a lie. found: rounds after it; None: never. later: steps from a false state.

    audits: From it on.
    """

    found: int | None
    later: int
    audits: int


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lives", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=1024, help="of a run; a node lies in its first half")
    parser.add_argument("--back", type=int, default=128, help="rounds D of a look back, and T of a renewal")
    parser.add_argument("--floor", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, default=3, help="trainings for each loss")
    parser.add_argument("--steps", type=int, default=400, help="of a training")
    args = parser.parse_args()
    use_one_thread()
    print(f"machine: {machine()}")
    print_draws(args.lives, args.rounds, args.back, int(args.floor * PPM))
    with tempfile.TemporaryDirectory() as folder:
        print_trainers(Path(folder), args.back)
    print_bytes(args.back)
    print_losses(args.seeds, args.steps, (args.back, args.back // 4))


# ---- draws


def ways(back: int) -> tuple[Way, ...]:
    """Those that are compared."""
    return (
        Way("last step, no renewal", 1, NEVER),
        Way(f"last {back} steps, no renewal", back, NEVER),
        Way(f"last step, renewal every {back}", 1, back),
        Way(f"last {back} steps, renewal every {back}", back, back),
        Way(f"replay of {back} steps, no renewal", 1, NEVER, back),
    )


def print_draws(lives: int, rounds: int, back: int, rate_ppm: int) -> None:
    """A row for each way and kind of liar."""
    print(
        f"\n{lives} lives of a node that is drawn with {rate_ppm / PPM:g} in each of {rounds} rounds\n\n"
        "| draws | lies | found | rounds until found | later steps from a false state | audits since it |\n"
        "|---|---|---|---|---|---|"
    )
    kinds = {(every, way): name for name, every in _liars(back).items() for way in ways(back)}
    fates: dict[tuple[int, Way], list[Fate]] = {kind: [] for kind in kinds}
    for life in range(lives):
        for (every, way), lived_so in fates.items():
            lived_so.append(lived(way, life, rounds, every, rate_ppm))
    for (every, way), name in kinds.items():
        found = [fate.found for fate in fates[every, way] if fate.found is not None]
        until = f"{np.mean(found):.1f}" if found else "-"
        later, audits = (
            np.mean([getattr(fate, of) for fate in fates[every, way]]) for of in ("later", "audits")
        )
        print(f"| {way.name} | {name} | {len(found) / lives:.2%} | {until} | {later:.1f} | {audits:.1f} |")


def _liars(back: int) -> dict[str, int]:
    """Rounds between two lies; 0: there is one."""
    return {"once": 0, f"once in {back} rounds": back}


def lived(way: Way, life: int, rounds: int, every: int, rate_ppm: int) -> Fate:
    """One life of a node that trains in every round, and lies in one of the first half, or from it on.

    Args:
        way: How it is audited.
        life: Seed of its draws.
        rounds: Of the run.
        every: Rounds between two of its lies; 0: it lies once.
        rate_ppm: Of draws, of one step each; of longer windows as many times fewer.
    """
    first = _number(life, -1, b"lie") % (rounds // 2)
    lies = range(first, rounds, every) if every else range(first, first + 1)
    found, audits = None, 0
    for round_id in drawn_rounds(life, rounds, rate_ppm // way.window):
        if round_id < first:
            continue
        audits += 1
        last = round_id - _number(life, round_id, b"back") % way.back
        if any(step in lies for step in range(max(last - way.window + 1, 0), last + 1)):
            found = round_id
            break
    end = rounds if found is None else found + 1
    after = lasting(way.reset) + 1
    false = {step for lie in lies if lie < end for step in range(lie + 1, min(lie + after, end))}
    return Fate(None if found is None else found - first, len(false.difference(lies)), audits)


@functools.lru_cache(maxsize=4)
def drawn_rounds(life: int, rounds: int, rate_ppm: int) -> tuple[int, ...]:
    """The rounds in which a node that is drawn at this rate is drawn."""
    seeds = (Digest(hashlib.sha256(b"beacon %d %d" % (life, number)).digest()) for number in range(rounds))
    return tuple(number for number, seed in enumerate(seeds) if is_drawn(seed, NODE, rate_ppm))


@functools.lru_cache
def lasting(reset: int) -> int:
    """Steps after a lie that begin with a block of what it wrote, in a model of `BLOCKS` blocks."""
    rule, blocks = method_rule("demo", Choices(reset_rounds=reset)), np.arange(BLOCKS)
    steps = 0
    while steps < NEVER and not is_renewed(rule, 1, steps + 1, blocks, np.zeros_like(blocks)).all():
        steps += 1
    return steps


def _number(life: int, round_id: int, what: bytes) -> int:
    return int.from_bytes(hashlib.sha256(b"%s %d %d" % (what, life, round_id)).digest(), "big")


# ---- trainers


def print_trainers(folder: Path, back: int) -> None:
    """What audits of every kept step find, what a lie decides later, and what is on disk."""
    ages = [age for age in AGES if age < back]
    print(
        "\nreal trainers, one of which lies once; share of its messages decided otherwise, steps after it\n\n"
        f"| renewal | lie | {' | '.join(map(str, ages))} |\n|{'---|' * (len(ages) + 2)}"
    )
    usual, _ = lied(folder / "usual", reset=back, rounds=back, back=0)
    beds = {}
    for reset in (back, NEVER):
        beds[reset], shares = lied(folder / f"{reset}", reset=reset, rounds=back, back=back)
        for name, by_age in shares.items():
            cells = " | ".join(f"{by_age[age]:.1%}" for age in ages)
            print(f"| {'none' if reset == NEVER else reset} | {name} | {cells} |", flush=True)
    print(f"\n{back} rounds after it\n")
    for reset, bed in beds.items():
        _print_judged("no renewal" if reset == NEVER else f"renewal every {reset}", bed, back)
    digests = {bed.recompute_worker.parameters.digest() for bed in (usual, beds[back])}
    print(f"- parameters with files as usual and for a look back: {len(digests)} set(s) of bits")
    print(f"- a node keeps {_kept(usual)} as usual, {_kept(beds[back])} for a look back")


def _print_judged(name: str, bed: TestBed, back: int) -> None:
    began_s = time.process_time()
    found, sizes = audited(bed, back)
    audit_ms = (time.process_time() - began_s) / back * 1e3
    began_s = time.process_time()
    said = ["agrees" if is_replayed(bed, age) else "differs" for age in (back, back - 1)]
    replay_ms = (time.process_time() - began_s) / 2 * 1e3
    print(
        f"- {name}: {back} audits of one step, MISMATCH of {found} rounds back, {audit_ms:.0f} ms each, "
        f"openings of {min(sizes):,} to {max(sizes):,} bytes"
    )
    print(
        f"- a replay from before the lie {said[0]}, from after it {said[1]}; {replay_ms:.0f} ms each",
        flush=True,
    )


def lied(folder: Path, *, reset: int, rounds: int, back: int) -> tuple[TestBed, dict[str, dict[int, float]]]:
    """A test bed this many rounds after a lie, and the shares of later messages that two lies decide.

    Args:
        folder: Of its files.
        reset: T.
        rounds: Before which the lie was.
        back: Rounds that nodes and auditor keep beyond the usual ones.
    """
    rule = method_rule(
        "demo",
        Choices(
            sequences=SEQUENCES, warmup_rounds=0, k=32, lr_nano=2_000_000, f=1, reset_rounds=reset
        ),
    )  # fmt: skip
    bed = TestBed(folder, SEED, rounds=0, rule=rule)
    keep, layout = kept_rounds(bed.spec) + back, bed.trainer.layout
    for peer, trainer in bed.trainers.items():
        own = folder / peer.hex()[:8]
        trainer.steps = StepFiles(own, run_id=RUN_ID, node=peer, rule=rule, layout=layout, keep=keep)
    bed.recompute_worker.parameters = PublicState(bed.spec, folder / "auditor" / THETA, keep)
    for _ in range(LIE):
        bed.pass_round()
    rng, truth = np.random.default_rng(SEED), bed.truth()
    noise = rng.standard_normal(truth.shape).astype(np.float32)
    claim = bed.claim((noise * np.abs(truth).mean()).astype(np.float32))
    huge = replace(claim.after, error_NC=(noise * np.float32(1e30)).astype(np.float32))
    states = {"": bed.claim(truth).after, "a step of noise": claim.after, "an error of 1e30": huge}
    bed.keep(claim)
    bed.pass_round()
    shares: dict[str, dict[int, float]] = {name: {} for name in states if name}
    for age in range(1, rounds):
        work, sent = rules.Work(x_NC=bed.truth(), loss=5.0), {}
        for name, state in states.items():
            states[name], update = rules.encode(bed.spec, layout, bed.round, state, work)
            sent[name] = _signs(bed, update)
        for name, by_age in shares.items():
            is_sent = sent[name] != 0
            by_age[age] = float((sent[name] != sent[""])[is_sent].mean())
        bed.pass_round()
    assert np.array_equal(bed.before.error_NC, states["a step of noise"].error_NC)  # it is what the node has
    return bed, shares


def _signs(bed: TestBed, message: bytes) -> NDArray[np.int8]:
    """A message as what it says of every coefficient. Shape (N, C)."""
    layout = bed.trainer.layout
    update = decode_contribution(bed.spec, layout, bed.round, message)
    signs = np.zeros((layout.blocks, BLOCK_SIZE), np.int8)
    signs[update.blocks_B[:, None], update.index_BK] = update.value_BK
    return signs


def audited(bed: TestBed, back: int) -> tuple[list[int], list[int]]:
    """Rounds since each of the last `back` steps that its audit finds false; bytes of all openings."""
    steps, found, sizes, blocks = bed.trainer.steps, [], [], list(range(OPENED))
    for age in range(back, 0, -1):
        record = steps.record(bed.round - age)
        assert record is not None
        opening = steps.opening(bed.round - age, blocks)
        sizes.append(len(opening))
        finding = bed.recompute_worker.examine(record.commit, record.update, opening, blocks)
        if finding.outcome is Outcome.MISMATCH:
            found.append(age)
    return found, sizes


def is_replayed(bed: TestBed, age: int) -> bool:
    """Whether the last `age` steps follow from the state that the node says it had before them."""
    auditor, steps, layout, is_true = bed.recompute_worker, bed.trainer.steps, bed.trainer.layout, True
    first = steps.record(bed.round - age)
    assert first is not None
    state = steps.private(first.commit.base)
    assert state is not None
    for round_id in range(bed.round - age, bed.round):
        record = steps.record(round_id)
        assert record is not None
        theta_P, batch = auditor.parameters.read(round_id), auditor.batch(record.commit)
        work = rules.local(bed.spec, layout, theta_P, state, batch, round_id, auditor.gradient)
        state, _ = rules.encode(bed.spec, layout, round_id, state, work)
        is_true &= commit(RUN_ID, bed.spec.rule, layout, state) == record.commit.momentum_after
    return is_true


def _kept(bed: TestBed) -> str:
    files = list(bed.trainer.steps.folder.iterdir())
    states = [path for path in files if path.suffix == ".npy"]
    return f"{len(states)} states, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB"


# ---- bytes


def print_bytes(back: int) -> None:
    """What a node and a verifier keep, by model; a run of the defaults."""
    run = _run(NEVER, 0, 10)[1]
    keep = kept_rounds(run)
    print(
        f"\nfrom the layout; an order's defaults keep {keep} rounds, a look back {back} more\n\n"
        "| model | a state and its tree | a node now | with the look back | a verifier more: parameters | "
        "and of each node at most: messages |\n|---|---|---|---|---|---|"
    )
    for model in MODELS:
        layout = layout_of(PRESETS[model])
        state = layout.blocks * (4 * BLOCK_SIZE + 64)
        theta, sent = 4 * layout.parameters, update_bytes_max(layout.blocks, run.rule.compress.k)
        sizes = (state, keep * state, (keep + back) * state, back * theta, back * sent)
        print(f"| {model} | {' | '.join(_size(size) for size in sizes)} |")


def _size(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


# ---- loss


def print_losses(seeds: int, steps: int, resets: tuple[int, ...]) -> None:
    """Held-out loss of trainings with renewal less that of the same without."""
    print(
        f"\n4 nodes, {steps} rounds of DeMo on the standard library's sources, 0.1 M parameters\n\n"
        f"| seed | no renewal | {' | '.join(f'every {reset}' for reset in resets)} |\n"
        f"|---|---|{'---|' * len(resets)}"
    )
    for seed in range(seeds):
        bar, *others = (trained(reset, seed, steps) for reset in (NEVER, *resets))
        print(f"| {seed} | {bar:.3f} | {' | '.join(f'{loss - bar:+.3f}' for loss in others)} |", flush=True)


def trained(reset: int, seed: int, steps: int) -> float:
    """Held-out loss after a training whose states begin anew every `reset` rounds."""
    spec, run, tokens = _run(reset, seed, steps)
    loss = simulate(spec, run, tokens, lambda _: None)[-1].validation
    assert loss is not None
    return loss


def _run(reset: int, seed: int, steps: int) -> tuple[SimSpec, RunSpec, NDArray[Any]]:
    file = {
        "sim": {"nodes": 4, "rounds": steps, "seed": seed, "validate_every": steps,
                "validation_sequences": 128, "rule": "mean"},
        "model": SIZES, "data": [text_table("stdlib", Path("runs/texts"))],
        "train": {"sequences": 4, "lr": 2e-3, "warmup": 70, "lr_floor": 0.1},
        "comm": {"method": "demo", "reset": reset},
    }  # fmt: skip
    spec = sim_of(SimFile.model_validate(file), Path())
    manifest, tokens = collect_tokens(spec.order)
    return spec, sim_run_spec(spec, data_spec(spec.order, manifest)), tokens


if __name__ == "__main__":
    main()
