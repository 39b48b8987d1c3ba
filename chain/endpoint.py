"""Endpoint: one JSON-RPC call without web3, and the check at start that it reaches the deployment's chain.

Room: chain (edge: one HTTP endpoint). A process that only trains need not load the chain client to detect a
misconfiguration.
"""

from __future__ import annotations

from typing import Any

import requests
from urllib3.exceptions import HTTPError

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
    try:
        found = call(rpc_url, method, parameters, timeout_s=TIMEOUT_S)
    except ValueError as error:
        raise ConfigError(f"{rpc_url}: not a chain endpoint ({error})") from None
    except OSError as error:
        raise Unavailable(f"{rpc_url}: {error}") from None
    if "result" not in found:
        raise ConfigError(f"{rpc_url}: invalid answer to {method}")
    return found["result"]


def call(url: str, method: str, parameters: list[Any], *, timeout_s: float) -> dict[str, Any]:
    """The answer to one JSON-RPC call, of at most `ANSWER_BYTES_MAX`; its `error` may be set.

    Raises:
        OSError: nobody answers in time, or not to the end.
        ValueError: no URL, or the answer is no JSON object.
    """
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}
    with requests.Session() as session:
        session.trust_env = False  # never through a proxy that the environment names
        with session.post(url, json=body, timeout=timeout_s, allow_redirects=False, stream=True) as answer:
            try:
                found = parse_json(answer.raw.read(ANSWER_BYTES_MAX, decode_content=True))
            except HTTPError as error:  # of what requests sends with; it passes it on
                raise ConnectionError(str(error)) from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found
