"""Main: the `assay` command line, one short function per command.

Room: cli (edge). A command parses, calls one library function, prints one result (result.py).
Exit status: 0 done; 1 the answer is no: a check failed, a contract refused, or it is too early; 2 it
could not be asked: misuse, a bad file, or a chain, disk or network that does not answer. A process
(`run`, `serve`) ends with 2 only if starting it again would not help.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from assay.cli.account.claim import claim
from assay.cli.account.key import key_app
from assay.cli.account.sign import add_sign_command
from assay.cli.account.stake import stake_app
from assay.cli.api import api_app
from assay.cli.appeal import appeal_app
from assay.cli.attest import attest_app
from assay.cli.audit.commands import audit_app, receipt_app
from assay.cli.explorer import explorer_app
from assay.cli.ledger.commands import add_commands, earnings, invoice
from assay.cli.network.commands import network_app
from assay.cli.network.directory import add_network_list, add_run_list
from assay.cli.network.join import doctor, join
from assay.cli.network.offers import add_offers_command
from assay.cli.network.rotation import add_rotation_commands
from assay.cli.operator import operator_app
from assay.cli.orders.commands import add_order_commands
from assay.cli.redteam import redteam
from assay.cli.registry import registry_app
from assay.cli.result import AsJson, done, nothing, show, show_steps
from assay.cli.schema import schema
from assay.cli.unit import unit
from assay.cli.watch.command import watch
from assay.orders.config_errors import printable
from assay.protocol.errors import AssayError, ConfigError, NotYet, Unavailable

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
node_app = typer.Typer(no_args_is_help=True, help="Run a node: train and be paid per accepted contribution.")
verifier_app = typer.Typer(no_args_is_help=True, help="Run a verifier: agree, aggregate, audit.")
ledger_app = typer.Typer(no_args_is_help=True, help="Keep the books of a run, query and audit them.")
buyer_app = typer.Typer(no_args_is_help=True, help="Follow a funded run and receive the model.")
chain_app = typer.Typer(no_args_is_help=True, help="Run a local chain.")
order_app = typer.Typer(no_args_is_help=True, help="Check, quote, fund, watch and end a run.")
run_app = typer.Typer(
    no_args_is_help=True,
    help="List a network's runs; fetch and follow them, verify and report delivered ones.",
)
sim_app = typer.Typer(no_args_is_help=True, help="Simulate aggregation rules and attacks in one process.")
EXIT_STATUS = (
    "Exit status: 0 done; 1 the answer is no, or not yet; 2 it could not be asked: misuse, a bad file, "
    "or a chain, disk or network that does not answer. A process that can be started again ends with 1."
)
OPERATOR, AUDITOR, BUYER, DEVELOPER = "Operator", "Auditor", "Buyer", "Developer"
for panel, groups in {
    OPERATOR: {
        "key": key_app,
        "network": network_app,
        "stake": stake_app,
        "appeal": appeal_app,
        "operator": operator_app,
        "node": node_app,
        "verifier": verifier_app,
        "ledger": ledger_app,
        "api": api_app,
    },
    AUDITOR: {
        "run": run_app,
        "audit": audit_app,
        "receipt": receipt_app,
        "attest": attest_app,
        "registry": registry_app,
        "explorer": explorer_app,
    },
    BUYER: {"order": order_app, "buyer": buyer_app},
    DEVELOPER: {"chain": chain_app, "sim": sim_app},
}.items():
    for name, group in groups.items():
        app.add_typer(group, name=name, rich_help_panel=panel)
add_commands(ledger_app)
add_order_commands(order_app)
add_rotation_commands(network_app)
add_sign_command(key_app)
add_network_list(network_app)
add_offers_command(network_app)
add_run_list(run_app)
Tethered = Annotated[bool, typer.Option("--tethered", hidden=True, help="End when standard input closes.")]
ConfigFile = Annotated[Path, typer.Argument(metavar="FILE.toml", help="The participant's configuration.")]


@node_app.command("run")
def node_run(file: ConfigFile, tethered: Tethered = False) -> None:
    """Take part in a run as a node, until its work is done.

    Example: assay node run config.toml
    """
    from assay.cli.process import read_process_file, run_process
    from assay.node.service import run_node

    config, _ = read_process_file(file)
    run_process(lambda: run_node(config), is_tethered=tethered)


@node_app.command("leave")
def node_leave(file: ConfigFile, as_json: AsJson = False) -> None:
    """Give up a node's seat in its run: its process ends once no step of it can be drawn any more.

    Example: assay node leave config.toml
    """
    from assay.cli.process import read_process_file
    from assay.node.seat import LEAVE

    config, _ = read_process_file(file)
    if not config.folder.exists():
        raise ConfigError(f"{config.folder} is missing: the node has never run")
    (config.folder / LEAVE).touch()
    text = "the node leaves with the next round; keep its process running until it ends by itself"
    show_steps([done("leave", text)], as_json=as_json)


@verifier_app.command("run")
def verifier_run(file: ConfigFile, tethered: Tethered = False) -> None:
    """Take part in a run as a verifier, until stopped.

    Example: assay verifier run config.toml
    """
    from assay.cli.process import read_process_file, run_process
    from assay.verifier.service.process import run_verifier

    config, _ = read_process_file(file)
    run_process(lambda: run_verifier(config), is_tethered=tethered)


@verifier_app.command("resign")
def verifier_resign(file: ConfigFile, as_json: AsJson = False) -> None:
    """Give up a verifier's seat in its run, for good: a ready reserve takes it once its audits have ended.

    Example: assay verifier resign config.toml
    """
    from assay.cli.process import read_process_file
    from assay.participant.config import read_run
    from assay.verifier.service.standby import RESIGN

    config, _ = read_process_file(file)
    if not config.folder.exists():
        raise ConfigError(f"{config.folder} is missing: the verifier has never run")
    if not read_run(config)[0].spec.reserves:
        text = "the run has no reserves: its verifiers keep their seats to its end"
        show_steps([nothing("resign", text)], as_json=as_json)
        return
    (config.folder / RESIGN).touch()
    text = (
        "the verifier resigns with the next round; keep its process running until it logs `seat handed over`"
    )
    show_steps([done("resign", text)], as_json=as_json)


@app.command(hidden=True)
def misbehave(
    file: ConfigFile,
    behaviour: Annotated[str, typer.Option("--as", help="NAME or NAME@ROUND")],
    tethered: Tethered = False,
) -> None:
    """Take part in a local network as a node or verifier that cheats or fails; `assay localnet` starts it.

    Example: assay misbehave config.toml --as silent@3
    """
    from assay.cli.process import read_process_file, run_process
    from assay.devnet.faults.process import run_faulty

    config, _ = read_process_file(file)
    run_process(lambda: run_faulty(config, behaviour), is_tethered=tethered)


@ledger_app.command("serve")
def ledger_serve(file: ConfigFile, tethered: Tethered = False) -> None:
    """Run a ledger service: keep the books of a run and post its settlements, until all is final.

    Example: assay ledger serve config.toml
    """
    from assay.cli.process import read_process_file, run_process
    from assay.observer.ledger_service.service import run_ledger_service

    config, given = read_process_file(file)
    status = file.parent / (given.status or Path("status.jsonl"))
    run_process(lambda: run_ledger_service(config, status), is_tethered=tethered)


@buyer_app.command("run")
def buyer_run(file: ConfigFile, tethered: Tethered = False) -> None:
    """Follow a funded run: check every round, claim the refund, receive the model.

    Example: assay buyer run config.toml
    """
    from assay.cli.process import read_process_file, run_process
    from assay.observer.buyer.service import run_buyer, sign_delivered

    config, given = read_process_file(file)
    status = file.parent / (given.status or Path("status.jsonl"))
    bundle = file.parent / (given.bundle or Path("delivered/bundle"))
    run_process(lambda: run_buyer(config, status, bundle), is_tethered=tethered)
    if given.bundle is None and bundle.is_dir():  # a folder of its own, which nobody else writes to
        sign_delivered(config, bundle.parent)


def watchtower(file: ConfigFile, tethered: Tethered = False) -> None:
    """Watch a run: challenge wrong results, judge as a juror, do what its contracts need, until stopped.

    Example: assay watchtower config.toml
    """
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
    """Run a local chain until stopped; its state survives a restart.

    Example: assay chain dev --folder chain --port 8545
    """
    from assay.devnet.local_chain import serve_chain

    serve_chain(folder, port, block_time, fund or ())


@run_app.command("verify")
def run_verify(
    folder: Annotated[Path, typer.Argument(metavar="RUNS/NAME")],
    only: Annotated[
        str | None, typer.Option(metavar="proof", help="Check what needs no updates and no weights.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the run's data: measure held-out loss and accuracy again.")
    ] = None,
    predecessor: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The run that it continues: compare its start with that chain."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify a delivered run offline: weights, certificates, receipts, settlements, every file.

    Example: assay run verify runs/quickstart
    """
    from assay.bundle.read import read

    if only is not None:
        from assay.bundle.proof import proof_lines, verify_proof

        if only != "proof":
            raise ConfigError(f"--only {only!r}: expected `proof`")
        proved = verify_proof(read(folder))
        show(proved, proof_lines(proved), as_json=as_json)
        return
    from assay.bundle.follow import read_any
    from assay.bundle.verify import Verified, report_lines, verify
    from assay.cli.progress import progress

    delivered = read(folder)
    with progress("rounds") as tell:
        report = verify(
            delivered,
            data=data,
            predecessor=None if predecessor is None else read_any(predecessor),
            on_round=lambda done: tell(done + 1, len(delivered.links)),
        )
    show(Verified.of(report), report_lines(report), as_json=as_json)


@run_app.command("merge")
def run_merge(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Delivered runs from one start.")],
    out: Annotated[Path, typer.Option(help="Folder of the merged model.")],
    share: Annotated[
        list[int] | None,
        typer.Option(min=1, max=10**6, help="What a run counts for, one each; default equal."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Merge the models of finished runs that began alike into their mean; each run is verified first.

    Example: assay run merge runs/english runs/french --out runs/both
    """
    from assay.bundle.merge import merge, merged_lines
    from assay.bundle.read import read
    from assay.bundle.verify import verify

    shares = share or [1] * len(runs)
    if len(shares) != len(runs):
        raise ConfigError(f"{len(shares)} shares of {len(runs)} runs, expected one each")
    made = merge([verify(read(run)) for run in runs], shares, out)
    show(made, merged_lines(made, out), as_json=as_json)


@run_app.command("fetch")
def run_fetch(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|URL...",
            help="A run's id, or where its index.json is served; any holder will do.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="Folder; default runs/<run id>.")] = None,
    only: Annotated[str, typer.Option(metavar="proof|model|all", help="How much of the run.")] = "all",
    run_id: Annotated[str | None, typer.Option(help="The run's id in the escrow contract.")] = None,
    openings: Annotated[
        bool, typer.Option("--openings", help="Also the openings of drawn steps, for replays.")
    ] = False,
    most: Annotated[
        float, typer.Option(metavar="GB", help="Give up beyond this; a source, beyond its share.", min=0)
    ] = 100.0,
    follow: Annotated[
        bool, typer.Option("--follow", help="Also fetch a run that goes on, until it is delivered.")
    ] = False,
    network: Annotated[
        str, typer.Option(metavar="INVITATION", help="Of the network in whose directory a run's id is found.")
    ] = "network.txt",
    rpc: Annotated[str | None, typer.Option("--rpc", metavar="URL", help="An endpoint of your own.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a run from web servers that nobody has to trust; goes on where it was stopped.

    By its id it comes from the explorers that its members announced. A run that goes on is served by
    explorers of its participants; the folder can be spot-checked meanwhile.

    Example: assay run fetch http://127.0.0.1:8600/runs/quickstart/files --only proof
    """
    from assay.cli.fetch import fetch_run, fetched_lines, found_sources

    found = found_sources(sources, run_id, network, rpc)
    fetched = fetch_run(found, out, only, most, openings=openings, follow=follow)
    show(fetched, fetched_lines(fetched), as_json=as_json)


@run_app.command("report")
def run_report(
    folder: Annotated[Path, typer.Argument(metavar="RUNS/NAME")],
    as_json: AsJson = False,
    html: Annotated[
        Path | None, typer.Option(help="Write the report to this file, as one self-contained HTML page.")
    ] = None,
) -> None:
    """Report the training of a delivered run: loss, steps, traffic, audits, time and cost, by round.

    Example: assay run report runs/quickstart --html training.html
    """
    from assay.bundle.read import read
    from assay.bundle.report.loss_kind import loss_kind
    from assay.bundle.report.run import write_page
    from assay.bundle.report.training import training_report
    from assay.bundle.report.training_page import report_lines, training_page

    delivered = read(folder)
    found, kind = training_report(delivered), loss_kind(delivered.spec)
    if html is not None:
        write_page(html, training_page(found, kind))
    show(found, report_lines(found, kind), as_json=as_json)


@sim_app.command("train")
def sim_train(
    file: Annotated[Path, typer.Argument(metavar="SPEC.toml")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for tables and plots; default runs/sim-<file>.")
    ] = None,
) -> None:
    """Train virtual nodes with any aggregation rule under any attack, in this process.

    Example: assay sim train examples/sim/adaptive.toml --out runs/sim
    """
    from assay.simulation.train import run_sim

    run_sim(file, out)


def localnet(
    file: Annotated[Path | None, typer.Argument(metavar="[RUN.toml]")] = None,
    nodes: Annotated[int | None, typer.Option(help="Number of nodes.")] = None,
    verifiers: Annotated[int | None, typer.Option(help="Number of verifiers.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of training rounds.")] = None,
    behave: Annotated[
        list[str] | None, typer.Option(help="NODE=BEHAVIOUR or NODE=BEHAVIOUR@ROUND; repeatable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of data order and initial parameters.")] = None,
    data: Annotated[Path | None, typer.Option(help="A text file or a folder to train on.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default runs/<name>.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a whole network on this machine: train, audit, settle and pay.

    Example: assay localnet examples/quickstart.toml --rounds 20
    """
    from assay.devnet.run import run_localnet

    overrides = {
        "nodes": nodes, "verifiers": verifiers, "rounds": rounds,
        "seed": seed, "data": data,
    }  # fmt: skip
    chosen = {k: v for k, v in overrides.items() if v is not None}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all its processes are ended too
    is_ok = run_localnet(file, chosen, behave or (), out, as_json=as_json)
    raise typer.Exit(0 if is_ok else 1)


TOP: tuple[tuple[str, Callable[..., None]], ...] = (
    (OPERATOR, join),
    (OPERATOR, doctor),
    (OPERATOR, watch),
    (OPERATOR, unit),
    (OPERATOR, claim),
    (OPERATOR, earnings),
    (AUDITOR, watchtower),
    (BUYER, invoice),
    (DEVELOPER, localnet),
    (DEVELOPER, redteam),
    (DEVELOPER, schema),
)
for panel, command in TOP:
    app.command(rich_help_panel=panel)(command)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from assay.cli.version import version_lines

        for line in version_lines():
            typer.echo(line)
        raise typer.Exit


@app.callback(epilog=EXIT_STATUS)
def assay(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print version, build and execution classes.",
        ),
    ] = False,
) -> None:
    """A training network whose every contribution can be tested: run a machine, audit a run, buy a model."""


def run() -> None:
    """Entry point: turn errors into one line and an exit status."""
    try:
        app(standalone_mode=True)
    except AssayError as error:
        _end(str(error), 2 if _could_not_ask(error) else 1)
    except ModuleNotFoundError as error:  # in an installation without all that assay depends on
        name = str(error.name).partition(".")[0]
        if name == "assay":
            raise
        _end(f"the package {name} is not installed, and this needs it: `pip install assay` brings it", 2)
    except OSError as error:  # of a file or a socket that no room below expected to fail
        where = f"{error.filename}: " if error.filename else ""
        _end(f"{where}{error.strerror or error}", 2)


def _could_not_ask(error: AssayError) -> bool:
    return isinstance(error, ConfigError | Unavailable) and not isinstance(error, NotYet)


def _end(text: str, status: int) -> NoReturn:
    # It may quote an endpoint or a file, which must not move a terminal's cursor.
    typer.echo(printable(f"assay: {text}"), err=True)
    sys.exit(status)


if __name__ == "__main__":
    run()
