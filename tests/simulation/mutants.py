"""Mutants of the simulator: breaks one rule at a time and says which breaks whole networks notice.

    python -m tests.simulation.mutants --sample 30 --seed 1

Each mutant is one changed expression, as `tests.mutants` makes them, in a line that a few unchanged networks
run. The networks of the first seeds run on it, one after another, until one breaks a promise or a process of
it ends. No other test runs. Survivors are printed with their place.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.mutants import Mutant, _copy, mutants_of

ROOMS = ("protocol", "verifier/consensus", "verifier/service", "node", "participant")
# From much to see at little cost to many disturbances. 35 lapses; in 302 and 194 a slow verifier hears last
# of what nodes know; 97 draws by drand; in 484 half of the verifiers get no openings; 3 and 115 are storms
# with steps of several sizes, in 115 a leader loses its store; in 43 a silent seat changes hands; in 363 a
# verifier invents sketches.
SEEDS = (35, 302, 97, 194, 484, 29, 3, 115, 43, 34, 363, 49, 71, 121, 103, 98, 61, 291, 62, 59, 24)
CPU_S = 400  # of the networks on one mutant: one that takes longer goes round in circles
_RECORDING = """
import json, sys, threading
lines, calls, root = {}, {}, sys.argv[1] + "/"
def follow(frame, event, _):
    calls[frame.f_code] = count = calls.get(frame.f_code, 0) + 1
    if count > 5000:
        return None
    name = frame.f_code.co_filename
    name = name[name.index("/assay/") + 7:] if "/assay/" in name else name.removeprefix(root)
    if not name.startswith(tuple(json.loads(sys.argv[2]))):
        return None
    here = lines.setdefault(name, set())
    def line(frame, event, _):
        here.add(frame.f_lineno)
        return line
    return line(frame, event, None)
from tests.simulation.whole_network import simulate
threading.settrace(follow)
sys.settrace(follow)
for seed in json.loads(sys.argv[3]):
    simulate(seed)
sys.settrace(None)
json.dump({name: sorted(found) for name, found in lines.items()}, open(sys.argv[4], "w"))
"""


def main() -> None:
    """Run a sample of the mutants, print what became of each, and the score."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants")
    parser.add_argument("rooms", nargs="*", default=ROOMS)
    parser.add_argument("--sample", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--seeds", type=int, default=10, help="networks for each mutant")
    parser.add_argument(
        "--recorded", type=int, default=3, help="unchanged networks that show which lines run"
    )
    parser.add_argument("--these", type=int, nargs="*", help="networks, in place of the first ones")
    parser.add_argument("--lines", type=Path, help="where to keep, and find again, which lines run")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the sample's mutants")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        root = Path(name).resolve()
        _copy(root)
        files = [path for room in chosen.rooms for path in sorted((root / room).rglob("*.py"))]
        every = [one for path in files for one in mutants_of(path.relative_to(root), path.read_bytes())]
        sources = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
        kept = {}
        if chosen.lines is not None and chosen.lines.exists():
            kept = json.loads(chosen.lines.read_text())
        first = (chosen.these or range(chosen.recorded))[: chosen.recorded]
        lines = kept.get(sources) or recorded(root, tuple(chosen.rooms), list(first))
        these = chosen.these or [*SEEDS, *range(max(SEEDS) + 1, max(SEEDS) + 100)][: chosen.seeds]
        if chosen.lines is not None:
            chosen.lines.write_text(json.dumps({sources: lines}))
        run = [one for one in every if one.line in lines.get(str(one.path), ())]
        print(f"{len(run)} of {len(every)} mutants are in lines that the networks run", flush=True)
        if _broken(root, these):
            sys.exit("the networks break a promise before anything is changed")
        sample = random.Random(chosen.seed).sample(run, min(chosen.sample, len(run)))
        found: Counter[bool] = Counter()
        for number, mutant in enumerate(sample):
            if chosen.only is None or number in chosen.only:
                found[_is_caught(root, number, mutant, these)] += 1
        print(f"{found[True]} of {found.total()} mutants caught", flush=True)


def recorded(root: Path, rooms: tuple[str, ...], seeds: list[int]) -> dict[str, list[int]]:
    """The lines of these rooms that some networks run on the unchanged tree, by file."""
    report = root / "recorded"
    subprocess.run(
        [sys.executable, "-c", _RECORDING, str(root), json.dumps(rooms), json.dumps(seeds), str(report)],
        cwd=root, env=_environment(root), check=True,
    )  # fmt: skip
    found: dict[str, list[int]] = json.loads(report.read_text())
    return found


def _is_caught(root: Path, number: int, mutant: Mutant, seeds: list[int]) -> bool:
    path, began_s = root / mutant.path, time.monotonic()
    source = path.read_bytes()
    path.write_bytes(mutant.apply(source))
    try:
        broken = _broken(root, seeds)
    finally:
        path.write_bytes(source)
    said = f"caught: {broken[:160]}" if broken else "SURVIVES"
    print(f"{number}: {mutant.shown(source)}  {time.monotonic() - began_s:.0f} s\n    {said}", flush=True)
    return bool(broken)


def _broken(root: Path, seeds: list[int]) -> str:
    """The first promise that a network breaks on the tree as it is, with its plan; empty if all are kept."""
    these = map(str, seeds)
    command = f"ulimit -t {CPU_S}; exec {sys.executable} -m tests.simulation.rounds --these {' '.join(these)}"
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=root, env=_environment(root), capture_output=True, text=True
    )
    if not done.returncode:
        return ""
    said = [line for line in done.stderr.splitlines() if line and not line.startswith(" ")]
    return " | ".join(reversed(said[:2])) or f"exit status {done.returncode}"


def _environment(root: Path) -> dict[str, str]:
    roots = os.pathsep.join([str(root / "build/import_root"), str(root)])
    return {**os.environ, "PYTHONPATH": roots, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


if __name__ == "__main__":
    main()
