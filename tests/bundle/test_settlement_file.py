"""A settlement's file comes from whoever delivers the run: its set number is checked before anything else."""

from __future__ import annotations

import pytest

from assay.bundle.settlement_file import read_settlement
from assay.protocol.types import NO_DIGEST
from assay.testing.members import a_deployment
from assay.testing.signed import a_spec
from tests.ledger.a_run import a_settlement


@pytest.mark.parametrize("number", ["1", -1, 0, 1 << 32, 1 << 300, True, None, 1.5])
def test_a_set_number_that_is_none_is_refused_in_words(number):
    content = {"result": {"model_hash": "00" * 32, "set_version": number}, "certificate": ""}
    with pytest.raises(ValueError, match="set_version"):
        read_settlement(content, a_spec(), a_deployment(), a_settlement(), NO_DIGEST, None)
