"""Schema: `assay schema` prints the JSON Schema of a document that a command prints with `--json`.

Room: cli (pure). A document is `plain` of a dataclass (result.py), so its schema follows from the types of
its fields. Fields may be added to a document, so a schema forbids none; it requires all that it names.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import EnumMeta
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from assay.cli.result import document_name
from assay.protocol.encoding.json_text import plain
from assay.protocol.errors import ConfigError

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# The values whose documents commands print, where they are defined.
DOCUMENTS = (
    "assay.bundle.check.settlement:CheckedEpoch",
    "assay.bundle.fetch:Fetched",
    "assay.bundle.proof:Proved",
    "assay.bundle.replay.step:ReplayReport",
    "assay.bundle.report.run:AuditReport",
    "assay.bundle.report.training:TrainingReport",
    "assay.bundle.replay.spot_check:SpotCheck",
    "assay.bundle.verify:Verified",
    "assay.bundle.merge:Merged",
    "assay.cli.api:MadeToken",
    "assay.cli.api:Tokens",
    "assay.cli.audit.game:Game",
    "assay.cli.audit.odds:Odds",
    "assay.cli.audit.receipt:ProvedRound",
    "assay.cli.audit.receipt:WrittenReceipt",
    "assay.cli.account.key:KeyFacts",
    "assay.cli.account.key:PublicKeys",
    "assay.cli.ledger.earnings:Reasons",
    "assay.cli.ledger.invoice:WrittenInvoice",
    "assay.cli.ledger.lines:AuditedBooks",
    "assay.cli.ledger.lines:Balance",
    "assay.cli.ledger.lines:Entries",
    "assay.cli.ledger.lines:ProvedEntry",
    "assay.cli.ledger.yearly:Yearly",
    "assay.cli.network.commands:NetworkShown",
    "assay.cli.network.directory:RunShown",
    "assay.cli.network.join:Diagnosis",
    "assay.cli.registry:RecordStanding",
    "assay.cli.result:Steps",
    "assay.cli.account.sign:SignedTransaction",
    "assay.cli.watch.picture:Picture",
    "assay.fleet.status:OperatorStatus",
    "assay.ledger.queries.earned:Earned",
    "assay.ledger.queries.faults:Faults",
    "assay.ledger.queries.statement:Statement",
    "assay.observer.ledger_service.rebuild:RebuiltBooks",
    "assay.orders.check:OrderReport",
    "assay.orders.data.tokenise:MadeData",
    "assay.orders.examples:Examples",
    "assay.orders.price.market:MarketQuote",
    "assay.orders.purchase:Escrow",
    "assay.orders.price.quoted:Quoted",
    "assay.participant.directory.listing:ListedRuns",
    "assay.participant.directory.listing:Stakers",
    "assay.participant.market.standing:Standing",
    "assay.participant.wallet.stake:StakeStatus",
    "assay.redteam.table:AttackTable",
    "assay.verifier.calibration.classes:CalibrationReport",
)
_SIMPLE = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    bytes: {"type": "string", "pattern": "^([0-9a-f]{2})*$"},
    NoneType: {"type": "null"},
}


# Types that the modules above name for type checkers alone, since importing them takes long.
_LATE = {
    "Check": "assay.participant.checks:Check",
    "ListedRun": "assay.participant.directory.listing:ListedRun",
    "Sent": "assay.chain.client:Sent",
    "Token": "assay.api.access:Token",
}


def schema(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="As the document's `schema` says it; default: list all."),
    ] = None,
) -> None:
    """Print the JSON Schema of a document that a command prints with --json.

    Example: assay schema assay/stake-status/1
    """
    if name is None:
        for one in sorted(documents()):
            typer.echo(one)
        return
    kinds = documents()
    if name not in kinds:
        raise ConfigError(f"no document {name!r:.60}; `assay schema` lists them")
    typer.echo(json.dumps(schema_of(pkgutil.resolve_name(kinds[name])), indent=2))


def documents() -> dict[str, str]:
    """Where the type of each document is defined, by the document's name."""
    return {document_name(path.rpartition(":")[2]): path for path in DOCUMENTS}


def schema_of(kind: type) -> dict[str, Any]:
    """The JSON Schema of the document of this type's values."""
    inner: dict[str, Any] = {}
    properties = {"schema": {"const": document_name(kind)}, **_properties(kind, inner)}
    return {
        "$schema": DIALECT,
        "title": document_name(kind),
        "description": (kind.__doc__ or "").strip(),
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "$defs": inner,
    }


def _properties(kind: type, inner: dict[str, Any]) -> dict[str, Any]:
    late = {name: pkgutil.resolve_name(path) for name, path in _LATE.items()}
    hints = get_type_hints(kind, localns=late)
    return {field.name: _schema(hints[field.name], inner) for field in fields(kind)}


def _schema(kind: Any, inner: dict[str, Any]) -> dict[str, Any]:
    """The schema of what `plain` makes of a value of this type; dataclasses go into `inner`."""
    kind = getattr(kind, "__supertype__", kind)  # of a NewType
    if kind is Any:
        return {}
    if kind in _SIMPLE:
        return dict(_SIMPLE[kind])
    if isinstance(kind, EnumMeta):
        return {"enum": [plain(one) for one in list[Any](kind)]}
    if is_dataclass(kind):
        name = kind.__name__  # type: ignore[union-attr]
        if name not in inner:
            inner[name] = {}  # it may hold itself
            properties = _properties(kind, inner)  # type: ignore[arg-type]
            inner[name] = {"type": "object", "properties": properties, "required": list(properties)}
        return {"$ref": f"#/$defs/{name}"}
    parts, origin = get_args(kind), get_origin(kind) or kind
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(part, inner) for part in parts]}
    if origin is Annotated:
        return _schema(parts[0], inner)
    if issubclass(origin, PurePath):
        return {"type": "string"}
    if issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(parts[1], inner)}
    if origin is tuple and parts[-1] is not ...:
        return {"type": "array", "prefixItems": [_schema(part, inner) for part in parts], "items": False}
    if issubclass(origin, Sequence | Set):
        return {"type": "array", "items": _schema(parts[0], inner)}
    raise TypeError(f"{kind}: no document holds such a value")
