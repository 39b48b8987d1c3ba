"""Refusals: whoever is told no by a contract is told why."""

from __future__ import annotations

import pytest

from assay.chain.rpc import ChainRefused, artefact
from assay.chain.text.reverts import revert_text

NOBODYS = {  # no move of an account can meet these
    "AlreadySlashed", "BadParams", "FeeOnTransfer", "FreezeTooLong", "InvalidShortString", "OnlyCourt",
    "OnlySettlement", "ReentrancyGuardReentrantCall", "SafeERC20FailedOperation", "StringTooLong",
    "WrongDeployment", "WrongState", "ECDSAInvalidSignature", "ECDSAInvalidSignatureLength",
    "ECDSAInvalidSignatureS", "AddressEmptyCode", "BondTaken", "FailedCall", "NoBond", "NoOpenPot", "NotHeld",
    "SafeCastOverflowedUintDowncast",
}  # fmt: skip
GIVEN = {"address": "0x" + "ab" * 20, "bytes32": b"\xcd" * 32}


@pytest.mark.parametrize(
    "contract", ["StakeVault", "RunEscrow", "EpochSettlement", "SlashCourt", "Directory", "AppealCourt"]
)
def test_every_no_that_an_account_can_meet_has_words(contract: str):
    for entry in artefact(contract)["abi"]:
        if entry["type"] == "error" and entry["name"] not in NOBODYS:
            given = tuple(GIVEN.get(one["type"], 1_795_000_000) for one in entry["inputs"])
            words = revert_text(entry["name"], given)
            assert words and "{" not in words, entry["name"]


def test_amounts_and_times_are_told_as_people_read_them():
    assert str(ChainRefused("stake", "BelowMinimum", (5, 100_000_000))) == (
        "stake: 0.000005 aUSD would be active; expected nothing, or at least 100.000000 aUSD "
        "[BelowMinimum(5, 100000000)]"
    )
    assert "not before 2026-11-18 11:06:40 UTC [TooEarly(1795000000)]" in str(
        ChainRefused("withdraw", "TooEarly", (1_795_000_000,))
    )


@pytest.mark.parametrize(
    ("name", "arguments"), [("Panic", (17,)), ("TooEarly", ()), ("TooEarly", ("soon",)), ("Reverted", ())]
)
def test_an_unknown_no_keeps_its_name(name: str, arguments: tuple[object, ...]):
    assert revert_text(name, arguments) == ""
    assert str(ChainRefused("move", name, arguments)).startswith(f"move: {name}")
