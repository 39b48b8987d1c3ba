"""An opening's size follows from the model alone, and hardly grows with it."""

from __future__ import annotations

import pytest

from assay.protocol.encoding import merkle
from assay.protocol.encoding.codec import encode
from assay.protocol.openings import Opening, Path
from assay.protocol.types import RoundId
from assay.protocol.update_rule import BLOCK_SIZE
from assay.testing.members import RUN_ID, peer
from assay.testing.specs import a_rule
from assay.training.layout import Layout, layout_of
from assay.training.model.presets import PRESETS
from assay.verifier.audit.messages import opening_bytes_max

MB = 10**6


def longest_opening(leaves: int, blocks: int) -> int:
    """Bytes of an opening of the first blocks, whose paths are the longest."""
    tree = merkle.Tree(leaves, bytes(merkle.tree_bytes(leaves)))
    paths = tuple(Path(hashes=tree.proof(block)) for block in range(blocks))
    data = bytes(4 * BLOCK_SIZE * blocks)
    return len(
        encode(
            Opening(
                run_id=RUN_ID,
                round=RoundId(2**32),
                node=peer("nora"),
                blocks=tuple(range(leaves - blocks, leaves)),
                before=data,
                after=data,
                paths_before=paths,
                paths_after=paths,
            )
        )
    )


@pytest.mark.parametrize("name", PRESETS)
def test_an_opening_of_64_blocks_is_at_most_two_and_a_fifth_megabytes_for_every_preset(name):
    leaves = layout_of(PRESETS[name]).blocks

    assert longest_opening(leaves, min(64, leaves)) <= 2.2 * MB


def test_of_a_hundred_times_the_parameters_an_opening_grows_by_a_fiftieth():
    small, large = (longest_opening(layout_of(PRESETS[name]).blocks, 64) for name in ("gpt-1m", "gpt-125m"))

    assert small < large < small * 1.02


def test_the_largest_opening_is_within_the_bound_on_what_an_auditor_fetches():
    leaves = 1 << 20  # four billion parameters; a taller tree adds 64 bytes a block and level
    layout = Layout(("all",), ((leaves * 64, 64),))

    for blocks in (1, 64, 4096):
        assert longest_opening(leaves, blocks) <= opening_bytes_max(a_rule(), layout, blocks)


def test_the_bound_of_inner_steps_counts_the_parameters_that_a_segment_starts_from():
    layout = Layout(("all",), ((64, 64),))

    assert opening_bytes_max(a_rule("fedavg", segment=1), layout, 0) == 4 * 4096 + 3 * (4 << 10)
