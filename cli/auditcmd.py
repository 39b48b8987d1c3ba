"""Audit commands: receipts, odds, reports and replays, for anybody; none of them needs a key or a stake.

Room: cli (edge). A command parses, calls one library function, prints one result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    from cli.receipt import write_receipt

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
) -> None:
    """Check a receipt offline: signatures, certificates, the chain to its end, ruling, pay."""
    from cli.receipt import receipt_lines

    for line in list(receipt_lines(file, run_id, verifier or ())):  # all of it holds before a word is said
        typer.echo(line)
