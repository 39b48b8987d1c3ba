"""Chart: a curve of braille dots, two across and four down in each character.

Room: cli (pure). The scale is linear from the smallest value to the largest. A curve that is not complete
yet ends where it is; of values that share a column of dots, the last counts.
"""

from __future__ import annotations

from collections.abc import Sequence

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # by column and row, Unicode's braille patterns
_BLANK = 0x2800


def braille(values: Sequence[float], total: int, width: int, height: int) -> list[str]:
    """The curve of some values, oldest at the left.

    Args:
        values: Finite numbers.
        total: How many there will be; a curve of all of them fills the width.
        width: Characters across, at least 1.
        height: Lines, at least 1.

    Returns:
        `height` lines of `width` characters.
    """
    cells = [[0] * width for _ in range(height)]
    if values:
        low, high = min(values), max(values)
        rows, total = 4 * height, max(total, len(values))
        columns = max(2 * width * len(values) // total, 1)
        before: int | None = None
        for x in range(columns):
            value = _at(values, x, columns)
            y = rows - 1 if high == low else round((high - value) / (high - low) * (rows - 1))
            for dot in _between(before, y):  # a line without gaps
                cells[dot // 4][x // 2] |= _DOTS[x % 2][dot % 4]
            before = y
    return ["".join(chr(_BLANK + cell) for cell in line) for line in cells]


def _at(values: Sequence[float], x: int, columns: int) -> float:
    """The value at a column of dots: the last of several, or on the line between two."""
    if columns <= len(values):
        return values[(x + 1) * len(values) // columns - 1]
    place = x * (len(values) - 1) / (columns - 1)
    index = min(int(place), len(values) - 2) if len(values) > 1 else 0
    following = values[min(index + 1, len(values) - 1)]
    return values[index] + (following - values[index]) * (place - index)


def _between(before: int | None, y: int) -> range:
    if before is None or before == y:
        return range(y, y + 1)
    return range(before + 1, y + 1) if before < y else range(y, before)
