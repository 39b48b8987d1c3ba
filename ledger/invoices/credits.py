"""Credits: credit notes for a whole invoice, for some of its epochs, or for an amount of one epoch.

Room: ledger (pure). A partial note has one line for each epoch. Its amounts in a currency are the
difference of two rounded shares, before and after it, so all notes of an invoice together take back
exactly what the invoice states, to the cent, and never more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from assay.chain.text.units import token_text
from assay.ledger.invoices.billing import Billed
from assay.ledger.invoices.document import REDUCTION, TEXT_CHARS_MAX, Document, Line
from assay.ledger.invoices.rates import half_up
from assay.protocol.errors import ConfigError


def credit_of(
    invoice: Document,
    earlier: Sequence[Document] = (),
    *,
    epoch: int | None = None,
    amount: int | None = None,
    number: int,
    issued_ms: int,
    reason: str,
    salt: str,
) -> Document:
    """A credit note for what is left of an invoice, or for a part of it.

    Args:
        invoice: What it takes back.
        earlier: The invoice's credit notes so far.
        epoch: Only this epoch; None: all of them.
        amount: Token units of that epoch; None: all that is left of it.
        number: Of the note.
        issued_ms: Unix time.
        reason: Why, in one line.
        salt: Of the note's hash.

    Raises:
        ConfigError: the reason is empty or cannot be printed, or more is asked than is left.
    """
    if not reason.strip() or not reason.isprintable() or len(reason) > TEXT_CHARS_MAX:
        raise ConfigError(f"a credit note needs a reason, one line of at most {TEXT_CHARS_MAX} characters")
    made = replace(
        invoice,
        series="credit",
        number=number,
        issued_ms=issued_ms,
        corrects=invoice.number,
        reason=reason,
        salt=salt,
    )
    if epoch is None and amount is None and not earlier:
        return made
    taken = _chosen(invoice, left_of(invoice, earlier), epoch, amount)
    facts = invoice.facts
    return replace(
        made,
        facts=replace(
            facts,
            first_epoch=min(taken),
            last_epoch=max(taken),
            lines=tuple(
                Line(epoch=one, what=REDUCTION, peer="", account="", tokens=0, amount=taken[one])
                for one in sorted(taken)
            ),
            not_charged=(),
            bases=tuple(basis for basis in facts.bases if basis.epoch in taken),
        ),
        billed=None if invoice.billed is None else _billed(invoice, invoice.billed, earlier, taken),
    )


def left_of(invoice: Document, credits: Sequence[Document]) -> dict[int, int]:
    """Token units of each epoch that no credit note has taken back; epochs with nothing left are absent."""
    left = _by_epoch(invoice)
    for note in credits:
        for epoch, amount in _by_epoch(note).items():
            left[epoch] -= amount
    return {epoch: amount for epoch, amount in left.items() if amount}


def _chosen(
    invoice: Document, left: Mapping[int, int], epoch: int | None, amount: int | None
) -> dict[int, int]:
    """Token units to take back, by epoch.

    Raises:
        ConfigError: nothing is left of it, or less than the amount.
    """
    if epoch is None:
        if amount is not None and len(_by_epoch(invoice)) > 1:
            raise ConfigError(f"{invoice.name} has several epochs: --epoch says of which one the amount is")
        epoch = invoice.facts.first_epoch if amount is not None else None
    if epoch is None:
        if not left:
            raise ConfigError(f"{invoice.name} was taken back already, nothing is left of it")
        return dict(left)
    here = left.get(epoch, 0)
    wanted = here if amount is None else amount
    if not 0 < wanted <= here:
        raise ConfigError(
            f"{invoice.name}: {token_text(here)} of epoch {epoch} are left, "
            f"a credit note of {token_text(wanted)} is not possible"
        )
    return {epoch: wanted}


def _billed(
    invoice: Document, billed: Billed, earlier: Sequence[Document], taken: Mapping[int, int]
) -> Billed:
    whole = _by_epoch(invoice)
    nets = dict.fromkeys(whole, 0)
    for line, net in zip(invoice.facts.lines, billed.line_nets, strict=True):
        nets[line.epoch] += net
    left = left_of(invoice, earlier)
    before = {epoch: whole[epoch] - left.get(epoch, 0) for epoch in whole}

    def net_share(epoch: int, amount: int) -> int:
        return half_up(nets[epoch] * amount, whole[epoch]) if whole[epoch] else 0

    line_nets = tuple(
        net_share(epoch, before[epoch] + taken[epoch]) - net_share(epoch, before[epoch])
        for epoch in sorted(taken)
    )
    net_before = sum(net_share(epoch, before[epoch]) for epoch in whole)
    net_after = net_before + sum(line_nets)
    tax = 0
    if billed.net:
        tax = half_up(billed.tax * net_after, billed.net) - half_up(billed.tax * net_before, billed.net)
    return replace(
        billed,
        rates=tuple(one for one in billed.rates if one.epoch in taken),
        line_nets=line_nets,
        tax=tax,
        paid=sum(line_nets) + (tax if billed.paid == billed.gross else 0),
    )


def _by_epoch(document: Document) -> dict[int, int]:
    found: dict[int, int] = {}
    for line in document.facts.lines:
        found[line.epoch] = found.get(line.epoch, 0) + line.amount
    return found
