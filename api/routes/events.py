"""Events routes: a run's journal as it is written, as server-sent events.

Room: api (edge). A stream obeys the same access rule as the pages of entries.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from assay.api.http.bodies import StrictRoute
from assay.api.http.guard import IS_HEAD
from assay.api.routes.books import RunName
from assay.api.server import Reader, TheServer
from assay.api.streams import EventStream
from assay.network.http import counted_by

router = APIRouter(route_class=StrictRoute, prefix="/v1", tags=["books"])
Number = Annotated[int, Query(ge=0, lt=2**63, description="number of the last entry that the reader has")]
LastId = Annotated[int | None, Header(ge=0, lt=2**63, description="the same, sent by readers that resume")]


@router.get("/runs/{run}/events", responses={200: {"content": {"text/event-stream": {}}}})
def events(
    server: TheServer,
    caller: Reader,
    run: RunName,
    request: Request,
    after: Number = 0,
    last_event_id: LastId = None,
) -> Response:
    """The journal as it is written, as server-sent events: each entry's number, kind and content."""
    served_run = server.run_for(caller, run)
    if request.scope.get(IS_HEAD):
        return Response(media_type=EventStream.media_type)
    return EventStream(
        server.streams,
        served_run,
        caller=counted_by(request.scope) if caller is None else server.name_of(caller),
        after=after if last_event_id is None else last_event_id,
        check=lambda: server.check_still_reads(request, served_run),
    )
