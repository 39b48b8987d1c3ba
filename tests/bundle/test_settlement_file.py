"""A settlement's file comes from whoever delivers the run: its set number is checked before anything else."""

from __future__ import annotations

from typing import Any

import pytest

from assay.bundle.finished import Settled
from assay.bundle.settlement_file import SettlementFile, read_settlement, settlement_file
from assay.protocol.encoding.json_text import plain, read_plain
from assay.protocol.types import NO_DIGEST
from tests.bundle.test_write import DEPLOYMENT, SPEC, finished
from tests.observer.ledger_service.test_bookkeeper import TABLES


def told(content: Any) -> Settled:
    given = read_plain(SettlementFile, content)
    return read_settlement(given, SPEC, DEPLOYMENT, TABLES[0], NO_DIGEST, None)


@pytest.mark.parametrize("number", ["1", -1, 0, 1 << 32, 1 << 300, True, None, 1.5])
def test_a_set_number_that_is_none_is_refused_in_words(number):
    content = plain(settlement_file(finished().settled[0]))
    content["result"]["set_version"] = number
    with pytest.raises(ValueError, match="set_version"):
        told(content)


def test_the_last_set_number_is_one():
    content = plain(settlement_file(finished().settled[0]))
    content["result"]["set_version"] = (1 << 32) - 1
    with pytest.raises(ValueError, match="the certified chain gives"):
        told(content)


def test_what_a_file_states_otherwise_than_the_chain_is_named():
    content = plain(settlement_file(finished().settled[0]))
    content["rows"][0]["amount"] += 1
    with pytest.raises(ValueError, match=r"^rows\[0\]\.amount: .*, the certified chain gives "):
        told(content)
