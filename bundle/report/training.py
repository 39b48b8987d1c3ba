"""Training report: loss, steps, traffic, audits, time and cost of a delivered run, round by round.

Room: bundle (pure). All but held-out loss and accuracy, which the buyer states, follows from the certified
chain, the payout tables, the sizes of the delivered files and the model, in integers: every holder of the
bundle computes the same bytes. Energy is an estimate by the efficiency that the buyer declares. A step's loss
is what its node states and signs; audits recompute steps, but nobody certifies that figure. So the report has
the median over a round's nodes: fewer than half of them cannot move it beyond what the others state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from assay.bundle.finished import Energy, HeldOut
from assay.bundle.held_out import held_out_tokens
from assay.bundle.read import Delivered
from assay.bundle.report.audits import kind_of
from assay.bundle.samples import CHARACTERS_MAX, SAMPLES
from assay.ledger.journal.round_facts import RoundFacts, round_facts
from assay.ledger.settlement.payouts import Settlement
from assay.participant.files.index import IntegrityError
from assay.protocol.encoding.json_text import canonical_json, parse_json, plain, read_plain
from assay.protocol.messages import LOSS_MICRO_MAX, Score
from assay.protocol.params import RunSpec
from assay.protocol.types import NO_DIGEST, Digest

FORMAT = "assay/training-report/3"
FAULTS = ("mismatch", "withheld")
PASSED = ("match", "dismissed")
STATED_BYTES_MAX = 2**53  # of one figure that a bundle states: floats and JSON's readers hold it exactly


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Losses that the nodes of one round state, in 10^-6 nats per token."""

    median: int
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFigures:
    """One round of training."""

    round: int
    time_s: int  # agreed by the verifiers, Unix seconds
    nodes: int  # that could contribute
    accepted: int  # steps
    unpaid: int  # accepted steps that earned nothing
    tokens: int
    loss_micro: Spread | None  # None without an accepted step
    sent_bytes: int  # updates, by all nodes together
    aggregate_bytes: int  # what each participant fetches
    audits: Mapping[str, int]  # of this round's steps, by the classes of `report/audits.py`


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFigures:
    """What one settled epoch cost, in units of 10^-6 token."""

    epoch: int
    last_round: int
    operators: int
    verifiers: int
    fee: int
    spent: int  # by this epoch and all before it
    score: Score | None  # that verifiers agreed on; None without a milestone, or an agreed score


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The whole run. loss_micro: the median of the first and the last round with an accepted step."""

    rounds: int
    seconds: int  # between the first and the last round of training
    nodes: int
    accepted: int
    unpaid: int
    tokens: int
    loss_micro: tuple[int, int] | None
    sent_bytes: int
    aggregate_bytes: int
    audits: Mapping[str, int]
    spent: int

    @property
    def audited(self) -> int:
        """Steps that were drawn."""
        return sum(self.audits.values())

    @property
    def faults(self) -> int:
        """Steps whose fault was confirmed."""
        return sum(self.audits.get(name, 0) for name in FAULTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a report has beside the figures of the chain; a run that is followed has nothing of it yet."""

    held_out: HeldOut | None = None  # the buyer's statement; None: it was not measured
    energy: Energy | None = None
    samples: tuple[str, ...] = ()  # documents that the model makes up; bundle/samples.py


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport(Beside):
    """The report of one run."""

    format: str = FORMAT
    run: str
    run_id: str
    totals: Totals
    rounds: tuple[RoundFigures, ...]
    epochs: tuple[EpochFigures, ...]


def training_report(delivered: Delivered) -> TrainingReport:
    """The report of a delivered run, or of one that is followed as far as it has got, without its traffic.

    Raises:
        IntegrityError: the file of an update or an aggregate is missing, or `report.json` is none.
    """
    return _report(delivered, None if delivered.is_followed else delivered.sizes)


def _report(delivered: Delivered, sizes: Mapping[Digest, int] | None) -> TrainingReport:
    states, tables = delivered.run_states, delivered.tables
    facts = [round_facts(states[at], link, states[at + 1], tables) for at, link in enumerate(delivered.links)]
    times = [link.manifest.time_s for link in delivered.links]
    name = (delivered.spec.name, delivered.run_id)
    beside = Beside() if delivered.report is None else claimed(delivered.report, delivered.spec)
    rounds = delivered.calendar.rounds
    return report_of_facts(name, rounds, facts, times, tables, sizes, beside)


def report_of_facts(
    run: tuple[str, Digest],
    rounds: int,
    facts: Sequence[RoundFacts],
    times: Sequence[int],
    tables: Mapping[int, Settlement],
    sizes: Mapping[Digest, int] | None,
    beside: Beside,
) -> TrainingReport:
    """The report of a run.

    Args:
        run: Its name and id.
        rounds: Of training.
        facts: Of the whole chain, which goes on after the training until the last audit is decided.
        times: Agreed time of each round, in seconds.
        tables: Payout tables by epoch.
        sizes: Bytes of each update and aggregate; None: not known, and the report counts none.
        beside: What else it says.

    Raises:
        IntegrityError: the size of one of them is not known, since its file is missing.
    """
    audits, trained = {}, facts[:rounds]
    for one in facts:
        audits.update({(audit.round, audit.node): audit for audit in (*one.drawn, *one.ruled)})
    classes: dict[int, Counter[str]] = {}
    for audit in audits.values():
        classes.setdefault(int(audit.round), Counter())[kind_of(audit)] += 1
    unpaid = Counter(step.round for table in tables.values() for step in table.unpaid)
    try:
        figures = tuple(
            RoundFigures(
                round=one.round,
                time_s=times[one.round],
                nodes=one.active,
                accepted=len(one.commits),
                unpaid=unpaid[one.round],
                tokens=sum(commit.tokens for commit in one.commits),
                loss_micro=_spread([commit.loss_micro for commit in one.commits]),
                sent_bytes=0 if sizes is None else sum(sizes[commit.update] for commit in one.commits),
                aggregate_bytes=0 if sizes is None or one.aggregate == NO_DIGEST else sizes[one.aggregate],
                audits=dict(sorted(classes.get(one.round, Counter()).items())),
            )
            for one in trained
        )
    except KeyError as error:
        raise IntegrityError(f"bundle: no update or aggregate {error.args[0].hex()}.bin") from None
    epochs = _epochs(tables, trained)
    return TrainingReport(
        run=run[0],
        run_id=run[1].hex(),
        held_out=beside.held_out,
        energy=beside.energy,
        samples=beside.samples,
        totals=_totals(figures, epochs, len({commit.node for one in trained for commit in one.commits})),
        rounds=figures,
        epochs=epochs,
    )


def report_json(report: TrainingReport) -> bytes:
    """The content of `report.json`: canonical JSON."""
    return canonical_json(plain(report))


def with_stated_traffic(delivered: Delivered) -> TrainingReport:
    """The report of a copy without updates and aggregates: their sizes are as its `report.json` states them.

    Raises:
        IntegrityError: there is no `report.json`, or it is of other rounds, or has no such sizes.
    """
    found, stated = _report(delivered, None), _parsed(delivered.report or b"").rounds
    if [one.round for one in stated] != [one.round for one in found.rounds]:
        raise IntegrityError(
            f"bundle/report.json: {len(stated)} rounds, expected 0 to {len(found.rounds) - 1} in order"
        )
    for one in stated:
        if not all(0 <= size <= STATED_BYTES_MAX for size in (one.sent_bytes, one.aggregate_bytes)):
            raise IntegrityError(
                f"bundle/report.json: round {one.round}: a size below 0 or too large, "
                f"expected 0 to {STATED_BYTES_MAX}"
            )
    rounds = tuple(
        replace(own, sent_bytes=one.sent_bytes, aggregate_bytes=one.aggregate_bytes)
        for own, one in zip(found.rounds, stated, strict=True)
    )
    totals = replace(
        found.totals,
        sent_bytes=sum(one.sent_bytes for one in rounds),
        aggregate_bytes=sum(one.aggregate_bytes for one in rounds),
    )
    return replace(found, rounds=rounds, totals=totals)


def _parsed(body: bytes) -> TrainingReport:
    try:
        return read_plain(TrainingReport, parse_json(body))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"bundle/report.json: {error}") from None


def claimed(body: bytes, spec: RunSpec) -> Beside:
    """What a `report.json` says that does not follow from the chain.

    Raises:
        IntegrityError: the file has another form, or what it says cannot be said of this run.
    """
    report = _parsed(body)
    if (found := report.held_out) is not None:
        _check_held_out(found, spec)
    if len(report.samples) > SAMPLES or any(len(one) > CHARACTERS_MAX for one in report.samples):
        raise IntegrityError(
            f"bundle/report.json: samples: {len(report.samples)} of {sum(map(len, report.samples))} "
            f"characters, expected at most {SAMPLES} of at most {CHARACTERS_MAX} each"
        )
    return Beside(held_out=found, energy=report.energy, samples=report.samples)


def _check_held_out(found: HeldOut, spec: RunSpec) -> None:
    if found.tokens != (expected := held_out_tokens(spec)):
        raise IntegrityError(f"bundle/report.json: held_out: {found.tokens} tokens, expected {expected}")
    if not all(0 <= one <= LOSS_MICRO_MAX for one in (found.first_micro, found.last_micro)):
        raise IntegrityError("bundle/report.json: held_out: a loss that no commit could state")
    if (right := found.accuracy) is not None:
        counts = (right.acc_first, right.acc_last, right.acc_norm_first, right.acc_norm_last)
        if not 0 < right.items == spec.choices.items or not all(0 <= one <= right.items for one in counts):
            raise IntegrityError(
                f"bundle/report.json: accuracy: {max(counts)} of {right.items} items, "
                f"the run has {spec.choices.items}"
            )


def _spread(losses: list[int]) -> Spread | None:
    if not losses:
        return None
    ordered, middle = sorted(losses), len(losses) // 2
    median = (ordered[middle] + ordered[~middle]) // 2
    return Spread(median=median, lowest=ordered[0], highest=ordered[-1])


def _epochs(tables: Mapping[int, Settlement], trained: Sequence[RoundFacts]) -> tuple[EpochFigures, ...]:
    last = {one.epoch: one.round for one in trained}
    spent = accumulate(table.total for _, table in sorted(tables.items()))
    return tuple(
        EpochFigures(
            epoch=epoch,
            last_round=last.get(epoch, 0),
            operators=table.paid("operator"),
            verifiers=table.paid("verifier"),
            fee=table.paid("fee"),
            spent=so_far,
            score=table.score,
        )
        for (epoch, table), so_far in zip(sorted(tables.items()), spent, strict=True)
    )


def _totals(rounds: Sequence[RoundFigures], epochs: Sequence[EpochFigures], nodes: int) -> Totals:
    losses = [one.loss_micro.median for one in rounds if one.loss_micro is not None]
    audits: Counter[str] = sum((Counter(one.audits) for one in rounds), Counter())
    return Totals(
        rounds=len(rounds),
        seconds=rounds[-1].time_s - rounds[0].time_s if rounds else 0,
        nodes=nodes,
        accepted=sum(one.accepted for one in rounds),
        unpaid=sum(one.unpaid for one in rounds),
        tokens=sum(one.tokens for one in rounds),
        loss_micro=(losses[0], losses[-1]) if losses else None,
        sent_bytes=sum(one.sent_bytes for one in rounds),
        aggregate_bytes=sum(one.aggregate_bytes for one in rounds),
        audits=dict(sorted(audits.items())),
        spent=epochs[-1].spent if epochs else 0,
    )
