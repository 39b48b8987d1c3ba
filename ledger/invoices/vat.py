"""VAT: the category, rate and wording that Directive 2006/112/EC gives to a supply of training.

Room: ledger (pure). Training is an electronically supplied service, and its supplier is a taxable
person established in a member state. Where the law asks for a fact that nobody stated, the answer is
an error that names the fact.

    customer                               place of supply          category
    same member state                      there                    S, or E of a small enterprise
    business of another member state       customer's (art. 44)     AE: it owes the tax (art. 196)
    consumer of another member state       customer's (art. 58)     S at that state's rate (OSS)
      below EUR 10,000 a year (art. 59c)   supplier's               S at home, or E
    outside the Union                      customer's (44, 58)      O: outside the scope

G (export) and K (supply within the Union) are categories of goods, and never result here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from stdnum.eu import vat as eu_vat
from stdnum.exceptions import ValidationError

from assay.protocol.errors import ConfigError

BUSINESS, CONSUMER = "business", "consumer"
STANDARD, SMALL = "standard", "small"
OSS, HOME = "oss", "home"
DIRECTIVE = "Directive 2006/112/EC"
# Members, and the prefix of their VAT numbers where it is not the country's code.
MEMBERS = frozenset(
    {"AT", "BE", "BG", "CY", "CZ", "DE", "DK", "EE", "ES", "FI", "FR", "GR", "HR", "HU", "IE", "IT", "LT"}
    | {"LU", "LV", "MT", "NL", "PL", "PT", "RO", "SE", "SI", "SK"}
)
_PREFIX = {"GR": "EL"}
_PART_OF = {"MC": "FR"}  # article 7: Monaco counts as France
_NOT_COUNTRIES = {"EL": "GR", "UK": "GB", "XI": "GB for services of Northern Ireland", "EU": "a member state"}
_OWN_CURRENCY = {"CZ": "CZK", "DK": "DKK", "HU": "HUF", "PL": "PLN", "RO": "RON", "SE": "SEK"}
COUNTRIES = frozenset(  # ISO 3166-1: a mistyped code must not pass for a country outside the Union
    {"AD", "AE", "AF", "AG", "AI", "AL", "AM", "AO", "AQ", "AR", "AS", "AT", "AU", "AW", "AX"}
    | {"AZ", "BA", "BB", "BD", "BE", "BF", "BG", "BH", "BI", "BJ", "BL", "BM", "BN", "BO", "BQ", "BR"}
    | {"BS", "BT", "BV", "BW", "BY", "BZ", "CA", "CC", "CD", "CF", "CG", "CH", "CI", "CK", "CL", "CM"}
    | {"CN", "CO", "CR", "CU", "CV", "CW", "CX", "CY", "CZ", "DE", "DJ", "DK", "DM", "DO", "DZ"}
    | {"EC", "EE", "EG", "EH", "ER", "ES", "ET", "FI", "FJ", "FK", "FM", "FO", "FR", "GA", "GB", "GD"}
    | {"GE", "GF", "GG", "GH", "GI", "GL", "GM", "GN", "GP", "GQ", "GR", "GS", "GT", "GU", "GW", "GY"}
    | {"HK", "HM", "HN", "HR", "HT", "HU", "ID", "IE", "IL", "IM", "IN", "IO", "IQ", "IR", "IS", "IT"}
    | {"JE", "JM", "JO", "JP", "KE", "KG", "KH", "KI", "KM", "KN", "KP", "KR", "KW", "KY", "KZ", "LA"}
    | {"LB", "LC", "LI", "LK", "LR", "LS", "LT", "LU", "LV", "LY", "MA", "MC", "MD", "ME", "MF", "MG"}
    | {"MH", "MK", "ML", "MM", "MN", "MO", "MP", "MQ", "MR", "MS", "MT", "MU", "MV", "MW", "MX", "MY"}
    | {"MZ", "NA", "NC", "NE", "NF", "NG", "NI", "NL", "NO", "NP", "NR", "NU", "NZ", "OM", "PA", "PE"}
    | {"PF", "PG", "PH", "PK", "PL", "PM", "PN", "PR", "PS", "PT", "PW", "PY", "QA", "RE", "RO", "RS"}
    | {"RU", "RW", "SA", "SB", "SC", "SD", "SE", "SG", "SH", "SI", "SJ", "SK", "SL", "SM", "SN", "SO"}
    | {"SR", "SS", "ST", "SV", "SX", "SY", "SZ", "TC", "TD", "TF", "TG", "TH", "TJ", "TK", "TL", "TM"}
    | {"TN", "TO", "TR", "TT", "TV", "TW", "TZ", "UA", "UG", "UM", "US", "UY", "UZ", "VA", "VC", "VE"}
    | {"VG", "VI", "VN", "VU", "WF", "WS", "YE", "YT", "ZA", "ZM", "ZW"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seller:
    """The taxable person who supplies."""

    country: str
    vat_id: str
    scheme: str  # "standard", or "small": exempt by article 284
    consumers_abroad: str = ""  # "oss", or "home" below the threshold of article 59c; empty if not stated


@dataclass(frozen=True, slots=True, kw_only=True)
class Customer:
    """The person who is supplied."""

    country: str
    kind: str  # "business" or "consumer"
    vat_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VatRate:
    """A member state's rate for these services, and the days on which it is in force."""

    country: str
    rate_bp: int  # basis points: 1900 is 19 %
    first: date
    last: date | None = None  # None: no end is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Vat:
    """What the tax law makes of a supply."""

    category: str  # of EN 16931 (UNTDID 5305): "S", "AE", "E" or "O"
    country: str  # whose tax it is, or would be
    rate_bp: int
    reason: str  # why no tax is charged, with its article; empty for S
    reason_code: str  # VATEX, where the list has one


def vat_of(seller: Seller, customer: Customer, rates: Sequence[VatRate], on: date) -> Vat:
    """The treatment of an electronically supplied service.

    Args:
        seller: Who supplies.
        customer: Who is supplied.
        rates: The rates that are known.
        on: The day of supply, when tax becomes chargeable (article 63).

    Raises:
        ConfigError: what is missing, contradictory or not decided here, in words.
    """
    home, there = _country("supplier", seller.country), _country("buyer", customer.country)
    if home not in MEMBERS:
        raise ConfigError(f"supplier in {seller.country}: VAT is decided for suppliers of the Union only")
    if seller.scheme not in (STANDARD, SMALL):
        raise ConfigError(f"supplier's scheme {ascii(seller.scheme)[:20]}, expected standard or small")
    _check_number("supplier", home, seller.vat_id)
    if customer.kind not in (BUSINESS, CONSUMER):
        raise ConfigError(f"buyer's kind {ascii(customer.kind)[:20]}, expected business or consumer")
    if customer.kind == CONSUMER and customer.vat_id:
        raise ConfigError("buyer: a consumer with a VAT number; one of the two is wrong")
    if there in MEMBERS and customer.vat_id:
        _check_number("buyer", there, customer.vat_id)
    if there == home:
        return _at_home(seller, home, rates, on)
    if there not in MEMBERS:
        article = "article 44" if customer.kind == BUSINESS else "article 58"
        return _untaxed("O", there, f"Outside the scope of VAT of the Union ({article} of {DIRECTIVE})", "O")
    if customer.kind == BUSINESS:
        if not customer.vat_id:
            raise ConfigError(
                f"buyer: a business of {customer.country} without a VAT number, which shows that it is one"
            )
        return _untaxed("AE", there, f"Reverse charge (articles 44 and 196 of {DIRECTIVE})", "AE")
    if seller.consumers_abroad == HOME:
        return _at_home(seller, home, rates, on)
    if seller.consumers_abroad == OSS and seller.scheme == STANDARD:
        return _taxed(there, rates, on)
    if seller.consumers_abroad == OSS:
        raise ConfigError(
            "a small enterprise that declares by OSS: its tax in other states is not decided here"
        )
    raise ConfigError(
        f'a consumer of {customer.country}: consumers_abroad says "oss", or "home" below the threshold of '
        "article 59c"
    )


def tax_currency(country: str) -> str:
    """The currency in which this member state wants its tax stated (article 230)."""
    return _OWN_CURRENCY.get(country, "EUR")


def percent_text(rate_bp: int) -> str:
    """Basis points as percent: 1900 is 19.00, which is how EN 16931 compares them."""
    return f"{rate_bp // 100}.{rate_bp % 100:02d}"


def _at_home(seller: Seller, home: str, rates: Sequence[VatRate], on: date) -> Vat:
    if seller.scheme == SMALL:
        return _untaxed("E", home, f"Exempt small enterprise (article 284 of {DIRECTIVE})", "")
    return _taxed(home, rates, on)


def _taxed(country: str, rates: Sequence[VatRate], on: date) -> Vat:
    held = [
        one
        for one in rates
        if one.country == country and one.first <= on and (one.last is None or on <= one.last)
    ]
    if len(held) != 1:
        count = "no rate" if not held else f"{len(held)} rates"
        raise ConfigError(f"{count} of VAT of {country} in force on {on}, expected one [[vat_rate]]")
    if not 0 < held[0].rate_bp <= 5000:
        raise ConfigError(
            f"VAT of {country}: {percent_text(held[0].rate_bp)} %, expected above 0 and up to 50"
        )
    return Vat(category="S", country=country, rate_bp=held[0].rate_bp, reason="", reason_code="")


def _untaxed(category: str, country: str, reason: str, code: str) -> Vat:
    reason_code = f"VATEX-EU-{code}" if code else ""
    return Vat(category=category, country=country, rate_bp=0, reason=reason, reason_code=reason_code)


def _country(who: str, code: str) -> str:
    """The country whose tax law holds there.

    Raises:
        ConfigError: it is no country.
    """
    if code in _NOT_COUNTRIES:
        raise ConfigError(f"{who}'s country {code}: expected {_NOT_COUNTRIES[code]}")
    if code not in COUNTRIES:
        raise ConfigError(f"{who}'s country {ascii(code)[:20]}, expected a code of ISO 3166 such as DE")
    return _PART_OF.get(code, code)


def _check_number(who: str, country: str, number: str) -> None:
    """Form and check digits; whether the number is registered is asked of VIES, not here."""
    prefix = _PREFIX.get(country, country)
    if number[:2] != prefix:
        raise ConfigError(f"{who}'s VAT number {ascii(number)[:30]}, expected one that begins with {prefix}")
    try:
        compact = eu_vat.validate(number)
    except ValidationError as error:
        raise ConfigError(f"{who}'s VAT number {ascii(number)[:30]}: {error}") from None
    if compact != number:
        raise ConfigError(f"{who}'s VAT number {ascii(number)[:30]}, expected {compact!a}")
