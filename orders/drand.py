"""Order drand: the drand network of an order, by its name or by its description file.

Room: orders (edge: reads one file). The file is a drand node's answer at `/<chain hash>/info`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import ConfigError
from assay.protocol.randomness.drand import (
    AHEAD_S,
    QUICKNET,
    DrandSpec,
    drand_faults,
    has_begun,
    longest_wait_s,
)

SCHEME = "bls-unchained-g1-rfc9380"
_QUICKNET_HASH = "52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971"


@dataclass(frozen=True, slots=True)
class DrandNetwork:
    """A network, and its default addresses."""

    spec: DrandSpec
    urls: tuple[str, ...]


QUICKNET_ASKED = DrandNetwork(
    QUICKNET,
    tuple(f"https://{host}/{_QUICKNET_HASH}" for host in ("api.drand.sh", "drand.cloudflare.com")),
)


def read_network(path: Path) -> DrandSpec:
    """A network from its description file.

    Raises:
        ConfigError: the file cannot be read, describes another scheme, or is inconsistent.
    """
    try:
        chain_info = parse_json(path.read_bytes())
        if chain_info["schemeID"] != SCHEME:
            raise ConfigError(f"{path}: scheme {chain_info['schemeID']!r}, expected {SCHEME}")
        genesis, period = chain_info["genesis_time"], chain_info["period"]
        if type(genesis) is not int or type(period) is not int or min(genesis, period) < 1:
            raise ConfigError(f"{path}: genesis_time and period must be whole numbers above 0")
        spec = DrandSpec(key=bytes.fromhex(chain_info["public_key"]), genesis_s=genesis, period_s=period)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: not the description of a drand network ({error!r})") from None
    for fault in drand_faults(spec):
        raise ConfigError(f"{path}: {fault}")
    if not has_begun(spec, int(time.time())):
        raise ConfigError(
            f"{path}: the network begins at {genesis} (Unix time), expected at most {AHEAD_S} s from now"
        )
    return spec


def check_wait(network: DrandNetwork, iteration_s: float) -> None:
    """Do nothing if the named drand round is published before a leader's iteration times out.

    Raises:
        ConfigError: it cannot.
    """
    wait_s = longest_wait_s(network.spec)
    if iteration_s <= wait_s:
        raise ConfigError(
            f"[timing] iteration_s is {iteration_s:g}: with this drand network a leader waits "
            f"up to {wait_s} s, so more is expected"
        )
