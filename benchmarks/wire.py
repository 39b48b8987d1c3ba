"""Wire: what every kind of message costs, loses and takes to code, on the momenta of a real training.

    python -m benchmarks.wire [--rounds 30] [--nodes 4]

Trains a GPT of 0.87M parameters by DeMo on this Python's own library (k = 32 of 4096, signs) and takes
what every node had to send in the last six rounds. Each kind writes the same momenta: the k
largest of each block, all 4096, or two factors of a rank. "int64 + float32" is what bloc97/DeMo sends;
"int16 + float16" is the plain packing one would write first. Error: norm of (sent - meant) over norm of
meant, where meant is what was chosen to be sent; with "whole" it is the whole momentum. Speed: million
coefficients per CPU second, one thread, a message at a time, the best of three passes.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import BLOCK_SIZE, ComputeSpec, Precision, Values
from assay.protocol.types import PeerId
from assay.training.codec.factors import decode_factors, encode_factors
from assay.training.codec.values import quantise
from assay.training.codec.wire import Update, decode_update, encode_update
from assay.training.exact import apply_signs, initial_parameters
from assay.training.layout import from_blocks, layout_of
from assay.training.methods.choices import Choices, method_rule
from assay.training.model.loss import loss_and_gradient, use_one_thread
from assay.training.model.presets import gpt_spec
from assay.training.optimiser.aggregate import step_signs
from assay.training.transform.compress import gradient_blocks, transition
from assay.training.transform.low_rank import compress_lowrank
from assay.training.transform.top_k import largest
from assay.verifier.aggregation.mean import mean_over_senders
from benchmarks.machine import machine

Floats = NDArray[np.float32]

K, KEPT_ROUNDS, LR = 32, 6, np.float32(2e-3)


def main() -> None:
    """Train, write every kind, print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--nodes", type=int, default=4)
    args = parser.parse_args()
    use_one_thread()
    print(f"machine: {machine()}")
    momenta = _momenta(args.nodes, args.rounds)
    blocks = len(momenta[0])
    print(
        f"{len(momenta)} momenta of {blocks} blocks, rounds {args.rounds - KEPT_ROUNDS} to {args.rounds - 1}"
    )
    limit = math.log2(math.comb(BLOCK_SIZE, K)) / K
    print(f"limit for the index at k = {K}: {limit:.2f} bits (uniform sets)\n")
    print("message               bits/coef  bits/param  encode  decode  error of sent  of whole")
    chosen = [_chosen(momentum) for momentum in momenta]
    for name, encode, decode in (
        ("int64 + float32", _plain(np.int64, np.float32), _unplain(np.int64, np.float32)),
        ("int16 + float16", _plain(np.int16, np.float16), _unplain(np.int16, np.float16)),
    ):
        sizes = [
            (index, values.astype(np.float16) if "16" in name else values) for _, index, values in chosen
        ]
        _row(f"{name}, k {K}", momenta, chosen, sizes, [v for _, v in sizes], encode, decode)
    for values in Values:
        written = [_update(values, *one) for one in chosen]
        _row(
            f"{values.name}, k {K}", momenta, chosen, [u for u, _ in written], [s for _, s in written],
            lambda u, v=values: encode_update(u, blocks, K, v),
            lambda raw, v=values: decode_update(raw, blocks, K, v),
        )  # fmt: skip
    dense = [_all(momentum) for momentum in momenta]
    for values in Values:
        written = [_update(values, *one) for one in dense]
        _row(
            f"{values.name}, dense", momenta, dense, [u for u, _ in written], [s for _, s in written],
            lambda u, v=values: encode_update(u, blocks, BLOCK_SIZE, v),
            lambda raw, v=values: decode_update(raw, blocks, BLOCK_SIZE, v),
        )  # fmt: skip
    for rank in (1, 2, 4, 8):
        pairs = [compress_lowrank(momentum, rank) for momentum in momenta]
        sent = [sent_BC[live] for (_, sent_BC), (live, _, _) in zip(pairs, dense, strict=True)]
        _row(
            f"factors, rank {rank}", momenta, dense, [f for f, _ in pairs], sent,
            lambda f: encode_factors(f, blocks), lambda raw, r=rank: decode_factors(raw, blocks, r),
        )  # fmt: skip


Chosen = tuple[NDArray[np.int64], NDArray[np.int64], Floats]


def _row(
    name: str, momenta: list[Floats], meant: list[Chosen], messages: list, sent: list[Floats],
    encode: Callable, decode: Callable,
) -> None:  # fmt: skip
    encoded = [encode(message) for message in messages]
    count = sum(values.size for _, _, values in meant)
    bits = 8 * sum(map(len, encoded))
    encode_s = min(_cpu_s(lambda: [encode(message) for message in messages]) for _ in range(3))
    decode_s = min(_cpu_s(lambda: [decode(raw) for raw in encoded]) for _ in range(3))
    lost = _norm([s - values for s, (_, _, values) in zip(sent, meant, strict=True)])
    unsent = math.sqrt(max(_norm(momenta) ** 2 - _norm([values for _, _, values in meant]) ** 2, 0))
    print(
        f"{name:<22}{bits / count:9.2f}  {bits / sum(m.size for m in momenta):10.3f}"
        f"  {count / encode_s / 1e6:6.0f}  {count / decode_s / 1e6:6.0f}"
        f"  {lost / _norm([values for _, _, values in meant]):13.4f}"
        f"  {math.hypot(lost, unsent) / _norm(momenta):8.4f}"
    )


def _chosen(momentum: Floats) -> Chosen:
    live, index = largest(np.abs(momentum), K)
    return live, index, np.take_along_axis(momentum[live], index, axis=1)


def _all(momentum: Floats) -> Chosen:
    live = np.flatnonzero(momentum.any(axis=1))
    return live, np.broadcast_to(np.arange(BLOCK_SIZE), (len(live), BLOCK_SIZE)), momentum[live]


def _update(
    values: Values, live: NDArray[np.int64], index: NDArray[np.int64], moved: Floats
) -> tuple[Update, Floats]:
    written = quantise(values, moved)
    kept, scales = written.is_live_B, (written.exponent_B, written.mantissa_B)
    update = Update(
        live[kept], index[kept], written.value_BK[kept], *(s if s is None else s[kept] for s in scales)
    )
    return update, written.sent_BK


def _plain(index_type: type, value_type: type) -> Callable:
    return lambda pair: pair[0].astype(index_type).tobytes() + pair[1].astype(value_type).tobytes()


def _unplain(index_type: type, value_type: type) -> Callable:
    """What makes such bytes usable again: int64 indices and float32 values."""

    def decode(raw: bytes) -> tuple[NDArray[np.int64], Floats]:
        count = len(raw) // (np.dtype(index_type).itemsize + np.dtype(value_type).itemsize)
        index = np.frombuffer(raw, index_type, count).astype(np.int64)
        at = count * np.dtype(index_type).itemsize
        return index, np.frombuffer(raw, value_type, count, offset=at).astype(np.float32)

    return decode


def _momenta(nodes: int, rounds: int) -> list[Floats]:
    """What the nodes had to send, before anything was taken out, in the last rounds of a short training."""
    model = gpt_spec(layers=4, width=128, heads=4, context=128)
    layout, rule = layout_of(model), method_rule("demo", Choices())
    compute = ComputeSpec(dtype=Precision.FLOAT32, micro_sequences=0)
    theta = initial_parameters(1, layout.names, layout.shapes)
    text, rng = _text(), np.random.default_rng(0)
    errors = [np.zeros((layout.blocks, BLOCK_SIZE), np.float32) for _ in range(nodes)]
    kept: list[Floats] = []
    for number in range(rounds):
        sent: dict[PeerId, Update] = {}
        for node in range(nodes):
            starts = rng.integers(0, len(text) - model.context - 1, 4)
            batch = np.stack([text[at : at + model.context + 1] for at in starts]).astype(np.int64)
            _, gradient = loss_and_gradient(model, layout, theta, batch, compute=compute)
            x = gradient_blocks(rule, layout, gradient, LR)
            if number >= rounds - KEPT_ROUNDS:
                kept.append(errors[node] * np.float32(rule.compress.feedback_micro / 1e6) + x)
            moved = transition(rule.compress, errors[node], x)
            errors[node], sent[PeerId(bytes([node]) * 32)] = moved.after_BC, moved.sent
        found = mean_over_senders(sent, layout.blocks)
        theta = apply_signs(theta, from_blocks(layout, step_signs(rule, found, layout.blocks)), LR)
    return kept


def _text() -> NDArray[np.uint8]:
    """Two megabytes of the Python standard library."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return np.frombuffer(b"".join(file.read_bytes() for file in files)[:2_000_000], np.uint8)


def _norm(parts: list[Floats]) -> float:
    return math.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in parts))


def _cpu_s(work: Callable[[], object]) -> float:
    since_s = time.process_time()
    work()
    return time.process_time() - since_s


if __name__ == "__main__":
    main()
