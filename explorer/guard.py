"""Guard: ASGI middleware that answers an explorer's readers only, with security headers on every answer.

Room: explorer (edge: ASGI). The headers let a page load this server's own files and nothing else; a text that
got past the templates could still not run as a script. A request that names another host is refused: else any
web site could make its name lead to this machine and read what is served here (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.responses import PlainTextResponse

from assay.network.http import HEADERS, PAGE_POLICY, App, Message, Receive, Send, hosts_of

ADDRESS_BYTES_MAX = 2048
POLICY = PAGE_POLICY.decode()
# The one page with a form sends it to this server, by GET; no other page may send one anywhere.
FORM_PATH, FORM_POLICY = "/orders/new", POLICY.replace("form-action 'none'", "form-action 'self'")


class Guard:
    """An app behind these rules. hosts: by which readers may call this server; empty: by any name."""

    def __init__(self, app: App, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, frozenset(hosts)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request; see the module text."""
        if scope["type"] != "http":
            return

        policy = FORM_POLICY if scope["path"] == FORM_PATH else POLICY

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = (
                    (b"content-security-policy", policy.encode()), *HEADERS, (b"cache-control", b"no-store"),
                )  # fmt: skip
                names = {name for name, _ in own}
                kept = [(name, value) for name, value in message.get("headers", ()) if name not in names]
                message = {**message, "headers": [*kept, *own]}
            await send(message)

        app = self._refusal(scope) or self._app
        await app(scope, receive, send_guarded)

    def _refusal(self, scope: Message) -> App | None:
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > ADDRESS_BYTES_MAX:
            return PlainTextResponse(f"an address has at most {ADDRESS_BYTES_MAX} bytes\n", 414)
        named = hosts_of(scope)
        if self._hosts and (len(named) != 1 or named[0] not in self._hosts):
            return PlainTextResponse("this explorer is not at that host\n", 421)
        return None
