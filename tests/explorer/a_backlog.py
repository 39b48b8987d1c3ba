"""A backlog: the folder of a participant of a made-up run, whose signatures hold, and its certified chain."""

from __future__ import annotations

from pathlib import Path

from assay.bundle.follow import CONFIG
from assay.participant.files.invitation import write_invitation
from assay.participant.files.run_file import write_run_file
from assay.protocol.identity import Domain
from assay.protocol.messages import CertifiedManifest
from assay.protocol.run_state import start
from assay.testing.messages import Signed
from assay.testing.signed import a_chain, a_spec
from tests.a_network import a_run_file, an_invitation


def a_backlog(folder: Path, rounds: int) -> list[CertifiedManifest]:
    """So many rounds of training, of which the participant in this folder has none yet."""
    run = a_run_file(a_spec(rounds=rounds))
    folder.mkdir(parents=True, exist_ok=True)
    write_run_file(folder / "run.assay", run)
    write_invitation(folder / "network.txt", an_invitation())
    (folder / CONFIG).write_text('keys = "keys"\nnetwork = "network.txt"\nport = 4001\n')
    signer = Signed(Domain(run.spec.deployment_id, run.run_id))
    return a_chain(start(run.spec, run.run_id), rounds, signer=signer)
