"""Summary: one run in one JSON object, and the invariants that must hold.

Room: devnet (pure). Others read `summary.json`: keys are added, never renamed. `invariants` needs nothing but
the summary, so anybody can check one again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from assay.devnet.faults.behaviours import HONEST, NODE_CHEATS, SLASHED_VERIFIERS, Behaviour
from assay.orders.amounts import DECIMALS, UNIT
from assay.protocol.params import RunSpec
from assay.protocol.types import Digest, PeerId
from assay.training.layout import layout_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """Mean loss in nats per token: of the first and last round's batches, and held out before and after."""

    first: float
    last: float
    validation_first: float
    validation_last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodWire:
    """Totals over all accepted updates."""

    updates: int
    update_bytes: int
    coefficients: int  # (index, sign) pairs sent


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCounts:
    """All audits of the run. Some are neither passed nor failed: no verdict came in time."""

    drawn: int
    passed: int
    failed: int
    opening_bytes_max: int


def make_summary(
    *,
    run_id: Digest,
    deployment_id: Digest,
    spec: RunSpec,
    rounds_finalised: int,
    wall_s: float,
    losses: Losses,
    state_agreement: bool,
    wire: MethodWire,
    audits: AuditCounts,
    settled: Mapping[str, Any],
    behaviours: Mapping[PeerId, Behaviour],
    auditors: Mapping[PeerId, str],
    record: str | None,
) -> dict[str, Any]:
    """The content of `summary.json`; `ok` says whether every invariant holds.

    Args:
        run_id: Of the run.
        deployment_id: Of the chain it was paid on.
        spec: What was agreed.
        rounds_finalised: Training rounds whose manifest is final.
        wall_s: From the first set-up step to the last claim.
        losses: NaN and infinity become null, and break an invariant.
        state_agreement: Every honest process held the same parameters at every round.
        wire: Totals over accepted updates.
        audits: Totals over the run.
        settled: The ledger service's last report: money, nodes, verifiers and books.
        behaviours: Test behaviours of nodes; all others are honest.
        auditors: Test behaviours of verifiers.
        record: Of the model on chain, in hexadecimal.
    """
    parameters = layout_of(spec.model).parameters
    per_update = wire.update_bytes / wire.updates if wire.updates else 0.0
    summary: dict[str, Any] = {
        "run_id": run_id.hex(),
        "deployment_id": deployment_id.hex(),
        "rounds": spec.rounds,
        "rounds_finalised": rounds_finalised,
        "wall_s": round(wall_s, 1),
        "params": parameters,
        "loss": {
            "first": _finite(losses.first),
            "last": _finite(losses.last),
            "validation_first": _finite(losses.validation_first),
            "validation_last": _finite(losses.validation_last),
        },
        "state_agreement": state_agreement,
        "record": record,
        "wire": {
            "bytes_per_node_round": round(per_update, 1),
            "bits_per_coefficient": round(8 * wire.update_bytes / max(wire.coefficients, 1), 3),
            "reduction_vs_fp32_gradient": round(4 * parameters / per_update, 1) if per_update else 0.0,
        },
        "audits": {
            "drawn": audits.drawn,
            "passed": audits.passed,
            "failed": audits.failed,
            "opening_bytes_max": audits.opening_bytes_max,
        },
        "nodes": [
            {
                "peer": node["peer"],
                "behaviour": behaviours.get(PeerId(bytes.fromhex(node["peer"])), Behaviour()).name,
                **{key: node[key] for key in ("accepted", "audits_passed", "audits_failed")},
                **{key: node[key] for key in ("slashed", "paid")},
            }
            for node in settled["nodes"]
        ],
        "verifiers": [
            {
                "behaviour": auditors.get(PeerId(bytes.fromhex(verifier["peer"])), HONEST),
                **{key: verifier[key] for key in ("peer", "votes", "audits", "slashed", "paid")},
            }
            for verifier in settled["verifiers"]
        ],
        "money": {
            "unit": f"10^-{DECIMALS} {UNIT}",
            **{key: settled["money"][key] for key in _MONEY},
        },
        "ledger": {
            "trial_balance": settled["trial_balance"],
            "chain_matches_books": settled["chain_matches_books"],
        },
    }
    summary["ok"] = not invariants(summary)
    return summary


_MONEY = (
    "funded", "paid_operators", "paid_verifiers", "fees", "refunded",
    "slashed", "burnt", "to_buyer", "to_challengers",
)  # fmt: skip


def invariants(summary: Mapping[str, Any]) -> list[str]:
    """Violated invariants, one sentence each; empty if all hold."""
    return [
        *_broken_training(summary),
        *_broken_money(summary["money"], summary["nodes"], summary["verifiers"]),
        *_broken_justice(summary["nodes"], summary["verifiers"]),
        *_broken_books(summary["ledger"]),
    ]


def _broken_training(summary: Mapping[str, Any]) -> list[str]:
    broken = []
    final, rounds = summary["rounds_finalised"], summary["rounds"]
    if final != rounds:
        broken.append(f"{final} rounds are final, expected {rounds}")
    if summary["state_agreement"] is not True:
        broken.append("honest processes held different parameters")
    if summary.get("record", "of a run from before there were records") is None:
        broken.append("the model is not on record on chain")
    first, last = summary["loss"]["validation_first"], summary["loss"]["validation_last"]
    if first is None or last is None:
        broken.append("validation loss is missing or not finite")
    elif not last < first:
        broken.append(f"validation loss went from {first:.4f} to {last:.4f}, expected it to fall")
    return broken


def _broken_money(
    money: Mapping[str, Any], nodes: list[Mapping[str, Any]], verifiers: list[Mapping[str, Any]]
) -> list[str]:
    """Every unit is somewhere, and nothing is negative."""
    paid_nodes = sum(node["paid"] for node in nodes)
    paid_verifiers = sum(verifier["paid"] for verifier in verifiers)
    slashed = sum(one["slashed"] for one in (*nodes, *verifiers))
    spent = money["paid_operators"] + money["paid_verifiers"] + money["fees"] + money["refunded"]
    taken = money["burnt"] + money["to_buyer"] + money["to_challengers"]
    pairs = (
        ("funded", money["funded"], "paid to operators and verifiers, fees and refunded", spent),
        ("slashed", money["slashed"], "burnt, to the buyer and to challengers", taken),
        ("paid to operators", money["paid_operators"], "what nodes received", paid_nodes),
        ("paid to verifiers", money["paid_verifiers"], "what verifiers received", paid_verifiers),
        ("slashed", money["slashed"], "what nodes and verifiers lost", slashed),
    )
    broken = [
        f"money: {left} is {amount} units, {right} are {total} units"
        for left, amount, right, total in pairs
        if amount != total
    ]
    return broken + [f"money: {key} is {money[key]} units, below 0" for key in _MONEY if money[key] < 0]


def _broken_justice(nodes: list[Mapping[str, Any]], verifiers: list[Mapping[str, Any]]) -> list[str]:
    """Every cheater was slashed, and nobody else."""
    broken = []
    for one in verifiers:
        is_cheater, name = (
            one["behaviour"] in SLASHED_VERIFIERS,
            f"verifier {one['peer'][:8]} ({one['behaviour']})",
        )
        if is_cheater and one["audits"] and one["slashed"] <= 0:
            broken.append(f"{name} cheated and was not slashed")
        if not is_cheater and one["slashed"] != 0:
            broken.append(f"{name} did not cheat and was slashed {one['slashed']} units")
    for node in nodes:
        is_cheater, name = node["behaviour"] in NODE_CHEATS, f"node {node['peer'][:8]} ({node['behaviour']})"
        if is_cheater and node["slashed"] <= 0:
            broken.append(f"{name} cheated and was not slashed")
        if not is_cheater and node["slashed"] != 0:
            broken.append(f"{name} did not cheat and was slashed {node['slashed']} units")
    return broken


def _broken_books(ledger: Mapping[str, Any]) -> list[str]:
    broken = []
    if ledger["trial_balance"] != 0:
        broken.append(f"the trial balance is {ledger['trial_balance']} units, expected 0")
    if ledger["chain_matches_books"] is not True:
        broken.append("the books differ from the chain")
    return broken


def _finite(loss: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return round(loss, 6) if math.isfinite(loss) else None
