"""Whether multiple-choice items are answered as in lm-evaluation-harness: a table, item by item.

    pip install 'lm-eval[hf]'
    python -m benchmarks.harness [--items 200] [--seed 5]

Items are pieces of a document of this repository, models are presets with large random parameters, so that
answers are mixed. The harness loads the folder that a run delivers, with transformers, on one sequence at a
time; the other side is the reference class, whose answers verifiers agree on.

Reference:
    Gao et al., "A framework for few-shot language model evaluation",
    https://github.com/EleutherAI/lm-evaluation-harness.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from assay.training.data.choices import tokenised
from assay.training.data.tokenizer import BYTE_SEPARATOR, byte_tokenizer, byte_tokenizer_json
from assay.training.exact import initial_parameters
from assay.training.layout import layout_of
from assay.training.model.hugging_face import (
    CONFIG,
    TOKENIZER_CONFIG,
    WEIGHTS,
    export_config,
    export_tensors,
)
from assay.training.model.presets import PRESETS
from assay.training.reference.choices import answer

MODELS = ("gpt-1m", "llama-130k")
CONTEXT = 128
SCALE = np.float32(6)  # of initial parameters, which alone say nothing
WORDS = Path(__file__).parents[1] / "docs" / "protocol.md"


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    print(f"lm-eval {import_module('lm_eval').__version__}, {args.items} items, seed {args.seed}")
    columns = "model", "acc, harness", "acc, here", "acc_norm, harness", "acc_norm, here", "items that differ"
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    drawn = list(items(args.items, args.seed))
    with TemporaryDirectory() as folder:
        data = Path(folder) / "items.jsonl"
        data.write_text("".join(f"{json.dumps(one)}\n" for one in drawn))
        for name in MODELS:
            row = compared(name, drawn, data, Path(folder) / name)
            print(f"| {name} | {' | '.join(map(str, row))} |", flush=True)


def items(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Items of two to five choices, all pieces of one text."""
    words, draw = WORDS.read_text().split(), random.Random(seed)

    def piece(length: int) -> str:
        at = draw.randrange(len(words) - length)
        return " ".join(words[at : at + length])

    for _ in range(count):
        number = draw.randint(2, 5)
        query, choices = piece(draw.randint(2, 7)), [piece(draw.randint(1, 5)) for _ in range(number)]
        yield {"query": query, "choices": choices, "gold": draw.randrange(number)}


def compared(name: str, drawn: list[dict[str, Any]], data: Path, folder: Path) -> tuple[int, ...]:
    """Right answers of both by both measures, and the items on which they differ."""
    model = replace(PRESETS[name], context=CONTEXT)
    layout = layout_of(model)
    theta_P = initial_parameters(4, layout.names, layout.shapes) * SCALE
    folder.mkdir()
    save_file(export_tensors(model, theta_P), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(export_config(model, BYTE_SEPARATOR)))
    (folder / "tokenizer.json").write_bytes(byte_tokenizer_json())
    (folder / TOKENIZER_CONFIG).write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    theirs, ours = answered_by_harness(folder, data), list[tuple[bool, bool]]()
    for one in drawn:
        item = tokenised(one["query"], tuple(one["choices"]), one["gold"], byte_tokenizer())
        found = answer(model, theta_P, item)
        ours.append((found.acc, found.acc_norm))
    sums = (sum(one[at] for one in side) for at in (0, 1) for side in (theirs, ours))
    return (*sums, sum(one != other for one, other in zip(theirs, ours, strict=True)))


def answered_by_harness(folder: Path, data: Path) -> list[tuple[bool, bool]]:
    """Whether the harness finds each item answered right, by acc and by acc_norm."""
    evaluator, models = import_module("lm_eval"), import_module("lm_eval.models.huggingface")
    task = import_module("lm_eval.api.task").ConfigurableTask(
        config={
            "task": "items",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "query",
            "doc_to_choice": "choices",
            "doc_to_target": "gold",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        }
    )
    # The token before an empty text, for which a byte tokenizer has no name; no text here is empty.
    model = models.HFLM(
        pretrained=str(folder), device="cpu", dtype="float32", batch_size=1, prefix_token_id=BYTE_SEPARATOR
    )
    found = evaluator.evaluate(lm=model, task_dict={"items": task}, log_samples=True, bootstrap_iters=0)
    samples = sorted(found["samples"]["items"], key=lambda one: int(one["doc_id"]))
    return [(bool(one["acc"]), bool(one["acc_norm"])) for one in samples]


if __name__ == "__main__":
    main()
