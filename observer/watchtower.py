"""Watchtower: follows a run, and does what its contracts need; anybody may run one, with any funded account.

Room: observer (edge). It holds no books. Results are recomputed from the certified manifests and challenged
where they differ; what others leave undone is done after a while (participant/wallet/settler.py). Of the
model that a result names it believes the verifiers. With an account that has verifier's stake it is on the
list of juries, and votes when it is drawn: for a challenge, and for an appeal in this run, whose operator a
recompute worker judges by the run's data and by what the accused's node shows (verifier/appeal/juror.py).
As a member of the present verifier set it signs vetoes in runs of the sets before, whose verifiers accept it
by its record.
"""

from __future__ import annotations

import logging
from functools import partial

import trio

from assay.participant.config import Config, Door, Participant, open_participant
from assay.participant.follower import Follower
from assay.participant.run import participate
from assay.participant.wallet.cases import Vetoes
from assay.participant.wallet.settler import TAKEOVER_S, Settler
from assay.participant.worker import WorkerProcess
from assay.verifier.appeal.juror import Juror
from assay.verifier.audit.messages import Judged, JudgeOperator, RecomputeStart

log = logging.getLogger(__name__)


async def run_watchtower(config: Config) -> None:
    """Watch a run until stopped.

    Args:
        config: A participant that is neither node nor verifier; its account pays gas and bonds.

    Raises:
        ConfigError: the operator can fix it.
    """
    me = open_participant(config)
    me.keys.check_unattended("a watchtower")
    await watch(me, TAKEOVER_S)


async def watch(me: Participant, patience_s: float) -> None:
    """Watch until cancelled.

    Args:
        me: The participant.
        patience_s: For which others are expected to do what anybody may do.
    """
    follower = Follower(me.spec, me.run_id, me.store)

    handlers = {"sign-veto": Vetoes(me, follower).answer}
    juror = Juror(me, follower, partial(_judge, me))
    settler = Settler(me, follower, patience_s=patience_s, handlers=handlers, juror=juror)
    door = Door(handlers={}, is_open=lambda: False, knows=juror.knows)
    async with participate(me, follower, handlers, door=door) as (host, nursery):
        nursery.start_soon(juror.run, host)
        nursery.start_soon(settler.run, host)
        log.info("watchtower is up", extra={"account": me.keys.account_address.hex()})
        await trio.sleep_forever()


async def _judge(me: Participant, request: JudgeOperator) -> bool:
    """Whether a shown operator is right, by a recompute worker that ends with its answer: juries are rare."""
    limits = "" if me.config.limits is None else str(me.config.limits)
    worker = WorkerProcess(
        "assay.verifier.audit.worker",
        RecomputeStart(spec=me.spec, workplace=me.workplace, limits=limits),
        me.config.folder / "recompute-worker.log",
        started=lambda _round: None,
        worked=me.worked,
    )
    try:
        return (await worker.call(request, Judged)).is_right
    finally:
        await worker.close()
