"""Webhook routes: register, list and remove the webhooks of an account or token.

Room: api (edge). Registering makes this server send, so it needs more than reading: a token with the scope
`hook`, or the session of an account that takes part in the run, also where everybody may read.
"""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from starlette.responses import Response

from assay.api.access import NoRoom, Principal
from assay.api.hooks.message import secret_text
from assay.api.hooks.store import HookExists, HookStore
from assay.api.http.bodies import StrictRoute
from assay.api.http.problems import Problem
from assay.api.schemas import HookAnswer, HookAsked, NewHookAnswer
from assay.api.server import TheServer, needs, server_of
from assay.ledger.queries.lookup import log_edge

log = logging.getLogger(__name__)
router = APIRouter(route_class=StrictRoute, prefix="/v1/hooks", tags=["webhooks"])
Owner = Annotated[Principal, Depends(needs("hook"))]
HookId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$")]


def _hooks(request: Request) -> HookStore:
    server = server_of(request)
    if not server.config.webhooks:
        raise Problem(503, "this server sends no webhooks")
    return HookStore(server.access)


Hooks = Annotated[HookStore, Depends(_hooks)]


@router.post("", status_code=201)
def register(server: TheServer, caller: Owner, hooks: Hooks, body: HookAsked) -> NewHookAnswer:
    """Have each new entry of a run posted to an address; the answer alone has the webhook's secret."""
    run = server.run_for(caller, body.run)
    if not server.may_be_sent(owner := server.name_of(caller), caller.token, run):
        raise Problem(403, "only a run's parties, and the readers of this server, may have its entries sent")
    with run.opened() as db:
        size = log_edge(db).size
    position = size if body.after is None else body.after
    if position > size:
        raise Problem(409, f"the log has {size} entries, so none can follow entry {position}")
    try:
        made = hooks.add(
            owner=owner,
            token=caller.token,
            run=run.name,
            url=body.url,
            position=position,
            now_s=server.now_s(),
        )
    except HookExists:
        raise Problem(409, "there is a webhook of this run at this address; remove it first") from None
    except NoRoom as error:
        raise Problem(429, str(error), headers={"Retry-After": "3600"}) from None
    # without its address: the path may be secret
    log.info("webhook registered", extra={"hook": made.id, "run": run.name, "owner": owner})
    return NewHookAnswer.of(made, secret=secret_text(hooks.secret(made.id)))


@router.get("")
def registered(server: TheServer, caller: Owner, hooks: Hooks) -> list[HookAnswer]:
    """The caller's webhooks, how far each is, and why one failed."""
    return [HookAnswer.model_validate(one) for one in hooks.of(server.name_of(caller))]


@router.delete("/{hook_id}", status_code=204)
def remove(server: TheServer, caller: Owner, hooks: Hooks, hook_id: HookId) -> Response:
    """Remove a webhook; nothing more is sent to it, but for what is under way."""
    if not hooks.remove(hook_id, server.name_of(caller)):
        raise Problem(404, "the caller has no webhook of this id")
    return Response(status_code=204)
