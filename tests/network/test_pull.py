"""Pull: the chunks of one blob, asked for and taken in any order."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from assay.network.fetch import Pull, Threads
from assay.protocol.encoding.blob import CHUNK_BYTES, chunk_list_of

SIZE_MAX = 4 * CHUNK_BYTES
edges = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, SIZE_MAX]
blobs = st.builds(
    lambda size, salt: (hashlib.sha256(salt).digest() * (size // 32 + 1))[:size],
    st.sampled_from(edges),
    st.binary(max_size=4),
)


@given(data=blobs, steps=st.lists(st.sampled_from(["take", "accept", "give back"]), max_size=40))
def test_every_chunk_of_a_pull_is_in_one_state_and_only_arrives_once(data, steps):
    chunks = chunk_list_of(data)
    pull = Pull(chunks.digest(), size_max=SIZE_MAX, threads=Threads())
    assert not pull.is_complete
    pull.adopt(chunks)
    count, asked, present = len(chunks.hashes), [], set()

    def bring(index):
        offset, length = chunks.span(index)
        pull.accept(index, data[offset : offset + length])
        present.add(index)

    for step in steps:
        if step == "take":
            index = pull.take()
            assert (index is None) == (len(asked) + len(present) == count)
            if index is not None:
                assert index not in present
                asked.append(index)
        elif asked and step == "accept":
            bring(asked.pop())
        elif asked:
            pull.give_back([asked.pop(0)])
    while (index := pull.take()) is not None:
        asked.append(index)
    for index in asked:
        assert not pull.is_complete
        bring(index)
    assert pull.is_complete
    assert bytes(pull.data) == data
