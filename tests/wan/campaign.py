"""Campaign: plays scenarios, whole networks of real processes to which faults come from outside.

    python -m tests.wan.campaign --seeds 20 --start 0 [--write FOLDER]
    python -m tests.wan.campaign --file tests/wan/scenarios/chain.toml

Room: tests (edge). Each scenario is one run of a local network: verifiers, nodes, a chain, a ledger service
and a buyer, all processes of their own. `tests.wan.scenario` says what may befall them; in a drawn scenario
at most one node and one verifier cheat. Promised whatever happens is what `broken_promises` checks. A line is
printed for each scenario; the folder of a broken run stays.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.bundle.read import read as read_run
from assay.bundle.verify import verify
from assay.devnet.faults.behaviours import HONEST
from assay.protocol.errors import AssayError, ConfigError
from tests.child_process import PYTHONPATH
from tests.e2e.nets import broken_invariants, localnet, need_anvil, write_order
from tests.wan import lines
from tests.wan.faults import Faults
from tests.wan.scenario import Fault, Scenario, planned, read, written

PATIENCE_S = 900.0
SKEWED = Path(__file__).parent / "skewed"  # makes clocks wrong


@dataclass(frozen=True)
class Played:
    """A run that ended: its folder, what was printed, and the faults that found nothing to harm."""

    run: Path
    summary: dict[str, Any]
    status: int
    missed: tuple[Fault, ...]


def play(
    scenario: Scenario,
    folder: Path,
    order: Path | None = None,
    *,
    before: Callable[[Fault], None] = lambda _fault: None,
    meanwhile: Callable[[subprocess.Popen[str], Path], None] = lambda _network, _run: None,
) -> Played:
    """Run a scenario to its end.

    Args:
        scenario: What happens.
        folder: Of the run, which is made in it.
        order: The run's file, whose rounds and members the scenario replaces; None: the order of the tests.
        before: Called with each fault right before it is brought.
        meanwhile: Called with the network's process and the run's folder, beside the faults.

    Raises:
        AssayError: it ended without a summary, or not in time.
    """
    if order is None:
        order = write_order(folder, rounds=scenario.rounds, cheat=HONEST)
    order.with_suffix(".scenario.toml").unlink(missing_ok=True)
    text, run = order.read_text(), folder / "run"
    order.write_text(text.replace("[run]\n", "[run]\nreserves = 1\n") if scenario.has_reserve else text)
    counts = {key: getattr(scenario, key) for key in ("nodes", "verifiers", "rounds")}
    options = [word for key, count in counts.items() for word in (f"--{key}", str(count))]
    options += [word for one in scenario.behaviours for word in ("--behave", one)]
    environment = {
        "PYTHONPATH": os.pathsep.join((str(SKEWED), PYTHONPATH)),
        "CLOCK_SKEWS": json.dumps(dict(scenario.clocks)),
        "ASSAY_LINES": str(run),
        "ASSAY_SIEGE": str(lines.orders(run)),
        "ASSAY_FLOODER": f"verifier-{scenario.verifiers}" if scenario.has_reserve else "",
    }
    has_lines = scenario.has_reserve or any(fault.kind == "partition" for fault in scenario.faults)
    module = "tests.wan.lines" if has_lines else "assay.cli.main"
    with (
        localnet(folder, order, *options, environment=environment, module=module) as network,
        ThreadPoolExecutor(1) as beside,
    ):
        faults = Faults(scenario, network.pid, run, before)
        brought = beside.submit(faults.bring)
        try:
            meanwhile(network, run)
            told, complaint = network.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssayError(f"the run did not end in {PATIENCE_S:.0f} s") from None
        finally:
            faults.end()
    missed = tuple(brought.result())  # raises what kept a fault from being brought
    if not told:
        raise AssayError(f"it ended with status {network.returncode}: {complaint.strip()[-500:]}")
    return Played(run, json.loads(told), network.returncode, missed)


def broken_promises(summary: dict[str, Any], run: Path) -> list[str]:
    """What did not hold of a run that ended, one sentence each; empty, whatever faults it met.

    Promised is every invariant of its summary (honest parties lose no stake, cheaters do, no unit is lost,
    honest processes hold the same parameters), and that its folder verifies.
    """
    broken = broken_invariants(summary)
    try:
        verify(read_run(run))
    except AssayError as error:
        broken.append(f"it does not verify: {error}")
    return broken


def _told(name: str, scenario: Scenario) -> bool:
    """Play it and print a line; whether every promise held."""
    began_s, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix=f"campaign-{name}-"))
    missed: tuple[Fault, ...] = ()
    try:
        played = play(scenario, folder)
        broken, missed = broken_promises(played.summary, played.run), played.missed
    except AssayError as error:
        broken = [str(error)]
    print(f"{name}: {scenario}: {time.monotonic() - began_s:.0f} s", flush=True)
    for fault in missed:
        print(f"  found nothing to harm: {fault}", flush=True)
    for one in broken:
        print(f"  broken: {one}", flush=True)
    if broken:
        print(f"  its folder: {folder}", flush=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return not broken


def main() -> None:
    """Play or write the scenarios of files or seeds; the exit status is 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, action="append", help="a scenario to play; repeatable")
    parser.add_argument("--seeds", type=int, default=10, help="how many drawn ones, without files")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write them as files, and play none")
    given = parser.parse_args()
    seeds = range(given.start, given.start + given.seeds)
    try:
        chosen = (
            {path.stem: read(path) for path in given.file}
            if given.file
            else {f"seed-{seed}": planned(seed) for seed in seeds}
        )
    except ConfigError as error:
        sys.exit(str(error))
    if given.write:
        given.write.mkdir(parents=True, exist_ok=True)
        for name, scenario in chosen.items():
            (given.write / f"{name}.toml").write_text(written(scenario))
        return
    need_anvil()
    broken_count = sum(not _told(name, scenario) for name, scenario in chosen.items())
    print(f"{len(chosen)} scenarios, {broken_count} broken")
    sys.exit(1 if broken_count else 0)


if __name__ == "__main__":
    main()
