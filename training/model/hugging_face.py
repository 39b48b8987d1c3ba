"""Hugging Face: imports a run's starting model from, and exports its result to, a `transformers` folder.

Room: training (edge: reads one folder). A Llama-style model is the class of `transformers` in `_CLASSES`. A
GPT here has no biases in its linear layers and is exported as a GPT2LMHeadModel with zero biases; a GPT-2
with other biases is refused. An adapter is exported for `peft`.

    FOLDER/config.json, *.safetensors, tokenizer.json
    FOLDER/adapter_config.json, adapter_model.safetensors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import ConfigError
from assay.protocol.params import Family, ModelSpec, model_faults
from assay.protocol.types import NO_DIGEST
from assay.training.layout import TARGET_NAMES, layout_of

CONFIG, WEIGHTS, WEIGHTS_INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER_CONFIG, CHAT_TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CONFIG_BYTES_MAX = 1 << 24
SIZE_MAX = 1 << 31  # of any size in a stranger's config.json: each fits a spec
_SIZES = ("vocabulary", "width", "heads", "kv_heads", "hidden", "context", "rope_theta", "head_width")

_CLASSES = {  # model_type and architecture of all but GPT
    Family.LLAMA: ("llama", "LlamaForCausalLM"),
    Family.QWEN2: ("qwen2", "Qwen2ForCausalLM"),
    Family.QWEN3: ("qwen3", "Qwen3ForCausalLM"),
    Family.GEMMA: ("gemma", "GemmaForCausalLM"),
}
_GEMMA_WINDOWS = "most of its layers attend over a window, and rotate otherwise"
_LACKING = {  # what of other models is not here
    "gemma2": "its attention and logits have soft caps, and every other layer attends over a window",
    "gemma3": _GEMMA_WINDOWS,
    "gemma3_text": _GEMMA_WINDOWS,
}
_GELU_TANH = "gelu_pytorch_tanh"
_LLAMA_PARTS = {
    "norm1.weight": "input_layernorm.weight",
    "attention.q": "self_attn.q_proj.weight",
    "attention.k": "self_attn.k_proj.weight",
    "attention.v": "self_attn.v_proj.weight",
    "attention.q.bias": "self_attn.q_proj.bias",
    "attention.k.bias": "self_attn.k_proj.bias",
    "attention.v.bias": "self_attn.v_proj.bias",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "attention.out": "self_attn.o_proj.weight",
    "norm2.weight": "post_attention_layernorm.weight",
    "mlp.gate": "mlp.gate_proj.weight",
    "mlp.up": "mlp.up_proj.weight",
    "mlp.down": "mlp.down_proj.weight",
}
_LLAMA_WHOLE = {
    "embed": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head": "lm_head.weight",
}
_GPT_PARTS = {
    "norm1.weight": "ln_1.weight",
    "norm1.bias": "ln_1.bias",
    "attention.qkv": "attn.c_attn.weight",
    "attention.out": "attn.c_proj.weight",
    "norm2.weight": "ln_2.weight",
    "norm2.bias": "ln_2.bias",
    "mlp.up": "mlp.c_fc.weight",
    "mlp.down": "mlp.c_proj.weight",
}
_GPT_WHOLE = {
    "embed": "transformer.wte.weight",
    "position": "transformer.wpe.weight",
    "norm.weight": "transformer.ln_f.weight",
    "norm.bias": "transformer.ln_f.bias",
    "head": "lm_head.weight",
}
_PEFT_SIDES = {"lora_a": "lora_A", "lora_b": "lora_B"}
_GPT_TRANSPOSED = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")  # GPT-2 keeps (in, out)


# ---- export


def export_config(model: ModelSpec, separator: int | None) -> dict[str, Any]:
    """Content of config.json. `separator`: the token after each document, if there is one."""
    common = {
        "dtype": "float32",
        "tie_word_embeddings": model.is_tied,
        "vocab_size": model.vocabulary,
        "bos_token_id": separator,
        "eos_token_id": separator,
        "use_cache": True,
        "parameters": layout_of(model).parameters,
    }
    if model.family is Family.GPT:
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_positions": model.context,
            "n_embd": model.width,
            "n_layer": model.layers,
            "n_head": model.heads,
            "n_inner": model.hidden,
            "activation_function": "gelu",
            "layer_norm_epsilon": model.norm_epsilon_nano / 1e9,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "resid_pdrop": 0.0,
            **common,
        }
    theta, (kind, architecture) = float(model.rope_theta), _CLASSES[model.family]
    return {
        "architectures": [architecture],
        "model_type": kind,
        "max_position_embeddings": model.context,
        "hidden_size": model.width,
        "intermediate_size": model.hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head,
        "hidden_act": _GELU_TANH if model.family is Family.GEMMA else "silu",
        "rms_norm_eps": model.norm_epsilon_nano / 1e9,
        "rope_theta": theta,  # read by transformers 4
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},  # read by transformers 5
        **({} if model.family is Family.QWEN2 else {"attention_bias": False, "mlp_bias": False}),
        **common,
    }


def export_tensors(model: ModelSpec, theta_P: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """The parameters under the names, and in the shapes, of `transformers`."""
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, value in layout_of(model).views(theta_P).items():
        named, is_transposed = _their_name(model, name)
        tensors[named] = np.ascontiguousarray(value.T if is_transposed else value, np.float32)
        if is_transposed:
            tensors[_bias_of(named)] = np.zeros(value.shape[0], np.float32)
    return tensors


def export_adapter_config(model: ModelSpec) -> dict[str, Any]:
    """Content of adapter_config.json, as `peft` reads it. The base is not named: its folder is the user's."""
    adapter = model.adapter
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "target_modules": sorted(_module(TARGET_NAMES[one]) for one in adapter.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }


def export_adapter(model: ModelSpec, theta_P: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """An adapter's factors under the names, and in the shapes, of `peft`."""
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, value in layout_of(model).views(theta_P).items():
        matrix, _, side = name.rpartition(".")
        home, _ = _their_name(model, matrix)
        named = f"base_model.model.{home.removesuffix('weight')}{_PEFT_SIDES[side]}.weight"
        tensors[named] = np.ascontiguousarray(value, np.float32)
    return tensors


def _module(part: str) -> str:
    """Hugging Face's name of a matrix within its layer: the last but one part of its weight's."""
    return _LLAMA_PARTS[part].split(".")[-2]


# ---- import


def read_sizes(folder: Path) -> ModelSpec:
    """The model that a folder's config.json describes; its `base` is zero.

    Raises:
        ConfigError: it cannot be read, or is of a kind that cannot be trained here; the reason is given.
    """
    path, config = folder / CONFIG, _read_config(folder)
    readers: dict[str, Callable[[dict[str, Any]], ModelSpec]] = {
        "llama": _llama_sizes,
        "mistral": _mistral_sizes,
        "qwen2": partial(_qwen_sizes, Family.QWEN2),
        "qwen3": partial(_qwen_sizes, Family.QWEN3, head=128),
        "gemma": _gemma_sizes,
        "gpt2": _gpt_sizes,
    }
    kind = str(config.get("model_type")) if isinstance(config, dict) else None
    if kind not in readers:
        why = f" ({_LACKING[kind]})" if kind in _LACKING else ""
        raise ConfigError(f'base {path}: model_type is "{kind}"{why}, expected one of {", ".join(readers)}')
    try:
        if config.get("quantization_config") is not None:
            raise ValueError("quantization_config is written; only plain weights can be trained here")
        model = readers[kind](config)
        sizes = {name: getattr(model, name) for name in _SIZES}
        faults = [
            f"{name} is {size}, expected at most {SIZE_MAX}"
            for name, size in sizes.items()
            if size > SIZE_MAX
        ]
        faults += model_faults(model)
    except (KeyError, TypeError, ValueError, OverflowError) as cause:
        what = f"lacks {cause}" if isinstance(cause, KeyError) else str(cause)
        raise ConfigError(f"base {path}: {what}") from None
    if faults:
        raise ConfigError(f"base {path}: {'; '.join(faults)}")
    return model


def read_end(folder: Path) -> int | None:
    """The token that ends a text, by a folder's config.json; None if that names none, or several.

    Raises:
        ConfigError: it cannot be read.
    """
    config = _read_config(folder)
    end = config.get("eos_token_id") if isinstance(config, dict) else None
    return end if type(end) is int else None


def _read_config(folder: Path) -> Any:
    path = folder / CONFIG
    try:
        with open(path, "rb") as file:
            return parse_json(file.read(CONFIG_BYTES_MAX))
    except OSError as cause:
        raise ConfigError(f"base {path}: cannot be read ({cause.strerror or cause})") from None
    except (ValueError, RecursionError) as cause:
        raise ConfigError(f"base {path}: is not JSON ({cause})") from None


def read_theta(folder: Path, model: ModelSpec) -> NDArray[np.float32]:
    """The folder's weights as one vector in the order of the layout. Shape (P,), float32.

    Args:
        folder: With one *.safetensors file, or several and their index.
        model: As `read_sizes` returned it; a Llama's context may be another.

    Raises:
        ConfigError: a file or tensor is missing, of another shape or type, or not finite.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    places = _places(folder)
    opened: dict[Path, Any] = {}

    def load(name: str) -> NDArray[np.float32]:
        path = places[name]
        try:
            if path not in opened:
                opened[path] = safe_open(path, "pt")  # numpy knows no bfloat16
            tensor = opened[path].get_tensor(name)
        except (OSError, SafetensorError) as cause:
            raise ConfigError(f"base {path}: tensor {name} cannot be read ({cause})") from None
        if tensor.dtype not in kinds:  # what a quantised matrix has are codes, to be multiplied by scales
            expected = ", ".join(str(kind).removeprefix("torch.") for kind in kinds)
            found = str(tensor.dtype).removeprefix("torch.")
            raise ConfigError(f"base {path}: tensor {name} is of {found}, expected one of {expected}")
        value: NDArray[np.float32] = tensor.float().numpy()
        if not np.isfinite(value).all():
            raise ConfigError(f"base {path}: tensor {name} is not finite")
        return value

    layout = layout_of(model)
    theta_P = np.empty(layout.parameters, np.float32)
    for name, (at, shape) in layout.offsets().items():
        named, is_transposed = _their_name(model, name)
        if named not in places and named.removeprefix("transformer.") in places:
            named = named.removeprefix("transformer.")  # GPT-2 saved without its head
        if named not in places:
            raise ConfigError(f"base {folder}: holds no tensor {named}")
        value = load(named)
        value = value.T if is_transposed else value
        if value.shape != shape:
            raise ConfigError(f"base {folder}: tensor {named} has shape {value.shape}, expected {shape}")
        theta_P[at : at + value.size] = value.reshape(-1)
        if is_transposed and _bias_of(named) in places and load(_bias_of(named)).any():
            raise ConfigError(
                f"base {folder}: {_bias_of(named)} is not zero; the GPT trained here has no such bias, "
                "so this model cannot be started from exactly; start from a Llama instead"
            )
    return theta_P


def _places(folder: Path) -> dict[str, Path]:
    """The file that holds each tensor."""
    from safetensors import SafetensorError, safe_open

    index = folder / WEIGHTS_INDEX
    if index.is_file():
        try:
            weights = dict(parse_json(index.read_bytes())["weight_map"])
            names = {str(name): str(file) for name, file in weights.items()}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as cause:
            raise ConfigError(f"base {index}: is not an index of weights ({cause})") from None
        if any(Path(file).name != file for file in names.values()):
            raise ConfigError(f"base {index}: names files outside its folder")
        return {name: folder / file for name, file in names.items()}
    files = sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        raise ConfigError(f"base {folder}: {len(files)} *.safetensors files without an index, expected one")
    try:
        with safe_open(files[0], "pt") as opened:
            return dict.fromkeys(opened.keys(), files[0])
    except (OSError, SafetensorError) as cause:
        raise ConfigError(f"base {files[0]}: cannot be read ({cause})") from None


def _llama_sizes(
    config: Mapping[str, Any],
    family: Family = Family.LLAMA,
    *,
    context: int = 2048,
    head: int | None = None,
) -> ModelSpec:
    """The sizes of a Llama-style model.

    Args:
        config: Content of config.json.
        family: The model's.
        context, head: What `transformers` takes for the family if none is written; None: width / heads.
    """
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    if config.get("head_dim") is not None and (head := int(config["head_dim"])) < 1:
        raise ValueError(f"head_dim is {head}, expected at least 1")
    rope, scaling = _table(config, "rope_parameters"), _table(config, "rope_scaling")
    kinds = {str(r.get("rope_type", r.get("type", "default"))) for r in (rope, scaling) if r}
    _expect(config, "hidden_act", _GELU_TANH if family is Family.GEMMA else "silu")
    if family is not Family.QWEN2:  # its biases have no key
        _expect(config, "attention_bias", False)
    _expect(config, "mlp_bias", False)
    if kinds - {"default"}:
        raise ValueError(
            f"rope_type is {', '.join(sorted(kinds))}; only unscaled rotation can be trained here"
        )
    return ModelSpec(
        family=family,
        vocabulary=int(config["vocab_size"]),
        layers=int(config["num_hidden_layers"]),
        width=width,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        hidden=int(config["intermediate_size"]),
        context=int(config.get("max_position_embeddings", context)),
        rope_theta=_whole(rope.get("rope_theta", config.get("rope_theta", 10_000)), "rope_theta"),
        norm_epsilon_nano=_whole(float(config.get("rms_norm_eps", 1e-6)) * 1e9, "rms_norm_eps * 10^9"),
        is_tied=_flag(config, "tie_word_embeddings", family is Family.GEMMA),
        base=NO_DIGEST,
        head_width=0 if head is None or head * heads == width else head,
    )


def _mistral_sizes(config: Mapping[str, Any]) -> ModelSpec:
    return _windowed(_llama_sizes(config), config)


def _qwen_sizes(family: Family, config: Mapping[str, Any], head: int | None = None) -> ModelSpec:
    model = _llama_sizes(config, family, context=32_768, head=head)
    return _windowed(model, config) if _flag(config, "use_sliding_window", False) else model


def _gemma_sizes(config: Mapping[str, Any]) -> ModelSpec:
    """A Gemma's. Its first releases wrote "gelu" and meant the approximation; later ones wrote it twice."""
    _expect(config, "hidden_activation", config.get("hidden_activation") and _GELU_TANH)
    _expect(config, "use_bidirectional_attention", config.get("use_bidirectional_attention") and False)
    if config.get("hidden_act") == "gelu":
        config = {**config, "hidden_act": _GELU_TANH}
    return _llama_sizes(config, Family.GEMMA, context=8192, head=256)


def _windowed(model: ModelSpec, config: Mapping[str, Any]) -> ModelSpec:
    """A model whose attention looks back over a window, if one is written: no longer contexts are trained."""
    window = config.get("sliding_window", 4096)
    return model if window is None else replace(model, context=min(model.context, int(window)))


def _gpt_sizes(config: Mapping[str, Any]) -> ModelSpec:
    if config.get("activation_function", "gelu_new") != "gelu":
        raise ValueError(
            f'activation_function is "{config.get("activation_function", "gelu_new")}"; the GPT trained here '
            'uses the exact "gelu" and has no linear biases, so OpenAI\'s GPT-2 cannot be started from'
        )
    _expect(config, "scale_attn_weights", True)
    for flag in ("scale_attn_by_inverse_layer_idx", "add_cross_attention"):
        _expect(config, flag, False)
    return ModelSpec(
        family=Family.GPT,
        vocabulary=int(config["vocab_size"]),
        layers=int(config["n_layer"]),
        width=int(config["n_embd"]),
        heads=int(config["n_head"]),
        kv_heads=int(config["n_head"]),
        hidden=int(config.get("n_inner") or 4 * int(config["n_embd"])),
        context=int(config["n_positions"]),
        rope_theta=0,
        norm_epsilon_nano=_whole(
            float(config.get("layer_norm_epsilon", 1e-5)) * 1e9, "layer_norm_epsilon * 10^9"
        ),
        is_tied=_flag(config, "tie_word_embeddings", True),
        base=NO_DIGEST,
    )


def _expect(config: Mapping[str, Any], key: str, value: object) -> None:
    if config.get(key, value) != value:
        raise ValueError(f"{key} is {config[key]}, only {value} can be trained here")


def _table(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key) or {}
    if not isinstance(value, dict):
        raise ValueError(f"{key} is {value!r}, expected an object or null")
    return value


def _flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"{key} is {value!r}, expected true or false")
    return value


def _whole(value: float, what: str) -> int:
    if abs(value - round(value)) > 1e-6 * max(abs(value), 1):
        raise ValueError(f"{what} is {value}, expected a whole number")
    return round(value)


def _their_name(model: ModelSpec, name: str) -> tuple[str, bool]:
    """Hugging Face's name of one of our tensors, and whether theirs is transposed."""
    is_gpt = model.family is Family.GPT
    whole = (_GPT_WHOLE if is_gpt else _LLAMA_WHOLE).get(name)
    if whole is not None:
        return whole, False
    layer, _, part = name.partition(".")
    home = f"{'transformer.h' if is_gpt else 'model.layers'}.{layer.removeprefix('layer')}"
    return f"{home}.{(_GPT_PARTS if is_gpt else _LLAMA_PARTS)[part]}", is_gpt and part in _GPT_TRANSPOSED


def _bias_of(weight: str) -> str:
    return weight.removesuffix("weight") + "bias"
