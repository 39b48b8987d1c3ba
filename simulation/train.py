"""Simulated training: a network's training in one process, with any aggregation rule under any attack.

Room: simulation (edge: reads the data, prints, writes CSV and plot). Nodes run the production step functions
of `training`, one after another; there are no messages and no money. The attackers are the last nodes. They
also train honestly, so that they know their honest updates, and see all honest updates before they choose
theirs. Audits are draws: a lie that is drawn is found, for what recomputing finds is measured elsewhere.
"""

from __future__ import annotations

import csv
import random
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from assay.orders.amounts import bytes_text
from assay.orders.data.tokenise import collect_data, write_base
from assay.orders.spec import data_spec
from assay.protocol.auditing.draws import audit_rate_ppm
from assay.protocol.errors import ConfigError
from assay.protocol.params import BLOCK_SIZE, PPM, RunSpec
from assay.protocol.types import Digest, PeerId
from assay.simulation.attacks.catalogue import ATTACKS, KNOWING, flipped_labels
from assay.simulation.attacks.scene import Foresight, Scene
from assay.simulation.plot import plot_rounds
from assay.simulation.round import SimRound
from assay.simulation.spec import SimSpec, load_sim, sim_run_spec
from assay.training.codec.contribution import decode_contribution
from assay.training.codec.wire import Update
from assay.training.data.batches import Tokens, read_tokens, validation_tokens
from assay.training.layout import layout_of
from assay.training.model.initial import BASE, frozen_parameters, starting_parameters
from assay.training.model.loss import loss_and_gradient, mean_loss, use_one_thread
from assay.training.model.sampling import step_batch
from assay.training.optimiser.inner import Floats
from assay.training.optimiser.node_state import start_private
from assay.training.optimiser.outer import apply, start_public
from assay.training.optimiser.step import encode, local
from assay.verifier.aggregation.combine import combine
from assay.verifier.aggregation.reputation import Reputation


class Audits:
    """Which attackers are drawn, by an order's rates, and which have been found lying."""

    def __init__(self, run: RunSpec, seed: int) -> None:
        self._spec, self._random = run.audit, random.Random(f"audits {seed}")
        self._clean: Counter[PeerId] = Counter()
        self.found: set[PeerId] = set()

    def draw(self, false: Mapping[PeerId, bool]) -> None:
        """One round's draws among these nodes' steps, of which each is false or not."""
        for peer, is_false in false.items():
            if self._random.randrange(PPM) < audit_rate_ppm(self._spec, self._clean[peer]):
                self._clean[peer] += 1
                if is_false:
                    self.found.add(peer)


def simulate(
    spec: SimSpec,
    run: RunSpec,
    tokens: Tokens,
    tell: Callable[[SimRound], None],
    base: Path | None = None,
) -> list[SimRound]:
    """Train; the same spec and data give the same rounds on the same machine.

    Args:
        spec: As `load_sim` returned it.
        run: What `sim_run_spec` made of it.
        tokens: The whole data.
        tell: Called with each finished round.
        base: The file of the imported parameters, if the run has some.

    Raises:
        ConfigError: the rule refuses its input; the message is the rule's. Or the base is not the run's.
    """
    sim, layout = spec.sim, layout_of(run.model)
    attack, reputation = ATTACKS[sim.attack], Reputation()
    audits = Audits(run, sim.seed)
    peers = [member.peer for member in run.nodes]
    honest_count = sim.nodes - sim.liars
    public = start_public(run, starting_parameters(run, base))
    frozen = frozen_parameters(run, base)
    recent = deque([public.theta_P], maxlen=run.rule.read_lag + 1)
    private = [start_private(layout) for _ in peers]
    held_out = validation_tokens(tokens, run, sim.validation_sequences)
    strata_held_out = [
        validation_tokens(tokens, run, sim.validation_sequences, stratum)
        for stratum in range(len(run.data.strata))
        if run.data.held_out_windows(stratum, run.window_tokens)
    ]

    def gradient(theta_P: Floats, batch: NDArray[np.int64]) -> tuple[float, Floats]:
        return loss_and_gradient(run.model, layout, theta_P, batch, compute=run.compute, frozen=frozen)

    def held_out_loss(theta_P: Floats, sequences: NDArray[np.int64]) -> float:
        return mean_loss(
            run.model, layout, theta_P, sequences, frozen=frozen, beta_micro=run.compute.beta_micro
        )

    rounds: list[SimRound] = []
    for number in range(run.rounds):
        losses, sizes = [], []
        sent: dict[PeerId, Update] = {}
        direction = np.zeros((layout.blocks, BLOCK_SIZE), np.float32)
        for node, peer in enumerate(peers):
            batch = step_batch(
                run, layout, recent[0], tokens, peer, number, run.tokens_per_step, frozen=frozen, seat=node
            )
            flips = sim.attack == "label-flip" and number >= sim.lies_from
            if flips and node >= honest_count:
                batch = flipped_labels(batch, run.model.vocabulary)
            work = local(run, layout, recent[0], private[node], batch, number, gradient)
            if node < honest_count:
                losses.append(work.loss)
                if sim.attack in KNOWING:
                    beta = np.float32(run.rule.compress.feedback_micro / PPM)
                    direction += (private[node].error_NC * beta + work.x_NC) / np.float32(honest_count)
            private[node], body = encode(run, layout, number, private[node], work)
            sizes.append(len(body))
            sent[peer] = decode_contribution(run, layout, number, body)
        lying = [peer for peer in peers[honest_count:] if peer not in audits.found]
        f = max(spec.tolerated - (sim.liars - len(lying)), 0)
        parent = Digest(blake3(f"{sim.seed} {number}".encode()).digest())
        scene = Scene(
            honest=[sent[peer] for peer in peers[:honest_count]],
            own=[sent[peer] for peer in lying],
            block_count=layout.blocks,
            k=run.rule.compress.k,
            seed=(sim.seed * run.rounds + number) % 2**63,
            direction_NC=direction,
            round=number,
            foresight=Foresight(
                run=run,
                layout=layout,
                parent=parent,
                f=f,
                reputation=reputation,
                honest=peers[:honest_count],
                own=lying,
                unsent_NC={peer: one.error_NC for peer, one in zip(peers, private, strict=True)},
            ),
        )
        told = dict(zip(lying, scene.own, strict=True))
        try:
            if lying and number >= sim.lies_from:
                told = dict(zip(lying, attack(scene), strict=True))
        except ValueError as refusal:
            raise ConfigError(
                f'round {number}: attack "{sim.attack}" cannot be carried out: {refusal}'
            ) from None
        told = {peer: sent[peer] for peer in peers[:honest_count]} | told
        if sim.audited:
            audits.draw({peer: flips or told[peer] is not sent[peer] for peer in lying})
        combined = combine(run, layout, parent, f, reputation, told)
        if combined.refusal:
            raise ConfigError(f'round {number}: rule "{spec.rule}" refuses: {combined.refusal}')
        before_P, reputation = public.theta_P, combined.reputation
        public = apply(run, layout, public, number, combined.body)
        recent.append(public.theta_P)
        is_due = (number + 1) % sim.validate_every == 0 or number + 1 == run.rounds
        rounds.append(
            SimRound(
                round=number,
                loss=float(np.mean(losses)),
                validation=held_out_loss(public.theta_P, held_out) if is_due else None,
                stratum_losses=tuple(held_out_loss(public.theta_P, one) for one in strata_held_out if is_due),
                update_bytes=float(np.mean(sizes)),
                aggregate_bytes=len(combined.body),
                found=len(audits.found),
                frozen_ppm=int(np.count_nonzero(public.theta_P == before_P)) * PPM // len(before_P),
            )
        )
        tell(rounds[-1])
    return rounds


def run_sim(path: Path, out: Path | None) -> None:
    """Simulate what a file describes; print losses as they arise and a table; write CSV and plot.

    Raises:
        ConfigError: the file or its data are invalid, or the rule refuses.
    """
    spec = load_sim(path)
    folder = out or Path("runs") / f"sim-{path.stem}"
    try:
        folder.mkdir(parents=True, exist_ok=True)  # now: an hour of training must have where to go
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be created ({error.strerror})") from None
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch)
        described, base = data_spec(spec.order, collect_data(spec.order, data)), write_base(spec.order, data)
        run = sim_run_spec(spec, described, base)
        _run(spec, run, read_tokens(data, run.data), folder, data / BASE)


def _run(spec: SimSpec, run: RunSpec, tokens: Tokens, folder: Path, base: Path) -> None:
    use_one_thread()
    console = Console(highlight=False)
    since_s = time.monotonic()
    with console.status("round 0") as status:

        def tell(one: SimRound) -> None:
            line = f"round {one.round + 1}/{run.rounds}  loss {one.loss:.4f}"
            status.update(line)
            if one.validation is not None:
                strata = ", ".join(f"{loss:.4f}" for loss in one.stratum_losses)
                console.print(f"{line}  validation {one.validation:.4f}{strata and f' ({strata})'}")

        rounds = simulate(spec, run, tokens, tell, base)
    console.print(_table(spec, run, rounds, time.monotonic() - since_s))
    write_rounds(folder / "rounds.csv", rounds)
    console.print(f"rounds: {folder / 'rounds.csv'}", soft_wrap=True)
    plot_rounds(
        folder / "loss.png", {spec.order.comm.method: rounds}, steps=run.rounds * run.rule.local.steps
    )
    console.print(f"plot: {folder / 'loss.png'}", soft_wrap=True)


def write_rounds(path: Path, rounds: Sequence[SimRound]) -> None:
    """One line per round, the columns named as the fields of `SimRound`."""
    names = list(SimRound.__slots__)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([getattr(one, name) for name in names] for one in rounds)


def _table(spec: SimSpec, run: RunSpec, rounds: Sequence[SimRound], seconds: float) -> Table:
    sim, parameters = spec.sim, layout_of(run.model).parameters
    upload = float(np.mean([one.update_bytes for one in rounds]))
    download = float(np.mean([one.aggregate_bytes for one in rounds]))
    table = Table(title="Simulated training", title_justify="left", show_header=False)
    table.add_row("rule", f"{spec.rule}, set up for f = {spec.tolerated}")
    table.add_row("attack", f"{sim.attack}, {sim.liars} of {sim.nodes} nodes")
    table.add_row("parameters", f"{parameters:,}")
    table.add_row("rounds, seed", f"{run.rounds}, {sim.seed}")
    table.add_row("training loss", f"{rounds[0].loss:.4f} -> {rounds[-1].loss:.4f} nats (honest nodes)")
    table.add_row("validation loss", f"{rounds[-1].validation:.4f} nats")
    table.add_row("update per node and round", bytes_text(upload))
    table.add_row("less than a float32 gradient", f"{4 * parameters / upload:,.0f} times")
    table.add_row("aggregate per round", bytes_text(download))
    table.add_row("parameters that did not move", f"{np.mean([r.frozen_ppm for r in rounds]) / 1e4:.2f} %")
    table.add_row("time", f"{seconds:.1f} s")
    return table
