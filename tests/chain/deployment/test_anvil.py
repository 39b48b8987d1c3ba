"""The local chain as a child process: it answers, it survives kill -9, it ends, it says what is wrong."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from assay.chain.client import UNIT, Chain, Deployment
from assay.chain.deployment.anvil import Anvil
from assay.chain.rpc import Rpc
from assay.chain.statements import OPERATOR
from assay.protocol.errors import ConfigError, Unavailable
from tests.contracts.chain_world import World

pytestmark = pytest.mark.slow


def a_chain(binary: Path, folder: Path, **changes: object) -> Anvil:
    return Anvil(
        **{"binary": binary, "state_dir": folder, "block_time_s": None, "state_interval_s": 1, **changes}
    )  # type: ignore[arg-type]


def wait_for_state(chain: Anvil, mark: str) -> None:
    """Until the state on disk holds the account; ends by pytest's own deadline."""
    path = chain.state_dir / "chain.json"
    while not (path.exists() and mark[2:].lower() in path.read_text() and chain.backup()):
        pass


def test_a_chain_killed_at_any_moment_comes_back_with_the_same_keys_and_money(
    anvil_binary: Path, tmp_path: Path
):
    with a_chain(anvil_binary, tmp_path) as chain:
        world = World(chain.rpc_url, chain.keys[0])
        world.as_(world.buyer).stake(OPERATOR, 150 * UNIT)
        keys, port = chain.keys, chain.port
        wait_for_state(chain, world.deployment.slash_court)
        before = world.bank.block_number()
        os.kill(chain.pid, signal.SIGKILL)
    with pytest.raises(Unavailable):
        world.bank.block_number()

    with a_chain(anvil_binary, tmp_path, port=port) as chain:
        assert chain.keys == keys
        assert world.bank.block_number() <= before
        world.bank.check_deployment()
        world.bank.check_created()
        assert "SetRotated" in [type(e).__name__ for e in world.bank.events(world.deployment.block)]
        buyer = world.as_(world.buyer)
        if buyer.token_balance() == 0:  # the chain went back to before the purse was filled
            world.bank.fund_many([buyer.address], token_amount=200 * UNIT, amount_wei=10**18)
        if lacking := 150 * UNIT - buyer.stake_of(buyer.address, OPERATOR).active:
            buyer.stake(OPERATOR, lacking)
        assert buyer.stake_of(buyer.address, OPERATOR).active == 150 * UNIT


def test_time_passes_at_once_and_never_back(anvil_binary: Path, tmp_path: Path):
    with a_chain(anvil_binary, tmp_path, block_time_s=1) as chain:
        reader = Rpc(chain.rpc_url)
        later = _newest_s(reader) + 1_000
        chain.pass_time(later)
        while (now := _newest_s(reader)) < later:
            pass
        chain.pass_time(later - 500)
        while (then := _newest_s(reader)) == now:
            pass

    assert later <= now < then < later + 100


def _newest_s(reader: Rpc) -> int:
    return int(reader.web3.eth.get_block("latest")["timestamp"])


def test_a_state_file_cut_short_gives_way_to_its_copy(anvil_binary: Path, tmp_path: Path):
    with a_chain(anvil_binary, tmp_path) as chain:
        world = World(chain.rpc_url, chain.keys[0])
        wait_for_state(chain, world.deployment.slash_court)
    state = tmp_path / "chain.json"
    state.write_bytes(state.read_bytes()[:1_000])

    with a_chain(anvil_binary, tmp_path) as chain:
        Chain(chain.rpc_url, world.deployment).check_deployment()

    state.write_text("{")
    state.with_suffix(".json.bak").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        a_chain(anvil_binary, tmp_path).start()


def test_states_of_old_blocks_stay_in_the_chains_folder_and_end_with_it(
    anvil_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    with a_chain(anvil_binary, tmp_path / "chain") as chain:
        Rpc(chain.rpc_url).web3.provider.make_request("anvil_mine", [hex(2_000)])  # more than memory keeps
        kept = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if "states" in str(path)]
        assert any(path.parts[0] == "chain" for path in kept)
        while not chain.backup():  # what is killed while it writes its first state has no other
            pass
        os.kill(chain.pid, signal.SIGKILL)
    with a_chain(anvil_binary, tmp_path / "chain") as chain:
        assert not [path for path in (tmp_path / "chain" / "old-states").rglob("*") if path.is_file()]
    assert not home.exists()


def test_leaving_ends_the_child_even_after_an_error(anvil_binary: Path, tmp_path: Path):
    chain, pids = a_chain(anvil_binary, tmp_path), []

    def fail_inside() -> None:
        with chain:
            pids.append(chain.pid)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_inside()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


OWNER = """
import sys, time
from pathlib import Path
from assay.chain.deployment.anvil import Anvil
with Anvil(binary=Path(sys.argv[1]), state_dir=Path(sys.argv[2]), block_time_s=None) as chain:
    print(chain.port, flush=True)
    time.sleep(600)
"""


def test_a_chain_whose_owner_was_killed_makes_way_for_the_next(anvil_binary: Path, tmp_path: Path):
    command = [sys.executable, "-c", OWNER, str(anvil_binary), str(tmp_path)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert owner.stdout is not None
    port = int(owner.stdout.readline())
    with pytest.raises(ConfigError, match="belongs to another running process"):
        a_chain(anvil_binary, tmp_path).start()
    owner.kill()
    owner.wait()
    owner.stdout.close()

    with a_chain(anvil_binary, tmp_path, port=port) as chain:
        assert chain.port == port


def test_a_busy_port_is_the_operators_to_fix(anvil_binary: Path, tmp_path: Path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is busy"):
            a_chain(anvil_binary, tmp_path, port=port).start()


def test_an_anvil_that_stops_at_once_is_reported_with_its_last_words(anvil_binary: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="stopped with code"):
        a_chain(anvil_binary, tmp_path, account_count=-1).start()


def test_the_mnemonic_is_for_its_owner_and_differs_per_folder(anvil_binary: Path, tmp_path: Path):
    one, two = (a_chain(anvil_binary, tmp_path / name) for name in "ab")
    assert set(one.keys).isdisjoint(two.keys)
    assert (tmp_path / "a" / "mnemonic").stat().st_mode & 0o777 == 0o600


def test_another_deployment_another_chain_and_no_chain_are_told_apart(
    world: World, anvil_binary: Path, tmp_path: Path
):

    def check(deployment: Deployment, url: str = world.rpc_url) -> None:
        Chain(url, deployment).check_deployment()

    check(world.deployment)
    with pytest.raises(ConfigError, match="wrong chain: id 31337, 1 expected"):
        check(replace(world.deployment, chain_id=1))
    with pytest.raises(ConfigError, match="belongs to deployment"):
        check(replace(world.deployment, deployment_id=b"\1" * 32))
    with a_chain(anvil_binary, tmp_path) as fresh, pytest.raises(ConfigError, match="no AssayToken"):
        check(world.deployment, fresh.rpc_url)
    with pytest.raises(Unavailable):
        check(world.deployment, "http://127.0.0.1:9")
