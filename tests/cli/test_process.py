"""A participant's configuration file: every mistake is one line that says what to do."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.cli.process import read_process_file
from assay.participant.files.invitation import write_invitation
from assay.participant.files.record import OWN_RECORD, write_record
from assay.protocol.errors import ConfigError
from tests.a_network import a_record, an_invitation
from tests.conftest import Assay

pytestmark = pytest.mark.slow

GOOD = {"keys": '"keys"', "network": '"network.txt"'}  # nothing else is required


def a_file(folder: Path, **changes: str | None) -> Path:
    password = folder / "password"
    password.touch(mode=0o600)
    password.write_text("secret\n")
    write_invitation(folder / "network.txt", an_invitation())
    keys = {**GOOD, **changes}
    path = folder / "config.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in keys.items() if value is not None))
    return path


def test_two_keys_suffice_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    config, _ = read_process_file(a_file(tmp_path))
    assert (config.keys, config.network) == (tmp_path / "keys", tmp_path / "network.txt")
    assert (config.run, config.data, config.folder) == (tmp_path / "run.assay", tmp_path / "data", tmp_path)
    assert config.password == "secret"
    assert config.rpc_url == "http://127.0.0.1:1"  # the invitation's
    assert (config.port, config.ip) == (4001, "0.0.0.0")


@pytest.mark.parametrize(
    ("host", "ip"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("192.0.2.1", "0.0.0.0"), ("a.org", "0.0.0.0"),
     ("2001:db8::1", "::")],
)  # fmt: skip
def test_a_participant_listens_where_its_record_says_others_find_it(
    tmp_path: Path, host: str, ip: str
) -> None:
    (tmp_path / "keys").mkdir()
    write_record(tmp_path / "keys" / OWN_RECORD, a_record("nora", port=7000, host=host))

    config, _ = read_process_file(a_file(tmp_path))
    chosen, _ = read_process_file(a_file(tmp_path, port="7001", ip='"10.0.0.1"'))

    assert (config.port, config.ip) == (7000, ip)
    assert (chosen.port, chosen.ip) == (7001, "10.0.0.1")


def test_a_password_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = a_file(tmp_path)
    (tmp_path / "password").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_process_file(file)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9100", ("127.0.0.1", 9100)),
        ("[::1]:1", ("::1", 1)),
        ("10.0.0.7:65535", ("10.0.0.7", 65_535)),
    ],
)
def test_metrics_are_off_or_at_the_address_that_the_file_names(
    tmp_path: Path, text: str, expected: tuple[str, int]
) -> None:
    assert read_process_file(a_file(tmp_path))[0].metrics is None
    assert read_process_file(a_file(tmp_path, metrics=f'"{text}"'))[0].metrics == expected


@pytest.mark.parametrize(
    "text", ["9100", ":9100", "localhost:9100", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:+1"]
)
def test_an_address_of_metrics_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="expected an IP address and a port such as"):
        read_process_file(a_file(tmp_path, metrics=f'"{text}"'))


def test_what_a_role_may_add_is_handed_on(tmp_path: Path) -> None:
    url = "postgresql://assay@localhost/books"
    given = {"limits": '"../limits.json"', "books": f'"{url}"'}
    urls = ("http://a.example", "http://b.example")
    given |= {
        "rpc_urls": str(list(urls)).replace("'", '"'),
        "one_rpc_suffices": "true",
    }
    config, _ = read_process_file(a_file(tmp_path, **given))
    assert (config.rpc_urls, config.one_rpc_suffices) == (urls, True)
    assert (config.limits, config.books) == (tmp_path / "../limits.json", url)


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
        ({"keys": None}, "keys.*is missing"),
        ({"network": None}, "network.*is missing"),
        ({"network": '"nowhere"'}, "nowhere: cannot be read"),
        ({"port": '"many"'}, "port"),
        ({"port": "70000"}, "port"),
        ({"rpc_url": '"file:///etc/passwd"'}, "rpc_url"),
        ({"password_file": '"elsewhere"'}, "elsewhere is missing"),
        ({"behaviour": '"stale-parameters"'}, "unknown key"),
        ({"books": '"ledger.db"'}, "books"),
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


def test_a_run_that_cannot_begin_leaves_what_lay_there(
    assay: Assay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("text", "mine", "mine.staged"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "notes.txt").write_text("what a person wrote, line after line\n" * 2000)
    before = sorted(tmp_path.rglob("*"))

    done = assay("localnet", "--data", "text", "--out", "mine")

    assert done.status == 2 and "mine is not empty and holds no earlier run" in done.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def sigterm() -> Iterator[None]:
    """What SIGTERM does is restored: `assay chain dev` changes it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["node", "run", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["localnet", "--behave", "2"], "expected NODE=BEHAVIOUR"),
        (["localnet", "--behave", "2=kind"], "unknown"),
        (["localnet", "--data", "nowhere"], "does not exist"),
        (["run", "verify", "nowhere"], "no delivered run"),
        (["order", "check", "nowhere.toml"], "cannot be read"),
        (["localnet", "--out", "/proc/nowhere/run"], "/proc/nowhere/run: cannot be created"),
        (["chain", "dev", "--folder", "/proc/nowhere"], "/proc/nowhere cannot be created"),
        (["chain", "dev", "--fund", "0x12"], "'0x12' is not an account"),
        (["join", "nowhere.txt", "--keys", "keys"], "nowhere.txt: cannot be read"),
        (["key", "show", "keys"], "keys is missing; keys are made by: assay key new keys"),
        (["order", "data", "run.toml", "/proc/nowhere/data"], "/proc/nowhere/data: cannot be created"),
        (["order", "check", "empty.toml"], "is empty, expected an order"),
        (["localnet", "empty.toml"], "is empty, expected an order"),
        (
            ["sim", "train", "empty.toml", "--out", "/proc/nowhere/sim"],
            "/proc/nowhere/sim: cannot be created",
        ),
        (["ledger", "balance", "noise.db"], "if it was one, it is damaged"),
        (["api", "serve", "api.toml"], "[runs] x: "),
        (["node", "run", "port.toml"], '"abc": expected a whole number'),
    ],
)
def test_a_command_says_it_in_one_line_and_exits_with_2(
    assay: Assay,
    sigterm: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text("[run]\nrounds = 6\n")
    (tmp_path / "empty.toml").write_text("\n")
    (tmp_path / "noise.db").write_bytes(b"\x5a" * 8192)
    (tmp_path / "api.toml").write_text('[runs]\nx = "nowhere"\n')
    (tmp_path / "port.toml").write_text('keys = "keys"\nnetwork = "network.txt"\nport = "abc"\n')

    done = assay(*arguments)

    assert done.status == 2
    assert words in done.err
    assert "Traceback" not in done.err
    assert len(done.err.strip().splitlines()) == 1


GREEDY = """
import sys, threading
import numpy as np
from assay.cli.process import _share_freed_memory
if sys.argv[1] == "shared":
    _share_freed_memory()
np.ones(4_000_000)  # glibc keeps arrays of a size that was freed once
one_at_a_time, all_done = threading.Lock(), threading.Barrier(8)
def work():
    with one_at_a_time:
        arrays = [np.ones(1_000_000) for _ in range(5)]
        del arrays
    all_done.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(int(open("/proc/self/statm").read().split()[1]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's memory")
def test_what_threads_have_freed_does_not_stay_with_each_of_them():
    kept, shared = (
        int(subprocess.run([sys.executable, "-c", GREEDY, how], capture_output=True, check=True).stdout)
        for how in ("kept", "shared")
    )
    pages_of_a_thread = 5 * 8_000_000 // os.sysconf("SC_PAGE_SIZE")
    assert kept - shared > 2 * pages_of_a_thread
