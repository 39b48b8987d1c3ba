"""Attesters: sources of hardware attestation evidence for a node.

Room: node (edge: a key file, or a program of the operator's). Making evidence on real hardware is
vendor-specific; an external program does it, one call for each piece of evidence: the binding goes in as JSON
on its standard input, the evidence comes out as JSON (attestation/files.py) on its standard output.

    {"context": HEX, "gpu_nonce": HEX, "nonce": HEX, "report_data": HEX}

`report_data` is complete for a machine without GPUs; with some, the guest queries them with `gpu_nonce` first
and computes its own as in attestation/binding.py.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nacl.signing import SigningKey

from assay.attestation.binding import Binding, context, gpu_nonce, report_data
from assay.attestation.devices.software import SoftwareAttester
from assay.attestation.evidence import DeviceFamily, Evidence
from assay.attestation.files import FILE_BYTES_MAX, read_evidence
from assay.protocol.errors import ConfigError, MalformedMessage, Unavailable
from assay.protocol.types import Digest

COMMAND_S = 60.0
ERROR_BYTES_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAttester:
    """An external program that makes evidence. It runs without a shell and gets nothing but the binding."""

    command: tuple[str, ...]
    family: DeviceFamily

    def evidence(self, binding: Binding) -> Evidence:
        """Fresh evidence over `binding`.

        Raises:
            Unavailable: the program failed, took too long or did not answer with evidence.
        """
        request = {
            "context": context(binding).hex(),
            "gpu_nonce": gpu_nonce(binding).hex(),
            "nonce": binding.nonce.hex(),
            "report_data": report_data(binding, ()).hex(),
        }
        name = self.command[0]
        try:
            done = subprocess.run(
                self.command, input=json.dumps(request).encode(), capture_output=True, timeout=COMMAND_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"attester {name}: {error}") from None
        if done.returncode:
            error_text = done.stderr[-ERROR_BYTES_SHOWN:].decode(errors="replace").strip()
            raise Unavailable(f"attester {name}: exit status {done.returncode}, {error_text!r}")
        try:
            found = read_evidence(done.stdout[: FILE_BYTES_MAX + 1])
        except MalformedMessage as error:
            raise Unavailable(f"attester {name}: {error}") from None
        if found.main.family is not self.family:
            raise Unavailable(f"attester {name}: {found.main.family.label}, expected {self.family.label}")
        return found


def software_attester(path: Path, measurement: Digest) -> SoftwareAttester:
    """An attester for tests, with a software key and a configured measurement.

    Args:
        path: Its key: 64 hexadecimal digits.
        measurement: The guest measurement it attests.

    Raises:
        ConfigError: no such key.
    """
    try:
        seed = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise ConfigError(f"attester key {path}: {error}") from None
    if len(seed) != 32:
        raise ConfigError(f"attester key {path}: {len(seed)} bytes, expected 32 in hexadecimal")
    return SoftwareAttester(key=SigningKey(seed), measurement=measurement)


def command_attester(arguments: Sequence[str]) -> CommandAttester:
    """The attester that `["tdx", "/usr/local/bin/quote", ...]` names: the family, then the program.

    Raises:
        ConfigError: no family, or no program.
    """
    family = next((one for one in DeviceFamily if arguments and one.label == arguments[0]), None)
    if family is None or family in (DeviceFamily.SOFTWARE, DeviceFamily.NVIDIA_CC) or len(arguments) < 2:
        raise ConfigError(
            f"attester {list(arguments)}: expected a processor's family (tdx, sgx, sev-snp) and a program"
        )
    return CommandAttester(command=tuple(arguments[1:]), family=family)
