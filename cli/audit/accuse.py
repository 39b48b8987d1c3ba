"""Accuse: makes a case of a false step that a replay found: verifiers make it again, the court takes it.

Room: cli (edge). The bond comes back when the case is paid out, with the challenger's share of the slash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from assay.bundle.follow import read_any
from assay.bundle.read import find_node
from assay.bundle.replay.step import Replayed, parse_step, replay_of
from assay.chain.text.times import time_text
from assay.cli.account.spending import account_of, sent_text
from assay.cli.result import Step, done, dry, nothing, told
from assay.participant.wallet.accusation import certified_order, list_of
from assay.protocol.auditing.audits import case_id_of
from assay.protocol.errors import ConfigError
from assay.protocol.messages import Outcome
from assay.protocol.types import NO_DIGEST


def accuse_steps(step: str, file: Path, threads: int, *, is_dry: bool) -> Iterator[Step]:
    """Replay a step by those that lead to it, and open a case about it or about the first false one of them.

    Args:
        step: `RUN:ROUND:NODE`, of a delivered run or, if the node has left, of a participant's folder.
        file: The accuser's configuration, for the same run.
        threads: The participants' thread count.
        is_dry: Replay alone.

    Raises:
        ConfigError: no such step, or the configuration is of another run.
        Unavailable: no quorum of verifiers signs; with their reasons.
        ChainRefused: a contract refused a move.
    """
    run, round_id, node = parse_step(step)
    delivered, account = read_any(run), account_of(file)
    if account.run_id != delivered.run_id:
        raise ConfigError(
            f"{file} is for run {account.run_id.hex()[:16]}, {run} is {delivered.run_id.hex()[:16]}"
        )
    peer = find_node(delivered.run_states[-1].nodes, node)
    run_state = delivered.run_states[-1]
    if run_state.nodes[peer].tasks != NO_DIGEST and delivered.task_list(peer) is None:
        shown = list_of(account, run_state, peer)  # else its known-answer tasks would look like lies
        delivered = delivered if shown is None else replace(delivered, asked={peer: shown})
    false_at = _false_round(
        replay_of(delivered, peer, round_id, use_opening=False, from_start=True, threads=threads)
    )
    if false_at is None:
        yield nothing(
            "replay", f"round {round_id} of node {peer.hex()[:8]}: nothing that can be accused was found"
        )
        return
    yield told("replay", f"round {false_at} of node {peer.hex()[:8]} is false")
    (commit,) = (one.commit for one in delivered.links[false_at].manifest.commits if one.commit.node == peer)
    case_id, court = case_id_of(commit), account.deployment.slash_court
    if account.chain.is_punished(case_id):
        yield nothing("case", f"there is a case about this step: {case_id.hex()}")
        return
    if is_dry:
        yield dry(
            "accuse",
            f"would ask the run's verifiers, and then send to SlashCourt {court}: openCase({case_id.hex()})",
        )
        return
    yield told(
        "accuse", "asking the run's verifiers to make the step again: it takes as long as their machines need"
    )
    offender = run_state.nodes[peer].member.account
    order, certificate = certified_order(account, commit, offender)
    sent = account.chain.open_case(order, certificate)
    yield done("case", f"opened case {case_id.hex()} against {order.offender}: {sent_text(sent)}", sent=sent)
    vetoable = time_text(account.chain.case(case_id).veto_ends_at)
    yield told(
        "next", f"the accused may appeal until {vetoable}; then it is slashed, and you and the buyer are paid"
    )


def _false_round(done_: Replayed) -> int | None:
    """Round of the first false step that a replay in the node's class proved; None if it proved none."""
    if done_.verdict is Outcome.MISMATCH and done_.is_same_class:
        return int(done_.commit.round)
    return done_.first_false
