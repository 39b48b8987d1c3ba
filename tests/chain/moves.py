"""Moves: transactions that the contracts take and no command of ours sends."""

from __future__ import annotations

from assay.chain.client import Chain, Sent


def transfer_token(chain: Chain, to: str, amount: int) -> Sent:
    """Sends token units. Repeating it sends again."""
    return chain._move("transfer token", "AssayToken", "transfer", to, amount)
