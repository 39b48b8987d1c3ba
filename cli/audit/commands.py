"""Audit commands: receipts, odds, reports and replays, for anybody; none of them needs a key or a stake.

Room: cli (edge). A command parses, calls one library function, prints one result.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

audit_app = typer.Typer(no_args_is_help=True, help="What audits catch, caught, and would catch again.")
receipt_app = typer.Typer(no_args_is_help=True, help="Receipts that anyone can check.")

Run = Annotated[Path, typer.Argument(metavar="RUNS/NAME", help="The folder of a finished run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]


@receipt_app.command("make")
def receipt_make(
    run: Run,
    round_id: Annotated[int, typer.Argument(metavar="ROUND")],
    node: Annotated[str, typer.Argument(metavar="NODE", help="The beginning of its name.")],
    out: Annotated[Path | None, typer.Option(help="File; default receipt-<round>-<node>.json.")] = None,
) -> None:
    """Write one step's receipt: a file that anyone can check without the run."""
    from assay.cli.audit.receipt import write_receipt

    typer.echo(write_receipt(run, round_id, node, out))


@receipt_app.command("verify")
def receipt_verify(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A step's receipt, or a bundle's round-*.json.")
    ],
    run_id: Annotated[str | None, typer.Option(help="What the escrow contract calls the run.")] = None,
    verifier: Annotated[
        list[str] | None, typer.Option(help="A verifier's key; repeat for all of them.")
    ] = None,
    rpc: Annotated[
        str | None, typer.Option(help="A chain's endpoint, asked for the run and the anchor's block.")
    ] = None,
) -> None:
    """Check a receipt offline: signatures, certificates, the chain to its end, ruling, pay, anchor."""
    from assay.cli.audit.receipt import receipt_lines

    for line in receipt_lines(file, run_id, verifier or (), rpc):
        typer.echo(line)


@audit_app.command("odds")
def audit_odds(
    rate: Annotated[float, typer.Option(help="p: share of steps that are audited.")] = 0.05,
    cheat: Annotated[float, typer.Option(help="x: share of steps that are false.")] = 0.1,
    steps: Annotated[int, typer.Option(help="n: steps in which it can be found out.")] = 1000,
    power: Annotated[float, typer.Option(help="d: chance that an audit of a false step finds it.")] = 0.95,
    probation: Annotated[int, typer.Option(help="Clean audits until the rate may fall; 0: one rate.")] = 0,
    stake: Annotated[float, typer.Option(help="An operator's, in tokens.")] = 0.0,
    slash: Annotated[float, typer.Option(help="Share of it that a fault takes.")] = 0.5,
    price: Annotated[float, typer.Option(help="What a step earns, in tokens.")] = 0.0,
    cost: Annotated[float, typer.Option(help="What a step, or its audit, costs to compute.")] = 0.0,
    late: Annotated[int, typer.Option(help="L: false steps more before the ruling.")] = 12,
    gain: Annotated[float, typer.Option(help="B: a saboteur's gain elsewhere, in tokens.")] = 0.0,
    false_steps: Annotated[int, typer.Option(help="k: false steps that it takes.")] = 1,
    known: Annotated[float, typer.Option(help="kappa: share of audits whose answer is known.")] = 0.0,
    auditor_stake: Annotated[float, typer.Option(help="What a lazy auditor loses, in tokens.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """What audits find over a run, and what stakes and pay make cheating a loss."""
    from assay.cli.audit.odds import Question, answers, as_plain, odds_table

    asked = Question(
        rate=rate, cheat=cheat, steps=steps, power=power, probation=probation, stake=stake, slash=slash,
        price=price, cost=cost, late=late, gain=gain, false_steps=false_steps, known=known,
        auditor_stake=auditor_stake,
    )  # fmt: skip
    found = answers(asked)
    _print(as_plain(asked, found) if as_json else odds_table(found), as_json=as_json)


@audit_app.command("report")
def audit_report(
    run: Run,
    as_json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page.")] = None,
) -> None:
    """What a finished run's audits drew, found and missed."""
    from assay.bundle.report.page import report_group, report_page
    from assay.bundle.report.run import report_of, write_page

    found = report_of(run)
    if html is not None:
        write_page(html, report_page(found))
    _print(found if as_json else report_group(found), as_json=as_json)


@audit_app.command("replay")
def audit_replay(
    step: Annotated[str, typer.Argument(metavar="RUN:ROUND:NODE")],
    opening: Annotated[bool, typer.Option(help="Use the node's own records, where they are here.")] = True,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Make its private state again from its fresh start.")
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="As the participants used.")] = 1,
) -> None:
    """Recompute one step of a finished run; anyone can, without a stake."""
    from assay.bundle.replay_step import parse_step, replay, replay_lines

    run, round_id, node = parse_step(step)
    done = replay(run, round_id, node, use_opening=opening, from_start=from_start, threads=threads)
    for line in replay_lines(done):
        typer.echo(line)
    raise typer.Exit(0 if done.is_ok else 1)


@audit_app.command("calibrate")
def audit_calibrate(
    out: Annotated[Path | None, typer.Option(help="Write the limits to this file.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="A preset; repeat for several.")] = None,
    steps: Annotated[int | None, typer.Option(help="Of each model and precision.")] = None,
    segment: Annotated[
        int | None, typer.Option(help="Inner steps of the longest segment; 0: none are measured.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """How far honest code paths of this machine are apart, and by how much lies exceed the limits."""
    from assay.verifier.calibration.classes import (
        MODELS,
        SEGMENT_STEPS,
        STEPS,
        as_plain,
        calibrate,
        calibration_group,
    )

    found = calibrate(
        model or MODELS,
        STEPS if steps is None else steps,
        segment=SEGMENT_STEPS if segment is None else segment,
    )
    if out is not None:
        out.write_bytes(found.limits.encode())
    _print(as_plain(found) if as_json else calibration_group(found), as_json=as_json)
    raise typer.Exit(0 if found.is_sound else 1)


def _print(what: Any, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(what, indent=2))
        return
    from rich.console import Console

    console = Console()
    # A table folds what is too wide; where nobody looks, lines may be as long as they are.
    (console if console.is_terminal else Console(width=160, no_color=True)).print(what)
