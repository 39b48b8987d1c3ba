"""Appeal commands: the accused of a false step appeals a slash order, and jurors judge one operator of it.

Room: cli (edge). Both read the files of a participant's configuration, also while its process runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.result import AsJson, Step, done, dry, nothing, show_steps, told
from assay.cli.spending import ConfigFile, DryRun, account_of, sent_text
from assay.protocol.errors import ConfigError, Diverged

if TYPE_CHECKING:
    from assay.participant.wallet.account import Account
    from assay.training.frozen import Frozen
    from assay.verifier.appeal.accused import Step as OwnStep

appeal_app = typer.Typer(no_args_is_help=True, help="Appeal a slash order; judge an appeal as a juror.")


@appeal_app.command("open")
def open_appeal(
    file: ConfigFile,
    round_id: Annotated[int, typer.Argument(metavar="ROUND", help="Round of the step that was convicted.")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Appeal the slash order about your node's step, answer every defence, and write jurors' evidence.

    It runs until the appeal has ended, which takes days; started again, it goes on. Leave your node's
    process running too: jurors ask it for the evidence, and check it themselves.

    Example: assay appeal open config.toml 7
    """
    show_steps(appeal_steps(file, round_id, is_dry=dry_run), as_json=as_json)


@appeal_app.command()
def vote(
    file: ConfigFile,
    evidence: Annotated[Path, typer.Argument(metavar="EVIDENCE", help="From the accused.")],
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Recompute the one operator that an appeal is about, and vote on it as its juror.

    Example: assay appeal vote config.toml 3fa1-44.evidence
    """
    show_steps(vote_steps(file, evidence, is_dry=dry_run), as_json=as_json)


def appeal_steps(file: Path, round_id: int, *, is_dry: bool) -> Iterator[Step]:
    """Conduct an appeal; one step for each move.

    Raises:
        ConfigError: a file is missing, no case is open, or the step does not hold.
        ChainRefused: the appeal court refused.
    """
    from assay.participant.files.evidence import evidence_files, evidence_path
    from assay.verifier.appeal.accused import conduct
    from assay.verifier.appeal.evidence import case_id_of

    account = account_of(file)
    step = _own_step(account, round_id)
    case_id = case_id_of(step.commit)
    if is_dry:
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


def vote_steps(file: Path, evidence_file: Path, *, is_dry: bool) -> Iterator[Step]:
    """Judge an operator, and vote in every jury about it that this account sits on.

    Raises:
        ConfigError: a file is missing or is not this run's.
        ChainRefused: the appeal court refused.
    """
    from assay.chain.state import DefencePhase
    from assay.protocol.types import Digest
    from assay.training.data.batches import read_tokens
    from assay.training.reference.narrowing import START
    from assay.verifier.appeal.answers import is_right
    from assay.verifier.appeal.evidence import case_id_of, parse_evidence
    from assay.verifier.audit.limits import agreed_limits
    from assay.verifier.audit.messages import JudgeOperator

    account = account_of(file)
    chain, spec, config = account.chain, account.spec, account.config
    limits = agreed_limits(spec, config.limits)
    if limits is None:
        raise ConfigError("the run names no limits between execution classes: no appeal covers its steps")
    evidence = parse_evidence(_read(evidence_file), None)
    case_id = case_id_of(evidence.commit)
    appeal, tokens = chain.appeal(case_id), read_tokens(config.data, spec.data)
    votes = 0
    for seat, defender in enumerate(chain.set_members(appeal.version) if appeal.version else ()):
        state, jury = chain.defence(case_id, defender)
        voted = jury.right | jury.wrong
        is_juror = any(who == chain.address and not voted >> at & 1 for at, who in enumerate(jury.seats))
        is_this = state.phase is DefencePhase.JURY and state.first == evidence.index
        if not (appeal.signers >> seat & 1 and is_this and (is_juror or is_dry)):
            continue
        request = JudgeOperator(
            case_id=case_id,
            operators=appeal.operators,
            index=evidence.index,
            start=START if not state.first else Digest(state.start),
            end=Digest(state.end),
            evidence=str(evidence_file),
        )
        answer = is_right(spec, limits, request, tokens, _frozen(account))
        found = f"operator {evidence.index} of case {case_id.hex()[:8]} is {'right' if answer else 'wrong'}"
        votes += 1
        if is_dry:
            yield told("found", found)
        else:
            sent = chain.vote_on_defence(case_id, defender, state.end, answer)
            yield done("vote", f"{found}; {sent_text(sent)}", sent=sent)
    if not votes:
        yield nothing("vote", f"{chain.address} has no vote to give about this operator now")


def _own_step(account: Account, round_id: int) -> OwnStep:
    from assay.node.steps import StepFiles
    from assay.protocol.types import PeerId
    from assay.training.data.batches import read_tokens
    from assay.training.layout import layout_of
    from assay.training.optimiser.public_state import THETA, held_parameters, kept_rounds
    from assay.verifier.appeal.accused import step_of
    from assay.verifier.appeal.evidence import StepSources, batch_of
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
    batch = batch_of(spec, record.commit, read_tokens(config.data, spec.data))
    sources = StepSources(theta_P, batch, before.error_NC, after.error_NC, record.update)
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
