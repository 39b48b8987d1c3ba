"""A reference run of 15 million parameters (reference_run.toml): its text, and plain Muon on the same tokens.

    npm pack chinese-poetry@2.0.1 --pack-destination runs/texts
    python -m benchmarks.reference_run text
    assay localnet benchmarks/reference_run.toml
    python -m benchmarks.reference_run muon runs/reference

Plain Muon is the product's own inner step on the mean gradient of all nodes, which would send 32 bits a
parameter both ways each time: the same batches in the same order, the same rates, the same start.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.bundle.held_out import held_out_loss
from assay.bundle.inputs import read_inputs
from assay.bundle.read import Delivered, read
from assay.training.data.batches import batch_positions, batch_tokens, read_tokens
from assay.training.layout import layout_of
from assay.training.model.initial import starting_parameters
from assay.training.model.loss import loss_and_gradient, use_one_thread
from assay.training.optimiser.inner import fresh, inner_step
from assay.training.optimiser.schedule import rate
from benchmarks.texts import text_table

MICRO_SEQUENCES = 16  # of one pass, so that a step of all nodes takes no more memory than one node's


def main() -> None:
    """Write the text, or train plain Muon on what a delivered run was trained on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("text", "muon"))
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/reference"))
    args = parser.parse_args()
    if args.what == "text":
        print(text_table("poems", Path("runs/texts"))["source"])
        return
    use_one_thread()
    delivered = read(args.run)
    theta_P = muon(delivered)
    inputs = read_inputs(delivered.spec, delivered.data, None)
    found = held_out_loss(delivered.spec, inputs, theta_P, delivered.data)
    assert found is not None
    before, after = found.first_micro / 1e6, found.last_micro / 1e6
    print(f"held out, {found.tokens} tokens: {before:.4f} before, {after:.4f} after")


def muon(delivered: Delivered) -> NDArray[np.float32]:
    """The parameters that plain Muon makes of every token that counted in a run. Shape (P,), float32."""
    spec, local = delivered.spec, delivered.spec.rule.local
    layout, tokens = layout_of(spec.model), read_tokens(delivered.data, spec.data)
    compute = replace(spec.compute, micro_sequences=MICRO_SEQUENCES)
    state, began_s = fresh(local, starting_parameters(spec, None)), time.process_time()
    for number, link in enumerate(delivered.links):
        commits = [signed.commit for signed in link.manifest.commits]
        parts = [
            np.split(
                batch_tokens(tokens, batch_positions(spec, one.node, number, one.tokens), spec.model.context),
                local.steps,
            )
            for one in commits
        ]
        losses = []
        for step in range(local.steps if parts else 0):
            batch = np.concatenate([part[step] for part in parts])
            loss, slope_P = loss_and_gradient(spec.model, layout, state.theta_P, batch, compute=compute)
            lr = rate(local.schedule, *spec.in_line(number), steps=local.steps, step=step)
            state = inner_step(local, layout, lr, state, state.theta_P, slope_P)
            losses.append(loss)
        if losses:
            spent_s = time.process_time() - began_s
            print(f"round {number}: loss {np.mean(losses):.4f}, {spent_s:.0f} s of CPU", flush=True)
    return state.theta_P


if __name__ == "__main__":
    main()
