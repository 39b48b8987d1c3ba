"""A participant's configuration file: every mistake is one line that says what to do."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from assay.cli.process import read_process_file
from assay.protocol.errors import ConfigError

pytestmark = pytest.mark.slow

GOOD = {
    "name": '"node-0"', "folder": '"."', "password_file": '"password"', "port": "4001",
    "rpc_url": '"http://127.0.0.1:8545"', "deployment": '"deployment.json"', "spec": '"spec.cbor"',
    "run_id": '"' + "ab" * 32 + '"', "data": '"data.bin"', "peers": '"peers.json"',
}  # fmt: skip


def a_file(folder: Path, **changes: str | None) -> Path:
    (folder / "password").write_text("secret\n")
    keys = {**GOOD, **changes}
    path = folder / "config.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in keys.items() if value is not None))
    return path


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config, _ = read_process_file(a_file(tmp_path))
    assert config.spec == tmp_path / "spec.cbor"
    assert config.password == "secret"
    assert config.run_id == b"\xab" * 32


def test_what_a_role_may_add_is_handed_on(tmp_path: Path) -> None:
    url = "postgresql://assay@localhost/books"
    given = {"known_answers": '"known-answers.txt"', "limits": '"../limits.json"', "books": f'"{url}"'}
    peer, urls = "0f" * 32, ("http://a.example", "http://b.example")
    given |= {
        "ledger_service": f'"{peer}"',
        "rpc_urls": str(list(urls)).replace("'", '"'),
        "one_rpc_suffices": "true",
    }
    config, _ = read_process_file(a_file(tmp_path, **given))
    assert (config.ledger_service, config.rpc_urls, config.one_rpc_suffices) == (
        bytes.fromhex(peer),
        urls,
        True,
    )
    assert (config.known_answers, config.limits) == (
        tmp_path / "known-answers.txt",
        tmp_path / "../limits.json",
    )
    assert config.books == url


def test_what_a_buyer_states_of_its_model_is_handed_on(tmp_path: Path) -> None:
    told = '{ provider = "Acme", licence = "MIT", base_flop = "1" }'
    meter = '{ energy_flop_per_joule = 5, energy_source = "our meter" }'

    first, _ = read_process_file(a_file(tmp_path, registry=told))
    second, _ = read_process_file(a_file(tmp_path, registry=meter))

    assert (first.declarations.provider, first.declarations.licence, first.declarations.base_flop) == (
        "Acme",
        "MIT",
        1,
    )
    assert (second.declarations.flop_per_joule, second.declarations.flop_source) == (5, "our meter")
    assert first.declarations.version == importlib.metadata.version("assay")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prot": "1"}, "unknown key; did you mean"),
        ({"port": None}, "port.*is missing"),
        ({"port": '"many"'}, "port"),
        ({"run_id": '"xyz"'}, "run_id is not hexadecimal"),
        ({"run_id": '"abcd"'}, "run_id has 2 bytes, expected 32"),
        ({"password_file": '"elsewhere"'}, "password_file cannot be read"),
        ({"behaviour": '"stale-parameters"'}, "unknown key"),
        ({"books": '"ledger.db"'}, "books"),
        ({"ledger_service": '"0F"'}, "ledger_service"),
        ({"rpc_urls": '"http://one"'}, "rpc_urls"),
        ({"registry": "{ energy_flop_per_joule = 5 }"}, "flop_source must say where it is from"),
        ({"registry": '{ base_flop = "many" }'}, "base_flop"),
        ({"registry": '{ provder = "x" }'}, "unknown key"),
        ({"registry": '{ provider = "a\\nb" }'}, "provider: expected one line"),
    ],
)
def test_each_mistake_is_named(tmp_path: Path, changes: dict[str, str | None], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_process_file(a_file(tmp_path, **changes))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["node", "run", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["localnet", "--behave", "2"], "expected NODE=BEHAVIOUR"),
        (["localnet", "--behave", "2=kind"], "unknown"),
        (["localnet", "--data", "nowhere"], "does not exist"),
        (["run", "verify", "nowhere"], "no delivered run"),
        (["order", "check", "nowhere.toml"], "cannot be read"),
    ],
)
def test_a_command_says_it_in_one_line_and_exits_with_2(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "assay.cli.main", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
