"""EN 16931: documents of every category satisfy the official rules, as UBL and as Factur-X."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import facturx
import pytest
import requests
from lxml import etree
from pypdf import PdfReader
from saxonche import PySaxonProcessor

from assay.ledger.invoices.billing import Taxation, Terms
from assay.ledger.invoices.credits import credit_of
from assay.ledger.invoices.document import Document
from assay.ledger.invoices.en16931 import CII, UBL, business_terms, xml_bytes
from assay.ledger.invoices.pdf import facturx_bytes
from assay.ledger.invoices.rates import Rate
from assay.ledger.invoices.store import issue
from assay.ledger.invoices.vat import Customer, Seller, VatRate
from assay.ledger.journal.database import open_engine
from assay.protocol.errors import ConfigError
from tests.ledger.an_invoiced_run import NOW_MS, RUN, SELLER, SPEC, an_invoiced_run

pytestmark = pytest.mark.slow

RULES = Path(facturx.__file__).parent / "xsd_and_schematron"
SCHEMATRON = {  # of the European Committee for Standardization, and of the Factur-X profile of its name
    UBL: RULES / "ubl-2.1" / "EN16931-UBL-validation.xslt",
    CII: RULES / "facturx-en16931" / "FACTUR-X_EN16931.xslt",
}
FAILED = re.compile(r"<svrl:failed-assert.*?</svrl:failed-assert>", re.DOTALL)
DE = Seller(country="DE", vat_id="DE136695976", scheme="standard")
RATES = (VatRate(country="DE", rate_bp=1900, first=date(2021, 1, 1)),)
CASES = {
    "S gross": Taxation(
        seller=DE, customer=Customer(country="DE", kind="business"), vat_rates=RATES, prices="gross"
    ),
    "S net": Taxation(
        seller=DE, customer=Customer(country="DE", kind="business"), vat_rates=RATES, prices="net"
    ),
    "AE": Taxation(seller=DE, customer=Customer(country="FR", kind="business", vat_id="FR40303265045")),
    "E": Taxation(seller=replace(DE, scheme="small"), customer=Customer(country="DE", kind="consumer")),
    "O business": Taxation(seller=DE, customer=Customer(country="US", kind="business", vat_id="12-3456789")),
    "O consumer": Taxation(seller=DE, customer=Customer(country="CH", kind="consumer")),
}


@pytest.fixture(scope="module", params=sorted(CASES))
def paper(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Document:
    return a_document(tmp_path_factory.mktemp("paper"), CASES[request.param])


def a_document(folder: Path, taxation: Taxation | None) -> Document:
    an_invoiced_run(folder / "ledger.db", folder)
    customer = Customer(country="DE", kind="business") if taxation is None else taxation.customer
    parties = replace(
        SELLER,
        supplier=replace(SELLER.supplier, name='Compute & "Sons" <GmbH>', country="DE", vat_id="DE136695976"),
        buyer=replace(SELLER.buyer, country=customer.country, vat_id=customer.vat_id),
        terms=Terms(
            currency="EUR",
            rates=(Rate(time_s=1_699_999_000, currency="EUR", nano=861_200_000, source="example"),),
            taxation=taxation,
            payment_terms="30 days net",
        ),
    )
    engine = open_engine(folder / "ledger.db")
    made = issue(engine, SPEC, RUN, 0, 1, parties, NOW_MS)
    engine.dispose()
    return made


def broken_rules(xml: bytes, syntax: str) -> list[str]:
    """The failed assertions of the Schematron rules, which must have looked at something."""
    with PySaxonProcessor(license=False) as saxon:
        rules = saxon.new_xslt30_processor().compile_stylesheet(stylesheet_file=str(SCHEMATRON[syntax]))
        found = rules.transform_to_string(xdm_node=saxon.parse_xml(xml_text=xml.decode()))
    assert found.count("fired-rule") > 50
    return FAILED.findall(found)


@pytest.mark.parametrize("syntax", [UBL, CII])
def test_an_invoice_satisfies_the_schematron_rules(paper: Document, syntax: str):
    assert broken_rules(xml_bytes(paper, syntax), syntax) == []


@pytest.mark.parametrize("syntax", [UBL, CII])
def test_a_credit_note_satisfies_them_too_and_names_its_invoice(paper: Document, syntax: str):
    note = credit_of(paper, number=1, issued_ms=NOW_MS, reason="a mistake", salt="")
    xml = xml_bytes(note, syntax)

    assert broken_rules(xml, syntax) == []
    assert paper.name in xml.decode()
    assert ">381<" in xml.decode()


@pytest.mark.parametrize("syntax", [UBL, CII])
@pytest.mark.parametrize(("term", "rule"), [("BT-112", "BR-CO-15"), ("BT-109", "BR-CO-10")])
def test_the_rules_find_a_total_that_is_wrong(tmp_path: Path, syntax: str, term: str, rule: str):
    made = a_document(tmp_path, CASES["S net"])
    right = business_terms(made)[term]
    xml = xml_bytes(made, syntax).decode().replace(f">{right}<", ">1.00<")

    assert any(rule in one for one in broken_rules(xml.encode(), syntax))


def test_the_invoice_is_sent_to_nobody(paper: Document, monkeypatch: pytest.MonkeyPatch):
    def refuse(*words: object, **named: object) -> None:
        raise AssertionError(f"asked {words}")

    monkeypatch.setattr(requests.Session, "request", refuse)
    for syntax in (UBL, CII):
        assert xml_bytes(paper, syntax)
    assert facturx_bytes(paper)


def test_both_syntaxes_say_the_same_amounts(paper: Document):
    terms = business_terms(paper)
    ubl = etree.fromstring(xml_bytes(paper, UBL))
    cii = etree.fromstring(xml_bytes(paper, CII))
    for term, in_ubl, in_cii in [
        ("BT-112", "TaxInclusiveAmount", "GrandTotalAmount"),
        ("BT-113", "PrepaidAmount", "TotalPrepaidAmount"),
        ("BT-115", "PayableAmount", "DuePayableAmount"),
    ]:
        assert ubl.xpath(f"string(//*[local-name()='{in_ubl}'])") == terms[term]
        assert cii.xpath(f"string(//*[local-name()='{in_cii}'])") == terms[term]


def test_factur_x_is_pdf_a_3_with_the_same_xml(paper: Document):
    made = facturx_bytes(paper)
    reader = PdfReader(io.BytesIO(made))
    root = reader.trailer["/Root"]

    assert facturx.get_facturx_xml_from_pdf(made, check_xsd=True)[0] == "factur-x.xml"
    assert reader.attachments["factur-x.xml"] == [xml_bytes(paper, CII)]
    associated = root["/AF"][0].get_object()
    assert (associated["/AFRelationship"], associated["/EF"]["/F"]["/Subtype"]) == ("/Data", "/text/xml")
    intent = root["/OutputIntents"][0].get_object()
    assert intent["/S"] == "/GTS_PDFA1"
    assert intent["/DestOutputProfile"].get_object().get_data()[36:40] == b"acsp"  # an ICC profile
    metadata = etree.fromstring(root["/Metadata"].get_object().get_data())
    values = {element.tag.split("}")[1]: element.text for element in metadata.iter() if element.text}
    assert (values["part"], values["conformance"]) == ("3", "B")
    assert (values["ConformanceLevel"], values["DocumentFileName"]) == ("EN 16931", "factur-x.xml")
    assert "/Encrypt" not in reader.trailer
    assert "/ID" in reader.trailer
    for page in reader.pages:
        for font in page["/Resources"]["/Font"].values():
            descriptor = font["/DescendantFonts"][0].get_object()["/FontDescriptor"]
            assert "/FontFile2" in descriptor.get_object()


def test_one_document_has_one_factur_x_file(paper: Document):
    assert facturx_bytes(paper) == facturx_bytes(paper)


def test_without_vat_there_is_no_such_invoice(tmp_path: Path):
    with pytest.raises(ConfigError, match="no invoice of EN 16931: it needs a number"):
        xml_bytes(a_document(tmp_path, None), UBL)
