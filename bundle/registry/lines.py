"""Registry lines: a registry entry as lines for people.

Room: bundle (edge: reads one file). Quoted text in the entry is shown without control characters.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from assay.bundle.registry.document import Checkpoint, Entry, read_entry
from assay.bundle.registry.files import ENTRY, FOLDER
from assay.orders.config_errors import one_line
from assay.protocol.errors import ConfigError

ENTRY_BYTES_MAX = 1 << 26
WIDTH = 24


def find_entry(place: Path) -> tuple[str, Entry]:
    """The entry's text and value, from a run's folder or a bundle.

    Raises:
        ConfigError: there is none, or it is not in the form of `Entry`.
    """
    path = next(
        (at for at in (place / "bundle" / FOLDER / ENTRY, place / FOLDER / ENTRY) if at.is_file()), None
    )
    if path is None:
        raise ConfigError(f"{place}: no delivered run, expected `{FOLDER}/{ENTRY}` in its bundle")
    try:
        with open(path, "rb") as file:
            body = file.read(ENTRY_BYTES_MAX + 1)
        if len(body) > ENTRY_BYTES_MAX:
            raise ConfigError(f"{path}: more than {ENTRY_BYTES_MAX} bytes")
        return body.decode(), read_entry(body)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not a registry entry ({error})") from None


def entry_lines(entry: Entry) -> list[str]:
    """Name and value, a line each."""
    return [f"{name:<{WIDTH}}{one_line(value)}".rstrip() for name, value in _rows(entry)]


def _rows(entry: Entry) -> Iterator[tuple[str, str]]:
    model, record, log = entry.model, entry.record, entry.log
    yield "model", f"{model.name}  {model.id}"
    yield "weights", f"sha256 {model.weights.sha256}"
    yield "architecture", f"{model.architecture}; context {model.context_tokens:,}"
    yield "parameters", f"{model.parameters:,}"
    if model.adapter is not None:
        yield "adapter", model.adapter.text
    yield "started from", model.started_from
    yield "licence", model.licence or "not stated"
    yield "run", entry.run.id
    yield "record on chain", "none" if record is None else record.record_id.hex()
    yield from _data(entry)
    yield from _work(entry)
    yield from _people(entry)
    paid = entry.settlement.paid
    yield "paid", ", ".join(f"{role} {amount:,}" for role, amount in paid.items())
    yield "", f"in units of {entry.settlement.unit}, {len(entry.settlement.epochs)} epochs"
    yield "books", "no cosigned checkpoint" if log is None else _checkpoint(log)


def _data(entry: Entry) -> Iterator[tuple[str, str]]:
    data, tokens = entry.data, entry.tokens
    yield "data", f"{data.tokens:,} tokens, {data.held_out_tokens:,} held out, {data.digest}"
    for source in data.sources:
        yield "", f"{source.source} ({source.licence}): {source.tokens:,} tokens"
    yield "tokens processed", f"{tokens.processed:,}, the training data {tokens.epochs_text}"
    yield "tokens accepted", f"{tokens.accepted:,}; discarded {tokens.discarded:,}"


def _work(entry: Entry) -> Iterator[tuple[str, str]]:
    flop, energy, limits = entry.flop, entry.energy, entry.thresholds
    yield "FLOP accepted", f"{flop.accepted:,}"
    yield "FLOP discarded", f"{flop.discarded:,}"
    yield "FLOP verification", f"{flop.verification:,}"
    yield "", flop.formula
    yield "energy, estimated", f"{energy.kwh} kWh at {energy.flop_per_joule:,} FLOP per joule"
    yield "", energy.flop_per_joule_source
    bound = "at least " if limits.is_lower_bound else ""
    yield "of 10^23, 10^25 FLOP", f"{bound}{limits.share_of_1e23}, {limits.share_of_1e25}"
    for alert in limits.alerts:
        yield "ALERT", alert


def _people(entry: Entry) -> Iterator[tuple[str, str]]:
    audits, people = entry.audits, entry.participants
    for one in people.operators:
        banned = f"; banned: {one.banned}" if one.banned else ""
        accepted = f"{one.accepted:,} of {one.contributions:,} contributions accepted{banned}"
        yield f"operator {one.peer[:8]}", accepted
    for verifier in people.verifiers:
        disqualified = f"; disqualified: {verifier.disqualified}" if verifier.disqualified else ""
        yield f"verifier {verifier.peer[:8]}", f"{verifier.verdicts:,} verdicts{disqualified}"
    counts = ", ".join(f"{name} {count}" for name, count in audits.rulings.items() if count)
    yield "audits", f"{audits.drawn:,} drawn: {counts or 'none ruled'}"
    known = audits.known_answers
    yield "known-answer tasks", f"{known.found} found, {known.missed} missed, {known.ordered} ordered"


def _checkpoint(log: Checkpoint) -> str:
    return f"{log.size:,} leaves, root {log.root}, cosigned by {len(log.cosigners)} verifiers"
