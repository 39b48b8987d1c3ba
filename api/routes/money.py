"""Money routes: read-only routes for invoices, quotes, the contracts, and their state of orders and stake.

Room: api (edge).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

from fastapi import APIRouter, Body, Depends, Path, Request
from starlette.responses import Response

from assay.api.access import Principal
from assay.api.http.bodies import StrictRoute
from assay.api.http.problems import Problem
from assay.api.quoting import read_order
from assay.api.routes.books import RunName, may_see, missing
from assay.api.schemas import (
    AddressText,
    DeploymentAnswer,
    HashGiven,
    InvoiceHead,
    OrderAnswer,
    QuoteAnswer,
    StakeAnswer,
)
from assay.api.server import Reader, TheServer, needs
from assay.chain.addresses import CONTRACTS
from assay.chain.commit_statement import evm_address
from assay.chain.statements import OPERATOR, VERIFIER
from assay.ledger.invoices.document import Document, to_json
from assay.ledger.invoices.en16931 import UBL, xml_bytes
from assay.ledger.invoices.pdf import facturx_bytes, pdf_bytes
from assay.ledger.invoices.store import read_document, read_documents
from assay.orders.price.quote import cost_at_most, cost_expected, quote_of
from assay.protocol.errors import ConfigError

router = APIRouter(route_class=StrictRoute, prefix="/v1", tags=["money"])
ROLES = {"operator": OPERATOR, "verifier": VERIFIER}
Series = Annotated[Literal["invoice", "credit"], Path()]
Number = Annotated[int, Path(ge=1, lt=2**63)]
InvoiceReader = Annotated[Principal | None, Depends(needs("invoice"))]
Quoter = Annotated[Principal | None, Depends(needs("quote"))]


@router.get("/runs/{run}/invoices")
def invoices(server: TheServer, caller: InvoiceReader, run: RunName) -> list[InvoiceHead]:
    """Invoices and credit notes of a run; for its buyer, and the server's own tokens."""
    served_run = server.run_for(caller, run)
    may_see(caller, evm_address(served_run.spec()[0].buyer))
    with served_run.opened() as db:
        found = read_documents(db)
    return [
        InvoiceHead.of(one, first_epoch=one.facts.first_epoch, last_epoch=one.facts.last_epoch)
        for one in found
    ]


@router.get("/runs/{run}/invoices/{series}/{number}", responses={200: {"content": {"application/json": {}}}})
def invoice(
    server: TheServer, caller: InvoiceReader, run: RunName, series: Series, number: Number
) -> Response:
    """One document, in the canonical JSON that its hash covers."""
    return Response(to_json(_document(server, caller, run, series, number)), media_type="application/json")


@router.get(
    "/runs/{run}/invoices/{series}/{number}/pdf", responses={200: {"content": {"application/pdf": {}}}}
)
def invoice_pdf(
    server: TheServer, caller: InvoiceReader, run: RunName, series: Series, number: Number
) -> Response:
    """One document as PDF."""
    found = _document(server, caller, run, series, number)
    try:
        body = pdf_bytes(found)
    except ConfigError:
        raise Problem(409, "the font of this server lacks a character of this document") from None
    return _attached(body, "application/pdf", f"{found.name}.pdf")


@router.get(
    "/runs/{run}/invoices/{series}/{number}/ubl", responses={200: {"content": {"application/xml": {}}}}
)
def invoice_ubl(
    server: TheServer, caller: InvoiceReader, run: RunName, series: Series, number: Number
) -> Response:
    """One document as UBL 2.1 of EN 16931; 409 if its VAT was not decided."""
    found = _document(server, caller, run, series, number)
    with _written_as_en16931():
        return _attached(xml_bytes(found, UBL), "application/xml", f"{found.name}.xml")


@router.get(
    "/runs/{run}/invoices/{series}/{number}/facturx", responses={200: {"content": {"application/pdf": {}}}}
)
def invoice_facturx(
    server: TheServer, caller: InvoiceReader, run: RunName, series: Series, number: Number
) -> Response:
    """One document as Factur-X, a PDF with its CII; 409 if its VAT was not decided."""
    found = _document(server, caller, run, series, number)
    with _written_as_en16931():
        return _attached(facturx_bytes(found), "application/pdf", f"{found.name}.pdf")


@contextmanager
def _written_as_en16931() -> Iterator[None]:
    """Turns what the document or this server lacks for EN 16931 into a 409."""
    try:
        yield
    except ConfigError as error:
        raise Problem(409, str(error)[:1000]) from None


def _attached(body: bytes, media_type: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(body, media_type=media_type, headers=headers)


def _document(server: TheServer, caller: Principal | None, run: str, series: str, number: int) -> Document:
    served_run = server.run_for(caller, run)
    may_see(caller, evm_address(served_run.spec()[0].buyer))
    with served_run.opened() as db, missing():
        return read_document(db, series, number)


@router.post(
    "/quotes",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/toml": {
                    "schema": {"type": "string"},
                    "example": '[run]\nname = "mine"\nrounds = 100\nnodes = 5\nverifiers = 4\n',
                }
            },
        }
    },
)
def quote(
    server: TheServer,
    caller: Quoter,
    request: Request,
    body: Annotated[bytes, Body(include_in_schema=False, media_type="application/toml")],
) -> QuoteAnswer:
    """Maximum and expected cost of an order; the body is a run file, which may name no other file."""
    if not request.headers.get("content-type", "").startswith("application/toml"):
        raise Problem(415, "expected a run file as application/toml")
    try:
        order = read_order(body.decode())
        found = quote_of(order)
        at_most, expected = cost_at_most(found.terms), cost_expected(found.terms)
    except UnicodeDecodeError:
        raise Problem(422, "the run file is not UTF-8 text") from None
    except ConfigError as error:
        raise Problem(422, str(error)[:1000]) from None
    return QuoteAnswer.of(
        found,
        quote=found.name,
        epochs=found.terms.epochs,
        at_most=at_most,
        expected=expected,
        price_per_mtoken=found.terms.money.price_per_mtoken,
    )


@router.get("/deployment")
def deployment(server: TheServer) -> DeploymentAnswer:
    """The chain and the contracts that moves are prepared for."""
    found = server.chain().deployment
    return DeploymentAnswer.of(found, contracts={name: found.address(name) for name in CONTRACTS})


@router.get("/orders/{run_id}")
def order(server: TheServer, caller: Reader, run_id: Annotated[HashGiven, Path()]) -> OrderAnswer:
    """A run's present escrow, from the contract."""
    chain = server.chain()
    raw = bytes.fromhex(run_id[2:])
    found = chain.run(raw)
    if found is None:
        raise Problem(404, "no run of this id was opened")
    if not server.may_read(caller) and not _is_own(caller, found.buyer):
        raise Problem(403, "only a run's buyer, and the readers of this server, may read its escrow")
    return OrderAnswer.of(found, run_id=raw, pending_results=found.pending, chain_time=chain.timestamp())


@router.get("/stakes/{role}/{account}")
def stake(
    server: TheServer,
    caller: Reader,
    role: Annotated[Literal["operator", "verifier"], Path()],
    account: Annotated[AddressText, Path()],
) -> StakeAnswer:
    """An account's present stake in one role, from the contract."""
    from eth_utils.address import to_checksum_address

    chain, holder = server.chain(), to_checksum_address(account)
    if not server.may_read(caller) and not _is_own(caller, holder):
        raise Problem(403, "only an account's owner, and the readers of this server, may read its stake")
    found = chain.stake_of(holder, ROLES[role])
    return StakeAnswer.of(
        found,
        account=holder,
        role=role,
        leaving=found.unbonding,
        rewards=str(chain.rewards_of(holder)),
        banned=chain.is_banned(holder),
    )


def _is_own(caller: Principal | None, account: str) -> bool:
    return caller is not None and (caller.account or "").lower() == account.lower()
