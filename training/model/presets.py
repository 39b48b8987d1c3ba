"""Presets: model sizes by name, from a hundred thousand parameters, for trials, to one billion.

Room: training (pure). A name states the parameter count with its intended vocabulary: 256 (bytes) up to 15M,
32,000 above; a test holds the exact counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from assay.protocol.params import Family, ModelSpec
from assay.protocol.types import NO_DIGEST

BYTES = 256
NORM_EPSILON_NANO = 10_000
ROPE_THETA = 10_000


def gpt_spec(
    *,
    layers: int,
    width: int,
    heads: int,
    context: int,
    vocabulary: int = BYTES,
    hidden: int = 0,
    is_tied: bool = False,
) -> ModelSpec:
    """A GPT of these sizes; its MLP is four times as wide as the model by default."""
    return ModelSpec(
        family=Family.GPT,
        vocabulary=vocabulary,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=heads,
        hidden=hidden or 4 * width,
        context=context,
        rope_theta=0,
        norm_epsilon_nano=NORM_EPSILON_NANO,
        is_tied=is_tied,
        base=NO_DIGEST,
    )


def llama_spec(
    *,
    layers: int,
    width: int,
    heads: int,
    kv_heads: int,
    hidden: int,
    context: int,
    vocabulary: int = BYTES,
) -> ModelSpec:
    """A Llama-style decoder of these sizes."""
    sizes = gpt_spec(
        layers=layers, width=width, heads=heads, hidden=hidden, context=context, vocabulary=vocabulary
    )
    return replace(sizes, family=Family.LLAMA, kv_heads=kv_heads, rope_theta=ROPE_THETA)


PRESETS: Mapping[str, ModelSpec] = {
    "gpt-1m": gpt_spec(layers=4, width=128, heads=4, context=128),
    "gpt-15m": gpt_spec(layers=8, width=384, heads=6, context=256),
    "gpt-125m": gpt_spec(layers=12, width=768, heads=12, context=1024, vocabulary=32_000, is_tied=True),
    "gpt-350m": gpt_spec(layers=24, width=1024, heads=16, context=1024, vocabulary=32_000, is_tied=True),
    "llama-130k": llama_spec(layers=2, width=64, heads=4, kv_heads=2, hidden=192, context=64),
    "llama-1m": llama_spec(layers=4, width=128, heads=4, kv_heads=2, hidden=384, context=128),
    "llama-15m": llama_spec(layers=8, width=384, heads=6, kv_heads=2, hidden=1280, context=256),
    "llama-125m": llama_spec(
        layers=12, width=768, heads=12, kv_heads=4, hidden=2048, context=1024, vocabulary=32_000
    ),
    "llama-350m": llama_spec(
        layers=24, width=1024, heads=16, kv_heads=8, hidden=2816, context=2048, vocabulary=32_000
    ),
    "llama-1b": llama_spec(
        layers=22, width=2048, heads=32, kv_heads=4, hidden=5632, context=2048, vocabulary=32_000
    ),
}
