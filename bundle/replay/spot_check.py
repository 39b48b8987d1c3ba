"""Spot check: recomputes a share of a run's steps, drawn where nobody else can foresee the draw.

Room: bundle (edge: reads a folder, holds torch). Verifiers' audits are drawn by the run's beacon. This draw
is its reader's own, and also finds steps that no audit looked at. `replay_step` says what a replay proves.
Of a run that goes on, steps are drawn whose updates and whose round's parameters are here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from assay.bundle.follow import read_any
from assay.bundle.read import Delivered
from assay.bundle.replay.farm import replay_on_ray
from assay.bundle.replay.step import ReplayReport, replay_of
from assay.protocol.errors import ConfigError
from assay.protocol.types import NO_DIGEST, PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotCheck:
    """The drawn steps and what was found. seed: repeats the draw."""

    steps: int  # accepted ones of the run, as far as it has got
    steps_here: int  # of these, the ones that could be drawn: in a run that goes on, not the newest
    seed: int
    found: tuple[ReplayReport, ...]

    @property
    def is_ok(self) -> bool:
        """Whether nothing was found against any of them."""
        return all(one.is_ok for one in self.found)


def spot_check(
    run: Path,
    rate: float,
    seed: int,
    *,
    from_start: bool = False,
    threads: int = 1,
    ray: str | None = None,
    on_step: Callable[[ReplayReport, int, int], None] = lambda _found, _done, _of: None,
) -> SpotCheck:
    """Recompute each accepted step with a certain chance, and one at least.

    Args:
        run: The folder of a finished run, or of a participant in one that goes on, with its updates.
        rate: The chance, above 0 and at most 1.
        seed: Of the draw; one that nobody could know before.
        from_start: Recompute private states from each node's last fresh start: proof in place of evidence.
        threads: The participants' thread count.
        ray: The address of a Ray cluster for the replays, see `replay_on_ray`; None: this process makes them.
        on_step: Called with each result, how many there are, and how many there will be.

    Raises:
        ConfigError: the rate is no chance, or the folder is no run's.
        Unavailable: see `replay_on_ray`.
        IntegrityError: the run's chain or blobs are invalid.
    """
    if not 0 < rate <= 1:
        raise ConfigError(f"--rate {rate}: expected more than 0 and at most 1")
    delivered = read_any(run)
    count = sum(len(link.manifest.commits) for link in delivered.links)
    steps = _steps(delivered)
    if not steps:
        raise ConfigError(
            f"{run}: of the run's {count} accepted steps none can be recomputed from what is here"
        )
    chance = random.Random(seed)
    drawn = [step for step in steps if chance.random() < rate] or [chance.choice(steps)]
    found = []
    for one in _replayed(delivered, drawn, ray, from_start=from_start, threads=threads):
        found.append(one)
        on_step(one, len(found), len(drawn))
    return SpotCheck(steps=count, steps_here=len(steps), seed=seed, found=tuple(found))


def _replayed(
    delivered: Delivered, steps: list[tuple[int, PeerId]], ray: str | None, *, from_start: bool, threads: int
) -> Iterator[ReplayReport]:
    if ray is not None:
        yield from replay_on_ray(ray, delivered.root.resolve(), steps, from_start=from_start, threads=threads)
        return
    for round_id, peer in steps:
        done = replay_of(delivered, peer, round_id, from_start=from_start, threads=threads)
        yield ReplayReport.of(done)


def step_line(one: ReplayReport) -> str:
    """The result for one step, as a line for a person."""
    verdict = one.verdict or "evidence"
    signs = "" if one.equal_signs is None else f", {one.equal_signs:.1%} of sent signs are the gradient's own"
    faults = "".join(f"; FAULT {fault}" for fault in one.faults)
    if one.first_false is not None:
        faults += f"; FAULT it rests on the false step of round {one.first_false}"
    return f"round {one.round:>6} of node {one.node.hex()[:8]}: {verdict}{signs}{faults}"


def spot_lines(check: SpotCheck) -> Iterator[str]:
    """What all drawn steps show together."""
    proved = sum(one.verdict == "MATCH" for one in check.found)
    false = sum(not one.is_ok for one in check.found)
    left_out = check.steps - check.steps_here
    newest = f"; {left_out} could not be drawn: they, or what leads to them, are not here yet"
    yield (
        f"{len(check.found)} of {check.steps} accepted steps drawn by seed {check.seed}"
        f"{newest if left_out else ''}"
    )
    yield f"{proved} proved, {len(check.found) - proved - false} with evidence alone, {false} false"
    if false:
        yield "have the false steps slashed, and be paid for it: assay audit accuse RUN:ROUND:NODE FILE.toml"


def _steps(delivered: Delivered) -> list[tuple[int, PeerId]]:
    """Accepted steps that can be recomputed, by round and node: none on data that only its node has."""
    found = list[tuple[int, PeerId]]()
    for at, link in enumerate(delivered.links[:-1]):  # whether the last one is audited is not decided yet
        commits = [one.commit for one in link.manifest.commits]
        here = [one for one in commits if delivered.has(one.update)]
        found += [(at, one.node) for one in here if not delivered.spec.brings_data(one.node)]
        if link.manifest.aggregate != NO_DIGEST and not delivered.has(link.manifest.aggregate):
            break  # the next round's parameters are not here
    return found
