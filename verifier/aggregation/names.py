"""Names: the aggregation rules that an order may name; `registry.py` says what they do.

Room: verifier (pure, without compiled code: reading an order needs no more).
"""

from __future__ import annotations

RULE_NAMES = (
    "mean", "normalize+mean", "clipping+mean", "arc+mean",
    "reputation+mean", "reputation+normalize+mean", "reputation+clipping+mean",
    "trimmed-mean", "trimmed-mean-implied", "clipping+trimmed-mean", "nnm+trimmed-mean",
    "median", "clipping+median",
    "centered-clip", "centered-clip-all", "clipping+centered-clip", "nnm+centered-clip",
    "bucketing+centered-clip",
    "geometric-median", "krum", "multi-krum", "clipping+multi-krum", "monna", "caf",
)  # fmt: skip
DECODED_NAMES = ("decoded-trimmed-mean", "decoded-median", "decoded-vote")  # their aggregates are signs alone
TRIMS_SENDERS = ("trimmed-mean", "clipping+trimmed-mean")  # among the senders of a coefficient, not all nodes
