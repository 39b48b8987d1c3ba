"""A run file is its buyer's: nobody else can add a peer, move a member, or pass on another spec."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.participant.files import run_file
from assay.participant.files.record import Role, sign_record
from assay.participant.files.run_file import check_run_file, read_run_file, run_file_of, write_run_file
from assay.protocol.errors import ConfigError
from assay.protocol.types import Address
from assay.testing.members import an_account_key, peer
from assay.testing.signed import NODES, a_spec
from assay.testing.specs import a_rule
from assay.training.model.presets import PRESETS
from tests.a_network import NOW, a_record, a_run_file, bought, keys_of, records_of


def refused(found, words):
    with pytest.raises(ConfigError, match=words):
        check_run_file(found, NOW)


def signed_by_buyer(spec, records):
    return run_file_of(spec, records, an_account_key("buyer"))


def test_a_run_file_survives_its_file(tmp_path):
    treasury = replace(
        bought(), money=replace(bought().money, treasury=Address(keys_of("leo").account_address))
    )
    made = a_run_file(treasury, [a_record("leo", Role.LEDGER)])
    write_run_file(tmp_path / "run.assay", made)

    assert read_run_file(tmp_path / "run.assay", NOW) == made
    assert made.ledger_service == peer("leo")
    assert a_run_file().ledger_service is None


def test_another_than_the_buyer_cannot_sign_one():
    refused(
        run_file_of(bought(), records_of(), an_account_key("mallory")), "signed by .*, expected the buyer 0x"
    )


def test_a_key_that_the_spec_names_signs_in_place_of_the_buyers_account_and_nobody_else():
    spec = replace(bought(), buyer_key=Address(keys_of("buyer").hot_address))

    check_run_file(run_file_of(spec, records_of(), keys_of("buyer").hot), NOW)
    refused(signed_by_buyer(spec, records_of()), "signed by .*, expected the key .* that the spec names for")


def test_another_spec_or_peer_is_not_covered_by_the_buyers_signature():
    honest, other = a_run_file(), a_run_file(a_spec(seed=8))
    more = a_run_file(extra=[a_record("stranger", Role.WATCHTOWER)])

    refused(replace(honest, content=other.content), "signed by")
    refused(replace(honest, content=more.content), "signed by")


def test_the_records_must_be_those_of_the_members():
    missing = [one for one in records_of() if one.record.peer != peer(NODES[0])]
    rotated = sign_record(replace(keys_of(NODES[0]), hot=keys_of("x").hot), Role.NODE, "::1", 1, NOW)

    refused(signed_by_buyer(bought(), missing), "role node are not the spec's members")
    refused(signed_by_buyer(bought(), [*missing, rotated]), "role node are not")
    refused(signed_by_buyer(bought(), [*missing, a_record(NODES[0], Role.VERIFIER)]), "are not the spec's")
    refused(signed_by_buyer(bought(), [*records_of(), a_record("stranger")]), "role node are not")
    refused(signed_by_buyer(bought(), [*records_of(), records_of()[0]]), "each once")


def test_a_forged_record_in_a_run_file_is_refused():
    first, *others = records_of()
    forged = replace(first, record=replace(first.record, port=9))

    refused(signed_by_buyer(bought(), [forged, *others]), "signature does not cover this Record")


def test_a_ledger_is_the_account_that_the_fee_goes_to():
    refused(a_run_file(extra=[a_record("leo", Role.LEDGER)]), "a ledger of another account")


def test_a_spec_whose_parts_do_not_fit_is_refused():
    spec = bought()
    broken = replace(spec, model=replace(spec.model, width=65, heads=2))

    refused(signed_by_buyer(broken, records_of()), "width 65 must be a multiple of heads")


def test_a_spec_whose_numbers_cannot_be_computed_with_is_refused(monkeypatch):
    """A stranger announces it, and whoever reads the directory goes on to the next."""
    monkeypatch.setattr(run_file, "check_spec", lambda spec: spec.rounds // 0)
    refused(a_run_file(), "^run file: integer division")
    monkeypatch.setattr(run_file, "check_spec", lambda spec: float(10**400 * spec.rounds))
    refused(a_run_file(), "^run file: int too large")


def test_a_run_whose_openings_cannot_hold_a_segments_start_is_refused():
    """Its honest nodes could only withhold, and would be slashed."""
    spec = replace(
        bought(), model=replace(PRESETS["llama-1b"], context=16), rule=a_rule("diloco", steps=10, segment=5)
    )
    public = replace(spec, rule=a_rule("diloco", steps=10, segment=10, keeps_moments=False))

    refused(signed_by_buyer(spec, records_of()), "would show 4,400,193,536 bytes of parameters, at most")
    check_run_file(signed_by_buyer(public, records_of()), NOW)


def test_a_huge_run_file_is_refused_unread(tmp_path):
    (tmp_path / "run.assay").write_text("A" * ((1 << 20) + 1))

    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        read_run_file(tmp_path / "run.assay", NOW)


def test_a_strangers_spec_of_endless_layers_is_refused_before_its_layers_are_laid_out():
    spec = bought()

    refused(
        a_run_file(replace(spec, model=replace(spec.model, layers=2**60))), "layers is .*, expected at most"
    )
