"""Evidence: the messages of attestation: a node's device reports, and the vendors' collateral.

Room: attestation (pure). Terms are those of RFC 9334 (RATS): a node is the
*attester*, `appraise` the *verifier*, the draw of audits the *relying party*;
chip vendors *endorse*; the policy's author provides the *reference values*.
All of it is untrusted: each field has its bound.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, ClassVar

from assay.protocol.encoding.codec import Max

REPORT_BYTES_MAX = 32 << 10  # an Intel quote with its certificates is 5 KiB, a GPU report 4 KiB
CERTIFICATE_BYTES_MAX = 4 << 10
CERTIFICATES_MAX = 8
GPUS_MAX = 16
INTEL_COLLATERAL_BYTES_MAX = 256 << 10  # Intel's is 14 to 19 KiB
CRL_BYTES_MAX = 256 << 10
CRLS_MAX = 8


class DeviceFamily(enum.IntEnum):
    """Vendor and kind of an attesting device."""

    TDX = 1
    SGX = 2
    SEV_SNP = 3
    NVIDIA_CC = 4
    SOFTWARE = 5  # an ordinary key, for tests; accepted only if a policy names it

    @property
    def label(self) -> str:
        """Name in files, such as `sev-snp`."""
        return self.name.lower().replace("_", "-")


Certificate = Annotated[bytes, Max(CERTIFICATE_BYTES_MAX)]  # DER


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One signed report of one device, byte for byte as the device returned it."""

    TAG: ClassVar[bytes] = b"assay/attest-report/1"
    family: DeviceFamily
    body: Annotated[bytes, Max(REPORT_BYTES_MAX)]
    certificates: Annotated[tuple[Certificate, ...], Max(CERTIFICATES_MAX)]  # device first; none for Intel


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One node's evidence: its processor's report and those of the GPUs that its guest has bound to it."""

    TAG: ClassVar[bytes] = b"assay/attest-evidence/1"
    main: Report
    gpus: Annotated[tuple[Report, ...], Max(GPUS_MAX)]  # NVIDIA_CC only


@dataclass(frozen=True, slots=True, kw_only=True)
class Collateral:
    """Vendors' published data about their devices, as the verifier's own fetcher got them."""

    TAG: ClassVar[bytes] = b"assay/attest-collateral/1"
    fetched_at_s: int  # Unix time
    intel: Annotated[bytes, Max(INTEL_COLLATERAL_BYTES_MAX)]  # JSON of dcap-qvl's QuoteCollateralV3; or empty
    certificates: Annotated[tuple[Certificate, ...], Max(CERTIFICATES_MAX)]  # issuers and roots, in any order
    crls: Annotated[tuple[Annotated[bytes, Max(CRL_BYTES_MAX)], ...], Max(CRLS_MAX)]  # DER
