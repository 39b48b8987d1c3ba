"""What reputation costs nodes whose data few others have: a table of docs/results/robustness.md.

    python -m benchmarks.minority [--seeds 3] [--rounds 80]

Eight nodes, f = 2. Honest nodes of six seats train on one text, of two on another; or two of the eight lie,
on either text. Each cell is trained by the mean over senders, by the default rule, and by the default rule as
it is where no seats have data of their own, which compares everybody with everybody.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from assay.orders.data.tokenise import collect_tokens
from assay.orders.spec import data_spec
from assay.protocol.types import PeerId
from assay.simulation.spec import load_sim, sim_run_spec
from assay.simulation.train import simulate
from assay.training.model.loss import use_one_thread
from assay.verifier.aggregation.reputation import Reputation, admitted
from benchmarks.machine import machine
from benchmarks.texts import text_table

SPEC = Path(__file__).parent / "minority.toml"
F = 2
RULES = ("mean", "default", "one stratum")
MINORITY = {"last": (6, 2), "first": (2, 6)}  # seats of both texts; liars are the last nodes
ATTACKS = ("none", "sign-flip", "adaptive", "evasive", "front-runner", "inner-product")


@dataclass(frozen=True, slots=True)
class Found:
    """What came of one training: held-out losses, and the rounds in which each node was left out."""

    minority: float
    majority: float
    unheard: tuple[int, ...]


def main() -> None:
    """Train all cells and print a line for each as it is done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=ATTACKS)
    args = parser.parse_args()
    use_one_thread()
    print(f"machine: {machine()}", flush=True)
    print("| attack | minority | rule | minority's text | majority's | rounds unheard, nodes 0 to 7 |")
    print("|---|---|---|---|---|---|", flush=True)
    for attack in args.attacks:
        for place in MINORITY:
            for rule in RULES:
                found = [train(rule, attack, place, seed, args.rounds) for seed in range(args.seeds)]
                losses = (_text([getattr(one, name) for one in found]) for name in ("minority", "majority"))
                unheard = np.mean([one.unheard for one in found], axis=0)
                print(
                    f"| {attack} | {place} | {rule} | {' | '.join(losses)} | "
                    + " ".join(f"{count:.0f}" for count in unheard)
                    + " |",
                    flush=True,
                )


def train(rule: str, attack: str, place: str, seed: int, rounds: int) -> Found:
    """One training."""
    spec = load_sim(
        SPEC,
        rule="mean" if rule == "mean" else None,
        attack=attack,
        liars=0 if attack == "none" else F,
        f=F,
        seed=seed,
        rounds=rounds,
        validate_every=rounds,
    )
    with tempfile.TemporaryDirectory() as folder:
        tables = [text_table("stdlib", Path(folder)), text_table("kjv", Path(folder))]
        if place == "first":
            tables.reverse()
        sections = tuple(
            spec.order.data[0].model_copy(update={**table, "seats": seats})
            for table, seats in zip(tables, MINORITY[place], strict=True)
        )
        spec = replace(spec, order=replace(spec.order, data=sections))
        manifest, tokens = collect_tokens(spec.order)
    run = sim_run_spec(spec, data_spec(spec.order, manifest))
    unheard = {member.peer: 0 for member in run.nodes}

    def judged(reputation: Reputation, *, f: int, stratum_of: object) -> tuple[PeerId, ...]:
        known = {} if rule == "one stratum" else {"stratum_of": run.stratum_of}
        heard = admitted(reputation, f=f, **known)
        for peer in unheard.keys() - set(heard):
            unheard[peer] += 1
        return heard

    with patch("assay.verifier.aggregation.combine.admitted", judged):
        done = simulate(spec, run, tokens, lambda _: None)
    losses = done[-1].stratum_losses
    minority = 0 if place == "first" else 1
    return Found(losses[minority], losses[1 - minority], tuple(unheard.values()))


def _text(losses: list[float]) -> str:
    return f"{np.mean(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})"


if __name__ == "__main__":
    main()
