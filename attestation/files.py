"""Files: reads and writes evidence and collateral as JSON, for tools outside Assay.

Room: attestation (pure). Bytes are base64; the certificates are DER, the device's
first. Unknown keys and non-canonical base64 are refused.

    evidence    {"family": "sev-snp", "report": "...", "certificates": ["..."],
                 "gpus": [{"report": "...", "certificates": ["..."]}]}
    collateral  {"fetched_at": "2026-11-20T00:00:00Z", "intel": {...},
                 "certificates": ["..."], "crls": ["..."]}

`intel` is Intel's collateral in dcap-qvl's JSON (QuoteCollateralV3).
"""

from __future__ import annotations

import base64
import json
from datetime import datetime, timezone
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from assay.attestation.evidence import Collateral, DeviceFamily, Evidence, Report
from assay.protocol.encoding.codec import encode
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import MalformedMessage

FILE_BYTES_MAX = 4 << 20  # eight lists of 256 KiB, in base64, and the rest
MOMENT = "%Y-%m-%dT%H:%M:%SZ"


def _base64(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError("expected text in base64")
    raw = base64.b64decode(text, validate=True)
    if base64.b64encode(raw).decode() != text:
        raise ValueError("expected canonical base64, without line breaks")
    return raw


def _family(name: object) -> object:
    return next((family for family in DeviceFamily if family.label == name), name)


_Bytes = Annotated[bytes, BeforeValidator(_base64)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _GpuTable(_Table):
    report: _Bytes
    certificates: list[_Bytes] = []


class _EvidenceTable(_GpuTable):
    family: Annotated[DeviceFamily, BeforeValidator(_family)]
    gpus: list[_GpuTable] = []


class _CollateralTable(_Table):
    fetched_at: str
    intel: dict[str, str] | None = None
    certificates: list[_Bytes] = []
    crls: list[_Bytes] = []


_T = TypeVar("_T", bound=_Table)


def read_evidence(text: bytes) -> Evidence:
    """The evidence in a JSON text.

    Raises:
        MalformedMessage: malformed, or over a bound.
    """
    table = _read(_EvidenceTable, text, "evidence")
    return _bounded(
        Evidence(
            main=Report(
                family=table.family, body=bytes(table.report), certificates=tuple(table.certificates)
            ),
            gpus=tuple(
                Report(family=DeviceFamily.NVIDIA_CC, body=gpu.report, certificates=tuple(gpu.certificates))
                for gpu in table.gpus
            ),
        )
    )


def read_collateral(text: bytes) -> Collateral:
    """The collateral in a JSON text.

    Raises:
        MalformedMessage: malformed, or over a bound.
    """
    table = _read(_CollateralTable, text, "collateral")
    intel = b"" if table.intel is None else json.dumps(table.intel).encode()
    try:
        fetched_at_s = read_time(table.fetched_at)
    except ValueError as cause:
        raise MalformedMessage(f"collateral: fetched_at: {cause}") from None
    return _bounded(
        Collateral(
            fetched_at_s=fetched_at_s,
            intel=intel,
            certificates=tuple(table.certificates),
            crls=tuple(table.crls),
        )
    )


def read_time(text: str) -> int:
    """Unix time of a text such as `2026-11-20T00:00:00Z`.

    Raises:
        ValueError: it has another form, or lies before 1970.
    """
    found = datetime.strptime(text, MOMENT).replace(tzinfo=timezone.utc)
    if found.strftime(MOMENT) != text or found.timestamp() < 0:
        raise ValueError(f"{text!r}, expected the form 2026-11-20T00:00:00Z")
    return int(found.timestamp())


def _read(kind: type[_T], text: bytes, what: str) -> _T:
    if len(text) > FILE_BYTES_MAX:
        raise MalformedMessage(f"{what}: {len(text)} bytes, at most {FILE_BYTES_MAX} expected")
    try:
        return kind.model_validate(parse_json(text))
    except ValidationError as cause:
        first = cause.errors()[0]
        place = ".".join(map(str, first["loc"])) or "text"
        raise MalformedMessage(f"{what}: {place}: {first['msg']}") from None
    except (ValueError, RecursionError) as cause:
        raise MalformedMessage(f"{what}: is not JSON ({str(cause)[:100]})") from None


_Message = TypeVar("_Message", Evidence, Collateral)


def _bounded(message: _Message) -> _Message:
    try:
        encode(message)
    except ValueError as cause:
        raise MalformedMessage(str(cause)) from None
    return message
