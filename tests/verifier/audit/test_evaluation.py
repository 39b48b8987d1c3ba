"""Evaluation: the recompute worker measures held-out units and items of the run, and nothing of others'."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from assay.protocol.acceptance import mean_micro
from assay.protocol.errors import ConfigError
from assay.protocol.params import RunSpec
from assay.protocol.types import RoundId
from assay.training.data.batches import validation_tokens
from assay.training.data.choices import CHOICES, Choices, tokenised
from assay.training.data.shards import write_tokens
from assay.training.data.tokenizer import byte_tokenizer
from assay.training.reference.evaluation import reference_score
from assay.verifier.audit.messages import AnswerItem, Evaluate, Evaluated, ItemAnswered
from assay.verifier.audit.worker import RecomputeWorker
from tests.protocol.test_acceptance import ACCEPT
from tests.verifier.audit.test_exact import TEXT, a_run

WORDS = ("go", "stay", "wait", "run")
ITEMS = Choices(
    name="made up",
    items=tuple(tokenised(f"{n} {word}", WORDS, n % 4, byte_tokenizer()) for n in range(6) for word in WORDS),
)


def scored() -> RunSpec:
    plain = a_run()
    return replace(plain, choices=ITEMS.spec(), money=replace(plain.money, accept=ACCEPT))


def test_what_the_worker_answers_adds_up_to_the_score_that_anybody_measures(tmp_path: Path) -> None:
    spec = scored()
    write_tokens(tmp_path / "data", [TEXT])
    (tmp_path / "data" / CHOICES).write_bytes(ITEMS.to_json())
    worker = RecomputeWorker(spec=spec, data=tmp_path / "data", folder=tmp_path)
    units = [worker.answer(Evaluate(round=RoundId(0), unit=unit)) for unit in range(ACCEPT.sequences)]
    answers = [worker.answer(AnswerItem(round=RoundId(0), item=item)) for item in range(len(ITEMS.items))]

    losses = [struct.unpack(">d", one.loss)[0] for one in units if isinstance(one, Evaluated)]
    right = [one for one in answers if isinstance(one, ItemAnswered)]

    tokens, theta = validation_tokens(worker.tokens, spec, ACCEPT.sequences), worker.parameters.at(0)
    score = reference_score(spec.model, theta, tokens, ITEMS, compute=spec.compute)
    assert mean_micro(losses, tokens.shape[0] * spec.model.context) == score.loss_micro
    assert sum(one.acc for one in right) == score.acc_count
    assert sum(one.acc_norm for one in right) == score.acc_norm_count
    assert 0 < score.acc_count < len(ITEMS.items)


def test_a_worker_does_not_start_on_other_items_than_its_run_names(tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", [TEXT])
    for body in (None, ITEMS.to_json().replace(b'"gold":1', b'"gold":2')):
        if body is not None:
            (tmp_path / "data" / CHOICES).write_bytes(body)
        with pytest.raises(ConfigError, match=r"choices\.json: "):
            RecomputeWorker(spec=scored(), data=tmp_path / "data", folder=tmp_path)
