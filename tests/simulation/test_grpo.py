"""GRPO in a simulated network: from a model that guesses, rewards alone make one that answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from assay.orders.data.tokenise import collect_data, write_base
from assay.orders.spec import data_spec
from assay.simulation.round import SimRound
from assay.simulation.spec import load_sim, sim_run_spec
from assay.simulation.train import simulate
from assay.testing.specs import FLOAT32_WHOLE
from assay.training.data.batches import read_tokens
from assay.training.data.tokenizer import byte_tokenizer_json
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.hugging_face import export_config, export_tensors
from assay.training.model.initial import BASE
from assay.training.model.loss import loss_and_gradient, use_one_thread
from assay.training.model.presets import llama_spec
from tests.training.tasks import a_window

pytestmark = pytest.mark.slow

LETTERS, KNOWN = "abcd", 0.25  # the share of answers that the base does not guess
MODEL = llama_spec(layers=1, width=64, heads=2, kv_heads=2, hidden=128, context=16)
TEMPLATE = (
    r"{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ '\x00' }}{% endif %}{% endfor %}"
)
FILE = """
[sim]
nodes = 4
rounds = ROUNDS
validate_every = ROUNDS
[model]
base = "base"
chat_template = "plain.jinja"
[[data]]
source = "tasks.jsonl"
format = "tasks"
[train]
sequences = 32
grpo_group = 8
grpo_tokens = 3
lr = 1e-3
warmup = 1
"""


def guessing() -> np.ndarray:
    """Parameters of a model that is right now and then: fine-tuned on answers most of which are guesses."""
    use_one_thread()
    layout, draw = layout_of(MODEL), np.random.default_rng(1)
    theta = initial_parameters(1, layout.names, layout.shapes)
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    for step in range(1, 121):  # Adam
        asked, guess = draw.choice([*LETTERS.encode()], (2, 32))
        said = np.where(draw.random(32) < KNOWN, asked, guess)
        rows = np.stack(
            [a_window(b"%c=" % one, b"%c" % other) for one, other in zip(asked, said, strict=True)]
        )
        _, slope = loss_and_gradient(MODEL, layout, theta, rows, compute=FLOAT32_WHOLE)
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        moved = first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
        theta = (theta - 3e-3 * moved).astype(np.float32)
    return theta


def trained(folder: Path, rounds: int) -> list[SimRound]:
    """A simulation on tasks whose answer is the letter in their prompt."""
    lines = [{"prompt": f"{letter}=", "completion": letter} for letter in LETTERS for _ in range(80)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "plain.jinja").write_text(TEMPLATE)
    (folder / "spec.toml").write_text(FILE.replace("ROUNDS", str(rounds)))
    (folder / "base").mkdir()
    (folder / "data").mkdir()
    (folder / "base" / "config.json").write_text(json.dumps(export_config(MODEL, 0)))
    (folder / "base" / "tokenizer.json").write_bytes(byte_tokenizer_json())
    save_file(export_tensors(MODEL, guessing()), folder / "base" / "model.safetensors")
    spec = load_sim(folder / "spec.toml")
    described = data_spec(spec.order, collect_data(spec.order, folder / "data"))
    tokens = read_tokens(folder / "data", described)
    run = sim_run_spec(spec, described, write_base(spec.order, folder / "data"))
    return simulate(spec, run, tokens, lambda _: None, folder / "data" / BASE)


def test_the_mean_reward_rises_well_above_that_of_guessing(tmp_path):
    rounds = trained(tmp_path, 80)

    first, last = (1 - np.mean([one.loss for one in part]) for part in (rounds[:8], rounds[-8:]))

    assert first < 0.5 and last > 0.8
    assert rounds[-1].validation is not None and rounds[-1].validation < 0.5  # nats per token, of the answers
