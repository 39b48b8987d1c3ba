"""Limits: how far an honest execution class may be from the reference class, from a shared calibration file.

Room: verifier (pure; `shipped` and `agreed_limits` read a file). Measurements of an execution class
(`assay audit calibrate`) may tighten a precision's policy, never loosen it: a class that nobody measured, or
measured badly, is judged by the policy. Segments of inner steps have rows of their own, and no policy to fall
back on (segment_limits.py).

    limit = ten times the 99th percentile of honest blocks, between half the policy and the policy

All limits are integers, 10^-9 of a block's own size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.protocol.encoding.json_text import parse_json, plain, read_plain
from assay.protocol.errors import ConfigError
from assay.protocol.params import Precision, RunSpec
from assay.protocol.types import NO_DIGEST, Digest
from assay.verifier.audit.limit import TIGHTEST as TIGHTEST
from assay.verifier.audit.limit import Limit as Limit  # most callers need both
from assay.verifier.audit.limit import check_distances, check_source, within
from assay.verifier.audit.segment_limits import MeasuredSegment, measured_segment, plain_segment

FORMAT = "assay/calibration/3"
LIMITS = "limits.json"  # a run's calibration file, beside its spec
SHIPPED = Path(__file__).with_name("calibration.json")
BYTES_MAX = 1 << 20
ROWS_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredClass:
    """One code path, and the distances of its honest steps from the reference class's.

    path: a name for people. blocks: samples. median, p99, most: of their distances, 10^-9. profile: the
    largest median of one audit, 10^-9.
    """

    dtype: Precision
    path: str
    exec_class: Digest
    blocks: int
    median: int
    p99: int
    most: int
    profile: int

    def __post_init__(self) -> None:
        check_source(self.path, self.exec_class, self.blocks)
        check_distances(self.median, self.p99, self.most, self.profile)

    @property
    def limit(self) -> Limit:
        """The limit that these samples yield, within the policy."""
        return within(POLICIES[self.dtype], self.p99, self.profile)


# docs/results/tolerance.md; the first two of each from measurements before this code was written.
POLICIES: Mapping[Precision, Limit] = {
    Precision.FLOAT32: Limit(t1=20_000, t2=100_000, t3=1_000, t4=1_000),
    Precision.BFLOAT16: Limit(t1=20_000_000, t2=30_000_000, t3=1_000, t4=1_000),
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The rows of a calibration. segments: those for inner steps."""

    classes: tuple[MeasuredClass, ...] = ()
    segments: tuple[MeasuredSegment, ...] = ()

    def of(self, node: Digest, dtype: Precision) -> Limit:
        """The limit for a step of this class judged in the reference class.

        The loosest, where several code paths of this class were measured.
        """
        found = [one.limit for one in self.classes if (one.exec_class, one.dtype) == (node, dtype)]
        return max(found, key=lambda limit: (limit.t1, limit.profile), default=POLICIES[dtype])

    def digest(self) -> Digest:
        """Digest by which auditors check that they use the same limits."""
        return Digest(hashlib.sha256(self.encode()).digest())

    def encode(self) -> bytes:
        """The canonical file of these limits."""
        classes, segments = (
            ",\n".join(json.dumps(row, sort_keys=True) for row in lines)
            for lines in (map(plain, self.classes), map(plain_segment, self.segments))
        )
        text = f'{{"format": "{FORMAT}", "classes": [\n{classes}\n], "segments": [\n{segments}\n]}}\n'
        return text.encode()


def parse_limits(body: bytes) -> Limits:
    """The limits of a calibration file.

    Raises:
        ValueError: not JSON of this form, not canonical, a number out of range, or one path twice.
    """
    if len(body) > BYTES_MAX:
        raise ValueError(f"calibration: {len(body)} bytes, at most {BYTES_MAX} expected")
    whole = parse_json(body)
    names = {"format", "classes", "segments"}
    if not isinstance(whole, dict) or set(whole) != names or whole["format"] != FORMAT:
        raise ValueError(f'calibration: expected an object with "format": "{FORMAT}", "classes", "segments"')
    for name in ("classes", "segments"):
        if not isinstance(whole[name], list) or len(whole[name]) > ROWS_MAX:
            raise ValueError(f"calibration: {name} must be a list of at most {ROWS_MAX}")
    limits = Limits(
        tuple(
            read_plain(MeasuredClass, row, f"calibration: class {i}")
            for i, row in enumerate(whole["classes"])
        ),
        tuple(measured_segment(row, f"calibration: segment {i}") for i, row in enumerate(whole["segments"])),
    )
    classes = [(one.dtype, one.path) for one in limits.classes]
    segments = [(one.dtype, one.regime, one.steps, one.path) for one in limits.segments]
    if len(set(classes)) != len(classes) or len(set(segments)) != len(segments):
        raise ValueError("calibration: one path twice")
    if limits.encode() != body:
        raise ValueError("calibration: not in its canonical form")
    return limits


def shipped() -> Limits:
    """The calibration that comes with this build (docs/results/tolerance.md)."""
    return parse_limits(SHIPPED.read_bytes())


def agreed_limits(spec: RunSpec, path: Path | None = None) -> Limits | None:
    """The limits a run uses for other execution classes; None if its spec names no calibration.

    Args:
        spec: The run.
        path: The calibration file, if it is not the one that comes with this build.

    Raises:
        ConfigError: the file cannot be read, or is not the one that the spec names.
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
