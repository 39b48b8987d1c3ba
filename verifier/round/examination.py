"""Examination: which proposed manifests a verifier may vote for.

Room: verifier (pure). What a leader may propose by its own rules (`leader`), every honest verifier accepts.
"""

from __future__ import annotations

from typing import Any

from assay.participant.links import check_place
from assay.protocol.agreement.quorum import quorum
from assay.protocol.errors import MalformedMessage
from assay.protocol.identity import verify
from assay.protocol.messages import Closing, Manifest
from assay.protocol.permitted import with_reports
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_ITERATION, Iteration
from assay.verifier.round import drand as outside
from assay.verifier.round.ancestors import base_history
from assay.verifier.round.beacon import check_reveals
from assay.verifier.round.commits import admit, check_contradiction, check_list
from assay.verifier.round.machine import Round, said_in

AHEAD_S = 10  # by which a manifest's time may be ahead of our clock, at least,
AHEAD_SHARE = 16  # and a 16th of the absence that it measures: a clock that is minutes late still votes


def examine(
    state: Round,
    ancestors: tuple[Manifest, ...],
    manifest: Manifest,
    *,
    follows: bool = False,
    iteration: Iteration = NO_ITERATION,
    wall_s: int = 0,
) -> None:
    """Do nothing if this verifier may vote for a proposed manifest. Its aggregate is not checked here.

    Args:
        state: What it holds.
        ancestors: Notarised manifests that the proposed one builds on.
        manifest: The proposed one.
        follows: No iteration was skipped since the parent's.
        iteration: In which it is proposed.
        wall_s: Unix time.

    Raises:
        MalformedMessage, PeerFault, OutOfPhase: the rule it breaks.
    """
    run_state = base_history(state.run_state, ancestors)
    check_place(run_state, manifest)
    ahead_s = max(AHEAD_S, run_state.spec.audit.absence_s // AHEAD_SHARE)
    if run_state.awaits_nodes and abs(manifest.time_s - wall_s) > AHEAD_S:
        raise MalformedMessage(
            f"manifest of another time: it decides at {manifest.time_s} whether the run starts, "
            f"our clock says {wall_s}, at most {AHEAD_S} s from it expected"
        )
    if manifest.time_s > max(run_state.time_s, wall_s + ahead_s):
        raise MalformedMessage(
            f"manifest of the future: its time is {manifest.time_s}, our clock says {wall_s}, "
            f"at most {ahead_s} s ahead expected"
        )
    if run_state.spec.reserves and manifest.iteration != iteration:
        raise MalformedMessage(f"manifest of iteration {manifest.iteration}, expected {iteration}")
    outside.check_outside(run_state, manifest, follows=follows, wall_s=wall_s)
    for signed in manifest.commits:
        if ancestors:
            raise MalformedMessage("manifest with commits on a parent that is not final")
        if state.commits.get(signed.commit.node) != signed:  # ours were admitted under the same rules
            admit(state.rules, run_state, state.state, signed)
    after = with_reports(run_state, (signed.funding_report for signed in manifest.funding_reports))
    if not ancestors and after.takes_commits:
        _check_complete(run_state, manifest, is_closing=after.closing is not Closing.NO)
    for listed in manifest.inclusion_lists:  # wherever they are, the chain has heard of their seats
        check_list(state.rules, run_state, listed)
    check_reveals(run_state, manifest, follows=follows)
    signed_by_verifiers: tuple[Any, ...] = (
        *manifest.commitments,
        *manifest.verdicts,
        *manifest.stake_reports,
        *manifest.admissions,
        *manifest.funding_reports,
        *manifest.evaluations,
        *manifest.evaluation_commitments,
        *manifest.appraised,
    )
    for message in signed_by_verifiers:
        said = said_in(message)
        if said.run_id != run_state.run_id:
            raise MalformedMessage(f"manifest carries a {type(said).__name__} of another run")
        verify(run_state.key(said.verifier), state.rules.domain, said, message.signature)
    for pair in manifest.contradictions:
        check_contradiction(state.rules, run_state, pair)


def _check_complete(run_state: RunState, manifest: Manifest, *, is_closing: bool) -> None:
    """Do nothing if this manifest of a paid round on a final parent shows that it leaves no commit out."""
    if not manifest.commits and not is_closing and not run_state.is_deserted:
        raise MalformedMessage("manifest without commits on a parent that is final")
    count, need = len(manifest.inclusion_lists), quorum(len(run_state.spec.verifiers))
    if count < need:
        raise MalformedMessage(f"manifest with {count} inclusion lists, expected {need}")
