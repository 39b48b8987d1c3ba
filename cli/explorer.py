"""Explorer command: serves web pages on which a reader checks runs, delivered or still going on.

Room: cli (edge: listens).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from assay.orders.config_errors import one_line

if TYPE_CHECKING:
    from assay.explorer.explored import Explored
    from assay.explorer.pages.run import Damaged

explorer_app = typer.Typer(no_args_is_help=True, help="Show runs on web pages that check them.")


@explorer_app.command()
def serve(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Folders of delivered runs, or of participants whose run goes on."
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0: any free port.")] = 8600,
    listen: Annotated[
        str, typer.Option(help="IP address. Beyond this machine, put a proxy with TLS before it.")
    ] = "127.0.0.1",
    api: Annotated[
        str, typer.Option(metavar="URL", help="Of an `assay api serve`: pages link to its wallet page.")
    ] = "",
) -> None:
    """Serve web pages on runs until stopped; a reader's browser checks what they claim.

    Example: assay explorer serve runs/quickstart --port 8600
    """
    from assay.explorer.serve import serve as serve_explorer

    serve_explorer(
        runs, listen=listen, port=port, api=api, on_run=_tell, on_ready=lambda url: typer.echo(url)
    )


def _tell(run: Explored | Damaged) -> None:
    reason = getattr(run, "reason", None)
    text = "read and checked" if reason is None else f"damaged: {reason}"
    typer.echo(one_line(f"{run.name}: {text}"), err=True)
