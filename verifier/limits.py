"""Limits: how far two honest machines may be apart, from a calibration file that all auditors share.

Room: verifier (pure; `shipped` and `agreed_limits` read a file). What is measured between two execution
classes (`assay audit calibrate`) may tighten a precision's policy, never loosen it: a pair that
nobody measured, or measured badly, is judged by the policy.

    limit = ten times the 99th percentile of honest blocks, between half the policy and the policy

All limits are whole numbers, 10^-9 of a block's own size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from protocol.errors import ConfigError
from protocol.json_text import parse_json
from protocol.params import Precision, RunSpec
from protocol.types import NO_DIGEST, Digest

FORMAT = "assay/calibration/1"
LIMITS = "limits.json"  # the file of a run, beside its spec
SHIPPED = Path(__file__).with_name("calibration.json")
BYTES_MAX = 1 << 20
PAIRS_MAX = 4096
TIMES_P99 = 10  # a limit over what honest blocks do
TIGHTEST = 2  # by which a calibration may divide a policy: pairs without noise here have some elsewhere
_COUNT_MAX = 2**53
_NAME_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What one pair of classes is judged by, in 10^-9.

    t1: median distance of the implied gradient. t2: its 95th percentile. t3: by how much of the block's
    largest coefficient one that was left out may exceed one that was sent. t4: the same of a value that
    was sent. profile: the median distance that honest audits keep to; 0 where nobody measured it.
    """

    t1: int
    t2: int
    t3: int
    t4: int
    profile: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One measured pair of code paths: whose step, who judges, what was seen.

    node, auditor: names for people. node_class, auditor_class: their execution classes.
    blocks: samples. median, p99, most: of their distances, 10^-9. profile: the largest median of
    one audit, 10^-9.
    """

    dtype: Precision
    node: str
    auditor: str
    node_class: Digest
    auditor_class: Digest
    blocks: int
    median: int
    p99: int
    most: int
    profile: int

    @property
    def limit(self) -> Limit:
        """What these samples allow, within the policy."""
        policy = POLICIES[self.dtype]
        t1 = min(max(TIMES_P99 * self.p99, policy.t1 // TIGHTEST), policy.t1)
        return Limit(t1=t1, t2=t1 * policy.t2 // policy.t1, t3=policy.t3, t4=policy.t4, profile=self.profile)


# docs/results/tolerance.md; the first two of each from measurements before this code was written.
POLICIES: Mapping[Precision, Limit] = {
    Precision.FLOAT32: Limit(t1=20_000, t2=100_000, t3=1_000, t4=1_000),
    Precision.BFLOAT16: Limit(t1=20_000_000, t2=30_000_000, t3=1_000, t4=1_000),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The pairs of a calibration, and the policies behind them."""

    pairs: tuple[Pair, ...] = ()

    def between(self, node: Digest, auditor: Digest, dtype: Precision) -> Limit:
        """What a step of one class is judged by in another.

        Where several measured pairs have these classes, the loosest of them: it holds for all.
        """
        found = [
            pair.limit
            for pair in self.pairs
            if (pair.node_class, pair.auditor_class, pair.dtype) == (node, auditor, dtype)
        ]
        return max(found, key=lambda limit: (limit.t1, limit.profile), default=POLICIES[dtype])

    def digest(self) -> Digest:
        """What two auditors compare to know that they judge alike."""
        return Digest(hashlib.sha256(self.encode()).digest())

    def encode(self) -> bytes:
        """The one file for these limits."""
        rows = [json.dumps(_plain(pair), sort_keys=True) for pair in self.pairs]
        body = ",\n".join(rows)
        return f'{{"format": "{FORMAT}", "pairs": [\n{body}\n]}}\n'.encode()


def parse_limits(body: bytes) -> Limits:
    """The limits of a calibration file.

    Raises:
        ValueError: not JSON of this form, not canonical, a number that cannot be, or one pair twice.
    """
    if len(body) > BYTES_MAX:
        raise ValueError(f"calibration: {len(body)} bytes, at most {BYTES_MAX} expected")
    whole = parse_json(body)
    if not isinstance(whole, dict) or set(whole) != {"format", "pairs"} or whole["format"] != FORMAT:
        raise ValueError(f'calibration: expected an object with "format": "{FORMAT}" and "pairs"')
    rows = whole["pairs"]
    if not isinstance(rows, list) or len(rows) > PAIRS_MAX:
        raise ValueError(f"calibration: pairs must be a list of at most {PAIRS_MAX}")
    limits = Limits(tuple(_pair(row, f"calibration: pair {i}") for i, row in enumerate(rows)))
    names = [(pair.dtype, pair.node, pair.auditor) for pair in limits.pairs]
    if len(set(names)) != len(names):
        raise ValueError("calibration: one pair twice")
    if limits.encode() != body:
        raise ValueError("calibration: not in its canonical form")
    return limits


def shipped() -> Limits:
    """The calibration that comes with this build (docs/results/tolerance.md)."""
    return parse_limits(SHIPPED.read_bytes())


def agreed_limits(spec: RunSpec, path: Path | None = None) -> Limits | None:
    """What a run judges other execution classes by; None where its spec names no calibration.

    Args:
        spec: The run.
        path: The calibration file, where it is not the one that comes with this build.

    Raises:
        ConfigError: the file cannot be read, or is another than the spec names.
    """
    named = spec.audit.limits
    if named == NO_DIGEST:
        return None
    try:
        found = shipped() if path is None else parse_limits(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"limits {path or SHIPPED}: {error}") from None
    if found.digest() != named:
        have = found.digest().hex()[:16]
        raise ConfigError(f"limits {path or SHIPPED}: digest {have}, the run's spec names {named.hex()[:16]}")
    return found


def _plain(pair: Pair) -> dict[str, Any]:
    return asdict(pair) | {
        "dtype": pair.dtype.name.lower(),
        "node_class": pair.node_class.hex(),
        "auditor_class": pair.auditor_class.hex(),
    }


def _pair(row: Any, where: str) -> Pair:
    names = {field.name for field in fields(Pair)}
    if not isinstance(row, dict) or set(row) != names:
        raise ValueError(f"{where}: expected exactly the fields {', '.join(sorted(names))}")
    dtypes = {dtype.name.lower(): dtype for dtype in POLICIES}
    if not isinstance(row["dtype"], str) or row["dtype"] not in dtypes:
        raise ValueError(f"{where}: dtype must be one of {', '.join(dtypes)}")
    counts = {name: _count(row[name], f"{where}: {name}") for name in _COUNTS}
    if counts["blocks"] < 1 or not counts["median"] <= counts["p99"] <= counts["most"]:
        raise ValueError(f"{where}: expected samples with median <= p99 <= most")
    if counts["profile"] > counts["most"]:
        raise ValueError(f"{where}: an audit's median above the largest distance")
    return Pair(
        dtype=dtypes[row["dtype"]],
        node=_name(row["node"], where),
        auditor=_name(row["auditor"], where),
        node_class=_digest(row["node_class"], where),
        auditor_class=_digest(row["auditor_class"], where),
        **counts,
    )


_COUNTS = ("blocks", "median", "p99", "most", "profile")


def _count(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value <= _COUNT_MAX:
        raise ValueError(f"{where} must be a whole number from 0 to 2^53")
    return value


def _name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _NAME_MAX or not value.isascii():
        raise ValueError(f"{where}: names must be 1 to {_NAME_MAX} ASCII characters")
    if not value.isprintable():
        raise ValueError(f"{where}: names must be printable")
    return value


def _digest(value: Any, where: str) -> Digest:
    try:
        found = bytes.fromhex(value) if isinstance(value, str) and len(value) == 64 else b""
    except ValueError:
        found = b""
    if len(found) != 32:
        raise ValueError(f"{where}: a class must be 64 hexadecimal digits")
    return Digest(found)
