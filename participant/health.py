"""Health: the checks of `assay doctor`, made by each process on itself at its start and once an hour.

Room: participant (edge: the checks, in a thread). What is missing is said once, with its mend, and said
again when it is good; `assay_failed_check` tells it to Prometheus. Nothing is stopped by it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import trio

from assay.participant.checks import Check, check_participant
from assay.participant.config import Config, Participant
from assay.protocol.errors import AssayError

log = logging.getLogger(__name__)
CHECK_S = 3600.0  # some 10 calls of the chain, and the password's key derivation
FILE = Path("CONFIG.toml")  # in the mends: a process knows what its configuration says, not where it is


def checks_of(config: Config) -> list[Check]:
    """The checks of a process that runs.

    Raises:
        ConfigError, Unavailable: see `check_participant`.
    """
    return list(check_participant(config, FILE, is_running=True))


async def watch_health(me: Participant, look: Callable[[Config], Sequence[Check]] = checks_of) -> None:
    """Check the process's own needs at its start and once an hour; ends only by cancellation."""
    reason = ""
    while True:
        try:
            # A process that ends does not wait for the thread: the endpoint may be slow.
            checks = await trio.to_thread.run_sync(
                look,
                me.config,
                abandon_on_cancel=True,  # type: ignore[call-arg]  # the stubs are of an older trio
            )
        except (AssayError, OSError) as error:
            if reason != str(error):  # once, not every hour
                reason = str(error)
                log.warning("checks not made", extra={"reason": reason})
        else:
            reason = ""
            _tell(me.readings.checks, checks)
            me.readings.checks = {one.name: one.fault for one in checks}
        await trio.sleep(CHECK_S)


def _tell(before: Mapping[str, str | None], checks: Sequence[Check]) -> None:
    """Log what changed since the last checks; a fault whose figures alone changed is the same fault."""
    for one in checks:
        had_fault = before.get(one.name) is not None
        if one.fault is not None and not had_fault:
            log.warning("check failed", extra={"check": one.name, "reason": one.fault, "mend": one.mend})
        elif one.fault is None and had_fault:
            log.info("check good again", extra={"check": one.name, "found": one.found})
