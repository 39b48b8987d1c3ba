"""[model] and [compute]: models that people have, as an order names them, and the machines they run on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from safetensors.numpy import save_file

from assay.cli.process import read_process_file
from assay.orders.check import adapter_words, check_order
from assay.orders.data.tokenise import write_base
from assay.orders.load import load_order
from assay.orders.sections import Preset
from assay.orders.spec import compute_spec, model_spec
from assay.participant.keys.private_files import write_private
from assay.protocol.errors import ConfigError
from assay.protocol.params import AdapterSpec, Family, Precision, Target
from assay.protocol.types import NO_DIGEST
from assay.training.exact import initial_parameters
from assay.training.frozen import Frozen
from assay.training.layout import layout_of
from assay.training.model.hugging_face import export_config, export_tensors, read_theta
from assay.training.model.initial import state_digest
from assay.training.model.presets import PRESETS, gpt_spec, llama_spec
from assay.training.rounded import stored_bytes
from tests.training.data.test_tokenizer import a_tokenizer

Q, V = Target.Q, Target.V
LLAMA = llama_spec(vocabulary=400, layers=2, width=48, heads=6, kv_heads=2, hidden=80, context=32)


def sizes(**model):
    return load_order(None, {f"model.{key}": value for key, value in model.items()}).sizes


def a_base(folder: Path, model=LLAMA) -> np.ndarray:
    """A Hugging Face folder; its parameters."""
    folder.mkdir(exist_ok=True)
    layout = layout_of(model)
    theta = initial_parameters(4, layout.names, layout.shapes)
    (folder / "config.json").write_text(json.dumps(export_config(model, None)))
    save_file(export_tensors(model, theta), folder / "model.safetensors")
    return theta


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_named_in_an_order_with_the_vocabulary_of_its_tokenizer(name):
    assert sizes(preset=name) == replace(PRESETS[name], vocabulary=256)
    assert name in get_args(Preset)


def test_a_size_written_beside_a_preset_replaces_its_own_and_what_follows_from_it():
    assert sizes() == PRESETS["gpt-1m"]
    assert sizes(width=64) == replace(PRESETS["gpt-1m"], width=64, hidden=256)
    wide = sizes(preset="llama-1m", width=192, heads=6)
    assert (wide.hidden, wide.kv_heads, wide.layers) == (512, 6, 4)
    assert sizes(preset="llama-1m", rope_theta=500_000, tied=True).rope_theta == 500_000


def test_a_family_is_enough_with_the_sizes_that_nobody_can_guess():
    made = sizes(family="llama", layers=2, width=96, heads=4, kv_heads=2, context=64)

    assert (made.family, made.hidden, made.kv_heads) == (Family.LLAMA, 256, 2)
    assert sizes(family="gpt", layers=1, width=64, heads=2, context=8).hidden == 256


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"preset": "llama-9t"}, "is not one of gpt-1m, gpt-15m"),
        (
            {"family": "llama", "layers": 2},
            "a family without a preset needs layers, width, heads and context",
        ),
        ({"preset": "gpt-1m", "family": "llama"}, 'preset "gpt-1m" is no llama'),
        ({"rope_theta": 10_000}, "a GPT learns its positions"),
        ({"preset": "llama-1m", "kv_heads": 3}, "heads 4 must be a multiple of kv_heads"),
        ({"vocabulary": 100}, "vocabulary is 100, the tokenizer needs 256"),
        ({"separator": "</s>"}, "tokens are bytes, which name none"),
        ({"tokenizer": "nowhere.json"}, "nowhere.json: cannot be read"),
        ({"base": "nowhere"}, "config.json: cannot be read"),
    ],
)
def test_a_model_that_cannot_be_is_one_line_with_the_reason(model, words):
    with pytest.raises(ConfigError) as caught:
        sizes(**model)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("command line: [model]")
    assert words in line


def test_compute_is_float32_and_the_whole_batch_unless_it_is_written():
    assert compute_spec(load_order(None)).dtype is Precision.FLOAT32
    chosen = compute_spec(load_order(None, {"compute.dtype": "bfloat16", "compute.micro_sequences": 2}))
    assert (chosen.dtype, chosen.micro_sequences) == (Precision.BFLOAT16, 2)


# ---- a base ----


@pytest.mark.parametrize(
    "model",
    [
        LLAMA,
        replace(LLAMA, family=Family.QWEN2),
        replace(LLAMA, family=Family.QWEN3, head_width=10),
        replace(LLAMA, family=Family.GEMMA, head_width=10, is_tied=True),
    ],
    ids=["llama", "qwen2", "qwen3", "gemma"],
)
def test_a_base_gives_sizes_vocabulary_parameters_and_tokenizer(tmp_path, model):
    theta = a_base(tmp_path / "hf", model)
    path = tmp_path / "run.toml"
    path.write_text('[model]\nbase = "hf"\ncontext = 16\n')
    order = load_order(path)

    digest = write_base(order, tmp_path)

    assert order.sizes == replace(model, context=16)
    assert digest == state_digest(theta) == state_digest(np.load(tmp_path / "base.npy"))
    assert model_spec(order, digest).base == digest
    assert order.tokenizer.digest == NO_DIGEST
    a_tokenizer(tmp_path / "hf" / "tokenizer.json")
    assert load_order(path).tokenizer.digest != NO_DIGEST
    assert write_base(load_order(None), tmp_path) == NO_DIGEST


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("layers", 3, "layers is written, but the sizes are those of base"),
        ("preset", "llama-1m", "preset is written, but the sizes are those of base"),
        ("context", 64, "context is 64, base has 32"),
        ("vocabulary", 300, "vocabulary is 300, base has 400"),
    ],
)
def test_sizes_that_contradict_a_base_are_refused(tmp_path, key, value, words):
    a_base(tmp_path)

    with pytest.raises(ConfigError, match=words):
        sizes(base=str(tmp_path), **{key: value})


def test_a_tokenizer_with_more_tokens_than_the_base_knows_is_refused(tmp_path):
    a_base(tmp_path, replace(LLAMA, vocabulary=100))
    tokenizer = a_tokenizer(tmp_path / "other.json")

    with pytest.raises(ConfigError, match=r"vocabulary is 100, the tokenizer needs \d+"):
        sizes(base=str(tmp_path), tokenizer=str(tokenizer))


# ---- an adapter ----


def test_an_adapter_is_of_q_and_v_and_counts_twice_unless_it_is_written(tmp_path):
    a_base(tmp_path / "hf")
    path = tmp_path / "run.toml"
    path.write_text('[model]\nbase = "hf"\nlora_rank = 4\n')
    assert load_order(path).sizes == replace(LLAMA, adapter=AdapterSpec(rank=4, alpha=8, targets=(Q, V)))
    path.write_text(
        '[model]\nbase = "hf"\nlora_rank = 2\nlora_alpha = 3\nlora_targets = ["down", "o", "q"]\n'
    )
    order = load_order(path)
    assert order.sizes.adapter == AdapterSpec(rank=2, alpha=3, targets=(Q, Target.O, Target.DOWN))

    digest = write_base(order, tmp_path)

    assert digest == state_digest(np.load(tmp_path / "base.npy"))
    assert len(np.load(tmp_path / "base.npy")) == layout_of(LLAMA).parameters
    assert model_spec(order, digest).is_adapted


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"lora_rank": 16}, "rank 16 for v, a matrix of 16 x 48: expected less than its shorter side"),
        ({"lora_rank": 4, "lora_targets": []}, "lora_targets is empty, expected some of q, k, v, o, gate"),
        ({"lora_rank": 4, "lora_targets": ["q", "q"]}, "names a matrix twice: q, q"),
        ({"lora_rank": 4, "lora_targets": ["q", "head"]}, "lora_targets"),
        ({"lora_alpha": 8}, "belong to lora_rank, which is not written"),
        ({"lora_targets": ["q"]}, "belong to lora_rank, which is not written"),
        ({"lora_rank": 0}, "lora_rank"),
        ({"base_bits": 8}, "base_bits belong to lora_rank, which is not written"),
        ({"lora_rank": 4, "base_bits": 3}, "base_bits"),
    ],
)
def test_an_adapter_that_cannot_be_trained_is_refused_with_the_reason(tmp_path, model, words):
    a_base(tmp_path)

    with pytest.raises(ConfigError, match=words):
        sizes(base=str(tmp_path), **model)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_base_in_few_bits_is_written_so_and_named_by_its_values(tmp_path, bits):
    a_base(tmp_path / "hf")
    path = tmp_path / "run.toml"
    path.write_text(f'[model]\nbase = "hf"\nlora_rank = 4\nbase_bits = {bits}\n')
    order, whole = load_order(path), layout_of(LLAMA)

    digest = write_base(order, tmp_path)

    stored = np.load(tmp_path / "base.npy")
    assert stored.nbytes == stored_bytes(whole, bits) < 4 * whole.parameters
    assert digest == state_digest(Frozen(whole, stored, bits).values())
    assert f"stay as they are, in {bits} bits, " in adapter_words(order.sizes)
    theta = read_theta(tmp_path / "hf", LLAMA)
    assert 0 < np.abs(Frozen(whole, stored, bits).values() - theta).max() < np.abs(theta).max() / 10
    whole.views(theta)["layer0.mlp.up"][0, 0] = 3e38
    save_file(export_tensors(LLAMA, theta), tmp_path / "hf" / "model.safetensors")
    with pytest.raises(ConfigError, match=r"base .*hf: layer0\.mlp\.up has values that no scale"):
        write_base(order, tmp_path)


def test_an_adapter_needs_a_base_and_a_llama(tmp_path):
    with pytest.raises(ConfigError, match="write the base's folder as base"):
        sizes(preset="llama-1m", lora_rank=4)
    a_base(tmp_path, gpt_spec(layers=1, width=48, heads=2, context=16, vocabulary=400))
    with pytest.raises(ConfigError, match="an adapter needs a Llama"):
        sizes(base=str(tmp_path), lora_rank=4)


def test_an_adapter_in_bfloat16_is_for_machines_of_one_class(tmp_path):
    a_base(tmp_path / "hf")
    path = tmp_path / "run.toml"
    half = '[model]\nbase = "hf"\nlora_rank = 4\n[compute]\ndtype = "bfloat16"\n'
    path.write_text(half)
    with pytest.raises(ConfigError, match="cannot be judged between execution classes"):
        load_order(path)

    path.write_text(half + '[verify]\nlimits = "none"\n')
    assert load_order(path).sizes.is_adapted
    path.write_text('[model]\nbase = "hf"\n[compute]\ndtype = "bfloat16"\n')
    assert load_order(path).limits is not None


def test_more_fragments_than_an_adapter_has_blocks_are_refused(tmp_path):
    a_base(tmp_path / "hf")
    (tmp_path / "text").write_text("some words " * 5000)
    path = tmp_path / "run.toml"
    path.write_text(
        '[model]\nbase = "hf"\nlora_rank = 4\n[comm]\nmethod = "streaming-diloco"\n'
        '[[data]]\nsource = "text"\nlicence = "CC0-1.0"\n'
    )

    with pytest.raises(ConfigError, match="fragments are too many for this model"):
        check_order(path)


def test_the_check_says_where_the_sizes_are_from_and_how_text_became_tokens(tmp_path):
    a_base(tmp_path / "hf")
    (tmp_path / "docs.jsonl").write_text('{"text": "some words and more"}\n' * 3000)
    path = tmp_path / "run.toml"
    path.write_text(
        '[model]\nbase = "hf"\n[compute]\ndtype = "bfloat16"\nmicro_sequences = 2\n'
        '[[data]]\nsource = "docs.jsonl"\nlicence = "CC0-1.0"\n'
    )

    report = "\n".join(check_order(path).lines)

    for words in (
        "base hf, 2 x 48, 6 heads (2 kv), context 32, vocabulary 400",
        f"{layout_of(LLAMA).parameters:,} parameters",
        "60,000 tokens, 3,000 held out: docs.jsonl (CC0-1.0)",
        "57,000 bytes in 3,000 documents, a token each byte",
        "bfloat16, 2 sequences per forward and backward pass",
    ):
        assert words in report


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", ("cpu", 1)),
        ('threads = "auto"', ("cpu", 0)),
        ('threads = 4\ndevice = "cuda"', ("cuda", 4)),
    ],
)
def test_device_and_threads_are_the_operators_own(tmp_path, lines, expected):
    config, _ = read_process_file(a_process_file(tmp_path, lines))

    assert (config.device, config.threads) == expected


@pytest.mark.parametrize(("line", "room"), [("", 4 * 10**9), ("blob_gb = 0.5", 5 * 10**8)])
def test_room_for_blobs_is_the_operators_own(tmp_path, line, room):
    assert read_process_file(a_process_file(tmp_path, line))[0].blob_bytes == room


@pytest.mark.parametrize("line", ["threads = 0", 'threads = "many"', 'device = "tpu"', "blob_gb = 0"])
def test_a_machine_that_cannot_be_is_refused(tmp_path, line):
    with pytest.raises(ConfigError, match=line.split()[0]):
        read_process_file(a_process_file(tmp_path, line))


def a_process_file(folder: Path, lines: str) -> Path:
    write_private(folder / "password", b"secret")
    path = folder / "config.toml"
    path.write_text(f'keys = "keys"\nnetwork = "n"\nrpc_url = "http://127.0.0.1:1"\n{lines}\n')
    return path
