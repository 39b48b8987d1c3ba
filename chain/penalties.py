"""Penalties: whether the slash court of a deployment can carry out what a run's money rules threaten.

Room: chain (pure). The court refuses every slash order above its cap, for ever: a run that asks for more
would confirm faults and take nothing.
"""

from __future__ import annotations

from assay.chain.text.times import span_text
from assay.protocol.errors import ConfigError
from assay.protocol.params import PPM, AuditSpec, MoneySpec

CASE_PPM_MAX = 300_000  # what both parameter sets in `deployment.deploy` allow one slash order to take


def check_absence(audit: AuditSpec, evidence_window_s: int) -> None:
    """Do nothing if a court still takes a case when an overdue opening counts as withheld.

    With known-answer tasks, so much later again, for which a node may show its list after the run.

    Args:
        audit: The run's rules.
        evidence_window_s: `SlashCourt.evidenceWindow` of its deployment.

    Raises:
        ConfigError: with what the run wants and what there is.
    """
    late_s = audit.absence_s * (2 if audit.known_answer_count else 1)
    if late_s > evidence_window_s:
        raise ConfigError(
            f"[verify] absence_s lets an opening be overdue for {span_text(audit.absence_s)}"
            + (", and a list of known-answer tasks so much longer," if audit.known_answer_count else ",")
            + " the slash court of this deployment takes cases for "
            f"{span_text(evidence_window_s)} after a run"
        )


def check_penalties(money: MoneySpec, case_ppm_max: int) -> None:
    """Do nothing if a court with this cap can take every penalty of a run.

    Args:
        money: The run's rules.
        case_ppm_max: `SlashCourt.casePpmMax` of its deployment, in millionths of a lot.

    Raises:
        ConfigError: each penalty above the cap, with both numbers.
    """
    shares = {
        "slash": money.slash_ppm, "withheld": money.withheld_ppm, "verifier_slash": money.verifier_slash_ppm,
    }  # fmt: skip
    above = [
        f"[budget] {name} takes {ppm / PPM:g} of a lot, the slash court of this deployment at most "
        f"{case_ppm_max / PPM:g}: every slash order would be refused"
        for name, ppm in shares.items()
        if ppm > case_ppm_max
    ]
    if above:
        raise ConfigError("\n".join(above))
