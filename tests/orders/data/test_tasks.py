"""Tasks of an order: one in each window, with room for a completion, or refused with the line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from assay.orders.check import check_order
from assay.orders.data.tokenise import collect_data, collect_tokens
from assay.orders.load import load_order
from assay.orders.spec import compute_spec, data_spec
from assay.protocol.errors import ConfigError
from assay.protocol.grpo import GrpoSpec, Reward
from assay.protocol.params import ComputeSpec, Precision
from assay.training.data.rollouts import task_of
from assay.training.data.tokenizer import byte_tokenizer_json
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.hugging_face import export_config, export_tensors
from assay.training.model.presets import PRESETS
from tests.orders.data.test_preferences import a_base

SEQUENCE = PRESETS["llama-130k"].context + 1
TASK = {"prompt": "3+4", "completion": "7"}
USUAL = {"verify.limits": "none", "train.sequences": 8, "train.grpo_tokens": 16}


def an_order(folder: Path, *lines: object, **keys):
    (folder / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = {"source": str(folder / "tasks.jsonl"), "format": "tasks"}
    return load_order(
        None,
        {"model.base": a_base(folder / "base"), "data": [source], **USUAL, **keys},
    )


def test_a_task_is_a_window_of_which_the_answer_and_its_end_are_not_masked(tmp_path):
    order = an_order(
        tmp_path,
        TASK,
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]},
    )

    manifest, tokens = collect_tokens(order)

    found = [task_of(window, order.grpo) for window in tokens.reshape(-1, SEQUENCE)]
    assert [bytes(task.answer.astype(np.uint8)) for task in found] == [b"7\0", b"Ho\0"]
    assert bytes(found[0].prompt.astype(np.uint8)) == b"<|user|>\n3+4\0\n<|assistant|>\n"
    assert (manifest.chat.conversations, manifest.chat.targets) == (2, 5)
    assert manifest.chat_words == "2 tasks in sequences of 65 tokens, answers of 2.5 tokens in the mean"
    assert manifest.is_tasks and not manifest.is_preferences


def test_an_earlier_answer_in_a_task_is_part_of_its_prompt(tmp_path):
    talk = [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4")]
    line = {"messages": [{"role": role, "content": text} for role, text in talk]}
    order = an_order(tmp_path, line, **{"train.grpo_tokens": 3})

    task = task_of(collect_tokens(order)[1], order.grpo)

    assert bytes(task.answer.astype(np.uint8)) == b"4\0" and b"2\0" in bytes(task.prompt.astype(np.uint8))


def test_the_terms_of_grpo_are_what_the_order_says_or_their_defaults(tmp_path):
    assert compute_spec(an_order(tmp_path, TASK, **{"train.grpo_tokens": None})) == ComputeSpec(
        dtype=Precision.FLOAT32,
        micro_sequences=0,
        grpo=GrpoSpec(group=8, completion=32, end=0, reward=Reward.EXACT),
    )
    chosen = {"train.grpo_group": 4, "train.grpo_tokens": 5, "train.grpo_reward": "ending"}
    assert an_order(tmp_path, TASK, **chosen).grpo == GrpoSpec(
        group=4, completion=5, end=0, reward=Reward.ENDING
    )
    assert load_order(None).grpo.group == 0


def test_a_step_needs_one_window_for_each_group(tmp_path):
    order = an_order(tmp_path, *[TASK] * 40, **{"train.sequences": 32, "train.validation_share": 0.1})

    data = data_spec(order, collect_data(order, None))

    assert data.tokens == 40 * SEQUENCE and data.validation_tokens == 4 * SEQUENCE
    few = an_order(tmp_path, *[TASK] * 4, **{"train.sequences": 32, "train.validation_share": 0.25})
    manifest = collect_data(few, None)
    with pytest.raises(ConfigError, match="one step of one node needs 260"):
        data_spec(few, manifest)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"prompt": "a"}, 'expected an object with "messages"'),
        ({"prompt": "a" * 5, "completion": "b" * 32}, "an answer of 33 tokens, a completion has at most 32"),
        ({"prompt": "a", "completion": "b" * 31}, None),
        ({"prompt": "a" * 2, "completion": "b"}, "a prompt of 27 tokens, at most 26 fit"),
        ({"messages": [{"role": "assistant", "content": "b"}, {"role": "user", "content": "a"}]}, "'user'"),
    ],
)
def test_a_line_that_is_no_task_is_refused_with_its_number(tmp_path, line, reason):
    order = an_order(tmp_path, {"prompt": "a", "completion": "b"}, line, **{"train.grpo_tokens": 32})
    if reason is None:
        assert collect_data(order, None).chat.conversations == 2
        return
    with pytest.raises(ConfigError) as caught:
        collect_data(order, None)
    assert reason in str(caught.value) and "line 2" in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"verify.limits": "shipped"}, "two tokens nearly tie"),
        ({"comm.method": "diloco"}, "without inner steps"),
        ({"train.sequences": 12}, "12 sequences in a step of GRPO, expected a multiple of the group, 8"),
        ({"train.grpo_tokens": 58}, "completions of up to 58 tokens, expected 1 to 57"),
        ({"train.grpo_group": 65}, "grpo_group"),
        ({"train.grpo_reward": "best"}, "grpo_reward"),
        ({"model.separator": ""}, "a completion ends with the tokenizer's separator"),
        ({"train.dpo_beta": 0.1}, "no source has preference pairs"),
    ],
)
def test_an_order_that_does_not_go_with_grpo_is_refused(tmp_path, keys, reason):
    with pytest.raises(ConfigError, match=reason):
        an_order(tmp_path, TASK, **keys)


@pytest.mark.parametrize(
    ("line", "is_right"),
    [
        (TASK, True),
        ({"prompt": "3+4", "completion": "07"}, True),
        ({"prompt": "3+4", "completion": "8"}, False),
        ({"prompt": "three", "completion": "3"}, False),
        ({"prompt": "3+4", "completion": "It is 7"}, False),
    ],
)
def test_a_task_whose_own_answer_earns_less_than_one_is_refused(tmp_path, line, is_right):
    keys = {"train.grpo_reward": "arithmetic"}
    if is_right:
        assert collect_data(an_order(tmp_path, TASK, line, **keys), None).chat.conversations == 2
        return
    with pytest.raises(ConfigError, match="line 2: its answer does not earn 1, by arithmetic"):
        collect_data(an_order(tmp_path, TASK, line, **keys), None)


def test_other_data_beside_tasks_and_terms_without_them_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="which train alone"):
        an_order(tmp_path, TASK, data=[{"source": "a", "format": "tasks"}, {"source": "b"}])
    with pytest.raises(ConfigError, match="no source has tasks"):
        load_order(None, {"train.grpo_group": 4})


def test_the_check_of_an_order_says_what_is_sampled_and_what_that_costs(tmp_path):
    path = Path(__file__).parents[3] / "examples" / "grpo.toml"
    (tmp_path / "examples").mkdir()
    text = path.read_text()
    (tmp_path / "examples" / "tasks.jsonl").write_bytes((path.parent / "tasks.jsonl").read_bytes())
    (tmp_path / "examples" / "grpo.toml").write_text(text)
    folder = tmp_path / "runs" / "grpo-start" / "bundle" / "model"
    folder.mkdir(parents=True)
    model = PRESETS["llama-130k"]
    theta = initial_parameters(3, layout_of(model).names, layout_of(model).shapes)
    (folder / "chat_template.jinja").write_bytes((path.parent / "chat.jinja").read_bytes())
    (folder / "config.json").write_text(json.dumps(export_config(model, 0)))
    (folder / "tokenizer.json").write_bytes(byte_tokenizer_json())
    save_file(export_tensors(model, theta), folder / "model.safetensors")

    rows = check_order(tmp_path / "examples" / "grpo.toml").rows

    assert "GRPO, 8 prompts a step with 8 completions each, of at most 4 tokens" in rows["loss"]
    assert "up to 1.3 times the arithmetic of the step's gradient" in rows["loss"]
