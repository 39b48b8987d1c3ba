"""DATEV: a month of the journal as a posting batch (EXTF, header 700, category 21, version 13).

Room: ledger (pure). The format has pairs of accounts and amounts in a currency, so each entry is split into
pairs of a debit and a credit, converted at the rate of its block's hour and rounded once; the tokens stand in
the text. Which account of a chart a kind of ours is, the operator says: nothing here decides a tax.

Reference: https://developer.datev.de/datev/platform/en/dtvf/formate, "Header" and "Posting batch".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone

from assay.chain.text.units import token_text
from assay.ledger.accounts import Account, Kind
from assay.ledger.invoices.rates import Rate, converted, minor_text, rate_at
from assay.ledger.journal.leaf import Written
from assay.ledger.queries.export import happened_at
from assay.protocol.errors import ConfigError

CURRENCY = "EUR"
ROWS_MAX = 99_999  # of a batch
ENCODING = "cp1252"
_INFO = ";".join(f"Beleginfo - Art {number};Beleginfo - Inhalt {number}" for number in range(1, 9))
_NOTES = ";".join(
    f"Zusatzinformation - Art {number};Zusatzinformation- Inhalt {number}" for number in range(1, 21)
)
# As in the sample file of the reference.
HEADINGS = (
    "Umsatz (ohne Soll/Haben-Kz);Soll/Haben-Kennzeichen;WKZ Umsatz;Kurs;Basis-Umsatz;WKZ Basis-Umsatz;Konto;"
    "Gegenkonto (ohne BU-Schlüssel);BU-Schlüssel;Belegdatum;Belegfeld 1;Belegfeld 2;Skonto;Buchungstext;"
    f"Postensperre;Diverse Adressnummer;Geschäftspartnerbank;Sachverhalt;Zinssperre;Beleglink;{_INFO};"
    "KOST1 - Kostenstelle;KOST2 - Kostenstelle;Kost-Menge;EU-Land u. UStID (Bestimmung);"
    "EU-Steuersatz (Bestimmung);Abw. Versteuerungsart;Sachverhalt L+L;Funktionsergänzung L+L;"
    f"BU 49 Hauptfunktionstyp;BU 49 Hauptfunktionsnummer;BU 49 Funktionsergänzung;{_NOTES};"
    "Stück;Gewicht;Zahlweise;Forderungsart;Veranlagungsjahr;Zugeordnete Fälligkeit;Skontotyp;Auftragsnummer;"
    "Buchungstyp;USt-Schlüssel (Anzahlungen);EU-Land (Anzahlungen);Sachverhalt L+L (Anzahlungen);"
    "EU-Steuersatz (Anzahlungen);Erlöskonto (Anzahlungen);Herkunft-Kz;Buchungs GUID;KOST-Datum;"
    "SEPA-Mandatsreferenz;Skontosperre;Gesellschaftername;Beteiligtennummer;Identifikationsnummer;"
    "Zeichnernummer;Postensperre bis;Bezeichnung SoBil-Sachverhalt;Kennzeichen SoBil-Buchung;Festschreibung;"
    "Leistungsdatum;Datum Zuord. Steuerperiode;Fälligkeit;Generalumkehr (GU);Steuersatz;Land;"
    "Abrechnungsreferenz;BVV-Position;EU-Land u. UStID (Ursprung);EU-Steuersatz (Ursprung);Abw. Skontokonto"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Whose books the batch goes to, and which of their accounts each kind of ours is."""

    adviser: int  # Beraternummer
    client: int  # Mandantennummer
    year_start: date  # of the business year
    digits: int  # of an account of the chart
    accounts: Mapping[Kind, int]


@dataclass(frozen=True, slots=True)
class _Pair:
    """A part of an entry: tokens from the credit of one account to the debit of another."""

    debit: Account
    credit: Account
    amount: int  # token units, above zero


def datev_batch(
    journal: Iterable[Written], month: date, chart: Chart, rates: Sequence[Rate], made_at: datetime
) -> bytes:
    """The month's entries, by the days of their blocks in UTC.

    What is less than a cent, or stays in one account of the chart, has no row.

    Args:
        journal: All entries.
        month: Its first day.
        chart: Of the books that the batch goes to.
        rates: Of the token in euros.
        made_at: Written in the header.

    Raises:
        ConfigError: the month is not in the business year, an account or a rate is missing, or there are
            more rows than a batch may have.
    """
    after = (month + timedelta(days=32)).replace(day=1)
    start = chart.year_start
    if not start.replace(day=1) <= month < start.replace(year=start.year + 1, day=1):
        raise ConfigError(f"{month:%Y-%m} is not in the business year from {start}")
    first = max(month, start)
    rows = [
        row for one in journal if first <= happened_at(one).date() < after for row in _rows(one, chart, rates)
    ]
    if len(rows) > ROWS_MAX:
        raise ConfigError(f"{len(rows)} rows in {month:%Y-%m}, a batch has at most {ROWS_MAX}")
    made = made_at.astimezone(timezone.utc).strftime("%Y%m%d%H%M%S000")
    header = (
        f'"EXTF";700;21;"Buchungsstapel";13;{made};;"RE";"";"";{chart.adviser};{chart.client};'
        f"{start:%Y%m%d};{chart.digits};{first:%Y%m%d};{after - timedelta(days=1):%Y%m%d};"
        f'"Assay {month:%Y-%m}";"";1;0;0;"{CURRENCY}";;"";;;"";;;"";""'
    )
    return "".join(f"{line}\r\n" for line in (header, HEADINGS, *rows)).encode(ENCODING, "replace")


def _rows(one: Written, chart: Chart, rates: Sequence[Rate]) -> Iterator[str]:
    pairs = _pairs(one)
    if not pairs:
        return
    when = happened_at(one)
    nano = rate_at(rates, CURRENCY, int(when.timestamp())).nano
    cents = converted([(pair.amount, nano) for pair in pairs])
    for pair, minor in zip(pairs, cents, strict=True):
        debit, credit = _number(pair.debit, chart), _number(pair.credit, chart)
        if minor == 0 or debit == credit:
            continue
        row = dict.fromkeys(HEADINGS.split(";"), "")
        row["Umsatz (ohne Soll/Haben-Kz)"] = minor_text(minor).replace(".", ",")
        row["Soll/Haben-Kennzeichen"] = '"S"'
        row["WKZ Umsatz"] = f'"{CURRENCY}"'
        row["Konto"], row["Gegenkonto (ohne BU-Schlüssel)"] = debit, credit
        row["Belegdatum"] = f"{when:%d%m}"
        row["Belegfeld 1"] = f'"{one.number}"'
        kind = "".join(c if c.isprintable() and c != '"' else "?" for c in one.entry.kind)
        row["Buchungstext"] = f'"{kind} {token_text(pair.amount)}"'
        notes = {"Konto": pair.debit.code, "Gegenkonto": pair.credit.code, "Merkle-Blatt": one.leaf.hex()}
        for place, (what, text) in enumerate(notes.items(), 1):
            row[f"Beleginfo - Art {place}"], row[f"Beleginfo - Inhalt {place}"] = f'"{what}"', f'"{text}"'
        row["Festschreibung"] = "0"  # the accountant closes the batch
        yield ";".join(row.values())


def _pairs(one: Written) -> list[_Pair]:
    """The entry's postings as pairs: each debit is met from the credits, in the order in which they stand."""
    credits = deque(
        (posting.account, -posting.amount) for posting in one.entry.postings if posting.amount < 0
    )
    made = []
    for posting in one.entry.postings:
        left = posting.amount
        while left > 0:
            account, has = credits.popleft()
            part = min(left, has)
            made.append(_Pair(posting.account, account, part))
            left -= part
            if has > part:
                credits.appendleft((account, has - part))
    return made


def _number(account: Account, chart: Chart) -> str:
    number = chart.accounts.get(account.kind)
    if number is None:
        raise ConfigError(f"[accounts] names none for {account.kind.value}, which {account.code} is")
    return str(number).zfill(chart.digits)
