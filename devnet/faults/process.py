"""Process: a node or verifier of a local network that misbehaves.

Room: devnet (edge). The supervisor starts it in place of `assay node run` or `assay verifier run`, on the
same configuration file.
"""

from __future__ import annotations

from assay.devnet.faults.behaviours import VERIFIER_CHEATS, parse_behaviour
from assay.participant.config import Config, open_participant


async def run_faulty(config: Config, behaviour: str) -> None:
    """Take part in a run with a behaviour until cancelled; its name says whether as node or as verifier.

    Raises:
        ConfigError: no such behaviour, or as `run_node` and `run_verifier`.
    """
    if behaviour in VERIFIER_CHEATS:
        from assay.devnet.faults.verifier import KINDS
        from assay.verifier.service.process import run_verifier

        await run_verifier(config, KINDS[behaviour])
        return
    from assay.devnet.faults.node import FaultyNode

    await FaultyNode(open_participant(config), parse_behaviour(behaviour)).run()
