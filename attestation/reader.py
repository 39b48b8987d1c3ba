"""Reader: bounds-checked sequential reader of untrusted binary structures.

Room: attestation (pure). Every parser of this package uses it, so out-of-range
lengths and trailing bytes are refused in one place.
"""

from __future__ import annotations

from assay.protocol.errors import MalformedMessage


class Reader:
    """Reads `data` once, from start to end.

    Args:
        data: Untrusted.
        what: The structure's name, for error texts.
        bytes_max: Largest size of `data`.

    Raises:
        MalformedMessage: by every method, if the field lies outside of `data`.
    """

    def __init__(self, data: bytes, what: str, bytes_max: int) -> None:
        if len(data) > bytes_max:
            raise MalformedMessage(f"{what}: {len(data)} bytes, at most {bytes_max} expected")
        self._data = data
        self._what = what
        self._at = 0

    @property
    def at(self) -> int:
        """Bytes read so far."""
        return self._at

    def take(self, count: int, name: str) -> bytes:
        """The next `count` bytes."""
        left = len(self._data) - self._at
        if count > left:
            raise MalformedMessage(f"{self._what}: {name} needs {count} bytes, {left} are left")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, count: int, name: str) -> int:
        """The next `count` bytes as a little-endian unsigned integer."""
        return int.from_bytes(self.take(count, name), "little")

    def expect(self, found: int | bytes, expected: int | bytes, name: str) -> None:
        """Do nothing if a field has the value that the format fixes."""
        if found != expected:
            raise MalformedMessage(f"{self._what}: {name} is {_shown(found)}, expected {_shown(expected)}")

    def zeros(self, count: int, name: str) -> None:
        """Skip a reserved field, which must be zero since no signature need cover it."""
        if any(self.take(count, name)):
            raise MalformedMessage(f"{self._what}: {name} is not zero, expected {count} zero bytes")

    def end(self) -> None:
        """Do nothing if all of `data` was read."""
        if self._at != len(self._data):
            raise MalformedMessage(f"{self._what}: {len(self._data) - self._at} bytes after the end")


def _shown(value: int | bytes) -> str:
    return value.hex()[:40] if isinstance(value, bytes) else str(value)
