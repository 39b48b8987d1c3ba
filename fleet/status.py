"""Status: what an operator's process has taken, from what it keeps, whether it runs or not.

Room: fleet (edge: files of one folder). The chain is not asked: lots are as they were at the last look.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from assay.chain.text.units import money_text, token_text
from assay.fleet.config import LOCK, is_held, read_state
from assay.fleet.plan import Seat, Stage
from assay.fleet.seats import read_log

NAME_CHARS = 16
DIGITS = 16  # of a run's id, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatShown:
    """One run that was taken; amounts in token units, times in Unix seconds."""

    run_id: bytes
    name: str
    stage: Stage
    since: int
    why: str
    has_seat: bool  # or had
    round: int | None  # the newest final one that its node reported
    pay_per_hour: int
    is_measured: bool  # else it is what the run promises
    earned: int  # in settled epochs
    lot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorStatus:
    """An operator's runs, in the order in which they were taken."""

    is_running: bool
    takes: int  # in the day before the last one
    avoided: tuple[str, ...]  # runs and buyers
    runs: tuple[SeatShown, ...]


def read_status(folder: Path) -> OperatorStatus:
    """The status of the operator's process that keeps its runs in this folder.

    Raises:
        ConfigError: its state cannot be read.
    """
    state = read_state(folder)
    return OperatorStatus(
        is_running=is_held(folder / LOCK),
        takes=len(state.takes),
        avoided=tuple(sorted(state.avoided)),
        runs=tuple(_shown(folder, seat) for seat in state.seats),
    )


def _shown(folder: Path, seat: Seat) -> SeatShown:
    reading = read_log(folder / seat.run_id.hex())
    return SeatShown(
        run_id=seat.run_id,
        name=seat.name,
        stage=seat.stage,
        since=seat.since,
        why=seat.why,
        has_seat=seat.was_seated,
        round=reading.round,
        pay_per_hour=seat.pay,
        is_measured=seat.is_measured,
        earned=reading.paid,
        lot=seat.lot,
    )


def status_lines(found: OperatorStatus) -> Iterator[str]:
    """A status for people: one line for each run."""
    for one in found.runs:
        name = "".join(letter if letter.isprintable() else "?" for letter in one.name)[:NAME_CHARS]
        at = "-" if one.round is None else f"{one.round:,}"
        pay = f"{token_text(one.pay_per_hour)}/h{'' if one.is_measured else ' promised'}"
        yield (
            f"{one.run_id.hex()[:DIGITS]}  {name:<{NAME_CHARS}}  {one.stage.value:<8}"
            f"{'seat' if one.has_seat else 'no seat'}  round {at}  {pay}  "
            f"earned {money_text(one.earned)}  lot {money_text(one.lot)}  ({one.why})"
        )
    runs = "running" if found.is_running else "NOT running"
    avoided = f"{len(found.avoided)} runs and buyers avoided"
    yield f"{len(found.runs)} runs; {found.takes} taken in a day; {avoided}; {runs}"
