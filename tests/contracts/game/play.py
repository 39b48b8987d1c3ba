"""Play: seeded games of agents with aims on the real contracts and the real settlement code.

    python -m tests.contracts.game.play --seeds 500 --first 0    plays them, and says what was found
    python -m tests.contracts.game.play --seeds 20 --without "keepers challenge"    breaks a rule of the model

The same seed gives the same agents and dice; which signatures come first is chance.
What a game must leave everybody with: `Table.losses`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from assay.chain.client import UNIT
from assay.chain.deployment.anvil import Anvil, find_anvil
from tests.contracts.chain_world import WINDOWS, World
from tests.contracts.game.agents import BUYERS, DISTURBERS, KEEPERS, LAST_STEP, OPERATORS, QUORUMS
from tests.contracts.game.joiners import JOINERS
from tests.contracts.game.table import DAY, EPOCHS, STEP_S, Life, Table

# Nobody asks for old states, which are otherwise written to disk, nor for two things at a time.
FRUGAL = ("--prune-history", "8", "--threads", "1")
PRICE = 600 * UNIT  # of an epoch
RULES = {
    "keepers challenge": "at least one honest keeper looks at a run in every challenge window",
    "jurors are honest": "more than half of a drawn jury's seats are honest and answer",
    "the accused appeal": "an honest operator that is convicted appeals within the veto window",
    "who signed an order defends it": "a verifier that signed a right order defends it against an appeal",
    "the next set vetoes": "after a hand-over the present verifiers watch the last ones' runs, and veto lies",
    "who opens a case is not betrayed": "no honest account opens a case for a quorum that then vetoes it",
}


@dataclass(frozen=True, slots=True)
class Game:
    """A played game: who played, and what was found."""

    seed: int
    cast: str
    losses: tuple[str, ...]
    excuses: frozenset[str]


def play(table: Table, seed: int, without: Collection[str] = ()) -> Game:
    """One game from its seed, on a table that is as before afterwards."""
    dice = Random(seed)
    table.sit_down()
    table.rules = frozenset(RULES) - frozenset(without)
    buyer, funded_percent, deadline_steps = dice.choice(BUYERS)
    others = [dice.choice(QUORUMS), dice.choice(DISTURBERS), dice.choice(KEEPERS)]
    operators = [dice.choice(OPERATORS) for _ in table.world.operators]
    runs = ["red", "blue"] if dice.random() < 0.3 else ["red"]
    joiner = Random(f"{seed} joiner").choice(JOINERS)
    cast = [buyer, *others, *operators, joiner]
    for name in runs:
        budget = PRICE * EPOCHS * (funded_percent if name == "red" else 100) // 100
        table.open_run(name, budget, (deadline_steps if name == "red" else 50) * STEP_S)
    if "keepers challenge" not in table.rules:
        table.asleep |= {"keeper", "second keeper"}
    if "jurors are honest" not in table.rules:
        table.bribed |= {f"juror {at}" for at in range(4)}
    lives: list[Life] = [one(table, Random(f"{seed} {at}")) for at, one in enumerate((buyer, *others))]
    lives += [one(table, Random(f"{seed} operator {at}"), at) for at, one in enumerate(operators)]
    dice.shuffle(lives)
    lives.append(joiner(table, Random(f"{seed} joining")))
    for _ in range(LAST_STEP):
        table.step(lives)
    if "keepers challenge" not in table.rules:
        table.wait(8 * DAY)
        table.asleep -= {"keeper", "second keeper"}
    table.leave(lives)
    names = f"{' and '.join(runs)}: {', '.join(one.__name__ for one in cast)}"
    return Game(seed, names, tuple(table.losses()), frozenset(table.excuses))


@contextmanager
def a_table(anvil: Path) -> Iterator[Table]:
    """A fresh chain with a table on it, by this program."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Anvil(
            binary=anvil,
            state_dir=Path(folder),
            block_time_s=None,
            state_interval_s=3_600,
            options=FRUGAL,
        ) as chain,
    ):
        yield Table(World(chain.rpc_url, chain.keys[0], WINDOWS, name="game"))


def main() -> None:
    """Plays until all games are played or SIGINT comes, and prints; ends with 1 if a game found a loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, help="number of games")
    parser.add_argument("--first", type=int, default=0, help="seed of the first game")
    parser.add_argument(
        "--without", action="append", default=[], choices=RULES, help="a rule that does not hold"
    )
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    begun, reached, played = time.monotonic(), Counter[str](), list[Game]()
    with a_table(find_anvil(Path(__file__).parents[3] / "contracts")) as table, suppress(KeyboardInterrupt):
        reached = table.reached
        for seed in range(asked.first, asked.first + asked.seeds):
            game = play(table, seed, asked.without)
            played.append(game)
            if game.losses:
                print(f"seed {seed} ({game.cast}): {'; '.join(game.losses)}", flush=True)
            if len(played) % 20 == 0:
                print(f"... {len(played)} games, {(time.monotonic() - begun):.0f} s", flush=True)
    for what, times in sorted(reached.items()):
        print(f"{times:6}  {what}")
    seconds, found = time.monotonic() - begun, sum(bool(game.losses) for game in played)
    print(
        f"{len(played)} games from seed {asked.first}: {found} with a loss, "
        f"{sum(bool(game.excuses) for game in played)} beyond the model's assumptions; "
        f"{len(played) / seconds * 60:.0f} a minute"
    )
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
