"""Croissant: JSON-LD description of the training data for data-set tools.

Room: bundle (pure). The run knows no address, author or date of the data set: `url`, `creator` and
`datePublished` are left out, for the provider to add, and not made up. Shards are named by hash trees; the
manifest that names them all is the file with a SHA-256.

Reference:
    MLCommons, Croissant Format Specification 1.0 (mlcommons.org/croissant/1.0).
"""

from __future__ import annotations

from typing import Any

from assay.bundle.registry.document import Entry, ListedData
from assay.training.data.shards import CONVERSATIONS, PREFERENCES, TASKS

CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
COLUMNS = {
    "source": "sc:Text",
    "licence": "sc:Text",
    "files": "sc:Integer",
    "documents": "sc:Integer",
    "bytes": "sc:Integer",
    "tokens": "sc:Integer",
}


def croissant(entry: Entry) -> dict[str, Any]:
    """The Croissant description of a registry entry's data set."""
    data, name = entry.data, entry.model.name
    licences = sorted({source.licence for source in data.sources})
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": f"{name}-training-data",
        "description": (
            f"Tokens that the model {name} was trained on, and those held out: {data.tokens} in all, of "
            f"which {data.held_out_tokens}, spread over all sources, were never trained on. "
            f"Merkle root over the shards: {data.merkle_root}. Run {entry.run.id}."
        ),
        "license": licences,
        "version": "1.0.0",
        "isLiveDataset": False,
        "distribution": [*_files(data), _shards(data)],
        "recordSet": [_sources(data)],
    }


def _files(data: ListedData) -> list[dict[str, Any]]:
    named = [("manifest.json", data.manifest)]
    if data.tokenizer is not None:
        named.append(("tokenizer.json", data.tokenizer))
    return [
        {
            "@type": "cr:FileObject",
            "@id": name,
            "name": name,
            "contentUrl": f"data/{name}",
            "encodingFormat": "application/json",
            "sha256": digest.removeprefix("sha256:"),
        }
        for name, digest in named
    ]


def _shards(data: ListedData) -> dict[str, Any]:
    is_masked = any(source.kind in (CONVERSATIONS, PREFERENCES, TASKS) for source in data.sources)
    return {
        "@type": "cr:FileSet",
        "@id": "shards",
        "name": "shards",
        "description": (
            f"{data.shards} files of unsigned little-endian integers, {data.token_bytes} bytes each"
            + ("; the top bit is set where a token is not trained on" if is_masked else "")
        ),
        "encodingFormat": "application/octet-stream",
        "includes": "shards/*.bin",
    }


def _sources(data: ListedData) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": "sources",
        "name": "sources",
        "description": "Where the text is from, before it became tokens",
        "field": [
            {"@type": "cr:Field", "@id": f"sources/{name}", "name": name, "dataType": kind}
            for name, kind in COLUMNS.items()
        ],
        "data": [{f"sources/{name}": getattr(source, name) for name in COLUMNS} for source in data.sources],
    }
