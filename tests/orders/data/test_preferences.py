"""Preference pairs of an order: laid out whole, with the base's own figures, or refused with the line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from assay.orders.data.tokenise import collect_data, collect_tokens
from assay.orders.load import load_order
from assay.orders.spec import compute_spec, data_spec
from assay.protocol.errors import ConfigError
from assay.protocol.params import check_spec
from assay.testing.members import peer
from assay.testing.specs import a_rule, a_spec
from assay.training.data.batches import batch_positions, validation_tokens
from assay.training.data.mask import visible
from assay.training.data.preferences import pair_of, reference_nats
from assay.training.data.shards import read_manifest
from assay.training.data.tokenizer import byte_tokenizer_json
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.hugging_face import export_config, export_tensors
from assay.training.model.loss import mean_loss
from assay.training.model.presets import PRESETS

MODEL = PRESETS["llama-130k"]
SEQUENCE = MODEL.context + 1
THETA = initial_parameters(3, layout_of(MODEL).names, layout_of(MODEL).shapes)
PAIR = {"prompt": "Tea?", "chosen": "Yes.", "rejected": "No!"}


def a_base(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(export_config(MODEL, 0)))
    (folder / "tokenizer.json").write_bytes(byte_tokenizer_json())
    save_file(export_tensors(MODEL, THETA), folder / "model.safetensors")
    return str(folder)


def an_order(folder: Path, *lines: object, **keys):
    (folder / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = {"source": str(folder / "pairs.jsonl"), "format": "preferences"}
    return load_order(None, {"model.base": a_base(folder / "base"), "data": [source], **keys})


def test_a_pair_is_two_sequences_of_which_the_completions_are_trained_on(tmp_path):
    order = an_order(tmp_path, PAIR)

    manifest, tokens = collect_tokens(order)

    chosen, rejected = tokens.reshape(2, SEQUENCE)
    for row, answer in ((chosen, b"Yes.\0\n"), (rejected, b"No!\0\n")):
        assert bytes(row[row >= 0].astype(np.uint8)) == answer
        assert bytes(visible(row).astype(np.uint8)).startswith(b"<|user|>\nTea?\0\n<|assistant|>\n" + answer)
    assert (manifest.chat.conversations, manifest.chat.targets) == (2, 11)
    assert manifest.chat_words.startswith("1 preference pairs in sequences of 65 tokens; 11 targets")
    assert compute_spec(order).beta_micro == 100_000


def test_what_the_data_say_of_the_reference_model_is_what_the_base_gives(tmp_path):
    _, tokens = collect_tokens(an_order(tmp_path, PAIR))

    for row, nats in zip(tokens.reshape(2, -1), reference_nats(tokens.reshape(2, -1)), strict=True):
        mean = mean_loss(MODEL, layout_of(MODEL), THETA, row[None])
        assert nats == pytest.approx(mean * np.count_nonzero(row[1:] >= 0), abs=1e-3)


def test_messages_and_text_of_the_same_words_are_the_same_data(tmp_path):
    messages = {
        "prompt": [{"role": "user", "content": "Tea?"}],
        "chosen": [{"role": "assistant", "content": "Yes."}],
        "rejected": [{"role": "assistant", "content": "No!"}],
    }
    one, other = (collect_data(an_order(tmp_path, line), None) for line in (PAIR, messages))

    assert one.root == other.root


def test_what_is_written_is_what_is_read_and_counts_are_in_the_manifest(tmp_path):
    order = an_order(tmp_path, *({**PAIR, "prompt": f"Tea {n}?"} for n in range(40)))

    manifest = collect_data(order, tmp_path / "data")

    assert read_manifest(tmp_path / "data") == manifest
    assert manifest.is_preferences and manifest.tokens == 80 * SEQUENCE


def test_an_earlier_answer_in_a_prompt_is_not_trained_on():
    prompt = [
        {"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))
    ]
    chosen, _ = pair_of({**PAIR, "prompt": prompt})

    assert [message.is_trained for message in chosen] == [False, False, False, True]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            {"prompt": "a", "chosen": "b"},
            'expected an object with "prompt", "chosen" and "rejected", found chosen, prompt',
        ),
        ([], "found list"),
        ({**PAIR, "rejected": "Yes."}, "are the same, expected two completions"),
        ({**PAIR, "chosen": " "}, '"chosen" is empty'),
        ({**PAIR, "rejected": []}, '"rejected" is neither text nor messages'),
        ({**PAIR, "prompt": 3}, '"prompt" is neither text nor messages'),
        ({**PAIR, "chosen": [{"role": "user", "content": "x"}]}, '"chosen" is empty'),
        ({**PAIR, "chosen": [{"role": "tool", "content": "x"}]}, "its role is 'tool'"),
        ({**PAIR, "tools": [1]}, "tools, which are not supported"),
        ({**PAIR, "rejected": "No!" * 20}, "at most 61 fit the model's context"),
    ],
)
def test_a_line_that_is_no_pair_is_refused_with_its_number(tmp_path, line, reason):
    with pytest.raises(ConfigError) as caught:
        collect_data(an_order(tmp_path, PAIR, line), None)

    assert reason in str(caught.value) and "2" in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"train.sequences": 3}, "whole preference pairs, expected an even number"),
        ({"compute.micro_sequences": 3}, "would tear a preference pair"),
        ({"compute.dtype": "bfloat16"}, "cannot be judged between execution classes"),
        ({"train.dpo_beta": 0.0009}, "dpo_beta"),
        ({"train.dpo_beta": 10.1}, "dpo_beta"),
        ({"model.base": None, "model.preset": "llama-130k", "base": None}, "DPO needs a base"),
    ],
)
def test_an_order_that_does_not_go_with_dpo_is_refused(tmp_path, keys, reason):
    order = {"model.base": a_base(tmp_path / "base"), **keys}
    source = {"source": "pairs.jsonl", "format": "preferences"}
    with pytest.raises(ConfigError, match=reason):
        load_order(None, {"data": [source], **{k: v for k, v in order.items() if v is not None}})


def test_other_data_beside_preferences_and_beta_without_them_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="which train alone"):
        an_order(tmp_path, PAIR, data=[{"source": "a", "format": "preferences"}, {"source": "b"}])
    with pytest.raises(ConfigError, match="no source has preference pairs"):
        load_order(None, {"train.dpo_beta": 0.1})


def test_a_held_out_part_under_one_pair_is_refused(tmp_path):
    order = an_order(
        tmp_path,
        *({**PAIR, "prompt": f"Tea {n}?"} for n in range(12)),
        **{"train.sequences": 2, "train.validation_share": 0.05},
    )
    with pytest.raises(ConfigError, match="one preference pair needs 130"):
        data_spec(order, collect_data(order, None))


def a_dpo_spec(**compute):
    spec = a_spec(rule=a_rule("demo", sequences=4))
    return replace(spec, compute=replace(spec.compute, beta_micro=100_000, **compute))


def test_batches_and_held_out_sequences_are_whole_pairs_that_never_share_one():
    spec = a_dpo_spec()
    length, split = spec.model.context + 1, spec.split
    held = {split.held_out(number) for number in range(split.held)}

    for round_id in range(30):
        starts = batch_positions(spec, peer("nora"), round_id, spec.tokens_per_step)
        assert len(starts) == spec.rule.sequences_per_round
        for chosen, rejected in zip(starts[::2], starts[1::2], strict=True):
            assert chosen % (2 * length) == 0 and rejected == chosen + length
            assert chosen // (2 * length) not in held
    stream = np.arange(spec.data.tokens)
    rows = validation_tokens(stream, spec, 7)
    assert len(rows) == 6
    assert {int(row[0]) // (2 * length) for row in rows} <= held
    assert [int(row[0]) % (2 * length) for row in rows] == [0, length] * 3


@pytest.mark.parametrize("beta", [1_000, 10_000_000])
def test_a_spec_with_the_least_and_the_most_beta_is_sound(beta):
    check_spec(replace(a_dpo_spec(), compute=replace(a_dpo_spec().compute, beta_micro=beta)))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            lambda: replace(a_dpo_spec(), compute=replace(a_dpo_spec().compute, beta_micro=999)),
            "999 millionths",
        ),
        (
            lambda: replace(a_dpo_spec(), compute=replace(a_dpo_spec().compute, beta_micro=10_000_001)),
            "millionths",
        ),
        (lambda: a_dpo_spec(micro_sequences=3), "micro_sequences is 3"),
        (lambda: replace(a_dpo_spec(), rule=a_rule("demo", sequences=3)), "3 sequences in a step of DPO"),
    ],
)
def test_a_spec_that_tears_pairs_or_has_no_sensible_beta_is_refused(spec, reason):
    with pytest.raises(ValueError, match=reason):
        check_spec(spec())


def test_completions_that_a_template_makes_the_same_are_refused(tmp_path):
    (tmp_path / "trims.jinja").write_text(
        "{% for m in messages %}{{ m.role }}:{{ m.content | trim }};{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    order = an_order(
        tmp_path, {**PAIR, "rejected": "Yes. "}, **{"model.chat_template": str(tmp_path / "trims.jinja")}
    )

    with pytest.raises(ConfigError, match="are the same tokens"):
        collect_data(order, None)
