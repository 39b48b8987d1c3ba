"""Appeal commands: the accused of a false step appeals a slash order, and jurors judge one operator of it.

Room: cli (edge). Both read the files of a participant's configuration, also while its process runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.account.spending import ConfigFile, DryRun, account_of, sent_text
from assay.cli.result import Step, done, dry, nothing, stepwise, told
from assay.protocol.errors import ConfigError, Diverged, MalformedMessage, PeerFault

if TYPE_CHECKING:
    from assay.chain.state import AppealState
    from assay.participant.wallet.account import Account
    from assay.protocol.messages import EvidenceRequest
    from assay.training.frozen import Frozen
    from assay.verifier.appeal.accused import Step as OwnStep

PATIENCE_S = 120.0  # an accused's node looks every half a minute who its jurors are
appeal_app = typer.Typer(no_args_is_help=True, help="Appeal a slash order; judge an appeal as a juror.")


@appeal_app.command("open")
@stepwise
def open_appeal(
    file: ConfigFile,
    round_id: Annotated[int, typer.Argument(metavar="ROUND", help="Round of the step that was convicted.")],
    dry_run: DryRun = False,
) -> Iterator[Step]:
    """Appeal the slash order about your node's step, answer every defence, and write jurors' evidence.

    It runs until the appeal has ended, which takes days; started again, it goes on. Leave your node's
    process running too: jurors ask it for the evidence, and check it themselves.

    Example: assay appeal open config.toml 7
    """
    from assay.participant.files.evidence import evidence_files, evidence_path
    from assay.protocol.auditing.audits import case_id_of
    from assay.verifier.appeal.accused import conduct

    account = account_of(file)
    step = _own_step(account, round_id)
    case_id = case_id_of(step.commit)
    if dry_run:
        where = f"AppealCourt {account.deployment.appeal_court}"
        yield dry("appeal", f"the step holds; would send to {where}: appeal({case_id.hex()})")
        return

    def save(index: int, body: bytes) -> Path:
        path = evidence_path(account.config.folder, case_id, index)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(body)
        return path

    for line in conduct(account.chain, step, save):
        yield done("appeal", line)
    for path in evidence_files(account.config.folder):
        if path.name.startswith(case_id.hex()):
            path.unlink()  # the node's process waits for this


@appeal_app.command()
@stepwise
def vote(
    file: ConfigFile,
    case: Annotated[
        str, typer.Argument(metavar="CASE", help="The case's id; or the accused's file of evidence.")
    ],
    dry_run: DryRun = False,
) -> Iterator[Step]:
    """Recompute the one operator that an appeal is about, and vote on it as its juror.

    The evidence is asked of the accused's node, found in the directory, and of the run's verifiers, which
    show it to who announced a record and sits on the jury. The configuration names the accused's run, whose
    data are in its folder.

    Example: assay appeal vote config.toml 4be0...
    """
    from assay.chain.state import DefencePhase
    from assay.protocol.auditing.audits import case_id_of
    from assay.protocol.messages import EvidenceRequest
    from assay.protocol.types import Digest
    from assay.training.data.batches import read_tokens
    from assay.verifier.appeal.answers import is_right
    from assay.verifier.appeal.evidence import parse_evidence
    from assay.verifier.audit.limits import agreed_limits
    from assay.verifier.audit.messages import JudgeOperator, question

    account = account_of(file)
    chain, spec, config = account.chain, account.spec, account.config
    limits = agreed_limits(spec, config.limits)
    if limits is None:
        raise ConfigError("the run names no limits between execution classes: no appeal covers its steps")
    given = None if re.fullmatch("(0x)?[0-9a-fA-F]{64}", case) else parse_evidence(_read(Path(case)), None)
    case_id = Digest(bytes.fromhex(case[-64:])) if given is None else case_id_of(given.commit)
    shown = {} if given is None else {given.index: Path(case)}
    appeal = chain.appeal(case_id)
    votes, answers = 0, dict[JudgeOperator, bool]()  # of several defences the same operator may be left
    with TemporaryDirectory(prefix="assay-evidence-") as folder:
        for defender, state, jury in chain.defences(case_id):
            voted = jury.right | jury.wrong
            is_juror = any(who == chain.address and not voted >> at & 1 for at, who in enumerate(jury.seats))
            is_this = state.phase is DefencePhase.JURY and (given is None or state.first == given.index)
            if not (is_this and (is_juror or (dry_run and given is not None))):
                continue
            if state.first not in shown:
                request = EvidenceRequest(case_id=case_id, operator=state.first)
                shown[state.first] = Path(folder) / str(state.first)
                _fetch(account, appeal, request, shown[state.first])
            judged = question(case_id, appeal.operators, state, shown[state.first])
            if judged not in answers:
                tokens = read_tokens(config.data, spec.data)
                answers[judged] = is_right(spec, limits, judged, tokens, _frozen(account))
            answer = answers[judged]
            found = f"operator {state.first} of case {case_id.hex()[:8]} is {'right' if answer else 'wrong'}"
            votes += 1
            if dry_run:
                yield told("found", found)
            else:
                sent = chain.vote_on_defence(case_id, defender, state.end, answer)
                yield done("vote", f"{found}; {sent_text(sent)}", sent=sent)
    if not votes:
        yield nothing("vote", f"{chain.address} has no vote to give in this case now")


def _fetch(account: Account, appeal: AppealState, request: EvidenceRequest, path: Path) -> None:
    """Have the accused's node, or a verifier of the run, show its evidence.

    Raises:
        ConfigError: the configuration's run is not the accused's, or nothing says which its node is.
        Unavailable: they show nothing.
    """
    import time

    import trio

    from assay.chain.commit_statement import evm_address
    from assay.network.host import PeerAddress
    from assay.participant.directory.find import last_record
    from assay.protocol.identity import Domain
    from assay.verifier.appeal.fetch import fetch_as_juror

    if appeal.run_id != account.run_id:
        raise ConfigError(
            f"the case is about run {appeal.run_id.hex()[:16]}, this configuration about "
            f"{account.run_id.hex()[:16]}: run = the former"
        )
    records = [one.record for one in account.run_file.content.records]
    try:
        last = last_record(account.chain, appeal.accused, int(time.time()))
    except (MalformedMessage, PeerFault) as error:
        raise ConfigError(f"record of {appeal.accused} in the directory: {error}") from None
    known = {one.peer: one for one in records if evm_address(one.account) == appeal.accused}
    if last is not None:
        known[last.record.peer] = last.record
    if not known:
        raise ConfigError(f"{appeal.accused} announced no record: its owner has to send the file of evidence")
    asked = [*known.values(), *(one for one in records if one.peer in account.spec.seat_peers)]
    places = [PeerAddress(peer=one.peer, host=one.host, port=one.port) for one in asked]
    fetched = partial(
        fetch_as_juror,
        seed=bytes(account.keys.peer),
        domain=Domain(account.spec.deployment_id, account.run_id),
        spec=account.spec,
        nodes=list(known),
        places=places,
        request=request,
        path=path,
        patience_s=PATIENCE_S,
    )
    trio.run(fetched)


def _own_step(account: Account, round_id: int) -> OwnStep:
    from assay.node.steps import StepFiles
    from assay.protocol.types import PeerId
    from assay.training.data.batches import read_tokens
    from assay.training.layout import layout_of
    from assay.training.optimiser.public_state import THETA, held_parameters, held_rest, kept_rounds
    from assay.verifier.appeal.accused import step_of
    from assay.verifier.appeal.evidence import StepSources, batch_of, compared_rows
    from assay.verifier.audit.limits import agreed_limits

    config, spec = account.config, account.spec
    steps = StepFiles(
        config.folder,
        run_id=account.run_id,
        node=PeerId(bytes(account.keys.peer.verify_key)),
        rule=spec.rule,
        layout=layout_of(spec.model),
        keep=kept_rounds(spec),
    )
    record = steps.record(round_id)
    theta_P = held_parameters(config.folder / THETA, round_id)
    if record is None or theta_P is None:
        raise Diverged(f"the step of round {round_id} and its parameters are not on this disk")
    before, after = steps.private(record.commit.base), steps.private(round_id + 1)
    if before is None or after is None:
        raise Diverged(f"the private state of round {round_id} is not on this disk")
    ends = steps.ends(round_id)
    if ends is None:
        raise Diverged(f"the inner steps of round {round_id} are not on this disk")
    batch = batch_of(spec, record.commit, read_tokens(config.data, spec.data))
    end_SP = compared_rows(spec.rule, ends)
    errors, rest = (before.error_NC, after.error_NC), held_rest(config.folder / THETA, round_id)
    sources = StepSources(theta_P, batch, *errors, record.update, end_SP, before.inner, rest)
    return step_of(spec, agreed_limits(spec, config.limits), record.commit, sources, _frozen(account))


def _frozen(account: Account) -> Frozen:
    from assay.protocol.types import NO_DIGEST
    from assay.training.model.initial import BASE, frozen_parameters

    named = account.spec.model.base != NO_DIGEST
    return frozen_parameters(account.spec, account.config.data / BASE if named else None)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
