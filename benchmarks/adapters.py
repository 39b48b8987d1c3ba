"""Adapters: what a node sends and keeps if it trains a low-rank adapter in place of all parameters.

    python -m benchmarks.adapters

By calculation, with the functions that orders and audits use: nothing is trained.
"""

from __future__ import annotations

from dataclasses import replace

from assay.orders.amounts import bytes_text
from assay.orders.load import load_order
from assay.orders.order import Order
from assay.orders.spec import audit_spec
from assay.protocol.params import BLOCK_SIZE, NO_ADAPTER, AdapterSpec, Target
from assay.training.layout import layout_of
from assay.training.model.flops import flop_per_token
from assay.verifier.audit.messages import opening_bytes_max
from assay.verifier.audit.upload import block_bits

PRESETS = ("llama-15m", "llama-125m", "llama-1b")
RANK = 8
ADAPTERS = {
    "all parameters": NO_ADAPTER,
    "r = 8: q, v": AdapterSpec(rank=RANK, alpha=2 * RANK, targets=(Target.Q, Target.V)),
    "r = 8: all seven": AdapterSpec(rank=RANK, alpha=2 * RANK, targets=tuple(Target)),
}


def figures(demo: Order, muloco: Order) -> tuple[str, ...]:
    """Trained parameters, each method's update and opening of one audit, DeMo's state, FLOP of a token."""
    layout = layout_of(demo.sizes)
    sizes = [
        bytes_text(size)
        for order in (demo, muloco)
        for size in (
            block_bits(order.rule) * layout.blocks / 8,
            opening_bytes_max(order.rule, layout, audit_spec(order).blocks),
        )
    ]
    state = bytes_text(4 * BLOCK_SIZE * layout.blocks)
    return f"{layout.parameters:,}", *sizes, state, f"{flop_per_token(demo.sizes):.2e}"


ROW = "{:<11} {:<17} {:>12} {:>9} {:>8} {:>9} {:>8} {:>9} {:>10}"


def main() -> None:
    """Print one table."""
    print(ROW.format("", "", "", "DeMo", "", "MuLoCo", "", "DeMo", ""))
    heads = "parameters", "update", "opening", "update", "opening", "state", "FLOP/token"
    print(ROW.format("model", "trained", *heads))
    for preset in PRESETS:
        orders = [
            load_order(None, {"model.preset": preset, "comm.method": method}) for method in ("demo", "muloco")
        ]
        for name, adapter in ADAPTERS.items():
            demo, muloco = (replace(one, sizes=replace(one.sizes, adapter=adapter)) for one in orders)
            print(ROW.format(preset, name, *figures(demo, muloco)))


if __name__ == "__main__":
    main()
