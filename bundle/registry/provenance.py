"""Provenance: an in-toto Statement with SLSA's predicate of how the weights were made, signed as DSSE.

Room: bundle (pure). in-toto tools read it without knowing Assay; `assay run verify` gives proof instead of
the releaser's statement.

Reference:
    in-toto Attestation Framework, Statement v1; SLSA provenance v1.0 (slsa.dev/provenance/v1);
    DSSE v1, the pre-authentication encoding PAE(type, body).
Digests of ours have names of ours, as in-toto allows: `assaySpec`, `assayBlob`, `assayState`,
`assayPayoutRoot` and `assayModelRecord` are what docs/protocol.md says under "Bytes", "Model" and "Money".
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from assay.bundle.finished import Finished, Release
from assay.bundle.registry.document import Entry, Weights
from assay.bundle.registry.text import spelled
from assay.bundle.release import BadReleaseError
from assay.protocol.encoding.json_text import canonical_json, parse_json

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:assay:build:training-run:1"
SHARDS_MAX = 4096  # listed one by one; more are covered by the manifest, which names every one


def provenance(run: Finished, entry: Entry, entry_digest: bytes) -> dict[str, Any]:
    """The in-toto Statement.

    Args:
        run: The run.
        entry: Its registry entry.
        entry_digest: SHA-256 of the entry's file.
    """
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": one.file, "digest": {"sha256": one.sha256}} for one in _weights(entry)],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "spec": entry.run.spec,
                    "name": entry.model.name,
                    "seed": run.spec.seed,
                    "rounds": run.ending.rounds,
                },
                "internalParameters": {"code_version": entry.run.code_version},
                "resolvedDependencies": _dependencies(run, entry),
            },
            "runDetails": {
                "builder": {"id": f"urn:assay:deployment:{entry.run.deployment.id}"},
                "metadata": {"invocationId": f"urn:assay:run:{entry.run.id}"},
                "byproducts": _byproducts(entry, entry_digest),
            },
        },
    }


def _weights(entry: Entry) -> list[Weights]:
    adapter = entry.model.adapter
    return [entry.model.weights, *([] if adapter is None else [adapter.weights])]


def _dependencies(run: Finished, entry: Entry) -> list[dict[str, Any]]:
    manifest = run.inputs.manifest
    found: list[dict[str, Any]] = [
        {"name": "spec.cbor", "digest": {"assaySpec": entry.run.spec}},
        {"name": "data/manifest.json", "digest": {"sha256": manifest.digest().hex()}},
    ]
    if run.inputs.tokenizer:
        tokenizer = hashlib.sha256(run.inputs.tokenizer).hexdigest()
        found.append({"name": "data/tokenizer.json", "digest": {"sha256": tokenizer}})
    if entry.model.base is not None:
        found.append({"name": "base.npy", "digest": {"assayState": run.spec.model.base.hex()}})
    if len(manifest.shards) <= SHARDS_MAX:
        found += [
            {"name": f"shards/{shard.hex()}.bin", "digest": {"assayBlob": shard.hex()}}
            for shard in manifest.shards
        ]
    return found


def _byproducts(entry: Entry, entry_digest: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "registry/entry.json", "digest": {"sha256": entry_digest.hex()}},
        *(
            {
                "name": f"settlements/epoch-{one.epoch:03d}.json",
                "digest": {"assayPayoutRoot": one.root},
                "annotations": {"result": one.result},
            }
            for one in entry.settlement.epochs
        ),
    ]
    if entry.log is not None:
        found.append(
            {
                "name": "registry/log-checkpoint.txt",
                "digest": {"sha256": entry.log.note.removeprefix("sha256:")},
                "annotations": {"size": entry.log.size, "root": entry.log.root},
            }
        )
    if entry.record is not None:
        record = entry.record.record_id.hex()
        found.append({"name": "registry/record.json", "digest": {"assayModelRecord": record}})
    return found


# ---- the envelope


def envelope(statement: dict[str, Any], release: Release) -> bytes:
    """The statement in a DSSE envelope with one signature."""
    payload = canonical_json(statement)
    signature = release.sign(pae(PAYLOAD_TYPE, payload))
    body = {
        "payloadType": PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": key_id(release.public_key), "sig": base64.b64encode(signature).decode()}],
    }
    return spelled(body)


def signature_in(text: bytes) -> bytes:
    """The one signature of an envelope, unchecked.

    Raises:
        BadReleaseError: this is no envelope with one signature.
    """
    try:
        (one,) = parse_json(text)["signatures"]
        return base64.b64decode(one["sig"], validate=True)
    except (ValueError, KeyError, TypeError) as error:
        raise BadReleaseError(f"not an envelope with one signature ({error})") from None


def pae(kind: str, body: bytes) -> bytes:
    """DSSE's pre-authentication encoding: the signed bytes."""
    return b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(body), body)


def key_id(public_key: bytes) -> str:
    """A hint which key to use; it proves nothing."""
    return hashlib.sha256(public_key).hexdigest()
