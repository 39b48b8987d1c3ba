"""Sampling: a step's completions follow from spec, parameters, data, node and round, and nothing else."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from assay.protocol.grpo import FIGURE_TOKENS, Reward
from assay.protocol.params import Precision
from assay.testing.members import NODES
from assay.testing.specs import FLOAT32_WHOLE
from assay.training.data.batches import batch_positions, batch_tokens
from assay.training.data.mask import visible
from assay.training.exact import initial_parameters
from assay.training.execution.execution_class import execution_class
from assay.training.layout import layout_of
from assay.training.model.gpt import gpt_logits
from assay.training.model.loss import logits_of, loss_and_gradient, mean_loss, use_one_thread
from assay.training.model.presets import llama_spec
from assay.training.model.sampling import step_batch
from assay.training.reference.gradient import reference_loss_and_gradient
from tests.training.model.logits import logits
from tests.training.tasks import COMPUTE, END, GRPO, LENGTH, a_grpo_run, tasks

SPEC, TASKS = a_grpo_run(None), tasks()
LAYOUT = layout_of(SPEC.model)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    use_one_thread()


def theta(spec=SPEC, scale: float = 4) -> np.ndarray:
    layout = layout_of(spec.model)
    return initial_parameters(4, layout.names, layout.shapes) * np.float32(scale)


def batch(spec=SPEC, node=NODES[0], round_id: int = 3, theta_P=None, stream=TASKS) -> np.ndarray:
    at = theta(spec) if theta_P is None else theta_P
    return step_batch(spec, layout_of(spec.model), at, stream, node, round_id, spec.tokens_per_step)


def test_another_loss_trains_on_the_sequences_of_the_data():
    spec = replace(SPEC, compute=FLOAT32_WHOLE)
    expected = batch_tokens(
        TASKS, batch_positions(spec, NODES[0], 3, spec.tokens_per_step), spec.model.context
    )

    assert np.array_equal(batch(spec), expected)


def test_rollouts_are_the_same_again_and_others_for_any_other_node_round_seed_or_parameters():
    first = batch()

    assert np.array_equal(first, batch())
    moved = theta() + np.float32(0.05) * np.sin(np.arange(LAYOUT.parameters)).astype(np.float32)
    others = [
        batch(node=NODES[1]),
        batch(round_id=4),
        batch(replace(SPEC, seed=8)),
        batch(theta_P=moved),
    ]
    for other in others:
        assert not np.array_equal(first, other)


def test_completions_of_one_prompt_lie_side_by_side_and_differ():
    made = batch()

    assert made.shape == (SPEC.rule.sequences_per_round, LENGTH)
    for group in made.reshape(-1, GRPO.group, LENGTH):
        assert len({bytes(visible(row)[:2].astype(np.uint8)) for row in group}) == 1
        assert len({row.tobytes() for row in group}) > 1


@pytest.mark.parametrize(
    "model", [SPEC.model, llama_spec(layers=1, width=64, heads=2, kv_heads=1, hidden=96, context=16)]
)
@pytest.mark.parametrize("micro", [0, 3])
def test_every_token_has_the_highest_sum_of_logit_and_noise_given_what_precedes_it(model, micro):
    spec = replace(SPEC, model=model, compute=replace(COMPUTE, micro_sequences=micro))
    made, at = batch(spec), theta(spec)

    values = logits(model, layout_of(model), at, visible(made)[:, :-1])
    head = b"assay/gumbel/1" + spec.seed.to_bytes(8, "big") + (3).to_bytes(8, "big") + NODES[0]
    for number, row in enumerate(made):
        for token, place in enumerate(np.flatnonzero(row >= 0)):
            bits = hashlib.shake_256(head + number.to_bytes(8, "big") + token.to_bytes(8, "big"))
            draws = np.frombuffer(bits.digest(4 * model.vocabulary), "<u4")
            noise = -np.log(-np.log((draws + 0.5) / 2.0**32))
            assert row[place] == np.argmax(values[number, place - 1] + noise)


def test_a_completion_stops_at_its_end_and_at_the_most_tokens():
    spec = a_grpo_run(None, grpo=replace(GRPO, completion=8))
    ended = theta(spec, 1).copy()
    ended_views = LAYOUT.views(torch.from_numpy(ended))
    ended_views["norm.bias"][:] = 1
    ended_views["embed"][END] += 0.06  # the end: about one token in ten
    lengths = set()
    for round_id in range(6):
        for row in batch(spec, theta_P=ended, round_id=round_id):
            made = row[row >= 0]
            assert END not in made[:-1] and (made[-1] == END or len(made) == 8)
            assert (row[-FIGURE_TOKENS:] < 0).all()
            lengths.add(len(made))
    assert min(lengths) < 8 == max(lengths)


def test_a_pass_that_samples_has_the_bits_of_one_that_trains():
    inputs, parts = torch.from_numpy(visible(batch())[:, :-1]), LAYOUT.views(torch.from_numpy(theta()))
    with torch.no_grad():
        sampled = logits_of(SPEC.model, parts, inputs, Precision.FLOAT32)
    leaves = {name: part.clone().requires_grad_(True) for name, part in parts.items()}

    assert torch.equal(sampled, logits_of(SPEC.model, leaves, inputs, Precision.FLOAT32).detach())
    assert execution_class(COMPUTE) == execution_class(FLOAT32_WHOLE)


def plainly(rows: np.ndarray, rewards: np.ndarray, group: int) -> np.ndarray:
    """In float64, word by word: the on-policy gradient of GRPO without division by length or deviation."""
    flat = torch.from_numpy(theta().astype(np.float64)).requires_grad_(True)
    parts = {n: flat[at : at + int(np.prod(s))].view(s) for n, (at, s) in LAYOUT.offsets().items()}
    log_p = gpt_logits(SPEC.model, parts, torch.from_numpy(visible(rows)[:, :-1])).log_softmax(-1)
    terms = []
    for number, row in enumerate(rows):
        mates = rewards[number // group * group :][:group]
        said = sum(log_p[number, at - 1, int(t)] for at, t in enumerate(row) if at and t >= 0)
        terms.append(-(rewards[number] - mates.mean()) * said / GRPO.completion)
    torch.stack(terms).mean().backward()
    assert flat.grad is not None
    return flat.grad.numpy()


@pytest.mark.parametrize("micro", [0, 2, 3])
def test_the_gradient_is_that_of_the_papers_and_the_loss_one_less_the_mean_reward(micro):
    spec = a_grpo_run(None, grpo=replace(GRPO, reward=Reward.PREFIX))
    near = theta().copy()
    rows = batch(spec, theta_P=near)
    # the answers of a model that has learnt nothing are wrong: let some be right
    for number, micro_reward in enumerate((10**6, 0, 666_666, 0, 500_000, 333_333, 0, 0)):
        total = (1_666_666, 833_333)[number // 4]
        digits = micro_reward.to_bytes(3, "big") + total.to_bytes(4, "big")
        rows[number, -FIGURE_TOKENS:] = ~np.frombuffer(digits, np.uint8).astype(np.int64)
    rewards = np.array([1, 0, 0.666666, 0, 0.5, 0.333333, 0, 0])

    loss, slope = loss_and_gradient(
        spec.model, LAYOUT, near, rows, compute=replace(spec.compute, micro_sequences=micro)
    )

    expected = plainly(rows, rewards, GRPO.group)
    assert loss == pytest.approx(1 - rewards.mean(), abs=1e-6)
    assert np.abs(slope - expected).max() < 1e-5 * np.abs(expected).max()


def test_equal_rewards_have_no_gradient_and_a_reference_class_has_no_operators():
    rows = batch()  # of which none is right

    loss, slope = loss_and_gradient(SPEC.model, LAYOUT, theta(), rows, compute=COMPUTE)

    assert loss == 1 and not slope.any()
    with pytest.raises(ValueError, match="no operators of GRPO"):
        reference_loss_and_gradient(SPEC.model, LAYOUT, theta(), rows, compute=COMPUTE)
    assert mean_loss(SPEC.model, LAYOUT, theta(), TASKS.reshape(-1, LENGTH)[:8]) > 0
