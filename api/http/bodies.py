"""Bodies: parses untrusted JSON request bodies strictly.

Room: api (edge: HTTP requests). Nesting is bounded before anything recurses, numbers are finite, and
duplicate keys are refused: every parser reads the same value that we check.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from assay.api.http.problems import Problem
from assay.protocol.encoding.json_text import parse_json

NESTED_MAX = 32


def read_json(body: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: not JSON, nested too deep, a number that is not finite, or a duplicate key.
    """
    _check_depth(parse_json(body))
    return json.loads(body, parse_constant=_not_a_number, parse_float=_finite, object_pairs_hook=_once)


class StrictRoute(APIRoute):
    """A route whose JSON body is parsed by `read_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, on a request that parses strictly."""
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await inner(_StrictRequest(request.scope, request.receive))

        return handle


class _StrictRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        try:
            return read_json(body)
        except (ValueError, RecursionError) as error:
            raise Problem(400, f"the body is not valid JSON: {str(error)[:200]}") from None


def _check_depth(value: Any, depth: int = 0) -> None:
    if depth > NESTED_MAX:
        raise ValueError(f"nested more than {NESTED_MAX} deep")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        _check_depth(one, depth + 1)


def _not_a_number(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is too large")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a duplicate key")
    return found
