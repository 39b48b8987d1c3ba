"""What an audit costs: its opening, its verification, the commitment, and its share of a network's compute.

    python -m benchmarks.audit [--models gpt-1m gpt-15m gpt-125m] [--inner gpt-1m gpt-15m]
        [--public gpt-15m] [--shaped llama-1b] [--no-network]

The production trainer takes two rounds and the production examiner audits the second, s = 64 blocks, of
"wide" all; every file real; CPU time, one thread, the best of the repeats (one where a gradient takes
seconds).
Ratios are within one process. A DeMo step has 4 sequences of the preset's context, of models above
100M one: the smallest gradient a fixed cost can be compared with. "Checking" is what an audit does
besides its own gradient and the transform of it: decode, Merkle paths, transition, comparison.
Compared in the same run: leaves hashed in two pieces and by SHA-256, and openings without kept trees.
At the end eight nodes and four verifiers really train (benchmarks/audit_share.py).
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from assay.node.messages import StepRecord
from assay.node.trainer import Trainer
from assay.orders.load import load_order
from assay.orders.spec import audit_spec
from assay.protocol.auditing.draws import opened_blocks
from assay.protocol.encoding import merkle
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.messages import Commit, Outcome
from assay.protocol.openings import OPENED_BLOCKS_MAX, InnerBlocks, InnerOpening, Opening
from assay.protocol.openings import Path as MerklePath
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from assay.protocol.update_rule import BLOCK_SIZE
from assay.simulation.spec import SimFile, sim_of, sim_run_spec
from assay.training.codec.contribution import decode_contribution
from assay.training.data.batches import describe
from assay.training.data.shards import write_tokens
from assay.training.layout import layout_of
from assay.training.methods.choices import Choices, method_rule
from assay.training.model.loss import use_one_thread
from assay.training.model.presets import PRESETS
from assay.training.optimiser.carry import mean_block
from assay.training.optimiser.momentum_root import momentum_leaves
from assay.training.optimiser.schedule import rate
from assay.training.transform.blocked_dct import row_lengths
from assay.training.transform.compress import gradient_blocks
from assay.verifier.audit.carried import carried
from assay.verifier.audit.exact import check_opening, compare
from assay.verifier.audit.messages import opening_bytes_max
from assay.verifier.audit.worker import RecomputeWorker
from benchmarks.audit_share import print_share
from benchmarks.machine import machine

BLOCKS = 64
RUN_ID = Digest(hashlib.sha256(b"run").digest())
SEED = Digest(hashlib.sha256(b"seed").digest())
TOKENS = 200_000
LARGE = 100_000_000  # parameters, from which a step has one sequence and is timed once
INNER = Choices(sequences=4, steps=10, segment=5)
PUBLIC = Choices(sequences=1, steps=5, segment=5, keeps_moments=False)
TO_REACH = "To reach: opening 2.2 MB, checking 50 ms, commitment 15 ms per 10M parameters."

T = TypeVar("T")
Floats = NDArray[np.float32]


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", choices=PRESETS, default=["gpt-1m", "gpt-15m", "gpt-125m"])
    parser.add_argument("--wide", nargs="*", choices=PRESETS, default=["gpt-1m", "gpt-15m"])
    parser.add_argument("--inner", nargs="*", choices=PRESETS, default=["gpt-1m", "gpt-15m"])
    parser.add_argument("--public", nargs="*", choices=PRESETS, default=["gpt-15m"])
    parser.add_argument("--shaped", nargs="*", choices=PRESETS, default=["llama-1b"])
    parser.add_argument("--no-network", action="store_true")
    parser.add_argument("--rounds", type=int, default=60, help="of the network")
    args = parser.parse_args()
    use_one_thread()
    print(f"machine: {machine()}\n{TO_REACH}\n\nOne DeMo step and its audit, CPU ms:")
    print(
        "| model | parameters | opening, bytes | checking | decode message | step | of it gradient "
        "| audit | of it gradient | audit / step |"
    )
    print("|---" * 10 + "|")
    commitments = [_demo(name) for name in args.models]
    for name in args.wide:
        _demo(name, OPENED_BLOCKS_MAX)
    print("\nThe node's commitment and opening, CPU ms (commitment per 10M parameters):")
    print(
        "| model | leaves | tree above | leaves in two pieces | leaves by SHA-256 "
        "| both roots, share of step | opening | without kept trees | tree kept a round, bytes |"
    )
    print("|---" * 9 + "|")
    print("\n".join(commitments))
    print("\nOne segment of 5 of 10 inner steps (SparseLoCo), CPU ms:")
    print(
        "| model | segment | opening, bytes | of it start state | making it | step | audit | audit / step |"
    )
    print("|---" * 8 + "|")
    for name in args.inner:
        _inner(name)
    print("\nOne round of 5 inner steps with a public start (MuLoCo), 64 blocks, CPU ms:")
    print("| model | opening, bytes | at most | making it | step | audit | audit / step |")
    print("|---" * 7 + "|")
    for name in args.public:
        _inner(name, "muloco", PUBLIC)
    for name in args.shaped:
        _shaped(name)
    if not args.no_network:
        print("\nA network of 8 nodes and 4 verifiers:")
        print_share(args.rounds)


class _Trainer(Trainer):
    """The production trainer, with the CPU time of its gradients."""

    gradient_s = 0.0

    def _gradient(self, theta_P: Floats, tokens: NDArray[np.int64]) -> tuple[float, Floats]:
        spent_s, found = _timed(lambda: super(_Trainer, self)._gradient(theta_P, tokens))
        self.gradient_s += spent_s
        return found


class _RecomputeWorker(RecomputeWorker):
    """The production examiner, with the CPU time of its gradients and the last of them."""

    gradient_s = 0.0
    slope_P: Floats

    def _gradient(self, theta_P: Floats, tokens: NDArray[np.int64]) -> tuple[float, Floats]:
        spent_s, found = _timed(lambda: super(_RecomputeWorker, self)._gradient(theta_P, tokens))
        self.gradient_s += spent_s
        self.slope_P = found[1]
        return found


@dataclass
class _Pair:
    """A node after its second step, and an auditor that followed. step_s, gradient_s: of the best step."""

    spec: RunSpec
    trainer: _Trainer
    recompute_worker: _RecomputeWorker
    record: StepRecord
    step_s: float
    gradient_s: float

    @property
    def commit(self) -> Commit:
        """What the node says of the step."""
        return self.record.commit

    def drawn(self) -> list[int]:
        """The blocks that are opened."""
        layout = self.trainer.layout
        live = decode_contribution(self.spec, layout, 1, self.record.update).blocks_B.tolist()
        return list(
            opened_blocks(
                SEED, self.trainer.node, self.spec.audit, self.spec.audit.floor_ppm, layout.blocks, live
            )
        )


def _pair(
    folder: Path, name: str, method: str, choices: Choices, repeats: int, blocks: int = BLOCKS
) -> _Pair:
    model = PRESETS[name]
    rng = np.random.default_rng(0)
    kind = np.uint8 if model.vocabulary <= 256 else np.uint16
    tokens = rng.integers(0, model.vocabulary, TOKENS).astype(kind)
    manifest = write_tokens(folder / "data", [tokens], vocabulary=model.vocabulary)
    data = describe(manifest, validation_tokens=2000, source="random", licence="none")
    spec = sim_run_spec(sim_of(SimFile(), Path()), replace(data, vocabulary=256))
    spec = replace(
        spec,
        model=model,
        data=data,
        rule=method_rule(method, choices),
        audit=replace(spec.audit, blocks=blocks),
    )
    node = spec.nodes[0].peer
    trainer = _Trainer(
        spec=spec,
        run_id=RUN_ID,
        node=node,
        data=folder / "data",
        folder=folder / "node",
        salt_key=bytes(32),
    )
    recompute_worker = _RecomputeWorker(spec=spec, data=folder / "data", folder=folder / "auditor")
    first = trainer.step(0, _parent(0), 0, NO_DIGEST)
    trainer.apply(0, b"")  # the parameters stand still; momentum and error do not
    recompute_worker.parameters.apply(0, b"")
    best = (float("inf"), 0.0, first)
    for repeat in range(repeats):
        trainer.gradient_s = 0.0
        spent_s, record = _timed(
            lambda repeat=repeat: trainer.step(1, _parent(repeat), 1, first.commit.momentum_after)  # type: ignore[misc]
        )
        best = min(best, (spent_s, trainer.gradient_s, record), key=lambda one: one[0])
        last = record
    # Of several steps on several parents the disk holds the last one, and that is what is audited.
    return _Pair(spec, trainer, recompute_worker, last, best[0], best[1])


def _demo(name: str, most: int = BLOCKS) -> str:
    """Print the first table's row of a model, with at most this many blocks opened; the second table's."""
    large = _parameters(name) > LARGE
    repeats = 1 if large else 5
    with tempfile.TemporaryDirectory() as folder:
        pair = _pair(Path(folder), name, "demo", Choices(sequences=1 if large else 4), repeats, most)
        rule, layout, blocks = pair.spec.rule, pair.trainer.layout, pair.drawn()
        steps, update = pair.trainer.steps, pair.record.update
        opening_s, body = _best(lambda: steps.opening(1, blocks), 5)
        audit_s, gradient_s = float("inf"), 0.0
        for _ in range(repeats):
            pair.recompute_worker.gradient_s = 0.0
            spent_s, found = _timed(lambda: pair.recompute_worker.examine(pair.commit, update, body, blocks))
            assert found.outcome is Outcome.MATCH
            if spent_s < audit_s:
                audit_s, gradient_s = spent_s, pair.recompute_worker.gradient_s
        message_s, sent = _best(lambda: decode_contribution(pair.spec, layout, 1, update), 3)
        lr = rate(rule.outer.schedule, pair.spec.rounds, 1)
        x_NC = gradient_blocks(rule, layout, pair.recompute_worker.slope_P, lr)
        x_BC, mean = x_NC[blocks], mean_block(rule, row_lengths(x_NC))

        def check() -> None:
            opened = decode(Opening, body, opening_bytes_max(rule, layout, len(blocks)))
            before, after = check_opening(opened, pair.commit, blocks, rule, layout.blocks)
            every = np.ones(len(blocks), np.bool_)
            kept_BC = carried(pair.spec, layout, pair.commit, blocks, before, x_BC, mean)
            finding = compare(
                rule.compress, blocks, every, kept_BC, after, sent, x_BC,
                recomputed=NO_DIGEST, is_work_equal=True,
            )  # fmt: skip
            assert finding.outcome is Outcome.MATCH

        check_s, _ = _best(check, 7)
        label = f"{name}, wide" if most > BLOCKS else name
        print(
            f"| {label} | {layout.parameters:,} | {len(body):,} "
            f"| {check_s * 1e3:.1f} | {message_s * 1e3:.1f} "
            f"| {pair.step_s * 1e3:.0f} | {pair.gradient_s * 1e3:.0f} "
            f"| {audit_s * 1e3:.0f} | {gradient_s * 1e3:.0f} | {audit_s / pair.step_s:.2f} |",
            flush=True,
        )
        return _commitment(name, pair, opening_s, blocks)


def _commitment(name: str, pair: _Pair, opening_s: float, blocks: list[int]) -> str:
    """The second table's row."""
    steps = pair.trainer.steps
    private = steps.private(2)
    assert private is not None
    error_NC = private.error_NC
    leaves_s, leaves = _best(lambda: momentum_leaves(RUN_ID, error_NC), 5)
    tree_s, tree = _best(lambda: merkle.tree(leaves), 5)
    apart_s, _ = _best(lambda: _leaves_in_two_pieces(error_NC), 3)
    sha_s, _ = _best(lambda: [hashlib.sha256(row.data).digest() for row in error_NC], 3)
    for path in steps.folder.glob("tree-*.bin"):
        path.unlink()
    anew_s, _ = _best(lambda: steps.opening(1, blocks), 2)
    each = [f"{s * 1e3 * 1e7 / (BLOCK_SIZE * len(error_NC)):.1f}" for s in (leaves_s, tree_s, apart_s, sha_s)]
    return (
        f"| {name} | {' | '.join(each)} | {2 * (leaves_s + tree_s) / pair.step_s:.1%} "
        f"| {opening_s * 1e3:.1f} | {anew_s * 1e3:.0f} | {len(tree.hashes):,} |"
    )


def _leaves_in_two_pieces(error_NC: Floats) -> list[bytes]:
    """The same leaves, head and block given to the hasher one after the other."""
    found = []
    for index, row in enumerate(error_NC):
        hasher = blake3(b"\x00" + RUN_ID + index.to_bytes(8, "big"))
        hasher.update(row.tobytes())
        found.append(hasher.digest())
    return found


def _inner(name: str, method: str = "sparseloco", choices: Choices = INNER) -> None:
    """Print the rows of a model and a method with inner steps, one for each segment."""
    with tempfile.TemporaryDirectory() as folder:
        pair = _pair(Path(folder), name, method, choices, 1)
        rule, blocks = pair.spec.rule, pair.drawn()
        most = opening_bytes_max(rule, pair.trainer.layout, len(blocks))
        for segment in range(rule.segments):
            opening_s, body = _timed(lambda segment=segment: pair.trainer.steps.opening(1, blocks, segment))  # type: ignore[misc]
            shown = decode(InnerOpening, body, most)
            audit_s, found = _timed(
                lambda body=body, segment=segment: pair.recompute_worker.examine(  # type: ignore[misc]
                    pair.commit, pair.record.update, body, blocks, segment
                )
            )
            assert found.outcome is Outcome.MATCH
            state = len(shown.start_theta) + len(shown.start_moments)
            sizes = (
                f"{segment} | {len(body):,} | {state:,}"
                if rule.carries_inner
                else f"{len(body):,} | {most:,}"
            )
            print(
                f"| {name} | {sizes} "
                f"| {opening_s * 1e3:.0f} | {pair.step_s * 1e3:.0f} | {audit_s * 1e3:.0f} "
                f"| {audit_s / pair.step_s:.2f} |",
                flush=True,
            )


def _shaped(name: str) -> None:
    """Print the size of a model's opening: real draw, paths and encoding, and zeros for all else."""
    layout = layout_of(PRESETS[name])
    rule, audit = method_rule("muloco", PUBLIC), audit_spec(load_order(None))
    node, live = PeerId(bytes(32)), list(range(layout.blocks))
    blocks = opened_blocks(SEED, node, audit, audit.floor_ppm, layout.blocks, live)
    tree = merkle.Tree(layout.blocks, bytes(merkle.tree_bytes(layout.blocks)))
    paths = tuple(MerklePath(hashes=tree.proof(block)) for block in blocks)
    zeros, nothing = bytes(4 * BLOCK_SIZE * len(blocks)), MerklePath(hashes=())
    body = encode(
        InnerOpening(
            opening=Opening(
                run_id=RUN_ID, round=RoundId(1), node=node, blocks=blocks,
                before=zeros, after=zeros, paths_before=paths, paths_after=paths,
            ),
            segment=0, start_count=0, start_theta=b"", start_theta_root=NO_DIGEST, start_moments=b"",
            start_path=nothing,
            end=InnerBlocks(
                count=5, theta_root=NO_DIGEST, moments_root=NO_DIGEST, theta=zeros, theta_paths=paths,
                moments=zeros * rule.local.moments, moments_paths=paths,
            ),
            last=(), last_path=nothing,
        )
    )  # fmt: skip
    print(
        f"| {name}, by its shape | {len(body):,} | {opening_bytes_max(rule, layout, len(blocks)):,} | | | | |"
    )


def _parameters(name: str) -> int:
    return layout_of(PRESETS[name]).parameters


def _parent(number: int) -> Digest:
    return Digest(hashlib.sha256(b"manifest %d" % number).digest())


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds and the result."""
    since_s = time.process_time()
    found = work()
    return time.process_time() - since_s, found


def _best(work: Callable[[], T], repeats: int) -> tuple[float, T]:
    return min((_timed(work) for _ in range(repeats)), key=lambda one: one[0])


if __name__ == "__main__":
    main()
