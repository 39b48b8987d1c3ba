"""VAT: every combination of seller and customer has the category of the Directive, or an error in words."""

from __future__ import annotations

from datetime import date

import pytest

from assay.ledger.invoices.vat import (
    COUNTRIES,
    MEMBERS,
    Customer,
    Seller,
    VatRate,
    tax_currency,
    vat_of,
)
from assay.protocol.errors import ConfigError

DAY = date(2026, 11, 25)
DE, FR, GR, AT = "DE136695976", "FR40303265045", "EL094259216", "ATU13585627"
RATES = (
    VatRate(country="DE", rate_bp=1900, first=date(2007, 1, 1), last=date(2020, 6, 30)),
    VatRate(country="DE", rate_bp=1600, first=date(2020, 7, 1), last=date(2020, 12, 31)),
    VatRate(country="DE", rate_bp=1900, first=date(2021, 1, 1)),
    VatRate(country="FR", rate_bp=2000, first=date(2014, 1, 1)),
)
REFUSED = {
    "number": "a business of .* without a VAT number",
    "abroad": "consumers_abroad",
    "small oss": "not decided here",
    "contradiction": "a consumer with a VAT number",
}
# Where the customer is; whether a business; with a number; the seller's scheme; consumers abroad.
# The category and its country, or what is refused.
CASES = [
    *(
        (where, kind, number, scheme, abroad, expected)
        for scheme in ("standard", "small")
        for abroad in ("", "oss", "home")
        for where, kind, number, expected in [
            # at home: taxed, or exempt, whoever buys
            ("DE", "business", True, ("S", "DE") if scheme == "standard" else ("E", "DE")),
            ("DE", "business", False, ("S", "DE") if scheme == "standard" else ("E", "DE")),
            ("DE", "consumer", False, ("S", "DE") if scheme == "standard" else ("E", "DE")),
            ("DE", "consumer", True, "contradiction"),
            # another member state
            ("FR", "business", True, ("AE", "FR")),
            ("FR", "business", False, "number"),
            ("FR", "consumer", True, "contradiction"),
            (
                "FR",
                "consumer",
                False,
                {
                    ("standard", ""): "abroad",
                    ("standard", "oss"): ("S", "FR"),
                    ("standard", "home"): ("S", "DE"),
                    ("small", ""): "abroad",
                    ("small", "oss"): "small oss",
                    ("small", "home"): ("E", "DE"),
                }[scheme, abroad],
            ),
            # outside the Union
            ("US", "business", True, ("O", "US")),
            ("US", "business", False, ("O", "US")),
            ("US", "consumer", False, ("O", "US")),
            ("US", "consumer", True, "contradiction"),
        ]
    )
]
NUMBERS = {"DE": DE, "FR": FR, "US": "12-3456789"}


@pytest.mark.parametrize(("where", "kind", "number", "scheme", "abroad", "expected"), CASES)
def test_every_combination_has_its_category_or_is_refused(
    where: str, kind: str, number: bool, scheme: str, abroad: str, expected: tuple[str, str] | str
):
    seller = Seller(country="DE", vat_id=DE, scheme=scheme, consumers_abroad=abroad)
    customer = Customer(country=where, kind=kind, vat_id=NUMBERS[where] if number else "")
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=REFUSED[expected]):
            vat_of(seller, customer, RATES, DAY)
        return

    found = vat_of(seller, customer, RATES, DAY)

    assert (found.category, found.country) == expected
    assert found.rate_bp == ({"DE": 1900, "FR": 2000}[found.country] if found.category == "S" else 0)
    article = {"S": "", "AE": "articles 44 and 196", "E": "article 284"}
    article["O"] = "article 44" if kind == "business" else "article 58"
    assert article[found.category] in found.reason
    assert bool(found.reason) == (found.category != "S")
    code = {"AE": "VATEX-EU-AE", "O": "VATEX-EU-O"}.get(found.category, "")
    assert found.reason_code == code


def a_seller(**other: str) -> Seller:
    return Seller(**{"country": "DE", "vat_id": DE, "scheme": "standard", **other})


def a_customer(**other: str) -> Customer:
    return Customer(**{"country": "DE", "kind": "business", **other})


@pytest.mark.parametrize(
    ("day", "rate_bp"),
    [
        (date(2020, 6, 30), 1900),
        (date(2020, 7, 1), 1600),
        (date(2020, 12, 31), 1600),
        (date(2021, 1, 1), 1900),
    ],
)
def test_the_rate_is_the_one_in_force_on_the_day_of_supply(day: date, rate_bp: int):
    assert vat_of(a_seller(), a_customer(), RATES, day).rate_bp == rate_bp


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ((), "no rate of VAT of DE in force on 2026-11-25"),
        ((*RATES, RATES[2]), "2 rates of VAT of DE"),
        ((VatRate(country="DE", rate_bp=0, first=DAY),), "expected above 0"),
        ((VatRate(country="DE", rate_bp=5001, first=DAY),), "expected above 0"),
    ],
)
def test_without_exactly_one_rate_nothing_is_guessed(rates: tuple[VatRate, ...], words: str):
    with pytest.raises(ConfigError, match=words):
        vat_of(a_seller(), a_customer(), rates, DAY)


@pytest.mark.parametrize(
    ("seller", "customer", "words"),
    [
        ({"country": "US"}, {}, "supplier in US"),
        ({"country": "de"}, {}, "supplier's country 'de'"),
        ({"country": "FR"}, {}, "begins with FR"),
        ({"vat_id": "DE123456789"}, {}, "supplier's VAT number"),  # wrong check digit
        ({"vat_id": "DE 136 695 976"}, {}, "expected 'DE136695976'"),
        ({"scheme": "tiny"}, {}, "scheme"),
        ({}, {"country": "FT"}, "buyer's country 'FT', expected a code of ISO 3166"),
        ({}, {"country": "UK"}, "expected GB"),
        ({}, {"country": "XI", "vat_id": "XI432525179"}, "Northern Ireland"),
        ({}, {"country": "EL"}, "expected GR"),
        ({}, {"country": "GR", "vat_id": "GR094259216"}, "begins with EL"),
        ({}, {"country": "FR", "vat_id": AT}, "begins with FR"),
        ({}, {"country": "FR", "vat_id": "FR40303265046"}, "buyer's VAT number"),
        ({}, {"kind": "state"}, "expected business or consumer"),
    ],
)
def test_what_is_wrong_is_named(seller: dict[str, str], customer: dict[str, str], words: str):
    with pytest.raises(ConfigError, match=words):
        vat_of(a_seller(**seller), a_customer(**customer), RATES, DAY)


def test_numbers_of_greece_begin_with_el_and_monaco_counts_as_france():
    assert vat_of(a_seller(), a_customer(country="GR", vat_id=GR), RATES, DAY).category == "AE"
    assert vat_of(a_seller(), a_customer(country="MC", vat_id=FR), RATES, DAY).country == "FR"
    assert vat_of(a_seller(country="FR", vat_id=FR), a_customer(country="MC"), RATES, DAY).category == "S"


def test_each_country_is_of_the_union_or_outside_and_territories_are_outside():
    outside = {"GB", "CH", "NO", "US", "AX", "RE", "GP", "MQ", "GF", "GL", "FO", "IM", "JE", "SM", "VA"}
    assert outside <= COUNTRIES - MEMBERS
    for country in COUNTRIES - MEMBERS - {"MC"}:
        assert vat_of(a_seller(), a_customer(country=country), RATES, DAY).category == "O"
    assert len(MEMBERS) == 27


def test_tax_is_stated_in_the_currency_of_its_state():
    assert [tax_currency(one) for one in ("DE", "SE", "PL", "BG", "HR")] == [
        "EUR",
        "SEK",
        "PLN",
        "EUR",
        "EUR",
    ]
