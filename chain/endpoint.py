"""Endpoint: checks at start that an RPC endpoint serves the chain of the deployment.

Room: chain (edge: one HTTP endpoint). Plain JSON-RPC, so that a process that only
trains need not load the chain client to detect a misconfiguration.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from assay.chain.addresses import Deployment
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import ConfigError, Unavailable

ANSWER_BYTES_MAX = 1 << 20
TIMEOUT_S = 5.0


def check_endpoint(rpc_url: str, deployment: Deployment) -> None:
    """Do nothing if `rpc_url` serves the chain that holds this deployment.

    Raises:
        ConfigError: it serves another chain, or one without these contracts.
        Unavailable: the endpoint does not answer.
    """
    chain_id = _ask(rpc_url, "eth_chainId", [])
    if chain_id != hex(deployment.chain_id):
        raise ConfigError(f"wrong chain: {rpc_url} is chain {chain_id}, expected {hex(deployment.chain_id)}")
    code = _ask(rpc_url, "eth_getCode", [deployment.run_escrow, "latest"])
    if code in ("", "0x", None):
        raise ConfigError(f"wrong chain: {rpc_url} has no contract at {deployment.run_escrow}")


def _ask(rpc_url: str, method: str, parameters: list[Any]) -> Any:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}).encode()
    try:
        request = urllib.request.Request(rpc_url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            found = parse_json(answer.read(ANSWER_BYTES_MAX))
    except ValueError as error:
        raise ConfigError(f"{rpc_url}: not a chain endpoint ({error})") from None
    except (urllib.error.URLError, OSError) as error:
        raise Unavailable(f"{rpc_url}: {error}") from None
    if not isinstance(found, dict) or "result" not in found:
        raise ConfigError(f"{rpc_url}: invalid answer to {method}")
    return found["result"]
