"""Fetch command: copies a delivered run from web servers, or one that goes on, with progress on a terminal.

Room: cli (edge: the terminal). The work is done by bundle/fetch.py and bundle/observe.py.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from assay.bundle.fetch import Fetched, Part, fetch
from assay.bundle.observe import observe
from assay.cli.progress import progress
from assay.cli.result import say
from assay.participant.files.index import signer_text
from assay.participant.files.run_file import read_run_id
from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest

POLL_S = 2.0  # between two looks at a run that goes on


class Sources(NamedTuple):
    """Where to fetch. is_public: whether strangers named the addresses: then none may be a private one."""

    addresses: list[str]
    run_id: str | None  # that is expected
    is_public: bool


def fetch_run(
    sources: Sources,
    out: Path | None,
    only: str,
    most: float,
    *,
    openings: bool,
    follow: bool,
) -> Fetched:
    """Fetch a run, as `--follow` says also while it goes on; the words are those of the command line.

    Raises:
        ConfigError: one of them is not what it should be.
        IntegrityError, Unavailable: see `fetch`.
    """
    try:
        part = Part(only)
    except ValueError:
        raise ConfigError(
            f"--only {only!r}: expected one of {', '.join(one.value for one in Part)}"
        ) from None
    expected, bytes_max = _digest(sources.run_id), int(most * 1e9)
    if follow:
        if expected is None:
            raise ConfigError(
                "--follow needs --run-id: before a run is delivered, nothing else tells it from another"
            )
        return _followed(sources, out, part, expected, bytes_max, openings=openings)
    with progress("files") as tell:
        return fetch(
            sources.addresses, out, part=part, openings=openings, run_id=expected, bytes_max=bytes_max,
            on_progress=lambda one: tell(one.files_done, one.files),
            on_slow=_tell_slow, is_public=sources.is_public,
        )  # fmt: skip


def found_sources(given: list[str], run_id: str | None, network: str, rpc: str | None) -> Sources:
    """Where to fetch from: as given, or by the run's id that is given in place of an address.

    Raises:
        ConfigError: nobody who takes part in the run announced an explorer, or its network cannot be read.
        Unavailable: the endpoint is gone.
    """
    found = read_run_id(given[0]) if len(given) == 1 else None
    if found is None:
        return Sources(given, run_id, is_public=False)
    if _digest(run_id) not in (None, found):
        raise ConfigError(f"run {found.hex()} and --run-id {run_id}: expected one of them")
    from assay.cli.network.commands import read_given
    from assay.cli.network.directory import chain_of
    from assay.participant.directory.explorers import holders, is_local, newest_records
    from assay.participant.directory.listing import read_listed_run

    now_s, chain = int(time.time()), chain_of(network, rpc)
    _, run = read_listed_run(chain, found, now_s)
    records = newest_records(chain, run, now_s)
    is_here = is_local(read_given(network).endpoints)
    explorers = holders(records, is_local=is_here)
    if not explorers:
        raise ConfigError(
            f"run {found.hex()}: none of its {len(records)} members announced an explorer that can be asked: "
            "ask one of them for an address"
        )
    for url in explorers:
        say(f"from {url}", err=True)
    addresses = [f"{url}/runs/{found.hex()}/files" for url in explorers]
    return Sources(addresses, found.hex(), is_public=not is_here)


def _followed(
    sources: Sources, out: Path | None, part: Part, run_id: Digest, bytes_max: int, *, openings: bool
) -> Fetched:
    with Progress(TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True),
                  transient=True, disable=not sys.stderr.isatty()) as bar:  # fmt: skip
        task = bar.add_task("no round yet", total=None)
        return observe(
            sources.addresses, run_id, out, part=part, openings=openings, bytes_max=bytes_max,
            pause=lambda: time.sleep(POLL_S),
            on_slow=_tell_slow,
            is_public=sources.is_public,
            on_round=lambda round_id: bar.update(task, description=f"round {round_id:,} is here"),
        )  # fmt: skip


def _tell_slow(line: str) -> None:
    say(line, err=True)


def fetched_lines(fetched: Fetched) -> Iterator[str]:
    """What was fetched, and what to do next."""
    signer = signer_text(fetched.buyer, fetched.signed_by)
    yield f"run {fetched.run_id.hex()}, as {signer} signed it: compare both with the chain's"
    found = f"{fetched.files} files ({fetched.part.value}), of which {fetched.files_kept} were there"
    yield f"{fetched.folder}: {found}; {fetched.bytes_fetched:,} bytes fetched"
    part = "" if fetched.part is Part.ALL else " --only proof"
    yield f"check it: assay run verify {fetched.folder}{part}"


def _digest(text: str | None) -> Digest | None:
    try:
        found = None if text is None else bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        found = b""
    if found is not None and len(found) != 32:
        raise ConfigError(f"--run-id {text!r}: expected 64 hexadecimal digits")
    return None if found is None else Digest(found)
