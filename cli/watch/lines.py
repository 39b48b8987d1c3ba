"""Lines: the texts of a picture, for the page of `assay watch` and for a pipe.

Room: cli (pure).
"""

from __future__ import annotations

from collections.abc import Iterator

from assay.chain.text.times import span_text
from assay.cli.watch.picture import NodeView, Picture
from assay.orders.amounts import DECIMALS, UNIT

UNKNOWN = "-"


def picture_lines(found: Picture) -> Iterator[str]:
    """A picture for a log or a pipe."""
    yield f"run       {found.run_id.hex()}"
    yield f"now       {head(found)}"
    yield f"loss      {loss_text(found)}"
    yield f"audits    {audits_text(found)}"
    yield f"peers     {peers_text(found)}"
    yield f"latency   {latency_text(found)}"
    for name, text in money_rows(found):
        yield f"{name:<9} {text}"
    if found.note:
        yield f"note      {found.note}"
    for node in found.nodes:
        name, status, audit, last, steps, clean, pay, stake, trip = node_cells(node)
        drawn = f", {audit}" if audit else ""
        yield (
            f"node      {name}  {status}{drawn}, last step {last}, {steps} steps accepted, "
            f"{clean} audits passed in a row, pay {pay}, stake {stake}, round trip {trip}"
        )
    for event in found.events:
        yield f"event     round {event.round}: {event.text}"


def head(found: Picture) -> str:
    """Where the run is: one line."""
    epoch = f"epoch {found.epoch + 1} of {found.epochs}"
    done = f"round {min(found.round, found.rounds)}/{found.rounds}"
    return f"{found.state}  {done}  {epoch}  {left_text(found)}"


def left_text(found: Picture) -> str:
    """How long training goes on."""
    if found.state == "waiting":
        return "no round is final yet"
    if found.left_s is None:
        return "training is over" if found.round >= found.rounds else "time left unknown"
    return f"{span_text(found.left_s)} left"


def loss_text(found: Picture) -> str:
    """The first loss, the last one, and the least."""
    if not found.losses:
        return "no loss yet"
    losses = found.losses
    return f"{losses[-1]:.4f} nats a token, from {losses[0]:.4f}, least {min(losses):.4f}"


def audits_text(found: Picture) -> str:
    """Counts of audits; the others are pending, or ended without a result."""
    return f"{found.drawn} drawn, {found.passed} passed, {found.failed} failed"


def money_rows(found: Picture) -> list[tuple[str, str]]:
    """Stake, pay and spend, by name."""
    hourly = found.paid_an_hour
    return [
        ("stake", _tokens(found.stake)),
        ("pay", f"{_tokens(found.paid)} settled"),
        ("earned", f"{_tokens(found.earned)} to be settled"),
        ("an hour", _tokens(hourly)),
        ("spent", spent_text(found)),
    ]


def spent_text(found: Picture) -> str:
    """What is spent of the budget."""
    if not found.budget:
        return f"{_tokens(found.spent)} of an unknown budget"
    return f"{amount_text(found.spent)} of {amount_text(found.budget)}, {found.spent / found.budget:.0%}"


def peers_text(found: Picture) -> str:
    """How many take part now."""
    nodes = sum(one.status in ("training", "new") for one in found.nodes)
    verifiers = sum(one.is_present for one in found.verifiers)
    return f"{nodes}/{len(found.nodes)} nodes, {verifiers}/{len(found.verifiers)} verifiers"


def latency_text(found: Picture) -> str:
    """How far the peers are from the process whose store this is."""
    if found.longest_round_trip_us is None:
        return "no round trip measured"
    return f"{trip_text(found.round_trip_us)} median, {trip_text(found.longest_round_trip_us)} longest"


def trip_text(us: int | None) -> str:
    """One round trip."""
    return UNKNOWN if us is None else f"{us / 1000:,.1f} ms"


def node_cells(node: NodeView) -> tuple[str, ...]:
    """One node as the cells of a table."""
    return (
        node.peer.hex()[:8],
        node.status,
        "drawn" if node.is_drawn else "",
        UNKNOWN if node.last_round is None else str(node.last_round),
        str(node.accepted),
        str(node.clean),
        amount_text(node.paid + node.earned),
        amount_text(node.stake),
        trip_text(node.round_trip_us),
    )


def amount_text(units: int | None) -> str:
    """Token units as tokens, rounded to what a person reads at a glance; `--json` is exact."""
    if units is None:
        return UNKNOWN
    tokens = units / 10**DECIMALS
    return f"{tokens:,.2f}" if abs(tokens) >= 100 else f"{tokens:,.4f}"


def _tokens(units: int | None) -> str:
    return UNKNOWN if units is None else f"{amount_text(units)} {UNIT}"
