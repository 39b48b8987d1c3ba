"""Labels: what is known about the participants of a local network, beside what its chain shows.

Room: bundle (edge: one file). Whoever ran the network knows which nodes were made to cheat, and from which
round on; no chain can. A label counts in a report and is never evidence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.protocol.encoding.json_text import parse_json, plain, read_plain
from assay.protocol.types import PeerId

LABELS = "labels.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What one node did. behaviour: for people, "honest" or the name of a cheat or fault.

    is_cheat: it must be slashed. false_from: the first round whose audit must not pass; None: none.
    """

    behaviour: str
    is_cheat: bool
    false_from: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Labels of nodes, and behaviours of verifiers; empty where nothing is known."""

    nodes: Mapping[PeerId, Label]
    verifiers: Mapping[PeerId, str]


def write_labels(root: Path, labels: Labels) -> None:
    """Write the labels into a run's folder."""
    (root / LABELS).write_text(json.dumps(plain(labels), indent=1) + "\n")


def read_labels(root: Path) -> Labels:
    """The labels in a run's folder; none if the file is missing or damaged."""
    try:
        return read_plain(Labels, parse_json((root / LABELS).read_bytes()))
    except (OSError, ValueError):
        return Labels(nodes={}, verifiers={})
