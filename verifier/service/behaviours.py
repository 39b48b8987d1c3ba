"""Behaviours: ways in which a test auditor cheats, to show that the defences work.

Room: verifier (pure). A local network selects them by name (`--behave v2=pass-all`); an honest operator's
configuration has no such key.
"""

from __future__ import annotations

from assay.protocol.errors import ConfigError

CHEATS = {
    "pass-all": "says MATCH of every step and recomputes none",
    "accuse-all": "says MISMATCH of every step and recomputes none",
    "never-open": "seals every verdict and opens none",
}
SLASHED = ("pass-all", "accuse-all")  # auditors whose verdicts a committee proves false
NAMES = ("honest", *CHEATS)


def parse_behaviour(text: str) -> str:
    """A verifier's behaviour by name.

    Raises:
        ConfigError: no such behaviour.
    """
    if text not in NAMES:
        raise ConfigError(f"behaviour {text!r} is unknown; expected one of {', '.join(NAMES)}")
    return text
