"""Main: the `assay` command line, one short function per command.

Room: cli (edge). A command parses, calls one library function, prints one result.
Exit status: 0 done, 1 a check failed, 2 the operator can fix it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from assay.cli.api import api_app
from assay.cli.attest import attest_app
from assay.cli.audit.commands import audit_app, receipt_app
from assay.cli.claim import claim
from assay.cli.join import doctor, join
from assay.cli.key import key_app
from assay.cli.ledger.commands import add_commands, earnings, invoice
from assay.cli.network import network_app
from assay.cli.orders.commands import add_order_commands
from assay.cli.redteam import redteam
from assay.cli.registry import registry_app
from assay.cli.rotation import add_rotation_commands
from assay.cli.stake import stake_app
from assay.orders.config_errors import one_line
from assay.protocol.errors import AssayError, ConfigError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
node_app = typer.Typer(no_args_is_help=True, help="Run a node: train and be paid per accepted contribution.")
verifier_app = typer.Typer(no_args_is_help=True, help="Run a verifier: agree, aggregate, audit.")
ledger_app = typer.Typer(no_args_is_help=True, help="Keep the books of a run, query and audit them.")
buyer_app = typer.Typer(no_args_is_help=True, help="Follow a funded run and receive the model.")
chain_app = typer.Typer(no_args_is_help=True, help="Run a local chain.")
order_app = typer.Typer(no_args_is_help=True, help="Check, quote, fund, watch and end a run.")
run_app = typer.Typer(no_args_is_help=True, help="Verify delivered runs.")
sim_app = typer.Typer(no_args_is_help=True, help="Simulate aggregation rules and attacks in one process.")
for name, sub in (
    ("node", node_app),
    ("verifier", verifier_app),
    ("ledger", ledger_app),
    ("buyer", buyer_app),
    ("chain", chain_app),
    ("order", order_app),
    ("run", run_app),
    ("sim", sim_app),
    ("audit", audit_app),
    ("receipt", receipt_app),
    ("attest", attest_app),
    ("api", api_app),
    ("stake", stake_app),
    ("registry", registry_app),
    ("key", key_app),
    ("network", network_app),
):
    app.add_typer(sub, name=name)
add_commands(ledger_app)
add_order_commands(order_app)
add_rotation_commands(network_app)
app.command()(claim)
app.command()(earnings)
app.command()(invoice)
app.command()(redteam)
app.command()(join)
app.command()(doctor)

Tethered = Annotated[bool, typer.Option("--tethered", hidden=True, help="End when standard input closes.")]
ConfigFile = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The participant's configuration.")]


@node_app.command("run")
def node_run(file: ConfigFile, tethered: Tethered = False) -> None:
    """Take part in a run as a node, until its work is done."""
    from assay.cli.process import read_process_file, run_process
    from assay.node.service import run_node

    config, _ = read_process_file(file)
    run_process(lambda: run_node(config), is_tethered=tethered)


@node_app.command("leave")
def node_leave(file: ConfigFile) -> None:
    """Give up a node's seat in its run: its process ends once no step of it can be drawn any more."""
    from assay.cli.process import read_process_file
    from assay.node.seat import LEAVE

    config, _ = read_process_file(file)
    if not config.folder.exists():
        raise ConfigError(f"{config.folder} is missing: the node has never run")
    (config.folder / LEAVE).touch()
    typer.echo("the node leaves with the next round; keep its process running until it ends by itself")


@verifier_app.command("run")
def verifier_run(file: ConfigFile, tethered: Tethered = False) -> None:
    """Take part in a run as a verifier, until stopped."""
    from assay.cli.process import read_process_file, run_process
    from assay.verifier.service.process import run_verifier

    config, _ = read_process_file(file)
    run_process(lambda: run_verifier(config), is_tethered=tethered)


@app.command(hidden=True)
def misbehave(
    file: ConfigFile,
    behaviour: Annotated[str, typer.Option("--as", help="NAME[@ROUND]")],
    tethered: Tethered = False,
) -> None:
    """Take part in a local network as a node or verifier that cheats or fails; `assay localnet` starts it."""
    from assay.cli.process import read_process_file, run_process
    from assay.devnet.faults.process import run_faulty

    config, _ = read_process_file(file)
    run_process(lambda: run_faulty(config, behaviour), is_tethered=tethered)


@ledger_app.command("serve")
def ledger_serve(file: ConfigFile, tethered: Tethered = False) -> None:
    """Run a ledger service: keep the books of a run and post its settlements, until all is final."""
    from assay.cli.process import read_process_file, run_process
    from assay.observer.ledger_service.service import run_ledger_service

    config, given = read_process_file(file)
    status = file.parent / (given.status or Path("status.jsonl"))
    run_process(lambda: run_ledger_service(config, status), is_tethered=tethered)


@buyer_app.command("run")
def buyer_run(file: ConfigFile, tethered: Tethered = False) -> None:
    """Follow a funded run: check every round, claim the refund, receive the model."""
    from assay.cli.process import read_process_file, run_process
    from assay.observer.buyer.service import run_buyer, sign_delivered

    config, given = read_process_file(file)
    status = file.parent / (given.status or Path("status.jsonl"))
    bundle = file.parent / (given.bundle or Path("delivered/bundle"))
    run_process(lambda: run_buyer(config, status, bundle), is_tethered=tethered)
    if given.bundle is None and bundle.is_dir():  # a folder of its own, which nobody else writes to
        sign_delivered(config, bundle.parent)


@app.command()
def watchtower(file: ConfigFile, tethered: Tethered = False) -> None:
    """Watch a run: challenge wrong results, judge as a juror, do what its contracts need, until stopped."""
    from assay.cli.process import read_process_file, run_process
    from assay.observer.watchtower import run_watchtower

    config, _ = read_process_file(file)
    run_process(lambda: run_watchtower(config), is_tethered=tethered)


@chain_app.command("dev")
def chain_dev(
    folder: Annotated[Path, typer.Option(help="Folder of the chain's state.")] = Path("chain"),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port on 127.0.0.1; 0: any free port.")
    ] = 8545,
    block_time: Annotated[int, typer.Option(min=1, max=3600, help="Seconds per block.")] = 1,
    fund: Annotated[
        list[str] | None, typer.Option(metavar="ACCOUNT", help="Give this account coins for gas; repeatable.")
    ] = None,
) -> None:
    """Run a local chain until stopped; its state survives a restart."""
    from assay.devnet.run import serve_chain

    serve_chain(folder, port, block_time, fund or ())


@run_app.command("verify")
def run_verify(folder: Annotated[Path, typer.Argument(metavar="RUNS/NAME")]) -> None:
    """Verify a delivered run offline: weights, certificates, receipts, settlements, every file."""
    from assay.bundle.read import read
    from assay.bundle.verify import report_lines, verify

    def show(round_id: int) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\rround {round_id} replayed", err=True, nl=False)

    report = verify(read(folder), on_round=show)
    if sys.stderr.isatty():
        typer.echo("\r\033[K", err=True, nl=False)
    for line in report_lines(report):
        typer.echo(line)


@sim_app.command("train")
def sim_train(
    file: Annotated[Path, typer.Argument(metavar="SPEC.toml")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables and plots; default runs/sim-<file>.")
    ] = None,
) -> None:
    """Train virtual nodes with any aggregation rule under any attack, in this process."""
    from assay.simulation.train import run_sim

    run_sim(file, out)


@app.command()
def localnet(
    file: Annotated[Path | None, typer.Argument(metavar="[RUN.toml]")] = None,
    nodes: Annotated[int | None, typer.Option(help="Number of nodes.")] = None,
    verifiers: Annotated[int | None, typer.Option(help="Number of verifiers.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of training rounds.")] = None,
    behave: Annotated[list[str] | None, typer.Option(help="NODE=BEHAVIOUR[@ROUND]; repeatable.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of data order and initial parameters.")] = None,
    data: Annotated[Path | None, typer.Option(help="A text file or a folder to train on.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default runs/<name>.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")
    ] = False,
) -> None:
    """Run a whole network on this machine: train, audit, settle and pay."""
    from assay.devnet.run import run_localnet

    overrides = {
        "nodes": nodes, "verifiers": verifiers, "rounds": rounds,
        "seed": seed, "data": data,
    }  # fmt: skip
    chosen = {k: v for k, v in overrides.items() if v is not None}
    is_ok = run_localnet(file, chosen, behave or (), out, as_json=as_json)
    raise typer.Exit(0 if is_ok else 1)


def run() -> None:
    """Entry point: turn errors into one line and an exit status."""
    try:
        app(standalone_mode=True)
    except AssayError as error:
        # It may quote an endpoint or a file, which must not move a terminal's cursor.
        typer.echo("\n".join(one_line(line) for line in f"assay: {error}".split("\n")), err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


if __name__ == "__main__":
    run()
