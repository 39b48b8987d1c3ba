"""Programs: how many operators a step has, without a list of all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.protocol.params import AdapterSpec, Target
from assay.testing.specs import a_model, a_rule, a_spec
from assay.training.model.presets import PRESETS
from assay.training.reference.operators import operators
from assay.verifier.appeal.program import computed_count
from assay.verifier.audit.tolerance import SAMPLES

ADAPTED = replace(PRESETS["llama-130k"], adapter=AdapterSpec(rank=2, alpha=4, targets=(Target.Q,)))


@pytest.mark.parametrize("sequences", [1, 2, 3, 4, 7, 9])
@pytest.mark.parametrize("rows", [0, 1, 2, 3])
@pytest.mark.parametrize("model", [a_model(), ADAPTED], ids=["whole", "adapted"])
def test_every_operator_of_every_group_is_counted(model, rows, sequences):
    compute = replace(a_spec().compute, micro_sequences=rows)

    made = len(operators(model, sequences, compute))

    assert computed_count(model, compute, a_rule(), sequences) == made * (1 + SAMPLES) + SAMPLES + 1
