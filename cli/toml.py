"""TOML: files a person writes, and what to say when they do not fit.

Room: cli (edge: reads files). Every complaint names the file, the key, what
arrived and what was expected; an unknown key comes with the nearest known one.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from protocol.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(path: Path) -> dict[str, Any]:
    """The file's tables.

    Raises:
        ConfigError: it cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def explain(file: str, model: type[BaseModel], error: ValidationError) -> str:
    """One line per problem: file, key, what arrived, what was expected."""
    lines = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            known = sorted(_keys_beside(model, problem["loc"]))
            near = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; expected one of {', '.join(known)}"
            lines.append(f"{file}: unknown key {where!r}{hint}")
        elif problem["type"] == "missing":
            lines.append(f"{file}: {where} is missing")
        else:
            lines.append(f"{file}: {where} = {problem['input']!r}: {problem['msg']}")
    return "\n".join(lines)


def _keys_beside(model: type[BaseModel], location: tuple[int | str, ...]) -> set[str]:
    """The keys that were allowed where an unknown one stood."""
    here: Any = model
    for part in location[:-1]:
        if isinstance(part, int) or not (isinstance(here, type) and issubclass(here, BaseModel)):
            continue
        field = here.model_fields.get(str(part))
        here = None if field is None else _model_in(field.annotation)
    if isinstance(here, type) and issubclass(here, BaseModel):
        return set(here.model_fields)
    return set()


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg)) is not None), None)
