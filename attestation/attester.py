"""Attester: interface of a device that signs evidence about the node it runs in (RFC 9334).

Room: attestation (pure). `devices.software` implements it; `node.attesters` runs a command for others.
"""

from __future__ import annotations

from typing import Protocol

from assay.attestation.binding import Binding
from assay.attestation.evidence import DeviceFamily, Evidence


class Attester(Protocol):
    """A device that signs evidence about the node it runs in."""

    @property
    def family(self) -> DeviceFamily:
        """Device family, which determines how its evidence is appraised."""

    def evidence(self, binding: Binding) -> Evidence:
        """Fresh evidence over `binding`.

        Raises:
            Unavailable: the device did not answer.
        """
