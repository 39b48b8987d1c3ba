"""Registry formats: each file has what its standard requires, and nothing that nobody knows."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from assay.bundle.registry.provenance import signature_in
from assay.bundle.registry.text import TO_BE_FILLED, cell
from assay.bundle.registry.training_summary import size_range
from assay.bundle.release import BadReleaseError, check_signature, release_of, signed_already
from assay.participant.declarations import Declarations
from assay.training.data.shards import Source
from tests.bundle.registry.test_entry import WEIGHTS, files_of
from tests.bundle.test_write import finished

FILES = files_of(finished())


def parsed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILES[name])
    return found


# ---- in-toto, SLSA, DSSE


def statement() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.b64decode(parsed("provenance.json")["payload"]))
    return found


def test_the_statement_is_in_totos_with_the_weights_as_subject():
    told = statement()

    assert told["_type"] == "https://in-toto.io/Statement/v1"
    assert told["predicateType"] == "https://slsa.dev/provenance/v1"
    assert [one["digest"] for one in told["subject"]] == [{"sha256": WEIGHTS.hex()}]


def test_the_predicate_has_what_slsa_requires():
    predicate = statement()["predicate"]
    build, details = predicate["buildDefinition"], predicate["runDetails"]

    assert re.fullmatch(r"urn:[a-z:0-9-]+", build["buildType"])
    assert build["externalParameters"]["spec"]
    assert details["builder"]["id"].startswith("urn:assay:deployment:")
    for one in [*build["resolvedDependencies"], *details["byproducts"]]:
        assert one["name"]
        assert all(re.fullmatch(r"[0-9a-f]+", value) for value in one["digest"].values())


def test_dependencies_are_the_spec_the_manifest_and_every_shard():
    run = finished()
    names = {one["name"] for one in statement()["predicate"]["buildDefinition"]["resolvedDependencies"]}

    assert names == {
        "spec.cbor",
        "data/manifest.json",
        *(f"shards/{shard.hex()}.bin" for shard in run.inputs.manifest.shards),
    }


def test_byproducts_are_the_entry_the_settlements_and_the_record():
    names = [one["name"] for one in statement()["predicate"]["runDetails"]["byproducts"]]

    assert names == [
        "registry/entry.json",
        "settlements/epoch-000.json",
        "settlements/epoch-001.json",
        "registry/record.json",
    ]


def test_the_envelope_verifies_with_cryptography_alone():
    """As a stranger would, from the text of DSSE: no code of ours."""
    told = parsed("provenance.json")
    kind, payload = told["payloadType"].encode(), base64.b64decode(told["payload"])
    message = b" ".join([b"DSSEv1", str(len(kind)).encode(), kind, str(len(payload)).encode(), payload])
    key = load_pem_public_key(FILES["release.pub"])
    assert isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    signature = base64.b64decode(told["signatures"][0]["sig"])

    key.verify(signature, message, ec.ECDSA(SHA256()))
    with pytest.raises(InvalidSignature):
        key.verify(signature, message[:-1] + b" ", ec.ECDSA(SHA256()))


def test_whoever_only_checks_reads_the_signature_and_cannot_be_given_another_statement():
    release = signed_already(FILES["release.pub"], signature_in(FILES["provenance.json"]))

    assert files_of(replace(finished(), release=release)) == FILES
    with pytest.raises(BadReleaseError, match="not this key's"):
        files_of(replace(finished(), release=release, declarations=Declarations(version="another")))


@pytest.mark.parametrize(
    "text", [b"", b"{}", b'{"signatures": []}', b'{"signatures": [{"sig": "?"}]}', b"[1]"]
)
def test_what_is_no_envelope_is_refused_in_words(text: bytes):
    with pytest.raises(BadReleaseError, match="not an envelope"):
        signature_in(text)


def test_a_release_key_is_p256_and_nothing_else():
    other = release_of(ec.derive_private_key(7, ec.SECP256K1()))

    with pytest.raises(BadReleaseError, match="another kind of key"):
        check_signature(other.public_key, b"message", other.sign(b"message"))
    with pytest.raises(BadReleaseError, match="not a public key"):
        check_signature(b"-----BEGIN", b"message", b"")


# ---- Croissant, CycloneDX


def test_croissant_has_its_required_fields_but_those_that_nobody_knows():
    told = parsed("croissant.json")

    assert told["@type"] == "sc:Dataset"
    assert told["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    assert {"@context", "name", "description", "license", "distribution", "recordSet"} <= set(told)
    assert not {"url", "creator", "datePublished"} & set(told)
    manifest, shards = told["distribution"]
    assert {"@id", "name", "contentUrl", "encodingFormat", "sha256"} <= set(manifest)
    assert manifest["sha256"] == finished().spec.data.manifest.hex()
    assert {"@id", "name", "encodingFormat", "includes"} <= set(shards)
    (sources,) = told["recordSet"]
    assert {key for row in sources["data"] for key in row} == {field["@id"] for field in sources["field"]}


def test_the_bom_has_what_cyclonedx_requires_and_every_reference_leads_somewhere():
    told = parsed("ml-bom.cdx.json")
    component = told["metadata"]["component"]
    refs = {component["bom-ref"], *(one["bom-ref"] for one in told["components"])}
    uuid = r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"

    assert (told["bomFormat"], told["specVersion"], told["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(uuid, told["serialNumber"])
    assert (component["type"], component["name"]) == ("machine-learning-model", "tiny")
    assert component["hashes"] == [{"alg": "SHA-256", "content": WEIGHTS.hex()}]
    assert component["licenses"] == [{"license": {"name": "MIT"}}]
    assert all(one["type"] == "data" and one["name"] for one in told["components"])
    assert {one["ref"] for one in component["modelCard"]["modelParameters"]["datasets"]} <= refs
    assert {one["ref"] for one in told["dependencies"]} == refs
    assert {ref for one in told["dependencies"] for ref in one.get("dependsOn", [])} <= refs


# ---- the Act


def test_the_summary_has_the_templates_three_parts_and_leaves_to_the_provider_what_a_run_cannot_know():
    text = FILES["training-content-summary.md"].decode()

    parts = ["## 1. General information", "## 2. List of data sources", "## 3. Data processing aspects"]
    assert [text.index(part) for part in parts] == sorted(text.index(part) for part in parts)
    for unknown in (
        "1.1 Authorised representative",
        "1.2 Date of placement on the Union market",
        "1.3 Latest date of data acquisition",
        "2.3 Data crawled and scraped from online sources",
        "2.4 User data",
        "3.2 Removal of illegal content",
    ):
        assert f"| {unknown} | {TO_BE_FILLED} |" in text
    assert "| 1.1 Provider name and contact | Acme |" in text
    assert "| made up | none | 1 | 1 | 40,000 | 40,000 |" in text


@pytest.mark.parametrize(
    ("tokens", "words"),
    [(10**9 - 1, "less than"), (10**9, "1 billion to"), (10**13 - 1, "1 billion to"), (10**13, "more than")],
)
def test_sizes_are_told_in_the_templates_ranges(tokens: int, words: str):
    assert size_range(tokens).startswith(words)


def test_the_documentation_follows_annex_xi_and_says_what_was_estimated():
    text = FILES["technical-documentation.md"].decode()

    for item in ("(a) Intended tasks", "(b) Acceptable use", "(c) Date of release", "(d) Architecture"):
        assert item in text
    assert "### Compute (2d)" in text and "### Energy (2e)" in text
    assert "Estimate, not measured" in text
    assert "| Nodes metered | 0 of 3 |" in text
    assert "| (f) Licence | MIT |" in text


def test_a_source_cannot_write_markup_into_a_text():
    run = finished()
    evil = "x | y |\n## 4. Signed <b>by</b> [me](http://a) \u202e"
    manifest = run.inputs.manifest
    source = Source(source=evil, licence="l", files=1, documents=1, bytes=1, tokens=1)
    manifest = replace(manifest, sources=(source,))
    data = replace(run.spec.data, manifest=manifest.digest())
    run = replace(run, spec=replace(run.spec, data=data), inputs=replace(run.inputs, manifest=manifest))

    text = files_of(run)["training-content-summary.md"].decode()

    assert "\n## 4." not in text and "<b>" not in text and "\u202e" not in text and "[me]" not in text
    assert cell("a|b") == "a\\|b"
