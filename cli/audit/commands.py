"""Audit commands: receipts, odds, reports and replays; none of them needs a key or a stake.

Room: cli (edge). A command parses, calls one library function, prints one result.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.cli.account.spending import ConfigFile, DryRun
from assay.cli.result import AsJson, document, say, show, show_steps

if TYPE_CHECKING:
    from rich.console import RenderableType

    from assay.bundle.replay.step import ReplayReport

audit_app = typer.Typer(
    no_args_is_help=True, help="Compute audit odds, report and replay audits, calibrate tolerances."
)
receipt_app = typer.Typer(no_args_is_help=True, help="Write and verify the receipt of one step.")

Threads = Annotated[int, typer.Option(min=1, help="Torch threads; the number that the participants used.")]
Run = Annotated[Path, typer.Argument(metavar="RUNS/NAME", help="The folder of a finished run.")]


@receipt_app.command("make")
def receipt_make(
    run: Run,
    round_id: Annotated[int, typer.Argument(metavar="ROUND")],
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's peer id, or its beginning.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write; default receipt-<round>-<node>.json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the receipt of one step, which anyone can verify without the run's files.

    Example: assay receipt make runs/quickstart 7 3fa1
    """
    from assay.cli.audit.receipt import write_receipt

    written = write_receipt(run, round_id, node, out)
    show(written, [written.line], as_json=as_json)


@receipt_app.command("verify")
def receipt_verify(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A step's receipt, or a bundle's round-*.json.")
    ],
    run_id: Annotated[str | None, typer.Option(help="The run's id in the escrow contract.")] = None,
    verifier: Annotated[
        list[str] | None, typer.Option(help="Peer key of a verifier; repeat for every verifier.")
    ] = None,
    rpc: Annotated[
        str | None, typer.Option(help="Chain endpoint at which the run and the anchor's block are looked up.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify a receipt offline: signatures, certificates, the chain to its end, audit, pay, anchor.

    Example: assay receipt verify receipt-000007-3fa1c2d0.json
    """
    from assay.cli.audit.receipt import verify_receipt

    found = verify_receipt(file, run_id, verifier or (), rpc)
    show(found, found.statements, as_json=as_json)


@audit_app.command("odds")
def audit_odds(
    rate: Annotated[float, typer.Option(help="p: share of steps that are audited.")] = 0.05,
    cheat: Annotated[float, typer.Option(help="x: share of steps that are false.")] = 0.1,
    steps: Annotated[int, typer.Option(help="n: number of steps of the node.")] = 1000,
    power: Annotated[float, typer.Option(help="d: chance that an audit of a false step finds it.")] = 0.95,
    probation: Annotated[
        int, typer.Option(help="Passed audits before the rate may fall; 0: a constant rate.")
    ] = 0,
    stake: Annotated[float, typer.Option(help="Operator's stake, in tokens.")] = 0.0,
    slash: Annotated[float, typer.Option(help="Share of the stake that is slashed for a fault.")] = 0.3,
    price: Annotated[float, typer.Option(help="Pay for one step, in tokens.")] = 0.0,
    cost: Annotated[float, typer.Option(help="Cost of computing one step, or its audit, in tokens.")] = 0.0,
    late: Annotated[int, typer.Option(help="L: further false steps before the audit is decided.")] = 12,
    gain: Annotated[float, typer.Option(help="B: gain of a saboteur from outside the run, in tokens.")] = 0.0,
    false_steps: Annotated[int, typer.Option(help="k: false messages that sabotage needs.")] = 1,
    lasting: Annotated[
        int, typer.Option(help="T: messages that one false state decides: `reset` of its order.")
    ] = 128,
    idle: Annotated[
        int, typer.Option(help="l: steps without work after one unseen lie; `reset` with kept moments.")
    ] = 1,
    runs: Annotated[int, typer.Option(help="Runs at once that one stake stands for.")] = 1,
    replicated: Annotated[float, typer.Option(help="q2: share of audits that get a second auditor.")] = 0.2,
    auditor_slash: Annotated[
        float, typer.Option(help="s_v: share of its stake that an auditor at fault loses.")
    ] = 0.2,
    known: Annotated[float, typer.Option(help="kappa: share of audits that are known-answer tasks.")] = 0.0,
    auditor_stake: Annotated[float, typer.Option(help="Stake that a lazy auditor loses, in tokens.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Compute the chance that audits detect cheating, and the stakes and pay that make cheating a loss.

    Example: assay audit odds --rate 0.05 --stake 1000 --price 0.02
    """
    from assay.cli.audit.odds import Question, odds_of, odds_table

    question = Question(
        rate=rate, cheat=cheat, steps=steps, power=power, probation=probation, stake=stake, slash=slash,
        price=price, cost=cost, late=late, gain=gain, false_steps=false_steps, known=known,
        auditor_stake=auditor_stake, lasting=lasting, idle=idle, runs=runs, replicated=replicated,
        auditor_slash=auditor_slash,
    )  # fmt: skip
    found = odds_of(question)
    _print(document(found) if as_json else odds_table(found.answers))


@audit_app.command("game")
def audit_game(
    epochs: Annotated[
        int, typer.Option(min=1, help="Epochs of ten rounds that each strategy is played.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="Of every draw.")] = 0,
    known: Annotated[
        float, typer.Option(min=0, max=1, help="kappa: share of audits that are known-answer tasks.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Play dishonest strategies against the default stakes and rates; exit status 1 if one of them pays.

    Example: assay audit game --epochs 1000
    """
    from assay.cli.audit.game import Game, default_market, game_table, play

    played = play(default_market(known), epochs, seed)
    _print(document(Game(played)) if as_json else game_table(played))
    if any(one.is_profitable for one in played):
        raise typer.Exit(1)


@audit_app.command("report")
def audit_report(
    run: Run,
    as_json: AsJson = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the report to this file, as one self-contained HTML page.")
    ] = None,
) -> None:
    """Report which steps of a finished run were audited, and with which results.

    Example: assay audit report runs/quickstart --html report.html
    """
    from assay.bundle.report.page import report_group, report_page
    from assay.bundle.report.run import report_of, write_page

    found = report_of(run)
    if html is not None:
        write_page(html, report_page(found))
    _print(document(found) if as_json else report_group(found))


@audit_app.command("replay")
def audit_replay(
    step: Annotated[str, typer.Argument(metavar="RUN:ROUND:NODE")],
    opening: Annotated[
        bool, typer.Option(help="Use the node's opening where the run's folder has it.")
    ] = True,
    from_start: Annotated[
        bool,
        typer.Option("--from-start", help="Recompute the private state too, by the node's steps before."),
    ] = False,
    threads: Threads = 1,
    as_json: AsJson = False,
) -> None:
    """Recompute one step of a run and compare it with its commit; needs no stake.

    Example: assay audit replay runs/quickstart:7:3fa1 --from-start
    """
    from assay.bundle.replay.step import ReplayReport, parse_step, replay, replay_lines
    from assay.cli.progress import progress

    run, round_id, node = parse_step(step)
    with progress("rounds") as tell:
        done = replay(
            run, round_id, node,
            use_opening=opening, from_start=from_start, threads=threads, on_round=tell,
        )  # fmt: skip
    show(ReplayReport.of(done), replay_lines(done), as_json=as_json)
    raise typer.Exit(0 if done.is_ok else 1)


@audit_app.command("spot")
def audit_spot(
    run: Run,
    rate: Annotated[float, typer.Option(help="Chance of each accepted step to be recomputed.")] = 0.01,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Recompute private states too: proof, and slower.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Of the draw; default: one that nobody could know.")
    ] = None,
    threads: Threads = 1,
    ray: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A Ray cluster that shares the work; local: all cores here."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute steps of a run that you draw yourself; exit status 1 if one is false.

    Of a run that goes on, RUNS/NAME is the folder of a participant with its updates: the buyer's has all.

    Example: assay audit spot runs/quickstart --rate 0.05 --from-start --ray local
    """
    from assay.bundle.replay.spot_check import spot_check, spot_lines, step_line
    from assay.cli.progress import progress

    chosen = secrets.randbits(63) if seed is None else seed
    with progress("steps") as tell:

        def on_step(found: ReplayReport, done: int, of: int) -> None:
            tell(done, of)
            if not as_json:
                say(step_line(found))

        check = spot_check(
            run, rate, chosen, from_start=from_start, threads=threads, ray=ray, on_step=on_step
        )
    show(check, spot_lines(check), as_json=as_json)
    raise typer.Exit(0 if check.is_ok else 1)


@audit_app.command("accuse")
def audit_accuse(
    step: Annotated[str, typer.Argument(metavar="RUN:ROUND:NODE")],
    file: ConfigFile,
    threads: Threads = 1,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Have a false step of a finished run slashed: its verifiers make it again, then the court takes it.

    The configuration is the buyer's, or of an account with stake; the case locks a bond until it has ended.

    Example: assay audit accuse runs/quickstart:7:3fa1 runs/quickstart/participants/buyer/config.toml
    """
    from assay.cli.audit.accuse import accuse_steps

    show_steps(accuse_steps(step, file, threads, is_dry=dry_run), as_json=as_json)


@audit_app.command("calibrate")
def audit_calibrate(
    out: Annotated[Path | None, typer.Option(help="File to which the tolerances are written.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Model preset; repeatable.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps measured for each model and precision.")] = None,
    segment: Annotated[
        int | None, typer.Option(help="Inner steps of the longest segment; 0 measures no segments.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="First parameters and data of which steps are measured.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Measure how far this machine's code paths are from the reference class, and derive audit tolerances.

    Example: assay audit calibrate --out limits.json
    """
    from assay.cli.progress import progress
    from assay.verifier.calibration.classes import (
        MODELS,
        SEGMENT_STEPS,
        STEPS,
        calibrate,
        calibration_group,
    )

    with progress("models") as tell:
        found = calibrate(
            model or MODELS,
            STEPS if steps is None else steps,
            segment=SEGMENT_STEPS if segment is None else segment,
            seeds=seeds,
            on_model=tell,
        )
    if out is not None:
        out.write_bytes(found.limits.encode())
    _print(document(found.document) if as_json else calibration_group(found))
    raise typer.Exit(0 if found.is_sound else 1)


def _print(what: str | RenderableType) -> None:
    if isinstance(what, str):
        typer.echo(what)
        return
    from rich.console import Console

    console = Console()
    # A table folds cells that are too wide for a terminal; elsewhere lines may be long.
    (console if console.is_terminal else Console(width=160, no_color=True)).print(what)
