"""HF: what comes from a folder, and what goes into one, is the model that `transformers` loads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch_file

from assay.protocol.errors import ConfigError
from assay.protocol.params import Family
from assay.training.data.tokenizer import byte_tokenizer_json
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.hugging_face import export_config, export_tensors, read_sizes, read_theta
from assay.training.model.initial import state_digest
from assay.training.model.presets import gpt_spec, llama_spec
from tests.training.model.logits import logits

LLAMA = llama_spec(vocabulary=70, layers=2, width=48, heads=6, kv_heads=2, hidden=80, context=16)
GPT = gpt_spec(vocabulary=70, layers=2, width=48, heads=4, context=16)
MODELS = {
    "gpt": GPT,
    "gpt, tied": replace(GPT, is_tied=True, hidden=72),
    "llama": LLAMA,
    "llama, tied": replace(LLAMA, is_tied=True, rope_theta=500_000, norm_epsilon_nano=1000),
    "llama, heads of their own width": replace(LLAMA, head_width=10),
    "qwen3": replace(LLAMA, family=Family.QWEN3, head_width=10),
    "gemma": replace(LLAMA, family=Family.GEMMA, head_width=10, is_tied=True),
    "gemma, a head of its own": replace(LLAMA, family=Family.GEMMA),
    "qwen2": replace(LLAMA, family=Family.QWEN2, is_tied=True, rope_theta=10**6),
}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
TOKENS = np.random.default_rng(2).integers(0, 70, (3, 16))


def theta_of(model) -> np.ndarray:
    layout = layout_of(model)
    return initial_parameters(9, layout.names, layout.shapes) * np.float32(3) + np.float32(0.01)


def a_folder(folder: Path, model, **changes) -> Path:
    """Such a folder as a run delivers; `changes` go into its config.json."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**export_config(model, None), **changes}))
    save_file(export_tensors(model, theta_of(model)), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@every_model
def test_what_was_exported_comes_back_bit_for_bit(model, tmp_path):
    folder = a_folder(tmp_path, model)

    assert read_sizes(folder) == model
    assert state_digest(read_theta(folder, model)) == state_digest(theta_of(model))


def test_weights_in_several_files_are_found_by_their_index(tmp_path):
    folder = a_folder(tmp_path, LLAMA)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {}
    for number in range(3):
        part = {name: tensors[name] for name in sorted(tensors)[number::3]}
        save_file(part, folder / f"model-{number}.safetensors")
        places |= dict.fromkeys(part, f"model-{number}.safetensors")
    with pytest.raises(ConfigError, match=r"3 .*safetensors files without an index"):
        read_theta(folder, LLAMA)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))

    assert np.array_equal(read_theta(folder, LLAMA), theta_of(LLAMA))

    places[min(places)] = "../elsewhere.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(ConfigError, match="outside its folder"):
        read_theta(folder, LLAMA)


def test_bfloat16_weights_are_widened_exactly(tmp_path):
    folder = a_folder(tmp_path, LLAMA)
    halves = {n: torch.from_numpy(t).bfloat16() for n, t in export_tensors(LLAMA, theta_of(LLAMA)).items()}
    save_torch_file(halves, folder / "model.safetensors")

    found = read_theta(folder, LLAMA)

    assert np.array_equal(found, torch.from_numpy(theta_of(LLAMA)).bfloat16().float().numpy())


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_codes_of_a_quantised_matrix_are_not_taken_for_weights(tmp_path, kind):
    folder, name = a_folder(tmp_path, LLAMA), "model.layers.1.mlp.up_proj.weight"
    tensors = {n: torch.from_numpy(t) for n, t in export_tensors(LLAMA, theta_of(LLAMA)).items()}
    for fine in (torch.float16, torch.float64):
        save_torch_file({**tensors, name: tensors[name].to(fine)}, folder / "model.safetensors")
        read_theta(folder, LLAMA)
    save_torch_file({**tensors, name: (tensors[name] * 50).to(kind)}, folder / "model.safetensors")

    with pytest.raises(ConfigError, match=f"tensor {name} is of {str(kind)[6:]}, expected one of float16"):
        read_theta(folder, LLAMA)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model_type": "mamba"},
            'model_type is "mamba", expected one of llama, mistral, qwen2, qwen3, gemma, gpt2',
        ),
        ({"model_type": ["llama"]}, "expected one of llama"),
        (
            {"model_type": "gemma2"},
            "soft caps, and every other layer attends over a window.*, expected one of",
        ),
        ({"model_type": "gemma3_text"}, "most of its layers attend over a window"),
        ({"model_type": "gemma", "hidden_act": "silu"}, "hidden_act is silu, only gelu_pytorch_tanh"),
        (
            {"model_type": "gemma", "hidden_activation": "relu"},
            "hidden_activation is relu, only gelu_pytorch",
        ),
        (
            {"model_type": "gemma", "hidden_act": "gelu", "use_bidirectional_attention": True},
            "use_bidirectional_attention is True, only False",
        ),
        ({"hidden_act": "gelu"}, "hidden_act is gelu, only silu"),
        ({"model_type": "mistral", "sliding_window": 0}, "context"),
        ({"model_type": "mistral", "sliding_window": "wide"}, "invalid literal"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_type is default, llama3"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type is yarn"),
        ({"head_dim": 15}, "head_width is 15, rotation needs an even number"),
        ({"head_dim": 0}, "head_dim is 0, expected at least 1"),
        ({"head_dim": 2**31 + 2}, "head_width is 2147483650, expected at most 2147483648"),
        ({"vocab_size": 10**30}, f"vocabulary is {10**30}, expected at most"),
        ({"num_attention_heads": 0}, "heads is 0, expected at least 1"),
        ({"num_key_value_heads": -2}, "kv_heads is -2, expected at least 1"),
        ({"rope_scaling": 5}, "rope_scaling is 5, expected an object or null"),
        ({"model_type": "qwen2", "use_sliding_window": "no"}, "use_sliding_window is 'no', expected true or"),
        (
            {"model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 4.0}},
            "rope_type is default, yarn",
        ),
        ({"num_key_value_heads": 4}, "heads 6 must be a multiple of kv_heads"),
        ({"hidden_size": "wide"}, "invalid literal"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is written; only plain"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false', expected true or false"),
    ],
)
def test_a_model_that_cannot_be_trained_here_is_refused_with_the_reason(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        read_sizes(a_folder(tmp_path, LLAMA, **changes))


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("scale_attn_weights", False),
        ("scale_attn_by_inverse_layer_idx", True),
        ("add_cross_attention", True),
    ],
)
def test_a_gpt2_whose_attention_is_another_is_refused(tmp_path, flag, value):
    assert read_sizes(a_folder(tmp_path, GPT, **{flag: not value})) == GPT
    with pytest.raises(ConfigError, match=f"{flag} is {value}"):
        read_sizes(a_folder(tmp_path, GPT, **{flag: value}))


def test_gpt2_is_refused_because_its_linear_biases_have_no_place_here(tmp_path):
    with pytest.raises(ConfigError, match=r"gelu_new.*OpenAI's GPT-2 cannot be started from"):
        read_sizes(a_folder(tmp_path, GPT, activation_function="gelu_new"))
    folder = a_folder(tmp_path, GPT)
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.h.1.mlp.c_fc.bias"][3] = 1e-3
    save_file(tensors, folder / "model.safetensors")

    with pytest.raises(ConfigError, match=r"transformer.h.1.mlp.c_fc.bias is not zero"):
        read_theta(folder, GPT)


def test_missing_misshapen_and_damaged_weights_are_named(tmp_path):
    folder = a_folder(tmp_path, LLAMA)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    for changed, words in (
        ({n: t for n, t in tensors.items() if n != name}, f"holds no tensor {name}"),
        ({**tensors, name: tensors[name][:-1].copy()}, rf"tensor {name} has shape \(79, 48\), expected"),
        ({**tensors, name: tensors[name] * np.float32("nan")}, f"tensor {name} is not finite"),
    ):
        save_file(changed, folder / "model.safetensors")
        with pytest.raises(ConfigError, match=words):
            read_theta(folder, LLAMA)
    body = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(body[:100])
    with pytest.raises(ConfigError, match=r"model.safetensors: cannot be read"):
        read_theta(folder, LLAMA)
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config.json: is not JSON"):
        read_sizes(folder)


# ---- with transformers itself; nothing is downloaded ----


@pytest.fixture
def transformers(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("transformers", reason="needs transformers (pip install 'assay[hf]')")


@every_model
def test_transformers_loads_what_was_exported_and_computes_the_same(transformers, model, tmp_path):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(a_folder(tmp_path, model)).eval()

    with torch.no_grad():
        expected = theirs(torch.from_numpy(TOKENS)).logits.numpy()

    assert theirs.dtype == torch.float32
    found = logits(model, layout_of(model), theta_of(model), TOKENS)
    assert np.abs(found - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_llama_that_transformers_made_is_started_from_exactly(transformers, is_tied, tmp_path):
    config = transformers.LlamaConfig(
        vocab_size=70, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=is_tied,
    )  # fmt: skip
    torch.manual_seed(1)
    theirs = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)  # norm weights too are no longer one
        expected = theirs(torch.from_numpy(TOKENS)).logits.numpy()
    theirs.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1

    model = read_sizes(tmp_path)
    found = logits(model, layout_of(model), read_theta(tmp_path, model), TOKENS)

    assert (model.is_tied, model.kv_heads, model.context, model.norm_epsilon_nano) == (is_tied, 2, 64, 1000)
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize(("window", "context"), [(None, 64), (16, 16), (4096, 64)])
def test_a_mistral_is_started_from_exactly_up_to_its_window(transformers, window, context, tmp_path):
    config = transformers.MistralConfig(
        vocab_size=70, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64, sliding_window=window,
    )  # fmt: skip
    torch.manual_seed(1)
    theirs = transformers.MistralForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path)
    model = read_sizes(tmp_path)
    tokens = np.arange(2 * context).reshape(2, context) % 70
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens)).logits.numpy()

    found = logits(model, layout_of(model), read_theta(tmp_path, model), tokens)

    assert (model.family, model.context) == (Family.LLAMA, context)
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Llama", {"head_dim": 10}),
        ("Mistral", {"head_dim": 10}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 10}),
        ("Gemma", {"head_dim": 10}),
    ],
)
def test_a_llama_style_model_that_transformers_made_comes_back_as_it_was(
    transformers, kind, changes, is_tied, tmp_path
):
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=70, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=is_tied, pad_token_id=None,
        **changes,
    )  # fmt: skip
    torch.manual_seed(1)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)  # norms, and biases are no longer zero
        expected = theirs(torch.from_numpy(TOKENS)).logits.numpy()
    theirs.save_pretrained(tmp_path / "theirs")

    model = read_sizes(tmp_path / "theirs")
    theta = read_theta(tmp_path / "theirs", model)
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "config.json").write_text(json.dumps(export_config(model, None)))
    save_file(
        export_tensors(model, theta), tmp_path / "ours" / "model.safetensors", metadata={"format": "pt"}
    )
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()

    assert np.abs(logits(model, layout_of(model), theta, TOKENS) - expected).max() < 1e-5
    assert type(again) is (transformers.LlamaForCausalLM if kind == "Mistral" else type(theirs))
    weights = again.state_dict()
    assert weights.keys() == theirs.state_dict().keys()
    assert all(torch.equal(weights[name], one) for name, one in theirs.state_dict().items())


def test_an_early_gemmas_name_of_its_activation_and_keys_left_out_mean_what_transformers_takes(
    transformers, tmp_path
):
    sizes = {"vocab_size": 70, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
    written = {"model_type": "gemma", **sizes, "num_attention_heads": 6, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({**written, "hidden_act": "gelu"}))

    model, theirs = read_sizes(tmp_path), transformers.AutoConfig.from_pretrained(tmp_path)

    assert (model.head, model.context, model.is_tied) == (256, 8192, True)
    assert (theirs.head_dim, theirs.max_position_embeddings, theirs.tie_word_embeddings) == (256, 8192, True)
    assert theirs.hidden_act == "gelu_pytorch_tanh"
    (tmp_path / "config.json").write_text(json.dumps({**written, "model_type": "qwen3"}))
    assert read_sizes(tmp_path).head == transformers.AutoConfig.from_pretrained(tmp_path).head_dim == 128


@pytest.mark.parametrize("is_sliding", [False, True])
def test_a_qwen2_is_started_from_up_to_the_window_that_it_uses(transformers, is_sliding, tmp_path):
    config = transformers.Qwen2Config(
        vocab_size=70, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=64, use_sliding_window=is_sliding, sliding_window=8,
        max_window_layers=1,
    )  # fmt: skip
    config.save_pretrained(tmp_path)

    assert read_sizes(tmp_path).context == (8 if is_sliding else 64)


def test_the_byte_tokenizer_is_one_that_transformers_reads(transformers, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(byte_tokenizer_json())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "Zażółć\n\tgęślą 𝄞 'jaźń' \x00\x7f"

    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode()), clean_up_tokenization_spaces=False) == text
