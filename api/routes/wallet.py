"""Wallet routes: the page on which a browser's wallet signs moves, and the page's own files.

Room: api (edge). The page is the same bytes for everybody; static/wallet.mjs says what it does. Only what is
listed here is served: an address is looked up and never made into a path.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, HTMLResponse

from assay.api.http.guard import PAGE_PATH
from assay.api.http.problems import Problem
from assay.api.server import TheServer

STATIC = Path(__file__).parents[1] / "static"
PAGE = STATIC / "wallet.html"
PLACE = "<!--explorer-->"  # in the page
MEDIA_TYPES = {".css": "text/css", ".mjs": "text/javascript", ".svg": "image/svg+xml"}
FILES = {path.name: path for path in STATIC.iterdir() if path.suffix in MEDIA_TYPES}

router = APIRouter(prefix=PAGE_PATH, include_in_schema=False)


@router.get("")
def page(server: TheServer) -> HTMLResponse:
    """The page, with a link to the explorer that the server's file names, if it names one."""
    explorer = server.config.explorer
    link = f'<p><a href="{escape(explorer)}/">Explorer</a></p>' if explorer else PLACE
    return HTMLResponse(PAGE.read_text().replace(PLACE, link))


@router.get("/{name}")
def file(name: str) -> FileResponse:
    """One of the page's files."""
    found = FILES.get(name)
    if found is None:
        raise Problem(404, "no such file")
    return FileResponse(found, media_type=MEDIA_TYPES[found.suffix])
