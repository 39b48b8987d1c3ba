"""Load: reads a buyer's order, and every file that it names, once.

Room: orders (edge: reads files). Every key has a default, every unknown key is refused, and every problem
becomes one line that names the file and the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from assay.attestation.policy import AppraisalPolicy
from assay.attestation.policy_file import policy_of
from assay.orders.choices import choices_in
from assay.orders.config_errors import ConfigProblem, problems_of
from assay.orders.drand import QUICKNET_ASKED, DrandNetwork, check_wait, read_network
from assay.orders.method import order_rule
from assay.orders.model import chat_template_of, model_sizes, tokenizer_of
from assay.orders.order import Order, contradictions
from assay.orders.sections import RunFile, VerifySection
from assay.orders.toml import read_toml
from assay.protocol.errors import ConfigError
from assay.verifier.audit.limits import Limits, parse_limits, shipped

COMMAND_LINE = "command line"


def load_order(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Order:
    """The order a file describes, with choices from the command line on top.

    Args:
        path: A run.toml; without one, the defaults.
        overrides: By key path ("run.rounds", "data"), in place of the file's; None keeps that.

    Raises:
        ConfigError: one line for each problem, with the file, the key and what was expected.
    """
    raw = read_toml(path) if path else {}
    if path and not raw:
        raise ConfigError(f"{path}: is empty, expected an order: see examples/quickstart.toml")
    chosen = {key: value for key, value in (overrides or {}).items() if value is not None}
    for key, value in chosen.items():
        _override(raw, key.split("."), value)
    return order_of(raw, path.parent if path else Path(), path, chosen)


def order_of(
    raw: Mapping[str, Any],
    folder: Path,
    path: Path | None = None,
    chosen: Mapping[str, Any] | None = None,
) -> Order:
    """The order in already parsed tables.

    Args:
        raw: As read from TOML.
        folder: Where relative paths in them start.
        path: The file they come from, for messages.
        chosen: Keys that come from the command line instead, for messages.

    Raises:
        ConfigError: one line for each problem, with the file, the key and what was expected.
    """
    try:
        found = examined(raw, folder)
    except ConfigError as fault:
        raise ConfigError(f"{path or COMMAND_LINE}: {fault}") from None
    if not isinstance(found, Order):
        raise ConfigError("\n".join(f"{_origin(path, chosen or {}, p)}: {p.text()}" for p in found))
    return found


def examined(raw: Mapping[str, Any], folder: Path) -> Order | list[ConfigProblem]:
    """The order in already parsed tables, or every problem of them.

    Args:
        raw: As read from TOML.
        folder: Where relative paths in them start.

    Raises:
        ConfigError: a file that they name cannot be read, or has not what its key expects.
    """
    try:
        order = resolve(RunFile.model_validate(raw), folder)
    except ValidationError as error:
        return problems_of(error, RunFile)
    return list(contradictions(order)) or order


def resolve(file: RunFile, folder: Path) -> Order:
    """The order of these tables, with the contents of the files they name.

    Args:
        file: Each table by itself is sound; whether they contradict each other is not checked.
        folder: Where relative paths start.

    Raises:
        ConfigError: a file cannot be read, or its content is not what its key expects.
    """
    try:
        tokenizer = tokenizer_of(file.model, folder)
        sizes = model_sizes(file.model, folder, tokenizer)
        has_chat = any(source.is_templated for source in file.data)
        chat = chat_template_of(file.model, folder, tokenizer) if has_chat else None
    except ConfigError as fault:
        raise ConfigError(f"[model]: {fault}") from None
    source = file.evaluate.choices
    return Order(
        **dict(file),
        folder=folder,
        sizes=sizes,
        tokenizer=tokenizer,
        chat=chat,
        choices=None if source is None else choices_in(folder / source, tokenizer, sizes),
        rule=order_rule(file.run, file.train, file.comm),
        limits=_limits(file.verify, folder),
        policy=_policy(file.verify, folder),
        drand=_drand(file.verify, folder, file.timing.iteration_s),
    )


def _limits(verify: VerifySection, folder: Path) -> Limits | None:
    if verify.limits in ("shipped", "none"):
        return shipped() if verify.limits == "shipped" else None
    path = folder / verify.limits
    try:
        return parse_limits(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"[verify] limits: {path}: {error}") from None


def _policy(verify: VerifySection, folder: Path) -> AppraisalPolicy | None:
    if verify.attestation is None:
        return None
    path = folder / verify.attestation
    return policy_of(read_toml(path), f"[verify] attestation: {path}")


def _drand(verify: VerifySection, folder: Path, iteration_s: float) -> DrandNetwork | None:
    if verify.drand is None:
        return None
    if verify.drand == "quicknet":
        found = replace(QUICKNET_ASKED, urls=verify.drand_urls or QUICKNET_ASKED.urls)
    else:
        found = DrandNetwork(read_network(folder / verify.drand), verify.drand_urls)
        if not found.urls:
            raise ConfigError("[verify] drand: a network of your own needs drand_urls, where it is asked")
    check_wait(found, iteration_s)
    return found


def _override(raw: dict[str, Any], key: list[str], value: Any) -> None:
    table: Any = raw
    for part in key[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return  # an error in the file; it is reported as such
    table[key[-1]] = value


def _origin(path: Path | None, chosen: Mapping[str, Any], problem: ConfigProblem) -> str:
    """Where a value was set: in the file, or on the command line."""
    parts = [str(part) for part in problem.place]
    if any(parts[: key.count(".") + 1] == key.split(".") for key in chosen):
        return COMMAND_LINE
    return str(path) if path else "default order"
