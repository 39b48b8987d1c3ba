"""Funding: what the verifiers' latest reports on a run's escrow add up to.

Room: protocol (pure). Each verifier reads the escrow at its chain's finalised block and signs a
`FundingReport` when its reading changes; manifests carry the reports (docs/protocol.md section 4a).

With n verifiers, of which f may lie, and quorum = n - f:
- `funded_epochs` takes the quorum-th largest figure. A quorum holds an honest verifier, so liars cannot fund
  an epoch that no honest verifier found funded; n - f honest ones are a quorum, so liars cannot hold one up.
- `closing` takes more than f reports: one of them is honest, and n - f > f honest ones suffice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assay.protocol.agreement.quorum import faults_tolerated, quorum
from assay.protocol.messages import Closing, FundingReport
from assay.protocol.types import PeerId


def funded_epochs(reports: Mapping[PeerId, FundingReport], verifiers: Sequence[PeerId]) -> int:
    """The number of epochs, from the first on, that a quorum of `verifiers` found paid for.

    Args:
        reports: The latest of each verifier; one that has not reported found none.
        verifiers: All of the run.
    """
    figures = sorted((reports[peer].epochs if peer in reports else 0 for peer in verifiers), reverse=True)
    return figures[quorum(len(verifiers)) - 1]


def closing(reports: Mapping[PeerId, FundingReport], verifiers: Sequence[PeerId]) -> Closing:
    """Whether more than f of `verifiers` found the escrow closing, and if so by what.

    Closing is by the buyer if more than f say so. While few have reported, this may still say that it is by
    the deadline; that it is closing does not change.
    """
    found = [reports[peer].closing for peer in verifiers if peer in reports]
    f = faults_tolerated(len(verifiers))
    if sum(one is not Closing.NO for one in found) <= f:
        return Closing.NO
    return Closing.BY_BUYER if found.count(Closing.BY_BUYER) > f else Closing.BY_DEADLINE


def is_news(known: FundingReport | None, report: FundingReport) -> bool:
    """Whether a verifier's report says something else than its last one, of a later block.

    The order of blocks is the order of reports: what was read earlier cannot replace what was read later.
    """
    if known is None:
        return bool(report.epochs) or report.closing is not Closing.NO
    is_other = (report.epochs, report.closing) != (known.epochs, known.closing)
    return is_other and report.block > known.block
