"""Speed: measures how fast this machine trains, in a process of its own, which then ends.

Room: fleet (edge: a clock, standard output). Run as `python -m assay.fleet.speed DEVICE THREADS`, because a
supervisor holds no torch. A small model uses a machine less well than a large one, so the figure is on the
safe side.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import trio

from assay.participant.keys.private_files import make_private_folder
from assay.participant.worker import ONE_THREAD
from assay.protocol.errors import ConfigError

if TYPE_CHECKING:  # the process that measures has no use for web3
    from assay.fleet.config import FleetConfig

SPEED = "speed"  # the file of an operator's folder that keeps it


async def flop_per_s(device: str, threads: int) -> int:
    """Operations of training that a node of this machine does in a second.

    Args:
        device: "cpu" or "cuda".
        threads: Of each node; 0: the fastest number is chosen, as nodes do.

    Raises:
        ConfigError: the device cannot be used.
    """
    done = await trio.run_process(
        [sys.executable, "-m", "assay.fleet.speed", device, str(threads)],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**ONE_THREAD, **os.environ},
    )
    if done.returncode != 0 or not done.stdout.strip().isdigit():
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise ConfigError(f"this machine's speed could not be measured: {said[-1] if said else 'no output'}")
    return int(done.stdout)


async def kept_flop_per_s(config: FleetConfig) -> int:
    """The machine's speed, measured the first time that an operator's process or command asks for it.

    Raises:
        ConfigError: the device cannot be used, or what was kept is no speed.
    """
    kept = config.folder / SPEED
    if not kept.exists():
        make_private_folder(config.folder)
        kept.write_text(f"{await flop_per_s(config.base.device, config.base.threads)}\n")
    text = kept.read_text().strip()
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ConfigError(f"{kept}: {text[:40]!a}, expected a number above 0; delete it to measure again")
    return int(text)


def _measured(device: str, threads: int) -> int:
    from assay.training.execution.threads import (
        SMALL,
        SMALL_TOKENS,
        cores,
        counts_to_try,
        small_step,
        time_threads,
    )
    from assay.training.model.flops import flop_per_token
    from assay.training.model.loss import check_device, use_threads

    use_threads(max(threads, 1))
    check_device(device)
    seconds = time_threads((threads,) if threads else counts_to_try(cores()), work=small_step(device))
    return int(SMALL_TOKENS * flop_per_token(SMALL) / min(seconds.values()))


if __name__ == "__main__":
    print(_measured(sys.argv[1], int(sys.argv[2])))
