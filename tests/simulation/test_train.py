"""Simulated training: learns, repeats itself, feels liars, and refuses what cannot be."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from assay.cli.main import app
from assay.orders.data.tokenise import collect_tokens
from assay.orders.spec import data_spec
from assay.protocol.errors import ConfigError
from assay.simulation.round import SimRound
from assay.simulation.spec import AttackName, RuleName, SimSpec, load_sim, sim_run_spec
from assay.simulation.train import run_sim, simulate
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.hugging_face import export_config, export_tensors
from assay.training.model.presets import llama_spec
from assay.training.model.sampling import step_batch

pytestmark = pytest.mark.slow

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "sim").glob("*.toml"))
TINY = """
[model]
layers = 1
width = 64
heads = 2
context = 16
[[data]]
source = "text.txt"
[train]
sequences = 2
lr = 4e-3
warmup = 1
"""


def a_file(folder: Path, **sim: object) -> Path:
    words = "".join(
        f"{hashlib.sha256(bytes([n % 251])).hexdigest()[:4]} the cat sat on the mat\n" for n in range(900)
    )
    (folder / "text.txt").write_text(words)
    chosen = {"nodes": 5, "rounds": 3, "validate_every": 3, "validation_sequences": 4, **sim}
    lines = [f"{key} = {json.dumps(value)}" for key, value in chosen.items()]
    file = folder / "spec.toml"
    file.write_text("\n".join(["[sim]", *lines, TINY]))
    return file


def rounds_of(spec: SimSpec) -> list[SimRound]:
    manifest, tokens = collect_tokens(spec.order)
    run = sim_run_spec(spec, data_spec(spec.order, manifest))
    return simulate(spec, run, tokens, lambda _: None)


def test_honest_nodes_learn(tmp_path):
    rounds = rounds_of(load_sim(a_file(tmp_path, rounds=12)))

    assert rounds[-1].loss < rounds[0].loss - 0.5
    assert rounds[-1].validation < rounds[0].loss - 0.5


def test_an_adapter_starts_where_all_parameters_of_its_base_would_and_learns(tmp_path):
    model = llama_spec(layers=1, width=64, heads=2, kv_heads=2, hidden=64, context=16)
    layout = layout_of(model)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(export_config(model, None)))
    theta = initial_parameters(4, layout.names, layout.shapes)
    save_file(export_tensors(model, theta), tmp_path / "hf" / "model.safetensors")
    rounds = {}
    for name, lines in (("all", ""), ("adapter", 'lora_rank = 8\nlora_targets = ["v", "o", "up", "down"]\n')):
        file = a_file(tmp_path, rounds=12)
        head, tail = file.read_text().split("[model]")
        tables = tail[tail.index("[[data]]") :]
        file.write_text(f'{head}[model]\nbase = "hf"\n{lines}{tables}')
        run_sim(file, tmp_path / name)
        with open(tmp_path / name / "rounds.csv") as written:
            rounds[name] = [float(row["loss"]) for row in csv.DictReader(written)]

    assert rounds["adapter"][0] == pytest.approx(rounds["all"][0], rel=1e-5)
    assert rounds["adapter"][-1] < rounds["adapter"][0] - 0.1


def test_the_same_file_gives_the_same_rounds(tmp_path):
    file = a_file(tmp_path, liars=1, attack="gaussian", rule="centered-clip")

    assert rounds_of(load_sim(file)) == rounds_of(load_sim(file))


def test_liars_make_a_difference_and_rules_another(tmp_path):
    clean = rounds_of(load_sim(a_file(tmp_path)))
    attacked = rounds_of(load_sim(a_file(tmp_path, liars=2, attack="adaptive")))
    defended = rounds_of(load_sim(a_file(tmp_path, liars=2, attack="adaptive", rule="decoded-trimmed-mean")))

    assert len({rounds[-1].validation for rounds in (clean, attacked, defended)}) == 3


@pytest.mark.parametrize("rule", get_args(RuleName))
def test_every_rule_can_be_named(rule, tmp_path):
    file = a_file(tmp_path, rule=rule, liars=1, attack="mimic", rounds=1, nodes=7)
    if rule == "trimmed-mean-implied":
        with pytest.raises(ConfigError, match=r"refuses: .* senders per coefficient"):
            rounds_of(load_sim(file))
        return

    (only,) = rounds_of(load_sim(file))

    assert np.isfinite(only.loss)
    assert only.frozen_ppm < 1_000_000
    assert only.aggregate_bytes > 0


@pytest.fixture(scope="module")
def honest_loss(tmp_path_factory):
    return rounds_of(load_sim(a_file(tmp_path_factory.mktemp("honest"), rounds=2, rule="mean")))[
        -1
    ].validation


@pytest.mark.parametrize("attack", [name for name in get_args(AttackName) if name != "none"])
def test_every_attack_can_be_named(attack, honest_loss, tmp_path):
    attacked = rounds_of(load_sim(a_file(tmp_path, rounds=2, rule="mean", attack=attack, liars=1)))

    is_asleep = attack == "sleeper"  # for its first rounds
    assert (honest_loss == attacked[-1].validation) == is_asleep


@pytest.mark.parametrize("attack", ["sign-flip", "label-flip"])
def test_audited_attackers_are_found_in_their_first_lie_on_probation_and_are_gone(attack, tmp_path):
    plan = {"rounds": 10, "liars": 2, "attack": attack, "lies_from": 2}

    free, audited = (rounds_of(load_sim(a_file(tmp_path, **plan, audited=on))) for on in (False, True))

    assert [one.found for one in audited] == [0, 0] + [2] * 8 and not free[-1].found
    assert [one.loss for one in free[:3]] == [one.loss for one in audited[:3]]
    assert audited[-1].loss < free[-1].loss


@pytest.mark.parametrize(
    ("sim", "words"),
    [
        ({"nodes": 4, "liars": 2, "attack": "split"}, "more than twice"),
        ({"attack": "split"}, "no node carries it out"),
        ({"liars": 1}, "expected an attack"),
        ({"rule": "krum", "f": 2}, "at least 7 nodes"),
        ({"rule": "bucketing+centered-clip", "f": 2}, "more than 8 nodes"),
        ({"rule": "mean-of-all"}, "rule"),
        ({"lairs": 1}, "did you mean"),
    ],
)
def test_a_mistake_in_the_file_is_named_before_anything_trains(sim, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        load_sim(a_file(tmp_path, **sim))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_examples_are_sound(file):
    assert load_sim(file).sim.nodes == 8


def test_the_command_prints_a_table_and_writes_every_round(tmp_path):
    result = CliRunner().invoke(app, ["sim", "train", str(a_file(tmp_path)), "--out", str(tmp_path / "out")])

    assert result.exit_code == 0, result.output
    assert "validation loss" in result.output
    rows = list(csv.DictReader((tmp_path / "out" / "rounds.csv").open()))
    assert [row["round"] for row in rows] == ["0", "1", "2"]
    assert float(rows[2]["validation"]) > 0


def test_simulated_nodes_have_the_seats_that_draws_without_replacement_follow_from(tmp_path, monkeypatch):
    seats = []

    def seen(*place, seat=0, **how):
        seats.append(seat)
        return step_batch(*place, seat=seat, **how)

    monkeypatch.setattr("assay.simulation.train.step_batch", seen)
    path = a_file(tmp_path, rounds=1, validate_every=1)
    path.write_text(path.read_text().replace("[train]", '[train]\nsampling = "without-replacement"'))
    rounds_of(load_sim(path))

    assert seats == list(range(5))
