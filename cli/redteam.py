"""Red team: runs every known attack against this installation, and audits honest steps for false positives.

Room: cli (edge: the terminal). The adversaries are in `redteam`; this file prints their table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from assay.cli.result import AsJson, document
from assay.protocol.errors import ConfigError


def redteam(
    attack: Annotated[str, typer.Option(help="Run only attacks whose name contains this text.")] = "",
    seeds: Annotated[int, typer.Option(help="Number of runs of each attack.", min=1)] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, fewer honest steps, no chain.")] = False,
    honest_rounds: Annotated[
        int,
        typer.Option(
            metavar="N", help="Honest steps of two nodes on each code path, for each way of judging.", min=1
        ),
    ] = 350,
    as_json: AsJson = False,
    markdown: Annotated[Path | None, typer.Option(help="Also write the table to this Markdown file.")] = None,
) -> None:
    """Run every known attack against its defence, and audit honest steps; exit 1 if one is slashed.

    Example: assay redteam --quick
    """
    from assay.cli.progress import progress
    from assay.redteam.nodes.false_positives import ROUNDS_QUICK, Honest, audit_everywhere
    from assay.redteam.table import AttackTable, as_markdown, counts, honest_lines, named, try_all

    chosen = [one for one in named(attack) if not (quick and one.is_slow)]
    if not chosen:
        raise ConfigError(f'attack "{attack}": no attack has this text in its name')
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("attack", "caught", "cost", "harm", "verdict"):
        table.add_column(name, overflow="fold")
    with progress("attacks") as tell:
        rows = try_all(chosen, 1 if quick else seeds, tell)
    honest: list[Honest] = []
    if not attack:
        with progress("code paths with honest steps") as tell:
            honest = audit_everywhere(
                rounds=ROUNDS_QUICK if quick else honest_rounds, is_quick=quick, on_path=tell
            )
    if markdown is not None:
        markdown.write_text(as_markdown(rows, honest) + "\n")
    if as_json:
        typer.echo(document(AttackTable.of(rows, honest)))
    else:
        for row in rows:
            out = row.outcome
            caught = f"{out.caught}/{out.attempts}"
            table.add_row(row.attack.name, caught, f"{out.cost:.2f}", out.harm, row.finding.value)
        console.print(table)
        console.print(counts(rows))
        for line in honest_lines(honest) if honest else ():
            console.print(line, soft_wrap=True)
    if any(one.false_slashes for one in honest):
        raise typer.Exit(1)
