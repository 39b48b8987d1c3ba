"""Order model: the model sizes of [model], from a preset, a folder, or single numbers.

Room: orders (edge: reads config.json, tokenizer.json and the chat template beside it). A number written
besides a preset replaces the preset's; values derived from it (hidden, kv_heads) are derived anew.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from assay.orders.sections import LoraTarget, ModelSection, Preset
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import ConfigError
from assay.protocol.params import NO_ADAPTER, AdapterSpec, Family, ModelSpec, Target, model_faults
from assay.training.data.chat_template import (
    SPECIAL_TOKENS,
    TEMPLATE_MAX,
    ChatTemplate,
    default_template,
)
from assay.training.data.shards import TOKENIZER
from assay.training.data.tokenizer import Tokenizer, byte_tokenizer, load_tokenizer
from assay.training.model.hugging_face import CHAT_TEMPLATE, TOKENIZER_CONFIG, read_end, read_sizes
from assay.training.model.presets import PRESETS, ROPE_THETA, gpt_spec, llama_spec

DEFAULT: Preset = "gpt-1m"
LORA_TARGETS: tuple[LoraTarget, ...] = ("q", "v")  # those of the paper's experiments
_TARGETS = dict(zip(get_args(LoraTarget), Target, strict=True))
_SIZES = ("layers", "width", "heads", "kv_heads", "hidden", "context", "rope_theta")


def model_sizes(section: ModelSection, folder: Path, tokenizer: Tokenizer) -> ModelSpec:
    """The model that the section describes; its `base` is zero.

    Args:
        section: [model].
        folder: Where its relative paths start.
        tokenizer: As `tokenizer_of` returned it.

    Raises:
        ConfigError: a file cannot be read, or the sizes do not make a model.
    """
    if section.base is not None:
        model = _from_base(section, base_folder(section, folder))
    elif section.preset is None and section.family is not None:
        model = _from_family(section)
    else:
        model = _changed(section, PRESETS[section.preset or DEFAULT])
    vocabulary = section.vocabulary or (model.vocabulary if section.base is not None else 0)
    if vocabulary and vocabulary < tokenizer.vocabulary:
        raise ConfigError(f"vocabulary is {vocabulary}, the tokenizer needs {tokenizer.vocabulary}")
    model = replace(model, vocabulary=vocabulary or tokenizer.vocabulary, adapter=_adapter(section))
    if faults := model_faults(model):
        raise ConfigError("; ".join(faults))
    return model


def _adapter(section: ModelSection) -> AdapterSpec:
    """The adapter that is trained on the base; none if no rank is written."""
    rank, alpha, targets = section.lora_rank, section.lora_alpha, section.lora_targets
    if rank is None:
        if (alpha, targets, section.base_bits) != (None, None, None):
            raise ConfigError(
                "lora_alpha, lora_targets and base_bits belong to lora_rank, which is not written"
            )
        return NO_ADAPTER
    if section.base is None:
        raise ConfigError("lora_rank trains an adapter on a base; write the base's folder as base")
    if targets == ():
        raise ConfigError(f"lora_targets is empty, expected some of {', '.join(_TARGETS)}")
    named = LORA_TARGETS if targets is None else targets
    if len(set(named)) < len(named):
        raise ConfigError(f"lora_targets names a matrix twice: {', '.join(named)}")
    return AdapterSpec(
        rank=rank,
        alpha=alpha or 2 * rank,
        targets=tuple(sorted(_TARGETS[name] for name in named)),
        base_bits=section.base_bits or 0,
    )


def tokenizer_of(section: ModelSection, folder: Path) -> Tokenizer:
    """The tokenizer that is named, else the base's, else bytes.

    What its model ends a text with separates documents, unless the order says otherwise.

    Raises:
        ConfigError: it cannot be read, is no tokenizer, or does not know the separator.
    """
    if section.tokenizer is not None:
        path = folder / Path(section.tokenizer).expanduser()
        return load_tokenizer(path, section.separator, _named_end(path.parent))
    if section.base is not None:
        path = base_folder(section, folder) / TOKENIZER
        if path.is_file():
            end = _named_end(path.parent) or read_end(path.parent)
            return load_tokenizer(path, section.separator, end)
    if section.separator:
        raise ConfigError(f'separator is "{section.separator}": tokens are bytes, which name none')
    plain = byte_tokenizer()
    return plain if section.separator is None else replace(plain, separator=None)


def chat_template_of(section: ModelSection, folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template that is named, else the one beside the tokenizer, else the default one.

    Raises:
        ConfigError: it cannot be read.
    """
    home = None
    if section.tokenizer is not None:
        home = (folder / Path(section.tokenizer).expanduser()).parent
    elif section.base is not None:
        home = base_folder(section, folder)
    config = _tokenizer_config(home / TOKENIZER_CONFIG) if home is not None else {}
    tokens = {name: text for name in SPECIAL_TOKENS if (text := _token_text(config.get(name)))}
    if section.chat_template is not None:
        return ChatTemplate(_template_text(folder / Path(section.chat_template).expanduser()), tokens)
    if home is not None and (home / CHAT_TEMPLATE).is_file():
        return ChatTemplate(_template_text(home / CHAT_TEMPLATE), tokens)
    text = config.get("chat_template")
    if isinstance(text, list):  # several by name
        named = {one.get("name"): one.get("template") for one in text if isinstance(one, dict)}
        text = named.get("default")
    return ChatTemplate(text, tokens) if isinstance(text, str) else default_template(tokenizer)


def _template_text(path: Path) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(TEMPLATE_MAX + 1)
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"chat_template {path}: cannot be read ({cause})") from None


def _tokenizer_config(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_bytes()) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as cause:
        raise ConfigError(f"tokenizer {path}: cannot be read ({cause})") from None
    if not isinstance(found, dict):
        raise ConfigError(f"tokenizer {path}: expected an object")
    return found


def _named_end(folder: Path) -> str | None:
    return _token_text(_tokenizer_config(folder / TOKENIZER_CONFIG).get("eos_token"))


def _token_text(value: object) -> str | None:
    """A special token, which is written as text or as an object with its content."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def base_folder(section: ModelSection, folder: Path) -> Path:
    """The Hugging Face folder to start from; it must be named."""
    assert section.base is not None
    return folder / Path(section.base).expanduser()


def _from_base(section: ModelSection, folder: Path) -> ModelSpec:
    for key in ("preset", "family", "layers", "width", "heads", "kv_heads", "hidden", "rope_theta", "tied"):
        if getattr(section, key) is not None:
            raise ConfigError(f"{key} is written, but the sizes are those of base; leave one of them out")
    model = read_sizes(folder)
    if section.vocabulary not in (None, model.vocabulary):
        raise ConfigError(f"vocabulary is {section.vocabulary}, base has {model.vocabulary}")
    context = section.context or model.context
    if context > model.context or (context != model.context and model.family is Family.GPT):
        raise ConfigError(f"context is {context}, base has {model.context}")
    return replace(model, context=context)


def _from_family(section: ModelSection) -> ModelSpec:
    layers, width, heads, context = section.layers, section.width, section.heads, section.context
    if layers is None or width is None or heads is None or context is None:
        raise ConfigError("a family without a preset needs layers, width, heads and context")
    if section.family == "gpt":
        plain = gpt_spec(layers=layers, width=width, heads=heads, context=context)
    else:
        hidden = _llama_hidden(width)
        plain = llama_spec(
            layers=layers, width=width, heads=heads, kv_heads=heads, hidden=hidden, context=context
        )
    return _changed(section, plain)


def _changed(section: ModelSection, model: ModelSpec) -> ModelSpec:
    is_gpt = model.family is Family.GPT
    if section.family not in (None, model.family.name.lower()):
        raise ConfigError(f'preset "{section.preset}" is no {section.family}; leave family out')
    written = {key: getattr(section, key) for key in _SIZES if getattr(section, key) is not None}
    if is_gpt and "rope_theta" in written:
        raise ConfigError("rope_theta is for Llama-style models; a GPT learns its positions")
    if "width" in written:
        written.setdefault("hidden", 4 * written["width"] if is_gpt else _llama_hidden(written["width"]))
    if "heads" in written:
        written.setdefault("kv_heads", written["heads"])
    is_tied = model.is_tied if section.tied is None else section.tied
    theta = 0 if is_gpt else written.get("rope_theta", model.rope_theta or ROPE_THETA)
    return replace(model, **{**written, "is_tied": is_tied, "rope_theta": theta})


def _llama_hidden(width: int) -> int:
    """8/3 of the width in whole blocks: costs as much as a plain MLP of four times the width."""
    return -(-8 * width // (3 * 64)) * 64
