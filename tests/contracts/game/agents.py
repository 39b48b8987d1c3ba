"""Agents: who plays at the table, and with which aim. Each list may be extended by anybody.

An agent is a generator over a game's table and its own dice: it moves, and `yield`s until the next step. A
move that the contracts may refuse goes through `Table.attempt`. An agent that is not honest takes the names
of those it plays out of `Table.honest`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random

from assay.chain.client import UNIT, EpochPhase
from assay.chain.proofs.payout_tree import Payout, PayoutTree, payout_tree
from assay.chain.state import CasePhase, DefencePhase
from assay.chain.statements import OPERATOR, Discharge, EpochResult, Veto
from assay.participant.wallet.cases import implied_orders
from assay.protocol.types import RoundId
from tests.contracts.chain_world import MODEL
from tests.contracts.game.table import CORRUPT, EPOCHS, ROUNDS_A_STEP, Agent, Life, Run, Table

LAST_STEP = 14


def _sleep(steps: int) -> Life:
    for _ in range(steps):
        yield


def _pick(table: Table, dice: Random) -> Run:
    return table.runs[dice.choice(list(table.runs))]


# ---- buyers of the first run: (agent, share of the price that is funded at first, steps to the deadline)


def patient(table: Table, dice: Random) -> Life:
    """Pays all, and waits."""
    yield


def cancels(table: Table, dice: Random) -> Life:
    """At any time, and asks for the rest at once and at every step."""
    run = table.runs["red"]
    yield from _sleep(dice.randrange(LAST_STEP))
    table.attempt("cancel", table.clients["buyer"].request_close, run.run_id)
    for _ in range(LAST_STEP):
        table.attempt("refund too early", table.clients["buyer"].refund, run.run_id)
        yield


def tops_up_late(table: Table, dice: Random) -> Life:
    """After the run has waited for money, perhaps after it was closed."""
    yield from _sleep(dice.randrange(1, LAST_STEP))
    table.attempt(
        "top up", table.clients["buyer"].top_up, table.runs["red"].run_id, dice.randrange(1, 1_500) * UNIT
    )


def changes_its_mind(table: Table, dice: Random) -> Life:
    """Cancels, pays more, cancels again."""
    for _ in range(3):
        yield from _sleep(dice.randrange(3))
        table.attempt("cancel", table.clients["buyer"].request_close, table.runs["red"].run_id)
        table.attempt("top up", table.clients["buyer"].top_up, table.runs["red"].run_id, 300 * UNIT)


BUYERS: tuple[tuple[Agent, int, int], ...] = (
    (patient, 100, 60),
    (cancels, 100, 60),
    (tops_up_late, 40, 40),
    (patient, 70, 30),
    (patient, 100, 5),
    (cancels, 70, 9),
    (changes_its_mind, 50, 12),
)


# ---- operators


def works(table: Table, dice: Random, who: int) -> Life:
    """Honestly, to the end; appeals every conviction of a step that was right."""
    client = table.clients[f"operator {who}"]
    while True:
        for framed in [one for one in table.framed if one.accused == table.world.operators[who]]:
            if "the accused appeal" not in table.rules:
                break
            case = table.bank.case(framed.case_id)
            if (
                case.phase is CasePhase.OPEN
                and table.now() < case.veto_ends_at
                and not table.bank.appeal(framed.case_id).phase
            ):
                positions = framed.cut(0, framed.operators)
                table.attempt("appeal", client.appeal_case, framed.case_id, framed.operators, positions)
        for run in table.runs.values():
            for framed, defender, defence, _ in table.defences(run):
                if framed.accused == table.world.operators[who] and defence.phase is DefencePhase.CUT:
                    parts = framed.cut(defence.first, defence.last)
                    parts[-1] = defence.end  # what the defender rejects
                    table.attempt(
                        "cut", client.cut_part, framed.case_id, table.people[defender].account, parts
                    )
        yield


def leaves_early(table: Table, dice: Random, who: int) -> Life:
    """Honestly: works for a while, then asks for its discharge once its steps are settled."""
    mine = works(table, dice, who)
    for _ in range(dice.randrange(1, 5)):
        yield next(mine)
    for run in table.runs.values():
        run.network.absent.add(run.spec.nodes[who].peer)
    for _ in range(8):
        yield next(mine)
    person = table.world.operators[who]
    for run in table.runs.values():
        left = Discharge(deployment_id=run.spec.deployment_id, run_id=run.run_id, account=person.account)
        if run.signs:
            table.attempt(
                "discharge",
                table.clients["keeper"].discharge,
                person.account,
                run.run_id,
                table.certified(left),
            )
    yield from mine


def lies(table: Table, dice: Random, who: int) -> Life:
    """Commits to steps that are false, and takes away what stake it can."""
    table.honest.discard(f"operator {who}")
    for run in table.runs.values():
        step = RoundId(dice.randrange(EPOCHS * ROUNDS_A_STEP)), run.spec.nodes[who].peer
        dice.choice((run.network.false, run.network.withheld)).add(step)
    yield from _flees(table, dice, who)


def flees(table: Table, dice: Random, who: int) -> Life:
    """Stops to work, and tries to have its stake back, or to lock it twice, at every step."""
    table.honest.discard(f"operator {who}")
    yield from _sleep(dice.randrange(4))
    for run in table.runs.values():
        run.network.absent.add(run.spec.nodes[who].peer)
    yield from _flees(table, dice, who)


def _flees(table: Table, dice: Random, who: int) -> Life:
    client, person = table.clients[f"operator {who}"], table.world.operators[who]
    while True:
        yield from _sleep(dice.randrange(1, 5))
        run, free = _pick(table, dice), table.bank.stake_of(person.account, OPERATOR).free
        match dice.randrange(4):
            case 0:
                table.attempt("release early", client.release_lot, person.account, OPERATOR, run.run_id)
            case 1:
                table.attempt("unstake what is locked", client.request_unstake, OPERATOR, free + 1)
            case 2:
                table.attempt(
                    "lock what is locked",
                    client.ensure_lot,
                    OPERATOR,
                    bytes(32),
                    free + 1,
                    table.now() + 86_400,
                )
            case 3 if free:
                table.attempt("unstake", client.request_unstake, OPERATOR, free)


OPERATORS = (works, works, works, leaves_early, lies, flees)


# ---- quorums of the verifiers


def honest_quorum(table: Table, dice: Random) -> Life:
    """Signs what is right (`Verifiers`), and has every fault that the manifests imply brought to court."""
    while True:
        for run in table.runs.values():
            _accuse(table, run, f"verifier {CORRUPT}")
        yield


def _accuse(table: Table, run: Run, opener: str) -> list[bytes]:
    """Opens a case for each fault of a run's manifests that has none; their ids."""
    opened = []
    for case_id, order in implied_orders(table.member(run), run.follower).items():
        lot = table.bank.lot_of(order.offender, order.role, table.bank.commitment_of(order))
        if table.bank.case(case_id).phase is CasePhase.NONE and lot.until:
            opened += [case_id] * table.attempt(
                "open a case", table.clients[opener].open_case, order, table.certified(order)
            )
    return opened


def _corrupt(table: Table, signs: bool) -> None:
    table.honest -= {f"verifier {at}" for at in range(CORRUPT)}
    for run in table.runs.values():
        run.signs = signs


def _stolen(table: Table, run: Run, epoch: int, dice: Random) -> EpochResult:
    """A result that pays a friend, instead of others or beside them."""
    previous = table.bank.epoch_state(run.run_id, epoch - 1).digest if epoch else bytes(32)
    escrow = table.bank.run(run.run_id)
    assert escrow is not None
    loot = max(1, min(escrow.epoch_cap, escrow.free) // dice.choice((1, 1, 2, 50)))
    right = run.right(epoch, previous)
    tree = _tree(table, run, epoch, loot)
    plain = EpochResult(
        deployment_id=run.spec.deployment_id, run_id=run.run_id, epoch=epoch, set_version=1,
        prev_result=previous, root=tree.root, table_hash=bytes(32), model_hash=MODEL, total=loot,
    )  # fmt: skip
    if right is None or dice.random() < 0.7:
        return plain
    changes = dice.choice(
        ({"total": right.total + 1}, {"table_hash": dice.randbytes(32)}, {"root": tree.root})
    )
    return replace(right, **changes)  # nearly right


def _next_epoch(table: Table, run: Run) -> int | None:
    for epoch in range(EPOCHS):
        if table.bank.epoch_state(run.run_id, epoch).phase is EpochPhase.NONE:
            return epoch
    return None


def _steal(table: Table, run: Run, dice: Random) -> bool:
    epoch = _next_epoch(table, run)
    if epoch is None:
        return False
    wrong = _stolen(table, run, epoch, dice)
    return table.attempt("post a theft", table.clients["mallory"].propose, wrong, table.certified(wrong))


def _harvest(table: Table) -> None:
    """Finishes every result whose window is over, and takes what pays the friend."""
    me = table.clients["mallory"]
    for run in table.runs.values():
        for epoch in range(EPOCHS):
            state = table.bank.epoch_state(run.run_id, epoch)
            if state.phase is EpochPhase.PROPOSED and table.now() >= state.until:
                table.attempt("finish", me.finalize, run.run_id, epoch)
            elif state.phase is EpochPhase.FINAL and state.claimed < state.total:
                tree = _tree(table, run, epoch, state.total)
                if tree.root == state.root:
                    table.attempt("take", me.claim_all, run.run_id, epoch, tree)


def _tree(table: Table, run: Run, epoch: int, loot: int) -> PayoutTree:
    return payout_tree(run.run_id, epoch, [Payout(account=table.people["friend"].account, amount=loot)])


def steals(table: Table, dice: Random) -> Life:
    """Certifies payout tables that pay a friend, and nothing else."""
    _corrupt(table, signs=False)
    while True:
        yield from _sleep(dice.randrange(3))
        _steal(table, _pick(table, dice), dice)
        yield
        _harvest(table)


def contradicts_itself(table: Table, dice: Random) -> Life:
    """Certifies a theft now and then, and all that is right as well."""
    _corrupt(table, signs=True)
    for _ in range(4):
        yield from _sleep(dice.randrange(4))
        _steal(table, _pick(table, dice), dice)
        yield
    while True:
        _harvest(table)
        yield


def steals_at_the_end(table: Table, dice: Random) -> Life:
    """Waits for the last step in which a result is taken."""
    _corrupt(table, signs=dice.random() < 0.5)
    while True:
        for run in table.runs.values():
            escrow = table.bank.run(run.run_id)
            if escrow is not None and 0 < escrow.closes_at - table.now() <= 50_000:
                while _steal(table, run, dice):
                    pass  # each on top of the one before
        _harvest(table)
        yield


def frames_nodes(table: Table, dice: Random) -> Life:
    """Convicts honest steps, and defends its orders against appeals."""
    _corrupt(table, signs=False)
    for at in itertools.count():
        if 0 < at < LAST_STEP and dice.random() < 0.3:
            table.frame(_pick(table, dice), dice.randrange(len(table.world.operators)), dice)
        for framed in table.framed:
            _defend(table, framed.case_id, dice)
            case = table.bank.case(framed.case_id)
            if case.phase is CasePhase.OPEN and case.veto_ends_at <= table.now() < case.execute_by:
                table.attempt("execute a false order", table.clients["mallory"].execute_case, framed.case_id)
            elif case.phase is CasePhase.EXECUTED and table.now() >= case.payable_at:
                table.attempt("be paid for it", table.clients["mallory"].pay_out_case, framed.case_id)
        yield


def _defend(table: Table, case_id: bytes, dice: Random) -> None:
    (framed,) = [one for one in table.framed if one.case_id == case_id]
    appeal = table.bank.appeal(case_id)
    for at in range(CORRUPT):
        me = table.clients[f"verifier {at}"]
        defence, _ = table.bank.defence(case_id, me.address)
        if appeal.phase == 1 and defence.phase is DefencePhase.NONE and dice.random() < 0.5:
            told = framed.cut(0, framed.operators)
            part, shown = dice.randrange(len(told)), (framed.statement, framed.signature)
            table.attempt("defend a false order", me.defend_order, case_id, part, told, *shown)
        elif defence.phase is DefencePhase.CHOOSE and dice.random() < 0.8:
            told = list(table.bank.cut_positions(case_id, me.address, table.world.deployment.block))
            table.attempt("choose a right part", me.choose_part, case_id, dice.randrange(len(told)), told)


def acquits(table: Table, dice: Random) -> Life:
    """Orders what is right, has somebody open the case with a bond, and vetoes it."""
    _corrupt(table, signs=True)
    opener = f"verifier {CORRUPT}" if "who opens a case is not betrayed" not in table.rules else "verifier 0"
    while True:
        for run in table.runs.values():
            for case_id in _accuse(table, run, opener):
                said = Veto(deployment_id=run.spec.deployment_id, case_id=case_id, reason_hash=bytes(32))
                table.attempt(
                    "veto what is right",
                    table.clients["mallory"].veto_case,
                    case_id,
                    bytes(32),
                    table.certified(said),
                )
        yield


def sleeps(table: Table, dice: Random) -> Life:
    """Signs nothing at all: what was done is not paid, and returns to the buyer."""
    _corrupt(table, signs=False)
    yield


QUORUMS: tuple[Agent, ...] = (
    honest_quorum, honest_quorum, honest_quorum, steals, contradicts_itself, steals_at_the_end, frames_nodes,
    acquits, sleeps,
)  # fmt: skip


# ---- challengers, and others who only disturb


def nobody(table: Table, dice: Random) -> Life:
    """Leaves everybody alone."""
    yield


def challenges_everything(table: Table, dice: Random) -> Life:
    """As long as its money lasts."""
    me = table.clients["mallory"]
    while True:
        for run in table.runs.values():
            for epoch in range(EPOCHS):
                if table.bank.epoch_state(run.run_id, epoch).phase is EpochPhase.PROPOSED:
                    table.attempt("challenge", me.challenge, run.run_id, epoch, bytes(32))
        yield from _sleep(dice.randrange(1, 4))


def challenges_in_the_last_step(table: Table, dice: Random) -> Life:
    """So that results wait for as long as possible."""
    me = table.clients["mallory"]
    while True:
        for run in table.runs.values():
            for epoch in range(EPOCHS):
                state = table.bank.epoch_state(run.run_id, epoch)
                if state.phase is EpochPhase.PROPOSED and 0 < state.until - table.now() <= 50_000:
                    table.attempt("challenge late", me.challenge, run.run_id, epoch, bytes(32))
        yield


def calls_everything(table: Table, dice: Random) -> Life:
    """Sends whatever anybody may send, at any time."""
    me = table.clients["mallory"]
    while True:
        run, epoch = _pick(table, dice), dice.randrange(EPOCHS)
        accused = dice.choice([*table.world.operators, *table.world.verifiers])
        moves = (
            ("finalize", me.finalize, run.run_id, epoch),
            ("clear orphan", me.clear_orphan, run.run_id, epoch),
            ("time out", me.timeout_challenge, run.run_id, epoch),
            ("sweep", me.sweep_unclaimed, run.run_id, epoch),
            ("refund", me.refund, run.run_id),
            ("close another's run", me.request_close, run.run_id),
            ("release another's lot", me.release_lot, accused.account, OPERATOR, run.run_id),
            ("top up another's run", me.top_up, run.run_id, 1),
        )
        table.attempt(*dice.choice(moves))
        yield


def repeats_certificates(table: Table, dice: Random) -> Life:
    """Posts every certified result again, in other epochs and runs too."""
    me, seen = table.clients["mallory"], list[tuple[EpochResult, bytes]]()
    while True:
        for run in table.runs.values():
            seen += [
                (one.result, one.certificate)
                for one in table.bank.proposals_of(
                    run.run_id, table.world.deployment.block, table.bank.block_number()
                )
                if (one.result, one.certificate) not in seen
            ]
        if seen:
            result, certificate = dice.choice(seen)
            changes = dice.choice(({}, {"epoch": result.epoch + 1}, {"run_id": _pick(table, dice).run_id}))
            moved = replace(result, **changes)
            table.attempt("repeat a certificate", me.propose, moved, certificate)
        yield from _sleep(dice.randrange(1, 3))


DISTURBERS: tuple[Agent, ...] = (
    nobody, challenges_everything, challenges_in_the_last_step, calls_everything, repeats_certificates,
)  # fmt: skip


# ---- keepers and jurors


def stay(table: Table, dice: Random) -> Life:
    """Every keeper and juror does its duty."""
    yield


def a_keeper_stops(table: Table, dice: Random) -> Life:
    """One of two, for a while or for good."""
    yield from _sleep(dice.randrange(LAST_STEP))
    table.asleep.add("second keeper")
    yield from _sleep(dice.randrange(1, 2 * LAST_STEP))
    table.asleep.discard("second keeper")


def a_juror_stays_away(table: Table, dice: Random) -> Life:
    """One of four."""
    table.asleep.add(f"juror {dice.randrange(4)}")
    yield


def a_juror_is_bribed(table: Table, dice: Random) -> Life:
    """One of four."""
    who = f"juror {dice.randrange(4)}"
    table.bribed.add(who)
    table.honest.discard(who)
    yield


def jurors_stay_away(table: Table, dice: Random) -> Life:
    """Two or three of four: most challenges end by time."""
    table.asleep |= {f"juror {at}" for at in dice.sample(range(4), dice.choice((2, 3)))}
    yield


KEEPERS: tuple[Agent, ...] = (
    stay, a_keeper_stops, a_juror_stays_away, a_juror_is_bribed, jurors_stay_away,
)  # fmt: skip
