"""Guides: every `assay` command that a guide shows exists, takes those arguments, and works if it only reads.

Commands that read a delivered run are executed on the recorded one, in the order of their guide. Those that
start processes or move money are parsed by the command line here and executed in tests/e2e and tests/cli.
"""

from __future__ import annotations

import os
import re
import shlex
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from assay.bundle.read import read
from assay.chain.commit_statement import evm_address
from assay.orders.sections import RunFile
from assay.orders.toml import tomllib
from tests.bundle.a_participant import a_participant
from tests.commands import COMMANDS
from tests.test_golden_run import ARCHIVE

ROOT = Path(__file__).parents[1]
GUIDES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("operators", "auditors", "buyers"))]
LONG = {
    "watchtower", "operator up", "operator show", "operator offer",
    "node run", "verifier run", "ledger serve", "buyer run", "chain dev", "localnet", "redteam", "sim train",
    "audit calibrate", "stake add", "stake lock", "stake release", "claim", "order place", "order data",
    "order continue",
    "key new", "key card", "key show", "key backup", "key rotate", "key delegate",
    "key sign",
    "network create", "network show", "network fund", "network sign-rotation", "network rotate",
    "registry check", "registry sign-withdrawal", "registry withdraw",
    "network announce", "network list", "run list", "run show", "audit accuse",
    "appeal open", "appeal vote", "join", "doctor", "watch", "unit", "explorer serve", "run fetch",
    "run merge",
}  # fmt: skip
ROUND = 7


def commands(guide: Path) -> list[str]:
    """The lines of a guide's code blocks that begin with `assay`, without their comments."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line.split(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line.removeprefix(".venv/bin/") for line in lines if re.match(r"(\.venv/bin/)?assay ", line)]


SHOWN = [(guide.name, line) for guide in GUIDES for line in commands(guide)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder as the guides assume it: a finished run, the examples, files with the guides' names."""
    folder, before = tmp_path_factory.mktemp("guides"), Path.cwd()
    run = folder / "runs" / "quickstart"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(run, filter="data")
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "RUN").symlink_to(run)
    (folder / "RUN.toml").write_text((ROOT / "examples" / "quickstart.toml").read_text())
    (folder / "FILE.toml").write_text("")
    a_participant(run, folder / "node-1", rounds=6)
    (folder / "copy").symlink_to("node-1")
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.fixture(scope="module")
def peer(workplace: Path) -> str:
    """A node whose step of `ROUND` was accepted."""
    link = read(workplace / "runs" / "quickstart").links[ROUND]
    return link.manifest.commits[0].commit.node.hex()


@pytest.fixture(scope="module")
def account(workplace: Path) -> str:
    """The account of the spec's first node."""
    return evm_address(read(workplace / "runs" / "quickstart").spec.nodes[0].account)


def parsed(arguments: list[str]) -> str:
    """The command's name, once the command line has taken these arguments."""
    command = COMMANDS
    context, names = None, []
    while hasattr(command, "resolve_command"):
        context = command.context_class(command, parent=context, info_name=" ".join(names) or "assay")
        name, command, arguments = command.resolve_command(context, arguments)
        names.append(name)
    command.make_context(names[-1], arguments, parent=context)
    return " ".join(names)


@pytest.mark.parametrize(("guide", "line"), SHOWN, ids=[line for _, line in SHOWN])
def test_a_command_of_a_guide_works(guide: str, line: str, workplace: Path, peer: str, account: str) -> None:
    filled = (
        line.replace("PEER", peer)
        .replace("DIGEST", "ab" * 32)
        .replace("RUN 0x...", f"RUN {account}")
        .replace("RUN.toml FOLDER", "RUN.toml shards")
    )
    arguments = shlex.split(re.sub(r"\bFILE$", "receipt.json", filled))[1:]

    name = parsed(list(arguments))

    if name not in LONG and "--config" not in arguments:
        if name == "receipt make":
            arguments += ["--out", "receipt.json"]
        done = CliRunner().invoke(COMMANDS, arguments)
        assert done.exit_code == 0, f"{guide}: {done.output}\n{done.exception!r}"
        assert done.output.strip()


def test_a_command_that_does_not_exist_or_an_option_that_it_lacks_is_found(workplace: Path) -> None:
    for wrong in (["order", "buy"], ["audit", "odds", "--certainty", "1"], ["earnings"]):
        with pytest.raises(Exception, match=r"No such|Missing"):
            parsed(wrong)


def test_every_guide_shows_commands() -> None:
    assert all(commands(guide) for guide in GUIDES)


TABLES = re.findall(r"^```\n(\[.*?)^```", (ROOT / "docs/buyers.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", TABLES)
def test_the_tables_of_the_buyers_guide_have_keys_and_values_that_an_order_takes(block: str) -> None:
    RunFile.model_validate(tomllib.loads(block))


def test_a_key_that_an_order_does_not_know_is_found_in_a_guide() -> None:
    assert len(TABLES) > 10
    with pytest.raises(ValueError, match="keep_momentum"):
        RunFile.model_validate(tomllib.loads("[train]\nkeep_momentum = false"))
