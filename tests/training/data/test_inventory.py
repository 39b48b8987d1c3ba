"""Inventory: one value, one spelling, and a digest that a changed licence changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.protocol.encoding.json_text import canonical_json, plain
from assay.testing.signed import a_spec
from assay.testing.specs import MANIFEST
from assay.training.data.inventory import inventory

DATA = a_spec().data


def test_its_bytes_are_frozen():
    """Verifiers sign this digest: another spelling of the same data is another record on chain."""
    told = inventory(DATA, MANIFEST)

    assert canonical_json(plain(told)).decode() == (
        '{"format":"assay/data-inventory/1","held_out_tokens":2000,'
        f'"manifest":"sha256:{DATA.manifest.hex()}","merkle_root":"{DATA.root.hex()}","shards":1,"sources":'
        '[{"bytes":40000,"documents":1,"files":1,"kind":"text","licence":"none","source":"made up",'
        '"tokens":40000}],"token_bytes":1,"tokenizer":null,"tokens":40000,"vocabulary":256}\n'
    )


def test_a_changed_source_is_another_digest():
    (source,) = MANIFEST.sources
    for change in ({"licence": "CC0-1.0"}, {"source": "é"}, {"tokens": 1}):
        manifest = replace(MANIFEST, sources=(replace(source, **change),))
        data = replace(DATA, manifest=manifest.digest())
        assert inventory(data, manifest).sha256() != inventory(DATA, MANIFEST).sha256()


def test_a_manifest_that_the_run_does_not_name_has_no_inventory():
    with pytest.raises(ValueError, match="the run spec has"):
        inventory(DATA, replace(MANIFEST, separator=7))
