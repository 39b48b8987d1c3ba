"""Problems: error responses of the API, as problem details (RFC 9457).

Room: api (edge: HTTP responses). A caller learns only what was expected: an internal
error is an incident number in the response and a line in the log.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from assay.chain.rpc import ChainRefused
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.protocol.errors import AssayError, Unavailable

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"
ERRORS_MAX = 8  # reported per request


class Problem(HTTPException):
    """An error response."""

    def __init__(self, status: int, detail: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, dict(headers or {}))


def problem_body(status: int, detail: str, **more: Any) -> bytes:
    """The JSON text of a problem."""
    title = HTTPStatus(status).phrase
    problem = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
    return json.dumps(problem, ensure_ascii=True).encode()


def problem_answer(
    status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    """A problem as a response."""
    return Response(problem_body(status, detail, **more), status, dict(headers or {}), MEDIA_TYPE)


def incident(error: BaseException, where: str) -> Response:
    """A response with only an incident number; the log has the rest."""
    number = secrets.token_hex(8)
    log.error("incident", extra={"incident": number, "where": where}, exc_info=error)
    return problem_answer(500, f"incident {number}", incident=number)


def add_handlers(app: FastAPI) -> None:
    """Convert every error of the app to a problem response."""
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(ChainRefused, _on_refused)
    app.add_exception_handler(Unavailable, _on_unavailable)
    app.add_exception_handler(LedgerIntegrityError, _on_other)
    app.add_exception_handler(AssayError, _on_other)
    app.add_exception_handler(Exception, _on_other)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem_answer(error.status_code, error.detail, error.headers)


async def _on_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [
        {"at": ".".join(str(part)[:40] for part in one["loc"])[:200], "expected": str(one["msg"])[:200]}
        for one in error.errors()[:ERRORS_MAX]
    ]
    first = f"{errors[0]['at']}: {errors[0]['expected']}" if errors else "not the documented request"
    return problem_answer(422, first, errors=errors)


async def _on_refused(request: Request, error: Exception) -> Response:
    return problem_answer(409, f"the contract refuses: {str(error)[:300]}")


async def _on_unavailable(request: Request, error: Exception) -> Response:
    log.warning("unavailable", extra={"where": request.url.path[:200], "reason": str(error)[:500]})
    return problem_answer(503, "books or chain cannot be reached now", {"Retry-After": "5"})


async def _on_other(request: Request, error: Exception) -> Response:
    return incident(error, request.url.path[:200])
