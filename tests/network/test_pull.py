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


@given(data=blobs, steps=st.lists(st.sampled_from(["take", "take late", "accept", "give back"]), max_size=40))
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

    for now_s, step in enumerate(steps):
        missing = set(range(count)) - present - set(asked)
        if step == "take":
            index = pull.take(now_s)
            assert (index is None) == (not missing)
            if index is not None:
                assert index in missing
                asked.append(index)
        elif step == "take late":
            index = pull.take(now_s, stalled_s=0.5)
            assert (index is None) == (not missing | set(asked) - present)
            if index is not None:
                assert index in missing or (not missing and index in asked)
                asked.append(index)
        elif asked and step == "accept":
            bring(asked.pop(0))
        elif asked:
            pull.give_back([asked.pop(0)])
        assert pull.present_count == len(present)
    while (index := pull.take(0)) is not None:
        asked.append(index)
    for index in asked:
        bring(index)
    assert pull.is_complete
    assert bytes(pull.data) == data


def test_a_chunk_is_asked_for_again_once_in_a_while_and_only_when_none_is_missing():
    data = bytes(3 * CHUNK_BYTES)
    pull = Pull(chunk_list_of(data).digest(), size_max=SIZE_MAX, threads=Threads())
    pull.adopt(chunk_list_of(data))

    assert [pull.take(0.0, stalled_s=1.0) for _ in range(4)] == [0, 1, 2, None]
    assert [pull.take(1.0, stalled_s=1.0) for _ in range(4)] == [2, 1, 0, None]
    assert pull.take(1.9, stalled_s=1.0) is None and pull.take(9.0) is None
    pull.give_back([1])
    assert pull.take(1.9) is None  # another session requests it still
    pull.give_back([1])
    assert pull.take(1.9) == 1
