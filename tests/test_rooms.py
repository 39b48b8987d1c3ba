"""The rooms import in one direction, and nobody else installs a package with a room's name."""

from __future__ import annotations

import ast
import importlib.metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEVEL = {
    "protocol": 0,
    "contracts": 0,
    "training": 1,
    "network": 1,
    "ledger": 1,
    "attestation": 1,
    "replica": 2,
    "verifier": 3,
    "node": 3,
    "observer": 3,
    "redteam": 4,
    "orders": 4,
    "api": 5,
    "cli": 6,
}


def rooms_imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found & set(LEVEL)


def wrong_arrows(room: str, imported: set[str]) -> set[str]:
    return {other for other in imported if other != room and LEVEL[other] >= LEVEL[room]}


@pytest.mark.parametrize("room", sorted(LEVEL))
def test_a_room_imports_only_rooms_below_it(room: str) -> None:
    for path in sorted((ROOT / room).rglob("*.py")):
        if "node_modules" not in path.parts:
            assert not wrong_arrows(room, rooms_imported(path)), path


def test_an_arrow_to_a_neighbour_or_upwards_is_seen() -> None:
    assert wrong_arrows("ledger", {"network", "protocol"}) == {"network"}
    assert wrong_arrows("protocol", {"cli"}) == {"cli"}


def test_only_the_network_room_knows_libp2p() -> None:
    for room in LEVEL:
        if room == "network":
            continue
        for path in (ROOT / room).rglob("*.py"):
            assert "libp2p" not in {
                name.split(".")[0]
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Import | ast.ImportFrom)
                for name in (
                    [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                )
            }, path


def test_no_dependency_installs_a_package_with_a_rooms_name() -> None:
    for distribution in importlib.metadata.distributions():
        if distribution.metadata["Name"] == "assay":
            continue
        tops = {Path(str(file)).parts[0] for file in distribution.files or ()}
        assert not tops & set(LEVEL), distribution.metadata["Name"]
