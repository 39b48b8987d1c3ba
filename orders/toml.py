"""TOML: reads hand-written files with size bounds and readable errors.

Room: orders (edge: reads files). Pydantic models check the content; `config_errors` words the problems.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from assay.orders.config_errors import problems_of
from assay.protocol.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib as tomllib
else:
    import tomli as tomllib

FILE_BYTES_MAX = 1 << 20
Tables = TypeVar("Tables", bound=BaseModel)


def read_tables(path: Path, kind: type[Tables]) -> Tables:
    """The file's tables, checked.

    Raises:
        ConfigError: it cannot be read; unknown or missing keys, wrong types: one line each.
    """
    try:
        return kind.model_validate(read_toml(path))
    except ValidationError as error:
        lines = (f"{path}: {problem.text()}" for problem in problems_of(error, kind))
        raise ConfigError("\n".join(lines)) from None


def read_toml(path: Path) -> dict[str, Any]:
    """The file's tables.

    Raises:
        ConfigError: it cannot be read, is far too long, or is not TOML.
    """
    try:
        if path.is_dir():
            raise ConfigError(f"{path}: is a folder, expected a TOML file")
        with open(path, "rb") as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except OSError as cause:
        raise ConfigError(f"{path}: cannot be read ({cause.strerror or cause})") from None
    if len(body) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: more than {FILE_BYTES_MAX} bytes, expected a configuration")
    try:
        return tomllib.loads(body.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text, expected a TOML file") from None
    except tomllib.TOMLDecodeError as cause:
        raise ConfigError(f"{path}: is not TOML: {cause}") from None
    except (RecursionError, ValueError) as cause:
        raise ConfigError(f"{path}: is not TOML that can be read: {cause}") from None
