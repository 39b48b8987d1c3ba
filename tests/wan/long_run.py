"""Long run: what memory and disk a network's processes take as its rounds go on.

    python -m tests.wan.long_run --rounds 2000 [--folder FOLDER]

Room: tests (edge). Four verifiers and four nodes with a tiny model, as processes on this machine. Every so
often each participant's own memory (Private_Dirty of its processes) and its folder are measured; the largest
of a role is printed, and by how much it grows over the second half. Nothing may grow with the rounds but what
a run has to keep: its manifests, its books and its log files. Then the run is verified.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from assay.bundle.read import read
from assay.bundle.verify import verify
from tests.e2e.nets import localnet, need_anvil, write_order

SAMPLES = 40
POLL_S = 2.0
PATIENCE_S = 3600.0  # without a round
MB = 1e6


class Sample(NamedTuple):
    """What the largest process and folder of each role take, in bytes."""

    round: int
    at_s: float
    memory: Mapping[str, int]
    disk: Mapping[str, int]


def main() -> None:
    """Run it; the exit status is 1 if the run broke a promise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--folder", type=Path, help="a new folder that the run stays in")
    given = parser.parse_args()
    need_anvil()
    if given.folder:
        given.folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if _run(given.folder or Path(folder), given.rounds) else 1)


def _run(folder: Path, rounds: int) -> bool:
    order = write_order(folder, rounds=rounds, cheat="honest")
    order.write_text(order.read_text().replace("epoch_rounds = 5", "epoch_rounds = 50"))
    run, samples = folder / "run", list[Sample]()
    with localnet(folder, order) as network:
        last_s = time.monotonic()
        while network.poll() is None:
            time.sleep(POLL_S)
            now, at = time.monotonic(), newest_round(run / "logs" / "verifier-0.log")
            if len(samples) * rounds // SAMPLES < at < rounds:
                samples.append(Sample(at, now, memory_of(run), disk_of(run)))
                print(_line(samples[-1], samples[0].at_s), flush=True)
                last_s = now
            elif now - last_s > PATIENCE_S:
                raise RuntimeError(f"the network stands still at round {at}")
        told, complaint = network.communicate()
    if network.returncode:
        print(complaint, file=sys.stderr)
        return False
    later = [one for one in samples if one.round >= rounds // 2]
    for kind in ("memory", "disk"):
        for role in sorted(getattr(later[-1], kind)):
            sizes = [getattr(one, kind).get(role, 0) / MB for one in later]
            slope = np.polyfit([one.round for one in later], sizes, 1)[0] * 1000
            print(f"{kind}, {role}: {sizes[-1]:.1f} MB, {slope:+.2f} MB in 1,000 rounds")
    verify(read(run))  # raises what is wrong with it
    return bool(json.loads(told)["ok"])


def newest_round(log: Path) -> int:
    """The newest round that a verifier saw finalised; 0 before the first."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - 200_000, 0))
        found = [line for line in file.read().split(b"\n")[:-1] if b'"round finalised"' in line]
        return int(json.loads(found[-1])["round"]) if found else 0
    return 0


def memory_of(run: Path) -> dict[str, int]:
    """Memory that belongs to the processes of a participant alone, the largest of each role, in bytes."""
    names, own = dict[int, str](), str((run / "logs").resolve())
    for error in Path("/proc").glob("[0-9]*/fd/2"):
        with suppress(OSError):
            if (target := os.readlink(error)).startswith(f"{own}/"):
                names[int(error.parts[2])] = Path(target).stem
    sizes = Counter[str]()
    for process, name in names.items():
        with suppress(OSError):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            sizes[name] += sum(int(one.split()[1]) * 1024 for one in lines if one.startswith("Private_Dirty"))
    return largest(sizes)


def disk_of(run: Path) -> dict[str, int]:
    """Bytes on disk of a participant's folder, the largest of each role, and of the log files of all."""
    sizes = {one.name: _blocks(one) for one in (run / "participants").iterdir() if one.is_dir()}
    return {**largest(sizes), "logs": _blocks(run / "logs")}


def largest(sizes: Mapping[str, int]) -> dict[str, int]:
    """By role, of sizes by participant."""
    found = Counter[str]()
    for name, size in sizes.items():
        role = name.split("-")[0]
        found[role] = max(found[role], size)
    return dict(found)


def _blocks(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


def _line(one: Sample, since_s: float) -> str:
    memory, disk = (
        ", ".join(f"{role} {size / MB:.0f}" for role, size in sorted(sizes.items()))
        for sizes in (one.memory, one.disk)
    )
    return f"round {one.round}, {one.at_s - since_s:.0f} s; memory, MB: {memory}; disk, MB: {disk}"


if __name__ == "__main__":
    main()
