"""A gradient that is not finite stops one step, not a process, and is nobody's proof."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from assay.node.trainer import Trainer
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import Unavailable
from assay.protocol.types import NO_DIGEST
from assay.testing.members import RUN_ID
from assay.testing.signed import NODES, a_member, a_spec
from assay.testing.specs import a_data_folder


def test_a_node_without_a_finite_gradient_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = a_spec()
    data = a_data_folder(tmp_path / "data")
    trainer = Trainer(
        spec=spec,
        run_id=RUN_ID,
        node=a_member(NODES[0]).peer,
        data=data,
        folder=tmp_path,
        salt_key=bytes(32),
    )
    monkeypatch.setattr(
        "assay.node.trainer.loss_and_gradient",
        lambda *_, **__: (1.0, np.full(trainer.layout.parameters, np.nan, np.float32)),
    )

    with pytest.raises(Unavailable, match="not finite"):
        trainer.step(0, digest(spec), 0, NO_DIGEST)

    assert not list((tmp_path / "steps").iterdir())
