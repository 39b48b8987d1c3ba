"""EN 16931: a document as UBL 2.1 and as CII, the two syntaxes of the European invoice.

Room: ledger (edge: the package of the extra `einvoice`). One table of business terms (BT) is made from
the document, and factur-x writes both syntaxes from it and checks each against its XSD. Its own check
of the Schematron rules would send the invoice to a server of somebody else, so it stays off; the tests
run the same rules on this machine.
"""

from __future__ import annotations

from typing import Any

from assay.ledger.invoices.billing import Billed
from assay.ledger.invoices.document import Document, Line, Party, rate_note
from assay.ledger.invoices.rates import minor_text
from assay.ledger.invoices.vat import Vat, percent_text
from assay.protocol.errors import ConfigError

UBL, CII = "ubl-2.1", "factur-x"
LEVEL = "en16931"
_TYPES = {"invoice": "380", "credit": "381"}  # UNTDID 1001
_SELF_BILLED = {"invoice": "389", "credit": "261"}
_PIECE = "C62"  # UN/ECE recommendation 20: one
_OUTSIDE = "O"


def xml_bytes(document: Document, syntax: str) -> bytes:
    """The document as XML.

    Args:
        document: An invoice or a credit note whose VAT is decided.
        syntax: `UBL` or `CII`.

    Raises:
        ConfigError: the document has no VAT, EN 16931 lacks a term for it, or factur-x is not installed.
    """
    terms = business_terms(document)
    try:
        from facturx.generate_xml import generate_xml
    except ImportError:
        raise ConfigError("EN 16931 needs factur-x: pip install 'assay[einvoice]'") from None
    try:
        made = generate_xml(terms, flavor=syntax, level=LEVEL, check_xsd=True, check_schematron=False)
    except Exception as error:  # factur-x raises no narrower type where the XSD refuses its XML
        raise ConfigError(f"{document.name} cannot be written as EN 16931: {error}") from None
    assert isinstance(made, bytes)
    return made


def business_terms(document: Document) -> dict[str, Any]:
    """The document by the numbers of EN 16931's business terms.

    Raises:
        ConfigError: the document is a pro forma, or its VAT was not decided.
    """
    billed = document.billed
    if document.series not in _TYPES or billed is None or billed.vat is None:
        raise ConfigError(
            f"{document.name} is no invoice of EN 16931: it needs a number, a currency and its VAT "
            "([supplier] currency, rates and country)"
        )
    vat, facts = billed.vat, document.facts
    first, last = billed.supplied
    terms = {
        "BT-1": document.name,
        "BT-2": document.issued.date(),
        "BT-3": (_SELF_BILLED if document.operator else _TYPES)[document.series],
        "BT-5": billed.currency,
        "BT-20": billed.payment_terms,
        "BT-72": last,
        "BT-73": first,
        "BT-74": last,
        "BT-106": minor_text(billed.net),
        "BT-109": minor_text(billed.net),
        "BT-110": minor_text(billed.tax),
        "BT-112": minor_text(billed.gross),
        "BT-113": minor_text(billed.paid),
        "BT-115": minor_text(billed.due),
        "BG-1": [{"BT-22": note} for note in _notes(document, billed)],
        "BG-4": _party("supplier", document.supplier, vat),
        "BG-7": _party("buyer", document.buyer, vat),
        "BG-23": [_breakdown(billed, vat)],
        "BG-25": [
            _line(at, line, net, vat)
            for at, (line, net) in enumerate(zip(facts.lines, billed.line_nets, strict=True), start=1)
        ],
    }
    if document.series == "credit":
        terms["BG-3"] = [{"BT-25": document.corrected_name}]
    return terms


def _notes(document: Document, billed: Billed) -> list[str]:
    facts = document.facts
    notes = [
        f"Training run {facts.run_name}, {document.epochs_text}; run {facts.run_id}, "
        f"books {facts.checkpoint_size} entries with root {facts.checkpoint_root}"
    ]
    notes += [f"Epoch {one.epoch}: {rate_note(one, billed.currency)}" for one in billed.rates]
    return notes + [text for text in (document.tax_note, document.reason) if text]


def _party(who: str, party: Party, vat: Vat) -> dict[str, Any]:
    """A party's terms; a supply outside the scope of VAT may name no VAT number (BR-O-02)."""
    if not party.name:
        raise ConfigError(f"EN 16931 needs the {who}'s name")
    made: dict[str, Any] = {"name": party.name, "country_code": party.country}
    # The standard has three lines of an address; what is beyond them shares the last.
    lines = [*party.address[:2], ", ".join(party.address[2:])]
    made |= {f"addr_l{at}": line for at, line in enumerate(lines, start=1) if line}
    if party.registration:
        made["legal_identifier"] = party.registration
    if not party.vat_id:
        return made
    if vat.category != _OUTSIDE:
        made["vat_identifier"] = party.vat_id
    elif who == "supplier":
        made["tax_identifier"] = party.vat_id
        made["identifiers"] = {"": party.vat_id}  # BR-CO-26: one identifier that is not of VAT
    return made


def _breakdown(billed: Billed, vat: Vat) -> dict[str, str]:
    made = {"BT-116": minor_text(billed.net), "BT-117": minor_text(billed.tax), "BT-118": vat.category}
    if vat.category != _OUTSIDE:
        made["BT-119"] = percent_text(vat.rate_bp)
    if vat.reason:
        made["BT-120"] = vat.reason
    if vat.reason_code:
        made["BT-121"] = vat.reason_code
    return made


def _line(at: int, line: Line, net: int, vat: Vat) -> dict[str, str]:
    node = f", node {line.peer[:16]}" if line.peer else ""
    made = {
        "BT-126": str(at),
        "BT-129": "1",
        "BT-130": _PIECE,
        "BT-131": minor_text(net),
        "BT-146": minor_text(net),
        "BT-151": vat.category,
        "BT-153": f"{line.what.capitalize()}, epoch {line.epoch}{node}",
    }
    if line.tokens:
        made["BT-154"] = f"{line.tokens} accepted tokens"
    if vat.category != _OUTSIDE:
        made["BT-152"] = percent_text(vat.rate_bp)
    return made
