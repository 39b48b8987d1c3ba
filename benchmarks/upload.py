"""What a node uploads: its update and its openings, a round in the mean, by the product's own arithmetic.

    python -m benchmarks.upload

Default orders with DeMo at k = 32. Before, every verifier got a copy of every update from its node.
"""

from __future__ import annotations

from assay.orders.amounts import bytes_text
from assay.orders.load import load_order
from assay.orders.spec import audit_spec
from assay.protocol.params import PPM
from assay.training.layout import layout_of
from assay.verifier.audit.upload import copies_sent, openings_bytes, update_bytes

MODELS = ("gpt-1m", "gpt-15m", "gpt-125m", "llama-1b")


def main() -> None:
    """Print the table."""
    print("| model | update | verifiers | copies | probation | times the update | floor | times the update |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for model in MODELS:
        for verifiers in (4, 16):
            order = load_order(None, {"model.preset": model, "run.verifiers": verifiers})
            layout = layout_of(order.sizes)
            update = update_bytes(order.rule, layout)
            copies = copies_sent(verifiers, update)
            cells = [model, bytes_text(update), str(verifiers), f"{verifiers} -> {copies}"]
            for rate_ppm in (PPM, audit_spec(order).floor_ppm):
                openings = openings_bytes(order.rule, audit_spec(order), layout, rate_ppm)
                sent = [count * update + openings for count in (verifiers, copies)]
                cells.append(" -> ".join(map(bytes_text, sent)))
                cells.append(" -> ".join(f"{one / update:.1f}" for one in sent))
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
