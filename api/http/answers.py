"""Answers: bodies that were made before, by their ETag.

Room: api (edge: memory). An ETag names everything that an answer depends on, so an answer made once is the
answer to every later request with the same one. Whether the caller may have it is asked before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import BoundedSemaphore, Lock

from pydantic import BaseModel
from starlette.responses import Response

MAKERS = 2  # answers made at once: forty threads take three times the CPU, over the interpreter's lock
PATIENCE_S = 2.0  # for which an answer waits for others to be made


class Answers:
    """The answers used last. Safe from several threads."""

    def __init__(self, bytes_max: int = 1 << 25) -> None:
        """Bodies of at most `bytes_max` bytes together; those used longest ago go first."""
        self._bytes_max = bytes_max
        self._bodies: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()
        self._makers = BoundedSemaphore(MAKERS)

    def kept(self, tag: str) -> Response | None:
        """The answer with this ETag, if it is kept."""
        with self._lock:
            body = self._bodies.get(tag)
            if body is not None:
                self._bodies.move_to_end(tag)
        return None if body is None else _answer(tag, body)

    def of(self, tag: str, make: Callable[[], BaseModel]) -> Response:
        """The answer with this ETag, made only if it is not kept."""
        found = self.kept(tag)
        if found is not None:
            return found
        is_counted = self._makers.acquire(timeout=PATIENCE_S)
        try:
            body = make().model_dump_json().encode()
        finally:
            if is_counted:
                self._makers.release()
        self._keep(tag, body)
        return _answer(tag, body)

    def _keep(self, tag: str, body: bytes) -> None:
        with self._lock:
            self._bytes += len(body) - len(self._bodies.pop(tag, b""))
            self._bodies[tag] = body
            while self._bytes > self._bytes_max:
                self._bytes -= len(self._bodies.popitem(last=False)[1])


def _answer(tag: str, body: bytes) -> Response:
    return Response(body, media_type="application/json", headers={"ETag": tag})
