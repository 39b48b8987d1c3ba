"""Attester: the interface of a device that can vouch for a node (RFC 9334 calls it the attester).

Room: attestation (pure). `devices.software` is one; `node.attesters` runs a command for the others.
"""

from __future__ import annotations

from typing import Protocol

from assay.attestation.binding import Binding
from assay.attestation.evidence import DeviceFamily, Evidence


class Attester(Protocol):
    """A device that signs evidence about the node it runs in."""

    @property
    def family(self) -> DeviceFamily:
        """Kind of device, which says how its evidence is appraised."""

    def evidence(self, binding: Binding) -> Evidence:
        """Fresh evidence over `binding`.

        Raises:
            Unavailable: the device did not answer.
        """
