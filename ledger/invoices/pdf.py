"""PDF: renders an invoice document as a PDF file, deterministically.

Room: ledger (edge: reads a font file). The text can be searched and copied; the font is
embedded, and a character that it lacks raises an error instead of printing an empty box.
Factur-X is the same pages as PDF/A-3 with the document's CII embedded: fpdf2 refuses what PDF/A-3 does
not allow, and adds the colour profile; the metadata that names the embedded invoice is factur-x's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from font_source_sans_pro import font_files_ttf
from fontTools.ttLib import TTLibError
from fpdf import FPDF
from fpdf.enums import XPos, YPos
from fpdf.errors import FPDFException

from assay.chain.text.units import UNIT, money_text, token_text
from assay.ledger.invoices.document import Document, Party, rate_note, total_rows
from assay.ledger.invoices.en16931 import CII, xml_bytes
from assay.ledger.invoices.rates import minor_text
from assay.ledger.invoices.vat import percent_text
from assay.protocol.errors import ConfigError

_BODY, _SMALL, _TITLE = 9, 7, 16  # points
_ROW_MM, _SMALL_MM = 5.0, 3.6
_TITLES = {"invoice": "Invoice", "credit": "Credit note", "pro forma": "Pro forma invoice"}
_WIDTHS = (12, 24, 28, 68, 26, 32)  # mm, of the columns; together the width between the margins
_HEADS = ("Epoch", "What", "Node", "Paid to", "Tokens", UNIT)


class _Paper(FPDF):
    """A4 pages with the document's name and a page number in the footer."""

    def __init__(self, foot: str, compliance: str | None) -> None:
        super().__init__(format="A4", enforce_compliance=compliance)
        self._foot = foot

    def footer(self) -> None:
        self.set_y(-12)
        self.set_font("body", "", _SMALL)
        self.cell(0, _SMALL_MM, f"{self._foot}, page {self.page_no()}", align="C")


def facturx_bytes(document: Document, font: Path | None = None) -> bytes:
    """The document as a Factur-X file: PDF/A-3 with the document's CII.

    Raises:
        ConfigError: as `pdf_bytes` and `xml_bytes`.
    """
    xml = xml_bytes(document, CII)
    paper = _printed(document, font, "PDF/A-3B")
    paper.embed_file(
        bytes=xml,
        basename="factur-x.xml",
        mime_type="text/xml",
        associated_file_relationship="Data",
        desc="Factur-X invoice",
        creation_date=document.issued,
        modification_date=document.issued,
        compress=True,
    )
    paper.set_xmp_metadata(_metadata(document))
    return bytes(paper.output())


def pdf_bytes(document: Document, font: Path | None = None) -> bytes:
    """The document as a PDF file.

    Args:
        document: What to print.
        font: A TrueType file with every character of the parties' names; Source Sans Pro by default.

    Raises:
        ConfigError: the font cannot be read or lacks a character.
    """
    return bytes(_printed(document, font, None).output())


def _printed(document: Document, font: Path | None, compliance: str | None) -> FPDF:
    paper = _Paper(document.name, compliance)
    paper.set_creation_date(document.issued)
    paper.set_title(_title(document))
    paper.set_lang("en")
    try:
        paper.add_font("body", "", font or font_files_ttf["SourceSansPro"])
        paper.add_font("body", "B", font or font_files_ttf["SourceSansProBold"])
    except (OSError, ValueError, KeyError, TTLibError, FPDFException) as error:
        raise ConfigError(f"{font}: cannot be used as a font ({error})") from None
    _check_characters(paper, document, font)
    paper.set_auto_page_break(True, 16)
    paper.add_page()
    _head(paper, document)
    _lines(paper, document)
    _billed(paper, document)
    _not_charged(paper, document)
    _basis(paper, document)
    return paper


def _metadata(document: Document) -> str:
    """XMP that declares PDF/A-3B and the embedded invoice."""
    from facturx.facturx import generate_xmp_object
    from lxml import etree

    made = generate_xmp_object(
        {
            "pdfa3_flavor": "B",
            "title": _title(document),
            "author": document.supplier.name,
            "subject": f"{_title(document)}, {document.epochs_text} of {document.facts.run_name}",
            "producer": "fpdf2",
            "creator_tool": "assay",
            "timestamp": document.issued.isoformat(),
            "version": "1.0",
            "documenttype": "INVOICE",
            "xml_filename": "factur-x.xml",
            "xmp_level": "EN 16931",
            "urn": "urn:factur-x:pdfa:CrossIndustryDocument:invoice:1p0#",
        }
    )
    return str(etree.tostring(made, encoding="unicode"))


def _title(document: Document) -> str:
    title = _TITLES[document.series]
    return f"{f'Self-billed {title.lower()}' if document.operator else title} {document.name}"


def _check_characters(paper: FPDF, document: Document, font: Path | None) -> None:
    supplier, buyer = document.supplier, document.buyer
    texts = [supplier.name, supplier.vat_id, *supplier.address, buyer.name, buyer.vat_id, *buyer.address]
    texts += [document.tax_note, document.reason, document.facts.run_name]
    texts += [supplier.registration, supplier.country, buyer.registration, buyer.country]
    if document.billed:
        texts += [document.billed.payment_terms, *(one.source for one in document.billed.rates)]
    face: Any = paper.fonts["body"]
    known = set(face.cmap)
    lacking = sorted({one for one in "".join(texts) if ord(one) not in known})
    if lacking:
        shown = " ".join(f"{one} (U+{ord(one):04X})" for one in lacking[:5])
        name = font or "Source Sans Pro"
        raise ConfigError(f"{name} has no {shown}; name a font that has: --font FILE.ttf")


def _head(paper: FPDF, document: Document) -> None:
    facts = document.facts
    _text(paper, _title(document), size=_TITLE, bold=True, height=9)
    issued = document.issued.date().isoformat()
    _text(paper, f"{issued}, for {document.epochs_text} of the training run {facts.run_name}")
    if document.series == "pro forma":
        _text(paper, "Not an invoice: the supplier's name and VAT number are not on record.", bold=True)
    if document.series == "credit":
        part = "a part" if document.is_partial else "the whole"
        taken = f"{'Takes back' if document.is_partial else 'Cancels'} {part} of invoice"
        _text(paper, f"{taken} {document.corrected_name}: {document.reason}", bold=True)
    paper.ln(3)
    _text(paper, "Supplier", bold=True)
    _party(paper, document.supplier)
    paper.ln(2)
    _text(paper, "Buyer", bold=True)
    _party(paper, document.buyer)
    paper.ln(3)
    price = f"{token_text(facts.price_per_mtoken)} for a million accepted tokens"
    shares = (
        f"operators {_percent(facts.operators_ppm)}, verifiers {_percent(facts.verifiers_ppm)}, fee the rest"
    )
    _text(paper, f"Price: {price} ({shares}). Audits are included; steps that failed one are not charged.")
    if document.tax_note:
        _text(paper, document.tax_note)
    paper.ln(3)


def _lines(paper: FPDF, document: Document) -> None:
    _row(paper, _HEADS, bold=True, rule="B")
    for line in document.facts.lines:
        tokens = f"{line.tokens:,}" if line.what == "training" else ""
        amount = money_text(document.sign * line.amount)
        _row(paper, (str(line.epoch), line.what, line.peer[:16], line.account, tokens, amount))
    _row(paper, ("", "", "", "", "Total", money_text(document.total)), bold=True, rule="T")
    paper.ln(2)
    if document.series == "invoice" and document.billed is None:
        _text(paper, "Paid from the run's escrow on chain; nothing is due.")
    if not document.operator:
        paid, back = money_text(document.escrow.funded), money_text(document.escrow.refunded)
        _text(
            paper, f"Escrow when this was made: {paid} {UNIT} paid in, {back} {UNIT} given back to the buyer."
        )
    paper.ln(3)


def _billed(paper: FPDF, document: Document) -> None:
    """The same lines in a national currency, and the rates."""
    billed = document.billed
    if billed is None:
        return
    _text(paper, f"In {billed.currency}", bold=True)
    _row(paper, (*_HEADS[:4], "", billed.currency), bold=True, rule="B")
    for line, net in zip(document.facts.lines, billed.line_nets, strict=True):
        amount = minor_text(document.sign * net)
        _row(paper, (str(line.epoch), line.what, line.peer[:16], line.account, "", amount))
    for at, (what, minor, _) in enumerate(total_rows(billed)):
        total = minor_text(document.sign * minor)
        _row(
            paper, ("", "", "", "", f"{what[0].upper()}{what[1:]}", total), bold=True, rule="" if at else "T"
        )
    paper.ln(2)
    first, last = billed.supplied
    _text(paper, f"Supplied on {first}." if first == last else f"Supplied from {first} to {last}.")
    if billed.vat is not None:
        _text(
            paper,
            f"VAT category {billed.vat.category}, {percent_text(billed.vat.rate_bp)} %. {billed.vat.reason}",
        )
    _text(paper, billed.payment_terms)
    for one in billed.rates:
        _text(paper, f"Epoch {one.epoch}: {rate_note(one, billed.currency)}", size=_SMALL)
    paper.ln(3)


def _not_charged(paper: FPDF, document: Document) -> None:
    if not document.facts.not_charged:
        return
    _text(paper, "Not charged", bold=True)
    for one in document.facts.not_charged:
        worth = f"{token_text(one.worth)} at the price"
        _text(paper, f"Epoch {one.epoch}: {one.part} ({worth}): {one.reason.text}")
    paper.ln(3)


def _basis(paper: FPDF, document: Document) -> None:
    facts = document.facts
    _text(paper, "Records behind this document", bold=True)
    _small(paper, [("run", facts.run_id), ("deployment", facts.deployment_id)])
    for one in facts.bases:
        _small(
            paper,
            [
                (f"epoch {one.epoch}", f"{one.tokens:,} tokens, {token_text(one.total)}"),
                ("payout table", one.table_hash),
                ("settlement root", one.root),
                ("result", one.result),
                ("proposed by transaction", one.proposed_tx),
                ("made final by transaction", one.final_tx),
                ("journal entry", f"{one.entry}, {one.entry_key}"),
            ],
        )
    anchor = facts.anchor_tx or "none on record"
    _small(
        paper,
        [
            ("checkpoint of the books", f"{facts.checkpoint_size} entries, root {facts.checkpoint_root}"),
            ("its anchor on chain", anchor),
        ],
    )
    _text(paper, f"Anybody can check this: assay ledger prove RUN {facts.bases[0].entry}", size=_SMALL)


def _party(paper: FPDF, party: Party) -> None:
    for text in (party.name, *party.address, party.country):
        if text:
            _text(paper, text)
    if party.vat_id:
        _text(paper, f"VAT number {party.vat_id}")
    if party.registration:
        _text(paper, f"registered as {party.registration}")
    if party.account:
        _text(paper, f"account {party.account}")


def _percent(ppm: int) -> str:
    whole, part = divmod(ppm, 10_000)
    return f"{whole}{f'.{part:04d}'.rstrip('0') if part else ''} %"


def _text(paper: FPDF, text: str, *, size: int = _BODY, bold: bool = False, height: float = _ROW_MM) -> None:
    paper.set_font("body", "B" if bold else "", size)
    paper.multi_cell(0, height, text, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)


def _row(paper: FPDF, cells: Sequence[str], *, bold: bool = False, rule: str = "") -> None:
    if paper.will_page_break(_ROW_MM):
        paper.add_page()
    for at, (text, width) in enumerate(zip(cells, _WIDTHS, strict=True)):
        paper.set_font("body", "B" if bold else "", _BODY if at not in (2, 3) else _SMALL)
        paper.cell(width, _ROW_MM, text, border=rule, align="R" if at >= 4 else "L")
    paper.ln(_ROW_MM)


def _small(paper: FPDF, pairs: Iterable[tuple[str, str]]) -> None:
    paper.set_font("body", "", _SMALL)
    for name, value in pairs:
        paper.cell(40, _SMALL_MM, name)
        paper.multi_cell(0, _SMALL_MM, value, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    paper.ln(1.5)
