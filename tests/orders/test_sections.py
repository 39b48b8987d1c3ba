"""Sections: each bound of a run file is frozen; `python -m tests.orders.test_sections` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.chain.text.units import DECIMALS, TOKENS_MAX
from assay.orders.load import load_order
from assay.orders.sections import RunFile
from assay.protocol.errors import ConfigError

VECTORS = Path(__file__).parents[1] / "vectors" / "order_bounds.json"
KINDS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems",
    "maxItems", "pattern",
)  # fmt: skip


def bounds() -> dict[str, dict[str, Any]]:
    """The bounds of each key, by section and name, as JSON Schema has them."""
    found = {}
    schema = RunFile.model_json_schema()
    for section, kind in {"RunFile": schema, **schema["$defs"]}.items():
        for name, facts in kind["properties"].items():
            parts = [facts, *facts.get("anyOf", ())]
            parts += [part["items"] for part in parts if "items" in part]
            bound = {key: part[key] for part in parts for key in KINDS if key in part}
            if bound:
                found[f"{section}.{name}"] = bound
    return found


def test_every_bound_is_the_frozen_one():
    assert bounds() == json.loads(VECTORS.read_text())


def test_a_budget_is_above_nothing_and_at_most_all_tokens():
    most = TOKENS_MAX * 10**DECIMALS
    for amount in (0, most + 1):
        with pytest.raises(ConfigError, match="a whole number of token units above 0"):
            load_order(None, {"budget.amount": amount})
    assert load_order(None, {"budget.amount": most}).budget_units() == most


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(bounds(), indent=1) + "\n")
